"""Tiny random backbones, and pages of noise."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from sentence_transformers import MultiVectorEncoder

import randslot

PAPER_FAMILIES = ("qwen2.5-vl", "qwen3-vl")
QWEN_FAMILIES = (*PAPER_FAMILIES, "qwen3.5")
VISION_FAMILIES = (*QWEN_FAMILIES, "smolvlm")
TEXT_FAMILIES = ("llama", "qwen2", "qwen3")
FAMILIES = (*VISION_FAMILIES, *TEXT_FAMILIES)

STRATEGIES = ("random", "zero", "fixed", "learned", "feedback")


def lively(model: MultiVectorEncoder) -> MultiVectorEncoder:
    """Scale the weights up: with a fresh model's tiny ones, wrong positions or masks would hardly show.

    Four layers (Qwen3.5) less than two: there, five times would make large ones of rounding errors.
    """
    factor = 3 if model.encoder.backbone.config.get_text_config().num_hidden_layers > 2 else 5
    with torch.no_grad():
        for parameter in model.encoder.backbone.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(factor)
    return model


def make(family: str, **options: object) -> MultiVectorEncoder:
    return lively(randslot.tiny(family, seed=0, **options))


def own_inputs(model: MultiVectorEncoder, features: dict, ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Features as transformers' own forward takes them; `ids` replace those of the features."""
    ids = features["input_ids"] if ids is None else ids
    mask = torch.nn.functional.pad(
        features["attention_mask"], (0, ids.shape[1] - features["input_ids"].shape[1]), value=1
    )
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "pixel_values" in features:
        inputs["pixel_values"] = features["pixel_values"]
    if "image_grid_thw" in features:
        inputs["image_grid_thw"] = features["image_grid_thw"]
        inputs["mm_token_type_ids"] = (ids == model.encoder.backbone.config.image_token_id).int()
    return inputs


def language_model(model: MultiVectorEncoder) -> torch.nn.Module:
    return model.backbone.language_model


def count_visual(model: MultiVectorEncoder, features: dict) -> list[int]:
    """How many visual tokens each page has."""
    return (features["input_ids"] == model.encoder.backbone.config.image_token_id).sum(-1).tolist()


@contextmanager
def safe_half_precision() -> Iterator[None]:
    """Compute without oneDNN, whose half-precision kernels kill the process on some CPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)
