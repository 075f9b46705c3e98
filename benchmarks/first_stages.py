"""Ways to find candidates among very many pages before they are scored in full, for benchmarks/growth.py.

- Cells: readouts are grouped by k-means. A page has the numbers of the cells that its readouts are in, as a payload
  with an index, and a search looks at the pages of the cells that are nearest to each vector of the query: a filter.
- All readouts in one graph: each readout is a point of a second shard, which has a graph. Each vector of a query asks
  it for the nearest readouts, and their pages are scored in full in the first shard.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import qdrant_edge as edge
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
CELLS = "cells"
TRAINED_ON = 40  # readouts for each cell
ROUNDS = 6  # of k-means
STEP = 20_000  # readouts that are compared with all centres at once
UPDATE = 2000  # points in one update


class Pages(Protocol):
    """Yields the pages that a search is measured on, some at a time: the number of the first, and their vectors."""

    def __call__(self) -> Iterator[tuple[int, Floats]]: ...


def num_cells(pages: int) -> int:
    """Return how many cells there are: time is spent alike on finding the nearest and on looking into them."""
    return round(4 * math.sqrt(pages))


def train(sample: torch.Tensor, num: int) -> torch.Tensor:
    """Return the centres of cells by k-means."""
    centres = sample[:num].clone()
    for _ in range(ROUNDS):
        nearest = assign(centres, sample)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        counts = torch.bincount(nearest, minlength=num)
        centres = torch.where((counts > 0)[:, None], sums / counts.clamp(min=1)[:, None], centres)
    return centres


def assign(centres: torch.Tensor, readouts: torch.Tensor) -> torch.Tensor:
    """Return the nearest cell of each readout."""
    shift = -0.5 * (centres * centres).sum(1)
    found = [torch.addmm(shift, some, centres.T).argmax(1) for some in readouts.split(STEP)]
    return torch.cat(found)


def sample_readouts(pages: Pages, total: int, num: int) -> torch.Tensor:
    """Return readouts of all pages alike, in any order."""
    random = np.random.default_rng(3)
    share = min(num / (4 * total), 1.0)
    kept = []
    for _, values in pages():
        flat = values.reshape(-1, values.shape[-1])
        kept.append(flat[random.random(len(flat)) < share])
    readouts = np.concatenate(kept)
    return torch.from_numpy(readouts[random.permutation(len(readouts))])


def add_cells(shard: edge.EdgeShard, pages: Pages, total: int) -> Floats:
    """Give each page its cells; return their centres."""
    num = num_cells(total)
    centres = train(sample_readouts(pages, total, TRAINED_ON * num), num)
    for first, values in pages():
        cells = assign(centres, torch.from_numpy(values).flatten(0, 1)).reshape(len(values), -1).tolist()
        for number, own in enumerate(cells, start=first):
            shard.update(edge.UpdateOperation.set_payload([number], {CELLS: sorted(set(own))}))
    index = edge.IntegerIndexParams(lookup=True, range=False, memory=edge.Memory.Cold)
    shard.update(edge.UpdateOperation.create_field_index(CELLS, index))
    shard.optimize()
    shard.flush()
    return np.asarray(centres.numpy(), np.float32)


def in_cells(centres: Floats, query: Floats, probes: int, chosen: edge.Filter | None) -> edge.Filter:
    """Return the filter for pages with a readout in one of the cells that are nearest to a vector of the query."""
    scores = query @ centres.T
    nearest = np.unique(np.argpartition(-scores, probes, axis=1)[:, :probes])
    conditions: list[Any] = [edge.FieldCondition(CELLS, match=edge.MatchAny(nearest.tolist()))]
    return edge.Filter(must=conditions + ([chosen] if chosen else []))


def make_readouts(folder: Path, pages: Pages, parameters: edge.EdgeVectorParams, file_of: Callable[[int], str]) -> None:
    """Store each readout as a point of its own, and build a graph over all of them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(folder), readout_config(parameters))
    shard.update(edge.UpdateOperation.create_field_index("file", edge.PayloadSchemaType.Keyword))
    for first, values in pages():
        num = values.shape[1]
        flat = values.reshape(-1, values.shape[-1])
        for start in range(0, len(flat), UPDATE):
            points = []
            for offset, vector in enumerate(flat[start : start + UPDATE].tolist(), start=start):
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
    """Return the filter for the pages of the readouts that are nearest to each vector of the query."""
    params = edge.SearchParams(hnsw_ef=num)
    requests = []
    for vector in query.tolist():
        nearest = edge.Query.Nearest(vector, "readout")
        requests.append(edge.QueryRequest(num, query=nearest, params=params, filter=chosen, with_payload=False))
    found: set[Any] = set()
    for points in readouts.query_batch(edge.QueryBatchRequest(requests)):
        found.update(int(point.id) // len(query) for point in points)
    return edge.Filter(must=[edge.HasIdCondition(found)])
