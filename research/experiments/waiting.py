"""Measure how long the model waits for preprocessing, with a mid-size backbone (mid.json) with random weights.

    python -m research.experiments.waiting

Page images are compressed, twice as large as the model's input, 48 x 32 merged visual tokens each. The table has the
throughput of encoding, the time to preprocess a page, and the share of time that the model waits.

A second table has the throughput of preprocessing only, for backbones of real shape: with one thread, with two threads
of one process, and with two processes, which return results through shared memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from record import keep, print_table

import randslot
from randslot.evaluation.profile import Protocol, page_size, synchronize
from randslot.model.batching import batched, prefetch
from randslot.model.model import RandSlotModel
from randslot.model.preprocessing import Preprocessor
from randslot.pages import open_page

SHAPE = str(Path(__file__).parents[2] / "benchmarks" / "mid.json")
REAL = ("qwen2.5-vl-3b", "qwen3-vl-4b", "smolvlm-256m")
PREPROCESSORS: list[Preprocessor] = []  # of this process


def measure_waiting(model: RandSlotModel, protocol: Protocol, batch: int) -> dict[str, Any]:
    """Encode page images like `evaluate` and `index`, with prefetching; return how long the model waits.

    Warmup pages are not counted. The preprocessing time is that of a single thread.
    """
    with page_size(model, protocol):
        files = make_files(model, protocol.warmup * batch + protocol.samples)

        def prepare(file: bytes) -> Any:
            return model.prepare_page(open_page(file, model.page_pixels))

        started = time.perf_counter()
        for file in files[: protocol.warmup]:
            prepare(file)
        alone = (time.perf_counter() - started) / max(protocol.warmup, 1)
        busy = 0.0
        for number, group in enumerate(batched(prefetch(prepare, files, depth=4 * batch), batch), 1):
            begun = time.perf_counter()
            model.embed_pages([page for _, page in group])
            synchronize()
            busy += time.perf_counter() - begun
            if number == protocol.warmup:
                started, busy = time.perf_counter(), 0.0
        seconds = time.perf_counter() - started
    speeds = {"pages/s": protocol.samples / seconds, "ms to make one ready": 1000 * alone}
    return {"pages at once": batch, **speeds, "the model waits": f"{1 - busy / seconds:.1%}"}


def make_files(model: RandSlotModel, num: int) -> list[bytes]:
    """Make page images like scans: larger than the model's input, and compressed."""
    width = round((2 * model.page_pixels * 2 / 3) ** 0.5)
    files = []
    for number in range(num):
        image = Image.effect_noise((width, width * 3 // 2), 40 + number).convert("RGB")
        file = BytesIO()
        image.save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return files


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
        processes.map(len, files, chunksize=1)  # the workers have started
        row["2 processes"] = pages_a_second(processes.imap(prepare, files), samples)
    return row


def pages_a_second(pages: Iterable[Any], num: int) -> float:
    started = time.perf_counter()
    for page in pages:
        del page  # release shared memory, like a consumer
    return num / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = randslot.untrained(SHAPE, device="cpu")
    rows = [measure_waiting(model, Protocol(samples=options.samples), batch) for batch in (1, 4)]
    ready = [measure_preparing(shape, 2 * options.samples) for shape in REAL]
    print_table(rows)
    print()
    print_table(ready)
    keep("waiting", rows + ready)


if __name__ == "__main__":
    main()
