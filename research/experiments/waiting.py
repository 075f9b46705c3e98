"""How long the model waits for pages, with a backbone of middle size (mid.json) with random weights.

    python -m research.experiments.waiting

Page images are compressed, twice as large as what the model looks at, 48 x 32 merged visual tokens each. The table says
how many pages a second are encoded, how long one takes to be made ready, and for what share of time the model waits.

A second table has pages a second that are only made ready, for backbones of real shape: by one thread, by two threads
of one process, as here, and by two processes, which send what they made back through shared memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from record import keep, print_table

import randslot
from randslot.evaluation.profile import Protocol, make_files, measure_waiting
from randslot.model.preprocessing import Preprocessor

SHAPE = str(Path(__file__).parents[2] / "benchmarks" / "mid.json")
REAL = ("qwen2.5-vl-3b", "qwen3-vl-4b", "smolvlm-256m")
PREPROCESSORS: list[Preprocessor] = []  # of this process


def start(preprocessor: Preprocessor) -> None:
    torch.set_num_threads(1)
    PREPROCESSORS[:] = [preprocessor]


def prepare(file: bytes) -> Any:
    return PREPROCESSORS[0].prepare_page(file)


def measure_preparing(shape: str, samples: int) -> dict[str, Any]:
    model = randslot.untrained(shape, device="meta", dtype="bfloat16")
    files = make_files(model, samples)
    start(model.preprocessor)
    row: dict[str, Any] = {"backbone": shape, "1 thread, pages/s": pages_a_second(map(prepare, files), samples)}
    with ThreadPoolExecutor(2) as threads:
        row["2 threads"] = pages_a_second(threads.map(prepare, files), samples)
    with torch.multiprocessing.get_context("spawn").Pool(2, start, (model.preprocessor,)) as processes:
        processes.map(len, files, chunksize=1)  # they have started
        row["2 processes"] = pages_a_second(processes.imap(prepare, files), samples)
    return row


def pages_a_second(pages: Iterable[Any], num: int) -> float:
    started = time.perf_counter()
    for page in pages:
        del page  # as if it were used: shared memory is given back
    return num / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = randslot.untrained(SHAPE, device="cpu")
    rows: list[dict[str, Any]] = []
    for batch in (1, 4):
        table = measure_waiting(model, Protocol(samples=options.samples), batch)
        (row,) = table.rows
        rows.append({"pages at once": batch, **dict(zip(table.heads, row, strict=True))})
    ready = [measure_preparing(shape, 2 * options.samples) for shape in REAL]
    print_table(rows)
    print()
    print_table(ready)
    keep("waiting", rows + ready)


if __name__ == "__main__":
    main()
