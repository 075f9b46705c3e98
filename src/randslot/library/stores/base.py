"""Searches by codes, and when not to trust them: if scores are so close that codes cannot tell pages apart."""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import RandSlotError
from ...words.analyzer import Terms
from .sketch import Sketcher

VECTOR_NAME = "page"  # of the vectors of a point
TERMS_NAME = "words"  # of its terms, which are a sparse vector
SKETCH_NAME = "sketch"  # of its sketch, see sketches.py


@dataclass(frozen=True)
class Tuning:
    """When vectors get codes, and how many pages are scored in full.

    candidates, oversampling: a search by codes scores at least `candidates` pages in full, and at least `oversampling`
    for each hit. compress_from: KB of vectors from which a segment is worth its codes. codes_from: dimensions from
    which codes save time, and one bit of each number says enough (see docs/log.md).

    certain_rank, witness_rank, certainty: codes are trusted if the score of one of the first pages is so many standard
    errors of a code above that of one far behind it. If not, they cannot tell pages apart, and all are scored.

    A search by words and vectors takes the best `pool` pages by each (or two for each hit, if that is more), and gives
    a page at rank r the sum of 1 / (rank_offset + r / weight). How these were chosen: docs/log.md.
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

    def has_codes(self, dim: int) -> bool:
        """Whether vectors of this dimension have codes beside them."""
        return dim >= self.codes_from

    def oversampling_for(self, k: int, limit: int) -> float:
        """Return how many pages are scored in full for each of `limit` hits, of which k are wanted."""
        return max(self.candidates, self.oversampling * k) / max(limit, 1)

    def hits_for(self, k: int) -> int:
        """Return how many hits a search by codes asks for, so that it can tell whether codes are to be trusted."""
        return max(k, self.witness_rank)

    def pool_for(self, k: int) -> int:
        """Return how many pages are taken by words and by vectors before their ranks are combined."""
        return max(self.pool, 2 * k)


DEFAULT_TUNING = Tuning()


Vectors = NDArray[np.float32]
BYTES_PER_NUMBER = 2  # of a vector: stores keep half precision
# Of vectors on their way in or out at once: engines take and give Python lists, some thirty bytes a number.
MOST_NUMBERS = 2**22
FULL_FOR_EACH = 20  # pages that are scored in full for each hit, at least, if sketches find them
SAMPLE = 16  # pages that show how many numbers the vectors of a page are


class DamagedError(RandSlotError):
    """Vectors that should be there cannot be read."""


def page_id(file: str, number: int) -> str:
    """Return the id of a page, which is the same whenever and wherever it is stored."""
    return str(uuid.uuid5(uuid.UUID(file), str(number)))


Origin = Literal["layer", "ocr", "none", "blank", "failed", ""]
"""Where the text of a page was found: in the file, or by OCR. Or why it has none: there is no layer and it waits for
OCR, OCR found nothing, OCR failed, or nobody has looked yet."""


@dataclass(frozen=True)
class StoredText:
    """The text of a page, and what searches by words compare.

    boxes: of its words, eight bytes each. words: as they follow each other, for phrases. terms: with their weights.
    """

    origin: Origin
    text: str = ""
    boxes: bytes = b""
    words: str = ""
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True)
class StoredPage:
    """A page to keep: the file's id, its number from 1, a hash of its content, its unit vectors (K, D) and its text.

    vectors: None in a library without a model, or if they are still to come. text: None if nobody has looked for one.
    cut: whether the page has more text than the model has read.
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
    """What to look for: by vectors (K, D), by words, or by both, whose ranks are then combined.

    phrases: all must be on the page, word by word. excluded: none of these phrases may be. vectors_weight: of the ranks
    by vectors, where those by words have 1.
    """

    vectors: Vectors | None = None
    terms: Terms | None = None
    phrases: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    vectors_weight: float = 1.0


@dataclass(frozen=True)
class Contents:
    """How many pages there are, how many of them have vectors, and how many have text by where it was found."""

    pages: int
    with_vectors: int
    origins: dict[str, int]


@dataclass(frozen=True)
class Where:
    """Which pages a search looks at: those of `files` (None: of all), not of `hidden` ones, in a range of numbers."""

    files: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()
    first: int = 1
    last: int | None = None


@dataclass(frozen=True)
class StoreHit:
    """A page that was found, and its score: MaxSim by vectors, BM25 by words, of the ranks if it was by both."""

    id: str
    file: str
    number: int
    score: float


@dataclass(frozen=True)
class Sketches:
    """How a store makes the sketches of its pages.

    candidates: pages that a search finds by sketches, and scores in full; 0 if searches do not look at them yet.
    """

    sketcher: Sketcher
    candidates: int = 0

    def candidates_for(self, k: int) -> int:
        """Return how many pages are scored in full if k are wanted."""
        return max(self.candidates, FULL_FOR_EACH * k)

    def sketch(self, pages: Sequence[StoredPage]) -> dict[str, Vectors]:
        """Return the sketches of those pages that have vectors, by their ids."""
        able = [page for page in pages if page.vectors is not None]
        made = self.sketcher.sketch_pages([page.vectors for page in able if page.vectors is not None])
        return {page.id: sketch for page, sketch in zip(able, made, strict=True)}


class Store(Protocol):
    """Pages with their vectors and words. What writes did survives a killed process once they have returned.

    sketches: if they are set, pages get one whenever they are added or their vectors change; see sketches.py.
    """

    sketches: Sketches | None

    def prepare(self, dim: int) -> None:
        """Make room for vectors of a dimension, in a store that was made without."""

    def add(self, pages: Sequence[StoredPage]) -> None:
        """Keep pages; one that is there already is replaced."""

    def update(self, pages: Sequence[StoredPage]) -> None:
        """Change the vectors of pages that are there, or their text, whichever is given; the rest stays."""

    def clear_sketches(self) -> None:
        """Forget the sketches of all pages, and make room for new ones."""

    def add_sketches(self, pages: Sequence[StoredPage]) -> None:
        """Give pages that are there their sketches."""

    def delete(self, file: str) -> None:
        """Forget the pages of a file."""

    def search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        """Return the k best pages of each query, best first.

        Words that are on many of the pages that are not hidden count less. exact: score every page in full; otherwise
        a store may look at compressed vectors first.

        Errors: DamagedError if vectors cannot be read.
        """

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        """Return pages by id, their vectors in half precision; those that are not there are left out.

        Errors: DamagedError if vectors cannot be read.
        """

    def images(self, file: str) -> dict[int, str]:
        """Return the hash of each stored page of a file, by number."""

    def counts(self) -> dict[str, int]:
        """Return how many pages of each file are stored."""

    def contents(self, hidden: Collection[str]) -> Contents:
        """Return what is stored, without the pages of hidden files."""

    def count_cut(self, hidden: Collection[str]) -> int:
        """Return how many pages have more text than the model has read, without the pages of hidden files."""

    def find(
        self, origins: Collection[Origin] | None, *, vectors: bool | None = None, sketch: bool | None = None
    ) -> Iterator[StoredPage]:
        """Yield pages by where their text was found, and whether they have vectors or a sketch; without all of these.

        What is changed meanwhile may be left out or not.
        """

    def flush(self) -> None:
        """Bring everything to the disk, so that it survives a power cut too."""

    def optimize(self) -> None:
        """Make searches fast after many changes; a server may still be at it."""

    def wait_optimized(self) -> None:
        """Make searches fast after many changes, and return when they are."""

    def close(self) -> None:
        """Let go of files and locks."""


def mean_numbers(store: Store) -> int:
    """Return how many numbers the vectors of a page are, the mean over some pages; 0 if none has any, or is damaged."""
    ids = [page.id for page in islice(store.find(None, vectors=True), SAMPLE)]
    try:
        pages = store.read(ids).values()
    except DamagedError:  # whoever reads them all finds out which
        return 0
    sizes = [page.vectors.size for page in pages if page.vectors is not None]
    return round(sum(sizes) / len(sizes)) if sizes else 0


def pages_at_once(store: Store, most: int) -> int:
    """Return how many pages can be read at once without filling the memory, at most `most`."""
    return max(1, min(most, 2 * MOST_NUMBERS // max(mean_numbers(store), 1)))


def group_pages(pages: Sequence[StoredPage], most: int) -> Iterator[Sequence[StoredPage]]:
    """Split pages into groups of at most `most` and of a bounded number of numbers; a larger page is alone."""
    some: list[StoredPage] = []
    numbers = 0
    for page in pages:
        own = 0 if page.vectors is None else page.vectors.size
        if some and (len(some) == most or numbers + own > MOST_NUMBERS):
            yield some
            some, numbers = [], 0
        some.append(page)
        numbers += own
    if some:
        yield some


def read_split(
    read: Callable[[Sequence[str]], dict[str, StoredPage]], ids: Sequence[str], most: int
) -> dict[str, StoredPage]:
    """Read pages some at a time: those before tell how many can be read at once, at most `most`."""
    found: dict[str, StoredPage] = {}
    start, step = 0, min(SAMPLE // 2, most)
    while start < len(ids):
        some = read(ids[start : start + step])
        found |= some
        start += step
        sizes = [page.vectors.size for page in some.values() if page.vectors is not None]
        step = max(1, min(most, MOST_NUMBERS // max(sizes, default=1)))
    return found


PLACE = ["file", "number"]  # what a hit is known by
PART = "part"  # how much was read of a page that was cut


def make_payload(page: StoredPage) -> dict[str, Any]:
    """Return all that is stored of a page beside its vectors and terms."""
    return {"file": page.file, "number": page.number, **_make_content_payload(page), **make_text_payload(page)}


def make_changes(page: StoredPage) -> dict[str, Any]:
    """Return what changes in the payload of a page that is there: what is given of it."""
    payload = make_text_payload(page)
    if page.vectors is not None:
        payload |= _make_content_payload(page)
    return payload


def _make_content_payload(page: StoredPage) -> dict[str, Any]:
    """Return what was read of a page; few pages are cut, and the others say nothing of it."""
    return {"image": page.image, "read": PART} if page.cut else {"image": page.image}


def make_text_payload(page: StoredPage) -> dict[str, Any]:
    """Return the text of a page as a payload."""
    if page.text is None:
        return {}
    boxes = base64.b64encode(page.text.boxes).decode()
    return {"origin": page.text.origin, "text": page.text.text, "boxes": boxes, "words": page.text.words}


def read_page(payload: Mapping[str, Any], vectors: Mapping[str, Any]) -> StoredPage:
    """Return the page of a point, as much as was read of it."""
    own = np.array(vectors[VECTOR_NAME], np.float32) if VECTOR_NAME in vectors else None
    text = None
    if "origin" in payload:
        sparse = vectors.get(TERMS_NAME)
        terms = Terms(tuple(sparse.indices), tuple(sparse.values)) if sparse else Terms()
        boxes = base64.b64decode(payload["boxes"])
        text = StoredText(payload["origin"], payload["text"], boxes, payload["words"], terms)
    cut = payload.get("read") == PART
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), own, text, cut)


Search = Callable[[Sequence[StoreQuery], int], list[list[StoreHit]]]


def search_by_codes(
    queries: Sequence[StoreQuery], k: int, tuning: Tuning, by_codes: Search, in_full: Search
) -> list[list[StoreHit]]:
    """Return the k best pages of each query: by codes, or by scoring every page in full where those are in doubt.

    by_codes: gives more than k hits of queries by vectors alone, as many as the tuning says; the others show how far
    ahead the first ones are. What is in doubt does not depend on k, so a larger k only adds hits.
    """
    found = by_codes(queries, k)
    doubtful = [i for i, query in enumerate(queries) if is_doubtful(query, found[i], tuning)]
    if doubtful:
        again = in_full([queries[i] for i in doubtful], k)
        for i, hits in zip(doubtful, again, strict=True):
            found[i] = hits
    return [hits[:k] for hits in found]


def is_doubtful(query: StoreQuery, hits: Sequence[StoreHit], tuning: Tuning) -> bool:
    """Whether codes may have missed pages that belong among the first ones.

    With few hits there is no doubt: all pages were scored in full. Nor is there by words and vectors, whose scores are
    those of ranks.
    """
    if query.vectors is None or query.terms is not None or len(hits) < tuning.witness_rank:
        return False
    margin = hits[tuning.certain_rank - 1].score - hits[tuning.witness_rank - 1].score
    return margin < tuning.certainty * error_of_codes(*query.vectors.shape)


def error_of_codes(vectors: int, dim: int) -> float:
    """Return the standard error of a score that is estimated from codes of a bit a number.

    The share of equal signs estimates the angle of two vectors. Where they have little in common, the standard error of
    their product is pi / 2 / sqrt(dim); those of several vectors of a query add up as independent ones do.
    """
    return math.pi / 2 * math.sqrt(vectors / dim)
