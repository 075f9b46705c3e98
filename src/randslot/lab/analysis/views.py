"""Scores from some of the vectors only: one similarity of every two readouts serves all budgets and interventions.

Shapes: Q queries, P pages, K vectors, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UsageError
from ...model.reader import Side
from ..evaluation.metrics import ndcg_of_each
from .runs import Part, Run

BLOCK_BYTES = 2**27
TOP = 5


@dataclass(frozen=True)
class View:
    """The readouts that count on each side, by index."""

    query: tuple[int, ...]
    page: tuple[int, ...]

    def change(self, side: Side, readouts: Sequence[int]) -> View:
        """Return this view with other readouts on one side."""
        return View(tuple(readouts), self.page) if side == "query" else View(self.query, tuple(readouts))

    def drop(self, side: Side, place: int) -> View:
        """Return this view without one readout of a side."""
        readouts = self.query if side == "query" else self.page
        return self.change(side, [readout for readout in readouts if readout != place])


def full_view(num_query: int, num_page: int | None = None) -> View:
    """Return the view of the first readouts of each side."""
    return View(tuple(range(num_query)), tuple(range(num_query if num_page is None else num_page)))


def score_views(run: Run, views: Sequence[View]) -> dict[View, dict[str, float]]:
    """Return nDCG@5 in percent by view and task; a task of several subsets has their mean."""
    scores: dict[View, dict[str, float]] = {view: {} for view in views}
    for task, parts in run.tasks.items():
        found = [score_part(part, list(scores)) for part in parts]
        for view in scores:
            scores[view][task] = 100 * mean(float(part[view].mean()) for part in found)
    return scores


def score_part(part: Part, views: Sequence[View]) -> dict[View, NDArray[np.float64]]:
    """Return nDCG@5 of each query (Q,) by view."""
    queries_QKD, pages_PKD = part.load()
    judged = part.judged
    size = len(pages_PKD) * queries_QKD.shape[1] * pages_PKD.shape[1] * 4
    step = max(1, BLOCK_BYTES // size)
    found: dict[View, list[float]] = {view: [] for view in views}
    for start in range(0, len(queries_QKD), step):
        similarities = compare_readouts(queries_QKD[start : start + step], pages_PKD)
        grades = judged.grades[start : start + step]
        for view, values in found.items():
            values += ndcg_of_each(score_view(similarities, view).numpy(), judged.page_ids, grades, TOP)
    return {view: np.array(values) for view, values in found.items()}


def compare_readouts(queries_QKD: Tensor, pages_PKD: Tensor) -> Tensor:
    """Return the similarity of every query readout and page readout: (Q, Kq, P, Kp)."""
    flat = queries_QKD.flatten(0, 1) @ pages_PKD.flatten(0, 1).T
    return flat.view(*queries_QKD.shape[:2], *pages_PKD.shape[:2])


def score_view(similarities: Tensor, view: View) -> Tensor:
    """Return MaxSim (Q, P) of the readouts that count."""
    return similarities[:, list(view.query)][..., list(view.page)].amax(-1).sum(1)


def macro(scores: dict[str, float]) -> float:
    """Return the mean over tasks, each counted alike."""
    return mean(scores.values())


def need_readouts(run: Run, num: int, what: str) -> None:
    """Refuse a run that has fewer readouts than asked for, or whose first ones are not those of a smaller budget.

    Errors: UsageError in one line.
    """
    if run.num_vectors < num:
        raise UsageError(
            f"{what} needs {num} vectors a side, and {run.name} was evaluated with {run.num_vectors}: "
            f"evaluate with --query-vectors {num} --page-vectors {num}"
        )
    if run.num_vectors > num:
        need_prefixes(run, what)


def need_prefixes(run: Run, what: str) -> None:
    """Refuse a run whose first vectors are not those of a smaller budget.

    Errors: UsageError in one line.
    """
    if not run.has_prefixes:
        raise UsageError(
            f"{what} takes the first vectors of {run.name} for those of a smaller budget, and they are not: "
            f"evaluate with each budget, or analyse it with --vectors {run.num_vectors}"
        )
