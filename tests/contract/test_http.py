"""The API and the page of `randslot serve`, a process on a real port, as docs/serve.md describes them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx2
import numpy as np
import pytest
from PIL import Image

import randslot
from contract.pdf import write_pdf
from contract.serving import (
    MARKUP,
    TOKEN,
    Served,
    command,
    copy_library,
    is_refused,
    make_pdf,
    serve,
    wait_for,
    write_papers,
)

pytestmark = [pytest.mark.xdist_group("contract-http"), pytest.mark.slow]
ROUTES = {
    "GET /api/health",
    "GET /api/live",
    "GET /api/status",
    "POST /api/search",
    "GET /api/complete",
    "POST /api/words",
    "POST /api/ranks",
    "POST /api/explain",
    "GET /api/documents",
    "GET /api/facets",
    "GET /api/documents/{id}",
    "DELETE /api/documents/{id}",
    "GET /api/documents/{id}/file",
    "GET /api/documents/{id}/outline",
    "GET /api/documents/{id}/pages/{number}/image",
    "GET /api/documents/{id}/pages/{number}/crop",
    "GET /api/documents/{id}/pages/{number}/words",
    "GET /api/documents/{id}/pages/{number}/similar",
    "POST /api/uploads",
    "GET /api/uploads",
    "GET /api/uploads/{id}",
    "DELETE /api/uploads/{id}",
    "POST /api/session",
    "DELETE /api/session",
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
    answer = served.client.post("/api/search", json={"query": "deferred tax zqx", "k": 2, "boxes": True}).json()
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
        ({"in": "REPO"}, 2),
        ({"in": "papers/report"}, 2),
        ({"in": "east"}, 0),
        ({"year": 2023, "type": "pdf"}, 2),
        ({"year": 2022}, 0),
        ({"type": "slides"}, 0),
        ({"by": "words", "exact": True}, 2),
    ],
)
def test_filters_of_a_search_must_all_hold(served, filters, num):
    assert len(served.search("tax", **filters)) == num


def test_filters_that_nothing_passes_say_what_there_is(served):
    answer = served.client.post("/api/search", json={"query": "tax", "type": "slides"}).json()
    assert (answer["hits"], answer["note"]) == ([], "no file matches type=slides: the library has pdf (4), image (1)")


def test_a_hit_says_whether_its_file_is_gone(tmp_path):
    write_pdf(tmp_path / "in" / "gone.pdf", [["A walrus"]])
    command("index", tmp_path / "in", "-l", tmp_path / "lib", "--quiet")
    with serve(tmp_path / "lib") as one:
        assert [hit["gone"] for hit in one.search("walrus")] == [False]
        (tmp_path / "in" / "gone.pdf").unlink()
        assert [hit["gone"] for hit in one.search("walrus")] == [True]


def test_hits_come_in_parts_and_copies_as_one(served):
    assert served.names("tax", k=1) + served.names("tax", k=1, offset=1) == served.names("tax")
    separate, (one,) = served.search("tides"), served.search("tides", collapse=True)
    assert len(separate) == 2
    assert separate[0]["twin"] == separate[1]["twin"]
    assert {hit["document"]["place"] for hit in separate} == {"east", "west"}
    assert len(one["copies"]) == 1


def test_a_search_box_completes_words_and_groups_documents(served):
    found = served.client.get("/api/complete", params={"prefix": "defe"}).json()
    assert found["words"] == ["deferred"]
    assert served.client.get("/api/complete", params={"prefix": "REPO"}).json()["names"] == ["report.pdf"]
    assert served.search("defe", verbatim=True) == []
    assert served.names("defe", prefix=True) == served.names("deferred")
    (hit,) = served.search("tax", group="document")
    assert hit["document"]["name"] == "report.pdf"
    typed = {"query": "defered tax", "verbatim": True}
    assert served.client.post("/api/search", json=typed).json()["corrected"] is None


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


def test_status_facets_health_and_live(served):
    status = served.client.get("/api/status").json()
    assert (status["library"], status["documents"], status["pages"]) == ("lib", 5, 7)
    assert (status["model"], status["by"], status["read_only"], status["uploads_waiting"]) == (None, "words", False, 0)
    facets = served.client.get("/api/facets").json()
    assert facets["folders"] == {"papers": 3, "east": 1, "west": 1}
    assert (facets["types"], facets["years"]) == ({"pdf": 4, "image": 1}, {"2023": 5})
    assert facets["languages"]["english"] == 2
    facets = served.client.get("/api/facets", params={"in": "EAST", "type": "slides"}).json()
    assert (facets["types"], facets["years"], facets["folders"]) == ({"pdf": 1}, {}, {})  # each by the other filters
    assert served.client.get("/api/documents", params={"in": "east", "year": 2023}).json()["total"] == 1
    assert "year" in facets["metadata"]
    for path in ("/api/health", "/api/live"):
        assert served.client.get(path).json() == {"status": "ok"}


# -- the page, and what surrounds the routes


def test_the_page_and_its_parts_name_no_other_site(served):
    """All that a page refers to is followed: styles, scripts and what they import."""
    seen: set[str] = set()
    left = {"/", "/docs"}
    while left:
        path = left.pop()
        seen.add(path)
        answer = served.client.get(path)
        assert answer.status_code == 200, path
        if not path.endswith(".svg"):
            for word in ("https://", 'src="http', 'href="http', "@import", "url("):
                assert word not in answer.text
            parts = re.findall(r"""(?:src|href|from|import\()[= ]*["']\.?(/[\w/.-]+\.\w+)["']""", answer.text)
            left |= set(parts) - seen
    assert served.client.get("/").headers["content-type"].startswith("text/html")
    assert {Path(path).suffix for path in seen} >= {"", ".css", ".js"}


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


@pytest.fixture(scope="module")
def guarded(folder, tmp_path_factory) -> Iterator[Served]:
    """A service that is read-only, has a token, and lets pages of one origin in."""
    lib = copy_library(folder / "lib", tmp_path_factory.mktemp("guarded"))
    with serve(lib, "--read-only", "--origin", "https://friend.example", token=TOKEN) as one:
        yield one


def test_read_only_refuses_changes_and_answers_searches(guarded, tmp_path):
    assert guarded.client.get("/api/status").json()["read_only"]
    assert len(guarded.search("tax")) == 2
    is_refused(guarded.client.post("/api/uploads?name=a.pdf", content=make_pdf(tmp_path, "x")), 403)
    is_refused(guarded.client.get("/api/uploads"), 403)
    is_refused(guarded.client.delete(f"/api/documents/{guarded.documents()['report.pdf']['id']}"), 403)
    assert "report.pdf" in guarded.documents()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer \xe4".encode("latin-1")},
    ],
)
def test_without_the_token_only_the_page_and_health_are_shown(guarded, headers):
    with httpx2.Client(base_url=guarded.url, headers=headers) as stranger:
        for path in ("/api/status", "/api/documents", "/api/uploads", "/api/facets", "/api/nothing"):
            is_refused(stranger.get(path), 401)
        is_refused(stranger.post("/api/search", json={"query": "tax"}), 401)
        for path in ("/v1/embeddings", "/pooling", "/mcp"):
            assert stranger.post(path, json={"input": "tax"}).status_code == 401
        for path in ("/", "/docs", "/openapi.json", "/api/health", "/api/live"):
            assert stranger.get(path).status_code == 200


def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(guarded):
    with httpx2.Client(base_url=guarded.url) as visitor:
        is_refused(visitor.post("/api/session", json={"token": "wrong"}), 401)
        answer = visitor.post("/api/session", json={"token": TOKEN})
        cookie = answer.headers["set-cookie"].lower()
        assert answer.status_code == 204
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert visitor.get("/api/status").status_code == 200
        name = answer.headers["set-cookie"].partition("=")[0]
        visitor.cookies.clear()
        for value in (TOKEN, "", "wrong"):
            is_refused(visitor.get("/api/status", headers={"Cookie": f"{name}={value}"}), 401)


def test_only_named_origins_may_use_the_api(guarded, served):
    friend, enemy = {"Origin": "https://friend.example"}, {"Origin": "https://enemy.example"}
    asked = {"Access-Control-Request-Method": "POST"}
    assert guarded.client.options("/api/search", headers=friend | asked).status_code == 200
    answer = guarded.client.post("/api/search", json={"query": "tax"}, headers=friend)
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"
    is_refused(guarded.client.post("/api/search", json={"query": "tax"}, headers=enemy), 403)
    is_refused(served.client.options("/api/search", headers=friend | asked), 403)
    seen = served.client.get("/api/status", headers=friend).headers
    assert not [name for name in seen if name.startswith("access-control")]


def test_wrong_usage_is_one_line_with_exit_code_2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, offending in [
            (["--host", "0.0.0.0"], "0.0.0.0"),
            (["--token", "short"], "token"),
            (["--origin", "https://example.org/page"], "origin"),
            (["--port", "99999"], "99999"),
            (["--new", "--port", port], port),
            ([], str(tmp_path / "lib")),
        ]:
            error = command("serve", "-l", tmp_path / "lib", *options, code=2)
            assert offending in error
            assert error.count("\n") == 1
    assert not (tmp_path / "lib" / "library.json").exists()


# -- how it ends


def test_sigterm_finishes_what_was_acknowledged(tmp_path):
    content = make_pdf(tmp_path, *[f"Page {number} about yaks" for number in range(40)])
    with serve(tmp_path / "lib", "--new") as one:
        assert one.client.post("/api/uploads?name=late.pdf", content=content).status_code == 202
        code, err = one.stop()
    assert code == 0, err
    assert "Traceback" not in err
    (file,) = json.loads(command("library", "list", "-l", tmp_path / "lib", "--json"))
    assert (file["source"].rpartition("/")[2], file["num_pages"]) == ("late.pdf", 40)


def test_a_killed_service_indexes_acknowledged_uploads_when_it_is_back(tmp_path):
    content = make_pdf(tmp_path, *[f"Page {number} about yaks" for number in range(200)])
    with serve(tmp_path / "lib", "--new") as one, one.connect() as visitor:
        head = b"POST /api/uploads?name=cut.pdf HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"
        visitor.sendall(head + content[:500])
        assert one.client.post("/api/uploads?name=late.pdf", content=content).status_code == 202
        one.process.send_signal(signal.SIGKILL)
        one.process.wait(30)
    with serve(tmp_path / "lib") as one:
        wait_for(lambda: one.client.get("/api/status").json()["pages"] == 200)
        assert set(one.documents()) == {"late.pdf"}
        assert [file.name for file in (tmp_path / "lib" / "uploads").iterdir()] == ["late.pdf"]
        assert one.stop()[0] == 0
    command("library", "verify", "-l", tmp_path / "lib")


# -- vectors, with the embedded model


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> Iterator[Served]:
    """A service of a new library with the embedded model, and two documents of three pages."""
    folder = tmp_path_factory.mktemp("vectors")
    with serve(folder / "lib", "--new", "--model", "embedded") as one:
        for city in ("Madrid", "Oslo"):
            content = make_pdf(folder, f"{city} mining", f"Wool of {city}", f"Nurses voted in {city}")
            assert one.upload(f"{city}.pdf", content)["state"] == "done"
        yield one


def message_of(url: object) -> dict:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def picture() -> str:
    file = BytesIO()
    Image.new("RGB", (60, 80), "teal").save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_library_with_vectors_is_searched_by_words_vectors_or_both(vectors):
    by = {way: vectors.search("Madrid mining", by=way, exact=True) for way in ("words", "vectors", "both")}
    assert {way: {hit["by"] for hit in hits} for way, hits in by.items()} == {way: {way} for way in by}
    assert len(by["vectors"]) == len(by["both"]) == 6
    best = by["vectors"][0]
    asked = {"query": "Madrid mining", "document": best["document"]["id"], "page": best["page"]}
    explained = vectors.client.post("/api/explain", json=asked).json()
    similarities = np.array(explained["similarities"])
    assert similarities.shape == (4, 4)
    assert explained["winners"] == (similarities.argmax(1) + 1).tolist() == [one["page"] for one in best["matches"]]
    assert similarities.max(1).sum() == pytest.approx(best["score"], abs=0.01)
    assert set(vectors.client.post("/api/ranks", json=asked).json()) == {"words", "vectors"}
    status = vectors.client.get("/api/status").json()
    assert (status["model"], status["page_vectors"], status["query_vectors"]) == ("embedded", 4, 4)


def test_pooling_gives_the_vectors_of_queries_and_pages(vectors):
    (listed,) = vectors.client.get("/v1/models").json()["data"]
    texts = ["sales of wool", "Madrid mining"]
    answer = vectors.client.post("/pooling", json={"model": listed["id"], "input": texts}).json()
    assert [item["index"] for item in answer["data"]] == [0, 1]
    first = np.array(answer["data"][0]["data"])
    assert first.shape[0] == 4
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-3)
    packed = vectors.client.post("/pooling", json={"input": texts, "encoding_format": "base64"}).json()["data"][0]
    floats = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(first.shape)
    np.testing.assert_allclose(floats, first, atol=1e-5)
    page = vectors.client.post("/pooling", json=message_of(picture())).json()["data"][0]
    assert np.array(page["data"]).shape == first.shape


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"input": "a"}, 400),  # several vectors
        ("/pooling", {}, 400),
        ("/pooling", {"input": ["a", "  "]}, 400),
        ("/pooling", {"input": "a" * 1001}, 400),
        ("/pooling", {"input": ["a"] * 257}, 422),
        ("/pooling", {"input": "a", "model": "another"}, 404),
        ("/pooling", {"input": "a", "dimensions": 3}, 400),
        ("/pooling", {"input": "a", "input_type": "document"}, 400),
        ("/pooling", message_of("http://127.0.0.1:1/page.png"), 400),
        ("/pooling", message_of("file:///etc/passwd"), 400),
        ("/pooling", message_of("data:image/png;base64,AAAA"), 400),
        ("/pooling", message_of(7), 400),
        ("/pooling", message_of(picture()) | {"input_type": "query"}, 400),
        ("/pooling", {"input": "a", "messages": []}, 400),
        ("/pooling", {"messages": []}, 400),
        ("/pooling", {"input": []}, 422),
        ("/pooling", {"input": [[1, 2]]}, 422),
        ("/pooling", {"input": "a", "embed_dtype": "float16"}, 422),
    ],
)
def test_what_cannot_be_encoded_is_refused_in_the_form_of_openai(vectors, path, body, status):
    answer = vectors.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert message
    assert "\n" not in message


def test_remote_and_a_model_of_one_vector(vectors, tmp_path):
    """`randslot.remote` gives the vectors of the model itself; /v1/embeddings answers for models with one vector."""
    asked = ["sales of wool"]
    ours, theirs = randslot.load("embedded").encode_query(asked), randslot.remote(vectors.url).encode_query(asked)
    np.testing.assert_allclose(np.asarray(theirs[0].tolist()), np.asarray(ours[0].tolist()), atol=1e-4)
    model = randslot.tiny("qwen3-vl", query_vectors=1, page_vectors=1, visual_tokens=16)
    model.save_pretrained(str(tmp_path / "model"))
    with serve(tmp_path / "lib", "--new", "--model", tmp_path / "model") as one:
        answer = one.client.post("/v1/embeddings", json={"input": asked}).json()
        np.testing.assert_allclose(answer["data"][0]["embedding"], model.encode_query(asked)[0].tolist()[0], atol=1e-4)


def test_a_library_without_a_model_has_no_vectors_to_give(served):
    assert served.client.get("/v1/models").json()["data"] == []
    for path in ("/pooling", "/v1/embeddings"):
        assert served.client.post(path, json={"input": "a"}).status_code == 404
