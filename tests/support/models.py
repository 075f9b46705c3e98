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

FAMILIES = ("qwen2.5-vl", "qwen3-vl")


STRATEGIES = ("random", "zero", "fixed", "learned", "feedback")


def lively(model: MultiVectorEncoder) -> MultiVectorEncoder:
    """Scale the weights up: with a fresh model's tiny ones, wrong positions or masks would hardly show."""
    with torch.no_grad():
        for parameter in model.encoder.backbone.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    return model


def make(family: str, **options: object) -> MultiVectorEncoder:
    return lively(randslot.tiny(family, seed=0, **options))


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
