"""A vision tower that keeps still: each page is opened and looked at once, and what the tower gives is kept in memory.

For small sets of pages that are seen many times: then a step costs little more than the language model's part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from .families.base import Seen, join_seen
from .model import RandSlotModel


class KnownPage(NamedTuple):
    """A page that was looked at: its number, and its features without pixels."""

    number: int
    features: dict[str, Any]


class StillVision:
    """Freezes the vision tower of a model, and knows the pages that it has looked at."""

    def __init__(self, model: RandSlotModel) -> None:
        self.encoder = model.encoder
        self.family, self.backbone = model.family, model.backbone
        self.numbers: dict[str | bytes, int] = {}
        self.pages: list[KnownPage] = []
        self.seen: list[Seen] = []
        self.family.freeze_vision(self.backbone.model)
        self.encoder.recall = self.recall

    def close(self) -> None:
        """Let the model forget the pages; its tower stays frozen."""
        self.encoder.recall = None

    def read(self, page: str | bytes) -> KnownPage:
        """Return a page by its path, or by the bytes of an image; it is opened at the first time only."""
        place = xxh3_128_digest(page) if isinstance(page, bytes) else page
        if place not in self.numbers:
            self._look_at(page)
            self.numbers[place] = len(self.pages) - 1
        return self.pages[self.numbers[place]]

    def _look_at(self, page: str | bytes) -> None:
        features = self.encoder.preprocess([page], task="document")
        model = self.backbone.model
        tensors = {name: value.to(model.device) for name, value in features.items() if isinstance(value, Tensor)}
        with torch.no_grad():
            seen = self.family.see(model, tensors)
        assert seen is not None
        self.pages.append(KnownPage(len(self.pages), self.family.without_pixels(features)))
        self.seen.append(seen)

    def recall(self, page_numbers: Tensor) -> Seen:
        """Return what was seen of some pages, by their numbers."""
        return join_seen([self.seen[number] for number in page_numbers.tolist()])

    def preprocess(self, pages: list[KnownPage]) -> dict[str, Any]:
        """Return the features of known pages, as the model's own `preprocess` does of others."""
        ids = [page.features["input_ids"][0].tolist() for page in pages]
        features: dict[str, Any] = dict(pages[0].features)
        for name, value in features.items():
            if isinstance(value, Tensor) and name not in ("input_ids", "attention_mask"):
                features[name] = torch.cat([page.features[name] for page in pages])
        numbers = torch.tensor([page.number for page in pages])
        return features | self.encoder.processors.pad(ids) | {"page_numbers": numbers}
