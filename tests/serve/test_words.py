"""The API on libraries without a model: words and where they are, filters, more hits, copies, removing, being away."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from starlette.testclient import TestClient

from randslot.library.manifest import File, tell_apart
from randslot.serve import service as serving_module
from randslot.serve.access import BUSY
from randslot.serve.service import Service
from support import qdrant_server
from support.libraries import ToyReader
from support.pdf import write_lines
from support.scans import write_scan
from support.services import client_of, documents, serving, upload, wait_for

AWAY = "searches fail: the library, or part of it, is unreachable"
OLD = 1_500_000_000  # 2017-07-14


@pytest.fixture(scope="module")
def filed(tmp_path_factory) -> Path:
    """Thirty pages on tides, one of them twice, in two folders with metadata."""
    folder = tmp_path_factory.mktemp("filed")
    for name in ("harbours", "rivers"):
        (folder / name).mkdir()
    for i in range(28):
        write_lines(
            folder / "harbours" / f"log-{i:02}.pdf",
            ["The tide is in the log of this harbour", *(["tides turn"] * i), f"entry {i}"],
        )
    for name in ("harbours/3M_2018_10K.pdf", "rivers/copy.pdf"):
        write_lines(folder / name, ["Net sales of tape", "deferred taxes and a tax"])
    write_lines(folder / "rivers" / "a[1].pdf", ["A brook"])
    write_lines(folder / "rivers" / "a1.pdf", ["A stream"])
    os.utime(folder / "rivers" / "copy.pdf", (OLD, OLD))
    return folder


@pytest.fixture(scope="module")
def words(filed, tmp_path_factory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("words") / "lib", None) as service:
        service.library.add(filed / "harbours", workers=1, metadata={"team": "sea", "year": 2018})
        service.library.add(filed / "rivers", workers=1, metadata={"team": "land"})
        yield service


@pytest.fixture
def visitor(words) -> TestClient:
    return client_of(words)


def find(client: TestClient, query: str, **options) -> list[dict]:
    answer = client.post("/api/search", json={"query": query, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["hits"]


def found_names(client: TestClient, query: str, **options) -> set[str]:
    return {hit["document"]["name"] for hit in find(client, query, k=100, **options)}


def test_a_page_tells_which_words_it_has_and_where(visitor):
    hit = find(visitor, "taxes on tape and boats", name="3M", boxes=True)[0]
    begin, end = hit["snippet"]["marks"][0]
    assert hit["snippet"]["text"][begin:end] == "tape"
    asked = {"query": "taxes on tape and boats", "document": hit["document"]["id"], "page": 1}
    found = visitor.post("/api/words", json=asked).json()
    assert found["words"] == [
        {"word": "taxes", "count": 2},
        {"word": "tape", "count": 1},
        {"word": "boats", "count": 0},
    ]
    assert (found["snippet"], found["boxes"]) == (hit["snippet"], hit["boxes"])
    assert len(found["boxes"]) == 3


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"name": "3m"}, {"3M_2018_10K.pdf"}),
        ({"name": "*.PDF"}, {"3M_2018_10K.pdf", "copy.pdf"}),
        ({"folder": "rivers"}, {"copy.pdf"}),
        ({"modified_from": "2017-07-14", "modified_to": "2017-07-14"}, {"copy.pdf"}),
        ({"metadata": {"year": "2018"}}, {"3M_2018_10K.pdf"}),
        ({"name": "copy", "metadata": {"team": "sea"}}, set()),
        ({"source": "rivers/*", "name": "opy"}, {"copy.pdf"}),
    ],
)
def test_filters_leave_the_documents_that_are_meant(visitor, filters, names):
    assert found_names(visitor, "deferred tax", **filters) == names


def test_a_name_that_looks_like_a_pattern_is_also_a_name(visitor):
    assert found_names(visitor, "brook stream", name="a[1].pdf") == {"a[1].pdf", "a1.pdf"}
    assert found_names(visitor, "brook", name="A[1]") == {"a[1].pdf"}


def test_words_that_no_page_has_are_told_with_the_first_hits(visitor):
    def ask(**options) -> list[str]:
        return visitor.post("/api/search", json={"query": "tide xyzzy brook", **options}).json()["unknown"]

    assert ask() == ["xyzzy"]
    assert ask(folder="rivers") == ["tide", "xyzzy"]
    assert ask(offset=3) == []


def test_documents_of_one_name_are_told_apart(tmp_path):
    for folder in ("2023/final", "2024/final", "drafts"):
        (tmp_path / "docs" / folder).mkdir(parents=True)
        write_lines(tmp_path / "docs" / folder / "report.pdf", [f"Report of {folder}"])
    write_lines(tmp_path / "docs" / "drafts" / "other.pdf", ["Another report"])
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "docs", workers=1)
        listed = client_of(service).get("/api/documents").json()["documents"]
        assert [one["place"] for one in listed] == ["", "2023/…", "2024/…", "drafts"]


@pytest.mark.parametrize(
    ("folders", "places"),
    [
        (["/a/x", "/b/x"], ["a/…", "b/…"]),
        (["/a/x", "/a/y"], ["x", "y"]),
        (["/a/x", "/a/y", "/b/x", "/b/y"], ["a/x", "a/y", "b/x", "b/y"]),
        (["/x", "/a/x"], ["x", "a/…"]),
        (["/", "/a"], ["", "a"]),
    ],
)
def test_as_little_of_the_folders_as_tells_them_apart(folders, places):
    files = [File(f"{folder}/r.pdf", "", 1, 1, 1) for folder in folders]
    told = tell_apart(files)
    assert [told[file.id] for file in files] == places


def test_copies_are_known_by_words_and_vectors_too(filed, tmp_path):
    """Ranks differ between copies, and so does a score of ranks."""
    with serving(tmp_path / "lib", ToyReader()) as service:
        service.library.add([filed / "harbours" / "3M_2018_10K.pdf", filed / "rivers"], workers=1)
        hits = find(client_of(service), "deferred tax", by="both")
        twins = {hit["document"]["name"]: hit["twin"] for hit in hits}
        assert twins["3M_2018_10K.pdf"] == twins["copy.pdf"] != twins["a1.pdf"]


def test_a_page_has_a_rank_by_words_and_one_by_vectors(filed, tmp_path):
    with serving(tmp_path / "lib", ToyReader()) as service:
        service.library.add(filed, workers=1)
        service.library.models.reading_check = None  # noise cannot read, and would be left out
        client = client_of(service)
        for by in ("words", "vectors"):
            hits = find(client, "tide", by=by, k=100)
            place = 4
            asked = {"query": "tide", "document": hits[place]["document"]["id"], "page": hits[place]["page"]}
            assert client.post("/api/ranks", json=asked).json()[by] == place + 1
        brook = {"query": "tide", "document": documents(client)["a1.pdf"]["id"], "page": 1}
        assert client.post("/api/ranks", json=brook).json()["words"] is None
        assert client.post("/api/ranks", json={**brook, "name": "a1.pdf"}).json() == {"words": None, "vectors": 1}


# -- documents


def test_documents_have_an_order_and_say_what_they_are(visitor, filed):
    def listed(**params) -> list[str]:
        found = visitor.get("/api/documents", params=params).json()
        return [one["name"] for one in found["documents"]]

    assert listed(sort="modified")[0] == "copy.pdf"
    assert listed(sort="modified", order="down")[-1] == "copy.pdf"
    assert listed(sort="size", order="down", limit=1) == ["log-27.pdf"]
    assert listed(folder="rivers", order="down") == ["copy.pdf", "a[1].pdf", "a1.pdf"]
    assert set(listed(sort="folder", order="down")[:3]) == {"a1.pdf", "a[1].pdf", "copy.pdf"}
    copy = documents(visitor)["copy.pdf"]
    assert copy["bytes"] == (filed / "rivers" / "copy.pdf").stat().st_size
    assert (copy["modified"], copy["uploaded"]) == ("2017-07-14T02:40:00Z", False)


def test_a_removed_document_is_forgotten_and_its_file_stays(tmp_path):
    """Its name looks like a pattern that another file fits."""
    for name in ("a[1].pdf", "a1.pdf"):
        write_lines(tmp_path / name, [f"words of {name}"])
    with serving(tmp_path / "lib", None) as service:
        service.library.add([tmp_path / "a[1].pdf", tmp_path / "a1.pdf"], workers=1)
        client = client_of(service)
        path = f"/api/documents/{documents(client)['a[1].pdf']['id']}"
        assert client.delete(path).status_code == 204
        assert list(documents(client)) == ["a1.pdf"]
        assert found_names(client, "words") == {"a1.pdf"}
        assert (tmp_path / "a[1].pdf").is_file()
        assert client.delete(path).status_code == client.get(path).status_code == 404


# -- uploads


def test_a_file_that_is_there_is_not_added_twice(tmp_path):
    write_lines(tmp_path / "kept.pdf", ["The same words"])
    content = (tmp_path / "kept.pdf").read_bytes()
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "kept.pdf", workers=1)
        client = client_of(service)
        job = upload(client, "other name.pdf", content)
        assert (job["state"], job["same_as"], job["num_pages"]) == ("done", "kept.pdf", 1)
        assert list(documents(client)) == ["kept.pdf"]
        assert list(service.uploads.folder.iterdir()) == []
        (tmp_path / "kept.pdf").unlink()  # then the upload is all there is
        assert upload(client, "other name.pdf", content)["same_as"] is None
        assert list(documents(client)) == ["other name.pdf"]


@pytest.mark.nightly
def test_an_uploaded_scan_is_read_while_nothing_else_waits(tmp_path, ocr_engine):
    write_scan(tmp_path / "scan.png", "Second invoice", "of the warehouse")
    with serving(tmp_path / "lib", None) as service:
        client = client_of(service)
        assert upload(client, "scan.png", (tmp_path / "scan.png").read_bytes())["state"] == "done"
        wait_for(lambda: find(client, "invoice"))


@pytest.mark.parametrize(
    "name",
    [
        "Q3: results? <draft> *final*.pdf",
        "back\\slash.pdf",
        "line\nbreak.pdf",
        "ä" * 125 + ".pdf",
    ],
)
def test_a_name_that_the_file_system_takes_is_taken(words, visitor, tmp_path, name):
    write_lines(tmp_path / "one.pdf", [f"one {ascii(name)[1:9]}"])
    write_lines(tmp_path / "two.pdf", [f"two {ascii(name)[1:9]}"])
    jobs = [upload(visitor, name, (tmp_path / file).read_bytes()) for file in ("one.pdf", "two.pdf")]
    assert [job["state"] for job in jobs] == ["done", "done"], jobs
    assert jobs[0]["name"] == name
    assert (words.uploads.folder / name).is_file()
    assert jobs[1]["name"].endswith("-2.pdf")  # the same name once more, however long it is
    for job in jobs:
        document = documents(visitor)[job["name"]]
        assert visitor.get(document["file"]).status_code == 200
        assert visitor.delete(f"/api/documents/{document['id']}").status_code == 204


# -- a library on a server


def test_a_server_that_is_away_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(serving_module, "HEALTH_SECONDS", 0.5)
    with qdrant_server.serving() as (standin, port):
        url = f"qdrant://127.0.0.1:{port}/papers"
        with serving(url, None) as service:
            write_lines(tmp_path / "a.pdf", ["some words"])
            service.library.add(tmp_path / "a.pdf", workers=1)
            client = client_of(service)
            assert client.get("/api/health").json() == {"status": "ok"}
            service.library.location.connection.backoffs = ()
            standin.fail = lambda method: grpc.StatusCode.UNAVAILABLE
            for answer in (
                client.post("/api/search", json={"query": "words"}),
                client.get("/api/documents"),
                client.get("/api/status"),
            ):
                assert (answer.status_code, answer.json()) == (503, {"error": BUSY})
            away = wait_for(lambda: (now := client.get("/api/health")).status_code != 200 and now)
            assert (away.status_code, away.json()) == (503, {"error": AWAY})
            assert client.get("/api/live").json() == {"status": "ok"}  # starting it again would not help
            standin.fail = lambda method: None
            wait_for(lambda: client.get("/api/health").status_code == 200)
            standin.lost = {"papers"}  # as a cluster that has lost some nodes: files are there, and some pages not
            assert client.get("/api/documents").status_code == 200
            assert client.post("/api/search", json={"query": "words"}).status_code == 503
            wait_for(lambda: client.get("/api/health").json() == {"error": AWAY})
            standin.lost = set()
            wait_for(lambda: client.get("/api/health").status_code == 200)
            assert found_names(client, "words") == {"a.pdf"}


def test_a_library_that_takes_too_long_is_not_healthy(words, visitor, monkeypatch, caplog):
    door = threading.Event()
    monkeypatch.setattr(serving_module, "HEALTH_SECONDS", 0.2)
    monkeypatch.setattr(words.library.manifest, "totals", lambda: door.wait(60) and (0, 0))
    wait_for(lambda: visitor.get("/api/health").status_code == 503)
    assert "the library does not answer: TimeoutError" in caplog.messages
    door.set()
    wait_for(lambda: visitor.get("/api/health").status_code == 200)
