"""Other people's models as page readers: their vectors, scores and prompts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from transformers import ColQwen2ForRetrieval

from randslot.errors import RandSlotError, UsageError
from randslot.model import EmbeddingModel, open_model
from randslot.model.reader import read_identity
from randslot.model.sentence_model import _without_video, adopt
from randslot.model.text_reader import cut_windows
from support import others
from support.models import noise

SAVE: dict[str, Callable[[Path], Path]] = {
    "colpali": others.save_colpali,
    "colqwen2": others.save_colqwen2,
    "colmodernvbert": others.save_colmodernvbert,
    "qwen3-vl-embedding": others.save_qwen3_vl_embedding,
    "colqwen-adapter": others.save_colqwen_adapter,
    "minilm": others.save_minilm,
    "colbert": others.save_colbert,
}
QUERIES = ["hello world, a longer query", "a", "tax 2023"]
TEXTS = ["some text. more, and a few words", "x", "a page about tax in 2023"]
IMAGES = [noise(100, 140, 1), noise(260, 90, 2), noise(64, 64, 3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("others")
    return {name: save(root / name) for name, save in SAVE.items()}


@pytest.fixture(scope="module", params=SAVE)
def opened(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[EmbeddingModel, Any]:
    """A model as it is opened here, and as sentence-transformers loads it."""
    folder = folders[request.param]
    ours = open_model(str(folder), device="cpu")
    assert isinstance(ours, EmbeddingModel)
    cls = MultiVectorEncoder if ours.settings.is_multi_vector else SentenceTransformer
    with _without_video():
        theirs = cls(str(folder), device="cpu", processor_kwargs={"backend": "pil"}, local_files_only=True)
    return ours, theirs


def pages_of(model: EmbeddingModel) -> list[Any]:
    return IMAGES if model.reads == "image" else TEXTS


def max_sim(query: np.ndarray, page: np.ndarray) -> float:
    return float((query @ page.T).max(1).sum())


def scores_of(model: EmbeddingModel) -> np.ndarray:
    pages = model.embed_pages(pages_of(model))
    return np.array([[max_sim(query, page) for page in pages] for query in model.embed_queries(QUERIES)])


def test_scores_are_those_of_sentence_transformers(opened: tuple[EmbeddingModel, Any]) -> None:
    ours, theirs = opened
    pages = pages_of(ours)
    if "colmodernvbert" in str(ours.source.name):
        expected = score_colmodernvbert(theirs)
    else:
        expected = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(pages)).numpy()
    own = ours.similarity(ours.encode_query(QUERIES), ours.encode_document(pages)).numpy()
    np.testing.assert_allclose(own, expected, atol=1e-5)
    np.testing.assert_allclose(scores_of(ours), expected, atol=1e-5)
    assert expected.std() > 1e-3  # or nothing would have been compared


def score_colmodernvbert(theirs: MultiVectorEncoder) -> np.ndarray:
    """The published way, by its own processor: sentence-transformers leaves its prompts out."""
    model, processor = theirs[0].model, theirs[0].processor
    with torch.inference_mode():
        queries = model(**processor.process_queries(text=QUERIES)).embeddings
        pages = model(**processor.process_images(images=IMAGES)).embeddings
    scores: np.ndarray = processor.score_retrieval(queries, pages).numpy()
    return scores


def test_batch_and_order_change_nothing(opened: tuple[EmbeddingModel, Any]) -> None:
    model, _ = opened
    pages = pages_of(model)
    together, turned = model.embed_pages(pages), model.embed_pages(pages[::-1])[::-1]
    alone = [model.embed_pages([page])[0] for page in pages]
    for one, other, third in zip(together, turned, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        np.testing.assert_allclose(one, third, atol=1e-5)
    for one, query in zip(model.embed_queries(QUERIES), QUERIES, strict=True):
        np.testing.assert_allclose(one, model.embed_queries([query])[0], atol=1e-5)


def test_it_describes_itself(opened: tuple[EmbeddingModel, Any]) -> None:
    model, _ = opened
    identity = model.identity
    assert read_identity(identity.as_dict()) == identity
    (query,) = model.embed_queries(["a"])
    assert query.shape[1] == model.dimension == identity.dimension
    assert identity.num_vectors("page") == model.num_vectors("page") == (None if model.settings.is_multi_vector else 1)
    again = open_model(str(model.source.name), device="cpu")
    assert again.identity == identity  # also after encoding, which changes a tokenizer's state


def test_prompts_are_honoured_and_recorded(folders: dict[str, Path], tmp_path: Path) -> None:
    plain = open_model(str(folders["minilm"]), device="cpu")
    model = open_model(str(others.save_minilm(tmp_path / "prompted", query="query: ", document="passage: ")))
    assert model.identity.settings["prompts"] == {"query": "query: ", "document": "passage: "}
    np.testing.assert_allclose(model.embed_queries(["tax"]), plain.embed_queries(["query: tax"]), atol=1e-6)
    np.testing.assert_allclose(model.embed_pages(["tax"]), plain.embed_pages(["passage: tax"]), atol=1e-6)
    model.use(prompts={"query": "", "document": ""})
    np.testing.assert_allclose(model.embed_queries(["tax"]), plain.embed_queries(["tax"]), atol=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_vectors_that_are_not_of_unit_length_score_as_their_model_says(tmp_path: Path, similarity: str) -> None:
    folder = others.save_minilm(tmp_path / "model", normalize=False, similarity=similarity)
    model, theirs = open_model(str(folder), device="cpu"), SentenceTransformer(str(folder), device="cpu")
    assert model.settings.unit is (similarity == "cosine")
    expected = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(TEXTS)).numpy()
    np.testing.assert_allclose(scores_of(model), expected, rtol=1e-5, atol=1e-5)


def test_a_mean_over_the_query_is_part_of_its_vectors(tmp_path: Path) -> None:
    folder = others.save_colbert(tmp_path / "model", similarity="meanmaxsim")
    model, theirs = open_model(str(folder), device="cpu"), MultiVectorEncoder(str(folder), device="cpu")
    expected = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(TEXTS)).numpy()
    np.testing.assert_allclose(scores_of(model), expected, atol=1e-5)


def test_an_adapter_on_a_retriever_is_that_retriever_with_its_adapter(tmp_path: Path) -> None:
    folder = others.save_colqwen2_adapter(tmp_path / "adapter")
    model = open_model(str(folder), device="cpu")
    processor = model.model[0].processor
    theirs = ColQwen2ForRetrieval.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = theirs(**processor.process_images(images=IMAGES[:1])).embeddings[0]
        without = ColQwen2ForRetrieval.from_pretrained(tmp_path / "adapter-base").eval()
        plain = without(**processor.process_images(images=IMAGES[:1])).embeddings[0]
    np.testing.assert_allclose(model.embed_pages(IMAGES[:1])[0], expected, atol=1e-5)
    assert (expected - plain).abs().max() > 0.01


def test_an_adapter_that_fits_nothing_is_told(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["colqwen-adapter"], tmp_path / "adapter"))
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({f"base_model.{key}": value for key, value in weights.items()}, folder / "adapter_model.safetensors")
    with pytest.raises(RandSlotError, match=r"has missing weights, such as .*lora"):
        open_model(str(folder))


def test_a_distance_is_refused(tmp_path: Path) -> None:
    folder = others.save_minilm(tmp_path / "model", similarity="euclidean")
    with pytest.raises(RandSlotError, match="similarity='euclidean' is not one of maxsim"):
        open_model(str(folder))


@pytest.mark.parametrize("name", ["random", "kmeans", "semcluster", "pool1d", "cluster", "pooling"])
def test_pages_of_every_model_with_several_vectors_can_be_reduced(folders: dict[str, Path], name: str) -> None:
    model = open_model(str(folders["colqwen2"]), device="cpu", reduction=name, page_vectors=6)
    pages = model.embed_pages(IMAGES)
    assert [len(page) for page in pages] == [6, 6, 6]
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(pages), axis=1), 1, atol=1e-5)
    assert model.identity.num_vectors("page") == 6
    assert len(model.embed_queries(["tax"])[0]) > 6
    np.testing.assert_allclose(pages[1], model.embed_pages([IMAGES[1]])[0], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("minilm", {"reduction": "kmeans", "page_vectors": 4}, "need a model with a unit vector for every token"),
        ("minilm", {"page_vectors": 0}, "page_vectors must be a whole number from 1"),
        ("minilm", {"query_vectors": 4}, "query_vectors=4 cannot be set for this model"),
        ("colbert", {"page_vectors": 4}, "reduction and page_vectors go together"),
        ("colbert", {"reduction": "kmeans"}, "reduction and page_vectors go together"),
        ("colbert", {"reduction": "best", "page_vectors": 4}, "'best' is not one of none, random"),
        ("colbert", {"query_vectors": 4}, "query_vectors=4 cannot be set for this model"),
        ("colbert", {"inference": "zero"}, "cannot be set for this model of sentence-transformers"),
        ("colbert", {"reads": "image"}, "reads='image' cannot be set for"),
    ],
)
def test_settings_that_a_model_does_not_have_are_told(
    folders: dict[str, Path], name: str, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(UsageError, match=line):
        open_model(str(folders[name]), device="cpu", **options)


def test_queries_and_pages_of_the_wrong_kind_are_told(folders: dict[str, Path]) -> None:
    model = open_model(str(folders["minilm"]), device="cpu")
    with pytest.raises(UsageError, match="empty query"):
        model.embed_queries([" "])
    with pytest.raises(AssertionError, match="this model reads text"):
        model.embed_pages(IMAGES)
    with pytest.raises(UsageError, match="cannot be set for this model"):
        model.embed_queries(["a"], num_vectors=3)


@pytest.mark.parametrize("name", ["minilm", "colbert"])
def test_a_model_of_text_says_which_texts_it_cuts(folders: dict[str, Path], name: str) -> None:
    model = open_model(str(folders[name]), device="cpu")
    assert model.identity.reads == "text"
    assert (model.is_cut("a few words"), model.is_cut("word " * 100)) == (False, True)


def test_a_text_is_read_in_windows(folders: dict[str, Path]) -> None:
    model = open_model(str(folders["minilm"]), device="cpu", page_vectors=4)
    long, short = " ".join(f"word{i}" for i in range(150)), "a page about tax in 2023"
    pages = model.embed_pages([long, short])
    assert [len(page) for page in pages] == [2, 1]  # no window is much shorter than it must be
    parts = [" ".join(f"word{i}" for i in some) for some in (range(75), range(75, 150))]
    model.use(page_vectors=1)
    expected = [model.embed_pages([part])[0] for part in (*parts, short)]
    np.testing.assert_allclose(np.concatenate(pages), np.concatenate(expected), atol=1e-5)


def test_a_page_is_as_near_as_its_nearest_window(folders: dict[str, Path]) -> None:
    model = open_model(str(folders["minilm"]), device="cpu", page_vectors=8)
    texts = ["tax " * 70 + "hello world " * 200, "x"]
    assert (model.settings.label, model.identity.num_vectors("page")) == ("windows", 8)
    own = model.similarity(model.encode_query(QUERIES), model.encode_document(texts)).numpy()
    pages = model.embed_pages(texts)
    expected = [[max_sim(query, page) for page in pages] for query in model.embed_queries(QUERIES)]
    np.testing.assert_allclose(own, expected, atol=1e-5)
    assert len(pages[0]) == 8


def test_windows_hold_every_word_once() -> None:
    words = [f"word{i}" for i in range(500)]
    for most in (1, 2, 3, 4, 8):
        windows = cut_windows("\n".join(words), most)
        assert len(windows) == most
        assert " ".join(windows).split() == words
        counts = [len(window.split()) for window in windows]
        assert max(counts) - min(counts) <= 1
    assert cut_windows("", 4) == [""]


def test_a_model_that_somebody_has_loaded_can_be_adopted(folders: dict[str, Path]) -> None:
    model = adopt(SentenceTransformer(str(folders["minilm"]), device="cpu"))
    assert model.identity.name is None
    other = open_model(str(folders["minilm"]), device="cpu")
    assert model.identity.weights == other.identity.weights
    np.testing.assert_allclose(model.embed_pages(TEXTS), other.embed_pages(TEXTS), atol=1e-6)


def test_numbers_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    folder = others.save_minilm(tmp_path / "model", normalize=False, similarity="dot")
    model = open_model(str(folder), device="cpu")
    with torch.no_grad():
        for value in (float("nan"), 1e9):
            model.model[0].auto_model.encoder.layer[1].output.LayerNorm.bias.fill_(value)
            with pytest.raises(RandSlotError, match="not finite, or too large"):
                model.embed_queries(["a"])


@pytest.mark.parametrize("name", ["minilm", "qwen3-vl-embedding"])
def test_the_untouched_states_of_a_model_of_one_vector(name, folders):
    """A control: MaxSim over the token states that the model pools, also reduced and cut."""
    model = open_model(str(folders[name]), device="cpu", slots="tokens")
    assert isinstance(model, EmbeddingModel)
    pages = pages_of(model)
    assert (model.num_vectors("page"), model.settings.label) == (None, "tokens")
    plain = model.model.encode_document(pages, output_value="token_embeddings")
    for one, states in zip(model.embed_pages(pages), plain, strict=True):
        expected = torch.nn.functional.normalize(states.float(), dim=-1)
        torch.testing.assert_close(torch.from_numpy(one), expected.cpu(), atol=1e-5, rtol=1e-5)
    queries, some = model.encode_query(QUERIES), model.encode_document(pages)
    by_hand = [[float((query @ page.T).max(1).values.sum()) for page in some] for query in queries]
    torch.testing.assert_close(model.similarity(queries, some), torch.tensor(by_hand), atol=1e-4, rtol=1e-4)
    again = open_model(str(folders[name]), device="cpu")
    again.use(**read_identity(model.identity.as_dict()).settings)  # as a library does
    assert again.identity == model.identity
    model.use(reduction="semcluster", page_vectors=2, width=8)
    assert {vectors.shape[-1] for vectors in model.embed_pages(pages)} == {8}
    assert max(len(vectors) for vectors in model.embed_pages(pages)) == 2


def test_windows_of_an_image_have_a_vector_each(folders):
    model = open_model(str(folders["qwen3-vl-embedding"]), device="cpu", page_vectors=4)
    (vectors,) = model.embed_pages(IMAGES[:1])
    image = IMAGES[0]
    strips = [image.crop((0, i * image.height // 4, image.width, (i + 1) * image.height // 4)) for i in range(4)]
    model.use(page_vectors=1)
    np.testing.assert_allclose(np.concatenate(model.embed_pages(strips)), vectors, atol=1e-4)
