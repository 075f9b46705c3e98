"""A student of the library's model reads queries, and the large model is not loaded for them; others are refused."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import UsageError
from randslot.library import models
from randslot.library.library import Library
from randslot.model import open_model
from randslot.model.model import make_student
from randslot.model.reader import Identity, narrow
from randslot.serve.access import Access
from randslot.serve.app import make_app
from randslot.serve.service import Service
from support.libraries import ToyReader, write_tiff
from support.models import make
from support.pdf import write_pdf


@dataclass
class ToyStudent(ToyReader):
    """Says what its teacher says, word for word."""

    teacher: Identity = field(default_factory=lambda: ToyReader().identity)

    @property
    def identity(self) -> Identity:
        return replace(ToyReader().identity, weights="student")


@pytest.fixture(scope="module")
def light(model, tmp_path_factory) -> Path:
    """A student that has learned nothing, of the model of these tests."""
    folder = tmp_path_factory.mktemp("student") / "light"
    make_student("tiny", model.identity).save_pretrained(str(folder))
    return folder


@pytest.fixture
def no_large_model(monkeypatch) -> None:
    """Fail if the model of a library is loaded."""

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("the large model was loaded")

    monkeypatch.setattr(models, "load_bound", refuse)


@pytest.fixture(scope="module")
def indexed(saved, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("indexed")
    write_tiff(folder / "a.tif", [1, 2, 3])
    with Library(folder / "lib", saved) as library:
        library.add(folder / "a.tif", workers=1)
    return folder / "lib"


def test_searches_by_a_student_find_what_its_teacher_finds(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers, workers=1)
        wanted = [(hit.id, hit.score) for hit in library.search("tax", 7)]
    with Library(tmp_path / "lib", query_model=ToyStudent()) as library:
        assert [(hit.id, hit.score) for hit in library.search("tax", 7)] == wanted
        assert library.compare("tax", wanted[0][0]).shape == (3, 2)


def test_the_large_model_is_not_loaded_to_search(indexed, light, no_large_model):
    with Library(indexed, query_model=light) as library:
        (hit,) = library.search("tax", 1, by="vectors")
        student = randslot.load(light)
        assert hit.score == pytest.approx(library.compare("tax", hit.id).max(1).sum(), abs=1e-2)
        assert (library.models.embed_queries(["tax"])[0] == student.embed_queries(["tax"])[0]).all()
        assert library.has_student
        with pytest.raises(AssertionError, match="was loaded"):
            _ = library.models.model


def test_indexing_still_takes_the_large_model_and_trust_is_in_its_vectors(indexed, light, monkeypatch, tmp_path):
    asked: list[Any] = []
    monkeypatch.setattr(models.LibraryModels, "check_reading", lambda self, *_: asked.append(self.embed_lines(["tax"])))
    write_pdf(tmp_path / "more.pdf", 1, [])
    with Library(indexed, query_model=light) as library:
        before = len(library)
        assert not library.add(tmp_path / "more.pdf", workers=1).failed
        assert len(library) == before + 1
        assert (asked[0][0] == library.models.model.embed_queries(["tax"])[0]).all()


def test_the_student_of_another_model_is_refused(indexed, other, saved):
    with pytest.raises(
        UsageError, match=r"was indexed with .*; a model in memory .* is a student of a model in memory"
    ):
        Library(indexed, query_model=make_student("tiny", other.identity))
    with pytest.raises(UsageError, match="is not distilled from it"):
        Library(indexed, query_model=other)
    random = randslot.load(saved, inference="random").identity
    with pytest.raises(UsageError, match="was indexed with inference='zero', not 'random': distill with"):
        Library(indexed, query_model=make_student("tiny", random))


def test_a_student_is_not_the_model_of_a_library(indexed, light, tmp_path, papers):
    message = "is a distilled query model: index with"
    answer = CliRunner().invoke(app, ["index", str(papers), "-l", str(tmp_path / "new"), "--model", str(light)])
    assert isinstance(answer.exception, UsageError)
    assert message in str(answer.exception)
    for model in (str(light), randslot.load(light)):
        with pytest.raises(UsageError, match=message):
            Library(indexed, model)


def test_a_student_follows_the_width_of_its_library(saved, tmp_path, papers):
    """In a library that was narrowed, made narrow or is wide, whichever comes first; scores are exact."""
    with Library(tmp_path / "wide", saved) as wide:
        wide.add(papers, workers=1)
    with Library(tmp_path / "narrow", open_model(str(saved), width=16, page_vectors=2)) as made:
        made.add(papers, workers=1)
    copy = ["library", "copy", str(tmp_path / "wide"), str(tmp_path / "copy"), "--page-vectors", "2", "--width", "16"]
    assert CliRunner().invoke(app, copy).exit_code == 0
    student = make_student("tiny", randslot.load(saved).identity)
    (full,) = student.embed_queries(["tax"])
    found = {}
    for name, num, width in (("narrow", 2, 16), ("wide", 4, 0), ("copy", 2, 16)):
        with Library(tmp_path / name, query_model=student) as library:
            expected = {}
            for page in library.store.read([page.id for page in library.store.find(None)]).values():
                assert page.vectors.shape == (num, width or 64)
                expected[page.id] = (narrow(full, width) @ page.vectors.T).max(1).sum()
            hits = library.search("tax", 9, by="vectors", exact=True)
            assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-3)  # queries in half precision
            found[name] = [(Path(hit.source).name, hit.page, hit.score) for hit in hits]
    assert found["copy"] == found["narrow"] != found["wide"]


def test_a_service_gives_the_widths_that_a_student_has_learned(tmp_path, papers):
    model = make("qwen3-vl", query_vectors=1, page_vectors=1, visual_tokens=16, widths=(16, 32))
    with Library(tmp_path / "lib", model) as library:
        library.add(papers, workers=1)
        student = make_student("tiny", model.identity)
        library.models.use_student(student)
        service = Service(library, read_only=True)
        try:
            client = TestClient(make_app(service, Access()), base_url="http://127.0.0.1")
            (item,) = client.post("/v1/embeddings", json={"input": "tax", "dimensions": 16}).json()["data"]
            assert item["embedding"] == pytest.approx(narrow(student.embed_queries(["tax"])[0], 16)[0], abs=1e-3)
            assert client.post("/v1/embeddings", json={"input": "tax", "dimensions": 17}).status_code == 400
        finally:
            service.close()


def test_commands_take_a_student(indexed, light, no_large_model, tmp_path):
    logging.getLogger("randslot").setLevel(logging.ERROR)
    words = ["search", "tax", "-l", str(indexed), "--query-model", str(light)]
    answer = CliRunner().invoke(app, [*words, "--by", "vectors", "--json"])
    assert answer.exit_code == 0, answer.exception
    with Library(indexed, query_model=light) as library:
        assert [hit["id"] for hit in json.loads(answer.stdout)] == [
            hit.id for hit in library.search("tax", by="vectors")
        ]
    refused = CliRunner().invoke(app, [*words, "--by", "words"])
    assert "--query-model only affect vector search" in str(refused.exception)
    missing = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "nowhere")])
    assert "no model found" in str(missing.exception)


def test_a_service_and_an_agent_take_a_student(indexed, light, no_large_model):
    with Library(indexed, query_model=light) as library:
        service = Service(library, read_only=True)
        try:
            client = TestClient(make_app(service, Access()), base_url="http://127.0.0.1")
            assert client.post("/api/search", json={"query": "tax", "by": "vectors"}).json()["hits"]
            (row,) = client.post("/pooling", json={"input": ["tax"]}).json()["data"]
            assert len(row["data"]) == 4
            assert client.get("/v1/models").json()["data"][0]["id"] == "light"
            page = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a page"}]}]}
            refused = client.post("/pooling", json=page)
            assert refused.status_code == 400
            assert "query" in refused.text, refused.text
        finally:
            service.close()
    mcp_server = pytest.importorskip("randslot.serve.mcp_server")
    with closing(mcp_server.LocalTools(str(indexed), query_model=str(light))) as agent:
        assert agent.search("tax", 1, None)
