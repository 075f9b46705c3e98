"""A library on a real Qdrant server: the same commands with an address, copies, one writer, a server that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import randslot
from contract.conftest import make_environment
from contract.pdf import write_pdf
from contract.serving import command, make_pdf, serve, wait_for
from support.qdrant_nodes import MISSING, Node, find_program, running

pytestmark = [pytest.mark.xdist_group("contract-qdrant"), pytest.mark.slow]


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    if find_program() is None:
        pytest.skip(MISSING)
    with running() as (one,):
        yield one


@pytest.fixture
def url(node, tmp_path, monkeypatch) -> str:
    """The address of a library that does not exist yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return f"{node.url}/test-{uuid.uuid4()}"


@pytest.fixture(scope="session")
def copied(node, library_once) -> str:
    """The address of a copy of the indexed library; read it, never change it."""
    address = f"{node.url}/test-{uuid.uuid4()}"
    command("library", "copy", library_once, address)
    return address


def search(place: object, *queries: str) -> list[list[tuple[Any, ...]]]:
    """Search by words; return name, page and score of each hit."""
    rows = []
    with randslot.Library(place, create=False) as library:
        for query in queries:
            hits = library.search(query, 9, by="words")
            rows.append([(Path(hit.source).name, hit.page, pytest.approx(hit.score, abs=1e-3)) for hit in hits])
    return rows


def test_index_search_status_list_verify_and_remove(url, papers):
    command("index", papers, "-l", url, "--quiet", "--meta", "year=2023")
    again = json.loads(command("index", papers, "-l", url, "--json"))
    assert again["unchanged"] == 4
    hits = json.loads(command("search", "battery", "-l", url, "--json", "--filter", "year=2023"))
    assert sorted((Path(hit["source"]).name, hit["page"]) for hit in hits) == [("fleet.pdf", 1), ("manual.pdf", 1)]
    status = json.loads(command("library", "status", "-l", url, "--json"))
    assert (status["files"], status["pages"], status["pending"]) == (4, 9, 0)
    command("library", "verify", "-l", url)
    command("library", "remove", "fleet.pdf", "-l", url, "--yes")
    listed = json.loads(command("library", "list", "-l", url, "--json"))
    assert sorted(Path(file["source"]).name for file in listed) == ["brief.pdf", "manual.pdf", "report.pdf"]
    assert [hit[:2] for hit in search(url, "battery")[0]] == [("manual.pdf", 1)]


def test_copies_to_a_server_and_back_find_the_same(copied, library_once, tmp_path):
    command("library", "copy", copied, tmp_path / "back")
    queries = ("deferred tax", "battery life", "Rechnungen")
    expected = search(library_once, *queries)
    assert all(expected)
    assert search(copied, *queries) == expected
    assert search(tmp_path / "back", *queries) == expected
    again = json.loads(command("library", "copy", library_once, copied, "--json"))
    assert (again["files"], again["pages"], again["known"], again["problems"]) == (0, 0, 4, [])
    for place in (copied, tmp_path / "back"):
        with randslot.Library(place, create=False) as library:
            assert library.verify() == []


def test_vectors_are_copied_as_they_are(url, tmp_path):
    write_pdf(tmp_path / "report.pdf", [["Madrid mining"], ["Wool and figs"], ["Nurses voted"]])
    model = randslot.load("embedded")

    def scores(place: object) -> dict[str, float]:
        with randslot.Library(place, model) as library:
            hits = library.search("Madrid mining", 9, by="vectors", exact=True)
        return {hit.id: pytest.approx(hit.score, abs=1e-3) for hit in hits}

    with randslot.Library(tmp_path / "lib", model) as library:
        library.add(tmp_path / "report.pdf", workers=1)
    command("library", "copy", tmp_path / "lib", url)
    command("library", "copy", url, tmp_path / "back")
    expected = scores(tmp_path / "lib")
    assert len(expected) == 3
    assert scores(url) == expected
    assert scores(tmp_path / "back") == expected


def test_a_second_writer_is_refused_while_readers_go_on(url, papers, tmp_path):
    write_pdf(tmp_path / "late.pdf", [["Zebras are striped"]])
    said: list[str] = []

    def meanwhile(_: object) -> None:
        if not said:
            said.append(command("index", tmp_path / "late.pdf", "-l", url, code=1))
            said.append(command("search", "battery", "-l", url, "--json"))

    with randslot.Library(url) as library:
        library.add(papers, workers=1, progress=meanwhile)
        assert str(os.getpid()) in said[0]
        assert said[0].count("\n") == 1
        library.add(tmp_path / "late.pdf", workers=1)
        assert len(library) == 10
    assert search(url, "zebras")[0][0][:2] == ("late.pdf", 1)


def test_a_killed_writer_is_replaced_at_once_and_its_work_continues(url, tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(6):
        write_pdf(tmp_path / "many" / f"{number}.pdf", [[f"Page {page} about yaks"] for page in range(20)])
    code = """
import os, signal, sys, randslot

def kill(now):
    if now.pages_done >= 50:
        os.kill(os.getpid(), signal.SIGKILL)

with randslot.Library(sys.argv[1]) as library:
    library.add(sys.argv[2], workers=1, progress=kill)
"""
    words = [sys.executable, "-c", code, url, str(tmp_path / "many")]
    killed = subprocess.run(words, env=make_environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with randslot.Library(url, create=False) as library:
        assert len(library) < 120
    started = time.monotonic()
    command("index", tmp_path / "many", "-l", url, "--quiet")
    assert time.monotonic() - started < 50, "the lease was waited for"
    with randslot.Library(url, create=False) as library:
        assert len(library) == 120
        assert library.verify() == []


def test_a_library_on_a_server_is_served_by_several(copied, tmp_path):
    data = {"XDG_DATA_HOME": str(tmp_path / "data")}
    with serve(copied, **data) as one, serve(copied, "--read-only", **data) as two:
        assert one.client.get("/api/health").status_code == two.client.get("/api/health").status_code == 200
        before = one.names("battery")
        assert two.names("battery") == before
        job = one.upload("zebra.pdf", make_pdf(tmp_path, "Zebras are striped"))
        assert job["state"] == "done", job
        assert one.names("zebras") == two.names("zebras") == [("zebra.pdf", 1)]
        (hit,) = one.search("zebras")
        assert one.client.get(hit["image"]).headers["content-type"] == "image/jpeg"
        assert one.client.delete(f"/api/documents/{hit['document']['id']}").status_code == 204
        assert two.names("zebras") == []
        assert two.names("battery") == before


def test_a_server_that_is_killed_is_told_and_comes_back_with_everything(node, copied):
    with serve(copied, "--read-only") as one:
        before = one.names("battery")
        assert before
        node.kill()
        try:
            error = command("search", "battery", "-l", copied, code=1)
            assert error.count("\n") == 1
            assert one.client.get("/api/live").status_code == 200
            wait_for(lambda: one.client.get("/api/health").status_code == 503)
        finally:
            node.start()
        wait_for(lambda: one.client.get("/api/health").status_code == 200)
        assert one.names("battery") == before
    assert [hit[:2] for hit in search(copied, "battery")[0]] == before


def test_wrong_addresses_are_one_line(node, url):
    for address, offending in [
        (url, url.rpartition("/")[2]),
        (f"{node.url}/a?shards=none", "shards"),
        ("qdrant:///papers", "qdrant:///papers"),
    ]:
        error = command("search", "tax", "-l", address, code=2)
        assert offending in error
        assert error.count("\n") == 1
