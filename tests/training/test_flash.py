"""As on a GPU: flash attention 2 and bfloat16, through a stand-in with the checks of the real kernels."""

from __future__ import annotations

import pytest
import torch

from randslot.training.loss import Loss
from support.flash import Flash, install_flash, use_flash
from support.models import make, noise, safe_half_precision

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}  # dropout would draw from the generator of slots
QUERIES = ["tax", "sales in 2023", "staff"]


@pytest.fixture(params=["qwen2.5-vl", "qwen3-vl"])
def paper_family(request: pytest.FixtureRequest) -> str:
    return request.param


def pages() -> list:
    return [noise(64, 64, 1), noise(160, 64, 2), noise(96, 96, 3)]


@pytest.fixture
def exact_flash(monkeypatch: pytest.MonkeyPatch) -> Flash:
    """One that takes float32, so that it can be compared with SDPA."""
    return install_flash(monkeypatch, half_only=False)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Flash:
    return install_flash(monkeypatch)


def step(model, micro_batch: int, gradient_cache: bool = True) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.encoder.slots.eval()
    model.zero_grad()
    loss = Loss(
        model, temperature=0.5, batch=3, micro_batch=micro_batch, mask_repeats=False, gradient_cache=gradient_cache
    )
    value = loss([model.preprocess(QUERIES, task="query"), model.preprocess(pages(), task="document")])
    value.backward()
    return value.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "micro_batch", "checkpointing"), [("random", 0, False), ("random", 1, True), ("feedback", 1, True)]
)
def test_flash_attention_gives_the_loss_and_gradients_of_sdpa(
    paper_family, strategy, micro_batch, checkpointing, exact_flash
):
    found = []
    for flash in (False, True):
        model = make(paper_family, slots=strategy, lora=LORA, visual_tokens=16).train()
        if checkpointing:
            model.backbone.checkpoint_layers()
        if flash:
            use_flash(model.backbone.model)
        found.append(step(model, micro_batch))
    assert exact_flash.calls
    (expected, grads), (value, others) = found
    torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-6)
    assert grads.keys() == others.keys()
    for name in grads:
        torch.testing.assert_close(others[name], grads[name], atol=2e-5, rtol=1e-4)


def test_a_page_on_its_own_needs_no_packing(paper_family, exact_flash):
    """With no padding left the kernels run on plain rows: no unpacking, and no wait for the GPU in each layer."""
    model = make(paper_family, lora=LORA, slots="zero", visual_tokens=16).train()
    use_flash(model.backbone.model)
    layers = model.backbone.model.config.get_text_config().num_hidden_layers
    seen = model.backbone.run_vision(model.preprocess(pages()[:1], task="document"))
    assert seen is not None
    exact_flash.calls.clear()
    features = model.preprocess(pages()[:1], task="document")
    model.encoder.read(model.backbone.read_content(features, seen), features)
    assert exact_flash.calls == ["plain"] * layers


@pytest.mark.parametrize("gradient_cache", [True, False])
def test_a_step_in_bfloat16_keeps_vectors_loss_and_adapter_in_float32(paper_family, gradient_cache, flash):
    """The kernels refuse float32, so every attention is in bfloat16; what is compared and trained is not."""
    with safe_half_precision():
        model = make(paper_family, lora=LORA, visual_tokens=16, dtype="bfloat16").train()
        use_flash(model.backbone.model)
        model.backbone.checkpoint_layers()
        with torch.autocast("cpu", torch.bfloat16):
            value, grads = step(model, 1, gradient_cache)
            vectors = model(model.preprocess(QUERIES, task="query"))["token_embeddings"]
    assert flash.dtypes == {torch.bfloat16}
    assert value.dtype == vectors.dtype == torch.float32
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert grads.keys() == trained
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    frozen = {weight.dtype for name, weight in model.named_parameters() if name not in trained}
    assert frozen == {torch.bfloat16}


def test_bfloat16_is_near_float32(paper_family, flash):
    exact = make(paper_family, lora=LORA, slots="zero", visual_tokens=16).train()
    _, expected = step(exact, 1)
    with safe_half_precision():
        half = make(paper_family, lora=LORA, slots="zero", visual_tokens=16, dtype="bfloat16").train()
        half.load_state_dict(exact.state_dict())  # torch 2.8 draws other ones in bfloat16
        use_flash(half.backbone.model)
        with torch.autocast("cpu", torch.bfloat16):
            _, found = step(half, 1)
    flat = [torch.cat([grads[name].flatten() for name in expected]) for grads in (expected, found)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.9
