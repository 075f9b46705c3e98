"""The full-token model: what transformers gives at every position, padding left out of vectors, scores and training."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig
from sentence_transformers import MultiVectorEncoder
from torch import Tensor

import randslot
from randslot.errors import UsageError
from randslot.training.loss import Loss
from support.models import count_visual, make, noise, own_inputs

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() < 1e-5)


def reference(model: MultiVectorEncoder, features: dict[str, Tensor]) -> Tensor:
    """Every last hidden state of one input, by transformers' own forward from ids and pixels."""
    with torch.no_grad():
        hidden = model.encoder.backbone(**own_inputs(model, features), use_cache=False).last_hidden_state
    return torch.nn.functional.normalize(hidden[0].float(), dim=-1)


def test_vectors_are_the_backbones_last_states_at_every_token(vision_family, pages, queries):
    model = make(vision_family, slots="tokens")
    for page, vectors in zip(pages, model.encode_document(pages), strict=True):
        features = model.preprocess([page], task="document")
        assert len(vectors) == features["input_ids"].shape[1] > sum(count_visual(model, features)) > 3
        assert close(vectors, reference(model, features))
    for query, vectors in zip(queries, model.encode_query(queries), strict=True):
        assert len(vectors) == len(query.encode())  # the tiny tokenizer has a token for every byte
        assert close(vectors, reference(model, model.preprocess([query], task="query")))


def test_an_input_alone_equals_the_input_in_any_batch(family, pages, queries):
    model = make(family, slots="tokens")
    together = model.encode_document(pages, batch_size=3) + model.encode_query(queries, batch_size=3)
    assert len({len(vectors) for vectors in together}) > 4  # so there was padding
    alone = [model.encode_document(page) for page in pages] + [model.encode_query(query) for query in queries]
    for a, b in zip(alone, together, strict=True):
        assert close(a, b)


# -- files


def test_round_trip(tmp_path, pages):
    model = make("qwen3-vl", slots="tokens", lora=True, reduction="kmeans", page_vectors=6)
    model.save_pretrained(str(tmp_path / "model"))
    for again in (
        randslot.load(tmp_path / "model"),
        MultiVectorEncoder(str(tmp_path / "model"), trust_remote_code=True),
    ):
        assert again[0].settings == model.settings
        assert torch.equal(again.encode_document(pages[0]), model.encode_document(pages[0]))
        assert torch.equal(again.encode_query("tax"), model.encode_query("tax"))
    model.use(reduction="pooling", page_vectors=5)
    other = randslot.load(tmp_path / "model", reduction="pooling", page_vectors=5)
    assert torch.equal(other.encode_document(pages[0]), model.encode_document(pages[0]))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "one vector per token" in card
    assert "| Vectors | one per query token, at most 6 per page (kmeans) |" in card


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "tokens", "inference": "zero"}, "inference='zero' cannot be used with slots='tokens'"),
        ({"slots": "random", "inference": "tokens"}, "inference='tokens' cannot be used with slots='random'"),
        ({"slots": "random", "reduction": "kmeans"}, "reduction='kmeans' needs a model with slots='tokens'"),
        ({"slots": "tokens", "reduction": "mean"}, "reduction='mean' is not one of none, random, cluster, kmeans"),
    ],
)
def test_wrong_combinations_are_one_line(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        randslot.tiny("qwen3-vl", **options)
    assert "\n" not in str(caught.value)


# -- training


def batch_of(model: MultiVectorEncoder) -> list[dict[str, Tensor]]:
    """Five pairs whose queries and pages differ in length; the last page is the first again."""
    queries = ["tax", "a much longer question", "fleet size", "x", "revenue by region"]
    pages = [noise(64 + 32 * (i % 3), 64, i) for i in (0, 1, 2, 3, 0)]
    return [model.preprocess(queries, task="query"), model.preprocess(pages, task="document")]


def by_hand(model: MultiVectorEncoder, features: list[dict[str, Tensor]]) -> float:
    """InfoNCE over MaxSim in plain loops over real tokens, the repeated page left out of the negatives."""
    sides = []
    for part in features:
        vectors = model(part)["token_embeddings"].detach()
        sides.append([item[mask.bool()] for item, mask in zip(vectors, part["attention_mask"], strict=True)])
    keys, total = features[1]["keys"].tolist(), 0.0
    for i, query in enumerate(sides[0]):
        scores = torch.tensor([sum(max(float(a @ b) for b in page) for a in query) / 0.5 for page in sides[1]])
        kept = [j for j in range(len(scores)) if j == i or keys[j] != keys[i]]
        total += float(torch.logsumexp(scores[kept], 0) - scores[i])
    return total / len(keys)


def test_loss_by_hand_and_the_same_gradients_with_a_cache():
    results = []
    for micro_batch in (0, 2):
        model = make("qwen3-vl", slots="tokens", lora=LORA, visual_tokens=16).train()
        loss = Loss(model, temperature=0.5, batch=5, micro_batch=micro_batch, mask_repeats=True)
        features = batch_of(model)
        value = loss(features)
        value.backward()
        assert value.item() == pytest.approx(by_hand(model, features), abs=1e-4)
        results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert max(gradient.abs().max() for gradient in results[0].values()) > 1e-3
    for found in results[1:]:
        assert found.keys() == results[0].keys()
        for name, expected in results[0].items():
            torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-4)
