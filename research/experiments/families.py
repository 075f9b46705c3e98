"""Measure seconds to encode an A4 page on a CPU: SmolVLM-256M, Qwen2.5-VL-3B, and colSmol with a vector per token.

    python -m research.experiments.families --threads 2      # some minutes on two idle cores, 4 GB of memory

All have their real shapes and random weights, in float32; the content of a page does not affect the time. The 3B model
would take 15 GB: it is timed with one and with three layers in the language model and four and eight in the vision
tower, in the same run, and the differences are scaled to 36 and 32 layers. colSmol is SmolVLM with a projection to 128
dimensions on every token. Times are medians of interleaved rounds. On a busy machine, CPU seconds over all threads are
more reliable than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from record import keep, print_table
from torch import Tensor, nn

import randslot
from randslot.model.model import RandSlotModel
from randslot.model.settings import Settings

A4 = (1654, 2339)  # pixels at 200 dpi
BYTES = 2  # of a stored number
PROJECTION = 128  # dimensions of colSmol's vectors
TEXT_LAYERS, VISION_LAYERS = (1, 3), (4, 8)  # of the 3B shape, which are timed


@dataclass(frozen=True)
class Times:
    """Wall and CPU seconds of a page, over all threads; the shape of its vectors."""

    wall: float
    cpu: float
    shape: tuple[int, ...]

    def scaled(self, other: Times, times: float) -> Times:
        """Extrapolate by adding the difference from another measurement several times."""
        wall, cpu = self.wall + times * (other.wall - self.wall), self.cpu + times * (other.cpu - self.cpu)
        return Times(wall, cpu, self.shape)


def time_in_turns(ways: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, Times]:
    """Time each way several times, interleaved."""
    found: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            shape = tuple(way().shape)
            found[name].append(Times(time.perf_counter() - wall, time.process_time() - cpu, shape))
            print(name, found[name][-1], flush=True)
    return {
        name: Times(median(one.wall for one in times), median(one.cpu for one in times), times[0].shape)
        for name, times in found.items()
    }


def make_cut(folder: Path) -> RandSlotModel:
    """Build the 3B shape with the maximum number of layers timed, and without its vocabulary, which costs no time."""
    shapes = resources.files("randslot.model") / "shapes"
    shape = json.loads((shapes / "qwen2.5-vl-3b.json").read_text(encoding="utf-8"))
    text, vision = shape["config"]["text_config"], shape["config"]["vision_config"]
    del text["vocab_size"]
    text["num_hidden_layers"] = TEXT_LAYERS[1]
    vision |= {"depth": VISION_LAYERS[1], "fullatt_block_indexes": list(range(3, VISION_LAYERS[1], 4))}
    file = folder / "cut.json"
    file.write_text(json.dumps(shape), encoding="utf-8")
    return randslot.untrained(str(file), device="cpu")


def with_layers(model: RandSlotModel, text: int, vision: int, encode: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a function that encodes with the first layers only."""
    language, tower = model.backbone.model.language_model, model.backbone.model.visual
    layers, blocks = language.layers, tower.blocks

    def encode_with_fewer() -> Tensor:
        language.layers, tower.blocks = layers[:text], blocks[:vision]
        try:
            return encode()
        finally:
            language.layers, tower.blocks = layers, blocks

    return encode_with_fewer


def encode_page(model: RandSlotModel) -> Callable[[], Tensor]:
    """Return a function from the pixels of an A4 page to its vectors; preprocessing is not timed."""
    features = model.preprocess([Image.new("RGB", A4, "white")], task="document")

    @torch.no_grad()
    def encode() -> Tensor:
        vectors: Tensor = model.encoder(features)["token_embeddings"]
        return vectors

    return encode


def encode_as_colsmol(model: RandSlotModel) -> Callable[[], Tensor]:
    """Return the same with a 128-dimensional unit vector per token, like colSmol."""
    encode, projection = encode_page(model), nn.Linear(model.dimension, PROJECTION)

    @torch.no_grad()
    def project() -> Tensor:
        return nn.functional.normalize(projection(encode()), dim=-1)

    return project


def row_of(name: str, weights: int, times: Times) -> dict[str, Any]:
    """Return a row of the table."""
    _, num, dim = times.shape
    return {
        "model": name,
        "weights, million": round(weights / 1e6),
        "s a page": times.wall,
        "CPU s a page": times.cpu,
        "vectors": f"{num} x {dim}",
        "KB a page": num * dim * BYTES / 1000,
    }


def count(model: RandSlotModel) -> int:
    """Return the number of weights of a model."""
    return sum(weight.numel() for weight in model.encoder.backbone.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    small = randslot.untrained("smolvlm-256m", device="cpu")
    every_token = randslot.SlotEncoder(small.backbone, Settings(slots="tokens"))  # on the same weights
    with TemporaryDirectory() as name:
        cut = make_cut(Path(name))
    page = encode_page(cut)
    ways = {
        "small": encode_page(small),
        "colsmol": encode_as_colsmol(RandSlotModel(modules=[every_token], device="cpu")),
        "cut": with_layers(cut, TEXT_LAYERS[0], VISION_LAYERS[0], page),
        "text": with_layers(cut, TEXT_LAYERS[1], VISION_LAYERS[0], page),
        "vision": with_layers(cut, TEXT_LAYERS[0], VISION_LAYERS[1], page),
    }
    for model in (small, cut):
        model.encode_document(Image.new("RGB", (64, 64)))  # warmup
    times = time_in_turns(ways, options.repeats)
    of_text = (36 - TEXT_LAYERS[0]) / (TEXT_LAYERS[1] - TEXT_LAYERS[0])
    of_vision = (32 - VISION_LAYERS[0]) / (VISION_LAYERS[1] - VISION_LAYERS[0])
    deep, tall = times["cut"].scaled(times["text"], of_text), times["cut"].scaled(times["vision"], of_vision)
    once = times["cut"]  # counted by both
    large = Times(deep.wall + tall.wall - once.wall, deep.cpu + tall.cpu - once.cpu, once.shape)
    whole = count(randslot.untrained("qwen2.5-vl-3b", device="meta"))
    rows = [
        row_of("SmolVLM-256M, four slots", count(small), times["small"]),
        row_of("colSmol-256M's shape, every token", count(small), times["colsmol"]),
        row_of("Qwen2.5-VL-3B, four slots, scaled from fewer layers", whole, large),
    ]
    print_table(rows)
    print(f"load {os.getloadavg()[0]:.1f}, {options.threads} threads")
    keep("families", rows)


if __name__ == "__main__":
    main()
