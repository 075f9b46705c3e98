"""One pass gives what the paper's loop gives: append one slot, run the whole prefix again, read the last state.

The loop here is written with transformers' own forward, which computes positions, masks and visual features by
itself from placeholder ids; a hook puts the slots in their place. It shares no code with the encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from torch import Tensor

from randslot.model.encoder import draw_keys
from randslot.model.readout import read_once, read_stepwise
from support.models import language_model, make, own_inputs


def paper_loop(model: MultiVectorEncoder, features: dict[str, Tensor], num: int, next_slot: Callable) -> Tensor:
    """Sequential appending with full-prefix recomputation; `next_slot(t, readout)` as in `read_stepwise`."""
    backbone, ids = model.encoder.backbone, features["input_ids"]
    slots: list[Tensor] = []
    readouts: list[Tensor] = []

    def put_slots(_module: object, _inputs: object, embeds: Tensor) -> Tensor:
        return torch.cat([embeds[:, : ids.shape[1]], *[slot[:, None] for slot in slots]], dim=1)

    hook = backbone.get_input_embeddings().register_forward_hook(put_slots)
    for t in range(num + 1):
        placeholders = torch.zeros(len(ids), len(slots), dtype=torch.long)
        inputs = own_inputs(model, features, torch.cat([ids, placeholders], dim=1))
        output = backbone(**inputs, use_cache=False)
        readouts.append(torch.nn.functional.normalize(output.last_hidden_state[:, -1], dim=-1))
        if t < num:
            slots.append(next_slot(t, readouts[-1]))
    hook.remove()
    return torch.stack(readouts, dim=1)


# Weights of Qwen3.5 that a head's decay depends on. Decays are summed over positions before they are compared, in
# float32 and up to hundreds, so their gradients are known to some absolute error only.
OF_DECAY = ("A_log", "dt_bias", "in_proj_a.weight")


def features_of(model: MultiVectorEncoder, side: str, pages: list, queries: list[str]) -> dict[str, Tensor]:
    if side == "page":
        return model.preprocess(pages, task="document")
    return model.preprocess(queries, task="query")


def reference(model: MultiVectorEncoder, features: dict[str, Tensor], side: str) -> Tensor:
    """The paper's loop with the slots that the encoder's training strategy gives under torch seed 5."""
    encoder = model.encoder
    if encoder.settings.slots == "feedback":
        return paper_loop(model, features, 3, lambda _, readout: readout)
    torch.manual_seed(5)
    slots = encoder.slots(side, 3, draw_keys(features["keys"]))
    return paper_loop(model, features, 3, lambda t, _: slots[:, t])


@pytest.mark.parametrize("side", [pytest.param("query", marks=pytest.mark.nightly), "page"])
def test_vectors_and_gradients_equal_the_papers_loop(family, strategy, side, pages, queries):
    model = make(family, slots=strategy).train()
    features = features_of(model, side, pages, queries)
    torch.manual_seed(5)
    vectors = model(features)["token_embeddings"]
    expected = reference(model, features, side)
    assert vectors.shape == (3, 4, 64)
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)

    weight = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = torch.autograd.grad((vectors * weight).sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad((expected * weight).sum(), parameters, allow_unused=True)
    compared = 0
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b.norm() > 1e-6:
            rounding = 5e-5 if name.endswith(OF_DECAY) else 0
            assert (a - b).norm() < 1e-4 * b.norm() + rounding, name
            compared += 1
    assert compared > 15


def test_feedback_with_cache_equals_the_loop(family, pages, queries):
    model = make(family, slots="feedback")
    for side in ("query", "page"):
        features = features_of(model, side, pages, queries)
        with torch.no_grad():
            expected = reference(model.train(), features, side)
            torch.testing.assert_close(model.eval()(features)["token_embeddings"], expected, atol=1e-5, rtol=0)


def test_feedback_gradients_flow_through_the_reinserted_readout(queries):
    """Detaching the readouts would change the gradient: the encoder must not."""
    model = make("qwen3-vl", slots="feedback").train()
    encoder = model.encoder
    features = model.preprocess(queries, task="query")

    def gradient(detach: bool) -> Tensor:
        content = encoder.read_content(features)
        step = (lambda _, readout: readout.detach()) if detach else (lambda _, readout: readout)
        vectors = read_stepwise(encoder.parts, content, 3, step, cached=model.family.cache_keeps_gradients)
        (grad,) = torch.autograd.grad(vectors[:, -1].sum(), [language_model(model).norm.weight])
        return grad

    model.zero_grad()
    model(features)["token_embeddings"][:, -1].sum().backward()
    ours = language_model(model).norm.weight.grad
    torch.testing.assert_close(ours, gradient(detach=False))
    assert (ours - gradient(detach=True)).norm() > 1e-3 * ours.norm()


def test_feedback_under_gradient_checkpointing_is_the_same(family, pages):
    model = make(family, slots="feedback").train()
    features = model.preprocess(pages, task="document")
    plain = model(features)["token_embeddings"]
    plain.sum().backward()
    norm = language_model(model).norm.weight
    expected, norm.grad = norm.grad, None
    model.gradient_checkpointing_enable({"use_reentrant": False})
    checkpointed = model(features)["token_embeddings"]
    checkpointed.sum().backward()
    torch.testing.assert_close(checkpointed, plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(norm.grad, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("broken", ["positions", "mask", "visual"])
def test_the_comparison_notices_a_wrong_input(broken, pages):
    """What the tests above compare depends on positions, padding mask and (Qwen3-VL) deepstack features."""
    encoder = make("qwen3-vl").encoder
    features = encoder.preprocess(pages, task="document")
    with torch.no_grad():
        content = encoder.read_content(features)
        right = read_once(encoder.parts, content, torch.zeros(3, 3, 64))
        change = {
            "positions": {"positions": torch.zeros_like(content.positions)},
            "mask": {"mask_BL": torch.ones_like(content.mask_BL)},
            "visual": {"flags": {}, "more": {}},
        }[broken]
        other = read_once(encoder.parts, replace(content, **change), torch.zeros(3, 3, 64))
    assert (right - other).abs().max() > 1e-3
