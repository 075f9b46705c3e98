"""Sketches find what MaxSim finds, in a folder and on servers, also for pages that come later."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.library import models
from randslot.library import sketches as sketching
from randslot.library.address import read_address
from randslot.library.library import Library
from randslot.library.results import Progress
from randslot.library.sketches import MAX_PRODUCTS, LibrarySketches, Sketcher, Sketches, find_nearest, fit_sketcher
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import SKETCH, StoredPage, StoredText
from randslot.library.stores.qdrant import ServerStore
from randslot.library.stores.qdrant_connection import connect
from randslot.library.stores.store import Store, StoreQuery, Tuning, Where
from randslot.words.analyzer import Terms
from support.libraries import ToyReader, new_collection, write_tiff

DIM = 32
QUERIES = [f"question {number}" for number in range(240)]


def clustered(seed: int, num: int, counts: tuple[int, ...] = (4,)) -> list[np.ndarray]:
    """Make pages or queries whose vectors lie near some common ones, as those of a model do."""
    centres = np.random.default_rng(0).standard_normal((20, DIM))
    dice = np.random.default_rng(seed)
    made = []
    for number in range(num):
        values = centres[dice.integers(0, 20, counts[number % len(counts)])]
        values = values + 0.7 * dice.standard_normal(values.shape)
        made.append((values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32))
    return made


def max_sim(query: np.ndarray, page: np.ndarray) -> float:
    return float((query @ page.T).max(1).sum())


def best(query: np.ndarray, pages: list[np.ndarray], num: int) -> set[int]:
    scores = [max_sim(query, page) for page in pages]
    return set(np.argsort(scores)[::-1][:num].tolist())


def test_the_best_pages_are_among_the_first_by_sketches():
    pages, queries = clustered(1, 1000, (1, 4, 9)), clustered(2, 450)
    sketcher = fit_sketcher(queries[:400], pages[:500])
    sketches = sketcher.sketch_pages(pages)
    assert sketches.shape == (1000, SKETCH.size)
    shared = 0
    for query in queries[400:]:
        by_sketches = np.argsort(-(sketches @ sketcher.sketch_query(query)))[:50]
        shared += len(best(query, pages, 5) & set(by_sketches.tolist()))
    assert shared / 250 > 0.98  # by chance it would be 0.05


def test_a_saved_sketcher_makes_the_same_sketches_whatever_is_sketched_together():
    pages, queries = clustered(1, 50, (1, 4, 9)), clustered(2, 300)
    sketcher = fit_sketcher(queries, pages)
    again = Sketcher.from_bytes(sketcher.to_bytes())
    together = sketcher.sketch_pages(pages)
    alone = np.concatenate([again.sketch_pages([page]) for page in pages])
    np.testing.assert_allclose(together, alone, atol=1e-3)
    np.testing.assert_array_equal(sketcher.sketch_query(queries[0]), again.sketch_query(queries[0]))
    assert sketcher.sketch_pages([]).shape == (0, SKETCH.size)
    large = clustered(3, 1, (MAX_PRODUCTS // len(sketcher.anchors_XD) + 1,))[0]  # is sketched alone
    made = sketcher.sketch_pages([large[:4], large, large[4:8]])
    np.testing.assert_allclose(made[2], sketcher.sketch_pages([large[4:8]])[0], atol=1e-3)


def test_the_nearest_vector_of_a_page_counts():
    anchors, pages = clustered(1, 3, (1,)), clustered(2, 5, (3, 1))
    found = find_nearest(np.concatenate(anchors), pages)
    for i, anchor in enumerate(anchors):
        for j, page in enumerate(pages):
            assert found[i, j] == pytest.approx(max(float(anchor[0] @ vector) for vector in page), abs=1e-6)


# -- stores


@pytest.fixture(params=["edge", "server"])
def store(request, tmp_path) -> Iterator[Store]:
    if request.param == "edge":
        opened = EdgeStore(tmp_path / "pages", DIM)
        yield opened
        opened.close()
    else:
        with new_collection(request.getfixturevalue("server")) as url:
            connection = connect(read_address(url))
            yield ServerStore(connection, DIM)
            connection.close()


def make_pages(num: int = 300) -> list[StoredPage]:
    pages = []
    for number, vectors in enumerate(clustered(1, num)):
        file = str(uuid.UUID(int=number // 50 + 1))
        text = StoredText("layer", "even" if number % 2 else "odd", b"", "w", Terms((number % 2 + 1,), (1.0,)))
        pages.append(StoredPage(file, number % 50 + 1, str(number), vectors, text))
    return pages


@cache
def make_sketcher() -> Sketcher:
    return fit_sketcher(clustered(2, 300), clustered(1, 300))


def begin(store: Store, candidates: int) -> None:
    store.clear_sketches()
    store.sketches = Sketches(make_sketcher(), candidates)


def test_a_store_finds_candidates_by_sketches_and_scores_them_in_full(store):
    pages = make_pages()
    store.add(pages[:200])
    begin(store, 100)
    store.add_sketches(pages[:200])
    store.add(pages[200:])  # gets its sketches by itself
    assert list(store.find(None, sketch=False)) == []
    store.optimize(wait=True)
    asked = [StoreQuery(query) for query in clustered(3, 20)]
    shared = 0
    exact = store.search(asked, 5, Where(), exact=True)
    for found, right in zip(store.search(asked, 5, Where(), exact=False), exact, strict=True):
        scores = {hit.id: hit.score for hit in right}
        for hit in found:
            if hit.id in scores:
                shared += 1
                assert hit.score == pytest.approx(scores[hit.id], abs=1e-3)
    assert shared >= 95


def test_what_sketches_do_not_find_is_not_scored(store):
    """A page whose sketch says nothing is left out, however good it is: so candidates do come from sketches."""
    pages = make_pages()
    store.add(pages)
    begin(store, 100)
    store.add_sketches([page for page in pages if page.number != 7])
    (found,) = store.search([StoreQuery(pages[6].vectors)], 5, Where(), exact=False)
    assert pages[6].id not in {hit.id for hit in found}
    (exact,) = store.search([StoreQuery(pages[6].vectors)], 5, Where(), exact=True)
    assert exact[0].id == pages[6].id
    assert {page.number for page in store.find(None, vectors=True, sketch=False)} == {7}


def test_filters_hold_for_candidates(store):
    pages = make_pages()
    store.add(pages)
    begin(store, 100)
    store.add_sketches(pages)
    where = Where(files=frozenset({pages[0].file, pages[60].file}), hidden=frozenset({pages[60].file}), last=30)
    (found,) = store.search([StoreQuery(pages[99].vectors)], 5, where, exact=False)
    (exact,) = store.search([StoreQuery(pages[99].vectors)], 5, where, exact=True)
    assert [hit.id for hit in found] == [hit.id for hit in exact]
    assert {hit.file for hit in found} == {pages[0].file}
    both = StoreQuery(pages[99].vectors, Terms((1,), (1.0,)))
    (found,) = store.search([both], 5, where, exact=False)
    (exact,) = store.search([both], 5, where, exact=True)
    assert {hit.file for hit in found} == {pages[0].file}
    # Not by ids: which of two equals comes first is the engine's choice, and a library asks on until it is decided.
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in exact])


def test_new_vectors_of_a_page_have_a_new_sketch(store):
    pages = make_pages()
    store.add(pages)
    begin(store, 20)
    store.add_sketches(pages)
    new = StoredPage(pages[0].file, pages[0].number, "new", clustered(9, 1)[0])
    store.update([new])
    (found,) = store.search([StoreQuery(new.vectors)], 1, Where(), exact=False)
    assert found[0].id == new.id
    store.clear_sketches()
    assert len(list(store.find(None, sketch=False))) == 300


# -- libraries


@pytest.fixture(params=["folder", "server"])
def place(request, tmp_path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "lib")
    else:
        with new_collection(request.getfixturevalue("server")) as url:
            yield url


@pytest.fixture
def papers(tmp_path) -> Path:
    folder = tmp_path / "papers"
    folder.mkdir()
    for number in range(3):
        write_tiff(folder / f"{number}.tiff", range(20 * number, 20 * number + 20))
    return folder


def names(library: Library, query: str, *, exact: bool = False) -> list[tuple[str, int]]:
    hits = library.search(query, 5, by="vectors", exact=exact)
    return [(Path(hit.source).name, hit.page) for hit in hits]


def test_a_library_uses_sketches_when_it_is_opened_again_and_for_pages_that_come_later(place, papers):
    model = ToyReader()
    with Library(place, model) as library:
        library.add([papers / "0.tiff", papers / "1.tiff"])
        made = library.make_sketches(QUERIES)
        assert (made.pages, made.candidates, made.recall, made.queries) == (40, 40, 1.0, 100)
        assert "rescores 100 candidates" in library.status().sketches
    with Library(place, model, create=False) as library:
        assert library.status().format == 3
        library.add(papers / "2.tiff")
        assert library.store.sketches is not None
        assert list(library.store.find(None, sketch=False)) == []
        assert library.verify() == []
        for query in QUERIES[:5]:
            assert names(library, query) == names(library, query, exact=True)


def test_a_run_that_was_stopped_goes_on_with_the_same_sketcher(tmp_path, papers, monkeypatch):
    place = tmp_path / "lib"
    with Library(place, ToyReader()) as library:
        library.add(papers)
        monkeypatch.setattr(sketching, "AT_ONCE", 10)

        def stop(now: Progress) -> None:
            if now.stage == "sketches" and now.pages_done >= 20:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            library.make_sketches(QUERIES, progress=stop)
    with Library(place, ToyReader()) as library:
        assert "resume" in library.status().sketches
        assert names(library, "x") == names(library, "x", exact=True)  # searches do not look at them yet
        assert len(list(library.store.find(None, sketch=False))) == 40
        before = library.location.read_blob(*sketching.BLOB)
        library.make_sketches(QUERIES)
        assert library.location.read_blob(*sketching.BLOB) == before
        assert library.verify() == []


def test_sketches_that_find_too_little_are_not_used(tmp_path, papers, monkeypatch):
    place = tmp_path / "lib"
    with Library(place, ToyReader()) as library:
        library.add(papers)
        monkeypatch.setattr(sketching, "MIN_RECALL", 1.01)
        with pytest.raises(RandSlotError, match=r"reach 100\.0% recall@5, less than 101%"):
            library.make_sketches(QUERIES)
        assert library.store.sketches is None
        assert library.status().format == 2
    with Library(place, ToyReader()) as library:
        assert library.store.sketches is None
        assert names(library, "x") == names(library, "x", exact=True)


@pytest.mark.nightly
def test_queries_that_are_like_no_line_do_not_decide_alone(tmp_path, monkeypatch):
    """Sketches that are fitted to one kind of queries must find enough for lines of pages too."""
    store = EdgeStore(tmp_path / "pages", DIM, Tuning(oversampling=1))
    pages = make_pages(400)
    store.add(pages)
    far = np.random.default_rng(5).standard_normal((1, 4, DIM))
    kinds = {"query": far + 0.01 * np.random.default_rng(6).standard_normal((300, 4, DIM)), "line": clustered(2, 300)}

    def embed(texts: list[str]) -> list[np.ndarray]:
        found = []
        for text in texts:
            kind, number = text.split()
            vectors = kinds[kind][int(number)]
            found.append((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))
        return found

    queries, lines = ([f"{kind} {number}" for number in range(300)] for kind in ("query", "line"))
    monkeypatch.setattr(sketching, "CANDIDATES", (20,))
    said: list[dict[str, Any]] = []

    def attempt() -> None:
        location = SimpleNamespace(
            name="x",
            shared=False,
            store=store,
            manifest=SimpleNamespace(find=lambda **_: [], hidden=frozenset),
            read=dict,
            write=said.append,
            write_blob=lambda *_: None,
        )
        store.sketches = None
        LibrarySketches(location).make(queries, embed, lambda _: None)

    attempt()  # no page has text that could be asked for: queries decide
    assert said[-1]["sketches"]["candidates"] == 20
    monkeypatch.setattr(LibrarySketches, "_choose_lines", lambda *_: lines[:101])
    with pytest.raises(RandSlotError, match="they were removed"):
        attempt()
    store.close()


@pytest.mark.nightly
def test_who_searches_follows_sketches_that_another_process_makes_anew(papers, node, monkeypatch):
    monkeypatch.setattr("randslot.library.sketches.REFRESH_SECONDS", 0.2)
    monkeypatch.setattr("randslot.library.library.REFRESH_SECONDS", 0.2)
    with new_collection(node) as url, Library(url, ToyReader()) as first:
        first.add(papers)
        first.make_sketches(QUERIES)
        seen: list[int] = []

        def look(now: Progress) -> None:
            if now.stage == "sketches":  # the old ones are gone, and not all new ones are there
                assert names(first, "x") == names(first, "x", exact=True)
                assert first.store.sketches is not None
                seen.append(first.store.sketches.candidates)

        with Library(url, ToyReader()) as second:
            second.make_sketches([f"another {query}" for query in QUERIES], progress=look)
        time.sleep(0.3)
        assert names(first, "x") == names(first, "x", exact=True)
        assert seen == [0]
        assert first.store.sketches is not None
        assert second.store.sketches is not None
        assert first.store.sketches.sketcher.key == second.store.sketches.sketcher.key


@pytest.mark.nightly
def test_sketches_and_what_made_them_belong_together_wherever_a_run_stops(place, papers, monkeypatch):
    with Library(place, ToyReader()) as library:
        library.add(papers)
        library.make_sketches(QUERIES)
        for method in ("clear_sketches", "write_blob"):

            def stop(*_: object) -> None:
                raise KeyboardInterrupt

            owner = library.store if method == "clear_sketches" else library.location
            with monkeypatch.context() as patch:
                patch.setattr(owner, method, stop)
                with pytest.raises(KeyboardInterrupt):
                    library.make_sketches([f"{method} {query}" for query in QUERIES])
            with monkeypatch.context() as patch:  # what another process would do
                patch.setattr(library.sketches, "settings", None)
                library.sketches.load(library.location.read() or {})
                assert names(library, "x") == names(library, "x", exact=True)
            library.make_sketches(QUERIES)
            assert names(library, "x") == names(library, "x", exact=True)


def test_lost_and_missing_sketches_are_told_and_made_again(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        library.make_sketches(QUERIES)
        kept, library.store.sketches = library.store.sketches, None
        library.store.add([StoredPage(library.files()[0].id, 1, "x", ToyReader().vectors(b"x"))])
        library.store.sketches = kept
        assert library.verify() == ["1 page has no sketch: run randslot library sketch"]
    for content in (None, b"", b"PK\x03\x04 cut"):
        file = tmp_path / "lib/sketches.npz"
        file.unlink() if content is None else file.write_bytes(content)
        with Library(tmp_path / "lib", ToyReader()) as library:
            assert "lost" in library.status().sketches
            assert names(library, "x") == names(library, "x", exact=True)
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.make_sketches([f"another {query}" for query in QUERIES])
        assert list(library.store.find(None, sketch=False)) == []
        assert library.verify() == []


def test_too_few_queries_and_a_library_without_vectors_are_refused(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        with pytest.raises(UsageError, match="found 0 lines of pages with vectors"):
            library.make_sketches()
        with pytest.raises(UsageError, match="found 3 different queries"):
            library.make_sketches(100 * QUERIES[:3])
        with pytest.raises(UsageError, match="found 0 different queries"):
            library.make_sketches([])
        assert library.status().format == 2
    with Library(tmp_path / "words") as library, pytest.raises(UsageError, match="has no vectors"):
        library.make_sketches(QUERIES)


def test_the_command(tmp_path, papers, monkeypatch):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
    (tmp_path / "questions.txt").write_text("\n".join(QUERIES) + "\n\n", encoding="utf-8")
    monkeypatch.setattr(models, "load_bound", lambda *_, **__: ToyReader())
    words = ["library", "sketch", "-l", str(tmp_path / "lib")]
    answer = CliRunner().invoke(app, [*words, "--queries", str(tmp_path / "questions.txt")], catch_exceptions=False)
    assert answer.stdout.startswith("60 pages with sketches")
    status = CliRunner().invoke(app, ["library", "status", "-l", str(tmp_path / "lib")], catch_exceptions=False)
    assert "vector search rescores 100 candidates" in " ".join(status.stdout.split())
    (tmp_path / "empty.txt").touch()
    empty = CliRunner().invoke(app, [*words, "--queries", str(tmp_path / "empty.txt")])
    assert "found 0 different queries" in str(empty.exception)
    assert CliRunner().invoke(app, [*words, "--remove"], catch_exceptions=False).exit_code == 0
    with Library(tmp_path / "lib", ToyReader()) as library:
        assert (library.status().sketches, library.status().format, library.store.sketches) == ("", 2, None)
    gone = CliRunner().invoke(app, [*words, "--queries", str(tmp_path / "gone.txt")])
    assert isinstance(gone.exception, UsageError)
    assert "gone.txt: No such file" in str(gone.exception)
