"""The base class of stores: write pages, search, fuse results. The engines (edge.py, qdrant.py) only translate.

A search asks the engine for the nearest pages by each field, and `fuse` combines the lists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

from ...errors import RandSlotError
from ...words.analyzer import Terms
from .points import (
    PART,
    SKETCH,
    TERMS_NAME,
    VECTOR_NAME,
    DenseField,
    Filter,
    NamedVectors,
    Origin,
    Point,
    StoredPage,
    Vectors,
    halve,
    make_payload,
    make_vectors,
    measure_page,
    read_page,
    split_by_size,
)

if TYPE_CHECKING:
    from ..sketches import Sketches

MAX_WITH_PAGES = 100  # hits returned with their pages; more are read in several requests
MAX_NUMBERS = 2**22  # of vectors in memory at once: engines use Python lists, some 30 bytes per number


@dataclass(frozen=True)
class Tuning:
    """When vectors get binary codes, how many candidates are rescored, and how scores are combined.

    codes_from: dimension from which codes save time and are accurate enough. compress_from: KB of vectors from which a
    segment is compressed. candidates, oversampling: a search by codes or sketches rescores at least `candidates` pages,
    and `oversampling` per hit.

    pool: a search by words and vectors fuses the best `pool` pages by each (or two per hit); see `fuse`. rewarded:
    pages by words that get rewards; see `StoreQuery`.
    """

    codes_from: int = 1024
    compress_from: int = 1000
    candidates: int = 1000
    oversampling: int = 20
    pool: int = 100
    rewarded: int = 20

    def has_codes(self, dim: int | None) -> bool:
        """Whether vectors of this dimension have codes."""
        return dim is not None and dim >= self.codes_from

    def make_field(self, dim: int) -> DenseField:
        """Return the field of page vectors."""
        return DenseField(VECTOR_NAME, dim, is_multi=True, has_codes=self.has_codes(dim))


DEFAULT_TUNING = Tuning()


class DamagedError(RandSlotError):
    """Stored vectors cannot be read."""


Reward = Callable[[Mapping[str, StoredPage]], Mapping[str, float]]


@dataclass(frozen=True)
class StoreQuery:
    """A query by vectors (K, D), words, or both, whose scores are fused.

    phrases: all must be on the page. excluded: phrases that must not be. vectors_weight: relative to words. reward:
    returns bonuses, by id, for the first pages by words.
    """

    vectors: Vectors | None = None
    terms: Terms | None = None
    phrases: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    vectors_weight: float = 1.0
    reward: Reward | None = None


@dataclass(frozen=True)
class Where:
    """Which pages to search: those of `files` (None: all) except `hidden` ones, in a range of page numbers."""

    files: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()
    first: int = 1
    last: int | None = None


@dataclass(frozen=True)
class StoreHit:
    """A page found by a search. score: MaxSim by vectors, BM25 by words, a sum of normalised scores by both.

    page: its stored content, if requested.
    """

    id: str
    file: str
    number: int
    score: float
    page: StoredPage | None = field(default=None, compare=False, repr=False)


def make_hit(point: Any) -> StoreHit:
    """Return the hit of a scored point of either engine."""
    payload = point.payload  # Qdrant Edge converts it at each access
    page = read_page(payload, {}) if "image" in payload else None
    return StoreHit(str(point.id), str(payload["file"]), int(payload["number"]), float(point.score), page)


@dataclass(frozen=True)
class Contents:
    """Counts of pages: all, those with vectors, and those with text, by its origin."""

    pages: int
    with_vectors: int
    origins: dict[str, int]


@dataclass(frozen=True)
class Nearest:
    """A request for the nearest points by one field.

    corpus: points over which the engine computes IDF. sketch: rescore only the `num_candidates` points nearest by
    sketch. by_codes: compare codes first, and rescore only the best points. with_pages: return hits with their pages,
    without vectors.
    """

    field: str
    vector: Vectors | Terms
    limit: int
    filter: Filter
    corpus: Filter | None = None
    sketch: Vectors | None = None
    num_candidates: int = 0
    by_codes: bool = False
    with_pages: bool = False


class Store(ABC):
    """Pages with their vectors and words. Writes are durable after the next `flush`.

    sketches: if set, pages get a sketch whenever their vectors are added or change.
    """

    max_pages = 64  # in one write
    max_read = 1000  # pages at once

    def __init__(self, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        self.dim, self.tuning = dim, tuning
        self.sketches: Sketches | None = None

    # -- writes

    def add(self, pages: Sequence[StoredPage]) -> None:
        """Store pages; replace those with the same id."""
        for batch in self.split(pages):
            sketches = self.sketches.sketch(batch) if self.sketches else {}
            points = [Point(page.id, make_vectors(page, sketches.get(page.id)), make_payload(page)) for page in batch]
            self.upsert(points)

    def update(self, pages: Sequence[StoredPage]) -> None:
        """Update the vectors or the text of stored pages."""
        for batch in self.split(pages):
            sketches = self.sketches.sketch(batch) if self.sketches else {}
            vectors, payloads, without_terms = {}, {}, []
            for page in batch:
                if own := make_vectors(page, sketches.get(page.id)):
                    vectors[page.id] = own
                payloads[page.id] = make_payload(page, is_new=False)
                if page.text is not None and not page.text.terms.numbers:
                    without_terms.append(page.id)
            self.change(vectors, payloads, without_terms)

    def split(self, pages: Sequence[StoredPage]) -> Iterator[list[StoredPage]]:
        """Split pages into writes of bounded size."""
        return split_by_size(pages, measure_page, 4 * MAX_NUMBERS, self.max_pages)

    def delete(self, file: str) -> None:
        """Delete the pages of a file."""
        self.delete_points(Filter({"file": [file]}))

    def prepare(self, dim: int) -> None:
        """Add the vector field to a store of words."""
        if self.dim is None:
            self.reset_field(self.tuning.make_field(dim))
            self.dim = dim

    def clear_sketches(self) -> None:
        """Delete all sketches."""
        self.reset_field(SKETCH)

    def add_sketches(self, pages: Sequence[StoredPage]) -> None:
        """Add sketches to stored pages."""
        assert self.sketches is not None
        self.change({id: {SKETCH.name: halve(sketch)} for id, sketch in self.sketches.sketch(pages).items()})

    # -- searches

    def search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        """Return the k best pages of each query, best first.

        IDF is computed over all pages that are not hidden. exact: score every page in full; else a search by vectors
        compares sketches or codes first.
        """
        if where.files is not None and where.files <= where.hidden:
            return [[] for _ in queries]
        requests: list[Nearest] = []
        for query in queries:
            requests += self._make_requests(query, k, where, exact)
        answers = iter(self.find_nearest(requests))
        ranked = []
        for query in queries:
            hits = next(answers)
            if query.reward is not None:
                hits = self._add_rewards(hits, query.reward)
            if query.terms is not None and query.vectors is not None:
                hits = fuse(hits, next(answers), query.vectors_weight, self.tuning.pool)
            ranked.append(hits[:k])
        return ranked

    def _add_rewards(self, hits: list[StoreHit], reward: Reward) -> list[StoreHit]:
        """Add rewards to the first hits and sort them; the other hits stay below them for every k."""
        num = self.tuning.rewarded
        pages = {hit.id: hit.page for hit in hits[:num] if hit.page is not None}
        if not pages:
            pages = self.read([hit.id for hit in hits[:num]], vectors=False)
        bonuses = reward(pages)
        first = [replace(hit, score=hit.score + bonuses.get(hit.id, 0.0)) for hit in hits[:num]]
        return sorted(first, key=lambda hit: -hit.score) + hits[num:]

    def _make_requests(self, query: StoreQuery, k: int, where: Where, exact: bool) -> list[Nearest]:
        """Return the requests of a query: by words, by vectors, or by both."""
        visible = Filter(none_of=_hide(where.hidden))
        some = visible if where.files is None else Filter({"file": where.files - where.hidden})
        some = replace(some, phrases=query.phrases, excluded=query.excluded, first=where.first, last=where.last)
        if query.vectors is not None and query.terms is not None:
            k = max(self.tuning.pool, 2 * k)
        requests = []
        if query.terms is not None:
            num = max(k, self.tuning.rewarded) if query.reward is not None else k
            with_pages = query.reward is not None and num <= MAX_WITH_PAGES
            requests.append(Nearest(TERMS_NAME, query.terms, num, some, corpus=visible, with_pages=with_pages))
        if query.vectors is not None:
            request = Nearest(VECTOR_NAME, query.vectors, k, some)
            if self.sketches is not None and self.sketches.candidates and not exact:
                sketch = self.sketches.sketcher.sketch_query(query.vectors)
                num = max(self.sketches.candidates, self.tuning.oversampling * k)
                request = replace(request, sketch=sketch, num_candidates=num)
            elif self.tuning.has_codes(self.dim) and not exact:
                request = replace(request, by_codes=True)
            requests.append(request)
        return requests

    # -- reads

    def read(self, ids: Sequence[str], *, vectors: bool = True) -> dict[str, StoredPage]:
        """Return pages by id; missing ones are left out. vectors: with vectors, in half precision, and terms."""
        found: dict[str, StoredPage] = {}
        start, step = 0, min(8 if vectors else 1000, self.max_read)
        while start < len(ids):
            batch = self.retrieve(ids[start : start + step], vectors)
            found |= batch
            start += step
            # Adapt the batch size to the size of these pages.
            largest = max((page.vectors.size for page in batch.values() if page.vectors is not None), default=1)
            step = max(1, min(self.max_read, MAX_NUMBERS // largest))
        return found

    def hashes(self, file: str) -> dict[int, str]:
        """Return the hash of each stored page of a file, by number."""
        return {page.number: page.hash for page in self.scroll(Filter({"file": [file]}))}

    def counts(self) -> dict[str, int]:
        """Count the stored pages of each file."""
        return self.facet("file", Filter(), self.count(Filter()) + 1)

    def contents(self, hidden: Collection[str]) -> Contents:
        """Count stored pages, except those of hidden files."""
        visible = Filter(none_of=_hide(hidden))
        pages = self.count(visible)
        with_vectors = 0 if self.dim is None else self.count(replace(visible, has=(VECTOR_NAME,)))
        origins = self.facet("origin", visible, 10)
        origins[""] = pages - sum(origins.values())
        return Contents(pages, with_vectors, {origin: num for origin, num in origins.items() if num})

    def count_cut(self, hidden: Collection[str]) -> int:
        """Count pages of which the model has read only a part, except those of hidden files."""
        return self.count(Filter({"read": [PART]}, _hide(hidden)))

    def find(
        self, origins: Collection[Origin] | None, *, vectors: bool | None = None, sketch: bool | None = None
    ) -> Iterator[StoredPage]:
        """Yield pages, without vectors and text, by the origin of their text and whether they have vectors or a sketch.

        Pages that change during the scan may be missing.
        """
        if origins is not None and not origins:
            return
        some = Filter()
        if origins is not None and "" in origins:  # a page without origin has no value to match
            others = [origin for origin in get_args(Origin) if origin not in origins]
            some = Filter(none_of={"origin": others} if others else {})
        elif origins is not None:
            some = Filter({"origin": origins})
        names: dict[bool | None, tuple[str, ...]] = {True: (), False: (), None: ()}
        if self.dim is not None:
            names[vectors] += (VECTOR_NAME,)
        names[sketch] += (SKETCH.name,)
        yield from self.scroll(replace(some, has=names[True], lacks=names[False]))

    # -- engine interface

    @abstractmethod
    def upsert(self, points: Sequence[Point]) -> None:
        """Write points; replace those with the same ids."""

    @abstractmethod
    def change(
        self,
        vectors: Mapping[str, NamedVectors],
        payloads: Mapping[str, dict[str, Any]] | None = None,
        without_terms: Sequence[str] = (),
    ) -> None:
        """Set named vectors of points by id, delete terms of points, then set fields of payloads.

        Payloads last: the origin of a text marks its terms as stored.
        """

    @abstractmethod
    def delete_points(self, some: Filter) -> None:
        """Delete points."""

    @abstractmethod
    def reset_field(self, new: DenseField) -> None:
        """Add a named vector, or delete all its values if it exists."""

    @abstractmethod
    def find_nearest(self, requests: Sequence[Nearest]) -> list[list[StoreHit]]:
        """Answer requests in one batch."""

    @abstractmethod
    def retrieve(self, ids: Sequence[str], vectors: bool) -> dict[str, StoredPage]:
        """Return a few pages by id, with or without vectors and terms."""

    @abstractmethod
    def scroll(self, some: Filter) -> Iterator[StoredPage]:
        """Yield pages with file, number and hash."""

    @abstractmethod
    def count(self, some: Filter) -> int:
        """Count points."""

    @abstractmethod
    def facet(self, key: str, some: Filter, limit: int) -> dict[str, int]:
        """Count points by the values of a field."""

    @abstractmethod
    def flush(self) -> None:
        """Sync all writes to disk."""

    @abstractmethod
    def optimize(self, *, wait: bool = False) -> None:
        """Optimize for search after many writes. wait: until a server has finished."""

    @abstractmethod
    def close(self) -> None:
        """Close files and locks."""


def _hide(files: Collection[str]) -> dict[str, Collection[str]]:
    return {"file": files} if files else {}


def fuse(words: Sequence[StoreHit], vectors: Sequence[StoreHit], weight: float, pool: int) -> list[StoreHit]:
    """Fuse hits by words and by vectors: add their scores, normalised to 1 for the best page and 0 at rank `pool`.

    If fewer pages have words of the query, a BM25 score of 0 is 0. The rank does not depend on k: else more hits would
    change their order. For how this was chosen, see research/log.md, "Fusion".
    """
    hits: dict[str, StoreHit] = {}
    for ranked, own, lowest in ((words, 1.0, 0.0), (vectors, weight, vectors[-1].score if vectors else 0.0)):
        floor = ranked[pool - 1].score if len(ranked) >= pool else lowest
        width = ranked[0].score - floor if ranked else 0.0
        for hit in ranked:
            share = max((hit.score - floor) / width, 0.0) if width > 0 else 1.0
            before = hits[hit.id].score if hit.id in hits else 0.0
            hits[hit.id] = replace(hit, score=before + own * share)
    return sorted(hits.values(), key=lambda hit: -hit.score)


# -- sizes


def mean_numbers(store: Store) -> int:
    """Return the mean size of the vectors of some pages, in numbers; 0 without vectors, or if they are damaged."""
    ids = [page.id for page in islice(store.find(None, vectors=True), 16)]
    try:
        pages = store.read(ids).values()
    except DamagedError:
        return 0
    sizes = [page.vectors.size for page in pages if page.vectors is not None]
    return round(sum(sizes) / len(sizes)) if sizes else 0


def pages_at_once(store: Store, max_pages: int) -> int:
    """Return the number of pages to read at once, to bound memory."""
    return max(1, min(max_pages, 2 * MAX_NUMBERS // max(mean_numbers(store), 1)))
