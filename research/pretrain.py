"""Pretrain a backbone to read: next-token training on the text of pages.

    python -m research.pretrain research/embedded-reading.toml --resume

This replaces the pretraining of a real backbone. The text follows the page's prompt in one sequence; the language head
is tied to the token embeddings, as in small real backbones.

Shapes: B pages, T text tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from randslot.errors import UsageError
from randslot.model.backbone import Backbone
from randslot.model.checkpoint import share_weights
from randslot.model.model import RandSlotModel
from randslot.training.data import Pairs
from randslot.training.recipe import read_recipe
from randslot.training.train import RUN, TrainingRun
from research.command import run

PASS_OVER = -100  # the label of padding


class ReadingLoss(nn.Module):
    """Cross-entropy of each token of a page's text, given the page and the tokens before it."""

    def __init__(self, model: RandSlotModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        texts, pages = sentence_features
        logits_BTV, labels_BT = write_down(self.model, texts, pages)
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=PASS_OVER)


def write_down(model: RandSlotModel, texts: dict[str, Any], pages: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the logits (B, T, V) and labels (B, T) of texts, each with an end token, after their pages."""
    backbone = model.backbone
    ids_BT, labels_BT = _end_texts(texts, backbone.processors.tokenizer.eos_token_id)
    table = backbone.model.get_input_embeddings()
    content = backbone.read_content(pages).append(table(ids_BT))
    hidden, _ = backbone.run(content)
    num = ids_BT.shape[1]
    return hidden[:, -num - 1 : -1] @ table.weight.T, labels_BT


def _end_texts(texts: dict[str, Tensor], end: int) -> tuple[Tensor, Tensor]:
    """Turn left padding into right padding and append an end token; padding has no label."""
    ids, mask = texts["input_ids"], texts["attention_mask"]
    ids, mask = F.pad(ids, (0, 1), value=end), F.pad(mask, (0, 1), value=1)
    order = mask.argsort(dim=1, descending=True, stable=True)
    ids, mask = ids.gather(1, order), mask.gather(1, order)
    return ids, ids.masked_fill(mask == 0, PASS_OVER)


class ReadingEvaluator(BaseEvaluator):
    """The next-token accuracy on held-out pages."""

    def __init__(self, texts: list[str], pages: list[Any], batch: int = 8) -> None:
        super().__init__()
        self.texts, self.pages, self.batch = texts, pages, batch

    @torch.no_grad()
    def __call__(self, model: RandSlotModel, *args: Any, **kwargs: Any) -> dict[str, float]:
        right = total = 0
        for start in range(0, len(self.texts), self.batch):
            part = slice(start, start + self.batch)
            texts = batch_to_device(model.preprocess(self.texts[part], task="query"), model.device)
            pages = batch_to_device(model.preprocess(self.pages[part], task="document"), model.device)
            logits, labels = write_down(model, texts, pages)
            right += int((logits.argmax(-1) == labels).sum())
            total += int((labels != PASS_OVER).sum())
        return {"read": right / total}


class Pretraining(TrainingRun):
    """A run that pretrains a small backbone to read: its query column has the text of each page."""

    def make_model(self) -> RandSlotModel:
        model = super().make_model()
        if self.world > 1 or self.recipe.lora or model.reads != "image":
            raise UsageError("reading trains all weights of a model that looks at images, in one process")
        return model

    def make_loss(self, model: RandSlotModel) -> nn.Module:
        return ReadingLoss(model)

    def evaluate_on(self, pairs: Pairs) -> BaseEvaluator:
        rows = [(row["query"], pairs.locate(row["page"])) for row in pairs.dataset]
        return ReadingEvaluator([text for text, _ in rows], [page for _, page in rows])

    def save(self, model: RandSlotModel) -> None:
        save_backbone(model.backbone, self.folder)


def save_backbone(backbone: Backbone, path: Path) -> None:
    """Save a backbone without an adapter as an ordinary model folder, to train any strategy on."""
    backbone.model.save_pretrained(path)
    backbone.processors.save(path)
    share_weights(path, "config.json")


def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe file, such as research/embedded-reading.toml.")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="key=value: change one value; may repeat.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder for the backbone and its run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in the output.")] = False,
) -> None:
    """Pretrain a small backbone to read the text of pages."""
    task = Pretraining(read_recipe(recipe, [*(changes or []), *([f"output={output}"] if output else [])]), resume)
    if resume and (task.folder / RUN).is_file():
        print(f"{task.folder} is already finished")
    else:
        task.run()


if __name__ == "__main__":
    run(pretrain)
