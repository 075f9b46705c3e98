"""The service as an embedding server: the vectors of its model, one or several an input, within limits."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.library.library import Library
from randslot.model.reader import narrow
from randslot.serve import embeddings
from randslot.serve.access import Access
from support.exports import far
from support.libraries import ToyReader
from support.models import make, noise
from support.services import TOKEN, client_of, listening, serving

pytestmark = pytest.mark.xdist_group("embeddings")
QUERIES = ["sales of wool", "a much longer question about the deferred tax of 2023"]


def as_url(image: Image.Image, kind: str = "png") -> str:
    file = BytesIO()
    image.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def as_messages(url: object) -> list[dict]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


@pytest.fixture(scope="module")
def one_vector():
    """A model that gives one vector a query and a page."""
    return make("qwen3-vl", query_vectors=1, page_vectors=1, visual_tokens=16)


def test_pooling_gives_all_vectors_of_queries_and_pages(client, model):
    answer = client.post("/pooling", json={"model": None, "input": QUERIES, "task": "token_embed"}).json()
    expected = model.embed_queries(QUERIES)
    assert [item["index"] for item in answer["data"]] == [0, 1]
    for item, vectors in zip(answer["data"], expected, strict=True):
        np.testing.assert_allclose(np.array(item["data"]), vectors, atol=1e-5)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
    page = noise(80, 100, 7)
    body = {"messages": as_messages(as_url(page)), "encoding_format": "base64"}
    (item,) = client.post("/pooling", json=body).json()["data"]
    found = np.frombuffer(base64.b64decode(item["data"]), "<f4").reshape(-1, model.dimension)
    np.testing.assert_allclose(found, model.embed_pages([page])[0], atol=1e-5)


def test_openais_own_client_understands_it(one_vector, tmp_path):
    openai = pytest.importorskip("openai")
    with serving(tmp_path / "lib", one_vector) as service, listening(service, Access(TOKEN)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0)
        stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
        (listed,) = client.models.list().data
        for encoding in ("float", "base64"):
            answer = client.embeddings.create(model=listed.id, input=QUERIES, encoding_format=encoding)
            expected = np.concatenate(one_vector.embed_queries(QUERIES))
            if encoding == "float":
                found = np.array([item.embedding for item in answer.data])
            else:
                texts = [str(item.embedding) for item in answer.data]
                found = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in texts])
            np.testing.assert_allclose(found, expected, atol=1e-5)
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            client.embeddings.create(model="another", input="x")
        with pytest.raises(openai.AuthenticationError, match="token required"):
            stranger.embeddings.create(model=listed.id, input="x")
        client.close()
        stranger.close()


def test_dimensions_cut_vectors_to_a_trained_width(tmp_path):
    """They have unit length after the cut, as in a narrowed library; other widths are refused in one line."""
    model = make("qwen3-vl", query_vectors=1, page_vectors=1, visual_tokens=16, widths=(16, 32))
    with serving(tmp_path / "lib", model) as service:
        client = client_of(service)
        answer = client.post("/v1/embeddings", json={"input": QUERIES, "dimensions": 16}).json()
        found = np.array([item["embedding"] for item in answer["data"]])
        expected = np.concatenate([narrow(vectors, 16) for vectors in model.embed_queries(QUERIES)])
        np.testing.assert_allclose(found, expected, atol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        for width in (17, 128):
            refused = client.post("/v1/embeddings", json={"input": "tax", "dimensions": width})
            assert refused.status_code == 400
            assert refused.json()["error"]["message"] == f"dimensions={width}: this model supports 16, 32, 64"


def test_dimensions_of_other_peoples_models(tmp_path):
    reader = ToyReader()
    with serving(tmp_path / "lib", reader) as service:
        body = {"input": "tax", "dimensions": 2}
        (item,) = client_of(service).post("/pooling", json=body).json()["data"]
        np.testing.assert_allclose(item["data"], narrow(reader.embed_queries(["tax"])[0], 2), atol=1e-3)
        refused = client_of(service).post("/pooling", json=body | {"dimensions": reader.dimension + 1})
        assert (refused.status_code, f"1 to {reader.dimension}" in refused.text) == (400, True)


def test_text_that_is_no_unicode_is_refused(client):
    json_type = {"content-type": "application/json"}
    assert client.post("/pooling", content=b'{"input": "a\\ud800"}', headers=json_type).status_code == 400


def test_large_bodies_and_large_images_are_refused(client, monkeypatch):
    big = client.post("/pooling", content=b"x" * (32 * 2**20 + 1), headers={"content-type": "application/json"})
    assert big.status_code == 413
    assert big.json()["error"]["message"] == "the request is larger than 32 MB"
    assert client.post("/api/search", content=b"x" * (64 * 1024 + 1)).status_code == 413, "others stay small"
    monkeypatch.setattr(embeddings, "MAX_PIXELS", 100)
    answer = client.post("/pooling", json={"messages": as_messages(as_url(noise(20, 20)))})
    assert "the image has 400 pixels: the limit is 100" in answer.json()["error"]["message"]


def test_remote_gives_the_vectors_of_the_model_itself(model, service, pages):
    with listening(service, Access(TOKEN)) as url:
        with pytest.raises(RandSlotError, match="401"):
            randslot.remote(url)
        served = randslot.remote(url, token=TOKEN)
        assert far(served.encode_query(QUERIES), model.encode_query(QUERIES)) < 1e-6
        assert far(served.encode_document(pages), model.encode_document(pages, batch_size=1)) < 1e-5
        assert served.dimension == model.dimension
        assert served.identity.weights == model.identity.weights
        assert served.num_vectors("page") == model.num_vectors("page")
        served.use(query_vectors=2)
        assert far(served.encode_query(QUERIES), [rows[:2] for rows in model.encode_query(QUERIES)]) < 1e-6
        with pytest.raises(UsageError, match="the server has 'zero'"):
            served.use(inference="random")


def test_random_slots_are_the_same_from_a_service(tmp_path, pages):
    """Their seed is a hash of the page, which arrives without loss; a vLLM server cannot do this."""
    model = make("qwen3-vl", inference="random", visual_tokens=16)
    with serving(tmp_path / "lib", model) as service, listening(service) as url:
        served = randslot.remote(url)
        assert far(served.encode_document(pages), model.encode_document(pages, batch_size=1)) < 1e-5
        assert far(served.encode_query(QUERIES), model.encode_query(QUERIES)) < 1e-6


def test_other_peoples_models_are_served_too(tmp_path):
    """Any `PageReader`: whoever asks gets its vectors; `remote`, which knows slots, says that it cannot."""
    reader = ToyReader()
    with serving(tmp_path / "lib", reader) as service, listening(service) as url:
        (item,) = client_of(service).post("/pooling", json={"input": "tax"}).json()["data"]
        np.testing.assert_allclose(item["data"], reader.embed_queries(["tax"])[0], atol=1e-6)
        with pytest.raises(RandSlotError, match="does not describe itself as a RandSlot model"):
            randslot.remote(url)


@pytest.mark.slow
def test_a_real_service_stands_in_for_the_model_of_a_library(model, papers, tmp_path):
    """A process serves the model; a library that was made at home is searched, and another is made, through it."""
    model.save_pretrained(str(tmp_path / "model"))
    with Library(tmp_path / "home", tmp_path / "model") as library:
        library.add(papers, workers=1)
        expected = [(hit.source, hit.page) for hit in library.search("tax", 5, by="vectors")]
    command = [sys.executable, "-m", "randslot", "serve", "-l", str(tmp_path / "served"), "--port", "0"]
    Library(tmp_path / "served", tmp_path / "model").close()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            url = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
            with Library(tmp_path / "home", url) as library:
                found = [(hit.source, hit.page) for hit in library.search("tax", 5, by="vectors")]
                assert found == expected
            with Library(tmp_path / "afar", url) as library:
                library.add(papers, workers=1)
                found = [(hit.source, hit.page) for hit in library.search("tax", 5, by="vectors")]
                assert found == expected
        finally:
            process.terminate()
