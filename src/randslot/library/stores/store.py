"""Where pages are kept and searched, by vectors and by words: one small interface, with an engine behind it.

A store knows pages by the id of their file (one version of it) and their number. What a file is, and whether its pages
may be found, is the manifest's business: a search is given the files that count and those that are hidden.

Shapes: K vectors of one page or query, D dimension.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import RandSlotError
from ...words.terms import Terms
from .sketches import Sketcher

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
