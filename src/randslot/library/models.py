"""The models of a library: the one that its vectors are of, and a student that may read queries in its place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from typing import Any

from ..errors import UsageError
from ..extras import needs_extra
from ..model.reader import Identity, PageReader, is_url
from .binding import check_model, check_query_model, load_bound, read_binding, refuse_student
from .stores.store import Vectors

Name = str | os.PathLike[str]


class LibraryModels:
    """The models of a library, each loaded when it is first needed. Safe in several threads.

    binding: which model the vectors are of; None while the library has none.
    """

    def __init__(self, library: str, trust_remote_code: bool) -> None:
        """library: its name, for messages."""
        self.library, self.trust_remote_code = library, trust_remote_code
        self.binding: Identity | None = None
        self._model: PageReader | None = None
        self._student: PageReader | None = None
        self._lock = Lock()

    def bind(self, model: Name | PageReader | Identity) -> Identity:
        """Have the vectors be those of a model, which is loaded if only its name is given."""
        if isinstance(model, Identity):
            self.binding = model
        else:
            self._model = self._open(model)
            refuse_student(self._model)
            self.binding = self._model.identity
        return self.binding

    def open(self, described: Any, model: Name | PageReader | Identity | None) -> None:
        """Have the model that is written about a library; `model` may name it again, or be it.

        Errors: RandSlotError if that is another one.
        """
        binding = self.binding = read_binding(described, self.library)
        if isinstance(model, Identity):
            check_model(binding, model, self.library, "name another place")
        elif isinstance(model, str | os.PathLike):
            self._model = self._load_bound(binding, os.fspath(model))
        elif model is not None:
            self._model = _as_reader(model)
            refuse_student(self._model)
            check_model(binding, self._model.identity, self.library)

    def take_student(self, model: Name | PageReader) -> None:
        """Have a student read queries.

        Errors: UsageError if it is not for this library.
        """
        binding = self.need_binding()
        student = self._open(model)
        check_query_model(binding, student, self.library)
        self._student = student

    def need_binding(self) -> Identity:
        """Return which model the vectors are of.

        Errors: UsageError if the library has no vectors.
        """
        if self.binding is None:
            raise UsageError(f"library {self.library} has no vectors: randslot index --model adds them")
        return self.binding

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    @property
    def has_student(self) -> bool:
        return self._student is not None

    @property
    def model(self) -> PageReader:
        """The model of the vectors. Errors: UsageError if the library has none."""
        with self._lock:
            if self._model is None:
                self._model = self._load_bound(self.need_binding(), None)
            return self._model

    @property
    def query_model(self) -> PageReader:
        """The student, or else the model of the vectors."""
        return self.model if self._student is None else self._student

    def embed_queries(self, queries: list[str], num: int | None) -> list[Vectors]:
        """Return the vectors of queries, so many each if a number is given."""
        return self._embed(self.query_model, queries, num)

    def embed_lines(self, lines: Sequence[str]) -> list[Vectors]:
        """Return the vectors of lines as queries, by the model itself, also where a student reads queries."""
        return self._embed(self.model, list(lines), None)

    def _embed(self, model: PageReader, queries: list[str], num: int | None) -> list[Vectors]:
        with self._lock:
            return model.embed_queries(queries, num_vectors=num)

    def _open(self, model: Name | PageReader) -> PageReader:
        if not isinstance(model, str | os.PathLike):
            return _as_reader(model)
        from ..model.opening import open_model  # takes seconds for most models

        name = os.fspath(model)
        return open_model(name) if is_url(name) else open_model(name, trust_remote_code=self.trust_remote_code or None)

    def _load_bound(self, binding: Identity, name: str | None) -> PageReader:
        return load_bound(binding, name, self.library, trust_remote_code=self.trust_remote_code)


def _as_reader(model: Any) -> PageReader:
    if hasattr(model, "identity"):
        reader: PageReader = model
        return reader
    with needs_extra():
        from ..model.loading import adopt  # plain sentence-transformers has loaded it

    return adopt(model)
