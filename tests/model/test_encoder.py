"""Templates, positions, padding, determinism: the same input gives the same vectors, whatever surrounds it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig
from PIL import Image
from tokenizers.processors import TemplateProcessing

import randslot
from randslot.errors import RandSlotError, UsageError
from support.models import count_visual, make, safe_half_precision


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() < 1e-5)


def test_a_special_token_in_a_query_is_no_image(family):
    model = make(family)
    assert model.encode_query(f"what is {model.family.image_token} and chart.png?").shape == (4, 64)


def test_visual_tokens_come_near_their_limit_and_never_exceed_it(vision_family):
    model = make(vision_family)
    for limit in (4, 7, 100, 1536):
        model.use(visual_tokens=limit)
        for size in ((1, 1), (900, 2), (1, 5000), (700, 500), (2000, 1900), (57, 13)):
            features = model.preprocess([Image.new("RGB", size)], task="document")
            assert 1 <= count_visual(model, features)[0] <= limit, size
    features = model.preprocess([Image.new("RGB", (1654, 2339))], task="document")
    assert count_visual(model, features)[0] > (50 if vision_family == "smolvlm" else 1400)  # it has few, large tiles


def test_a_query_alone_equals_the_query_behind_padding_and_after_pages(family, pages):
    model = make(family)
    model.encode_document(pages)
    queries = ["x", "ab", "0123456789" * 30]
    assert model.preprocess(queries, task="query")["attention_mask"].sum(-1).tolist() == [1, 2, 300]
    for query, vectors in zip(queries, model.encode_query(queries, batch_size=3), strict=True):
        assert close(model.encode_query(query), vectors)


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
    for slots in ("zero", "tokens"):
        with pytest.raises(UsageError, match="cannot change slots: this model was trained with 'random'"):
            model.use(slots=slots)
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


def test_vectors_are_unit_length_in_float32_whatever_the_compute_type(family, pages, queries):
    model = make(family, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    with safe_half_precision():
        vectors = torch.stack(model.encode_query(queries) + model.encode_document(pages))
    assert vectors.dtype == torch.float32
    assert (vectors.norm(dim=-1) - 1).abs().max() < 1e-6


def test_wrong_inputs_are_named(pages):
    model = make("qwen3-vl")
    for encode, given, message in (
        (model.encode_query, "tax \ud83d", "surrogates not allowed"),
        (model.encode_query, ["tax", " \n"], "empty query"),
        (model.encode_query, pages, "a query must be text, not Image"),
        (model.encode_document, "tax 2023", "page image not found: tax 2023"),
    ):
        with pytest.raises(RandSlotError, match=message):
            encode(given)
    with pytest.raises(RandSlotError, match="the template has its own prompt"):
        model.encode_document(pages, prompt="Read: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "rnd"}, "slots='rnd' is not one of random, zero"),
        ({"inference": "learned"}, "needs stored slots"),
        ({"query_vectors": 0}, "query_vectors must be a whole number from 1 to 4096, not 0"),
        ({"lora": LoraConfig(target_modules=["q_porj"])}, "Target modules"),
        ({"attn_implementation": "nope"}, "cannot build qwen3-vl-tiny"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        randslot.tiny("qwen3-vl", **options)
    assert "\n" not in str(caught.value)


def test_special_tokens_in_queries_of_strangers_are_plain_text():
    """In what a library and a service ask; plain `encode_query` takes them for what they name, as the paper's code."""
    model, token = make("qwen3-vl"), "<|image_pad|>"
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
