"""Tables on what the vectors of a run are worth: budgets, winners, readouts.

Shapes: N pairs, Q queries, P pages, K vectors, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from ..model.reader import SIDES, Side
from ..tables import Cell, Table
from .cached_runs import CachedRun, CachedSubset, View, full_view, macro, score_subset, score_views
from .compare import ALL, DRAWS, LEVEL, Scores, judge_tasks

MAX_BUDGET = 8  # vectors a side that are swept
SWEEP = "the budget sweep"

# -- budgets


def sweep_budgets(runs: Sequence[CachedRun], num_vectors: int = 4) -> Table:
    """Return nDCG@5 with 1, 2, ... vectors: on both sides, and on one side with `num_vectors` on the other."""
    for run in runs:
        run.check_readouts(num_vectors, SWEEP, sweep=True)
    budgets = range(1, min([MAX_BUDGET, *(run.num_vectors for run in runs)]) + 1)
    rows: list[list[Cell]] = []
    for run in runs:
        views: dict[str, list[View]] = {
            "both": [full_view(num) for num in budgets],
            "query": [full_view(num, num_vectors) for num in budgets],
            "page": [full_view(num_vectors, num) for num in budgets],
        }
        scores = score_views(run, [*views["both"], *views["query"], *views["page"]])
        for side, swept in views.items():
            rows.append([run.name, side, *(macro(scores[view]) for view in swept)])
    title = f"Budgets: nDCG@5 by the number of vectors; where one side varies, the other has {num_vectors}"
    return Table(title, ["run", "side", *map(str, budgets)], rows)


def judge_budgets(runs: Sequence[CachedRun], num_vectors: int = 4, *, draws: int = DRAWS, seed: int = 42) -> Table:
    """Return the gain of more than `num_vectors` a side with intervals: in a figure, noise can look like a gain."""
    rows: list[list[Cell]] = []
    for run in runs:
        run.check_readouts(num_vectors, SWEEP, sweep=True)
        base = full_view(num_vectors)
        budgets = range(num_vectors + 1, min(MAX_BUDGET, run.num_vectors) + 1)
        gains: dict[int, dict[str, list[Scores]]] = {budget: {} for budget in budgets}
        for task, subsets in run.tasks.items() if budgets else ():
            found = [score_subset(subset, [base, *map(full_view, budgets)]) for subset in subsets]
            for budget in budgets:
                gains[budget][task] = [100 * (scores[full_view(budget)] - scores[base]) for scores in found]
        for budget in budgets:
            verdict = judge_tasks(gains[budget], np.random.default_rng(seed), draws)[ALL]
            rows.append([run.name, budget, *verdict])
    title = f"Budgets: nDCG@5 minus that with {num_vectors} vectors a side, with {LEVEL} % intervals (paired bootstrap)"
    return Table(title, ["run", "vectors", "difference", "from", "to", "verdict"], rows, digits=2)


# -- winners


@dataclass(frozen=True)
class Winners:
    """Counts of wins (query readout, page readout) over all pairs, ties, and the distinct winners of all pairs."""

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
        """H: how evenly wins are spread over page readouts, from 0 (one wins all) to 1."""
        parts: list[float] = (self.counts.sum(0) / self.counts.sum()).tolist()
        return -sum(part * math.log(part) for part in parts if part) / math.log(len(parts))

    @property
    def spread(self) -> float:
        """U: the number of different page readouts that win within a pair, on average."""
        return self.distinct / self.pairs


def count_winners(run: CachedRun, num_vectors: int = 4) -> Winners:
    """Count the winners of one run over the pairs of all its tasks."""
    if num_vectors < 2:
        raise UsageError(f"winners need at least 2 vectors a side, not {num_vectors}")
    run.check_readouts(num_vectors, "the table of winners")
    counts = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
    pairs = ties = distinct = 0
    for subset in run.subsets():
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
        pairs += [(query, place[page]) for page, grade in grades.items() if grade > 0 and page in place]
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
    """Return the share of each page readout in the wins for each query readout, in percent."""
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
        return {task: score - max(by[task] for by in self.only["page"]) for task, score in self.full.items()}

    def joint_gain(self) -> float:
        """Return the gain of all page readouts over one fixed readout, the best over all tasks."""
        return macro(self.full) - macro(self.only["page"][self.best()])


def intervene(run: CachedRun, num_vectors: int = 4) -> Readouts:
    """Score a run with only one readout of a side and without it, with all readouts of the other side."""
    if num_vectors < 2:
        raise UsageError(f"readouts need at least 2 vectors a side, not {num_vectors}")
    run.check_readouts(num_vectors, "the table of readouts")
    full, places = full_view(num_vectors), range(num_vectors)
    only: dict[Side, list[View]] = {}
    without: dict[Side, list[View]] = {}
    for side in SIDES:
        only[side] = [full.change(side, [place]) for place in places]
        without[side] = [full.change(side, [other for other in places if other != place]) for place in places]
    views = [full]
    for side in SIDES:
        views += [*only[side], *without[side]]
    scores = score_views(run, views)
    return Readouts(
        run.name,
        scores[full],
        {side: [scores[view] for view in only[side]] for side in SIDES},
        {side: [scores[view] for view in without[side]] for side in SIDES},
    )


def list_readouts(found: Sequence[Readouts]) -> Table:
    """Return the table of interventions: single scores, and points lost by removal."""
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
    """Return the joint-use gains: by task over its best readout, then over one fixed readout."""
    rows: list[list[Cell]] = []
    for one in found:
        gains = one.task_gains()
        rows.append([one.name, *gains.values(), one.joint_gain(), f"r{one.best() + 1}", mean(gains.values())])
    heads = ["run", *found[0].full, "all, one fixed readout", "which", "mean of the tasks' gains"]
    title = "Joint use: points that all page readouts gain over the best single one"
    return Table(title, heads, rows, digits=2)
