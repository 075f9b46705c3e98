"""The model that ships: it finds held-out pages as well as recorded, loads anywhere, and is small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import randslot
from research.experiments.embedded import HOME, SUBSET, HeldOut

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def model():
    return randslot.load("embedded", device="cpu")


def rows() -> dict[str, dict[str, float]]:
    record = json.loads((ROOT / "results" / "embedded.json").read_text(encoding="utf-8"))
    return {row["model"]: row for row in record["rows"]}


@pytest.mark.slow
def test_it_still_scores_what_was_recorded(model, tmp_path):
    found = HeldOut(SUBSET, tmp_path).score(model)
    for name, value in found.items():
        assert value == pytest.approx(rows()["embedded, CI's subset"][name], abs=0.02), name


def test_the_record_says_that_it_has_learned():
    recorded = rows()
    assert recorded["embedded, zero slots"]["pages"] >= 300
    assert recorded["embedded, zero slots"]["nDCG@5"] >= 0.70
    assert recorded["before retrieval"]["nDCG@5"] < 2 * recorded["chance"]["nDCG@5"]


def test_it_keeps_four_vectors_and_is_small(model):
    (page,) = model.encode_document([Image.new("RGB", (288, 432), "white")])
    assert page.shape == (4, model.get_embedding_dimension())
    assert model.family.name == "qwen3-vl"
    assert sum(file.stat().st_size for file in HOME.glob("*.safetensors")) <= 12e6
    assert next(model.parameters()).dtype == torch.float32


def test_its_card_says_what_it_was_trained_on_and_cannot_do():
    card = (HOME / "README.md").read_text(encoding="utf-8")
    for words in ("sample", "held-out", "cannot", "nDCG@5", f"{rows()['embedded, zero slots']['nDCG@5']:.3f}"):
        assert words in card


def test_it_is_a_start_for_training_of_ones_own(model, tmp_path):
    saved = randslot.load("embedded", lora=True)
    saved.save_pretrained(str(tmp_path / "adapter"))
    again = randslot.load(tmp_path / "adapter")
    assert again[0].source.name == "embedded"
    assert not (tmp_path / "adapter" / "backbone").exists()
    first, second = (one.encode_query(["sales of wool"])[0] for one in (model, again))
    np.testing.assert_allclose(first, second, atol=1e-5)
