"""A still vision tower: the same vectors and gradients as a frozen one, each page seen once, unchanged by training."""

from __future__ import annotations

import pytest
import torch

import randslot
from conftest import FAMILIES, make
from randslot.errors import UsageError
from randslot.training.recipe import make_recipe
from randslot.training.vision import keep_vision_still
from training.conftest import small


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_gradients_are_those_of_a_frozen_tower(family, pages):
    plain, still = make(family, slots="zero"), make(family, slots="zero")
    plain[0].backbone.visual.requires_grad_(False)
    keep_vision_still(still[0].backbone)
    batches = [[pages[0], pages[1]], [pages[1], pages[2], pages[1]], [pages[2], pages[0]]]
    for batch in batches:
        vectors = [model[0](model[0].preprocess(batch))["token_embeddings"] for model in (plain, still)]
        torch.testing.assert_close(vectors[1], vectors[0], atol=1e-6, rtol=1e-5)
        for found in vectors:
            found.sum().backward()
    assert len(still[0].backbone.get_image_features.known) == 3
    for (name, a), b in zip(plain[0].backbone.named_parameters(), still[0].backbone.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None) == name.startswith("visual."), name
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, atol=1e-5, rtol=1e-4)


def test_a_run_leaves_the_tower_as_it_was(data, tmp_path):
    before = randslot.untrained("qwen3-vl-tiny", seed=42)[0].backbone.state_dict()
    model = randslot.train(small(data, tmp_path / "run", still_vision=True))
    after = randslot.load(tmp_path / "run")[0].backbone.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any(name.startswith("visual.") for name in changed)
    assert len(model[0].backbone.get_image_features.known) == 8


def test_it_goes_with_plain_retrieval_only(tmp_path):
    with pytest.raises(UsageError, match="still_vision goes with retrieval and lora = false"):
        make_recipe(small(tmp_path / "x.jsonl", tmp_path / "run", still_vision=True, lora=True))
