"""Prepare pages in threads while the model encodes others, and batch them by their size.

Threads suffice: decoding, resizing and cutting into patches run in C without the GIL.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def return_freed_memory() -> None:
    """Return freed memory to the system; glibc may keep what one thread allocated and another freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def prefetch(do: Callable[[T], R], work: Iterable[T], depth: int, threads: int | None = None) -> Iterator[tuple[T, R]]:
    """Run `do` on each piece of work in threads, at most `depth` ahead of the consumer; yield both in order."""
    threads = threads or min(max((os.cpu_count() or 2) - 1, 1), 16)  # one core drives the model
    waiting: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for piece in work:
                waiting.append((piece, pool.submit(do, piece)))
                if len(waiting) > depth:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        finally:  # also if the consumer stops
            for _, future in waiting:
                future.cancel()


def batch_by_length(lengths: Sequence[int], max_positions: int) -> list[list[int]]:
    """Batch items by length: return indices in batches of at most `max_positions`, including padding."""
    batches: list[list[int]] = []
    longest = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if not batches or (len(batches[-1]) + 1) * longest > max_positions:
            batches.append([])
            longest = lengths[number]
        batches[-1].append(number)
    return batches


def page_share(page: object) -> float:
    """Return the size of a page relative to the largest one, at least an eighth."""
    return max(min(getattr(page, "share", 1.0), 1.0), 0.125)


def batch_by_share(items: Iterable[T], target: float, share: Callable[[T], float]) -> Iterator[list[T]]:
    """Yield batches of items, each until its shares reach `target`: many small items, or few large ones."""
    group: list[T] = []
    size = 0.0
    for item in items:
        group.append(item)
        size += share(item)
        if size >= target:
            yield group
            group, size = [], 0.0
    if group:
        yield group


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield batches of `size` items."""
    return batch_by_share(items, size, lambda item: 1.0)
