"""Train a shared start for the strategies of a study: a backbone with a first contrastive training.

    python -m research.studies.warm_start research/studies/smollm2-start.toml

The states of a language model all point the same way, so training spends its first hundred steps on separating pages at
all. This does it once for all strategies: with one vector per side, hence no slots, on all weights but the embeddings.
The result is an ordinary backbone in the output folder of the recipe.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from randslot.errors import UsageError
from randslot.model.model import RandSlotModel
from randslot.training.recipe import Recipe, read_recipe
from randslot.training.train import TrainingRun
from research.pretrain import save_backbone


class WarmStart(TrainingRun):
    """A run with frozen embeddings."""

    def make_model(self) -> RandSlotModel:
        model = super().make_model()
        model.backbone.model.get_input_embeddings().weight.requires_grad_(False)
        return model


def warm_start(recipe: Recipe, *, resume: bool = False) -> Path:
    """Train by a recipe; return the folder with the backbone, which has the run in `run`."""
    if recipe.lora or (recipe.query_vectors, recipe.page_vectors) != (1, 1):
        raise UsageError("a shared start has no slots and no adapter. Set lora = false and one vector per side.")
    output = Path(recipe.output)
    model = WarmStart(replace(recipe, output=str(output / "run")), resume).run()
    save_backbone(model.backbone, output)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a value of the recipe"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    asked = parser.parse_args()
    print(warm_start(read_recipe(asked.recipe, asked.set), resume=asked.resume))


if __name__ == "__main__":
    main()
