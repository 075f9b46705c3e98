"""Qwen3.5: what its recurrent layers carry along is the same by one pass, step by step, alone and behind padding."""

from __future__ import annotations

import torch
from sentence_transformers import MultiVectorEncoder
from torch import Tensor

from randslot.model.readout import Content
from support.models import make

QUERIES = ["x", "ab", "0123456789" * 30]  # tokens: 1, 2 and 300, which is more than four chunks of 64


def states(model: MultiVectorEncoder, parts: list[Content]) -> list[Tensor]:
    """Matrices and last convolution inputs of all DeltaNet layers after some parts, each on the cache of the last."""
    cache = None
    for part in parts:
        _, cache = model.backbone.run(part, cache, use_cache=True)
    layers = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    assert len(layers) == 3
    return [tensor for layer in layers for tensor in (layer.recurrent_states[0], layer.conv_states[0])]


def content_of(model: MultiVectorEncoder, queries: list[str]) -> Content:
    return model.encoder.read_content(model.preprocess(queries, task="query"))


@torch.no_grad()
def test_the_state_carried_from_prefix_to_prefix_is_that_of_one_pass():
    model = make("qwen3.5")
    content, slots = content_of(model, QUERIES), torch.randn(3, 4, 64)
    parts = [content]
    for t in range(4):
        content = content.append(slots[:, t : t + 1])
        parts.append(content.tail())
    for carried, whole in zip(states(model, parts), states(model, [content]), strict=True):
        torch.testing.assert_close(carried, whole, atol=1e-5, rtol=1e-5)
        assert whole.abs().max() > 1e-3


@torch.no_grad()
def test_padding_leaves_no_trace_in_the_state():
    model = make("qwen3.5")
    together = states(model, [content_of(model, QUERIES)])
    alone = states(model, [content_of(model, QUERIES[:1])])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[0], b[0], atol=1e-5, rtol=1e-5)


def test_the_adapter_is_on_what_plays_the_part_of_query_key_value_and_output():
    model = make("qwen3.5", lora=True)
    names = [name for name, _ in model.encoder.backbone.named_modules() if name.endswith("lora_A.default")]
    parts = [name.removeprefix("language_model.layers.").removesuffix(".lora_A.default") for name in names]
    linear = [f"{layer}.linear_attn.{part}" for layer in range(3) for part in ("out_proj", "in_proj_qkv")]
    assert parts == [*linear, *(f"3.self_attn.{part}_proj" for part in "qkvo")]


def test_feedback_trains_without_the_cache_that_is_written_over():
    """Gradients of all that three steps went through; with the cache, torch would refuse to go back."""
    model = make("qwen3.5", slots="feedback").train()
    model(model.preprocess(QUERIES, task="query"))["token_embeddings"][:, -1].sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "language_model" in name)
