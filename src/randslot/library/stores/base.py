"""What all stores do: pages in, ranked pages out. The engines (edge.py, qdrant.py) only translate.

A page is a point: named vectors, and a payload with its file, number, image and text. Its vectors are dense ("page":
several, compared by MaxSim; "sketch": one, see sketch.py) or sparse ("words": terms with their BM25 weights, which the
engine multiplies by how rare they are). A search asks the engine for the nearest pages by each field, and combines the
ranks here. So a new field of words, or another way to combine scores, changes this file only.
"""

from __future__ import annotations

import base64
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ...errors import RandSlotError
from ...words.analyzer import Terms
from .sketch import NUMBERS, Sketcher

T = TypeVar("T")
Vectors = NDArray[np.float32]
NamedVectors = dict[str, "Vectors | Terms"]
BYTES_PER_NUMBER = 2  # of a vector: stores keep half precision
MAX_NUMBERS = 2**22  # of vectors in memory at once: engines take and return Python lists, some 30 bytes a number
SAMPLE = 16  # pages that tell how large the vectors of a page are
PLACE = ["file", "number"]  # what a hit has of a payload
PART = "part"  # in a payload: the model has read a part of the page


@dataclass(frozen=True)
class Tuning:
    """When vectors get binary codes, how many pages are scored in full, and how ranks are combined.

    candidates, oversampling: a search by codes scores at least `candidates` pages in full, and `oversampling` for each
    hit. compress_from: KB of vectors from which a segment gets codes. codes_from: dimensions from which codes save time
    and are exact enough.

    certain_rank, witness_rank, certainty: a search by codes is certain if the score of the one is ahead of that of the
    other by `certainty` standard errors of a code. If not, all pages are scored.

    pool, rank_offset: a search by words and vectors takes the best `pool` pages by each (or two for each hit), and a
    page at rank r gets 1 / (rank_offset + r / weight) from each. How these were chosen: research/log.md.
    """

    candidates: int = 1000
    oversampling: int = 20
    compress_from: int = 1000
    codes_from: int = 1024
    certain_rank: int = 5
    witness_rank: int = 100
    certainty: float = 1.5
    pool: int = 100
    rank_offset: int = 1

    def has_codes(self, dim: int | None) -> bool:
        """Whether vectors of this dimension have codes."""
        return dim is not None and dim >= self.codes_from


DEFAULT_TUNING = Tuning()


class DamagedError(RandSlotError):
    """Stored vectors cannot be read."""


# -- pages and queries


def page_id(file: str, number: int) -> str:
    """Return the id of a page, the same in every store."""
    return str(uuid.uuid5(uuid.UUID(file), str(number)))


Origin = Literal["layer", "ocr", "none", "blank", "failed", ""]
"""Where the text of a page is from: the file ("layer") or OCR. Or why it has none: it has no layer and waits for OCR
("none"), OCR found nothing ("blank") or failed, or nobody has looked yet ("")."""


@dataclass(frozen=True)
class StoredText:
    """The text of a page. boxes: of its words, eight bytes each. words: in order, for phrases. terms: for BM25.

    fields: headings and titles of the page, as in `PageText`.
    """

    origin: Origin
    text: str = ""
    boxes: bytes = b""
    words: str = ""
    terms: Terms = field(default_factory=Terms)
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredPage:
    """A page: the id of its file, its number from 1, a hash of its content, its vectors (K, D) and its text.

    vectors: None in a library without a model, or if they are to come. text: None if nobody has looked for one. cut:
    whether the page has more text than the model has read.
    """

    file: str
    number: int
    image: str
    vectors: Vectors | None = None
    text: StoredText | None = None
    cut: bool = False

    @property
    def id(self) -> str:
        return page_id(self.file, self.number)


@dataclass(frozen=True)
class StoreQuery:
    """What to search by: vectors (K, D), words, or both, whose ranks are combined.

    phrases: all must be on the page. excluded: none of these phrases may be. vectors_weight: words have a weight of 1.
    """

    vectors: Vectors | None = None
    terms: Terms | None = None
    phrases: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    vectors_weight: float = 1.0


@dataclass(frozen=True)
class Where:
    """Which pages are searched: those of `files` (None: of all) but not of `hidden` ones, in a range of numbers."""

    files: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()
    first: int = 1
    last: int | None = None


@dataclass(frozen=True)
class StoreHit:
    """A page that was found. score: MaxSim by vectors, BM25 by words, a sum over ranks by both."""

    id: str
    file: str
    number: int
    score: float


@dataclass(frozen=True)
class Contents:
    """How many pages there are, how many have vectors, and how many have text, by its origin."""

    pages: int
    with_vectors: int
    origins: dict[str, int]


@dataclass(frozen=True)
class Sketches:
    """How pages are sketched. candidates: pages that a search finds by sketches and scores in full; 0: it does not."""

    sketcher: Sketcher
    candidates: int = 0

    def sketch(self, pages: Sequence[StoredPage]) -> dict[str, Vectors]:
        """Return the sketches of the pages that have vectors, by id."""
        ids, vectors = [], []
        for page in pages:
            if page.vectors is not None:
                ids.append(page.id)
                vectors.append(page.vectors)
        return dict(zip(ids, self.sketcher.sketch_pages(vectors), strict=True))


# -- what an engine is asked


@dataclass(frozen=True)
class DenseField:
    """A named dense vector of pages. is_multi: a page has several, compared by MaxSim. has_codes: a bit a number."""

    name: str
    size: int
    is_multi: bool = False
    has_codes: bool = False


VECTOR_NAME, TERMS_NAME = "page", "words"
SPARSE_FIELDS = (TERMS_NAME,)
SKETCH = DenseField("sketch", NUMBERS)
KEYWORDS, TEXTS, INTEGERS = ("file", "origin", "read"), ("words",), ("number",)  # indexed fields of the payload


@dataclass(frozen=True)
class Filter:
    """Which points are meant: all that is given must hold.

    any_of, none_of: the field of a payload has one of these values, or none of them. phrases, excluded: of the words.
    first, last: numbers of pages. has, lacks: names of vectors.
    """

    any_of: Mapping[str, Collection[str]] = field(default_factory=dict)
    none_of: Mapping[str, Collection[str]] = field(default_factory=dict)
    phrases: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    first: int = 1
    last: int | None = None
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


class Candidates(NamedTuple):
    """The points that are nearest by another field, which alone are scored."""

    field: str
    vector: Vectors
    num: int


@dataclass(frozen=True)
class Nearest:
    """A request for the nearest points by one field.

    corpus: points among which the engine counts how rare terms are. oversampling: compare codes first, and score this
    many points in full for each hit; 0 scores all.
    """

    field: str
    vector: Vectors | Terms
    limit: int
    filter: Filter
    corpus: Filter | None = None
    candidates: Candidates | None = None
    oversampling: float = 0.0


class Point(NamedTuple):
    """A page as an engine keeps it."""

    id: str
    vectors: NamedVectors
    payload: dict[str, Any]


class Store(ABC):
    """Pages with their vectors and words. What a write did survives a killed process once it has returned.

    sketches: if set, pages get a sketch whenever their vectors are added or change.
    """

    max_pages = 64  # in one write
    max_read = 1000  # pages at once

    def __init__(self, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        self.dim, self.tuning = dim, tuning
        self.sketches: Sketches | None = None

    # -- writes

    def add(self, pages: Sequence[StoredPage]) -> None:
        """Keep pages; one that is there already is replaced."""
        for some in self.split(pages):
            sketches = self.sketches.sketch(some) if self.sketches else {}
            points = [Point(page.id, make_vectors(page, sketches.get(page.id)), make_payload(page)) for page in some]
            self.upsert(points)

    def update(self, pages: Sequence[StoredPage]) -> None:
        """Change the vectors of pages that are there, or their text, whichever is given; the rest stays."""
        for some in self.split(pages):
            sketches = self.sketches.sketch(some) if self.sketches else {}
            vectors = {}
            without_terms = []
            for page in some:
                if own := make_vectors(page, sketches.get(page.id)):
                    vectors[page.id] = own
                if page.text is not None and not page.text.terms.numbers:
                    without_terms.append(page.id)
            if vectors:
                self.set_vectors(vectors)
            if without_terms:
                self.delete_vectors(without_terms, TERMS_NAME)
            # Last: the origin in the payload also says that the terms are there.
            self.set_payloads({page.id: make_changes(page) for page in some})

    def split(self, pages: Sequence[StoredPage]) -> Iterator[list[StoredPage]]:
        """Split pages into writes of bounded size."""
        return split_by_size(pages, measure_page, 4 * MAX_NUMBERS, self.max_pages)

    def delete(self, file: str) -> None:
        """Delete the pages of a file."""
        self.delete_points(Filter({"file": [file]}))

    def prepare(self, dim: int) -> None:
        """Make room for vectors of a dimension, in a store that was made without."""
        if self.dim is None:
            self.reset_field(make_vector_field(dim, self.tuning))
            self.dim = dim

    def clear_sketches(self) -> None:
        """Delete the sketches of all pages, and make room for new ones."""
        self.reset_field(SKETCH)

    def add_sketches(self, pages: Sequence[StoredPage]) -> None:
        """Give sketches to pages that are there."""
        assert self.sketches is not None
        self.set_vectors({id: {SKETCH.name: _halve(sketch)} for id, sketch in self.sketches.sketch(pages).items()})

    # -- searches

    def search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        """Return the k best pages of each query, best first.

        Words that are on many of the pages that are not hidden count less. exact: score every page in full. Otherwise
        a search by vectors may look at sketches or codes first.
        """
        if where.files is not None and where.files <= where.hidden:
            return [[] for _ in queries]
        if exact:
            return self._rank(queries, k, where)
        if self.sketches is not None and self.sketches.candidates:
            return self._rank(queries, k, where, first="sketches")
        if not self.tuning.has_codes(self.dim):
            return self._rank(queries, k, where)
        found = self._rank(queries, k, where, first="codes")
        doubtful = [i for i, query in enumerate(queries) if is_doubtful(query, found[i], self.tuning)]
        if doubtful:
            again = self._rank([queries[i] for i in doubtful], k, where)
            for i, hits in zip(doubtful, again, strict=True):
                found[i] = hits
        return [hits[:k] for hits in found]

    def _rank(
        self, queries: Sequence[StoreQuery], k: int, where: Where, first: Literal["codes", "sketches", ""] = ""
    ) -> list[list[StoreHit]]:
        """Return the best pages of each query. first: what a search by vectors compares before it scores in full."""
        requests: list[Nearest] = []
        for query in queries:
            requests += self._make_requests(query, k, where, first)
        answers = iter(self.find_nearest(requests))
        ranked = []
        for query in queries:
            lists = []
            if query.terms is not None:
                lists.append((next(answers), 1.0))
            if query.vectors is not None:
                lists.append((next(answers), query.vectors_weight))
            ranked.append(lists[0][0] if len(lists) == 1 else fuse(lists, self.tuning.rank_offset)[:k])
        return ranked

    def _make_requests(self, query: StoreQuery, k: int, where: Where, first: str) -> list[Nearest]:
        """Return the requests of a query: by words, by vectors, or by both."""
        some = Filter(phrases=query.phrases, excluded=query.excluded, first=where.first, last=where.last)
        if where.files is None:
            some = replace(some, none_of=_hide(where.hidden))
        else:
            some = replace(some, any_of={"file": where.files - where.hidden})
        if query.vectors is not None and query.terms is not None:
            k = max(self.tuning.pool, 2 * k)
        requests = []
        if query.terms is not None:
            visible = Filter(none_of=_hide(where.hidden))
            requests.append(Nearest(TERMS_NAME, query.terms, k, some, corpus=visible))
        if query.vectors is not None:
            request = Nearest(VECTOR_NAME, query.vectors, k, some)
            if first == "codes":
                limit = max(k, self.tuning.witness_rank)
                oversampling = max(self.tuning.candidates, self.tuning.oversampling * k) / limit
                request = replace(request, limit=limit, oversampling=oversampling)
            elif first == "sketches":
                assert self.sketches is not None
                num = max(self.sketches.candidates, self.tuning.oversampling * k)
                sketch = self.sketches.sketcher.sketch_query(query.vectors)
                request = replace(request, candidates=Candidates(SKETCH.name, sketch, num))
            requests.append(request)
        return requests

    # -- what is stored

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        """Return pages by id, their vectors in half precision; those that are not there are left out.

        Reads some pages at a time: their size tells how many can be read next.
        """
        found: dict[str, StoredPage] = {}
        start, step = 0, min(SAMPLE // 2, self.max_read)
        while start < len(ids):
            some = self.retrieve(ids[start : start + step])
            found |= some
            start += step
            sizes = [page.vectors.size for page in some.values() if page.vectors is not None]
            step = max(1, min(self.max_read, MAX_NUMBERS // max(sizes, default=1)))
        return found

    def images(self, file: str) -> dict[int, str]:
        """Return the hash of each stored page of a file, by number."""
        return {page.number: page.image for page in self.scroll(Filter({"file": [file]}))}

    def counts(self) -> dict[str, int]:
        """Return how many pages of each file are stored."""
        return self.facet("file", Filter(), self.count(Filter()) + 1)

    def contents(self, hidden: Collection[str]) -> Contents:
        """Return what is stored, without the pages of hidden files."""
        visible = Filter(none_of=_hide(hidden))
        pages = self.count(visible)
        with_vectors = 0 if self.dim is None else self.count(replace(visible, has=(VECTOR_NAME,)))
        origins = self.facet("origin", visible, 10)
        origins[""] = pages - sum(origins.values())
        return Contents(pages, with_vectors, {origin: num for origin, num in origins.items() if num})

    def count_cut(self, hidden: Collection[str]) -> int:
        """Return how many pages have more text than the model has read, without the pages of hidden files."""
        return self.count(Filter({"read": [PART]}, _hide(hidden)))

    def find(
        self, origins: Collection[Origin] | None, *, vectors: bool | None = None, sketch: bool | None = None
    ) -> Iterator[StoredPage]:
        """Yield pages by the origin of their text, and whether they have vectors or a sketch; without all of these.

        What changes meanwhile may be left out or not.
        """
        if origins is not None and not origins:
            return
        some = Filter()
        if origins is not None and "" in origins:  # a page without origin has no value to ask for
            others = [origin for origin in get_args(Origin) if origin not in origins]
            some = Filter(none_of={"origin": others} if others else {})
        elif origins is not None:
            some = Filter({"origin": origins})
        has: list[str] = []
        lacks: list[str] = []
        if vectors is not None and self.dim is not None:
            (has if vectors else lacks).append(VECTOR_NAME)
        if sketch is not None:
            (has if sketch else lacks).append(SKETCH.name)
        yield from self.scroll(replace(some, has=tuple(has), lacks=tuple(lacks)))

    # -- what an engine does

    @abstractmethod
    def upsert(self, points: Sequence[Point]) -> None:
        """Write points, in place of those with the same ids."""

    @abstractmethod
    def set_vectors(self, vectors: Mapping[str, NamedVectors]) -> None:
        """Set named vectors of points by id."""

    @abstractmethod
    def delete_vectors(self, ids: Sequence[str], name: str) -> None:
        """Delete a named vector of some points."""

    @abstractmethod
    def set_payloads(self, payloads: Mapping[str, dict[str, Any]]) -> None:
        """Set some fields of the payloads of points, by id."""

    @abstractmethod
    def delete_points(self, some: Filter) -> None:
        """Delete points."""

    @abstractmethod
    def reset_field(self, new: DenseField) -> None:
        """Make room for a named vector; empty it if it is there, as after a process that was killed."""

    @abstractmethod
    def find_nearest(self, requests: Sequence[Nearest]) -> list[list[StoreHit]]:
        """Answer requests in one batch."""

    @abstractmethod
    def retrieve(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        """Return a few pages by id."""

    @abstractmethod
    def scroll(self, some: Filter) -> Iterator[StoredPage]:
        """Yield pages with file, number and image."""

    @abstractmethod
    def count(self, some: Filter) -> int:
        """Count points."""

    @abstractmethod
    def facet(self, key: str, some: Filter, limit: int) -> dict[str, int]:
        """Count points by the values of a field."""

    @abstractmethod
    def flush(self) -> None:
        """Bring everything to the disk, so that it survives a power cut too."""

    @abstractmethod
    def optimize(self) -> None:
        """Make searches fast after many changes; a server may take longer."""

    @abstractmethod
    def wait_optimized(self) -> None:
        """Like `optimize`, and return when searches are fast."""

    @abstractmethod
    def close(self) -> None:
        """Close files and locks."""


# -- sizes


def mean_numbers(store: Store) -> int:
    """Return the mean size of the vectors of some pages, in numbers; 0 if none has vectors, or they are damaged."""
    ids = [page.id for page in islice(store.find(None, vectors=True), SAMPLE)]
    try:
        pages = store.read(ids).values()
    except DamagedError:
        return 0
    sizes = [page.vectors.size for page in pages if page.vectors is not None]
    return round(sum(sizes) / len(sizes)) if sizes else 0


def pages_at_once(store: Store, max_pages: int) -> int:
    """Return how many pages can be read at once within bounded memory."""
    return max(1, min(max_pages, 2 * MAX_NUMBERS // max(mean_numbers(store), 1)))


def measure_page(page: StoredPage) -> int:
    """Return the bytes of a page in a request, about."""
    size = 0 if page.vectors is None else 4 * page.vectors.size
    if page.text is not None:
        size += 4 * (len(page.text.text) + len(page.text.words)) + 2 * len(page.text.boxes)
        size += 8 * len(page.text.terms.numbers)
    return size


def split_by_size(
    values: Sequence[T], measure: Callable[[T], int], max_bytes: int, max_num: int = 2**30
) -> Iterator[list[T]]:
    """Split values into lists of bounded size; a value that is larger is alone."""
    some: list[T] = []
    size = 0
    for value in values:
        own = measure(value) + 256  # of a point or query beside its vectors and ids
        if some and (len(some) == max_num or size + own > max_bytes):
            yield some
            some, size = [], 0
        some.append(value)
        size += own
    if some:
        yield some


# -- from pages to points and back


def make_vector_field(dim: int, tuning: Tuning) -> DenseField:
    """Return the field of the vectors of pages."""
    return DenseField(VECTOR_NAME, dim, is_multi=True, has_codes=tuning.has_codes(dim))


def make_vectors(page: StoredPage, sketch: Vectors | None = None) -> NamedVectors:
    """Return the named vectors of a page, in half precision: so all engines keep the same numbers."""
    vectors: NamedVectors = {}
    if page.vectors is not None:
        vectors[VECTOR_NAME] = _halve(page.vectors)
    if page.text is not None and page.text.terms.numbers:
        vectors[TERMS_NAME] = page.text.terms
    if sketch is not None:
        vectors[SKETCH.name] = _halve(sketch)
    return vectors


def _halve(vectors: Vectors) -> Vectors:
    return vectors.astype(np.float16).astype("<f4")


def make_payload(page: StoredPage) -> dict[str, Any]:
    """Return all that is stored of a page beside its vectors."""
    return {"file": page.file, "number": page.number, "image": page.image, **make_changes(page)}


def make_changes(page: StoredPage) -> dict[str, Any]:
    """Return the payload of what is given of a page that is there."""
    payload: dict[str, Any] = {}
    if page.text is not None:
        boxes = base64.b64encode(page.text.boxes).decode()
        payload |= {"origin": page.text.origin, "text": page.text.text, "boxes": boxes, "words": page.text.words}
        payload["fields"] = dict(page.text.fields)
    if page.vectors is not None:
        payload["image"] = page.image
    if page.cut:
        payload["read"] = PART
    return payload


def read_page(record: Any) -> StoredPage:
    """Return the page of a record, as much as was read of it; both engines have records of one shape."""
    payload, vectors = record.payload, record.vector or {}
    own = np.array(vectors[VECTOR_NAME], np.float32) if VECTOR_NAME in vectors else None
    text = None
    if "origin" in payload:
        sparse = vectors.get(TERMS_NAME)
        terms = Terms(tuple(sparse.indices), tuple(sparse.values)) if sparse else Terms()
        boxes = base64.b64decode(payload["boxes"])
        fields = payload.get("fields", {})
        text = StoredText(payload["origin"], payload["text"], boxes, payload["words"], terms, fields)
    cut = payload.get("read") == PART
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), own, text, cut)


# -- to the types of an engine: both have classes of the same names


def make_filter(types: Any, some: Filter, has: Callable[[str], Any], numbers: Callable[..., Any]) -> Any:
    """Return a filter for an engine. has: its condition for a named vector. numbers: its range."""
    must: list[Any] = []
    must_not: list[Any] = []
    for conditions, fields in ((must, some.any_of), (must_not, some.none_of)):
        for name, values in fields.items():
            conditions.append(types.FieldCondition(key=name, match=types.MatchAny(any=sorted(values))))
    for conditions, phrases in ((must, some.phrases), (must_not, some.excluded)):
        for phrase in phrases:
            conditions.append(types.FieldCondition(key="words", match=types.MatchPhrase(phrase=phrase)))
    for conditions, names in ((must, some.has), (must_not, some.lacks)):
        conditions += map(has, names)
    if some.first > 1 or some.last is not None:
        must.append(types.FieldCondition(key="number", range=numbers(gte=some.first, lte=some.last)))
    return types.Filter(must=must or None, must_not=must_not or None)


def convert_vector(types: Any, vector: Vectors | Terms) -> Any:
    """Return a vector as an engine takes it."""
    if isinstance(vector, Terms):
        return types.SparseVector(indices=list(vector.numbers), values=list(vector.weights))
    return vector.tolist()


# -- scores


def _hide(files: Collection[str]) -> dict[str, Collection[str]]:
    return {"file": files} if files else {}


def read_hit(point: Any) -> StoreHit:
    """Return the hit of a scored point."""
    return StoreHit(str(point.id), str(point.payload["file"]), int(point.payload["number"]), float(point.score))


def fuse(lists: Sequence[tuple[Sequence[StoreHit], float]], rank_offset: int) -> list[StoreHit]:
    """Combine ranked lists with their weights: rank r of weight w scores 1 / (rank_offset + r / w)."""
    hits: dict[str, StoreHit] = {}
    for ranked, weight in lists:
        for rank, hit in enumerate(ranked, start=1):
            before = hits[hit.id].score if hit.id in hits else 0.0
            hits[hit.id] = replace(hit, score=before + weight / (rank_offset * weight + rank))
    return sorted(hits.values(), key=lambda hit: -hit.score)


def is_doubtful(query: StoreQuery, hits: Sequence[StoreHit], tuning: Tuning) -> bool:
    """Whether codes may have missed some of the best pages, because scores are too close for them.

    If there are few hits, all pages were scored in full. Scores by words and vectors are those of ranks.
    """
    if query.vectors is None or query.terms is not None or len(hits) < tuning.witness_rank:
        return False
    ahead = hits[tuning.certain_rank - 1].score - hits[tuning.witness_rank - 1].score
    return ahead < tuning.certainty * error_of_codes(*query.vectors.shape)


def error_of_codes(num: int, dim: int) -> float:
    """Return the standard error of a score by binary codes.

    The share of equal signs estimates the angle of two vectors. For unrelated ones, the standard error of their product
    is pi / 2 / sqrt(dim), and those of the vectors of a query add up as independent ones.
    """
    return math.pi / 2 * math.sqrt(num / dim)
