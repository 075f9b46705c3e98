"""Sketches: one short vector per page, the first stage of vector search in large libraries.

The product of a page's sketch with that of a query is nearly their MaxSim. MaxSim adds up, over the vectors x of a
query, the largest product of x with a vector of the page. As a function of x, this is close to a weighted sum of a few
hundred features of x, exp(sharpness * x.c) for vectors c of some pages. The weights that are best for a page, by least
squares over vectors of queries, are linear in its largest products with them. So a query is its features, a page is its
weights, and both are projected onto their main axes.

LEMUR showed this idea with a network in place of these features; research/log.md has figures. A library uses sketches
only if their recall is high enough.

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
REFRESH_SECONDS = 1.0  # after which a search reloads the description of a shared library
BLOB = ("sketcher", "sketches.npz")  # name of the sketcher: on a server, in a folder
AT_ONCE = 1000  # pages to sketch in one batch
NUM_HELD_OUT = 100  # queries of each group
CANDIDATES = (100, 200, 300, 500, 1000, 2000, 4000)  # tried in this order
HITS, MIN_RECALL = 5, 0.98  # recall@5 against exact search


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
        for batch in _split(pages, MAX_PRODUCTS // len(self.anchors_XD)):
            made.append(find_nearest(self.anchors_XD, batch).T @ self.page_map_XS - self.page_mean_S)
        return np.concatenate(made)

    def to_bytes(self) -> bytes:
        """Serialize the sketcher."""
        content = BytesIO()
        np.savez(content, **vars(self))
        return content.getvalue()

    @property
    def key(self) -> str:
        """A hash of the sketcher."""
        return blake2b(self.page_map_XS.tobytes() + self.anchors_XD.tobytes(), digest_size=8).hexdigest()

    @classmethod
    def from_bytes(cls, content: bytes) -> Sketcher:
        """Deserialize a sketcher."""
        with np.load(BytesIO(content), allow_pickle=False) as values:
            return cls(**values)


def make_features(vectors: Vectors, centres_CD: Vectors, sharpness: float) -> Vectors:
    """Return the features of vectors, with a bias of one at the end of each row."""
    near = np.exp(sharpness * (vectors.astype(np.float32) @ centres_CD.T))
    return np.concatenate([near, np.ones((len(near), 1), np.float32)], axis=1)


def find_nearest(anchors_XD: Vectors, pages: Sequence[Vectors]) -> Vectors:
    """Return the largest product of each anchor with the vectors of each page: anchors x pages."""
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
    """Fit a sketcher to vectors of queries and of sampled pages."""
    rng = np.random.default_rng(0)
    anchors_XD = _choose(np.concatenate(queries), 4096, rng)
    centres_CD = _choose(np.concatenate(pages), 512, rng)
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
    for batch in _split(pages, MAX_PRODUCTS // len(anchors_XD)):
        weights.append((to_weights @ find_nearest(anchors_XD, batch)).T)
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


def _choose(vectors: Vectors, max_num: int, rng: np.random.Generator) -> Vectors:
    return np.asarray(vectors[rng.permutation(len(vectors))[:max_num]], np.float32)


# -- of a library


def count_pages(num: int) -> str:
    """Return the beginning of a sentence: "2 pages have"."""
    return "1 page has" if num == 1 else f"{num:,} pages have"


@dataclass(frozen=True)
class Sketches:
    """How pages are sketched. candidates: pages that a search rescores in full; 0: searches do not use sketches."""

    sketcher: Sketcher
    candidates: int = 0

    def sketch(self, pages: Sequence[StoredPage]) -> dict[str, Vectors]:
        """Return the sketches, by id, of pages with vectors."""
        vectors = {page.id: page.vectors for page in pages if page.vectors is not None}
        return dict(zip(vectors, self.sketcher.sketch_pages(list(vectors.values())), strict=True))


@dataclass(frozen=True)
class SketchReport:
    """The result of building sketches. candidates: pages rescored per search. queries: held-out ones, for recall."""

    pages: int
    candidates: int
    recall: float
    queries: int


class LibrarySketches:
    """The sketches of an open library. settings: "sketches" in library.json."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.settings: dict[str, Any] | None = None

    def load(self, description: dict[str, Any]) -> None:
        """Reload sketches if the description of the library has changed: another process may have written it."""
        settings = description.get("sketches")
        if settings == self.settings:
            return
        self.settings = settings
        content = self.location.read_blob(*BLOB) if settings else None
        self.location.store.sketches = None
        if settings and content:
            with suppress(BadZipFile, EOFError, TypeError, ValueError):  # damaged: `describe` reports it
                self.location.store.sketches = Sketches(Sketcher.from_bytes(content), int(settings["candidates"]))

    def _save(self, settings: dict[str, Any] | None) -> None:
        """Update the description of the library, and wait until readers drop the old sketches."""
        was_used = bool(self.settings and self.settings["candidates"])
        description = self.location.read() or {}
        # Versions without sketches refuse format 3: they would add pages without sketches.
        self.location.write(description | {"sketches": settings, "format": 3 if settings else FORMAT})
        self.settings = settings
        if was_used and self.location.shared:
            time.sleep(2 * REFRESH_SECONDS)

    def describe(self) -> str:
        """Return in one line how searches use sketches; "" if there are none."""
        if not self.settings:
            return ""
        if self.location.store.sketches is None:
            return "lost: run randslot library sketch to rebuild them"
        if not self.settings["candidates"]:
            return "incomplete: run randslot library sketch to resume"
        recall = f"recall@{HITS} {100 * self.settings['recall']:.1f}%"
        return f"vector search rescores {self.settings['candidates']:,} candidates, {recall}"

    def find_problems(self) -> list[str]:
        """Return the problems of the sketches, one per line."""
        store = self.location.store
        if store.sketches is None or not store.sketches.candidates:
            return []
        without = sum(1 for _ in store.find(None, vectors=True, sketch=False))
        return [f"{count_pages(without)} no sketch: run randslot library sketch"] if without else []

    def remove(self) -> None:
        """Delete all sketches."""
        if self.settings:
            self.location.store.sketches = None
            self._save(None)
            self.location.store.clear_sketches()

    def make(
        self,
        texts: Sequence[str] | None,
        embed: Callable[[list[str]], list[Vectors]],
        progress: Callable[[Progress], None],
    ) -> SketchReport:
        """Build sketches for all pages, and use them if recall is high enough. The caller holds the write lease.

        texts: real queries, in addition to lines of pages. embed: encodes queries.
        """
        store = self.location.store
        held_out: list[list[Vectors]] = []
        fitted: list[Vectors] = []
        for group in self._choose_queries(texts):
            vectors: list[Vectors] = []
            for start in range(0, len(group), 50):
                vectors += embed(group[start : start + 50])
                progress(Progress(0, 0, len(vectors), len(group), stage="queries"))
            held_out.append(vectors[:NUM_HELD_OUT])
            fitted += vectors[NUM_HELD_OUT:]
        is_resumed = store.sketches is not None and not store.sketches.candidates
        sketcher = store.sketches.sketcher if store.sketches and is_resumed else self._begin(fitted)
        store.sketches = Sketches(sketcher)
        num = self._add_all(progress)
        candidates, recall = self._measure(held_out)
        if recall < MIN_RECALL:
            self.remove()
            reached = f"{100 * recall:.1f}% recall@{HITS}, less than {100 * MIN_RECALL:.0f}%"
            raise RandSlotError(f"sketches of library {self.location.name} reach {reached}: they were removed")
        self._save({"candidates": candidates, "recall": round(recall, 4), "made": sketcher.key})
        store.sketches = Sketches(sketcher, candidates)
        return SketchReport(num, min(candidates, num), recall, sum(map(len, held_out)))

    def _choose_queries(self, texts: Sequence[str] | None) -> list[list[str]]:
        """Return groups of distinct queries: the given ones, if any, and lines of pages."""
        rng = random.Random(0)
        lines = list(dict.fromkeys(self._choose_lines(rng)))
        groups = [lines] if texts is None else [list(dict.fromkeys(texts)), lines]
        if len(groups[0]) < 2 * NUM_HELD_OUT:
            kind = "lines of pages with vectors" if texts is None else "different queries"
            num = f"{2 * NUM_HELD_OUT} queries, but found {len(groups[0])} {kind}"
            raise UsageError(f"sketches need {num}: pass a file with more, one per line, as --queries")
        for group in groups:
            rng.shuffle(group)
        return [group[:2000] for group in groups if len(group) >= NUM_HELD_OUT]

    def _choose_lines(self, rng: random.Random) -> list[str]:
        """Return a line of each of up to 600 sampled pages."""
        store = self.location.store
        visible = {file.id for file in self.location.manifest.find(state="done")}
        ids = [page.id for page in store.find(("layer", "ocr"), vectors=True) if page.file in visible]
        chosen = rng.sample(ids, min(len(ids), 600))
        step = pages_at_once(store, AT_ONCE)
        lines = []
        for start in range(0, len(chosen), step):
            for page in store.read(chosen[start : start + step]).values():
                if line := choose_line(page, rng):
                    lines.append(line)
        return lines

    def _begin(self, queries: list[Vectors]) -> Sketcher:
        """Fit a sketcher to at most 4,000 pages, delete old sketches, and store the sketcher."""
        store = self.location.store
        ids = [page.id for page in store.find(None, vectors=True)]
        max_pages = min(4000, 8 * MAX_NUMBERS // max(mean_numbers(store), 1))
        pages = store.read(random.Random(1).sample(ids, min(len(ids), max_pages))).values()
        sketcher = fit_sketcher(queries, [page.vectors for page in pages if page.vectors is not None])
        # This order keeps sketches and sketcher consistent if the process is killed.
        self._save({"candidates": 0})
        store.clear_sketches()
        self.location.write_blob(*BLOB, sketcher.to_bytes())
        return sketcher

    def _add_all(self, progress: Callable[[Progress], None]) -> int:
        """Backfill sketches; return the number of pages with sketches."""
        store = self.location.store
        ids = [page.id for page in store.find(None, vectors=True, sketch=False)]
        step = pages_at_once(store, AT_ONCE)
        for start in range(0, len(ids), step):
            batch = ids[start : start + step]
            store.add_sketches(list(store.read(batch).values()))
            progress(Progress(0, 0, start + len(batch), len(ids), stage="sketches"))
        store.flush()
        store.optimize(wait=True)
        return store.contents(self.location.manifest.hidden()).with_vectors

    def _measure(self, groups: list[list[Vectors]]) -> tuple[int, float]:
        """Return the fewest candidates that reach 99% recall on every group of queries, or the most; and the recall.

        The target is above the minimum because real queries differ from lines of pages.
        """
        store = self.location.store
        assert store.sketches is not None
        where = Where(hidden=self.location.manifest.hidden())
        queries = [[StoreQuery(query) for query in group] for group in groups]
        exact = [store.search(group, HITS, where, True) for group in queries]
        for candidates in CANDIDATES:
            store.sketches = Sketches(store.sketches.sketcher, candidates)
            recall = 1.0
            for group, best in zip(queries, exact, strict=True):
                shared = total = 0
                for hits, wanted in zip(store.search(group, HITS, where, False), best, strict=True):
                    shared += len({hit.id for hit in hits} & {hit.id for hit in wanted})
                    total += len(wanted)
                recall = min(recall, shared / max(total, 1))
            if recall >= 0.99:
                break
        return candidates, recall
