"""Every store answers as three loops do: the same suite on the reference, on the engine, and on servers.

reference: exact scores in memory, of the benchmarks. local: the server's store on the client's local mode. wire: the
same over gRPC, to a stand-in. server: a real one, where RANDSLOT_QDRANT_URL says that there is one, as in
qdrant://localhost:6334.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from exact_store import ExactStore
from qdrant_client import QdrantClient

from randslot.library.address import Address, read_address
from randslot.library.stores.connection import Connection, connect
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.server import ServerStore
from randslot.library.stores.store import Store, StoredPage, Where, page_id
from randslot.library.stores.tuning import Tuning
from support.libraries import REAL
from support.qdrant_server import serving

DIM = 32
FILES = [str(uuid.UUID(int=i)) for i in range(1, 6)]


@pytest.fixture(params=["reference", "edge", "local", "wire", *(["server"] if REAL else [])])
def store(request, tmp_path):
    with make_store(request.param, tmp_path) as made:
        yield made
        made.close()


@contextmanager
def make_store(kind: str, folder: Path) -> Iterator[Store]:
    if kind == "reference":
        yield ExactStore(DIM)
    elif kind == "edge":
        yield EdgeStore(folder / "pages", DIM)
    elif kind == "local":
        yield ServerStore(Connection(QdrantClient(":memory:"), Address("localhost", "pages")), DIM)
    elif kind == "wire":
        with serving() as (_, port):
            yield from on_server(f"qdrant://127.0.0.1:{port}")
    else:
        yield from on_server(REAL)


def on_server(url: str) -> Iterator[Store]:
    connection = connect(read_address(f"{url.rstrip('/')}/test-{uuid.uuid4()}"))
    try:
        yield ServerStore(connection, DIM)
    finally:
        connection.client.delete_collection(connection.address.collection)
        connection.close()


def unit(random: np.random.Generator, num: int) -> np.ndarray:
    values = random.standard_normal((num, DIM)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def make_pages(seed: int = 0, counts: tuple[int, ...] = (4,)) -> list[StoredPage]:
    """Make ten pages for each of five files."""
    random = np.random.default_rng(seed)
    return [
        StoredPage(file, number, f"{seed}-{number}", unit(random, counts[number % len(counts)]))
        for file in FILES
        for number in range(1, 11)
    ]


def max_sim(query: np.ndarray, page: np.ndarray) -> float:
    total = 0.0
    for wanted in query:
        best = -np.inf
        for vector in page:
            best = max(best, float(sum(a * b for a, b in zip(wanted, vector, strict=True))))
        total += best
    return total


def ranked(pages: list[StoredPage], query: np.ndarray) -> list[str]:
    return [page.id for page in sorted(pages, key=lambda page: -max_sim(query, page.vectors))]


@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("counts", [(4,), (1, 4, 7)])
def test_an_exact_search_is_max_sim_over_all_pages(store, counts, many):
    pages = make_pages(counts=counts)
    store.add(pages)
    queries = [unit(np.random.default_rng(seed), num) for seed, num in ((1, 4), (2, 1), (3, 6))]
    queries *= many
    for query, hits in zip(queries, store.search(queries, 7, Where(), exact=True), strict=True):
        assert [hit.id for hit in hits] == ranked(pages, query)[:7]
        by_id = {page.id: page for page in pages}
        for hit in hits:
            page = by_id[hit.id]
            assert (hit.file, hit.number) == (page.file, page.number)
            assert hit.score == pytest.approx(max_sim(query, page.vectors), abs=5e-3)


def test_the_default_search_scores_in_full_what_it_finds(store):
    """With fewer pages than candidates, compression can lose nothing."""
    pages = make_pages()
    store.add(pages)
    query = unit(np.random.default_rng(1), 4)
    (hits,) = store.search([query], 5, Where(), exact=False)
    assert [hit.id for hit in hits] == ranked(pages, query)[:5]
    assert hits[0].score == pytest.approx(max_sim(query, {p.id: p for p in pages}[hits[0].id].vectors), abs=5e-3)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        (Where(files=frozenset(FILES[:2])), lambda page: page.file in FILES[:2]),
        (Where(hidden=frozenset(FILES[1:])), lambda page: page.file == FILES[0]),
        (Where(first=3, last=5), lambda page: 3 <= page.number <= 5),
        (Where(first=9), lambda page: page.number >= 9),
        (
            Where(files=frozenset(FILES[:3]), hidden=frozenset(FILES[2:]), last=4),
            lambda page: page.file in FILES[:2] and page.number <= 4,
        ),
    ],
)
def test_a_search_looks_at_the_pages_it_is_told_to(store, where, allowed, exact):
    pages = make_pages()
    store.add(pages)
    query = unit(np.random.default_rng(1), 4)
    (hits,) = store.search([query], 50, where, exact)
    assert [hit.id for hit in hits] == ranked([page for page in pages if allowed(page)], query)


def test_no_page_is_allowed_no_page_is_found(store):
    query = unit(np.random.default_rng(1), 4)
    assert store.search([query, query], 5, Where(), exact=True) == [[], []]
    store.add(make_pages())
    assert store.search([query], 5, Where(files=frozenset()), exact=True) == [[]]
    assert store.search([query], 5, Where(hidden=frozenset(FILES)), exact=False) == [[]]


def test_a_page_that_is_added_again_is_replaced(store):
    store.add(make_pages(0))
    store.add(make_pages(1)[:3])
    new, old = make_pages(1)[:3], make_pages(0)[3:]
    query = unit(np.random.default_rng(5), 4)
    (hits,) = store.search([query], 50, Where(), exact=True)
    assert [hit.id for hit in hits] == ranked(new + old, query)
    assert store.images(FILES[0]) == {n: f"{1 if n <= 3 else 0}-{n}" for n in range(1, 11)}
    assert store.counts() == dict.fromkeys(FILES, 10)


def test_deleted_files_are_gone(store):
    store.add(make_pages())
    store.delete(FILES[1])
    store.delete(FILES[1])
    assert store.counts() == {file: 10 for file in FILES if file != FILES[1]}
    assert store.images(FILES[1]) == {}
    (hits,) = store.search([unit(np.random.default_rng(1), 4)], 50, Where(), exact=True)
    assert len(hits) == 40
    assert FILES[1] not in {hit.file for hit in hits}
    assert store.read([page_id(FILES[1], 1)]) == {}


def test_vectors_come_back_in_half_precision(store):
    pages = make_pages(counts=(4, 2))
    store.add(pages)
    read = store.read([pages[3].id, pages[12].id, page_id(FILES[0], 99)])
    assert read.keys() == {pages[3].id, pages[12].id}
    for page in (pages[3], pages[12]):
        found = read[page.id]
        assert (found.id, found.file, found.number, found.image) == (page.id, page.file, page.number, page.image)
        np.testing.assert_allclose(found.vectors, page.vectors, atol=5e-4)


def test_many_pages_of_one_file_are_all_known(store):
    """More than the engine hands out at once."""
    vectors = unit(np.random.default_rng(0), 2)
    store.add([StoredPage(FILES[0], number, str(number), vectors) for number in range(1, 1203)])
    assert store.images(FILES[0]) == {number: str(number) for number in range(1, 1203)}
    store.optimize()
    assert store.counts() == {FILES[0]: 1202}


def test_the_engine_keeps_what_it_has(tmp_path):
    pages = make_pages()
    store = EdgeStore(tmp_path / "pages", DIM)
    store.add(pages)
    store.flush()
    store.optimize()
    store.close()
    again = EdgeStore(tmp_path / "pages", DIM)
    assert again.counts() == dict.fromkeys(FILES, 10)
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "num", "shared"), [(128, 1500, 3.0), (1024, 600, 0.0)])
def test_compressed_searches_find_what_exact_ones_do(tmp_path, dim, num, shared):
    """On clustered vectors, enough of them for the engine to compress; the small ones have much in common.

    So have those of a model that has not learned much, and then their signs say little.
    """
    random = np.random.default_rng(0)
    centres = shared * random.standard_normal(dim) + random.standard_normal((40, dim))

    def blur(values: np.ndarray, noise: float) -> np.ndarray:
        values = values + noise * random.standard_normal(values.shape)
        return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)

    pages = [
        StoredPage(FILES[0], number, "", blur(centres[random.integers(0, 40, 4)], 0.7)) for number in range(1, num + 1)
    ]
    store, exact = EdgeStore(tmp_path / "pages", dim, Tuning(candidates=200)), ExactStore(dim)
    for one in (store, exact):
        one.add(pages)
        one.optimize()
    assert any(tmp_path.rglob("quantized*")) == (dim == 1024)
    queries = [blur(page.vectors, 0.3 / dim**0.5) for page in pages[:20]]
    wanted = exact.search(queries, 5, Where(), exact=True)
    for how in (True, False):
        found = store.search(queries, 5, Where(), exact=how)
        both = [{hit.id for hit in a} & {hit.id for hit in b} for a, b in zip(found, wanted, strict=True)]
        assert np.mean([len(ids) / 5 for ids in both]) >= 0.98
    store.close()


@pytest.mark.parametrize(("codes_from", "by_default"), [(DIM, []), (DIM + 1, ["vectors"])])
def test_opening_reads_codes_and_only_a_search_without_them_reads_all(tmp_path, monkeypatch, codes_from, by_default):
    tuning = Tuning(codes_from=codes_from)
    store = EdgeStore(tmp_path / "pages", DIM, tuning)
    store.add(make_pages())
    store.close()
    read: list[str] = []
    monkeypatch.setattr("randslot.library.stores.edge._read_through", lambda _, name: read.append(name))
    store = EdgeStore(tmp_path / "pages", DIM, tuning)
    query = unit(np.random.default_rng(1), 4)
    store.search([query], 5, Where(), exact=False)
    assert read == ["quantized*", *by_default]
    store.search([query], 5, Where(), exact=True)
    store.search([query], 5, Where(), exact=True)
    assert read == ["quantized*", "vectors"]
    store.close()


BUILD = """
import sys, uuid
from pathlib import Path
import numpy as np
from randslot.library.stores.connection import Connection, connect
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.store import StoredPage

store = EdgeStore(Path(sys.argv[1]), 1024)
vectors = np.full((4, 1024), 1 / 32, np.float32)
for number in range(int(sys.argv[2])):
    store.add([StoredPage(str(uuid.UUID(int=1)), number, "", vectors)])
store.flush()
store.optimize()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, to see the memory of a process")
def test_memory_of_its_own_does_not_grow_with_the_pages(tmp_path):
    """Mapped files do not count: the system takes their memory back when it needs it."""
    few, many = (peak_of(BUILD, tmp_path / str(num), num) for num in (500, 8000))
    assert few > 0
    assert many - few < 8000 * 4 * 1024 * 2 / 4  # a quarter of what is stored


def peak_of(script: str, *words: object) -> int:
    """Run a script and return the most bytes of its own that its process had, as seen from here."""
    peak = 0
    with subprocess.Popen([sys.executable, "-c", script, *map(str, words)]) as process:
        while process.poll() is None:
            with suppress(OSError):  # it ended just now
                found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
                peak = max(peak, 1024 * int(found[1]) if found else 0)
            time.sleep(0.01)
    assert process.returncode == 0
    return peak
