"""Tiny random backbones of all families, pages and queries of mixed sizes. CPU, no network, no files."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
os.environ["RANDSLOT_OCR"] = "none"  # few tests are about OCR, and it takes seconds: they switch it on
os.environ["RANDSLOT_OFFICE"] = "none"
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
# datasets serves a changed folder of the same name from its cache: each run of the tests has one of its own.
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="randslot-datasets-")

import pytest
import torch
from PIL import Image

from randslot.pages.ocr import find_engine
from support.models import (
    FAMILIES,
    PAPER_FAMILIES,
    QWEN_FAMILIES,
    STRATEGIES,
    TEXT_FAMILIES,
    VISION_FAMILIES,
    noise,
)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["HF_DATASETS_CACHE"], ignore_errors=True)


torch.set_num_threads(1)  # on a busy two-core machine two threads can be many times slower than one


@pytest.fixture(autouse=True)
def loudness() -> Iterator[None]:
    """A quiet command turns the notes of its process down: back up for the next test."""
    yield
    logging.getLogger("randslot").setLevel(logging.NOTSET)


@pytest.fixture
def ocr_engine(monkeypatch: pytest.MonkeyPatch) -> str:
    """The OCR engine of this machine."""
    monkeypatch.delenv("RANDSLOT_OCR")
    found = find_engine()
    if found is None:
        pytest.skip("no OCR engine is installed: the extra randslot[ocr]")
    return found


def by_default_two(families: tuple[str, ...]) -> list[Any]:
    """The two families of the paper by default, and the others at night: each has tests of its own by default."""
    return [name if name in PAPER_FAMILIES else pytest.param(name, marks=pytest.mark.nightly) for name in families]


@pytest.fixture(params=by_default_two(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=by_default_two(VISION_FAMILIES))
def vision_family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=by_default_two(QWEN_FAMILIES))
def qwen_family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pages(request: pytest.FixtureRequest) -> list[Image.Image] | list[str]:
    """Pages as the family of the test reads them."""
    if "family" in request.fixturenames and request.getfixturevalue("family") in TEXT_FAMILIES:
        return ["Deferred tax is 12 in 2023.", "The fleet has seven ships, and one of them is old.\nIt sails.", "x"]
    return [noise(100, 140, 1), noise(260, 90, 2), noise(64, 64, 3)]


@pytest.fixture
def queries() -> list[str]:
    return ["tax", "revenue by region in 2023", "Größe der Flotte?"]
