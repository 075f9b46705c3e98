"""A frozen vision tower: open each page once, run the tower once and keep its output in memory.

For small sets of pages that are seen many times: a training step then costs little more than the language model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from .families.base import VisionOutput
from .model import RandSlotModel


class KnownPage(NamedTuple):
    """A page that the tower has seen: its number, and its features without pixels."""

    number: int
    features: dict[str, Any]


class FrozenVision:
    """Freezes the vision tower of a model and caches its output for each page."""

    def __init__(self, model: RandSlotModel) -> None:
        self.encoder, self.backbone = model.encoder, model.backbone
        self.pages: dict[str | bytes, KnownPage] = {}
        self.outputs: list[VisionOutput] = []
        self.backbone.freeze_vision()
        self.encoder.recall_vision = self.recall

    def close(self) -> None:
        """Drop the cached pages; the tower stays frozen."""
        self.encoder.recall_vision = None

    def read(self, page: str | bytes) -> KnownPage:
        """Return a page by its path or the bytes of an image; open it and run the tower the first time."""
        key = xxh3_128_digest(page) if isinstance(page, bytes) else page
        if key not in self.pages:
            features = self.encoder.preprocess([page], task="document")
            device = self.backbone.model.device
            tensors = {name: value.to(device) for name, value in features.items() if isinstance(value, Tensor)}
            with torch.no_grad():
                output = self.backbone.run_vision(tensors)
            assert output is not None
            del features["pixel_values"]
            self.pages[key] = KnownPage(len(self.outputs), features)
            self.outputs.append(output)
        return self.pages[key]

    def recall(self, page_numbers: Tensor) -> VisionOutput:
        """Return the output of the tower for some pages, by their numbers."""
        outputs = [self.outputs[number] for number in page_numbers.tolist()]
        return tuple(torch.cat(layer) for layer in zip(*outputs, strict=True))

    def preprocess(self, pages: list[KnownPage]) -> dict[str, Any]:
        """Return the features of known pages, like the model's own `preprocess`, with their numbers for pixels."""
        ids = [page.features["input_ids"][0].tolist() for page in pages]
        features: dict[str, Any] = dict(pages[0].features)
        for name, value in features.items():
            if isinstance(value, Tensor) and name not in ("input_ids", "attention_mask"):
                features[name] = torch.cat([page.features[name] for page in pages])
        numbers = torch.tensor([page.number for page in pages])
        return features | self.encoder.processors.pad(ids) | {"page_numbers": numbers}
