"""How the score grows with the budget, from one encoding: the first vectors do not depend on how many follow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ...model.reader import SIDES
from ...tables import Cell, Table
from .compare import ALL, DRAWS, LEVEL, judge_tasks
from .runs import Run
from .views import View, full_view, macro, need_prefixes, need_readouts, score_part, score_views

MOST = 8
SWEEP = "the budget sweep"
VARIED = ("both", *SIDES)  # the side that varies


def sweep_budgets(runs: Sequence[Run], num_vectors: int = 4) -> Table:
    """Return nDCG@5 with 1, 2, ... vectors: on both sides, and on each side alone with `num_vectors` on the other."""
    for run in runs:
        need_readouts(run, num_vectors, SWEEP)
        need_prefixes(run, SWEEP)
    most = min(MOST, *(run.num_vectors for run in runs)) if runs else MOST
    budgets = range(1, most + 1)
    rows: list[list[Cell]] = []
    for run in runs:
        views = {side: [_view(side, num, num_vectors) for num in budgets] for side in VARIED}
        scores = score_views(run, list(chain.from_iterable(views.values())))
        for side in VARIED:
            rows.append([run.name, side, *(macro(scores[view]) for view in views[side])])
    title = f"Budgets: nDCG@5 by the number of vectors; where one side varies, the other has {num_vectors}"
    return Table(title, ["run", "side", *map(str, budgets)], rows)


def _view(side: str, num: int, other: int) -> View:
    """Return the view with `num` vectors of the side that varies, and `other` vectors of the one that does not."""
    return full_view(num if side != "page" else other, num if side != "query" else other)


def judge_budgets(runs: Sequence[Run], num_vectors: int = 4, *, draws: int = DRAWS, seed: int = 42) -> Table:
    """Return what more than `num_vectors` a side gain, with intervals: drawn large, a flat line looks like a gain."""
    rows: list[list[Cell]] = []
    for run in runs:
        need_prefixes(run, SWEEP)
        budgets = range(num_vectors + 1, min(MOST, run.num_vectors) + 1)
        views = {budget: full_view(budget) for budget in budgets}
        base = full_view(num_vectors)
        gains: dict[int, dict[str, list[NDArray[np.float64]]]] = {budget: {} for budget in budgets}
        for task, parts in run.tasks.items() if budgets else ():
            found = [score_part(part, [base, *views.values()]) for part in parts]
            for budget, view in views.items():
                gains[budget][task] = [100 * (scores[view] - scores[base]) for scores in found]
        for budget in budgets:
            verdict = judge_tasks(gains[budget], np.random.default_rng(seed), draws)[ALL]
            rows.append([run.name, budget, *verdict])
    title = f"Budgets: nDCG@5 minus that with {num_vectors} vectors a side, with {LEVEL} % intervals (paired bootstrap)"
    return Table(title, ["run", "vectors", "difference", "from", "to", "verdict"], rows, digits=2)
