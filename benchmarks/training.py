"""What a training step costs: in time against the paper's loop, and in memory against the size of the batch.

    python benchmarks/training.py            # about five minutes on one core

A step is a forward and backward of the loss over two pairs, K = 4, into the adapter of a backbone of middle size with
random weights (mid.json), queries of 32 tokens, pages of 16 x 16 = 256 merged visual tokens. The paper's loop appends
one slot after another and runs the whole prefix again for each: with the vision tower run once, or again each time.
All ways give the same loss. Memory is the growth of a process's peak over what the loaded model takes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import keep, print_table, time_ways
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util import maxsim
from torch import Tensor

import randslot
from randslot.model.readout import read_once, read_stepwise
from randslot.training.loss import Loss

Features = dict[str, Tensor]
SHAPE = str(Path(__file__).with_name("mid.json"))
STRATEGIES = ("random", "zero", "fixed", "learned")


def make_batch(model: MultiVectorEncoder, num_pairs: int) -> list[Features]:
    """Make features of different queries and pages."""
    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 256, (512, 512, 3), dtype=np.uint8)) for _ in range(num_pairs)]
    queries = [f"{number:032}" for number in range(num_pairs)]
    return [model.preprocess(queries, task="query"), model.preprocess(images, task="document")]


def ways_to_step(encoder: randslot.SlotEncoder, batch: list[Features]) -> dict[str, Callable[[], Tensor]]:
    """Return the ways to one loss: our forward, and the paper's loop in two versions, all with the same slots."""
    backbone = encoder.parts
    sides: list[Any] = ["query", "page"]
    slots = [encoder.slots(side, 3, part["keys"]).detach() for side, part in zip(sides, batch, strict=True)]

    def once(part: Features, given: Tensor) -> Tensor:
        return read_once(backbone, backbone.read_content(part), given)

    def prefix_again(part: Features, given: Tensor) -> Tensor:
        return read_stepwise(backbone, backbone.read_content(part), 3, lambda t, _: given[:, t], cached=False)

    def all_again(part: Features, given: Tensor) -> Tensor:
        return torch.cat([once(part, given[:, :num])[:, -1:] for num in range(4)], dim=1)

    def step(read: Callable[[Features, Tensor], Tensor]) -> Tensor:
        encoder.zero_grad()
        queries, pages = (read(part, given) for part, given in zip(batch, slots, strict=True))
        scores = maxsim(queries, pages)
        loss = torch.nn.functional.cross_entropy(scores / 0.07, torch.arange(len(scores)))
        loss.backward()
        return loss.detach()

    ways = {"one pass": once, "prefix again, vision once": prefix_again, "prefix again, vision too": all_again}
    return {name: partial(step, read) for name, read in ways.items()}


def measure_time(repeats: int) -> list[dict[str, Any]]:
    """Time the ways for each strategy that knows its slots beforehand."""
    rows = []
    for strategy in STRATEGIES:
        model = randslot.untrained(SHAPE, slots=strategy, lora=True, visual_tokens=256).eval()  # no dropout
        ways = ways_to_step(model.encoder, make_batch(model, 2))
        first, *others = [float(way()) for way in ways.values()]
        if max(abs(first - other) for other in others) > 1e-3 * abs(first):
            raise SystemExit(f"the ways disagree for {strategy}: {first} and {others}")
        seconds = time_ways(dict(ways), repeats)
        rows += [
            {"slots": strategy, "way": name, "ms": 1000 * value, "times one pass": value / seconds["one pass"]}
            for name, value in seconds.items()
        ]
    return rows


def measure_memory() -> list[dict[str, Any]]:
    """Run one step in a process of its own for several batches and micro-batches."""
    rows = []
    for batch, micro_batch in ((4, 2), (8, 2), (16, 2), (16, 4), (16, 8), (4, 0), (8, 0), (16, 0)):
        command = [sys.executable, __file__, "--peak", str(batch), str(micro_batch)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"batch": batch, "micro-batch": micro_batch or "whole", "MiB": float(answer.stdout.split()[-1])})
    return rows


def peak_of_one_step(batch: int, micro_batch: int) -> float:
    """Return by how many MiB one step raises the peak of this process."""
    model = randslot.untrained(SHAPE, lora=True, visual_tokens=256).train()
    features = make_batch(model, batch)
    loss = Loss(model, temperature=0.07, batch=batch, micro_batch=micro_batch, mask_repeats=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss(features).backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", type=int, nargs=2, metavar=("BATCH", "MICRO"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak_of_one_step(*options.peak))
        return
    memory = measure_memory()
    print_table(memory)
    print()
    time_rows = measure_time(options.repeats)
    print_table(time_rows)
    keep("training", memory + time_rows)


if __name__ == "__main__":
    main()
