"""Measure the speed, size and recall of vector search, compared with peers.

    python benchmarks/search.py                          # 10k and 100k pages of 4 x 2048 and of the embedded size
    python benchmarks/search.py --pages 10000            # a part
    pip install -e ".[benchmark]"                        # the peers

Vectors are generated: pages cluster around topics, and a query is a page with noise. Every engine runs in its own
process, to measure its peak memory, and measures the memory bandwidth right after its searches: "x limit" is p50
relative to the time to read the data it must scan (codes for the default).

At the end, the embedded model encodes sample pages, and the default search is compared with the exact one; these
vectors are too small for codes by default, so codes are also tried on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from record import keep, print_table

K, HITS, BATCH = 4, 5, 32
QUERIES = 32
SECONDS = 4.0, 20.0  # minimum and maximum seconds of searches per engine
LIMIT = 1800.0  # seconds per engine
Array = NDArray[Any]


class Way(Protocol):
    """A search engine: build it from blocks of pages (P, K, D), then query it."""

    bits: float  # that a search reads per dimension

    def build(self, blocks: Iterator[Array], folder: Path) -> None: ...

    def search(self, queries: Array) -> list[list[int]]: ...


class Ours:
    """The store of a library; compressed by default."""

    def __init__(self, exact: bool) -> None:
        self.exact, self.bits = exact, 16.0

    def build(self, blocks: Iterator[Array], folder: Path) -> None:
        from randslot.library.stores.edge import EdgeStore
        from randslot.library.stores.points import StoredPage
        from randslot.library.stores.store import Tuning

        first = next(blocks)
        if not self.exact and Tuning().has_codes(first.shape[-1]):
            self.bits = 1.0
        self.store = EdgeStore(folder / "pages", first.shape[-1])
        start = 0
        for block in _again(first, blocks):
            numbers = range(start, start + len(block))
            self.store.add([StoredPage(FILE, i, "", page) for i, page in zip(numbers, block, strict=True)])
            start += len(block)
            if start % 5000 == 0:
                self.store.flush()  # every few seconds, as a library does
        self.store.flush()
        self.store.optimize()

    def search(self, queries: Array) -> list[list[int]]:
        from randslot.library.stores.store import StoreQuery, Where

        found = self.store.search([StoreQuery(query) for query in queries], HITS, Where(), self.exact)
        return [[hit.number for hit in hits] for hits in found]


class InMemory:
    """An exact store in memory."""

    bits = 16.0

    def build(self, blocks: Iterator[Array], folder: Path) -> None:
        from randslot.library.stores.points import StoredPage
        from support.exact_store import ExactStore

        pages = np.concatenate([block.astype(np.float16) for block in blocks])
        self.store = ExactStore(pages.shape[-1])
        self.store.add([StoredPage(FILE, i, "", page) for i, page in enumerate(pages)])

    def search(self, queries: Array) -> list[list[int]]:
        from randslot.library.stores.store import StoreQuery, Where

        found = self.store.search([StoreQuery(query) for query in queries], HITS, Where(), True)
        return [[hit.number for hit in hits] for hits in found]


class Torch:
    """One matrix product in float32, then the maximum per page."""

    bits = 32.0

    def build(self, blocks: Iterator[Array], folder: Path) -> None:
        self.pages = torch.from_numpy(np.concatenate(list(blocks)))

    def search(self, queries: Array) -> list[list[int]]:
        num, vectors, dim = queries.shape
        products = self.pages.view(-1, dim) @ torch.from_numpy(queries).view(-1, dim).T
        scores = products.view(len(self.pages), K, num, vectors).amax(1).sum(-1)
        best: list[list[int]] = scores.topk(HITS, dim=0).indices.T.tolist()
        return best


class Einsum(Torch):
    """colpali-engine's scoring: an einsum of queries with 128 pages at a time, in float32."""

    def search(self, queries: Array) -> list[list[int]]:
        asked = torch.from_numpy(queries)
        blocks = [
            torch.einsum("bnd,csd->bcns", asked, block).max(dim=3)[0].sum(dim=2) for block in self.pages.split(128)
        ]
        best: list[list[int]] = torch.cat(blocks, dim=1).topk(HITS).indices.tolist()
        return best


class MaxSimCpu:
    """maxsim-cpu, float32."""

    bits = 32.0

    def build(self, blocks: Iterator[Array], folder: Path) -> None:
        import maxsim_cpu

        self.score = maxsim_cpu.maxsim_scores
        self.pages = np.concatenate(list(blocks))

    def search(self, queries: Array) -> list[list[int]]:
        return [np.argsort(-np.asarray(self.score(query, self.pages)))[:HITS].tolist() for query in queries]


class Lance:
    """LanceDB, multivector column in half precision, flat."""

    bits = 16.0

    def build(self, blocks: Iterator[Array], folder: Path) -> None:
        import lancedb
        import pyarrow

        first = next(blocks)
        dim = first.shape[-1]
        kind = pyarrow.list_(pyarrow.list_(pyarrow.float16(), dim))
        schema = pyarrow.schema([("number", pyarrow.int64()), ("vector", kind)])
        self.table = lancedb.connect(folder / "lance").create_table("pages", schema=schema)
        start = 0
        for block in _again(first, blocks):
            values = pyarrow.FixedSizeListArray.from_arrays(block.astype(np.float16).ravel(), dim)
            vectors = pyarrow.ListArray.from_arrays(np.arange(0, K * len(block) + 1, K, dtype=np.int32), values)
            numbers = pyarrow.array(range(start, start + len(block)))
            self.table.add(pyarrow.table([numbers, vectors], schema=schema))
            start += len(block)

    def search(self, queries: Array) -> list[list[int]]:
        return [
            [
                row["number"]
                for row in self.table.search(query.astype(np.float16))
                .distance_type("cosine")
                .select(["number"])
                .limit(HITS)
                .to_list()
            ]
            for query in queries
        ]


class QdrantLocal:
    """qdrant-client without a server."""

    bits = 32.0

    def build(self, blocks: Iterator[Array], folder: Path) -> None:
        import warnings

        from qdrant_client import QdrantClient, models

        warnings.simplefilter("ignore")  # it warns above 20,000 points
        first = next(blocks)
        self.client = QdrantClient(":memory:")
        several = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        vectors = models.VectorParams(size=first.shape[-1], distance=models.Distance.DOT, multivector_config=several)
        self.client.create_collection("pages", vectors_config=vectors)
        start = 0
        for block in _again(first, blocks):
            points = [models.PointStruct(id=start + i, vector=page.tolist()) for i, page in enumerate(block)]
            self.client.upsert("pages", points)
            start += len(block)

    def search(self, queries: Array) -> list[list[int]]:
        found = (self.client.query_points("pages", query=query.tolist(), limit=HITS).points for query in queries)
        return [[int(point.id) for point in points] for points in found]


FILE = str(uuid.UUID(int=1))
WAYS: dict[str, Any] = {
    "randslot, default": lambda: Ours(exact=False),
    "randslot, exact": lambda: Ours(exact=True),
    "randslot, in memory": InMemory,
    "torch product, fp32": Torch,
    "colpali-style einsum, fp32": Einsum,
    "maxsim-cpu, fp32": MaxSimCpu,
    "LanceDB multivector, fp16": Lance,
    "qdrant-client local mode": QdrantLocal,
}


def _again(first: Array, rest: Iterator[Array]) -> Iterator[Array]:
    yield first
    yield from rest


# -- data


def generate(num: int, dim: int, folder: Path) -> None:
    """Write generated pages (half precision), queries, and the best pages of each by scores in float32."""
    random = np.random.default_rng(0)
    topics = random.standard_normal((max(num // 50, 10), dim)).astype(np.float32)
    pages = np.lib.format.open_memmap(folder / "pages.npy", "w+", np.float16, (num, K, dim))
    for start in range(0, num, 2000):
        size = min(2000, num - start)
        values = topics[random.integers(0, len(topics), (size, K))]
        values = values + 0.8 * random.standard_normal((size, K, dim), dtype=np.float32)
        pages[start : start + size] = values / np.linalg.norm(values, axis=-1, keepdims=True)
    chosen = pages[random.integers(0, num, QUERIES)].astype(np.float32)
    queries = chosen + (0.5 / dim**0.5) * random.standard_normal(chosen.shape, dtype=np.float32)
    queries /= np.linalg.norm(queries, axis=-1, keepdims=True)
    scores = np.empty((QUERIES, num), np.float32)
    for start in range(0, num, 2000):
        block = pages[start : start + 2000].astype(np.float32)
        products = (queries.reshape(-1, dim) @ block.reshape(-1, dim).T).reshape(QUERIES, K, len(block), K)
        scores[:, start : start + 2000] = products.max(3).sum(1)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "best.npy", np.argsort(-scores, axis=1)[:, :HITS])


def blocks(folder: Path) -> Iterator[Array]:
    pages = np.load(folder / "pages.npy", mmap_mode="r")
    for start in range(0, len(pages), 1000):
        yield pages[start : start + 1000].astype(np.float32)


# -- one engine, in a separate process


def measure(name: str, folder: Path, threads: int) -> dict[str, Any]:
    """Build one engine and time it."""
    torch.set_num_threads(threads)
    queries, best = np.load(folder / "queries.npy"), np.load(folder / "best.npy")
    num, _, dim = np.load(folder / "pages.npy", mmap_mode="r").shape
    way: Way = WAYS[name]()
    place = folder / "way"
    place.mkdir()
    start = time.perf_counter()
    way.build(blocks(folder), place)
    built = time.perf_counter() - start
    way.search(queries[:1])  # warms up
    found, seconds = time_searches(way, queries)
    start = time.perf_counter()
    way.search(np.resize(queries, (BATCH, *queries.shape[1:])))
    batch = BATCH / (time.perf_counter() - start)
    peak = _memory("VmHWM")  # not ru_maxrss, which starts at the parent's
    limit = way.bits / 8 * num * K * dim / read_bandwidth(threads)
    right = [len(set(hits) & set(wanted)) / HITS for hits, wanted in zip(found, best.tolist(), strict=False)]
    return {
        "pages": num,
        "size": f"{K} x {dim}",
        "way": name,
        "p50 ms": 1000 * statistics.median(seconds),
        "p95 ms": 1000 * float(np.quantile(seconds, 0.95)),
        "x limit": statistics.median(seconds) / limit,
        f"batch-{BATCH} queries/s": batch,
        "built pages/s": num / built,
        "MB on disk": sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file()) / 1e6,
        "peak MB": peak,
        f"recall@{HITS}": float(np.mean(right)),
    }


def time_searches(way: Way, queries: Array) -> tuple[list[list[int]], list[float]]:
    """Run all queries at least twice if time allows; return the hits, and the seconds of each search."""
    found: list[list[int]] = []
    seconds: list[float] = []
    least, most = SECONDS
    while sum(seconds) < (least if len(seconds) >= 2 * len(queries) else most) or len(seconds) < 3:
        number = len(seconds) % len(queries)
        start = time.perf_counter()
        (hits,) = way.search(queries[number : number + 1])
        seconds.append(time.perf_counter() - start)
        if len(seconds) <= len(queries):
            found.append(hits)
    return found, seconds


def read_bandwidth(threads: int) -> float:
    """Return the memory read bandwidth in bytes per second: the best of several runs over half a gigabyte."""
    parts = np.array_split(np.ones(2**26, np.uint64), threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.max, parts))
        times = []
        for _ in range(7):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            times.append(time.perf_counter() - start)
    return 2**29 / min(times)


# -- opening, and real vectors


def measure_opening(folder: Path) -> dict[str, Any]:
    """Open the default store in a new process: measure time, memory, and what codes save.

    Default and exact searches are interleaved, so that load affects both alike.
    """
    from randslot.library.stores.edge import EdgeStore
    from randslot.library.stores.store import StoreQuery, Where

    num, _, dim = np.load(folder / "pages.npy", mmap_mode="r").shape
    before = _memory("VmRSS")
    start = time.perf_counter()
    store = EdgeStore(folder / "way" / "pages", dim)
    seconds = time.perf_counter() - start
    grown = _memory("VmRSS") - before
    spent: dict[bool, list[float]] = {False: [], True: []}
    for query in np.load(folder / "queries.npy"):
        for exact in spent:
            start = time.perf_counter()
            store.search([StoreQuery(query)], HITS, Where(), exact)
            spent[exact].append(time.perf_counter() - start)
    store.close()
    default, full = (1000 * statistics.median(spent[exact]) for exact in (False, True))
    return {
        "pages": num,
        "size": f"{K} x {dim}",
        "opened in s": seconds,
        "memory for it, MB": grown,
        "in turn: default, p50 ms": default,
        "exact, p50 ms": full,
        "times faster": full / default,
    }


def _memory(name: str) -> float:
    """Return the memory of this process in MB: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def measure_real(num_reports: int, num_queries: int, folder: Path) -> dict[str, Any]:
    """Compare the default search with the exact one on vectors of the embedded model, with and without codes."""
    import randslot
    from randslot.library.stores.edge import EdgeStore
    from randslot.library.stores.points import page_id
    from randslot.library.stores.store import StoreQuery, Tuning, Where
    from research.samples.drawing import draw_report
    from research.samples.reports import make_reports
    from research.samples.sets import ask_all

    reports = list(make_reports(num_reports, split="test", seed=2))
    for report in reports:
        (folder / f"{report.name}.pdf").write_bytes(draw_report(report))
    asked = [one.question.text for one in ask_all(reports)]
    queries = asked[:: max(len(asked) // num_queries, 1)][:num_queries]
    with randslot.Library(folder / "library", "embedded") as library:
        summary = library.add(folder, batch=16)
        right, found = (library.search_all(queries, HITS, by="vectors", exact=exact) for exact in (True, False))
        ids = []
        for file, num in library.store.counts().items():
            ids += [page_id(file, number) for number in range(1, num + 1)]
        pages = list(library.store.read(ids).values())
        vectors = [StoreQuery(own) for own in library.models.model.embed_queries(queries)]
        assert library.binding is not None
    as_if_large = Tuning(codes_from=0)
    coded = EdgeStore(folder / "coded", library.binding.dimension, as_if_large)
    coded.add(pages)
    coded.optimize()
    by_codes = coded.search(vectors, HITS, Where(), False)
    coded.close()
    return {
        "real pages": summary.pages,
        "model": f"embedded, {library.binding.weights[:8]}",
        "queries": len(queries),
        f"recall@{HITS} of the default": recall(found, right),
        f"recall@{HITS} with one-bit codes": recall(by_codes, right),
        "indexed pages/s": summary.encoded / summary.seconds,
    }


def recall(found: Sequence[Sequence[Any]], right: Sequence[Sequence[Any]]) -> float:
    """Return the share of the exact hits that were found."""
    both = [len({hit.id for hit in a} & {hit.id for hit in b}) for a, b in zip(found, right, strict=True)]
    return float(np.mean(both)) / HITS


# -- all


def in_process(*words: str) -> dict[str, Any]:
    """Run a part of this script in a separate process, and return the row in the last line it prints."""
    try:
        answer = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {LIMIT:.0f} s"}
    if answer.returncode:
        return {"error": (answer.stderr.strip().splitlines() or ["failed"])[-1]}
    row: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return row


def measure_all(num: int, dim: int, ways: Sequence[str], threads: int) -> list[dict[str, Any]]:
    """Measure every engine on generated pages, and the opening time of the default."""
    rows, opened = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(num, dim, folder)
        for way in ways:
            row = in_process("--way", way, "--folder", name, "--threads", str(threads))
            print(json.dumps(row), file=sys.stderr, flush=True)
            if "error" in row:
                print(f"skipped: {way} with {num} pages: {row['error']}", file=sys.stderr)
            else:
                rows.append(row)
            if way == "randslot, default" and "error" not in row:
                opened.append(in_process("--opening", "--folder", name))
            subprocess.run(["rm", "-rf", str(folder / "way")], check=True)
    return rows + opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[2048, 128])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--reports", type=int, default=1000, help="sample reports of three pages for real vectors")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--opening", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.folder, options.threads)))
        return
    if options.opening:
        print(json.dumps(measure_opening(options.folder)))
        return
    torch.set_num_threads(options.threads)
    rows = [{"read bandwidth, GB/s": read_bandwidth(options.threads) / 1e9, "threads": options.threads}]
    for dim in options.dims:
        for num in options.pages:
            rows += measure_all(num, dim, options.ways, options.threads)
    with tempfile.TemporaryDirectory() as name:
        rows.append(measure_real(options.reports, 500, Path(name)))
    for kind in dict.fromkeys(tuple(row) for row in rows):
        print_table([row for row in rows if tuple(row) == kind])
        print()
    keep("search", rows)


if __name__ == "__main__":
    main()
