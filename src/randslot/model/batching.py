"""Pages made ready in threads while the model encodes others, and batches of them by how much there is to compute.

Threads are enough: decoding, resizing and cutting into patches happen in C without Python's lock.
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

MOST_THREADS = 16


def count_threads() -> int:
    """Return how many threads make pages ready: all cores but one, which drives the model."""
    return min(max((os.cpu_count() or 2) - 1, 1), MOST_THREADS)


def return_freed_memory() -> None:
    """Give memory that was freed back to the system, for use after each batch; takes milliseconds.

    glibc may keep memory that one thread got and another one freed, as it is with pages that are made ready: a process
    once grew by two megabytes a page, to 9 GB. Not every run grows; with this none was seen to.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


class Ahead(Generic[T, R]):
    """Does pieces of work in threads, at most `depth` ahead of the one that is used, and yields results in order.

    waited: the seconds that whoever uses the results had to wait for them.
    """

    def __init__(self, do: Callable[[T], R], work: Iterable[T], depth: int, threads: int | None = None) -> None:
        self.do, self.work, self.depth = do, work, depth
        self.threads = threads or count_threads()
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
            finally:  # also when whoever uses it stops: what was not begun is not needed
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
    """Return which items are computed together: long ones with long ones, and at most `most` positions, padding too."""
    batches: list[list[int]] = []
    longest = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if not batches or (len(batches[-1]) + 1) * longest > most:
            batches.append([])
            longest = lengths[number]
        batches[-1].append(number)
    return batches


def page_share(page: object) -> float:
    """Return how much there is to compute of a page: one for the largest, but at least an eighth."""
    return max(min(getattr(page, "share", 1.0), 1.0), 0.125)


def in_shares(items: Iterable[T], most: float, share: Callable[[T], float]) -> Iterator[list[T]]:
    """Yield items until their shares have come to `most`: many small ones at a time, and few large ones."""
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
    """Yield `size` items at a time."""
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
