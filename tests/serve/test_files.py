"""Visitors get the files that were indexed and no others, and learn nothing of where they are."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from randslot.library.library import Library
from randslot.serve import service as serving_module
from randslot.serve.access import Refused
from randslot.serve.service import Service
from support.pdf import write_pages
from support.services import client_of, documents, serving


@pytest.fixture
def papers(tmp_path) -> Path:
    folder = tmp_path / "hidden-home" / "east"
    folder.mkdir(parents=True)
    write_pages(folder / "x.pdf", [["The tides turn"]])
    write_pages(folder / "secret.pdf", [["The tides turn, and nobody may know"]])
    return folder


@pytest.fixture
def service(papers, tmp_path) -> Iterator[Service]:
    with Library(tmp_path / "lib") as library:
        library.add(papers / "x.pdf", workers=1)
    with serving(tmp_path / "lib", None) as service:
        yield service


@pytest.fixture
def client(service) -> TestClient:
    return client_of(service)


@pytest.mark.parametrize("replace", ["link", "other", "same size"])
def test_only_the_indexed_content_is_given_out(client, papers, replace):
    id = documents(client)["x.pdf"]["id"]
    paths = [f"/api/documents/{id}/file", f"/api/documents/{id}/pages/1/image"]
    assert [client.get(path).status_code for path in paths] == [200, 200]
    content = (papers / "x.pdf").read_bytes()
    (papers / "x.pdf").unlink()
    if replace == "link":
        os.symlink(papers / "secret.pdf", papers / "x.pdf")
    elif replace == "other":
        (papers / "x.pdf").write_bytes(content + b"\n")
    else:
        (papers / "x.pdf").write_bytes(content[:-1] + b" ")
    for path in paths:
        answer = client.get(path)
        assert (answer.status_code, "index it again" in answer.json()["error"]) == (410, True)


def test_a_copy_of_the_indexed_content_is_given_out(client, papers):
    """As after a library and its files were restored, with new times."""
    os.utime(papers / "x.pdf", (1, 1))
    id = documents(client)["x.pdf"]["id"]
    assert client.get(f"/api/documents/{id}/file").content == (papers / "x.pdf").read_bytes()


@pytest.mark.parametrize(
    ("source", "num"),
    [
        ("x.pdf", 1),
        ("*.pdf", 1),
        ("east/x.pdf", 1),
        ("east/*", 1),
        ("east", 1),
        ("x*", 1),
        ("hidden-home", 0),
        ("hidden-home/east/x.pdf", 0),
        ("*hidden-home*", 0),
        ("/*", 0),
        ("~", 0),
        ("~/*", 0),
    ],
)
def test_a_filter_matches_what_visitors_are_shown(client, papers, source, num):
    for pattern in (source, source.replace("hidden-home", str(papers.parent))):
        hits = client.post("/api/search", json={"query": "tides", "source": pattern}).json()["hits"]
        assert len(hits) == (num if pattern == source else 0)


# -- images of pages


def test_a_visitor_waits_for_a_limited_number_of_images(service, monkeypatch):
    monkeypatch.setattr(serving_module, "MAX_IMAGES", 3)
    gate = threading.Event()
    drawn: list[int] = []

    def draw(id: str, number: int, size: str) -> bytes:
        assert gate.wait(60)
        drawn.append(number)
        return b"image"

    monkeypatch.setattr(service, "_draw_page", draw)

    async def stay() -> bool:
        return False

    async def ask() -> None:
        waiting = [asyncio.create_task(service.image("id", i, "small", "here", stay)) for i in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(Refused, match="too many pending images"):
            await service.image("id", 4, "small", "here", stay)
        other = asyncio.create_task(service.image("id", 5, "small", "elsewhere", stay))
        await asyncio.sleep(0.1)
        gate.set()
        assert await asyncio.gather(*waiting, other) == [b"image"] * 4

    asyncio.run(ask())
    assert not service.drawing


def test_an_image_that_nobody_waits_for_is_not_drawn(service, monkeypatch):
    gate = threading.Event()
    drawn: list[int] = []

    def draw(id: str, number: int, size: str) -> bytes:
        assert gate.wait(60)
        drawn.append(number)
        return b"image"

    monkeypatch.setattr(service, "_draw_page", draw)

    async def ask() -> None:
        async def is_gone(number: int) -> bool:
            return number >= 2

        tasks = []
        for i in range(6):
            tasks.append(asyncio.create_task(service.image("id", i, "small", "here", lambda i=i: is_gone(i))))
        done = await asyncio.wait(tasks[2:], timeout=30)
        assert len(done[0]) == 4
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(ask())
    assert sorted(drawn) == [0, 1]
