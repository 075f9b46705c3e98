"""A vision tower that keeps still: each page is opened and looked at once, and what the tower gives is kept in memory.

For small sets of pages that are seen many times: then a step costs little more than the language model's part.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from ..model.encoder import SlotEncoder


class KnownPage(NamedTuple):
    """All that a page is to the language model; its patches are its number, over and over."""

    ids: list[int]
    patches: Tensor
    grid: Tensor
    key: Tensor
    layers: tuple[Tensor, ...]  # merged tokens, then what each deepstack layer adds


class StillVision:
    """Freezes an encoder's vision tower, knows the pages that it has read, and stands in for `get_image_features`."""

    def __init__(self, encoder: SlotEncoder) -> None:
        backbone = encoder.backbone
        backbone.visual.requires_grad_(False)
        self.encoder = encoder
        self.compute = backbone.get_image_features
        self.numbers: dict[str | bytes, int] = {}
        self.pages: list[KnownPage] = []
        backbone.get_image_features = self

    def read(self, page: str | bytes) -> KnownPage:
        """Return a page by its path, or by the bytes of an image; it is opened at the first time only."""
        place = xxh3_128_digest(page) if isinstance(page, bytes) else page
        if place not in self.numbers:
            self.pages.append(self._look_at(page))
            self.numbers[place] = len(self.pages) - 1
        return self.pages[self.numbers[place]]

    def _look_at(self, page: str | bytes) -> KnownPage:
        features = self.encoder.preprocess([page], task="document")
        patches, grid = features["pixel_values"], features["image_grid_thw"]
        with torch.no_grad():
            device = self.encoder.backbone.device
            seen = self.compute(patches.to(device), grid.to(device), return_dict=True)
        layers = [torch.cat(list(part)) for part in (seen.pooler_output, *_deepstack(seen))]
        ids, number = features["input_ids"][0].tolist(), torch.full((len(patches), 1), len(self.pages))
        return KnownPage(ids, number, grid, features["keys"], tuple(layers))

    def preprocess(self, pages: list[KnownPage]) -> dict[str, Tensor]:
        """Return the features of known pages, as `SlotEncoder.preprocess` does of others."""
        return self.encoder.pad([page.ids for page in pages]) | {
            "pixel_values": torch.cat([page.patches for page in pages]),
            "image_grid_thw": torch.cat([page.grid for page in pages]),
            "keys": torch.cat([page.key for page in pages]),
        }

    def __call__(self, pixel_values: Tensor, grid: Tensor, **options: Any) -> Any:
        if pixel_values.shape[1] > 1:  # other pages: those of a validation
            return self.compute(pixel_values, grid, **options)
        numbers = [int(patches[0, 0]) for patches in pixel_values.split(grid.prod(-1).tolist())]
        merged, *deepstack = zip(*(self.pages[number].layers for number in numbers), strict=True)
        return SimpleNamespace(pooler_output=merged, deepstack_features=deepstack)


def _deepstack(seen: Any) -> list[Any]:
    return list(getattr(seen, "deepstack_features", None) or [])
