"""Real shapes, patch embedding, tokenizer: what the project knows of the backbones."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModel

import randslot
from support.models import language_model, make, safe_half_precision

# Parameters without a language head, of the adapter; width, layers, heads, of keys, feed-forward; layers and width
# of the tower. The first counts are those of the files on the hub, less what is not used here: a head that is not tied,
# and the layer of Qwen3.5 that predicts several tokens.
REAL = {
    "qwen2.5-vl-3b": (3_754_622_976, 7_372_800, 2048, 36, 16, 2, 11008, 32, 1280),
    "qwen3-vl-2b": (2_127_532_032, 6_422_528, 2048, 28, 16, 8, 6144, 24, 1024),
    "qwen3-vl-4b": (4_437_815_808, 11_796_480, 2560, 36, 32, 8, 9728, 24, 1024),
    "qwen3.5-0.8b": (873_438_784 - 20_452_864, 4_030_464, 1024, 24, 8, 2, 3584, 12, 768),
    "qwen3.5-2b": (2_274_069_824 - 60_828_160, 5_013_504, 2048, 24, 8, 2, 6144, 24, 1024),
    "qwen3.5-4b": (4_539_265_536, 9_830_400, 2560, 32, 16, 4, 9216, 24, 1024),
    "smolvlm-256m": (256_484_928 - 49_280 * 576, 1_843_200, 576, 30, 9, 3, 1536, 12, 768),
    "smolvlm-500m": (507_482_304 - 49_280 * 960, 3_276_800, 960, 32, 15, 5, 2560, 12, 768),
}


DEFAULT = ("qwen2.5-vl-3b", "qwen3-vl-4b", "qwen3.5-0.8b", "smolvlm-256m")


@pytest.mark.parametrize("shape", [s if s in DEFAULT else pytest.param(s, marks=pytest.mark.nightly) for s in REAL])
def test_real_shapes_on_the_meta_device(shape):
    """The published models' shapes: adapter sizes and dimensions, of the two backbones of the paper as it has them."""
    parameters, trainable, dim, *rest = REAL[shape]
    model = randslot.untrained(shape, device="meta", lora=True)
    text, vision = model.encoder.backbone.config.text_config, model.encoder.backbone.config.vision_config
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trainable
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == parameters
    assert model.get_embedding_dimension() == dim
    assert language_model(model).norm.weight.shape == (dim,)  # no projection behind it
    language = [text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads, text.intermediate_size]
    depth = vision.num_hidden_layers if shape.startswith("smolvlm") else vision.depth
    assert [*language, depth, vision.hidden_size] == rest
    assert model.settings.visual_tokens == 1536
    if shape.startswith("qwen3-vl"):
        assert list(vision.deepstack_visual_indexes) == [5, 11, 17]
        assert text.head_dim == 128


def test_linear_patches_equal_the_convolution(qwen_family, pages, tmp_path):
    encoder = randslot.tiny(qwen_family).encoder
    encoder.backbone.save_pretrained(tmp_path)
    conv = AutoModel.from_pretrained(tmp_path).visual.patch_embed
    patches = encoder.preprocess(pages, task="document")["pixel_values"]
    ours = encoder.backbone.visual.patch_embed
    torch.testing.assert_close(ours(patches), conv(patches), atol=4e-6, rtol=1e-5)
    ours(patches).square().sum().backward()
    conv(patches).square().sum().backward()
    torch.testing.assert_close(ours.proj.weight.grad, conv.proj.weight.grad, atol=1e-3, rtol=1e-4)


def test_default_lora_is_the_papers(family):
    model = make(family, lora=True)
    config = model.encoder.backbone.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 32, 0.05)
    adapted, of_language = (
        [name for name, _ in part.named_modules() if name.endswith("lora_A.default")]
        for part in (model.encoder.backbone, language_model(model))
    )
    # Two layers of attention; of Qwen3.5 one, and three of DeltaNet.
    assert len(adapted) == len(of_language) == (4 + 3 * 2 if family == "qwen3.5" else 2 * 4)


def test_adapters_train_in_float32_on_a_half_precision_backbone(family):
    model = make(family, lora=True, dtype="bfloat16")
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    with safe_half_precision():
        assert model.encode_query("tax").dtype == torch.float32


def test_an_adapter_on_the_patch_embedding_trains(pages):
    lora = LoraConfig(r=4, target_modules=["patch_embed.proj"], init_lora_weights=False)
    model = make("qwen3-vl", lora=lora).train()
    model(model.preprocess(pages, task="document"))["token_embeddings"].sum().backward()
    adapter = [p for name, p in model.named_parameters() if "patch_embed" in name and "lora_" in name]
    assert len(adapter) == 2
    assert all(p.grad.abs().sum() > 0 for p in adapter)
