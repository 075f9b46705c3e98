"""A frozen vision tower: the same vectors and gradients as a frozen one, each page seen once, unchanged by training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import randslot
from randslot.model.encoder import FrozenVision
from support.models import make
from support.pairs import small

TOWERS = ("visual.", "vision_model.", "connector.")


def test_vectors_and_gradients_are_those_of_a_frozen_tower(vision_family, pages, tmp_path):
    plain, model = make(vision_family, slots="zero"), make(vision_family, slots="zero")
    plain.backbone.freeze_vision()
    frozen = FrozenVision(model.encoder)
    places: list[str | bytes] = []
    for number, page in enumerate(pages):
        page.save(tmp_path / f"{number}.png")
        places.append(str(tmp_path / f"{number}.png"))
    places[2] = Path(places[2]).read_bytes()
    for batch in [[0, 1], [1, 2, 1], [2, 0]]:
        known = frozen.preprocess([frozen.read(places[number]) for number in batch])
        others = plain.encoder.preprocess([places[number] for number in batch], task="document")
        assert known.keys() - others.keys() == {"page_numbers"}
        assert others.keys() - known.keys() == {"pixel_values"}
        assert known["side"] == others["side"] == "page"
        for name in others.keys() - {"pixel_values", "side"}:
            assert torch.equal(known[name], others[name]), name
        vectors = [one.encoder(features)["token_embeddings"] for one, features in ((plain, others), (model, known))]
        torch.testing.assert_close(vectors[1], vectors[0], atol=1e-6, rtol=1e-5)
        for found in vectors:
            found.sum().backward()
    assert len(frozen.pages) == len(frozen.outputs) == 3
    by_itself = [one.encoder(one.encoder.preprocess(pages[:1]))["token_embeddings"] for one in (plain, model)]
    assert torch.equal(*by_itself)
    for (name, a), b in zip(
        plain.encoder.backbone.named_parameters(), model.encoder.backbone.parameters(), strict=True
    ):
        assert (a.grad is None) == (b.grad is None) == name.startswith(TOWERS), name
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_run_leaves_the_tower_as_it_was(data, tmp_path):
    before = randslot.untrained("qwen3-vl-tiny", seed=42).encoder.backbone.state_dict()
    model = randslot.train(small(data, tmp_path / "run", still_vision=True, micro_batch=2))
    after = randslot.load(tmp_path / "run").encoder.backbone.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any(name.startswith("visual.") for name in changed)
    assert model.encoder.recall_vision is None  # the pages are forgotten when the run is over
