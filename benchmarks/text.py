"""How long it takes to read the text of pages, in one worker process.

    python benchmarks/text.py FOLDER            # all PDFs below the folder; about two minutes for 6,696 pages

Everything counts: asking the worker, reading the page with the boxes of its words, and making them here.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, print_table

from randslot.library.reading.workers import BATCH, Renderers


def time_single(renderers: Renderers, file: str, num_pages: int) -> list[float]:
    """Return the milliseconds of each page of a file, read one by one."""
    times = []
    for number in range(1, num_pages + 1):
        start = time.perf_counter()
        renderers.read_text(file, number)
        times.append(1000 * (time.perf_counter() - start))
    return times


def time_batches(renderers: Renderers, file: str, num_pages: int) -> list[float]:
    """Return the milliseconds of each page of a file: those of its batch, shared evenly."""
    times: list[float] = []
    for first in range(1, num_pages + 1, BATCH):
        numbers = range(first, min(first + BATCH, num_pages + 1))
        start = time.perf_counter()
        renderers.read_texts(file, numbers)
        taken = 1000 * (time.perf_counter() - start)
        times += [taken / len(numbers)] * len(numbers)
    return times


def describe(way: str, num_files: int, times: list[float]) -> dict[str, Any]:
    """Return a row of the table."""
    return {
        "way": way,
        "files": num_files,
        "pages": len(times),
        "ms a page": float(np.mean(times)),
        "p50": float(np.percentile(times, 50)),
        "p95": float(np.percentile(times, 95)),
    }


def main() -> None:
    """Time all pages both ways, file by file, so that a busy moment hits both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    files = [str(file) for file in sorted(parser.parse_args().folder.rglob("*.pdf"))]
    if not files:
        parser.error("there are no PDFs below that folder")
    single: list[float] = []
    batches: list[float] = []
    with Renderers(1) as renderers:
        for file in files:
            num_pages = renderers.inspect(file).num_pages
            single += time_single(renderers, file, num_pages)
            batches += time_batches(renderers, file, num_pages)
    rows = [
        describe("one by one", len(files), single),
        describe(f"{BATCH} pages at once", len(files), batches),
    ]
    print_table(rows)
    keep("text", rows)


if __name__ == "__main__":
    main()
