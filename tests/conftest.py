"""Tiny random backbones of both families, pages and queries of mixed sizes. CPU, no network, no files."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["HF_HUB_OFFLINE"] = "1"
# datasets serves a changed folder of the same name from its cache: each run of the tests has one of its own.
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="randslot-datasets-")

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers import MultiVectorEncoder

import randslot

FAMILIES = ("qwen2.5-vl", "qwen3-vl")
STRATEGIES = ("random", "zero", "fixed", "learned", "feedback")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["HF_DATASETS_CACHE"], ignore_errors=True)


torch.set_num_threads(1)  # on a busy two-core machine two threads can be many times slower than one


@pytest.fixture(autouse=True)
def loudness() -> Iterator[None]:
    """A quiet command turns the notes of its process down: back up for the next test."""
    yield
    logging.getLogger("randslot").setLevel(logging.NOTSET)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


def lively(model: MultiVectorEncoder) -> MultiVectorEncoder:
    """Scale the weights up: with a fresh model's tiny ones, wrong positions or masks would hardly show."""
    with torch.no_grad():
        for parameter in model[0].backbone.parameters():
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


@pytest.fixture
def pages() -> list[Image.Image]:
    return [noise(100, 140, 1), noise(260, 90, 2), noise(64, 64, 3)]


@pytest.fixture
def queries() -> list[str]:
    return ["tax", "revenue by region in 2023", "Größe der Flotte?"]
