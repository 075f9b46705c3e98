"""A vision tower that keeps still: its output for each page is computed once and kept in memory.

For small sets of pages that are seen many times: then a step costs little more than the language model's part.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from xxhash import xxh3_128_digest


class StillVision:
    """Stands in for a backbone's `get_image_features`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.compute = model.get_image_features
        self.merge = model.config.vision_config.spatial_merge_size**2
        self.known: dict[bytes, tuple[Tensor, ...]] = {}  # merged tokens, then what each deepstack layer adds

    def __call__(self, pixel_values: Tensor, grid: Tensor, **options: Any) -> SimpleNamespace:
        sizes = grid.prod(-1).tolist()
        images = pixel_values.split(sizes)
        keys = [xxh3_128_digest(image.cpu().numpy().data) for image in images]
        new = list({key: i for i, key in enumerate(keys) if key not in self.known}.values())
        if new:
            with torch.no_grad():
                seen = self.compute(torch.cat([images[i] for i in new]), grid[new], **options)
            counts = [sizes[i] // self.merge for i in new]
            layers = [torch.cat(list(part)) for part in (seen.pooler_output, *_deepstack(seen))]
            for i, *parts in zip(new, *(layer.split(counts) for layer in layers), strict=True):
                self.known[keys[i]] = tuple(parts)
        found = [self.known[key] for key in keys]
        merged, *deepstack = ([parts[layer] for parts in found] for layer in range(len(found[0])))
        return SimpleNamespace(pooler_output=merged, deepstack_features=deepstack)


def _deepstack(seen: Any) -> list[Any]:
    return list(getattr(seen, "deepstack_features", None) or [])


def keep_vision_still(model: PreTrainedModel) -> None:
    """Freeze a backbone's vision tower and remember its output for every page."""
    model.visual.requires_grad_(False)
    model.get_image_features = StillVision(model)
