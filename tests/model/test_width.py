"""A vector cut to its first numbers is a vector of its own: the same bits whenever and wherever it is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer

import randslot
from randslot.errors import UsageError
from randslot.model import EmbeddingModel, open_model
from randslot.model.reader import narrow, read_identity
from support import others
from support.models import make, noise

TEXTS = ["some text. more, and a few words", "x", "a page about tax in 2023"]


def by_hand(vectors: np.ndarray, width: int) -> np.ndarray:
    rows = []
    for row in vectors.astype(np.float16).astype(np.float64):
        rows.append(row[:width] / np.sqrt(sum(number**2 for number in row[:width])))
    return np.array(rows)


def test_narrow_is_cut_and_unit_again():
    vectors = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    np.testing.assert_allclose(narrow(vectors, 16), by_hand(vectors, 16), atol=1e-6)
    assert np.array_equal(narrow(vectors, 0, 3), vectors[:3])
    assert np.array_equal(narrow(vectors, 16, 2), narrow(vectors[:2], 16))
    stored = vectors.astype(np.float16).astype(np.float32)
    assert np.array_equal(narrow(stored, 16), narrow(vectors, 16))  # a library is narrowed to the same bits
    assert np.array_equal(narrow(np.stack([vectors, 0 * vectors]), 16)[0], narrow(vectors, 16))
    assert not narrow(0 * vectors, 16).any()  # padding
    assert np.array_equal(narrow(2 * vectors, 16, unit=False), narrow(2 * stored, 40)[:, :16])


@pytest.mark.parametrize("options", [{}, {"slots": "tokens"}, {"slots": "tokens", "reduction": "cluster"}])
def test_a_model_cuts_queries_and_pages_last(family, options, pages, queries, tmp_path):
    model = make(family, **options, page_vectors=3, visual_tokens=16)
    full = model.embed_pages(pages), model.embed_queries(queries)
    model.use(width=16)
    assert model.dimension == model.identity.dimension == 16
    narrowed = model.embed_pages(pages), model.embed_queries(queries)
    for wide, cut in zip(full, narrowed, strict=True):
        for one, other in zip(wide, cut, strict=True):
            assert np.array_equal(narrow(one, 16), other)
    alone = [model.embed_pages([page])[0] for page in pages], [model.embed_queries([query])[0] for query in queries]
    for one, other in zip([*alone[0], *alone[1]], [*narrowed[0], *narrowed[1]], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)  # half precision, without the padding of a batch
    model.save_pretrained(str(tmp_path))
    plain = MultiVectorEncoder(str(tmp_path), device="cpu", trust_remote_code=True)
    assert plain.get_embedding_dimension() == 16
    again = randslot.load(tmp_path, device="cpu")
    assert again.identity.settings == model.identity.settings
    for one, other in zip(again.embed_pages(pages), narrowed[0], strict=True):
        assert np.array_equal(one, other)
    assert read_identity(model.identity.as_dict()) == model.identity
    model.use(width=0)
    assert "width" not in model.identity.settings


def test_a_wrong_width_is_refused():
    model = make("qwen3-vl")
    with pytest.raises(UsageError, match="width=4096"):
        model.use(width=4096)
    with pytest.raises(UsageError, match="widths"):
        model.use(widths=(8,))  # training decides that


@pytest.mark.parametrize("save", [others.save_minilm, others.save_colqwen2, others.save_colbert])
def test_models_of_other_people(save, tmp_path):
    """Cut like `truncate_dim` of sentence-transformers, but for half precision."""
    folder = save(tmp_path / "model")
    model = open_model(str(folder), device="cpu", width=8)
    assert isinstance(model, EmbeddingModel)
    assert model.dimension == 8
    pages = TEXTS if model.reads == "text" else [noise(100, 140, 1), noise(64, 64, 3)]
    if isinstance(model.model, SentenceTransformer):
        plain = model.model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
        np.testing.assert_allclose(np.concatenate(model.embed_pages(TEXTS)), plain, atol=1e-3)
    narrowed = model.embed_pages(pages)
    model.use(width=0)
    for one, other in zip(model.embed_pages(pages), narrowed, strict=True):
        assert np.array_equal(narrow(one, 8), other)
    with pytest.raises(UsageError, match="width=9999"):
        model.use(width=9999)


def test_training_ignores_the_width():
    model = make("qwen3-vl", width=16).train()
    features = model.preprocess([noise(64, 64, 1)], task="document")
    assert model(features)["token_embeddings"].shape[-1] == model.encoder.full_width
    assert torch.is_tensor(model.eval()(features)["token_embeddings"])
