"""Measure the cost of K = 4 vectors against one: in one pass, step by step on a KV cache, and rerunning every prefix.

    python -m research.experiments.encoding            # about eight minutes on one core

The mid-size backbone has random weights (512 wide, 8 layers; see mid.json); a query has 32 tokens, a page 48 x 32 =
1,536 merged visual tokens. Every way uses the same slots and gives the same vectors. The vision tower runs once, except
in the rows "prefix again, vision too".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from record import keep, print_table, time_ways
from torch import Tensor

import randslot
from randslot.model.readout import read_once, read_stepwise

Way = Callable[[], Tensor]


def ways_to_read(encoder: randslot.SlotEncoder, features: dict[str, Any], num_vectors: int) -> dict[str, Way]:
    """Return the ways to make K vectors as functions, for the features of one query or page."""
    backbone = encoder.parts
    slots = torch.nn.functional.normalize(torch.randn(1, num_vectors - 1, encoder.get_embedding_dimension()), dim=-1)

    def stepwise(cached: bool) -> Tensor:
        return read_stepwise(
            backbone, backbone.read_content(features), num_vectors - 1, lambda t, _: slots[:, t], cached=cached
        )

    def vision_again() -> Tensor:
        return torch.cat(
            [
                read_once(backbone, backbone.read_content(features), slots[:, :num])[:, -1:]
                for num in range(num_vectors)
            ],
            1,
        )

    ways: dict[str, Way] = {
        "K=1": lambda: read_once(backbone, backbone.read_content(features), slots[:, :0]),
        f"K={num_vectors}, one pass": lambda: read_once(backbone, backbone.read_content(features), slots),
        f"K={num_vectors}, step by step with cache": partial(stepwise, True),
        f"K={num_vectors}, prefix again": partial(stepwise, False),
    }
    if "pixel_values" in features:
        ways[f"K={num_vectors}, prefix again, vision too"] = vision_again
    return ways


def training_step(encoder: randslot.SlotEncoder, way: Way) -> None:
    """Run one way forward and backward into the adapter."""
    encoder.zero_grad()
    way().sum().backward()


def patch_embeddings(encoder: randslot.SlotEncoder, features: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return the patch embedding as the backbone's own convolution and as our matrix product."""
    linear = encoder.backbone.visual.patch_embed
    conv, patches = linear.proj, features["pixel_values"]
    shape = (-1, conv.in_channels, *conv.kernel_size)
    return {"Linear": lambda: linear(patches), "Conv3d": lambda: conv(patches.view(shape))}


def measure(what: str, ways: dict[str, Callable[[], object]], base: str, repeats: int) -> list[dict[str, Any]]:
    """Time the ways; return a row for each, with its ratio to the baseline."""
    seconds = time_ways(ways, repeats)
    return [
        {"what": what, "way": name, "ms": 1000 * value, f"times {base}": value / seconds[base]}
        for name, value in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoder = randslot.untrained(str(Path(__file__).parents[2] / "benchmarks" / "mid.json"), lora=True).encoder
    inputs = {
        "query": encoder.preprocess(["x" * 32], task="query"),
        "page": encoder.preprocess([Image.new("RGB", (32 * 32, 48 * 32), "white")], task="document"),
    }
    rows: list[dict[str, Any]] = []
    for side, features in inputs.items():
        ways = ways_to_read(encoder, features, options.vectors)
        with torch.no_grad():
            first, *others = [way() for name, way in ways.items() if name != "K=1"]
            worst = max(float((first - other).abs().max()) for other in others)
            print(f"{side}: {features['input_ids'].shape[1]} tokens, largest difference between ways {worst:.1e}")
            rows += measure(f"{side}, forward", dict(ways), "K=1", options.repeats)
        steps = {name: partial(training_step, encoder, way) for name, way in ways.items()}
        rows += measure(f"{side}, training step", dict(steps), "K=1", options.repeats)
    print()
    print_table(rows)
    with torch.no_grad():
        patches = measure("page, patch embedding", patch_embeddings(encoder, inputs["page"]), "Linear", options.repeats)
    print()
    print_table(patches)
    keep("encoding", rows + patches)


if __name__ == "__main__":
    main()
