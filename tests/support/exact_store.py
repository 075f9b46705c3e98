"""A store in memory with exact scores: the reference for the engines, in tests and benchmarks.

Vectors are in half precision. Words are compared in plain loops: slow, and obvious.

The product of numkong of a tall half-precision matrix with a few query vectors runs at about the speed at which memory
can be read.

Shapes: P pages, N vectors of all pages, K vectors of one page or query, D dimension.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numkong
import numpy as np
from numpy.typing import NDArray

from randslot.library.stores.points import Origin, StoredPage, Vectors
from randslot.library.stores.store import DEFAULT_TUNING, Contents, StoreHit, StoreQuery, Where

BLOCK_BYTES = 2**26  # of scores at a time
FEW = 32  # query vectors up to which reading is what takes time; with more of them, multiplying
ROWS = 1024  # vectors that are made float32 at once: they stay in the cache


class ExactStore:
    """All pages in one half-precision matrix (N, D); every search is exact."""

    def __init__(self, dim: int) -> None:
        self.dim, self.tuning = dim, DEFAULT_TUNING
        self.matrix_ND: NDArray[np.float16] = np.empty((0, dim), np.float16)
        self.starts: NDArray[np.int64] = np.zeros(1, np.int64)  # of each page's vectors, and the end
        self.pages: list[StoredPage] = []  # in the order of the matrix, without their vectors
        self.places: dict[str, int] = {}

    def prepare(self, *, dim: int | None, words: bool) -> None:
        """Nothing to do: there is room for both."""

    def add(self, pages: Sequence[StoredPage]) -> None:
        pages = list({page.id: page for page in pages}.values())
        replaced = {self.places[page.id] for page in pages if page.id in self.places}
        self._keep([i for i in range(len(self.pages)) if i not in replaced])
        none = np.empty((0, self.dim), np.float32)
        vectors = [none if page.vectors is None else page.vectors for page in pages]
        self.matrix_ND = np.concatenate([self.matrix_ND, *(own.astype(np.float16) for own in vectors)])
        ends = np.cumsum([len(own) for own in vectors], dtype=np.int64)
        self.starts = np.concatenate([self.starts, self.starts[-1] + ends])
        self._take([*self.pages, *(replace(page, vectors=none) for page in pages)])

    def update(self, pages: Sequence[StoredPage]) -> None:
        changed = []
        for page in pages:
            old = self._page(self.places[page.id])
            if page.vectors is not None:
                old = replace(old, vectors=page.vectors, hash=page.hash, cut=page.cut)
            changed.append(replace(old, text=page.text or old.text))
        self.add(changed)

    def delete(self, file: str) -> None:
        self._keep([i for i, page in enumerate(self.pages) if page.file != file])

    def _keep(self, places: list[int]) -> None:
        if len(places) == len(self.pages):
            return
        parts = [self.matrix_ND[self.starts[i] : self.starts[i + 1]] for i in places]
        self.matrix_ND = np.concatenate([np.empty((0, self.dim), np.float16), *parts])
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)])
        self._take([self.pages[i] for i in places])

    def _take(self, pages: list[StoredPage]) -> None:
        self.pages = pages
        self.places = {page.id: i for i, page in enumerate(pages)}

    def search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        if all(query.vectors is not None and query.terms is None for query in queries):
            vectors = [query.vectors for query in queries if query.vectors is not None]
            allowed = self._allowed(where)
            return [self._best(scores_P, k, allowed) for scores_P in self.score(vectors)]
        return [self._search(query, k, where) for query in queries]

    def _search(self, query: StoreQuery, k: int, where: Where) -> list[StoreHit]:
        allowed = self._allowed(where)
        if allowed is None:
            allowed = np.ones(len(self.pages), dtype=bool)
        for i, page in enumerate(self.pages):
            words = f" {page.text.words} " if page.text else ""
            has_all = all(f" {phrase} " in words for phrase in query.phrases)
            allowed[i] &= has_all and not any(f" {phrase} " in words for phrase in query.excluded)
        pool = max(self.tuning.pool, 2 * k)
        by_words = self._best(self._score_words(query, where), pool, allowed) if query.terms else []
        by_words = [hit for hit in by_words if hit.score > 0]
        by_vectors = self._best(self.score([query.vectors])[0], pool, allowed) if query.vectors is not None else []
        if query.vectors is None or query.terms is None:
            return (by_words or by_vectors)[:k]
        together: dict[str, StoreHit] = {}
        for hits, weight in ((by_words, 1.0), (by_vectors, query.vectors_weight)):
            lowest = 0.0 if hits is by_words else min(hit.score for hit in hits)
            if len(hits) >= self.tuning.pool:
                lowest = hits[self.tuning.pool - 1].score
            for hit in hits:
                before = together[hit.id].score if hit.id in together else 0.0
                share = (hit.score - lowest) / (hits[0].score - lowest) if hits[0].score > lowest else 1.0
                together[hit.id] = replace(hit, score=before + weight * max(share, 0.0))
        return sorted(together.values(), key=lambda hit: -hit.score)[:k]

    def _score_words(self, query: StoreQuery, where: Where) -> NDArray[np.float32]:
        """Return the BM25 scores of a query with every page; how rare a word is counts over what is not hidden."""
        assert query.terms is not None
        visible = [page for page in self.pages if page.file not in where.hidden and page.text]
        scores = np.zeros(len(self.pages), np.float32)
        num = sum(bool(page.text and page.text.terms.numbers) for page in visible)
        for number, weight in zip(query.terms.numbers, query.terms.weights, strict=True):
            having = sum(number in page.text.terms.numbers for page in visible if page.text)
            rare = math.log(1 + (num - having + 0.5) / (having + 0.5))
            for i, page in enumerate(self.pages):
                if page.text and number in page.text.terms.numbers:
                    own = page.text.terms.weights[page.text.terms.numbers.index(number)]
                    scores[i] += weight * own * rare
        return scores

    def _best(self, scores_P: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None) -> list[StoreHit]:
        if allowed is not None:
            scores_P = np.where(allowed, scores_P, -np.inf)
        num = min(k, len(scores_P) if allowed is None else int(allowed.sum()))
        best = np.argpartition(-scores_P, num - 1)[:num] if num else np.empty(0, np.int64)
        best = best[np.argsort(-scores_P[best], kind="stable")]
        return [self._hit(int(i), float(scores_P[i])) for i in best]

    def score(self, queries: Sequence[Vectors]) -> list[NDArray[np.float32]]:
        """Return the MaxSim scores (P) of each query with every page."""
        if not self.pages:
            return [np.empty(0, np.float32) for _ in queries]
        multiply = _multiplier(np.concatenate(queries))
        splits = np.cumsum([len(query) for query in queries])[:-1]
        step = max(BLOCK_BYTES // (4 * int(sum(len(query) for query in queries))), 1)
        blocks = []
        first = 0
        while first < len(self.pages):
            last = int(np.searchsorted(self.starts, self.starts[first] + step, side="right")) - 1
            last = max(last, first + 1)
            start, end = int(self.starts[first]), int(self.starts[last])
            best = self._best_of_pages(multiply(self.matrix_ND[start:end]), first, last)
            blocks.append([part.sum(1) for part in np.split(best, splits, axis=1)])
            first = last
        return [np.concatenate([block[i] for block in blocks]) for i in range(len(queries))]

    def _best_of_pages(self, products: NDArray[np.float32], first: int, last: int) -> NDArray[np.float32]:
        """Return the best of each page's rows: (rows, query vectors) to (pages, query vectors)."""
        counts = np.diff(self.starts[first : last + 1])
        if (counts == counts[0]).all():
            best: NDArray[np.float32] = products.reshape(last - first, counts[0], -1).max(1)
            return best
        found: NDArray[np.float32] = np.maximum.reduceat(products, self.starts[first:last] - self.starts[first])
        return found

    def _allowed(self, where: Where) -> NDArray[np.bool_] | None:
        if where == Where():
            return None
        last = where.last or np.inf
        allowed = np.zeros(len(self.pages), dtype=bool)
        for i, page in enumerate(self.pages):
            wanted = where.files is None or page.file in where.files
            allowed[i] = wanted and page.file not in where.hidden and where.first <= page.number <= last
        return allowed

    def _hit(self, place: int, score: float) -> StoreHit:
        page = self.pages[place]
        return StoreHit(page.id, page.file, page.number, score)

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        return {id: self._page(self.places[id]) for id in ids if id in self.places}

    def _page(self, place: int) -> StoredPage:
        vectors = self.matrix_ND[self.starts[place] : self.starts[place + 1]]
        return replace(self.pages[place], vectors=vectors.astype(np.float32) if len(vectors) else None)

    def hashes(self, file: str) -> dict[int, str]:
        return {page.number: page.hash for page in self.pages if page.file == file}

    def counts(self) -> dict[str, int]:
        return dict(Counter(page.file for page in self.pages))

    def contents(self, hidden: Collection[str]) -> Contents:
        visible = [i for i, page in enumerate(self.pages) if page.file not in hidden]
        with_vectors = sum(self._page(i).vectors is not None for i in visible)
        origins: Counter[str] = Counter()
        for i in visible:
            text = self.pages[i].text
            origins[text.origin if text else ""] += 1
        return Contents(len(visible), with_vectors, dict(origins))

    def count_cut(self, hidden: Collection[str]) -> int:
        return sum(page.cut for page in self.pages if page.file not in hidden)

    def find(self, origins: Collection[Origin] | None, *, vectors: bool | None = None) -> Iterator[StoredPage]:
        for i, page in enumerate(self.pages):
            origin = page.text.origin if page.text else ""
            has_vectors = self._page(i).vectors is not None
            if (origins is None or origin in origins) and vectors in (None, has_vectors):
                yield replace(page, vectors=None, text=None)

    def flush(self) -> None:
        """Nothing to do: memory has no disk."""

    def optimize(self) -> None:
        """Nothing to do: every search is exact."""

    def close(self) -> None:
        """Nothing to do."""


def _multiplier(vectors: Vectors) -> Callable[[NDArray[np.float16]], NDArray[np.float32]]:
    """Return what multiplies page vectors (N, D) with these query vectors, in the way that is fastest for this many."""
    if len(vectors) <= FEW:
        packed = numkong.dots_pack(vectors.astype(np.float16), dtype="float16")
        return lambda pages: np.asarray(numkong.dots_packed(pages, packed))
    turned = np.ascontiguousarray(vectors.T)

    def multiply(pages: NDArray[np.float16]) -> NDArray[np.float32]:
        products = np.empty((len(pages), len(vectors)), np.float32)
        for start in range(0, len(pages), ROWS):
            part = np.asarray(numkong.astype(pages[start : start + ROWS], "float32"))
            np.matmul(part, turned, out=products[start : start + ROWS])
        return products

    return multiply
