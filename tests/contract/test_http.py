"""The API and the page of `randslot serve`, a process on a real port, as docs/web.md describes them."""

from __future__ import annotations

import base64
import os
import signal
import socket
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import randslot
from contract.serving import MARKUP, TOKEN, Served, command, is_refused, make_pdf, serve, wait_for, write_papers

pytestmark = [pytest.mark.xdist_group("contract-http"), pytest.mark.slow]
ROUTES = {
    "GET /api/health",
    "GET /api/live",
    "GET /api/status",
    "POST /api/search",
    "POST /api/words",
    "POST /api/ranks",
    "POST /api/explain",
    "GET /api/documents",
    "GET /api/choices",
    "GET /api/documents/{id}",
    "DELETE /api/documents/{id}",
    "GET /api/documents/{id}/file",
    "GET /api/documents/{id}/pages/{number}/image",
    "POST /api/uploads",
    "GET /api/uploads",
    "GET /api/uploads/{id}",
    "POST /api/session",
    "GET /v1/models",
    "POST /v1/embeddings",
    "POST /pooling",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Papers, and a library of their words."""
    folder = tmp_path_factory.mktemp("http")
    papers = write_papers(folder / "papers")
    command("index", papers, "-l", folder / "lib", "--quiet", "--meta", "year=2023")
    os.utime(papers / "report.pdf", (0, 0))
    command("index", papers, "-l", folder / "lib", "--quiet", "--meta", "year=2023")
    return folder


@pytest.fixture(scope="module")
def served(folder) -> Iterator[Served]:
    """A service for checks that change nothing."""
    with serve(folder / "lib") as one:
        yield one


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Iterator[Served]:
    """A service of a new library, for uploads."""
    with serve(tmp_path_factory.mktemp("uploads") / "lib", "--new") as one:
        yield one


# -- searches


def test_search_gives_pages_with_snippet_marks_and_boxes(served):
    answer = served.client.post("/api/search", json={"query": "deferred tax zqx", "k": 2}).json()
    assert answer["unknown"] == ["zqx"]
    first, second = answer["hits"]
    assert (first["document"]["name"], first["page"], first["by"]) == ("report.pdf", 1, "words")
    assert (second["document"]["name"], second["page"]) == ("report.pdf", 3)
    assert first["score"] > second["score"] > 0
    text, marks = first["snippet"]["text"], first["snippet"]["marks"]
    assert [text[start:end].lower() for start, end in marks] == ["deferred", "tax"]
    assert len(first["boxes"]) == 2
    for left, top, right, bottom in first["boxes"]:
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
    assert served.client.get(first["image"]).headers["content-type"] == "image/jpeg"
    assert set(first["document"]) >= {"id", "name", "folder", "place", "pages", "bytes", "modified", "metadata", "file"}


@pytest.mark.parametrize(
    ("filters", "num"),
    [
        ({"name": "REPORT"}, 2),
        ({"name": "rep*.pdf"}, 2),
        ({"name": "twin"}, 0),
        ({"folder": "papers"}, 2),
        ({"folder": "east"}, 0),
        ({"source": "report.pdf"}, 2),
        ({"source": "nothing.pdf"}, 0),
        ({"modified_to": "1970-01-01"}, 2),
        ({"modified_from": "1970-01-02"}, 0),
        ({"metadata": {"year": 2023}}, 2),
        ({"metadata": {"year": 1999}}, 0),
        ({"by": "words", "exact": True}, 2),
    ],
)
def test_filters_of_a_search_must_all_hold(served, filters, num):
    assert len(served.search("tax", **filters)) == num


def test_hits_come_in_parts_and_copies_as_one(served):
    assert served.names("tax", k=1) + served.names("tax", k=1, offset=1) == served.names("tax")
    separate, (one,) = served.search("tides"), served.search("tides", collapse=True)
    assert len(separate) == 2
    assert separate[0]["twin"] == separate[1]["twin"]
    assert {hit["document"]["place"] for hit in separate} == {"east", "west"}
    assert len(one["copies"]) == 1


def test_words_and_ranks_explain_a_hit_and_vectors_are_not_there(served):
    asked = {"query": "deferred tax zqx", "document": served.documents()["report.pdf"]["id"], "page": 1}
    words = served.client.post("/api/words", json=asked)
    assert words.status_code == 200
    assert {"deferred", "tax", "zqx"} <= set(words.text.lower().replace('"', " ").split())
    assert served.client.post("/api/ranks", json=asked).json()["words"] == 1
    is_refused(served.client.post("/api/explain", json=asked), 400)
    is_refused(served.client.post("/api/search", json={"query": "tax", "by": "vectors"}), 400)


# -- documents


def test_documents_are_listed_filtered_sorted_and_paged(served):
    def ask(**params: object) -> dict:
        return served.client.get("/api/documents", params=params).json()

    everything = ask()
    assert (everything["total"], len(everything["documents"])) == (5, 5)
    assert {one["name"] for one in everything["documents"]} == {"report.pdf", "twin.pdf", "long.pdf", MARKUP}
    assert ask(name="TWIN")["total"] == 2
    assert [one["place"] for one in ask(folder="east")["documents"]] == ["east"]
    assert ask(sort="pages", order="down", limit=1)["documents"][0]["name"] == "report.pdf"
    assert ask(offset=4)["documents"] == everything["documents"][4:]
    report = served.documents()["report.pdf"]
    assert report["pages"] == 3
    assert served.client.get(f"/api/documents/{report['id']}").json() == report


def test_a_document_is_served_as_the_file_it_is(served, folder):
    answer = served.client.get(served.documents()["report.pdf"]["file"])
    assert answer.content == (folder / "papers" / "report.pdf").read_bytes()
    assert answer.headers["content-type"] == "application/pdf"


def test_pages_come_as_images_in_three_sizes(served):
    id = served.documents()["report.pdf"]["id"]
    widths = []
    for size in ("small", "large", "full"):
        answer = served.client.get(f"/api/documents/{id}/pages/2/image", params={"size": size})
        assert answer.headers["content-type"] == "image/jpeg"
        image = Image.open(BytesIO(answer.content))
        assert image.height > image.width
        widths.append(image.width)
    assert widths == sorted(set(widths))


def test_status_choices_health_and_live(served):
    status = served.client.get("/api/status").json()
    assert (status["library"], status["documents"], status["pages"]) == ("lib", 5, 7)
    assert (status["model"], status["by"], status["read_only"], status["uploads_waiting"]) == (None, "words", False, 0)
    choices = served.client.get("/api/choices").json()
    assert choices["folders"] == {"papers": 3, "east": 1, "west": 1}
    assert choices["years"]["1970"] == 1
    assert "year" in choices["metadata"]
    for path in ("/api/health", "/api/live"):
        assert served.client.get(path).json() == {"status": "ok"}


# -- the page, and what surrounds the routes


def test_the_page_and_its_parts_name_no_other_site(served):
    page = served.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for path in ("/", "/docs", "/page.css", "/page.js"):
        answer = served.client.get(path)
        assert answer.status_code == 200
        for word in ("https://", 'src="http', 'href="http', "@import", "url("):
            assert word not in answer.text


def test_every_answer_has_strict_headers(served):
    file = served.documents()["report.pdf"]["file"]
    for path in ("/", "/docs", "/nothing", "/api/status", "/api/nothing", file):
        headers = served.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_schema_names_exactly_the_documented_routes(served):
    paths = served.client.get("/openapi.json").json()["paths"]
    assert {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods} == ROUTES


def test_unknown_paths_and_wrong_methods_are_refused_and_head_works(served):
    is_refused(served.client.get("/nothing"), 404)
    is_refused(served.client.get("/api/documents/00000000-0000-0000-0000-000000000000"), 404)
    wrong = served.client.get("/api/search", params={"query": "tax"})
    is_refused(wrong, 405)
    assert wrong.headers["allow"] == "POST"
    is_refused(served.client.delete("/api/documents"), 405)
    for path in ("/", "/api/status", served.documents()["report.pdf"]["file"]):
        head = served.client.head(path)
        assert head.status_code == 200
        assert head.headers["content-length"] == served.client.get(path).headers["content-length"]


@pytest.mark.parametrize(
    ("body", "offending"),
    [
        ({}, "query"),
        ({"query": " \n"}, "query"),
        ({"query": 5}, "query"),
        ({"query": "x" * 1001}, "1000"),
        ({"query": "tax", "k": 0}, "k"),
        ({"query": "tax", "k": 101}, "100"),
        ({"query": "tax", "k": "5"}, "k"),
        ({"query": "tax", "exact": 1}, "exact"),
        ({"query": "tax", "by": "magic"}, "by"),
        ({"query": "tax", "filter": {}}, "filter"),
        ({"query": "tax", "offset": 401}, "400"),
        ({"query": "tax", "modified_from": "yesterday"}, "modified_from"),
        ({"query": "tax", "metadata": 5}, "metadata"),
    ],
)
def test_wrong_values_are_refused_by_name(served, body, offending):
    assert offending in is_refused(served.client.post("/api/search", json=body), 422)


# -- uploads


def test_an_upload_is_indexed_found_and_removed(changed, tmp_path):
    content = make_pdf(tmp_path, "Zebras are striped", "Second page")
    job = changed.upload("gamma.pdf", content)
    assert (job["state"], job["name"], job["pages_done"], job["num_pages"]) == ("done", "gamma.pdf", 2, 2)
    assert job["error"] is None
    (hit,) = changed.search("zebras")
    assert (hit["document"]["name"], hit["document"]["uploaded"]) == ("gamma.pdf", True)
    assert changed.client.get(hit["document"]["file"]).content == content
    assert changed.upload("other.pdf", content)["same_as"] == "gamma.pdf"
    assert changed.upload("gamma.pdf", make_pdf(tmp_path, "Different"))["name"] not in ("gamma.pdf", "other.pdf")
    assert len(changed.client.get("/api/uploads").json()["uploads"]) >= 3
    id = hit["document"]["id"]
    assert changed.client.delete(f"/api/documents/{id}").status_code == 204
    assert changed.search("zebras") == []
    is_refused(changed.client.get(f"/api/documents/{id}/file"), 404)
    is_refused(changed.client.delete(f"/api/documents/{id}"), 404)


def test_an_upload_that_cannot_be_read_fails_with_a_reason(changed, tmp_path):
    job = changed.upload("torn.pdf", make_pdf(tmp_path, "x")[:150])
    assert job["state"] == "failed"
    assert job["error"]
    assert "/" not in job["error"]
    assert "torn.pdf" not in changed.documents()
    is_refused(changed.client.get("/api/uploads/nothing"), 404, 422)


# -- access


def test_read_only_refuses_changes_and_answers_searches(folder, tmp_path):
    with serve(folder / "lib", "--read-only", "--origin", "https://friend.example", token=TOKEN) as one:
        _check_read_only(one, tmp_path)
        _check_token(one)
        _check_origin(one)


def _check_read_only(one: Served, tmp_path: Path) -> None:
    assert one.client.get("/api/status").json()["read_only"]
    assert len(one.search("tax")) == 2
    is_refused(one.client.post("/api/uploads?name=a.pdf", content=make_pdf(tmp_path, "x")), 403)
    is_refused(one.client.delete(f"/api/documents/{one.documents()['report.pdf']['id']}"), 403)
    assert "report.pdf" in one.documents()
