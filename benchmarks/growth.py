"""How searching grows with the pages: a scan of all pages, and the engine's graphs, at 10,000 pages and many more.

Pages are drawn from a mixture of Gaussians that was fitted to the vectors of real pages, and queries are real ones, so
that scores are as close to each other as those of a model. Each configuration is one process and one row; what is in
results/growth.json already is not run again.

python benchmarks/growth.py --folder FOLDER --like reports --fit LIBRARY --questions queries.jsonl    once
python benchmarks/growth.py --folder FOLDER --like reports --pages 10000 100000 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import first_stages
import numpy as np
import qdrant_edge as edge
from numpy.typing import NDArray
from record import RESULTS, keep, print_table

Floats = NDArray[np.float32]
CHUNK = 10_000  # pages that are drawn at once: any number of pages begins with the same ones
FILE_PAGES = 100  # of a file
COMPONENTS = 64  # of the mixture
MOST_QUESTIONS, LINES = 2000, 600  # of a fit: questions, and lines of pages that are asked for
CENTRES = 2_000  # of the clusters of large vectors
QUERIES, HITS = 100, 5
TARGET = 0.98  # recall that is enough
FILTERS = {"": 1, "a tenth": 10, "a hundredth": 100}  # which files a search looks at: one in so many
UPDATE = 500  # points in one update
READOUTS = ("readout-1", "readout-2", "readout-3", "readout-4")


@dataclass(frozen=True)
class Way:
    """A configuration of the engine, and how it is searched.

    codes: int8, binary, or none. efs: none for a scan. readouts: a graph for each readout of a page; each vector of a
    query asks each of them for so many pages as `efs` says, and all that are found are scored in full. alone: each
    vector of the query asks the graph of pages by itself. first: another first stage (see first_stages.py), whose
    `efs` are cells that each vector looks into, or readouts that it finds.
    """

    name: str
    edges: int = 0
    construct: int = 100
    codes: str = ""
    efs: tuple[int, ...] = ()
    candidates: int = 200
    readouts: bool = False
    alone: bool = False
    first: str = ""


WAYS = {
    way.name: way
    for way in (
        Way("scan"),
        Way("scan, int8", codes="int8"),
        Way("scan, bits", codes="binary", candidates=1000),
        Way("graph 16", 16, efs=(64, 256, 1024)),
        Way("graph 32", 32, 256, efs=(64, 256, 1024)),
        Way("graph 16, int8", 16, codes="int8", efs=(64, 256, 1024)),
        Way("graph 32, int8", 32, 256, codes="int8", efs=(64, 256, 1024)),
        Way("graphs of readouts", 16, efs=(50, 100, 200, 400), readouts=True),
        Way("one graph of all readouts", 16, efs=(50, 100, 200, 400, 800), first="readouts"),
        Way("graph 16, vector by vector", 16, efs=(100, 400), alone=True),
        Way("cells", efs=(8, 16, 32, 64, 128, 256), first="cells"),
        Way("graph 16, bits", 16, codes="binary", efs=(64, 256, 1024), candidates=1000),
    )
}
DEFAULT_WAYS = ("scan", "graph 16", "graphs of readouts")


# -- pages and queries


def fit(library: str, questions: Sequence[Path], target: Path) -> None:
    """Fit a mixture to the vectors of a library's pages, and keep it with the vectors of questions."""
    from sklearn.cluster import KMeans

    from randslot.library.library import Library
    from randslot.library.models import choose_line
    from randslot.library.stores.points import page_id

    pages: list[Floats] = []
    texts = [json.loads(line)["query"] for path in questions for line in path.read_text().splitlines()]
    texts = texts[:: max(len(texts) // MOST_QUESTIONS, 1)]
    dice = random.Random(0)
    lines = []
    with Library(library, create=False) as opened:
        for file in opened.files():
            ids = [page_id(file.id, number) for number in range(1, file.num_pages + 1)]
            for page in opened.store.read(ids).values():
                if page.vectors is not None:
                    pages.append(page.vectors)
                    lines.append(choose_line(page, dice) if page.text else "")
        lines = dice.sample([line for line in lines if line], LINES)
        queries = np.stack(opened.models.embed_queries(texts))
        asked = np.stack(opened.models.embed_queries(lines))
    values = np.stack(pages).astype(np.float32)
    num, vectors, dim = values.shape
    flat = values.reshape(num, vectors * dim)
    groups = KMeans(COMPONENTS, random_state=0, n_init=1).fit(flat)
    inner = flat - groups.cluster_centers_[groups.labels_]
    spread, axes = np.linalg.eigh(np.cov(inner, rowvar=False))
    noise = axes * np.sqrt(np.maximum(spread, 0))
    weights = np.bincount(groups.labels_, minlength=COMPONENTS) / num
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        target,
        centres=groups.cluster_centers_.astype(np.float32),
        weights=weights,
        noise=noise.astype(np.float32),
        queries=queries.astype(np.float32),
        lines=asked.astype(np.float32),
        shape=np.array([vectors, dim]),
    )
    print(f"{num} pages of {vectors} x {dim} and {len(queries)} queries")
    print(describe(values, queries))


def describe(pages: Floats, queries: Floats) -> str:
    """Return what vectors look like: how alike the readouts of a page are, and how close the scores of pages."""
    alike = float(np.einsum("nkd,njd->kj", pages, pages)[0, 1:].mean() / len(pages))
    scores = np.sort(score(queries, pages), axis=1)[:, ::-1]
    first, fifth, hundredth, median = scores[:, [0, 4, 99, len(pages) // 2]].mean(0)
    centred = pages[:, 0] - pages[:, 0].mean(0)
    spread = np.linalg.svd(centred, compute_uv=False) ** 2
    dims = float(spread.sum() ** 2 / (spread**2).sum())
    return (
        f"cosine of readouts {alike:.2f}, effective dimensions {dims:.1f}, "
        f"scores of ranks 1, 5, 100 and the median {first:.3f} {fifth:.3f} {hundredth:.3f} {median:.3f}"
    )


def score(queries: Floats, pages: Floats) -> Floats:
    """Return MaxSim of all queries and pages."""
    total = np.zeros((len(queries), len(pages)), np.float32)
    for number in range(queries.shape[1]):
        total += np.einsum("qd,nkd->qnk", queries[:, number], pages, optimize=True).max(-1)
    return total


def normalize(values: Floats) -> Floats:
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True), np.float32)


@dataclass(frozen=True)
class Source:
    """Where pages come from. dim: those of the model are turned into a space of more dimensions, as they are."""

    like: Path
    dim: int

    def turn(self, dim: int) -> Floats:
        square = np.random.default_rng(1).standard_normal((self.dim, self.dim))
        return np.linalg.qr(square)[0][:dim].astype(np.float32)

    def chunk(self, number: int) -> Floats:
        """Return some pages, the same each time."""
        dice = np.random.default_rng([7, number])
        like = np.load(self.like)
        vectors, dim = like["shape"]
        which = dice.choice(COMPONENTS, CHUNK, p=like["weights"])
        noise = dice.standard_normal((CHUNK, vectors * dim)).astype(np.float32) @ like["noise"].T
        values = (like["centres"][which] + noise).reshape(CHUNK, vectors, dim)
        return normalize(values @ self.turn(dim))

    def lines(self) -> Floats:
        """Return lines of pages as queries."""
        like = np.load(self.like)
        return normalize(like["lines"] @ self.turn(int(like["shape"][1])))

    def queries(self) -> Floats:
        like = np.load(self.like)
        chosen = like["queries"][:: max(len(like["queries"]) // QUERIES, 1)][:QUERIES]
        return normalize(chosen @ self.turn(int(like["shape"][1])))


@dataclass(frozen=True)
class Clusters(Source):
    """Pages of large vectors: each is near a cluster, and a query is near a page."""

    def chunk(self, number: int) -> Floats:
        dice = np.random.default_rng([8, number])
        centres = normalize(np.random.default_rng(8).standard_normal((CENTRES, self.dim)).astype(np.float32))
        which = dice.integers(0, CENTRES, (CHUNK, 4))
        noise = dice.standard_normal((CHUNK, 4, self.dim)).astype(np.float32) / self.dim**0.5
        return normalize(centres[which] + 0.7 * noise)

    def queries(self) -> Floats:
        pages = self.chunk(0)[:QUERIES]
        noise = np.random.default_rng(9).standard_normal(pages.shape).astype(np.float32) / self.dim**0.5
        return normalize(pages + 0.7 * noise)


@dataclass(frozen=True)
class Uniform(Source):
    """Pages and queries that have nothing in common: the worst case of codes."""

    def chunk(self, number: int) -> Floats:
        values = np.random.default_rng([6, number]).standard_normal((CHUNK, 4, self.dim), dtype=np.float32)
        return normalize(values)

    def queries(self) -> Floats:
        return normalize(np.random.default_rng(5).standard_normal((QUERIES, 4, self.dim), dtype=np.float32))


GENERATED = {"clusters": Clusters, "uniform": Uniform}  # vectors that are like those of no model


def make_source(arguments: argparse.Namespace) -> Source:
    kind = GENERATED.get(arguments.like, Source)
    return kind(arguments.folder / f"{arguments.like}.npz", arguments.dim)


# -- one configuration


def file_of(number: int) -> str:
    return f"file-{number // FILE_PAGES}"


def kept_files(pages: int, every: int) -> list[str]:
    """Return the files of a filter, spread over all."""
    return [f"file-{number}" for number in range(0, pages // FILE_PAGES, every)]


def parameters(dim: int, way: Way, several: bool = True) -> edge.EdgeVectorParams:
    kinds: dict[str, Any] = {
        "int8": edge.ScalarQuantizationConfig(edge.ScalarType.Int8, memory=edge.Memory.Cached),
        "binary": edge.BinaryQuantizationConfig(memory=edge.Memory.Cached),
    }
    edges = 0 if (way.readouts or way.first) and several else way.edges
    graph = edge.HnswIndexConfig(edges, way.construct, full_scan_threshold=10, max_indexing_threads=1)
    return edge.EdgeVectorParams(
        size=dim,
        distance=edge.Distance.Dot,
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if several else None,
        datatype=edge.VectorStorageDatatype.Float16,
        memory=edge.Memory.Cold,
        quantization_config=kinds.get(way.codes),
        hnsw_config=graph,
    )


def all_parameters(dim: int, way: Way) -> dict[str, edge.EdgeVectorParams]:
    vectors = {"page": parameters(dim, way)}
    if way.readouts:
        vectors |= {name: parameters(dim, way, several=False) for name in READOUTS}
    return vectors


def load(folder: Path, source: Source, pages: int, way: Way) -> dict[str, float]:
    """Store the pages without codes and without a graph, unless that is done; return what it took."""
    if (folder / "loaded.json").exists():
        return dict(json.loads((folder / "loaded.json").read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "shard").mkdir(parents=True)
    plain = edge.EdgeConfig(
        vectors=all_parameters(source.dim, Way("plain", readouts=way.readouts)),
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=10**9, max_segment_size=10**9),
    )
    shard = edge.EdgeShard.create(str(folder / "shard"), plain)
    shard.update(edge.UpdateOperation.create_field_index("file", edge.PayloadSchemaType.Keyword))
    start, cpu = time.perf_counter(), time.process_time()
    for first in range(0, pages, CHUNK):
        values = source.chunk(first // CHUNK)
        for offset in range(0, min(CHUNK, pages - first), UPDATE):
            points = []
            for number in range(first + offset, min(first + offset + UPDATE, pages)):
                vectors: dict[str, Any] = {"page": values[number - first].tolist()}
                if way.readouts:
                    vectors |= zip(READOUTS, vectors["page"], strict=True)
                points.append(edge.Point(number, vectors, {"file": file_of(number)}))
            shard.update(edge.UpdateOperation.upsert_points(points))
        shard.flush()
    took = {"load s": time.perf_counter() - start, "load CPU s": time.process_time() - cpu}
    shard.close()
    (folder / "loaded.json").write_text(json.dumps(took))
    return took


def run_one(folder: Path, source: Source, pages: int, way: Way) -> list[dict[str, Any]]:
    """Build a configuration, and measure it; return a row for each way to search it."""
    kind = "readouts" if way.readouts else "pages"
    base = folder / f"{kind}-{source.like.stem}-{source.dim}-{pages}"
    loaded = load(base, source, pages, way)
    place = folder / f"built-{uuid.uuid4()}"
    subprocess.run(["cp", "-a", "--reflink=auto", str(base / "shard"), str(place)], check=True)
    try:
        config = edge.EdgeConfig(
            vectors=all_parameters(source.dim, way),
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=1000, max_segment_size=10**9, default_segment_number=1
            ),
            max_search_threads=1,
        )
        shard = edge.EdgeShard.load(str(place), config)
        start, cpu = time.perf_counter(), time.process_time()
        shard.optimize()
        shard.flush()
        extra = build_first(shard, place, source, pages, way)
        built = {"build s": time.perf_counter() - start, "build CPU s": time.process_time() - cpu}
        shard.close()
        shard = edge.EdgeShard.load(str(place), config)
        if way.first == "readouts":
            one = parameters(source.dim, way, several=False)
            extra = edge.EdgeShard.load(str(place / "readouts"), first_stages.readout_config(one))
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and "wal" not in file.parts)
        rows = []
        for ef in way.efs or (0,):
            if way.first == "cells" and ef >= len(extra):
                continue
            row = {
                "vectors": source.like.stem,
                "pages": pages,
                "size": f"4 x {source.dim}",
                "where": "folder",
                "way": way.name,
                "ef": ef,
                **loaded,
                **built,
                "segments": shard.info().segments_count,
                "MB on disk": size / 1e6,
            }
            row |= measure(shard, base, source, pages, way, ef, extra)
            row["own MB"] = own_memory() / 1e6
            row["load of machine"] = os.getloadavg()[0]
            rows.append(row)
        shard.close()
        if way.first == "readouts":
            extra.close()
        return rows
    finally:
        shutil.rmtree(place, ignore_errors=True)


def build_first(shard: edge.EdgeShard, place: Path, source: Source, pages: int, way: Way) -> Any:
    """Build what a first stage needs; return the centres of cells."""

    def all_pages() -> Iterator[tuple[int, Floats]]:
        for first in range(0, pages, CHUNK):
            yield first, source.chunk(first // CHUNK)[: pages - first]

    if way.first == "cells":
        return first_stages.add_cells(shard, all_pages, pages)
    if way.first == "readouts":
        one = parameters(source.dim, way, several=False)
        first_stages.make_readouts(place / "readouts", all_pages, one, file_of)
    return None


def own_memory() -> int:
    """Return the most memory that this process had, without files that are mapped."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def measure(
    shard: edge.EdgeShard, base: Path, source: Source, pages: int, way: Way, ef: int, extra: Any
) -> dict[str, Any]:
    """Search with each filter; return times of the processor, which others do not disturb much, and recall."""
    row: dict[str, Any] = {}
    for name, every in FILTERS.items():
        chosen = None
        if every > 1:
            match = edge.MatchAny(kept_files(pages, every))
            chosen = edge.Filter(must=[edge.FieldCondition("file", match=match)])
        truth = find_truth(shard, base, source, every, chosen)
        seconds, cpu, shared = [], [], []
        for number, query in enumerate(source.queries()):
            start, begun = time.perf_counter(), time.process_time()
            found = search(shard, query, way, ef, chosen, extra)
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - begun)
            shared.append(len(set(found) & set(truth[number])) / HITS)
        last = f", {name}" if name else ""
        row[f"ms{last}"] = 1000 * statistics.median(seconds)
        row[f"CPU ms{last}"] = 1000 * statistics.median(cpu)
        row[f"recall@{HITS}{last}"] = statistics.mean(shared)
    return row


def search(
    shard: edge.EdgeShard, query: Floats, way: Way, ef: int, chosen: edge.Filter | None, extra: Any
) -> list[int]:
    if way.readouts or way.alone:
        return search_readouts(shard, query, ef, chosen, ("page",) if way.alone else READOUTS)
    if way.first == "cells":
        chosen = first_stages.in_cells(extra, query, ef, chosen)
    elif way.first == "readouts":
        chosen = first_stages.near_readouts(extra, query, ef, chosen)
    codes = None
    if way.codes:
        codes = edge.QuantizationSearchParams(ignore=False, rescore=True, oversampling=way.candidates / HITS)
    exact = bool(way.first) or not (way.codes or way.edges)
    params = edge.SearchParams(hnsw_ef=ef or None, exact=exact and not way.codes, quantization=codes)
    return ask(shard, query, params, chosen)


def search_readouts(
    shard: edge.EdgeShard, query: Floats, num: int, chosen: edge.Filter | None, names: Sequence[str]
) -> list[int]:
    """Have each vector of the query find pages by each of their readouts, and score them all in full."""
    params = edge.SearchParams(hnsw_ef=num)
    prefetches = []
    for vector in query.tolist():
        for name in names:
            nearest = edge.Query.Nearest([vector] if name == "page" else vector, name)
            prefetches.append(edge.Prefetch(num, nearest, params=params, filter=chosen))
    wanted = edge.Query.Nearest(query.tolist(), "page")
    request = edge.QueryRequest(HITS, query=wanted, prefetches=prefetches)
    (found,) = shard.query_batch(edge.QueryBatchRequest([request]))
    return [int(point.id) for point in found]


def ask(shard: edge.EdgeShard, query: Floats, params: edge.SearchParams, chosen: edge.Filter | None) -> list[int]:
    wanted = edge.Query.Nearest(query.tolist(), "page")
    request = edge.QueryRequest(HITS, query=wanted, params=params, filter=chosen)
    (found,) = shard.query_batch(edge.QueryBatchRequest([request]))
    return [int(point.id) for point in found]


def find_truth(
    shard: edge.EdgeShard, base: Path, source: Source, every: int, chosen: edge.Filter | None
) -> list[list[int]]:
    """Return what an exact search finds, which is asked for once."""
    file = base / f"truth-{every}.json"
    if not file.exists():
        ignore = edge.QuantizationSearchParams(ignore=True)
        exact = edge.SearchParams(exact=True, quantization=ignore)
        file.write_text(json.dumps([ask(shard, query, exact, chosen) for query in source.queries()]))
    return [list(found) for found in json.loads(file.read_text())]


# -- all of them


def choose(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each way and number of pages: the fastest that finds enough, or else the one that finds most."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["vectors"], row["size"], row["way"], row["pages"]), []).append(row)
    chosen = []
    for _, group in sorted(groups.items()):
        enough = [row for row in group if row["recall@5"] >= TARGET]
        best = max(group, key=lambda row: (row["recall@5"], -row["CPU ms"]))
        chosen.append(min(enough, key=lambda row: row["CPU ms"]) if enough else best)
    return chosen


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the docs show of the rows."""
    shown = []
    for row in choose(rows):
        shown.append(
            {
                "vectors": f"{row['vectors']}, {row['size']}",
                "way": row["way"],
                "pages": f"{row['pages']:,}",
                "ef": row["ef"] or "",
                "CPU ms a search": row["CPU ms"],
                "recall@5": row["recall@5"],
                "CPU ms, a tenth of the files": row["CPU ms, a tenth"],
                "recall@5, a tenth of the files": row["recall@5, a tenth"],
                "recall@5, a hundredth": row["recall@5, a hundredth"],
                "CPU s to build": row["build CPU s"],
                "MB on disk": row["MB on disk"],
                "peak MB": row["own MB"],
            }
        )
    return shown


def fit_exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return by which power of the pages the time of a search grows that finds enough, where several were measured."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in choose(rows):
        if row["recall@5"] >= TARGET:
            groups.setdefault((row["vectors"], row["size"], row["way"]), []).append(row)
    fitted = []
    for (vectors, size, way), group in sorted(groups.items()):
        if len(group) > 1:
            pages, times = ([np.log(row[name]) for row in group] for name in ("pages", "CPU ms"))
            numbers = " to ".join(f"{number:,}" for number in (group[0]["pages"], group[-1]["pages"]))
            exponent = float(np.polyfit(pages, times, 1)[0])
            fitted.append(
                {"vectors": f"{vectors}, {size}", "way": way, "pages": numbers, "time grows by a power of": exponent}
            )
    return fitted


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["vectors"], row["pages"], row["size"], row["where"], row["way"]


def read_rows() -> list[dict[str, Any]]:
    file = RESULTS / "growth.json"
    return list(json.loads(file.read_text())["rows"]) if file.exists() else []


def plan(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the arguments of processes that are still to run."""
    for pages in arguments.pages:
        for way in arguments.ways:
            key = (arguments.like, pages, f"4 x {arguments.dim}", "folder", way)
            if key not in {key_of(row) for row in read_rows()}:
                words = ["--one", way, "--pages", str(pages), "--dim", str(arguments.dim)]
                yield [*words, "--like", arguments.like]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--like", default="reports", help="the name of a fit, clusters, or uniform")
    parser.add_argument("--fit", metavar="LIBRARY")
    parser.add_argument("--questions", type=Path, nargs="*", default=[])
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=DEFAULT_WAYS)
    parser.add_argument("--one", choices=WAYS)
    arguments = parser.parse_args()
    if arguments.fit:
        fit(arguments.fit, arguments.questions, arguments.folder / f"{arguments.like}.npz")
        return
    source = make_source(arguments)
    if arguments.one:
        rows = run_one(arguments.folder, source, arguments.pages[0], WAYS[arguments.one])
        print(json.dumps(rows))
        return
    print(describe(source.chunk(0), source.queries()), flush=True)
    for words in plan(arguments):
        command = [sys.executable, __file__, "--folder", str(arguments.folder), *words]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows = json.loads(answer.stdout)
        print_table(rows)
        keep("growth", read_rows() + rows)


if __name__ == "__main__":
    main()
