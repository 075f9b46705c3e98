"""Measure the time to extract the text of pages, in one worker process.

    python -m research.experiments.text FOLDER            # all PDFs in the folder; about two minutes for 6,696 pages

Times include the request to the worker, reading the page with word boxes, and deserialising them here. "CPU ms" is the
CPU time of both processes, with the start of the worker; it depends less on other load.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, print_table

from randslot.library.workers import WorkerPool


def time_file(pool: WorkerPool, file: str, num_pages: int) -> list[float]:
    """Return the milliseconds per page of a file, read in sequence."""
    times = []
    for number in range(1, num_pages + 1):
        start = time.perf_counter()
        pool.read_text(file, number)
        times.append(1000 * (time.perf_counter() - start))
    return times


def time_all(files: list[str]) -> dict[str, Any]:
    """Return a row of the table for all pages."""
    times: list[float] = []
    start = _cpu_seconds()
    with WorkerPool(1) as pool:
        for file in files:
            times += time_file(pool, file, pool.inspect(file).num_pages)
    return {
        "files": len(files),
        "pages": len(times),
        "ms a page": float(np.mean(times)),
        "p50": float(np.percentile(times, 50)),
        "p95": float(np.percentile(times, 95)),
        "CPU ms a page": 1000 * (_cpu_seconds() - start) / len(times),
    }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    return sum(os.times()[:4])


def main() -> None:
    """Time reading, print a table and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    files = [str(file) for file in sorted(parser.parse_args().folder.rglob("*.pdf"))]
    if not files:
        parser.error("no PDFs in that folder")
    rows = [time_all(files)]
    print_table(rows)
    keep("text", rows)


if __name__ == "__main__":
    main()
