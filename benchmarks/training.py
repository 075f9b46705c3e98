"""Measure the cost of a training step: time, memory, multiply-adds, and what fits on one GPU.

    python benchmarks/training.py steps     # time against the paper's loop, memory against the batch; five minutes
    python benchmarks/training.py count     # multiply-adds by way, on the meta device; some minutes
    python benchmarks/training.py fits      # memory of each recipe by part, on the meta device; some minutes

All run on one core and download nothing.

steps: a forward and backward pass of the loss over two pairs, K = 4, into the adapter of a mid-size backbone with
random weights (mid.json), queries of 32 tokens, pages of 16 x 16 = 256 merged visual tokens. The paper's loop appends
one slot after another and reruns the whole prefix for each: with the vision tower run once, or every time. All ways
give the same loss. Memory is the growth of the peak over that of the loaded model.

count: a step on one device by the paper's recipes, the same on every machine. Real widths, a quarter of the layers of
tower and language model, so every figure is a quarter of the whole. Four pages with a query each, K = 4, LoRA, layers
checkpointed. Attention counts as non-causal. The optimizer, which updates only the adapter, is not counted.

paper's loop          rerun each prefix, including the tower, in both passes of a gradient cache with micro-batches of
                      one; no gradients through the frozen tower, no padding
paper's loop, spared  the same, but the tower runs once for the four prefixes
before                one pass with sentence-transformers' own micro-batches and their padding, and transformers' hooks,
                      which send gradients through Qwen2.5-VL's tower
all tokens            like colpali-engine: a vector for every token, the batch padded to its longest, no cache
gradient cache        this package with gradient_cache = true
no cache              this package with the paper's recipes

fits: every recipe with a batch of 128 on one device. One page at once with a gradient cache, layers checkpointed,
bfloat16; its activations without checkpointing; the pages at once that fit into 24 GB; all in float32 with AdamW, as
on a laptop without a GPU. Gigabytes. `randslot train RECIPE --dry-run` computes the same for one recipe.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import torch
from PIL import Image
from record import keep, print_table, time_ways
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import CachedMultiVectorMultipleNegativesRankingLoss
from sentence_transformers.util import maxsim
from torch import Tensor

import randslot
from randslot.model.backbone import Backbone
from randslot.model.encoder import SlotEncoder
from randslot.model.model import RandSlotModel
from randslot.model.readout import read_once, read_stepwise
from randslot.training.loss import Loss, cut_batch
from randslot.training.plan import PageCost, count_on_meta, make_model_on_meta, measure_page, memory_by_part
from randslot.training.recipe import Recipe, read_recipe

Features = dict[str, Any]


# -- steps

SHAPE = str(Path(__file__).with_name("mid.json"))
STRATEGIES = ("random", "zero", "fixed", "learned")


def make_noise(model: MultiVectorEncoder, num_pairs: int) -> list[Features]:
    """Make features of different queries and pages."""
    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 256, (512, 512, 3), dtype=np.uint8)) for _ in range(num_pairs)]
    queries = [f"{number:032}" for number in range(num_pairs)]
    return [model.preprocess(queries, task="query"), model.preprocess(images, task="document")]


def ways_to_step(encoder: randslot.SlotEncoder, batch: list[Features]) -> dict[str, Callable[[], Tensor]]:
    """Return the ways to compute the loss: our forward, and two versions of the paper's loop, with the same slots."""
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
    """Time the ways for each non-sequential strategy."""
    rows = []
    for strategy in STRATEGIES:
        model = randslot.untrained(SHAPE, slots=strategy, lora=True, visual_tokens=256).eval()  # no dropout
        ways = ways_to_step(model.encoder, make_noise(model, 2))
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
    """Run one step in a separate process for each of several batches and micro-batches."""
    rows = []
    for batch, micro_batch in ((4, 2), (8, 2), (16, 2), (16, 4), (16, 8), (4, 0), (8, 0), (16, 0)):
        command = [sys.executable, __file__, "steps", "--peak", str(batch), str(micro_batch)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"batch": batch, "micro-batch": micro_batch or "whole", "MiB": float(answer.stdout.split()[-1])})
    return rows


def peak_of_one_step(batch: int, micro_batch: int) -> float:
    """Return the growth in MiB of this process's peak memory over one step."""
    model = randslot.untrained(SHAPE, lora=True, visual_tokens=256).train()
    features = make_noise(model, batch)
    loss = Loss(model, temperature=0.07, batch=batch, micro_batch=micro_batch, mask_repeats=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss(features).backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


# -- count

# A shape, and a quarter of its layers; the pages: scans of A4 and letter, a slide, a small picture.
QUARTERS: dict[str, dict[str, Any]] = {
    "qwen2.5-vl-3b": {"text": 9, "vision": {"depth": 8, "fullatt_block_indexes": [7]}},
    "qwen3-vl-4b": {"text": 9, "vision": {"depth": 6, "deepstack_visual_indexes": [1, 2, 4]}},
}
SIZES = [(1654, 2339), (1700, 2200), (1920, 1080), (640, 480)]
QUERY_LENGTHS = [12, 17, 24, 31]  # in tokens: the tokenizer of a shape has one for every character
NUM_VECTORS = 4


@dataclass
class Passes:
    """The forward passes through tower and language model, without recomputation in the backward pass."""

    tower: int = 0
    positions: int = 0


def make_model(name: str, slots: str = "random") -> RandSlotModel:
    """Build a quarter of a backbone on the meta device, with the paper's adapter, in training mode."""
    file = resources.files("randslot.model") / "shapes" / f"{name}.json"
    shape = json.loads(file.read_text(encoding="utf-8"))
    quarter = QUARTERS[name]
    shape["config"]["text_config"]["num_hidden_layers"] = quarter["text"]
    shape["config"]["vision_config"] |= quarter["vision"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as place:
        json.dump(shape, place)
        place.flush()
        model: RandSlotModel = randslot.untrained(place.name, slots=slots, device="meta", dtype="bfloat16", lora=True)
    model.train()
    return model


def make_batch(model: RandSlotModel) -> list[Features]:
    queries = ["x" * length for length in QUERY_LENGTHS]
    pages = [Image.new("RGB", size, "white") for size in SIZES]
    return [model.preprocess(queries, task="query"), model.preprocess(pages, task="document")]


@contextmanager
def counting_passes(model: RandSlotModel) -> Iterator[Passes]:
    passes = Passes()

    def see(module: Any, args: Any) -> None:
        passes.tower += 1

    def run(module: Any, args: Any, options: Any) -> None:
        rows, columns = options["inputs_embeds"].shape[:2]
        passes.positions += rows * columns

    backbone = model.backbone
    tower = backbone.vision_parts[0]
    hooks = [
        tower.register_forward_pre_hook(see),
        backbone.language_model.register_forward_pre_hook(run, with_kwargs=True),
    ]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def reading(read: Callable[[SlotEncoder, Features], Tensor]) -> Iterator[None]:
    """Make encoders use another forward function inside the block."""

    def forward(encoder: SlotEncoder, features: Features) -> dict[str, Tensor]:
        vectors = read(encoder, features)
        return {"token_embeddings": vectors, "attention_mask": torch.ones(vectors.shape[:2], dtype=torch.long)}

    with patch.object(SlotEncoder, "forward", forward):
        yield


def loop_all(encoder: SlotEncoder, features: Features) -> Tensor:
    """Read each vector from a rerun of its prefix, including the tower."""
    slots = encoder.slots(features["side"], NUM_VECTORS - 1, features["keys"])
    readouts = []
    for num in range(NUM_VECTORS):
        readouts.append(read_once(encoder.parts, encoder.parts.read_content(features), slots[:, :num])[:, -1:])
    return torch.cat(readouts, dim=1)


def loop_spared(encoder: SlotEncoder, features: Features) -> Tensor:
    """Read each vector from a rerun of its prefix; run the tower once."""
    slots = encoder.slots(features["side"], NUM_VECTORS - 1, features["keys"])
    content = encoder.parts.read_content(features)
    return read_stepwise(encoder.parts, content, NUM_VECTORS - 1, lambda t, _: slots[:, t], cached=False)


def step(model: RandSlotModel, batch: list[Features], *, micro_batch: int = 1, gradient_cache: bool = True) -> None:
    loss = Loss(
        model,
        temperature=0.07,
        batch=len(SIZES),
        micro_batch=micro_batch,
        mask_repeats=False,
        gradient_cache=gradient_cache,
    )
    loss(batch).backward()


def step_of_others(model: RandSlotModel, batch: list[Features]) -> None:
    """Run a step with sentence-transformers' own loss, whose micro-batches keep padding and have one query each."""
    loss = CachedMultiVectorMultipleNegativesRankingLoss(model, scale=1 / 0.07, mini_batch_size=1)
    loss(batch).backward()


def step_of_trimmed(model: RandSlotModel, batch: list[Features]) -> None:
    """Run a step like the paper: micro-batches of one on both sides, without padding."""
    loss = Loss(model, temperature=0.07, batch=len(SIZES), micro_batch=1, mask_repeats=False)
    with patch("randslot.training.loss.cut_batch", lambda features, _: cut_batch(features, 1)):
        loss(batch).backward()


def count(name: str, way: str) -> dict[str, Any]:
    """Count one way to a step."""
    model = make_model(name, "tokens" if way == "all tokens" else "random")
    batch = make_batch(model)
    if way == "before":
        model.backbone.model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.backbone.checkpoint_layers()
    with counting_passes(model) as passes, count_on_meta(model) as counter:
        if way == "paper's loop":
            with reading(loop_all):
                step_of_trimmed(model, batch)
        elif way == "paper's loop, spared":
            with reading(loop_spared):
                step_of_trimmed(model, batch)
        elif way == "before":
            with patch.object(Backbone, "vision_is_frozen", PropertyMock(return_value=False)):
                step_of_others(model, batch)
        elif way == "all tokens":
            step(model, batch, micro_batch=0)
        else:
            step(model, batch, gradient_cache=way == "gradient cache")
    content = sum(int(side["attention_mask"].sum()) for side in batch)
    slots = 0 if way == "all tokens" else 2 * len(SIZES) * (NUM_VECTORS - 1)
    sent = sum(value.nbytes for value in batch[1].values() if isinstance(value, Tensor))
    halves = way in ("gradient cache", "no cache")
    pixels = batch[1]["pixel_values"].nbytes
    return {
        "backbone": name,
        "way": way,
        "tower passes a page": passes.tower / len(SIZES),
        "positions": passes.positions,
        "of content and slots": passes.positions / (content + slots),
        "MB from workers": (sent if halves else sent + pixels) / 1e6,
        "1e12 multiply-adds": counter.multiply_adds / 1e12,
    }


WAYS = ("paper's loop", "paper's loop, spared", "before", "all tokens", "gradient cache", "no cache")


def count_all() -> list[dict[str, Any]]:
    """Count every way for each backbone."""
    rows = []
    for name in QUARTERS:
        found = []
        for way in WAYS:
            found.append(count(name, way))
            print(found[-1], file=sys.stderr, flush=True)
        last = found[-1]["1e12 multiply-adds"]
        rows += [row | {"times no cache": row["1e12 multiply-adds"] / last} for row in found]
    return rows


# -- fits

RECIPES = (
    "smolvlm-256m",
    "smolvlm-500m",
    "qwen3.5-0.8b",
    "qwen3.5-2b",
    "qwen3-vl-2b",
    "qwen2.5-vl-3b",
    "qwen3-vl-4b",
)
GB = 1e9
CARD = 24 * GB
CUDA = "CUDA (assumed)"


def max_pages_at_once(recipe: Recipe, model: Any, cost: PageCost) -> int:
    """Return the maximum number of pages at once that fit on the GPU, as a power of two; 0 if none."""
    found = 0
    for at_once in (1, 2, 4, 8, 16, 32):
        parts = memory_by_part(replace(recipe, micro_batch=at_once), model, cost, 1, recipe.optimizer)
        if sum(parts.values()) <= CARD:
            found = at_once
    return found


def describe_recipe(name: str) -> dict[str, Any]:
    """Return the row of one recipe."""
    recipe = replace(read_recipe(name), gradient_cache=True)
    model = make_model_on_meta(recipe, torch.bfloat16)
    cost = measure_page(model)
    parts = memory_by_part(recipe, model, cost, 1, recipe.optimizer)
    plain = replace(recipe, gradient_checkpointing=False)
    row: dict[str, Any] = {
        "recipe": name,
        "positions": cost.positions,
        "weights": parts["weights"] / GB,
        "adapter's gradients, optimizer": parts["gradients and optimizer"] / GB,
        "batch, and what is seen of it": (parts["pages of the batch"] + parts["vision tower outputs"]) / GB,
        "activations": parts["activations"] / GB,
        "without checkpointing": memory_by_part(plain, model, cost, 1, recipe.optimizer)["activations"] / GB,
        "all": sum(parts.values()) / GB,
        "pages at once in 24 GB": max_pages_at_once(recipe, model, cost),
    }
    del model
    laptop = make_model_on_meta(recipe, torch.float32)
    parts = memory_by_part(recipe, laptop, measure_page(laptop), 1, "adamw")
    row["all in float32 on a CPU"] = (sum(parts.values()) - parts[CUDA]) / GB
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["steps", "count", "fits"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", type=int, nargs=2, metavar=("BATCH", "MICRO"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak_of_one_step(*options.peak))
        return
    if options.part == "steps":
        name, rows = "training", measure_memory() + measure_time(options.repeats)
    elif options.part == "count":
        name, rows = "training-count", count_all()
    else:
        name, rows = "fits", [describe_recipe(recipe) for recipe in RECIPES]
    print_table(rows)
    keep(name, rows)


if __name__ == "__main__":
    main()
