"""A store in memory with exact scores in half precision: the reference for the engines, in tests and benchmarks.

The product of numkong of a tall half-precision matrix with a few query vectors runs at about the speed at which memory
can be read.

Shapes: P pages, N vectors of all pages, K vectors of one page or query, D dimension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numkong
import numpy as np
from numpy.typing import NDArray

from randslot.library.stores.store import StoredPage, StoreHit, Vectors, Where

BLOCK_BYTES = 2**26  # of scores at a time
FEW = 32  # query vectors up to which reading is what takes time; with more of them, multiplying
ROWS = 1024  # vectors that are made float32 at once: they stay in the cache


class ExactStore:
    """All pages in one half-precision matrix (N, D); every search is exact."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.matrix_ND: NDArray[np.float16] = np.empty((0, dim), np.float16)
        self.starts: NDArray[np.int64] = np.zeros(1, np.int64)  # of each page's vectors, and the end
        self.pages: list[StoredPage] = []  # in the order of the matrix, without their vectors
        self.places: dict[str, int] = {}

    def add(self, pages: Sequence[StoredPage]) -> None:
        pages = list({page.id: page for page in pages}.values())
        replaced = {self.places[page.id] for page in pages if page.id in self.places}
        self._keep([i for i in range(len(self.pages)) if i not in replaced])
        self.matrix_ND = np.concatenate([self.matrix_ND, *(page.vectors.astype(np.float16) for page in pages)])
        ends = np.cumsum([len(page.vectors) for page in pages], dtype=np.int64)
        self.starts = np.concatenate([self.starts, self.starts[-1] + ends])
        none = np.empty((0, self.dim), np.float32)
        self._take([*self.pages, *(replace(page, vectors=none) for page in pages)])

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

    def search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        allowed = self._allowed(where)
        results = []
        for scores_P in self.score(queries):
            if allowed is not None:
                scores_P = np.where(allowed, scores_P, -np.inf)
            num = min(k, len(scores_P) if allowed is None else int(allowed.sum()))
            best = np.argpartition(-scores_P, num - 1)[:num] if num else np.empty(0, np.int64)
            best = best[np.argsort(-scores_P[best], kind="stable")]
            results.append([self._hit(int(i), float(scores_P[i])) for i in best])
        return results

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
        return replace(self.pages[place], vectors=vectors.astype(np.float32))

    def images(self, file: str) -> dict[int, str]:
        return {page.number: page.image for page in self.pages if page.file == file}

    def counts(self) -> dict[str, int]:
        return dict(Counter(page.file for page in self.pages))

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
