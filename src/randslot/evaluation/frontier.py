"""Quality per byte: nDCG@5 for each number of page vectors, width and storage type, from one encoding.

Queries keep all vectors in full precision. Shapes: Q queries, P pages, K vectors, D width.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..model.reader import narrow
from ..tables import Cell, Table
from .analysis import BLOCK_BYTES, CachedRun, CachedSubset, read_runs
from .analysis_report import BYTES, Section, group_runs
from .compare import find_frontier
from .metrics import ndcg_of_each
from .published import TASKS, published_tables

STORAGE = ("fp16", "int8", "1-bit")
MIN_WIDTH = 32
ALL = 2**31  # more vectors than any page has


class Cut(NamedTuple):
    """How pages are stored: the number of vectors, their width, and the storage type."""

    num: int
    width: int
    storage: str


class Point(NamedTuple):
    """The bytes per page, nDCG@5 in percent, and the cut; vectors: per page, on average."""

    run: str
    vectors: float
    width: int
    storage: str
    bytes: float
    ndcg: float


def score_frontier(run: CachedRun) -> list[Point]:
    """Score every cut of a run: 1, 2, 4, ... vectors if these are a smaller budget, and widths 32, 64, ..."""
    scores: dict[Cut, list[float]] = defaultdict(list)
    vectors: dict[Cut, list[float]] = defaultdict(list)
    for subsets in run.tasks.values():
        found = [_score_subset(subset, run.unit) for subset in subsets]
        for cut in found[0]:
            scores[cut].append(100 * mean(one[cut][0] for one in found))
            vectors[cut].append(mean(one[cut][1] for one in found))
    points = []
    for cut, by_task in scores.items():
        num = mean(vectors[cut])
        scale = 2 if cut.storage == "int8" else 0  # a float16 scale per vector
        size = num * (cut.width * BYTES[cut.storage] + scale)
        points.append(Point(run.name, num, cut.width, cut.storage, size, mean(by_task)))
    return points


def _score_subset(subset: CachedSubset, unit: bool) -> dict[Cut, tuple[float, float]]:
    """Return nDCG@5 and the mean number of page vectors for every cut."""
    cache, keys = subset.open("query")
    queries_QKD = pad_sequence(cache.read(keys), batch_first=True)  # zeros add nothing to MaxSim
    cache, keys = subset.open("page")
    limit = subset.page_vectors or ALL
    counts = [min(limit, cache.rows[key][2]) for key in keys]
    full = queries_QKD.shape[-1]
    widths = [MIN_WIDTH << i for i in range(16) if MIN_WIDTH << i < full] + [full]
    nums = [1 << i for i in range(16) if 1 << i < min(counts)] if subset.has_prefixes else []
    nums.append(ALL)
    cuts = [Cut(num, width, storage) for width in widths for storage in STORAGE for num in nums]
    scores = {cut: torch.empty(len(queries_QKD), len(keys)) for cut in cuts}
    start = 0
    for block in cache.blocks(keys, limit):
        longest = max(map(len, block))
        # Repeating a vector does not change the maximum.
        pages_PKD = torch.stack([torch.cat([page, page[:1].expand(longest - len(page), -1)]) for page in block])
        end = start + len(block)
        for width in widths:
            narrow_queries = torch.from_numpy(narrow(queries_QKD.numpy(), width, unit=unit))
            cut_PKD = torch.from_numpy(narrow(pages_PKD.numpy(), width, unit=unit))
            for storage in STORAGE:
                found = _compare(narrow_queries, quantise(cut_PKD, storage), nums)
                for num, scores_QP in found.items():
                    scores[Cut(num, width, storage)][:, start:end] = scores_QP
        start = end
    quality = {}
    for cut, scores_QP in scores.items():
        each = ndcg_of_each(scores_QP.numpy(), subset.judged.page_ids, subset.judged.grades, 5)
        quality[cut] = mean(each), mean(min(cut.num, count) for count in counts)
    return quality


def quantise(vectors: Tensor, storage: str) -> Tensor:
    """Quantise and dequantise vectors as a store does: int8 scaled by each vector's maximum, 1-bit by sign."""
    if storage == "fp16":
        return vectors.half().float()
    if storage == "int8":
        scale = (vectors.abs().amax(-1, keepdim=True) / 127).half().float().clamp(min=1e-7)
        return scale * (vectors / scale).round().clamp(-127, 127)
    return torch.where(vectors >= 0, 1.0, -1.0) / math.sqrt(vectors.shape[-1])


def _compare(queries_QKD: Tensor, pages_PKD: Tensor, nums: Sequence[int]) -> dict[int, Tensor]:
    """Return MaxSim (Q, P) with the first 1, 2, ... vectors of each page."""
    num_pages, num_vectors, _ = pages_PKD.shape
    step = max(1, BLOCK_BYTES // (4 * queries_QKD.shape[1] * num_pages * num_vectors))  # queries at a time
    parts: dict[int, list[Tensor]] = {num: [] for num in nums}
    for block_QKD in queries_QKD.split(step):
        flat = block_QKD.flatten(0, 1) @ pages_PKD.flatten(0, 1).T
        similarities_QKPK = flat.view(*block_QKD.shape[:2], num_pages, num_vectors)
        for num in nums:
            parts[num].append(similarities_QKPK[..., :num].amax(-1).sum(1))
    return {num: torch.cat(found) for num, found in parts.items()}


# -- the report


def compare_bytes(folders: Sequence[Path], tell: Callable[[str], None]) -> list[Section]:
    """Score every cut of the runs in folders, per benchmark."""
    groups = group_runs(read_runs(folders, any_model=True), tell)
    return [show_frontier(runs, benchmark) for benchmark, runs in groups.items()]


def show_frontier(runs: Sequence[CachedRun], benchmark: str) -> Section:
    """Return the best cuts of each run, all cuts, and a figure with the paper's points on its own benchmark."""
    from ..plots import draw_frontier

    best: list[Point] = []
    points: list[Point] = []
    groups: dict[str, list[tuple[float, float]]] = {}
    lines = []
    for run in runs:
        own = score_frontier(run)
        points += own
        best += find_frontier(own)
        for point in own:
            name = run.name if len(runs) > 1 else f"{run.name}, {point.storage}"
            groups.setdefault(name, []).append((point.bytes, point.ndcg))
        lines.append([(point.bytes, point.ndcg) for point in find_frontier(own)])
    if set(runs[0].tasks) == set(TASKS.get(runs[0].benchmark, ())):
        groups |= published_points(runs[0].benchmark)
    text = (
        "Quality per byte. Each point keeps the first vectors of a page, a prefix of each vector, and a storage type, "
        "all from one encoding. Lines are Pareto frontiers. Queries are not reduced. int8 adds two bytes per vector; "
        "index overhead is not included."
    )
    tables = {
        "frontier": _list_points(best, "Pareto-optimal"),
        "all-cuts": _list_points(points, "all"),
    }
    return Section("frontier", text, tables, {"frontier": partial(draw_frontier, groups, lines)}, benchmark)


def _list_points(points: Sequence[Point], which: str) -> Table:
    rows: list[list[Cell]] = []
    for point in points:
        vectors = round(point.vectors, 1) if point.vectors % 1 else int(point.vectors)
        rows.append([point.run, vectors, point.width, point.storage, round(point.bytes), point.ndcg])
    heads = ["run", "vectors per page", "width", "storage", "bytes per page", "nDCG@5"]
    return Table(f"Quality per byte: {which}", heads, rows)


def published_points(benchmark: str) -> dict[str, list[tuple[float, float]]]:
    """Return the paper's methods by bytes per page and score.

    As in the paper, a vector has 2,560 dimensions for 4B and otherwise 2,048, of two bytes each.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key in ("table1", "table2", "table11"):
        for row in published_tables()[key].rows:
            if benchmark in row.averages and row.page_vectors and (key != "table11" or row.method == "RandSlot"):
                name = f"the paper: {row.method}" + (f" ({row.backbone})" if row.backbone else "")
                size = 2.0 * row.page_vectors * (2560 if row.backbone == "Qwen3-VL-4B" else 2048)
                points[name].append((size, row.averages[benchmark]))
    return dict(points)
