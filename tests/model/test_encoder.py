"""Templates, positions, padding, determinism: the same input gives the same vectors, whatever surrounds it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from PIL import Image
from sentence_transformers import MultiVectorEncoder
from tokenizers.processors import TemplateProcessing

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model.families.qwen_vl import QwenVL
from support.models import count_visual, make, safe_half_precision


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() < 1e-5)


def test_the_page_prompt_is_the_papers_character_for_character():
    assert QwenVL.page_prompt == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
    )


def test_page_features_hold_the_prompt_with_the_image_expanded(qwen_family, pages):
    model = make(qwen_family)
    encoder = model.encoder
    features = encoder.preprocess(pages, task="document")
    counts = count_visual(model, features)
    assert counts == (features["image_grid_thw"].prod(-1) // 4).tolist()
    for ids, mask, count in zip(features["input_ids"], features["attention_mask"], counts, strict=True):
        text = encoder.tokenizer.decode(ids[mask.bool()])
        assert text == QwenVL.page_prompt.replace("<|image_pad|>", "<|image_pad|>" * count)
        assert mask.tolist() == sorted(mask.tolist())  # padding is on the left
        assert encoder.tokenizer.decode(ids[-1:]) == "<|endoftext|>"


def test_queries_are_raw_and_left_padded(family, queries):
    encoder = make(family).encoder
    features = encoder.preprocess(queries, task="query")
    for query, ids, mask in zip(queries, features["input_ids"], features["attention_mask"], strict=True):
        assert encoder.tokenizer.decode(ids[mask.bool()]) == query
        assert mask[-1] == 1


def test_a_special_token_in_a_query_is_no_image(family):
    model = make(family)
    assert model.encode_query(f"what is {model.family.image_token} and chart.png?").shape == (4, 64)


@pytest.mark.parametrize("limit", [4, 5, 7, 16, 100, 1536])
def test_visual_tokens_never_exceed_their_limit(vision_family, limit):
    model = make(vision_family, visual_tokens=limit)
    sizes = [(1, 1), (3, 900), (900, 2), (1, 5000), (40, 4000), (700, 500), (2000, 1900), (57, 13)]
    for width, height in sizes:
        features = model.preprocess([Image.new("RGB", (width, height))], task="document")
        assert 1 <= count_visual(model, features)[0] <= limit, (width, height)


def test_the_limit_is_used_on_large_pages(qwen_family):
    """An A4 page at 200 dpi comes close to the paper's 1,536 tokens, not down to some smaller default."""
    features = make(qwen_family).encoder.preprocess([Image.new("RGB", (1654, 2339))], task="document")
    assert 1400 < features["image_grid_thw"].prod() // 4 <= 1536


def test_positions_are_those_of_the_backbone_with_placeholders_for_slots(qwen_family, pages):
    encoder = make(qwen_family).encoder
    features = encoder.preprocess(pages, task="document")
    with torch.no_grad():
        content = encoder.read_content(features).append(torch.zeros(3, 5, 64))
    ids = torch.cat([features["input_ids"], torch.zeros(3, 5, dtype=torch.long)], dim=1)
    expected, _ = encoder.backbone.get_rope_index(
        ids,
        mm_token_type_ids=(ids == encoder.backbone.config.image_token_id).int(),
        image_grid_thw=features["image_grid_thw"],
        attention_mask=content.mask_BL,
    )
    assert torch.equal(content.positions, expected)
    assert not torch.equal(expected[0], expected[1])  # really three axes


def test_a_page_alone_equals_the_page_in_any_batch(family, strategy, pages):
    model = make(family, slots=strategy)
    together = model.encode_document(pages)
    for page, vectors in zip(pages, together, strict=True):
        assert close(model.encode_document(page), vectors)
    assert not close(together[0], together[1])


def test_a_query_alone_equals_the_query_in_any_batch_and_after_pages(family, strategy, pages, queries):
    first = make(family, slots=strategy).encode_query(queries)
    model = make(family, slots=strategy)
    model.encode_document(pages)
    for query, vectors in zip(queries, first, strict=True):
        assert close(model.encode_query(query), vectors)


@pytest.mark.parametrize("slots", ["zero", "feedback"])
def test_one_two_and_three_hundred_tokens_go_into_one_batch(family, slots):
    """What stands before a short query in a batch is padding, to every kind of layer."""
    model = make(family, slots=slots)
    queries = ["x", "ab", "0123456789" * 30]
    assert model.preprocess(queries, task="query")["attention_mask"].sum(-1).tolist() == [1, 2, 300]
    for query, vectors in zip(queries, model.encode_query(queries, batch_size=3), strict=True):
        assert close(model.encode_query(query), vectors)


def test_a_large_budget_contains_every_smaller_one(family, strategy, pages, queries):
    model = make(family, slots=strategy, inference="random" if strategy == "random" else "")
    encoder = model.encoder

    def encode(budget: int) -> list[torch.Tensor]:
        encoder.use(query_vectors=budget, page_vectors=budget)
        return model.encode_document(pages) + model.encode_query(queries)

    eight = encode(8)
    for budget in (1, 2, 4):
        for vectors, whole in zip(encode(budget), eight, strict=True):
            assert vectors.shape == (budget, 64)
            assert close(vectors, whole[:budget])


def test_query_and_page_budgets_are_separate(pages):
    model = make("qwen3-vl", query_vectors=2, page_vectors=6)
    assert model.encode_query("tax").shape == (2, 64)
    assert model.encode_document(pages[0]).shape == (6, 64)
    assert model.similarity(model.encode_query(["tax"]), model.encode_document(pages)).shape == (1, 3)


def test_one_vector_is_the_plain_last_state(family, queries):
    model = make(family, query_vectors=1)
    features = model.preprocess(queries, task="query")
    with torch.no_grad():
        output = model.encoder.backbone(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
    expected = torch.nn.functional.normalize(output.last_hidden_state[:, -1:], dim=-1)
    assert close(torch.stack(model.encode_query(queries)), expected)


def test_random_inference_is_reproducible_whatever_the_batch(pages, queries):
    model = make("qwen3-vl", inference="random")
    one_by_one = model.encode_document(pages, batch_size=1)
    reversed_order = model.encode_document(pages[::-1], batch_size=3)[::-1]
    for a, b in zip(one_by_one, reversed_order, strict=True):
        assert close(a, b)
    again = make("qwen3-vl", inference="random").encode_query(queries, batch_size=2)
    for a, b in zip(model.encode_query(queries), again, strict=True):
        assert close(a, b)
    model.use(seed=1)
    assert not close(model.encode_query(queries)[0], again[0])
    assert not close(make("qwen3-vl").encode_query(queries)[0], again[0])


def test_settings_of_a_model_in_use_change_what_it_does(pages):
    model = make("qwen3-vl", slots="random")
    zero = model.encode_document(pages[1])
    model.use(inference="random", page_vectors=6)
    assert model.encode_document(pages[1]).shape == (6, 64)
    assert not close(model.encode_document(pages[1])[:4], zero)
    model.use(inference="zero", page_vectors=4, visual_tokens=4)
    assert not close(model.encode_document(pages[1]), zero)
    model.use(visual_tokens=1536)
    assert close(model.encode_document(pages[1]), zero)
    with pytest.raises(UsageError, match="this model is trained with slots='random'"):
        model.use(slots="zero")
    with pytest.raises(UsageError, match="unknown setting 'vectors'; known ones: inference, page_vectors"):
        model.use(vectors=3)


def test_queries_stay_raw_with_a_tokenizer_that_adds_tokens(queries):
    encoder = make("qwen3-vl").encoder
    expected = encoder.preprocess(queries, task="query")["input_ids"]
    template = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 257), ("<|im_end|>", 258)]
    )
    encoder.tokenizer.backend_tokenizer.post_processor = template
    assert len(encoder.tokenizer("x")["input_ids"]) == 3
    assert torch.equal(encoder.preprocess(queries, task="query")["input_ids"], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_vectors_are_unit_length_in_float32_whatever_the_compute_type(family, dtype, pages, queries):
    model = make(family, dtype=dtype)
    assert model.dtype == getattr(torch, dtype)
    with safe_half_precision():
        vectors = torch.stack(model.encode_query(queries) + model.encode_document(pages))
    assert vectors.dtype == torch.float32
    assert (vectors.norm(dim=-1) - 1).abs().max() < 1e-6


def test_broken_characters_in_a_query_are_named():
    with pytest.raises(RandSlotError, match="not valid text"):
        make("qwen3-vl").encode_query("tax \ud83d")


@pytest.mark.parametrize("query", ["", "   ", "\n"])
def test_an_empty_query_says_so(query):
    with pytest.raises(RandSlotError, match="empty query"):
        make("qwen3-vl").encode_query(["tax", query])


def test_wrong_inputs_are_named(pages):
    model = make("qwen3-vl")
    with pytest.raises(RandSlotError, match="a query must be text, not Image"):
        model.encode_query(pages)
    with pytest.raises(RandSlotError, match="page image not found: tax 2023"):
        model.encode_document("tax 2023")
    with pytest.raises(RandSlotError, match=r"one input has \['image', 'text'\]"):
        model.encoder.preprocess([{"image": pages[0], "text": "tax"}], task="document")
    with pytest.raises(RandSlotError, match="pages take no prompt"):
        model.encode_document(pages, prompt="Read: ")


def test_inputs_as_dicts_paths_and_without_a_side(tmp_path, pages):
    model = make("qwen3-vl")
    file = tmp_path / "Seite 1.png"
    pages[0].save(file)
    expected = model.encode_document(pages[0])
    for page in (str(file), Path(file), {"image": pages[0]}):
        assert close(model.encode_document([page])[0], expected)
    assert close(model.encode(pages[0]), expected)
    assert close(model.encode("tax"), model.encode_query({"text": "tax"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "rnd"}, "slots='rnd' is not one of random, zero"),
        ({"inference": "none"}, "inference='none' is not one of"),
        ({"inference": "learned"}, "needs stored slots"),
        ({"query_vectors": 0}, "query_vectors must be a whole number from 1 to 4096, not 0"),
        ({"page_vectors": 2.5}, "page_vectors must be a whole number"),
        ({"visual_tokens": 3}, "visual_tokens must be a whole number from 4"),
        ({"dtype": "int8"}, "dtype='int8' is not a floating point type"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"lora": "yes"}, "lora takes True, False or a PEFT config, not 'yes'"),
        ({"lora": LoraConfig(target_modules=["q_porj"])}, "cannot add this adapter: Target modules"),
        ({"attn_implementation": "nope"}, "cannot build qwen3-vl-tiny"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        randslot.tiny("qwen3-vl", **options)
    assert "\n" not in str(caught.value)


def test_the_model_is_a_multi_vector_encoder_with_one_module(family):
    model = make(family)
    assert isinstance(model, MultiVectorEncoder)
    assert [type(module).__name__ for module in model] == ["SlotEncoder"]
    assert model.get_embedding_dimension() == 64
    json.dumps(model.encoder.get_config_dict())


def test_making_a_model_leaves_the_global_generator_alone(family):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    make(family, slots="learned", lora=True)
    assert torch.equal(torch.rand(1), expected)


def test_the_same_seed_gives_the_same_model_and_another_seed_another(family):
    for part in ("lora", None):
        options = {"lora": True} if part else {}
        a, b, c = (randslot.tiny(family, seed=seed, slots="learned", **options) for seed in (0, 0, 1))
        for (name, x), y, z in zip(a.named_parameters(), b.parameters(), c.parameters(), strict=True):
            assert torch.equal(x, y)
            random_at_start = (x.ndim > 1 or name.endswith("A_log")) and "lora_B" not in name
            assert torch.equal(x, z) != random_at_start


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|endoftext|>"])
def test_special_tokens_in_queries_of_strangers_are_plain_text(qwen_family, token):
    """In what a library and a service ask; plain `encode_query` takes them for what they name, as the paper's code."""
    model = make(qwen_family)
    query = f"sales {token} of wool"
    special = model.encoder.tokenizer.convert_tokens_to_ids(token)
    named = model.encoder.preprocess([query], task="query")["input_ids"]
    assert (named == special).sum() == 1
    model.encoder.plain_queries = True
    plain = model.encoder.preprocess([query, "tax"], task="query")
    assert not ((plain["input_ids"] == special) & plain["attention_mask"].bool()).any()
    model.encoder.plain_queries = False
    (asked,) = model.embed_queries([query])
    (direct,) = model.encode_query([query])
    assert not np.allclose(asked, direct.numpy(), atol=1e-3)
    assert np.allclose(model.embed_queries(["tax"])[0], model.encode_query(["tax"])[0].numpy(), atol=1e-6)
    assert not model.encoder.plain_queries
    model.plain_queries = False
    assert np.allclose(model.embed_queries([query])[0], direct.numpy(), atol=1e-6)
