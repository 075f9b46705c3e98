"""Prepare pages in threads while the model encodes others, and batch them by their size.

Threads suffice: decoding, resizing and cutting into patches run in C without the GIL.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def return_freed_memory() -> None:
    """Return freed memory to the system; glibc may keep what one thread allocated and another freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


class Ahead(Generic[T, R]):
    """Runs `do` on each piece of work in threads, at most `depth` ahead of the consumer; yields results in order.

    waited: how many seconds the consumer has waited for results.
    """

    def __init__(self, do: Callable[[T], R], work: Iterable[T], depth: int, threads: int | None = None) -> None:
        self.do, self.work, self.depth = do, work, depth
        self.threads = threads or min(max((os.cpu_count() or 2) - 1, 1), 16)  # one core drives the model
        self.waited = 0.0

    def __iter__(self) -> Iterator[tuple[T, R]]:
        waiting: deque[tuple[T, Future[R]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for piece in self.work:
                    waiting.append((piece, pool.submit(self.do, piece)))
                    if len(waiting) > self.depth:
                        yield self._take(waiting)
                while waiting:
                    yield self._take(waiting)
            finally:  # also if the consumer stops
                for _, future in waiting:
                    future.cancel()

    def _take(self, waiting: deque[tuple[T, Future[R]]]) -> tuple[T, R]:
        piece, future = waiting.popleft()
        started = time.perf_counter()
        try:
            return piece, future.result()
        finally:
            self.waited += time.perf_counter() - started


def cut_by_positions(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Batch items by length: return indices in batches of at most `most` positions, including padding."""
    batches: list[list[int]] = []
    longest = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if not batches or (len(batches[-1]) + 1) * longest > most:
            batches.append([])
            longest = lengths[number]
        batches[-1].append(number)
    return batches


def page_share(page: object) -> float:
    """Return the size of a page relative to the largest one, at least an eighth."""
    return max(min(getattr(page, "share", 1.0), 1.0), 0.125)


def in_shares(items: Iterable[T], most: float, share: Callable[[T], float]) -> Iterator[list[T]]:
    """Yield groups of items whose shares sum to `most`: many small items, or few large ones."""
    group: list[T] = []
    size = 0.0
    for item in items:
        group.append(item)
        size += share(item)
        if size >= most:
            yield group
            group, size = [], 0.0
    if group:
        yield group


def in_groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield groups of `size` items."""
    return in_shares(items, size, lambda item: 1.0)
