"""Measure how search time grows with the number of pages: a scan of all pages, and the engine's graph indexes.

    python -m research.experiments.growth --folder FOLDER --like reports --pages 10000 100000 1000000

FOLDER has fits from research.mixture. Each configuration is one process and one row; rows already in
results/growth.json are skipped.

Two methods find candidates before pages are scored in full:

- Cells: k-means clusters of readouts. An indexed payload of a page has the cells of its readouts, and a search filters
  pages by the cells nearest to each vector of the query.
- All readouts in one graph: each readout is a point of a second shard with a graph. Each vector of a query searches it
  for the nearest readouts, and their pages are scored in full in the first shard.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import qdrant_edge as edge
import torch
from record import keep, print_table, read_rows

from research.mixture import CHUNK, Floats, Source, describe, make_source

FILE_PAGES = 100  # of a file
HITS = 5
FILTERS = {"": 1, "a tenth": 10, "a hundredth": 100}  # filters: every n-th file
UPDATE = 500  # points in one update
READOUTS = ("readout-1", "readout-2", "readout-3", "readout-4")


@dataclass(frozen=True)
class Way:
    """A configuration of the engine and its searches.

    codes: int8, binary, or none. efs: none for a scan. readouts: one graph per readout of a page; each vector of a
    query searches each graph for `efs` pages, and all candidates are scored in full. alone: each vector of the query
    searches the graph of pages separately. first: another first stage, whose `efs` are the cells per vector, or the
    readouts to find.
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


# -- first stages


class Pages(Protocol):
    """Yields pages in batches: the number of the first, and their vectors."""

    def __call__(self) -> Iterator[tuple[int, Floats]]: ...


def num_cells(pages: int) -> int:
    """Return the number of cells that balances finding the nearest cells with scanning them."""
    return round(4 * math.sqrt(pages))


def train(sample: torch.Tensor, num: int) -> torch.Tensor:
    """Return the centres of cells by k-means."""
    centres = sample[:num].clone()
    for _ in range(6):
        nearest = nearest_cells(centres, sample)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        counts = torch.bincount(nearest, minlength=num)
        centres = torch.where((counts > 0)[:, None], sums / counts.clamp(min=1)[:, None], centres)
    return centres


def nearest_cells(centres: torch.Tensor, readouts: torch.Tensor) -> torch.Tensor:
    """Return the nearest cell of each readout."""
    shift = -0.5 * (centres * centres).sum(1)
    found = [torch.addmm(shift, some, centres.T).argmax(1) for some in readouts.split(20_000)]
    return torch.cat(found)


def sample_readouts(pages: Pages, total: int, num: int) -> torch.Tensor:
    """Return a random sample of readouts of all pages."""
    random = np.random.default_rng(3)
    share = min(num / (4 * total), 1.0)
    kept = []
    for _, values in pages():
        flat = values.reshape(-1, values.shape[-1])
        kept.append(flat[random.random(len(flat)) < share])
    readouts = np.concatenate(kept)
    return torch.from_numpy(readouts[random.permutation(len(readouts))])


def add_cells(shard: edge.EdgeShard, pages: Pages, total: int) -> Floats:
    """Assign cells to each page; return their centres."""
    num = num_cells(total)
    centres = train(sample_readouts(pages, total, 40 * num), num)
    for first, values in pages():
        cells = nearest_cells(centres, torch.from_numpy(values).flatten(0, 1)).reshape(len(values), -1).tolist()
        for number, own in enumerate(cells, start=first):
            shard.update(edge.UpdateOperation.set_payload([number], {"cells": sorted(set(own))}))
    index = edge.IntegerIndexParams(lookup=True, range=False, memory=edge.Memory.Cold)
    shard.update(edge.UpdateOperation.create_field_index("cells", index))
    shard.optimize()
    shard.flush()
    return np.asarray(centres.numpy(), np.float32)


def in_cells(centres: Floats, query: Floats, probes: int, chosen: edge.Filter | None) -> edge.Filter:
    """Return the filter for pages with a readout in a cell nearest to a vector of the query."""
    scores = query @ centres.T
    nearest = np.unique(np.argpartition(-scores, probes, axis=1)[:, :probes])
    conditions: list[Any] = [edge.FieldCondition("cells", match=edge.MatchAny(nearest.tolist()))]
    return edge.Filter(must=conditions + ([chosen] if chosen else []))


def make_readouts(folder: Path, pages: Pages, parameters: edge.EdgeVectorParams, file_of: Callable[[int], str]) -> None:
    """Store each readout as a separate point, and build a graph over all of them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(folder), readout_config(parameters))
    shard.update(edge.UpdateOperation.create_field_index("file", edge.PayloadSchemaType.Keyword))
    for first, values in pages():
        num = values.shape[1]
        flat = values.reshape(-1, values.shape[-1])
        for start in range(0, len(flat), 2000):
            points = []
            for offset, vector in enumerate(flat[start : start + 2000].tolist(), start=start):
                number = first + offset // num
                points.append(edge.Point(num * first + offset, {"readout": vector}, {"file": file_of(number)}))
            shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.flush()
    shard.close()


def readout_config(parameters: edge.EdgeVectorParams) -> edge.EdgeConfig:
    optimizers = edge.EdgeOptimizersConfig(indexing_threshold=1000, max_segment_size=10**9, default_segment_number=1)
    return edge.EdgeConfig(vectors={"readout": parameters}, optimizers=optimizers, max_search_threads=1)


def near_readouts(readouts: edge.EdgeShard, query: Floats, num: int, chosen: edge.Filter | None) -> edge.Filter:
    """Return the filter for the pages of the readouts nearest to each vector of the query."""
    params = edge.SearchParams(hnsw_ef=num)
    requests = []
    for vector in query.tolist():
        nearest = edge.Query.Nearest(vector, "readout")
        requests.append(edge.QueryRequest(num, query=nearest, params=params, filter=chosen, with_payload=False))
    found: set[Any] = set()
    for points in readouts.query_batch(edge.QueryBatchRequest(requests)):
        found.update(int(point.id) // len(query) for point in points)
    return edge.Filter(must=[edge.HasIdCondition(found)])


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
    """Store the pages without codes and graph, unless they exist; return the cost."""
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
    """Build and measure a configuration; return a row per way to search it."""
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
            extra = edge.EdgeShard.load(str(place / "readouts"), readout_config(one))
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
    """Build the index of a first stage; return the centres of cells."""

    def all_pages() -> Iterator[tuple[int, Floats]]:
        for first in range(0, pages, CHUNK):
            yield first, source.chunk(first // CHUNK)[: pages - first]

    if way.first == "cells":
        return add_cells(shard, all_pages, pages)
    if way.first == "readouts":
        one = parameters(source.dim, way, several=False)
        make_readouts(place / "readouts", all_pages, one, file_of)
    return None


def own_memory() -> int:
    """Return the peak memory of this process, without mapped files."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def measure(
    shard: edge.EdgeShard, base: Path, source: Source, pages: int, way: Way, ef: int, extra: Any
) -> dict[str, Any]:
    """Search with each filter; return CPU times, which other load affects little, and recall."""
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
        chosen = in_cells(extra, query, ef, chosen)
    elif way.first == "readouts":
        chosen = near_readouts(extra, query, ef, chosen)
    codes = None
    if way.codes:
        codes = edge.QuantizationSearchParams(ignore=False, rescore=True, oversampling=way.candidates / HITS)
    exact = bool(way.first) or not (way.codes or way.edges)
    params = edge.SearchParams(hnsw_ef=ef or None, exact=exact and not way.codes, quantization=codes)
    return ask(shard, query, params, chosen)


def search_readouts(
    shard: edge.EdgeShard, query: Floats, num: int, chosen: edge.Filter | None, names: Sequence[str]
) -> list[int]:
    """Search each readout graph with each vector of the query, and score all candidates in full."""
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
    """Return the hits of an exact search, cached."""
    file = base / f"truth-{every}.json"
    if not file.exists():
        ignore = edge.QuantizationSearchParams(ignore=True)
        exact = edge.SearchParams(exact=True, quantization=ignore)
        file.write_text(json.dumps([ask(shard, query, exact, chosen) for query in source.queries()]))
    return [list(found) for found in json.loads(file.read_text())]


# -- all of them


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["vectors"], row["pages"], row["size"], row["where"], row["way"]


def plan(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the arguments of the remaining processes."""
    for pages in arguments.pages:
        for way in arguments.ways:
            key = (arguments.like, pages, f"4 x {arguments.dim}", "folder", way)
            if key not in {key_of(row) for row in read_rows("growth")}:
                words = ["--one", way, "--pages", str(pages), "--dim", str(arguments.dim)]
                yield [*words, "--like", arguments.like]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--like", default="reports", help="name of a fit, or clusters, or uniform")
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=DEFAULT_WAYS)
    parser.add_argument("--one", choices=WAYS)
    arguments = parser.parse_args()
    source = make_source(arguments.folder, arguments.like, arguments.dim)
    if arguments.one:
        rows = run_one(arguments.folder, source, arguments.pages[0], WAYS[arguments.one])
        print(json.dumps(rows))
        return
    print(describe(source.chunk(0), source.queries()), flush=True)
    for words in plan(arguments):
        command = [sys.executable, "-m", "research.experiments.growth", "--folder", str(arguments.folder), *words]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows = json.loads(answer.stdout)
        print_table(rows)
        keep("growth", read_rows("growth") + rows)


if __name__ == "__main__":
    main()
