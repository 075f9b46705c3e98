"""The API answers what the library says: pages, documents, images, explanations, uploads."""

from __future__ import annotations

import asyncio
import threading

import httpx2
import numpy as np
import pytest

from randslot.errors import RandSlotError
from randslot.library.library import Library
from randslot.library.stores.points import page_id
from randslot.model import open_model
from randslot.serve.access import Access, Refused
from randslot.serve.app import make_app
from randslot.serve.service import Batcher
from randslot.serve.uploads import UploadLimits
from support import others
from support.libraries import ToyReader
from support.services import HOME, client_of, documents, pdf, serving, upload, wait_for


def test_a_search_finds_what_the_library_finds(client, service):
    hits = client.post("/api/search", json={"query": "page two", "k": 4}).json()["hits"]
    found = service.library.search("page two", 4)
    assert len(hits) == 4
    assert [(hit["document"]["name"], hit["page"]) for hit in hits] == [
        (hit.source.rpartition("/")[2], hit.page) for hit in found
    ]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in found])
    assert len(hits[0]["matches"]) == 4
    assert service.library.folder.name not in str(hits)  # a name and a folder's name, no path


def test_an_explanation_adds_up_to_the_score(client, service):
    hit = client.post("/api/search", json={"query": "tax", "k": 1, "exact": True, "by": "vectors"}).json()["hits"][0]
    asked = {"query": "tax", "document": hit["document"]["id"], "page": hit["page"]}
    found = client.post("/api/explain", json=asked).json()
    similarities = np.array(found["similarities"])
    assert similarities.shape == (4, 4)
    assert found["winners"] == [match["page"] for match in hit["matches"]] == (similarities.argmax(1) + 1).tolist()
    assert found["score"] == pytest.approx(similarities.max(1).sum())
    assert found["score"] == pytest.approx(hit["score"], abs=0.01)  # the store keeps half precision
    with pytest.raises(RandSlotError, match="no page"):
        service.library.compare("tax", page_id(hit["document"]["id"], 99))


def test_a_page_is_drawn_once(client, service):
    id = documents(client)["alpha.pdf"]["id"]
    before = service._draw_cached.cache_info().misses
    for _ in range(3):
        client.get(f"/api/documents/{id}/pages/3/image")
    assert service._draw_cached.cache_info().misses == before + 1


# -- uploads


@pytest.mark.slow
def test_equal_names_are_told_apart_and_equal_files_are_kept_once(client, tmp_path):
    first, second = pdf(tmp_path, 1, (100, 100)), pdf(tmp_path, 1, (100, 200))
    jobs = [upload(client, "same.pdf", content) for content in (first, second, first)]
    assert [job["name"] for job in jobs] == ["same.pdf", "same-2.pdf", "same.pdf"]
    assert {job["state"] for job in jobs} == {"done"}
    assert [job["same_as"] for job in jobs] == [None, None, "same.pdf"]
    assert sorted(name for name in documents(client) if name.startswith("same")) == ["same-2.pdf", "same.pdf"]


def test_too_many_pages_are_not_read(tmp_path):
    with serving(tmp_path / "lib", ToyReader(), upload_limits=UploadLimits(pages=2)) as service:
        job = upload(client_of(service), "long.pdf", pdf(tmp_path, 3))
        assert (job["state"], job["error"]) == ("failed", "long.pdf has 3 pages: the limit is 2")


@pytest.mark.slow
def test_an_error_of_ours_leaves_the_upload_for_the_next_start(tmp_path):
    class Broken(ToyReader):
        def embed_pages(self, pages):
            raise ZeroDivisionError

    with serving(tmp_path / "lib", Broken()) as service:
        job = upload(client_of(service), "later.pdf", pdf(tmp_path, 1))
        assert (job["state"], job["error"]) == ("failed", "internal server error; see the server log")
    (tmp_path / "lib" / "uploads" / "cut.part").write_bytes(b"%PDF-")  # was coming in when the process was killed
    with serving(tmp_path / "lib", ToyReader()) as service:
        wait_for(lambda: len(service.library) == 1)
        assert [file.name for file in service.uploads.folder.iterdir()] == ["later.pdf"]


@pytest.mark.slow
def test_closing_finishes_what_was_acknowledged(model, tmp_path):
    with serving(tmp_path / "lib", model) as service:
        client = client_of(service)
        for number in (1, 2, 3):
            params = {"name": f"{number}.pdf"}
            assert client.post("/api/uploads", params=params, content=pdf(tmp_path, number)).status_code == 202
    with serving(tmp_path / "lib", model, read_only=True) as service:
        assert len(service.library) == 6


@pytest.mark.nightly
def test_uploads_move_with_their_library(model, tmp_path):
    with serving(tmp_path / "lib", model) as service:
        upload(client_of(service), "a.pdf", pdf(tmp_path, 1))
    (tmp_path / "lib").rename(tmp_path / "moved")
    with serving(tmp_path / "moved", model) as service:
        client = client_of(service)
        assert client.get(documents(client)["a.pdf"]["file"]).content == pdf(tmp_path, 1)
        assert service.uploads.list_jobs() == []


# -- many at once


class Gate:
    """Stands in for a function: counts the calls, and lets none through until it is opened."""

    def __init__(self, function) -> None:
        self.function, self.calls, self.door = function, [], threading.Event()

    def __call__(self, *args, **options):
        self.calls.append(args)
        assert self.door.wait(60)
        return self.function(*args, **options)


def test_requests_that_wait_together_are_answered_together():
    gate = Gate(lambda kind, items: [f"{kind} {item}" for item in items])
    batches = Batcher("searches", gate, batch=32, max_waiting=100)
    first = batches.ask("a", 0)
    wait_for(lambda: gate.calls)
    others = [batches.ask("ab"[i % 2], i) for i in range(10)]
    gate.door.set()
    assert first.result(60) == "a 0"
    assert [one.result(60) for one in others] == [f"{'ab'[i % 2]} {i}" for i in range(10)]
    assert gate.calls == [("a", [0]), ("a", [0, 2, 4, 6, 8]), ("b", [1, 3, 5, 7, 9])]
    batches.close()


def test_a_request_that_fails_does_not_stop_the_others():
    batches = Batcher("searches", lambda kind, items: [1 / item for item in items], batch=1, max_waiting=100)
    with pytest.raises(ZeroDivisionError):
        batches.ask("a", 0).result(60)
    assert batches.ask("a", 2).result(60) == 0.5
    batches.close()


def test_a_full_queue_is_refused():
    gate = Gate(lambda kind, items: items)
    batches = Batcher("searches", gate, batch=1, max_waiting=1)
    batches.ask("a", 1)
    wait_for(lambda: gate.calls)
    batches.ask("a", 2)
    with pytest.raises(Refused, match="too many searches in the queue \\(1\\)"):
        batches.ask("a", 3)
    gate.door.set()
    batches.close()


def test_the_event_loop_is_free_while_a_search_runs(service, monkeypatch):
    gate = Gate(service.library.search_results)
    monkeypatch.setattr(service.library, "search_results", gate)

    async def visit() -> list[int]:
        transport = httpx2.ASGITransport(make_app(service, Access()))
        async with httpx2.AsyncClient(transport=transport, base_url=HOME) as client:
            searching = asyncio.create_task(client.post("/api/search", json={"query": "tax"}))
            while not gate.calls:
                await asyncio.sleep(0.01)
            health = await asyncio.wait_for(client.get("/api/health"), 60)
            assert not searching.done()
            gate.door.set()
            return [health.status_code, (await searching).status_code]

    assert asyncio.run(visit()) == [200, 200]


@pytest.mark.nightly
def test_hits_stay_those_of_the_old_version_while_a_file_is_indexed_again(model, tmp_path, monkeypatch):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.pdf").write_bytes(pdf(tmp_path, 2))
    with serving(tmp_path / "lib", model) as service:
        service.library.add(tmp_path / "papers", workers=1)
        (tmp_path / "papers" / "a.pdf").write_bytes(pdf(tmp_path, 3, (300, 300)))
        gate = Gate(service.library.store.add)
        monkeypatch.setattr(service.library.store, "add", gate)
        again = threading.Thread(target=lambda: service.library.add(tmp_path / "papers", workers=1))
        again.start()
        wait_for(lambda: gate.calls)
        try:
            client = client_of(service)
            hits = client.post("/api/search", json={"query": "tax"}).json()["hits"]
            assert len(hits) == 2
            assert {client.get(hit["image"]).status_code for hit in hits} == {410}  # the old version is not there
            assert {client.get(hit["document"]["file"]).status_code for hit in hits} == {410}
            assert {hit["document"]["pages"] for hit in hits} == {2}
        finally:
            gate.door.set()
            again.join()


def test_indexing_an_upload_does_not_block_searches(client, service, tmp_path, monkeypatch):
    gate = Gate(service.library.store.add)
    monkeypatch.setattr(service.library.store, "add", gate)
    answer = client.post("/api/uploads", params={"name": "slow.pdf"}, content=pdf(tmp_path, 2, (300, 300)))
    wait_for(lambda: gate.calls)
    assert client.get(f"/api/uploads/{answer.json()['id']}").json()["state"] == "reading"
    hits = client.post("/api/search", json={"query": "tax", "k": 100}).json()["hits"]
    assert hits
    assert "slow.pdf" not in {hit["document"]["name"] for hit in hits}
    gate.door.set()
    wait_for(lambda: "slow.pdf" in documents(client))


def test_an_explanation_of_many_readouts_shows_those_that_are_nearest(papers, tmp_path, monkeypatch):
    monkeypatch.setattr("randslot.serve.searches.MAX_COLUMNS", 8)
    model = open_model(str(others.save_colqwen2(tmp_path / "model")))
    with Library(tmp_path / "lib", model) as library:
        library.add(papers / "alpha.pdf", workers=1)
    with serving(tmp_path / "lib", model) as service:
        (document,) = [file for file in service.library.files() if file.source.endswith("alpha.pdf")]
        body = {"query": "page 2", "document": document.id, "page": 2}
        found = client_of(service).post("/api/explain", json=body).json()
        whole = service.library.compare("page 2", page_id(document.id, 2))
    for row, winner, full in zip(found["similarities"], found["winners"], whole, strict=True):
        assert row[found["columns"].index(winner)] == pytest.approx(float(full.max()), abs=1e-4)
    assert len(found["columns"]) == len(found["similarities"][0])
    assert found["columns"] == sorted(set(found["winners"]))
    assert whole.shape[1] > 8
