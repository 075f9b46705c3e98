"""What one visitor does must not cost the others: long queries, slow searches."""

from __future__ import annotations

import threading

import pytest

from randslot.library import search as library_search
from randslot.library.library import Library
from randslot.serve import service as serving_module
from randslot.serve.service import Batcher
from randslot.words.analyzer import get_analyzer
from randslot.words.query import read_query
from support.pdf import write_pages
from support.services import client_of, serving


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    write_pages(folder / "long.pdf", [[f"The price of the wool of year {year}"] for year in range(40)])
    with Library(folder / "lib") as library:
        library.add(folder / "long.pdf", workers=1)
    return folder / "lib"


def test_phrases_and_terms_count_once_and_are_capped():
    analyzer = get_analyzer("english")
    query = read_query('"of the" ' * 111 + '-"a b" ' * 50, analyzer)
    assert (query.phrases, query.excluded) == (("of the",), ("a b",))
    assert len(read_query("a-" * 499 + "a", analyzer).joined) <= 1
    many = read_query(" ".join(f'"w{i} x"' for i in range(200)) + " ".join(f"y{i}" for i in range(600)), analyzer)
    assert len(many.phrases) <= 32
    assert len(many.terms.numbers) <= 2 * 256  # as words, and as words of names


def test_snippets_are_made_only_for_hits_that_are_returned(place, monkeypatch):
    made = []
    find_words = library_search.find_words
    monkeypatch.setattr(library_search, "find_words", lambda *args: made.append(1) or find_words(*args))
    with serving(place, None) as service:
        for asked in ({"k": 3}, {"k": 3, "offset": 20}, {"k": 3, "collapse": True}):
            made.clear()
            hits = client_of(service).post("/api/search", json={"query": "wool", **asked}).json()["hits"]
            assert len(hits) == len(made) == 3
            assert all("wool" in hit["snippet"]["text"] for hit in hits)


def test_a_search_that_takes_too_long_answers_what_it_found(place, monkeypatch):
    monkeypatch.setattr(serving_module, "SEARCH_SECONDS", 0.0)
    with serving(place, None) as service:
        answer = client_of(service).post("/api/search", json={"query": "wool", "k": 5}).json()
    assert len(answer["hits"]) == 5
    assert "took longer than" in answer["note"]


def test_a_slow_search_does_not_hold_up_the_next():
    gate = threading.Event()

    def answer(kind: str, items: list[int]) -> list[int]:
        assert kind == "quick" or gate.wait(60)
        return items

    batches = Batcher("searches", answer, batch=32, max_waiting=10, num_threads=2)
    slow = batches.ask("slow", 1)
    assert batches.ask("quick", 2).result(60) == 2
    assert not slow.done()
    gate.set()
    assert slow.result(60) == 1
    batches.close()
