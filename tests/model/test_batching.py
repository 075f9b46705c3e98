"""Prefetched pages: the same vectors in the same order, batches by number of positions, and no waiting."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest
import torch

from randslot.model.batching import batch_by_length, batch_by_share, page_share, prefetch
from support.models import make, noise

SIZES = [(64, 64), (256, 96), (64, 96), (300, 200), (96, 64), (128, 128)]


def pages() -> list:
    return [noise(*size, number) for number, size in enumerate(SIZES)]


def test_prepared_pages_have_the_vectors_of_others_in_their_order(vision_family):
    model = make(vision_family, slots="tokens", visual_tokens=64)
    prepared = [model.prepare_page(page) for page in pages()]
    expected = model.encode_document(pages(), batch_size=2)
    for batch in (1, 3):
        found = model.encode_prepared(prepared, batch)
        assert [len(vectors) for vectors in found] == [len(vectors) for vectors in expected]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_batches_hold_a_number_of_positions_not_of_pages():
    lengths = [10, 100, 12, 90, 11, 100]
    found = batch_by_length(lengths, 200)
    assert sorted(number for batch in found for number in batch) == list(range(6))
    assert found == [[1, 5], [3, 2], [4, 0]]
    assert all(len(batch) * max(lengths[number] for number in batch) <= 200 for batch in found)
    assert batch_by_length([500], 200) == [[0]]
    assert batch_by_length([], 200) == []


def test_small_pages_come_together_and_large_ones_in_few():
    shares = [1.0, 1.0, 0.5, 0.5, 1.0, 0.125]
    assert list(batch_by_share(shares, 2, lambda share: share)) == [[1.0, 1.0], [0.5, 0.5, 1.0], [0.125]]
    model = make("llama", text_tokens=200)
    shown = [page_share(model.prepare_page(text)) for text in ("x", "a " * 60, "a " * 999)]
    assert shown == [pytest.approx(0.2, abs=0.1), pytest.approx(0.8, abs=0.1), 1.0]
    assert page_share("a text as it is") == 1.0


def test_work_is_done_ahead_in_order_and_no_further_than_asked():
    begun, lock = [], threading.Lock()

    def do(number: int) -> int:
        with lock:
            begun.append(number)
        return number * number

    for number, (piece, result) in enumerate(prefetch(do, range(50), depth=5, threads=3)):
        assert (piece, result) == (number, number * number)
        with lock:
            assert max(begun) <= number + 6
    assert sorted(begun) == list(range(50))


def test_an_error_arrives_where_it_belongs():
    def do(number: int) -> int:
        if number == 3:
            raise ValueError("broken page")
        return number

    seen = []
    results = prefetch(do, range(9), depth=2, threads=1)
    for _ in range(3):
        seen.append(next(results)[0])
    with pytest.raises(ValueError, match="broken page"):
        next(results)
    assert seen == [0, 1, 2]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps freed memory")
def test_memory_of_pages_that_threads_made_ready_is_given_back():
    code = """
from pathlib import Path
from randslot.model.batching import prefetch, return_freed_memory

def resident() -> int:
    return int(next(line for line in Path("/proc/self/status").open() if line.startswith("VmRSS")).split()[1])

made = list(prefetch(lambda _: [bytearray(100_000), bytearray(100_000)], range(1000), 1000, threads=1))
made = [first for _, (first, _) in made]  # between any two freed pieces is one in use, so that the heap cannot shrink
before = resident()
return_freed_memory()
print(before - resident())
"""
    freed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(freed.stdout) > 50_000  # KB of 100,000
