"""What is computed on the meta device is what a real step does; the paper's recipes at their real shapes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import randslot
from randslot.errors import UsageError
from randslot.training import plan
from randslot.training.loss import Loss
from randslot.training.plan import (
    count_on_meta,
    describe_run,
    largest_page,
    make_model_on_meta,
    measure_page,
    memory_by_part,
    step_multiply_adds,
)
from randslot.training.recipe import make_recipe, read_recipe
from research.pretrain import save_backbone
from support.models import count_visual, noise

PAPER = {"qwen2.5-vl-3b": (3_761_995_776, 7_372_800, 2048), "qwen3-vl-4b": (4_449_612_288, 11_796_480, 2560)}


@pytest.fixture(params=["qwen2.5-vl", "qwen3-vl"])
def paper_family(request: pytest.FixtureRequest) -> str:
    return request.param


def tiny_recipe(paper_family: str, **changes: object):
    values = {"untrained": f"{paper_family}-tiny", "visual_tokens": 16, "batch": 4, "data": "x.jsonl"}
    return make_recipe(values | changes)


def test_multiply_adds_are_those_of_a_real_step(paper_family):
    recipe = tiny_recipe(paper_family, lora_dropout=0.0)
    cost = measure_page(make_model_on_meta(recipe, torch.float32))
    real = randslot.tiny(paper_family, lora={"dropout": 0.0}, visual_tokens=16).train()
    features = real.preprocess([largest_page(real)], task="document")
    counts = []
    # torch knows the products of plain attention, and not those of its fused kernel for CPUs.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        seen = real.backbone.run_vision(features)
        counts.append(counter.get_total_flops())
        content = real.backbone.read_content(features, seen)
        vectors = real.encoder.read(content, features)["token_embeddings"]
        counts.append(counter.get_total_flops())
        vectors.sum().backward()
        counts.append(counter.get_total_flops())
    vision, forward, backward = counts[0], counts[1] - counts[0], counts[2] - counts[1]
    assert (cost.vision, cost.forward) == (vision // 2, forward // 2)
    assert cost.backward == pytest.approx(backward // 2, rel=0.06)  # fused, it computes scores again


@pytest.mark.skipif(torch.__version__.startswith("2.8."), reason="its attention on CPUs is not fused, and keeps scores")
def test_what_is_held_is_what_autograd_saves(paper_family):
    """The bytes of tensors that a real forward keeps, those of weights left out."""
    recipe = tiny_recipe(paper_family, lora_dropout=0.0)
    cost = measure_page(make_model_on_meta(recipe, torch.float32))
    real = randslot.tiny(paper_family, lora={"dropout": 0.0}, visual_tokens=16).train()
    weights = {weight.untyped_storage().data_ptr() for weight in real.parameters()}
    saved: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # so that no other tensor gets its place
        return tensor

    features = real.preprocess([largest_page(real)], task="document")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        real(features)
    expected = sum(num for place, num in saved.items() if place not in weights)
    assert (
        0.95 * expected <= cost.held < 1.2 * expected
    )  # what is in hand at the end counts too, such as the embedded page


def test_a_cache_and_checkpointing_trade_work_for_memory(paper_family):
    recipe = tiny_recipe(paper_family)
    model = make_model_on_meta(recipe, torch.float32)
    cost = measure_page(model)
    work, memory = {}, {}
    for cache in (True, False):
        for checkpointing in (True, False):
            way = replace(recipe, gradient_cache=cache, gradient_checkpointing=checkpointing)
            work[cache, checkpointing] = step_multiply_adds(way, cost, 4)
            parts = memory_by_part(way, model, cost, 1, "adamw")
            memory[cache, checkpointing] = parts["activations"]
    forwards = {ways: (num - 4 * (cost.vision + cost.backward)) / (4 * cost.forward) for ways, num in work.items()}
    assert forwards == {(True, True): 3, (True, False): 2, (False, True): 2, (False, False): 1}
    assert memory[True, True] < memory[True, False] < memory[False, False]
    assert memory[True, True] < memory[False, True] < memory[False, False]
    assert step_multiply_adds(replace(recipe, execution="loop"), cost, 4) > 3 * work[True, True]


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAPER)
def test_a_step_of_the_papers_recipes_at_their_real_shapes(name):
    """Every shape, type and hook, on the meta device: what is trained gets its gradient, and nothing else does."""
    num_weights, num_trained, dim = PAPER[name]
    recipe = read_recipe(name)
    model = make_model_on_meta(recipe, torch.bfloat16).train()
    model.backbone.checkpoint_layers()
    weights = dict(model.named_parameters())
    trained = {key: weight for key, weight in weights.items() if weight.requires_grad}
    assert sum(weight.numel() for weight in weights.values()) == num_weights
    assert sum(weight.numel() for weight in trained.values()) == num_trained
    assert all("language_model" in key and "lora_" in key for key in trained)
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    assert {weight.dtype for key, weight in weights.items() if key not in trained} == {torch.bfloat16}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    loss = Loss(
        model,
        temperature=recipe.temperature,
        batch=2,
        micro_batch=1,
        mask_repeats=False,
        gradient_cache=recipe.gradient_cache,
    )
    features = [
        model.preprocess(["tax", "net sales"], task="query"),
        model.preprocess([noise(64, 128, 1), noise(128, 128, 2)], task="document"),
    ]
    shapes = []
    model.encoder.register_forward_hook(lambda module, args, output: shapes.append(output["token_embeddings"].shape))
    with count_on_meta(model):
        value = loss(features)
        value.backward()
    assert shapes == [(2, 4, dim), (1, 4, dim), (1, 4, dim)]
    assert (value.shape, value.dtype) == ((), torch.float32)
    for key, weight in weights.items():
        if key in trained:
            assert weight.grad is not None, key
            assert (weight.grad.shape, weight.grad.dtype) == (weight.shape, torch.float32)
        else:
            assert weight.grad is None, key


def test_a_dry_run_says_what_a_run_takes(tmp_path):
    recipe = tiny_recipe("qwen3-vl", data=str(tmp_path / "none.jsonl"), steps=7)
    text = describe_run(recipe, 2)
    assert "steps      7, each of 4 pairs with 0 negatives, 2 pairs per device" in text
    assert "missing: no pairs at" in text
    for words in ("| weights |", "| activations |", "disk", "| A100, 80 GB |"):
        assert words in text


def test_hard_negatives_are_pages_of_a_dry_run():
    """Two for each pair: three times the pages to send, keep and compute, and one at a time under a gradient cache."""
    found = []
    for negatives in (0, 2):
        recipe = tiny_recipe("qwen3-vl", negatives=negatives, micro_batch=1)
        model = make_model_on_meta(recipe, torch.float32)
        cost = measure_page(model)
        work = step_multiply_adds(recipe, cost, recipe.batch * recipe.pages_per_row)
        found.append(memory_by_part(recipe, model, cost, 1, "adamw") | {"work": work})
    one, three = found
    for part in one:
        times = 3 if part in ("pages of the batch", "vision tower outputs", "work") else 1
        assert three[part] == times * one[part] > 0
    text = describe_run(tiny_recipe("qwen3-vl", negatives=2, steps=7), 2)
    assert "each of 4 pairs with 2 negatives, 2 pairs per device" in text


def test_a_dry_run_counts_feedback_step_by_step(tmp_path):
    recipe = tiny_recipe("qwen3-vl", data=str(tmp_path / "none.jsonl"), steps=7, slots="feedback")
    assert "| A100, 80 GB |" in describe_run(recipe, 2)


def test_a_dry_run_says_what_fits(monkeypatch):
    assert "| RTX 4090, 24 GB | yes |" in describe_run(tiny_recipe("qwen3.5", workers=1, micro_batch=1), 1)
    monkeypatch.setattr(plan, "GPUS", {"Small": (1, 100)})
    text = describe_run(tiny_recipe("qwen3-vl", workers=0, gradient_cache=True, micro_batch=1), 1)
    assert "| Small, 1 GB | no |" in text  # CUDA alone takes more


# What the hub has of Qwen2.5-VL-7B: the text settings at the top level, as in all of its config.json.
QWEN_7B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "tie_word_embeddings": False,
    "vocab_size": 152064,
    "image_token_id": 151655,
    "vision_start_token_id": 151652,
    "eos_token_id": 151645,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
}


def test_a_dry_run_takes_a_folder_with_a_config_and_no_weights(tmp_path):
    (tmp_path / "seven").mkdir()
    (tmp_path / "seven" / "config.json").write_text(json.dumps(QWEN_7B))
    recipe = read_recipe("qwen2.5-vl-3b", [f"backbone={tmp_path / 'seven'}", "visual_tokens=64", "slots=zero"])
    model = make_model_on_meta(recipe, torch.bfloat16)
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    assert frozen == 8_292_166_656 - 152_064 * 3584  # all but the language head
    text = describe_run(recipe, 8)
    assert "| weights | 15.53 |" in text
    assert "of weights from the hub" not in text
    (tmp_path / "seven" / "config.json").write_text(json.dumps(QWEN_7B | {"model_type": "bert"}))
    with pytest.raises(UsageError, match=r"seven/config\.json.*qwen2_5_vl"):
        describe_run(recipe, 8)
    (tmp_path / "seven" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"Pass a folder with its config\.json"):
        describe_run(recipe, 8)


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen3.5", "smolvlm", "llama"])
def test_a_dry_run_of_a_saved_backbone_needs_its_config_only(family, tmp_path):
    save_backbone(randslot.tiny(family).backbone, tmp_path / "whole")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "bare")
    values = {"data": "x.jsonl", "batch": 4, "visual_tokens": 64, "text_tokens": 64}
    model, same = (
        make_model_on_meta(make_recipe(values | backbone), torch.float32)
        for backbone in ({"backbone": str(tmp_path / "bare")}, {"untrained": f"{family}-tiny"})
    )
    assert measure_page(model) == measure_page(same)


@pytest.mark.parametrize(("shape", "visual"), [("qwen3.5-0.8b", 1536), ("smolvlm-256m", 1088)])
def test_the_largest_page_has_all_the_tokens_that_a_page_can_have(shape, visual):
    model = randslot.untrained(shape, device="meta")
    features = model.preprocess([largest_page(model)], task="document")
    assert count_visual(model, features) == [visual]
