"""Analyse how useful the vectors of a run are: budgets, winners, readouts. Reads cached vectors, not the model.

Shapes: N pairs, Q queries, P pages, K vectors, D dimension.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..model.reader import SIDES, Side
from ..tables import Cell, Table
from .cache import Judged, VectorCache, larger_caches, read_judged
from .compare import ALL, LEVEL, Scores, judge_tasks
from .metrics import ndcg_of_each
from .result_files import Result, RunKey, name_runs, read_results

MAX_BUDGET = 8  # vectors per side to sweep
BLOCK_BYTES = 2**27  # of similarities in memory

# -- runs


@dataclass(frozen=True)
class CachedSubset:
    """One subset of a task, such as a language: its judgements, and the folders of vectors.

    has_prefixes: whether smaller budgets are prefixes of larger ones. page_vectors: per page; None for one per token.
    """

    judged: Judged
    folders: dict[Side, Path]
    has_prefixes: bool = True
    page_vectors: int | None = None

    def open(self, side: Side) -> tuple[VectorCache, list[str]]:
        """Return the cache of one side, and the keys of its vectors."""
        folder, keys = self.folders[side], self.judged.query_keys if side == "query" else self.judged.page_keys
        cache = VectorCache(folder, larger_caches(folder) if self.has_prefixes else [])
        if not cache.rows.keys() >= set(keys):
            raise RandSlotError(f"vectors are missing from {folder}. Evaluate again.")
        return cache, keys

    def load(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of all queries (Q, K, D) and all pages (P, K, D)."""
        stacked = []
        for side in SIDES:
            cache, keys = self.open(side)
            found = cache.read(keys)
            num = min(len(item) for item in found)
            stacked.append(torch.stack([item[:num] for item in found]))
        return stacked[0], stacked[1]


@dataclass(frozen=True)
class CachedRun:
    """One model under one setting, with the subsets of each task of a benchmark that it was evaluated on.

    num_vectors: of the side with fewer. left_out: a description of unused results. unit: whether vectors have unit
    length.
    """

    name: str
    benchmark: str
    num_vectors: int
    tasks: dict[str, list[CachedSubset]]
    left_out: tuple[str, ...] = ()
    has_prefixes: bool = True
    unit: bool = True

    def check_readouts(self, num: int, *, sweep: bool = False) -> None:
        """Raise UsageError for a run with too few readouts, or whose smaller budgets are not prefixes."""
        if self.num_vectors < num:
            raise UsageError(
                f"{self.name} was evaluated with {self.num_vectors} vectors per side, but needs {num}. "
                f"Evaluate with --query-vectors {num} --page-vectors {num}."
            )
        if (sweep or self.num_vectors > num) and not self.has_prefixes:
            raise UsageError(
                f"{self.name} does not contain the vectors of smaller budgets. "
                f"Analyse winners or readouts with --vectors {self.num_vectors}, or evaluate with each budget."
            )


def read_runs(folders: Sequence[Path], *, any_model: bool = False) -> list[CachedRun]:
    """Read the runs in folders, each with its largest budget; runs of a benchmark must have the same tasks.

    any_model: include models without slots, which have no readouts to analyse.
    """
    groups: dict[str, dict[RunKey, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in read_results(*folders):
        if not any_model and (None in result.counts.values() or "kind" in result.settings):
            raise UsageError(
                f"{result.model}, {result.how} has no slots to analyse: it keeps all tokens or is not ours"
            )
        key = result.run_key
        if not result.has_prefixes and any_model:  # every budget is a separate run
            key = key._replace(how=f"{result.how}, {result.counts_text}")
        if result.vectors:  # a search has none
            groups[result.benchmark][key].append(result)
    if not groups:
        raise UsageError("these results come from searches, which cache no vectors. Evaluate a model.")
    runs = []
    for by_key in groups.values():
        names = name_runs(list(by_key))
        same = [_make_run(names[key], results) for key, results in by_key.items()]
        for run in same:
            if run.tasks.keys() != same[0].tasks.keys():
                first, second = (f"{one.name} has {', '.join(one.tasks)}" for one in (same[0], run))
                raise UsageError(f"{first}, and {second}. Analyse them one by one, or evaluate both on the same tasks.")
        runs += same
    return runs


def _make_run(name: str, results: Sequence[Result]) -> CachedRun:
    """Build a run from the results of its largest budget."""
    budgets: dict[tuple[int, int], list[Result]] = defaultdict(list)
    for result in results:
        query, page = (result.counts[side] or 0 for side in SIDES)  # 0: all tokens
        budgets[query, page].append(result)
    largest = max(budgets, key=lambda budget: (min(budget), sum(budget)))
    chosen = budgets.pop(largest)
    left_out = []
    for (query, page), others in budgets.items():
        tasks = ", ".join(result.task for result in others)
        left_out.append(f"{name}, {query}/{page} vectors ({tasks}): {largest[0]}/{largest[1]} are analysed")
    subsets: dict[str, list[CachedSubset]] = defaultdict(list)
    for result in chosen:
        folders = {side: result.cache_folder / folder for side, folder in result.vectors.items()}
        for subset in result.subsets.values():
            judged = read_judged(result.cache_folder, subset.judged)
            cached = CachedSubset(judged, folders, result.has_prefixes, result.counts["page"])
            subsets[result.task].append(cached)
    first = chosen[0]
    is_unit = bool(first.settings.get("unit", True))
    return CachedRun(name, first.benchmark, min(largest), dict(subsets), tuple(left_out), first.has_prefixes, is_unit)


# -- scores


class View(NamedTuple):
    """The readouts to use on each side, by index."""

    query: tuple[int, ...]
    page: tuple[int, ...]


def full_view(num_query: int, num_page: int | None = None) -> View:
    """Return the view of the first readouts of each side."""
    return View(tuple(range(num_query)), tuple(range(num_query if num_page is None else num_page)))


def score_views(run: CachedRun, views: Sequence[View]) -> dict[View, dict[str, float]]:
    """Return nDCG@5 in percent by view and task; a task of several subsets has their mean."""
    scores: dict[View, dict[str, float]] = {view: {} for view in views}
    for task, subsets in run.tasks.items():
        found = [score_subset(subset, list(scores)) for subset in subsets]
        for view in scores:
            scores[view][task] = 100 * mean(float(each[view].mean()) for each in found)
    return scores


def score_subset(subset: CachedSubset, views: Sequence[View]) -> dict[View, NDArray[np.float64]]:
    """Return nDCG@5 of each query (Q,) by view; all views share the similarities of readouts."""
    queries_QKD, pages_PKD = subset.load()
    num_pages, num_page = pages_PKD.shape[:2]
    step = max(1, BLOCK_BYTES // (4 * queries_QKD.shape[1] * num_pages * num_page))  # queries at a time
    found: dict[View, list[float]] = {view: [] for view in views}
    for start in range(0, len(queries_QKD), step):
        block_QKD = queries_QKD[start : start + step]
        flat = block_QKD.flatten(0, 1) @ pages_PKD.flatten(0, 1).T
        similarities_QKPK = flat.view(*block_QKD.shape[:2], num_pages, num_page)
        grades = subset.judged.grades[start : start + step]
        for view, values in found.items():
            scores_QP = similarities_QKPK[:, list(view.query)][..., list(view.page)].amax(-1).sum(1)
            values += ndcg_of_each(scores_QP.numpy(), subset.judged.page_ids, grades, 5)
    return {view: np.array(values) for view, values in found.items()}


def macro(scores: dict[str, float]) -> float:
    """Return the mean over tasks, weighted equally."""
    return mean(scores.values())


# -- budgets


def sweep_budgets(runs: Sequence[CachedRun], num_vectors: int = 4) -> Table:
    """Return nDCG@5 with 1, 2, ... vectors: on both sides, and on one side with `num_vectors` on the other."""
    max_budget = MAX_BUDGET
    for run in runs:
        run.check_readouts(num_vectors, sweep=True)
        max_budget = min(max_budget, run.num_vectors)
    budgets = range(1, max_budget + 1)
    views = {
        "both": [full_view(num) for num in budgets],
        "query": [full_view(num, num_vectors) for num in budgets],
        "page": [full_view(num_vectors, num) for num in budgets],
    }
    rows: list[list[Cell]] = []
    for run in runs:
        scores = score_views(run, [*views["both"], *views["query"], *views["page"]])
        for side, swept in views.items():
            rows.append([run.name, side, *(macro(scores[view]) for view in swept)])
    title = f"Budgets: nDCG@5 by the number of vectors; where one side varies, the other has {num_vectors}"
    return Table(title, ["run", "side", *map(str, budgets)], rows)


def judge_budgets(runs: Sequence[CachedRun], num_vectors: int = 4) -> Table:
    """Return the gain of more than `num_vectors` per side, with intervals to tell it from noise."""
    rows: list[list[Cell]] = []
    for run in runs:
        run.check_readouts(num_vectors, sweep=True)
        base = full_view(num_vectors)
        larger = [full_view(num) for num in range(num_vectors + 1, min(MAX_BUDGET, run.num_vectors) + 1)]
        gains: dict[View, dict[str, list[Scores]]] = {view: defaultdict(list) for view in larger}
        for task, subsets in run.tasks.items() if larger else ():
            for subset in subsets:
                scores = score_subset(subset, [base, *larger])
                for view in larger:
                    gains[view][task].append(100 * (scores[view] - scores[base]))
        for view in larger:
            verdict = judge_tasks(gains[view])[ALL]
            rows.append([run.name, len(view.page), *verdict])
    title = f"Budgets: nDCG@5 minus that of {num_vectors} vectors per side, {LEVEL}% intervals (paired bootstrap)"
    return Table(title, ["run", "vectors", "difference", "from", "to", "verdict"], rows, digits=2)


# -- winners


@dataclass(frozen=True)
class Winners:
    """Counts of wins (query readout, page readout), of ties, and of distinct winners, over all pairs."""

    name: str
    counts: Tensor  # (K, K)
    pairs: int
    ties: int
    distinct: int

    @property
    def shares(self) -> Tensor:
        """The share of each page readout (rows) in the wins for each query readout (columns): a column sums to 1."""
        return (self.counts / self.counts.sum(1, keepdim=True)).T

    @property
    def entropy(self) -> float:
        """H: the normalised entropy of wins over page readouts, from 0 (one wins all) to 1."""
        parts: list[float] = (self.counts.sum(0) / self.counts.sum()).tolist()
        return -sum(part * math.log(part) for part in parts if part) / math.log(len(parts))

    @property
    def spread(self) -> float:
        """U: the mean number of distinct winning page readouts per pair."""
        return self.distinct / self.pairs


def count_winners(run: CachedRun, num_vectors: int = 4) -> Winners:
    """Count the winners of one run over the pairs of all its tasks."""
    run.check_readouts(num_vectors)
    counts = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
    pairs = ties = distinct = 0
    for subsets in run.tasks.values():
        for subset in subsets:
            for _, queries, pages in positive_pairs(subset, num_vectors):
                winners, tied = find_winners(queries, pages)
                won = torch.nn.functional.one_hot(winners, num_vectors)
                counts += won.sum(0)
                distinct += int(won.amax(1).sum())
                pairs, ties = pairs + len(winners), ties + tied
    return Winners(run.name, counts, pairs, ties, distinct)


def positive_pairs(subset: CachedSubset, num_vectors: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield blocks of queries with a relevant page: the query's index (N,), and the vectors of both (N, K, D)."""
    queries_QKD, pages_PKD = subset.load()
    place = {id: index for index, id in enumerate(subset.judged.page_ids)}
    pairs = []
    for query, grades in enumerate(subset.judged.grades):
        for page, grade in grades.items():
            if grade > 0 and page in place:
                pairs.append((query, place[page]))
    for block in torch.tensor(pairs).split(4096):
        yield block[:, 0], queries_QKD[block[:, 0], :num_vectors], pages_PKD[block[:, 1], :num_vectors]


def find_winners(queries_NKD: Tensor, pages_NKD: Tensor) -> tuple[Tensor, int]:
    """Return the winning page readout of each query readout (N, K), and the number of ties.

    Readouts within 1e-8 of the best count as tied, and the lowest index wins.
    """
    similarities = queries_NKD.double() @ pages_NKD.double().transpose(1, 2)
    near = similarities >= similarities.amax(-1, keepdim=True) - 1e-8
    return near.int().argmax(-1), int((near.sum(-1) > 1).sum())


def list_winners(found: Sequence[Winners]) -> Table:
    """Return H, U, pairs and ties of each run."""
    rows: list[list[Cell]] = [[one.name, one.entropy, one.spread, one.pairs, one.ties] for one in found]
    heads = ["run", "H", "U", "pairs", "ties"]
    return Table("Winners: how evenly page readouts win MaxSim for the right pages", heads, rows, digits=3)


def list_shares(found: Sequence[Winners]) -> Table:
    """Return the share of wins of each page readout for each query readout, in percent."""
    rows: list[list[Cell]] = []
    for winners in found:
        for place, shares in enumerate(winners.shares.tolist(), start=1):
            rows.append([winners.name, f"d{place}", *(100 * share for share in shares)])
    heads = ["run", "wins of", *(f"for q{place}" for place in range(1, len(found[0].counts) + 1))]
    return Table("Share of each page readout in the wins for each query readout, in percent", heads, rows)


# -- readouts


@dataclass(frozen=True)
class Readouts:
    """Scores of one run by task, in percent: with all readouts, with only readout i of a side, and without it."""

    name: str
    full: dict[str, float]
    only: dict[Side, list[dict[str, float]]]
    without: dict[Side, list[dict[str, float]]]

    def best(self) -> int:
        """Return the index of the best single page readout over all tasks."""
        scores = [macro(by_task) for by_task in self.only["page"]]
        return scores.index(max(scores))

    def task_gains(self) -> dict[str, float]:
        """Return by task the gain of all page readouts over the best single one of the task."""
        gains = {}
        for task, score in self.full.items():
            gains[task] = score - max(by[task] for by in self.only["page"])
        return gains

    def joint_gain(self) -> float:
        """Return the gain of all page readouts over one fixed readout, the best over all tasks."""
        return macro(self.full) - macro(self.only["page"][self.best()])


def intervene(run: CachedRun, num_vectors: int = 4) -> Readouts:
    """Score a run with only one readout of a side, and without it, keeping all readouts of the other side."""
    run.check_readouts(num_vectors)
    full = full_view(num_vectors)
    only: dict[Side, list[View]] = {"query": [], "page": []}
    without: dict[Side, list[View]] = {"query": [], "page": []}
    for place in range(num_vectors):
        others = full.query[:place] + full.query[place + 1 :]
        only["query"].append(View((place,), full.page))
        only["page"].append(View(full.query, (place,)))
        without["query"].append(View(others, full.page))
        without["page"].append(View(full.query, others))
    views = [*only["query"], *only["page"], *without["query"], *without["page"]]
    scores = score_views(run, [full, *views])
    return Readouts(
        run.name,
        scores[full],
        {side: [scores[view] for view in only[side]] for side in SIDES},
        {side: [scores[view] for view in without[side]] for side in SIDES},
    )


def list_readouts(found: Sequence[Readouts]) -> Table:
    """Return the table of ablations: single scores, and points lost by removal."""
    rows: list[list[Cell]] = []
    for one in found:
        full = macro(one.full)
        for side in SIDES:
            single = [macro(scores) for scores in one.only[side]]
            lost = [full - macro(scores) for scores in one.without[side]]
            rows.append([one.name, side, full, *single, *lost])
    places = range(1, len(found[0].only["query"]) + 1)
    heads = ["run", "side", "full", *(f"only r{k}" for k in places), *(f"removal of r{k}" for k in places)]
    title = "Readouts: nDCG@5 with only one of a side, and points lost by its removal (negative: removal helps)"
    return Table(title, heads, rows, digits=2)


def list_gains(found: Sequence[Readouts]) -> Table:
    """Return the joint gains: by task over its best readout, then over one fixed readout."""
    rows: list[list[Cell]] = []
    for one in found:
        gains = one.task_gains()
        rows.append([one.name, *gains.values(), one.joint_gain(), f"r{one.best() + 1}", mean(gains.values())])
    heads = ["run", *found[0].full, "all, one fixed readout", "which", "mean of the tasks' gains"]
    title = "Joint use: points that all page readouts gain over the best single one"
    return Table(title, heads, rows, digits=2)
