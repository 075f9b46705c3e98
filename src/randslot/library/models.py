"""The models of a library: the one that its vectors are of, and a student that may read queries in its place."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

import numpy as np

from ..errors import MissingError, RandSlotError, UsageError
from ..extras import needs_extra
from ..model.reader import Identity, PageReader, find_teacher, is_url, read_identity
from .stores.base import Store, StoredPage, Vectors

EMBEDDED = "embedded"  # the name of the model that ships with the package

# May differ: where the same model is now, and how long queries are. The template is part of
# the weights.
FREE = ("name", "revision", "query_vectors", "template")
# May differ, too, between the pages of a library and the teacher of a student, who is asked for queries alone.
OF_PAGES = ("page_vectors", "visual_tokens", "text_tokens", "reduction", "reads")


def check_model(bound: Identity, other: Identity, library: str, advice: str = "") -> None:
    """Refuse a model that is not the one a library belongs to; advice: what to do about it.

    Errors: UsageError in one line that says what differs.
    """
    if bound.weights != other.weights:
        advice = advice or "open it with its own model, or make another library"
        raise UsageError(f"library {library} belongs to {bound}, and this is {other}: {advice}")
    if differences := _compare(bound, other, FREE):
        advice = advice or "load the model so, or make another library"
        raise UsageError(f"library {library} was made with {', '.join(differences)}: {advice}")


def _compare(bound: Identity, other: Identity, free: tuple[str, ...]) -> list[str]:
    """Return in what two sets of settings differ, but for some that may."""
    ours, theirs = bound.as_dict(), other.as_dict()
    differences = []
    for name in {**ours, **theirs}:
        if name not in free and ours.get(name) != theirs.get(name):
            differences.append(f"{name}={ours.get(name)!r} and not {theirs.get(name)!r}")
    return differences


def check_query_model(bound: Identity, model: PageReader, library: str) -> None:
    """Refuse a model for queries that is neither a student of the one a library belongs to, nor that itself.

    Errors: UsageError in one line that says what differs.
    """
    teacher = find_teacher(model)
    spoken = teacher or model.identity
    if bound.weights != spoken.weights:
        what = f"a student of {teacher}" if teacher else "neither that nor a student of it"
        raise UsageError(f"library {library} belongs to {bound}, and {model.identity} is {what}")
    if differences := _compare(bound, spoken, (*FREE, *OF_PAGES)):
        raise UsageError(f"library {library} was made with {', '.join(differences)}: distill its model as it is there")


def refuse_student(model: PageReader) -> None:
    """Refuse a student as the model of a library.

    Errors: UsageError in one line.
    """
    if teacher := find_teacher(model):
        raise UsageError(
            f"{model.identity} is a student, which makes vectors of queries alone: index with {teacher}, and name the "
            "student by --query-model when searching"
        )


def read_binding(values: Any, library: str) -> Identity:
    """Read which model a library belongs to, as `Identity.as_dict` wrote it.

    Errors: RandSlotError if something is missing.
    """
    try:
        return read_identity(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise RandSlotError(f"library.json of {library} does not say which model it belongs to: {error}") from error


def load_bound(bound: Identity, name: str | None, library: str, *, trust_remote_code: bool = False) -> PageReader:
    """Load the model that a library belongs to, from where it came from or from `name`, with the library's settings.

    trust_remote_code: let it run code of its own, if it has any that this user has not trusted before.

    Errors: RandSlotError if that is another model, or cannot be found; MissingError without the extra that models need.
    UsageError for code that is not trusted.
    """
    from ..model.opening import open_model

    place = name or bound.name
    if place is None:
        raise RandSlotError(f"library {library} was made with a model in memory: pass that model")
    options: dict[str, Any] = {}
    if not is_url(place):
        options = {"revision": bound.revision if name is None else None, "dtype": bound.dtype}
        options["template"] = bound.settings.get("template")
        options |= _trust(bound, library, trust_remote_code)
    try:
        reader: PageReader = open_model(place, **options)
    except MissingError as error:
        line = f"library {library} belongs to {bound}, and {error}; --by words searches without a model"
        raise MissingError(line, name=error.name) from error
    refuse_student(reader)
    if reader.identity.weights == bound.weights:
        reader.use(**bound.settings)
    check_model(bound, reader.identity, library)
    return reader


def _trust(bound: Identity, library: str, trust_remote_code: bool) -> dict[str, Any]:
    """Return what lets a model run code of its own: the word of the user, now or earlier on this machine.

    Errors: UsageError that says which option to give.
    """
    if not bound.settings.get("trust_remote_code") or trust_remote_code:
        return {"trust_remote_code": trust_remote_code or None}
    from ..model.sentence_loading import is_code_trusted

    code = str(bound.settings.get("code"))
    if not is_code_trusted(code):
        raise UsageError(
            f"library {library} was made with {bound.name}, which runs code of its own: read that code, and if you "
            "trust it give --trust-remote-code (in Python Library(..., trust_remote_code=True))"
        )
    return {"known_code": code}


LINES = 40  # that are asked for
OTHERS = 100  # pages that each is compared with
FEWEST = 8  # pages with vectors and text below which nothing can be said
WORDS = (5, 16)  # of a line that is asked for: at least, at most
# Half of the other pages are nearer to a line by chance. A model that reads has nearly none nearer.
READS_FROM, WELL_FROM = 0.75, 0.97
# Of the ranks by vectors beside those by words, if the model reads well or less so; how they were chosen: docs/log.md.
STRONG, LIGHT = 0.7, 0.2
ACROSS = 2.0  # for a query in another language than the library, if its model reads several


@dataclass(frozen=True)
class ReadingCheck:
    """How well vectors know pages: the share of other pages that are farther from a line than its own; 0.5 is chance.

    pages: how many were compared.
    """

    share: float
    pages: int

    @property
    def reads(self) -> bool:
        """Whether the model can read these pages."""
        return self.share >= READS_FROM

    @property
    def weight(self) -> float:
        """How much ranks by vectors count beside those by words."""
        return STRONG if self.share >= WELL_FROM else LIGHT

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def load_reading_check(values: Any) -> ReadingCheck | None:
    """Read what `as_dict` wrote; None if it is not there."""
    return ReadingCheck(float(values["share"]), int(values["pages"])) if values else None


def check_reading(
    store: Store, visible: Collection[str], embed: Callable[[Sequence[str]], list[Vectors]]
) -> ReadingCheck | None:
    """Ask for lines of some pages, and compare their vectors with those of the page and of others.

    visible: ids of files that count. embed: of queries. None if too few pages have both text and vectors.
    """
    ids = [page.id for page in store.find(("layer", "ocr"), vectors=True) if page.file in visible]
    dice = random.Random(0)
    chosen = dice.sample(ids, min(len(ids), OTHERS))
    pages = list(store.read(chosen).values())
    lines: list[tuple[int, str]] = []
    for i, page in enumerate(pages[:LINES]):
        line = choose_line(page, dice)
        if line:
            lines.append((i, line))
    if len(pages) < FEWEST or len(lines) < FEWEST:
        return None
    shares = []
    for (i, _), query in zip(lines, embed([line for _, line in lines]), strict=True):
        scores = np.array([_max_sim(query, page) for page in pages])
        others = np.delete(scores, i)
        shares.append(float((others < scores[i]).mean() + (others == scores[i]).mean() / 2))
    return ReadingCheck(round(float(np.mean(shares)), 3), len(pages))


def _max_sim(query: Vectors, page: StoredPage) -> float:
    assert page.vectors is not None
    return float((query @ page.vectors.T).max(1).sum())


def choose_line(page: StoredPage, dice: random.Random) -> str:
    """Return a line of a page, with those after it if it is short, or nothing if the page has too few words."""
    assert page.text is not None
    lines = page.text.text.splitlines()
    if not lines:
        return ""
    start = dice.randrange(len(lines))
    words: list[str] = []
    for line in [*lines[start:], *lines[:start]]:
        words += line.split()
        if len(words) >= WORDS[0]:
            return " ".join(words[: WORDS[1]])
    return ""


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
        from ..model.opening import open_model

        name = os.fspath(model)
        return open_model(name) if is_url(name) else open_model(name, trust_remote_code=self.trust_remote_code or None)

    def _load_bound(self, binding: Identity, name: str | None) -> PageReader:
        return load_bound(binding, name, self.library, trust_remote_code=self.trust_remote_code)


def _as_reader(model: Any) -> PageReader:
    if hasattr(model, "identity"):
        reader: PageReader = model
        return reader
    with needs_extra():
        from ..model.loading import adopt

    return adopt(model)
