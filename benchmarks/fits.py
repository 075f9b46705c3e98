"""What one card, or one laptop, can train: the memory of each recipe by part, computed on the meta device.

    python benchmarks/fits.py            # some minutes on one core, nothing is downloaded

Every recipe with a batch of 128 on one device: one page at once with a gradient cache, layers checkpointed, bfloat16;
its activations without checkpointing; how many pages at once a card of 24 GB holds; all in float32 with AdamW, as on
a laptop without a GPU. Gigabytes. `randslot train RECIPE --dry-run` computes the same for one recipe.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from record import keep, print_table

from randslot.training.plan import PageCost, make_model_on_meta, measure_page, memory_by_part
from randslot.training.recipe import Recipe, read_recipe

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


def most_at_once(recipe: Recipe, model: Any, cost: PageCost) -> int:
    """Return how many pages at once fit into the card, as a power of two; 0 if not even one."""
    found = 0
    for at_once in (1, 2, 4, 8, 16, 32):
        parts = memory_by_part(replace(recipe, micro_batch=at_once), model, cost, 1, recipe.optimizer)
        if sum(parts.values()) <= CARD:
            found = at_once
    return found


def describe(name: str) -> dict[str, Any]:
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
        "batch, and what is seen of it": (parts["pages of the batch"] + parts["what the tower saw"]) / GB,
        "activations": parts["activations"] / GB,
        "without checkpointing": memory_by_part(plain, model, cost, 1, recipe.optimizer)["activations"] / GB,
        "all": sum(parts.values()) / GB,
        "pages at once in 24 GB": most_at_once(recipe, model, cost),
    }
    del model
    laptop = make_model_on_meta(recipe, torch.float32)
    parts = memory_by_part(recipe, laptop, measure_page(laptop), 1, "adamw")
    row["all in float32 on a CPU"] = (sum(parts.values()) - parts[CUDA]) / GB
    return row


def main() -> None:
    torch.set_num_threads(1)
    rows = [describe(name) for name in RECIPES]
    print_table(rows)
    keep("fits", rows)


if __name__ == "__main__":
    main()
