"""The models of a library: page model, distilled query model, rerankers; and a check that it can read the pages."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np

from ..errors import MissingError, RandSlotError, UsageError
from ..extras import needs_extra
from ..model.reader import Identity, PageReader, find_teacher, is_url, read_identity
from ..words.language import NO_STEMS, find_query_language
from .rerank import Reranker, open_reranker
from .stores.points import StoredPage, Vectors
from .stores.store import Store

EMBEDDED = "embedded"  # the name of the model that ships with the package
Name = str | os.PathLike[str]

# Settings that may differ. The template is part of the weights.
FREE = ("name", "revision", "query_vectors", "template")


# Weights of vector scores relative to word scores: for a model that reads the pages well, for others, and for a
# multilingual model with a query in another language than the library. Chosen in research/log.md, "Fusion".
STRONG, LIGHT, ACROSS = 0.25, 0.15, 1.0


def check_model(bound: Identity, other: Identity, library: str, advice: str = "") -> None:
    """Raise UsageError if a library was indexed with another model; advice: what to do."""
    differences = _compare(bound, other, FREE) if bound.weights == other.weights else f"{bound}, not {other}"
    if differences:
        advice = advice or "use that model with its settings, or create another library"
        raise UsageError(f"library {library} was indexed with {differences}: {advice}")


def _compare(bound: Identity, other: Identity, free: tuple[str, ...]) -> str:
    """Return the settings in which two models differ, except `free` ones."""
    ours, theirs = bound.as_dict(), other.as_dict()
    differences = []
    for name in {**ours, **theirs}:
        if name not in free and ours.get(name) != theirs.get(name):
            differences.append(f"{name}={ours.get(name)!r}, not {theirs.get(name)!r}")
    return ", ".join(differences)


def load_bound(bound: Identity, name: str | None, library: str, *, trust_remote_code: bool = False) -> PageReader:
    """Load the model of a library, from its original place or from `name`, with the library's settings.

    trust_remote_code: run the model's own Python code, even if this user has not trusted it before.
    """
    from ..model import open_model

    place = name or bound.name
    if place is None:
        raise RandSlotError(f"library {library} was indexed with a model in memory: pass that model")
    options: dict[str, Any] = {}
    if not is_url(place):
        options = {"revision": bound.revision if name is None else None, "dtype": bound.dtype}
        options["template"] = bound.settings.get("template")
        options["trust_remote_code"] = trust_remote_code or None
        if bound.settings.get("trust_remote_code") and not trust_remote_code:
            from ..model.own_code import is_code_trusted

            options["known_code"] = str(bound.settings.get("code"))
            if not is_code_trusted(options["known_code"]):
                advice = "Review it, then pass --trust-remote-code (in Python: trust_remote_code=True)"
                raise UsageError(f"{bound.name}, library {library}'s model, contains Python code. {advice}")
    try:
        reader: PageReader = open_model(place, **options)
    except MissingError as error:
        line = f"library {library} needs {bound}, and {error}; --by words searches without a model"
        raise MissingError(line, name=error.name) from error
    refuse_student(reader)
    if reader.identity.weights == bound.weights:
        reader.use(**bound.settings)
    check_model(bound, reader.identity, library)
    return reader


def refuse_student(model: PageReader) -> None:
    """Raise UsageError if a model only encodes queries."""
    if teacher := find_teacher(model):
        advice = f"index with {teacher}, and search with --query-model"
        raise UsageError(f"{model.identity} is a distilled query model: {advice}")


@dataclass(frozen=True)
class ReadingCheck:
    """The result of checking whether a model can read the pages of a library.

    share: of other pages that score below a line's own page; 0.5 is chance. pages: compared.
    """

    share: float
    pages: int

    @property
    def reads(self) -> bool:
        """Whether the model can read these pages."""
        return self.share >= 0.75


class LibraryModels:
    """The models of a library, each loaded when first needed. Thread-safe.

    binding: the model that made the vectors; None without vectors. student: the distilled query model, if any.
    reading_check: whether the model can read the pages; None if unknown. reranker: default of this process.
    remembered_reranker: default saved in the library.
    """

    def __init__(self, library: str, trust_remote_code: bool) -> None:
        """library: its name, in messages."""
        self.library, self.trust_remote_code = library, trust_remote_code
        self.binding: Identity | None = None
        self.loaded: PageReader | None = None
        self.student: PageReader | None = None
        self.reading_check: ReadingCheck | None = None
        self.reranker: str | Reranker | None = None
        self.remembered_reranker: str | None = None
        self._rerankers: dict[str, Reranker] = {}
        self._lock = Lock()

    def bind(self, model: Name | PageReader | Identity) -> Identity:
        """Set the model of a library that has none."""
        if not isinstance(model, Identity):
            self.loaded = self._open(model)
            refuse_student(self.loaded)
            model = self.loaded.identity
        self.binding = model
        return model

    def open(self, described: Any, model: Name | PageReader | Identity | None) -> None:
        """Use the model described in library.json; `model` must be the same one, if given."""
        binding = self.binding = read_identity(described)
        if isinstance(model, Identity):
            check_model(binding, model, self.library, "choose another library")
        elif isinstance(model, str | os.PathLike):
            self.loaded = load_bound(binding, os.fspath(model), self.library, trust_remote_code=self.trust_remote_code)
        elif model is not None:
            self.loaded = self._open(model)
            refuse_student(self.loaded)
            check_model(binding, self.loaded.identity, self.library)

    def use_student(self, model: Name | PageReader) -> None:
        """Encode queries with a student; UsageError if it does not match the library's model."""
        bound, student = self.need_binding(), self._open(model)
        teacher = find_teacher(student)
        target = teacher or student.identity
        if bound.weights != target.weights:
            what = f"a student of {teacher}" if teacher else "not distilled from it"
            raise UsageError(f"library {self.library} was indexed with {bound}; {student.identity} is {what}")
        width = bound.settings.get("width", 0)
        if 0 < width < target.dimension:
            target = target.narrowed(None, width)
        of_pages = ("page_vectors", "visual_tokens", "text_tokens", "reduction", "reads")
        if differences := _compare(bound, target, (*FREE, *of_pages)):
            raise UsageError(f"library {self.library} was indexed with {differences}: distill with its settings")
        if student.dimension != target.dimension:  # truncate it, or undo that for another library
            student.use(width=target.settings.get("width", 0))
        self.student = student

    def find_reranker(self, wanted: str | Reranker | Literal[False] | None) -> Reranker | None:
        """Return the loaded reranker of a search. wanted: None for the default, False or "none" for no reranker."""
        wanted = (self.reranker or self.remembered_reranker) if wanted is None else wanted
        if not wanted or wanted == "none":
            return None
        if not isinstance(wanted, str):
            return wanted
        with self._lock:
            if wanted not in self._rerankers:
                self._rerankers[wanted] = open_reranker(wanted, trust_remote_code=self.trust_remote_code)
        return self._rerankers[wanted]

    def need_binding(self) -> Identity:
        """Return the model that made the vectors; UsageError if the library has no vectors."""
        if self.binding is None:
            raise UsageError(f"library {self.library} has no vectors: add them with randslot index --model")
        return self.binding

    @property
    def model(self) -> PageReader:
        """The model that made the vectors."""
        with self._lock:
            if self.loaded is None:
                bound, trusted = self.need_binding(), self.trust_remote_code
                self.loaded = load_bound(bound, None, self.library, trust_remote_code=trusted)
            return self.loaded

    @property
    def query_model(self) -> PageReader:
        """The model that encodes queries: the student, or the library's model."""
        return self.student or self.model

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        """Encode queries; num_vectors: per query, if given."""
        model = self.query_model
        with self._lock:
            return model.embed_queries(list(queries), num_vectors=num_vectors)

    def embed_lines(self, lines: Sequence[str]) -> list[Vectors]:
        """Encode lines of text as queries, with the library's model, not a student."""
        model = self.model
        with self._lock:
            return model.embed_queries(list(lines), num_vectors=None)

    def _open(self, model: Any) -> PageReader:
        if isinstance(model, str | os.PathLike):
            from ..model import open_model

            name = os.fspath(model)
            return open_model(name, **{} if is_url(name) else {"trust_remote_code": self.trust_remote_code or None})
        if hasattr(model, "identity"):
            reader: PageReader = model
            return reader
        with needs_extra():
            from ..model.sentence_model import adopt

        return adopt(model)

    # -- can the model read the pages?

    def can_read(self) -> bool:
        """Whether the model can read the pages; if unchecked, assume so, except for the embedded one."""
        if self.reading_check is None:
            return self.binding is not None and self.binding.name != EMBEDDED
        return self.reading_check.reads

    def check_reading(self, store: Store, visible: Collection[str]) -> ReadingCheck | None:
        """Check whether lines of sampled pages score higher on their own page than on others.

        None if too few pages have both text and vectors.
        """
        ids = [page.id for page in store.find(("layer", "ocr"), vectors=True) if page.file in visible]
        rng = random.Random(0)
        pages = list(store.read(rng.sample(ids, min(len(ids), 100))).values())
        lines: dict[int, str] = {}
        for i, page in enumerate(pages[:40]):
            if line := choose_line(page, rng):
                lines[i] = line
        if len(pages) < 8 or len(lines) < 8:
            return None
        shares = []
        for i, query in zip(lines, self.embed_lines(list(lines.values())), strict=True):
            scores = np.array([(query @ page.vectors.T).max(1).sum() for page in pages if page.vectors is not None])
            others = np.delete(scores, i)
            shares.append(float((others < scores[i]).mean() + (others == scores[i]).mean() / 2))
        return ReadingCheck(round(float(np.mean(shares)), 3), len(pages))

    def weigh_vectors(self, query: str, language: str | None) -> float:
        """Return the weight of vector scores relative to word scores. language: of the library."""
        usual = language or NO_STEMS
        is_multilingual = self.binding is not None and self.binding.settings.get("multilingual", False)
        if is_multilingual and self.can_read() and find_query_language(query, usual) != usual:
            return ACROSS
        reads_well = self.reading_check is not None and self.reading_check.share >= 0.97
        return STRONG if reads_well else LIGHT


def choose_line(page: StoredPage, rng: random.Random) -> str:
    """Return a random line of a page, with the next ones if it is short; "" if the page has fewer than 5 words."""
    assert page.text is not None
    lines = page.text.text.splitlines()
    start = rng.randrange(len(lines)) if lines else 0
    words: list[str] = []
    for line in [*lines[start:], *lines[:start]]:
        words += line.split()
        if len(words) >= 5:
            return " ".join(words[:16])
    return ""
