"""What a training step computes, counted on the meta device: it is the same on every machine.

    python benchmarks/training_count.py            # some minutes on one core

A step of one device by the paper's recipes: real widths, a quarter of the layers of tower and language model, so every
figure is a quarter of the whole. Four pages with a query each, K = 4, LoRA, layers checkpointed.

paper's loop          each prefix anew, tower and all, in both passes of a gradient cache over micro-batches of one;
                      no gradients through the frozen tower, no padding
paper's loop, spared  the same, but the tower runs once for the four prefixes
before                one pass, as this package trained before it was counter: sentence-transformers' own micro-batches
                      with their padding, and transformers' hooks, which send gradients through Qwen2.5-VL's tower
all tokens            as colpali-engine does: a vector for every token, the batch padded to its longest, no cache
gradient cache        as this package trains with gradient_cache = true
no cache              as it trains by the paper's recipes

Attention counts as if it were not causal, for all alike. No way counts the optimizer, which sees the adapter only.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any
from unittest.mock import PropertyMock, patch

import torch
from PIL import Image
from record import keep, print_table
from sentence_transformers.multi_vector_encoder.losses import CachedMultiVectorMultipleNegativesRankingLoss
from torch import Tensor

import randslot
from randslot.model.encoder import SlotEncoder
from randslot.model.families.base import Backbone
from randslot.model.model import RandSlotModel
from randslot.model.readout import read_once, read_stepwise
from randslot.training.loss import Loss
from randslot.training.plan import count_on_meta

# A shape, and what a quarter of its layers is; the pages: scans of A4 and of letter, a slide, a small picture.
QUARTERS: dict[str, dict[str, Any]] = {
    "qwen2.5-vl-3b": {"text": 9, "vision": {"depth": 8, "fullatt_block_indexes": [7]}},
    "qwen3-vl-4b": {"text": 9, "vision": {"depth": 6, "deepstack_visual_indexes": [1, 2, 4]}},
}
SIZES = [(1654, 2339), (1700, 2200), (1920, 1080), (640, 480)]
QUERY_LENGTHS = [12, 17, 24, 31]  # in tokens: the tokenizer of a shape has one for every character
NUM_VECTORS = 4
Features = dict[str, Any]


@dataclass
class Passes:
    """What went through tower and language model, forward: a recomputation inside the backward is not among it."""

    tower: int = 0
    positions: int = 0


def make_model(name: str, slots: str = "random") -> RandSlotModel:
    """Make a quarter of a backbone on the meta device, with the paper's adapter, in training."""
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
    """Let encoders make their vectors by another function."""

    def forward(encoder: SlotEncoder, features: Features) -> dict[str, Tensor]:
        vectors = read(encoder, features)
        return {"token_embeddings": vectors, "attention_mask": torch.ones(vectors.shape[:2], dtype=torch.long)}

    with patch.object(SlotEncoder, "forward", forward):
        yield


def loop_all(encoder: SlotEncoder, features: Features) -> Tensor:
    """Read each vector from a prefix that is made and run anew, tower and all."""
    slots = encoder.slots(features["side"], NUM_VECTORS - 1, features["keys"])
    readouts = []
    for num in range(NUM_VECTORS):
        readouts.append(read_once(encoder.parts, encoder.parts.read_content(features), slots[:, :num])[:, -1:])
    return torch.cat(readouts, dim=1)


def loop_spared(encoder: SlotEncoder, features: Features) -> Tensor:
    """Read each vector from a prefix that is run anew; the tower runs once."""
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
    """Run a step by sentence-transformers' own loss, whose micro-batches keep padding and have one query each."""
    loss = CachedMultiVectorMultipleNegativesRankingLoss(model, scale=1 / 0.07, mini_batch_size=1)
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


def step_of_trimmed(model: RandSlotModel, batch: list[Features]) -> None:
    """Run a step as the paper says: a micro-batch of one of either side, without the padding of others."""
    loss = Loss(model, temperature=0.07, batch=len(SIZES), micro_batch=1, mask_repeats=False)
    with patch.object(Loss, "_num_queries", lambda *_: 1):
        loss(batch).backward()


WAYS = ("paper's loop", "paper's loop, spared", "before", "all tokens", "gradient cache", "no cache")


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name in QUARTERS:
        found = []
        for way in WAYS:
            found.append(count(name, way))
            print(found[-1], file=sys.stderr, flush=True)
        last = found[-1]["1e12 multiply-adds"]
        rows += [row | {"times no cache": row["1e12 multiply-adds"] / last} for row in found]
    print_table(rows)
    keep("training-count", rows)


if __name__ == "__main__":
    main()
