"""Sketches for a library of very many pages: a short vector for each page, which finds candidates for full scoring.

The product of a page's sketch with that of a query is nearly their MaxSim. MaxSim adds up, over the vectors x of a
query, the largest product of x with a vector of the page. As a function of x, this is close to a weighted sum of a few
hundred features of x, exp(sharpness * x.c) for vectors c of some pages. The weights that are best for a page, by least
squares over vectors of queries, are linear in its largest products with them. So a query is its features, a page is its
weights, and both are projected onto their main axes.

LEMUR (a network in place of these features) has shown that one vector can replace many; research/log.md has figures.
A library uses sketches only if they find enough of the best pages.

Shapes: X vectors of queries, C centres, S numbers of a sketch, K vectors of one page or query, D dimension.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..errors import RandSlotError, UsageError
from .location import FORMAT, Location
from .models import choose_line
from .results import Progress
from .stores.points import SKETCH, StoredPage, Vectors
from .stores.store import MAX_NUMBERS, StoreQuery, Where, mean_numbers, pages_at_once

MAX_PRODUCTS = 2**24  # at once: 64 MB
LOOK_SECONDS = 1.0  # after which a search reads the description of a shared library again
BLOB = ("sketcher", "sketches.npz")  # where the sketcher is: on a server, in a folder
AT_ONCE = 1000  # pages that get sketches
NUM_TESTED = 100  # queries of each group that sketches are not fitted to
CANDIDATES = (100, 200, 300, 500, 1000, 2000, 4000)  # tried in this order
HITS, ENOUGH = 5, 0.98  # of the best pages, the share that must be found


@dataclass(frozen=True)
class Sketcher:
    """Makes the sketches of queries and pages; a few megabytes.

    centres_CD, sharpness, query_map: from a query to its sketch. anchors_XD, page_map_XS, page_mean_S: from a page.
    """

    centres_CD: Vectors
    sharpness: NDArray[np.float32]
    query_map: Vectors
    anchors_XD: Vectors
    page_map_XS: Vectors
    page_mean_S: Vectors

    def sketch_query(self, query_KD: Vectors) -> Vectors:
        """Return the sketch of a query."""
        features = make_features(query_KD, self.centres_CD, float(self.sharpness)).sum(0)
        return np.asarray(features @ self.query_map, np.float32)

    def sketch_pages(self, pages: Sequence[Vectors]) -> Vectors:
        """Return the sketches of pages, a row each."""
        made = [np.empty((0, len(self.page_mean_S)), np.float32)]
        for some in _split(pages, MAX_PRODUCTS // len(self.anchors_XD)):
            made.append(find_nearest(self.anchors_XD, some).T @ self.page_map_XS - self.page_mean_S)
        return np.concatenate(made)

    def to_bytes(self) -> bytes:
        """Serialize it."""
        content = BytesIO()
        np.savez(content, **vars(self))
        return content.getvalue()

    @property
    def key(self) -> str:
        """A hash of it."""
        return blake2b(self.page_map_XS.tobytes() + self.anchors_XD.tobytes(), digest_size=8).hexdigest()

    @classmethod
    def from_bytes(cls, content: bytes) -> Sketcher:
        """Read what `to_bytes` wrote."""
        with np.load(BytesIO(content), allow_pickle=False) as values:
            return cls(**values)


def make_features(vectors: Vectors, centres_CD: Vectors, sharpness: float) -> Vectors:
    """Return the features of vectors, and a one at the end of each row."""
    near = np.exp(sharpness * (vectors.astype(np.float32) @ centres_CD.T))
    return np.concatenate([near, np.ones((len(near), 1), np.float32)], axis=1)


def find_nearest(anchors_XD: Vectors, pages: Sequence[Vectors]) -> Vectors:
    """Return the largest product of each anchor with a vector of each page: anchors x pages."""
    starts = np.cumsum([0, *[len(page) for page in pages[:-1]]])
    products = anchors_XD @ np.concatenate(pages).astype(np.float32).T
    return np.asarray(np.maximum.reduceat(products, starts, axis=1), np.float32)


def _split(pages: Sequence[Vectors], max_vectors: int) -> Iterator[Sequence[Vectors]]:
    """Split pages into groups of bounded size; a larger page forms its own group."""
    start, size = 0, 0
    for number, page in enumerate(pages):
        if number > start and size + len(page) > max_vectors:
            yield pages[start:number]
            start, size = number, 0
        size += len(page)
    if pages:
        yield pages[start:]


def fit_sketcher(queries: Sequence[Vectors], pages: Sequence[Vectors]) -> Sketcher:
    """Fit the sketches of a library to vectors of queries as they will be asked, and to some of its pages."""
    dice = np.random.default_rng(0)
    anchors_XD = _choose(np.concatenate(queries), 4096, dice)
    centres_CD = _choose(np.concatenate(pages), 512, dice)
    length = np.linalg.norm(anchors_XD, axis=1).mean() * np.linalg.norm(centres_CD, axis=1).mean()
    sharpness = 4.0 / float(length)  # 4 for vectors of unit length
    features = make_features(anchors_XD, centres_CD, sharpness).astype(np.float64)
    num, size = features.shape
    moments = features.T @ features / num
    moments += 1e-4 * np.trace(moments) / size * np.eye(size)
    # With moments = L L', weights w of a page as L'w: their squared distance is that of two pages' scores over queries.
    root = np.linalg.cholesky(moments)
    to_weights = np.linalg.solve(root, features.T) / num
    weights = []
    for some in _split(pages, MAX_PRODUCTS // len(anchors_XD)):
        weights.append((to_weights @ find_nearest(anchors_XD, some)).T)
    sample = np.concatenate(weights)
    mean = sample.mean(0)
    # The directions in which pages differ most; zeros where there are fewer than a sketch has.
    _, found = np.linalg.eigh((sample - mean).T @ (sample - mean))
    axes = np.zeros((len(found), SKETCH.size))
    axes[:, : len(found)] = found[:, ::-1][:, : SKETCH.size]
    scale = 1 / max(float(np.std((sample - mean) @ axes)), 1e-12)  # numbers of about one, for half precision
    return Sketcher(
        centres_CD=centres_CD,
        sharpness=np.array(sharpness, np.float32),
        query_map=np.asarray(np.linalg.solve(root.T, axes) / scale, np.float32),
        anchors_XD=anchors_XD,
        page_map_XS=np.asarray(to_weights.T @ axes * scale, np.float32),
        page_mean_S=np.asarray(mean @ axes * scale, np.float32),
    )


def _choose(vectors: Vectors, max_num: int, dice: np.random.Generator) -> Vectors:
    return np.asarray(vectors[dice.permutation(len(vectors))[:max_num]], np.float32)


# -- of a library


def count_pages(num: int) -> str:
    """Return the beginning of a sentence: "2 pages have"."""
    return "1 page has" if num == 1 else f"{num:,} pages have"


@dataclass(frozen=True)
class Sketches:
    """How pages are sketched. candidates: pages that a search finds by sketches and scores in full; 0: it does not."""

    sketcher: Sketcher
    candidates: int = 0

    def sketch(self, pages: Sequence[StoredPage]) -> dict[str, Vectors]:
        """Return the sketches of the pages that have vectors, by id."""
        vectors = {page.id: page.vectors for page in pages if page.vectors is not None}
        return dict(zip(vectors, self.sketcher.sketch_pages(list(vectors.values())), strict=True))


@dataclass(frozen=True)
class Made:
    """Pages with sketches, pages that a search scores in full, and the share of the best pages that it finds."""

    pages: int
    candidates: int
    recall: float
    queries: int


class LibrarySketches:
    """The sketches of an open library, as its description says ("sketches" in library.json)."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.noted: dict[str, Any] | None = None

    def take(self, about: dict[str, Any]) -> None:
        """Follow the description of the library, which another process may have changed."""
        noted = about.get("sketches")
        if noted == self.noted:
            return
        self.noted = noted
        content = self.location.read_blob(*BLOB) if noted else None
        self.location.store.sketches = None
        if noted and content:
            with suppress(BadZipFile, EOFError, TypeError, ValueError):  # damaged, as `describe` tells
                self.location.store.sketches = Sketches(Sketcher.from_bytes(content), int(noted["candidates"]))

    def _note(self, noted: dict[str, Any] | None) -> None:
        """Change the description of the library, and wait until readers drop the old sketches."""
        was_used = bool(self.noted and self.noted["candidates"])
        about = self.location.read() or {}
        # A version that does not know sketches refuses format 3: it would add pages without.
        self.location.write(about | {"sketches": noted, "format": 3 if noted else FORMAT})
        self.noted = noted
        if was_used and self.location.shared:
            time.sleep(2 * LOOK_SECONDS)

    def describe(self) -> str:
        """Return in one line how searches use sketches; nothing if there are none."""
        if not self.noted:
            return ""
        if self.location.store.sketches is None:
            return "lost: randslot library sketch makes them again"
        if not self.noted["candidates"]:
            return "incomplete: run randslot library sketch to resume"
        recall = f"recall@{HITS} {100 * self.noted['recall']:.1f}%"
        return f"vector search rescores {self.noted['candidates']:,} candidates, {recall}"

    def find_problems(self) -> list[str]:
        """Return what is wrong with them, a line each."""
        store = self.location.store
        if store.sketches is None or not store.sketches.candidates:
            return []
        without = sum(1 for _ in store.find(None, vectors=True, sketch=False))
        return [f"{count_pages(without)} no sketch: run randslot library sketch"] if without else []

    def remove(self) -> None:
        """Delete all sketches."""
        if self.noted:
            self.location.store.sketches = None
            self._note(None)
            self.location.store.clear_sketches()

    def make(
        self,
        texts: Sequence[str] | None,
        embed: Callable[[list[str]], list[Vectors]],
        progress: Callable[[Progress], None],
    ) -> Made:
        """Give all pages sketches, and let searches use them if they find enough. The write lease is held.

        texts: queries as people ask them, beside lines of pages; None for lines only. embed: from queries to vectors.
        """
        store = self.location.store
        tested: list[list[Vectors]] = []
        fitted: list[Vectors] = []
        for group in self._choose_queries(texts):
            vectors: list[Vectors] = []
            for start in range(0, len(group), 50):
                vectors += embed(group[start : start + 50])
                progress(Progress(0, 0, len(vectors), len(group), stage="queries"))
            tested.append(vectors[:NUM_TESTED])
            fitted += vectors[NUM_TESTED:]
        is_begun = store.sketches is not None and not store.sketches.candidates  # by a run that was stopped
        sketcher = store.sketches.sketcher if store.sketches and is_begun else self._begin(fitted)
        store.sketches = Sketches(sketcher)
        num = self._add_all(progress)
        candidates, recall = self._measure(tested)
        if recall < ENOUGH:
            self.remove()
            reached = f"{100 * recall:.1f}% recall@{HITS}, less than {100 * ENOUGH:.0f}%"
            raise RandSlotError(f"sketches of library {self.location.name} reach {reached}: they were removed")
        self._note({"candidates": candidates, "recall": round(recall, 4), "made": sketcher.key})
        store.sketches = Sketches(sketcher, candidates)
        return Made(num, min(candidates, num), recall, sum(map(len, tested)))

    def _choose_queries(self, texts: Sequence[str] | None) -> list[list[str]]:
        """Return the queries that were given and lines of pages, without duplicates; sketches must do well by both."""
        dice = random.Random(0)
        lines = list(dict.fromkeys(self._choose_lines(dice)))
        groups = [lines] if texts is None else [list(dict.fromkeys(texts)), lines]
        if len(groups[0]) < 2 * NUM_TESTED:
            kind = "lines of pages with vectors" if texts is None else "different queries"
            num = f"{2 * NUM_TESTED} queries, and there are {len(groups[0])} {kind}"
            raise UsageError(f"sketches need {num}: pass a file with more, one per line, as --queries")
        for group in groups:
            dice.shuffle(group)
        return [group[:2000] for group in groups if len(group) >= NUM_TESTED]

    def _choose_lines(self, dice: random.Random) -> list[str]:
        """Return lines of 600 pages."""
        store = self.location.store
        visible = {file.id for file in self.location.manifest.find(state="done")}
        ids = [page.id for page in store.find(("layer", "ocr"), vectors=True) if page.file in visible]
        chosen = dice.sample(ids, min(len(ids), 600))
        step = pages_at_once(store, AT_ONCE)
        lines = []
        for start in range(0, len(chosen), step):
            for page in store.read(chosen[start : start + step]).values():
                if line := choose_line(page, dice):
                    lines.append(line)
        return lines

    def _begin(self, queries: list[Vectors]) -> Sketcher:
        """Fit a sketcher to at most 4,000 pages, keep it, and make room for sketches."""
        store = self.location.store
        ids = [page.id for page in store.find(None, vectors=True)]
        max_pages = min(4000, 8 * MAX_NUMBERS // max(mean_numbers(store), 1))
        pages = store.read(random.Random(1).sample(ids, min(len(ids), max_pages))).values()
        sketcher = fit_sketcher(queries, [page.vectors for page in pages if page.vectors is not None])
        # In this order, sketches and sketcher belong together whenever the process is killed.
        self._note({"candidates": 0})
        store.clear_sketches()
        self.location.write_blob(*BLOB, sketcher.to_bytes())
        return sketcher

    def _add_all(self, progress: Callable[[Progress], None]) -> int:
        """Give sketches to all pages that have none; return how many pages have one then."""
        store = self.location.store
        ids = [page.id for page in store.find(None, vectors=True, sketch=False)]
        step = pages_at_once(store, AT_ONCE)
        for start in range(0, len(ids), step):
            some = ids[start : start + step]
            store.add_sketches(list(store.read(some).values()))
            progress(Progress(0, 0, start + len(some), len(ids), stage="sketches"))
        store.flush()
        store.optimize(wait=True)
        return store.contents(self.location.manifest.hidden()).with_vectors

    def _measure(self, groups: list[list[Vectors]]) -> tuple[int, float]:
        """Return the fewest candidates that find 99 % of the best pages, and their recall; or the most candidates.

        People ask otherwise than pages are written: so more is wanted than must be found, and the group of queries with
        the lowest recall counts.
        """
        store = self.location.store
        assert store.sketches is not None
        where = Where(hidden=self.location.manifest.hidden())
        asked = [[StoreQuery(query) for query in group] for group in groups]
        exact = [store.search(group, HITS, where, True) for group in asked]
        for candidates in CANDIDATES:
            store.sketches = Sketches(store.sketches.sketcher, candidates)
            recall = 1.0
            for group, best in zip(asked, exact, strict=True):
                shared = total = 0
                for hits, wanted in zip(store.search(group, HITS, where, False), best, strict=True):
                    shared += len({hit.id for hit in hits} & {hit.id for hit in wanted})
                    total += len(wanted)
                recall = min(recall, shared / max(total, 1))
            if recall >= 0.99:
                break
        return candidates, recall
