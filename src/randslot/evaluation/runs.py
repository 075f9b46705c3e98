"""Scores from some of the vectors only: one similarity of every two readouts serves all budgets and interventions.

Shapes: Q queries, P pages, K vectors, D dimension.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..model.reader import SIDES, Side
from ..model.settings import Settings
from ..model.slots import STRATEGIES
from .cache import JUDGED, Judged, VectorCache, larger_caches, read_judged
from .metrics import ndcg_of_each
from .result import Result, RunKey, read_results


@dataclass(frozen=True)
class Part:
    """One subset of a task, such as a language: what was judged, and where the vectors are."""

    judged: Judged
    folders: dict[Side, Path]  # of vectors
    has_prefixes: bool = True

    def load(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of all queries (Q, K, D) and all pages (P, K, D).

        Errors: RandSlotError if some are gone, or do not fit each other.
        """
        queries = self._read("query", self.judged.query_keys)
        pages = self._read("page", self.judged.page_keys)
        if queries.shape[-1] != pages.shape[-1]:
            raise RandSlotError(
                f"queries have {queries.shape[-1]} dimensions and pages {pages.shape[-1]}: they are of two models"
            )
        return queries, pages

    def _read(self, side: Side, keys: list[str]) -> Tensor:
        folder = self.folders[side]
        larger = larger_caches(folder) if self.has_prefixes else []
        places = [place for place in (*larger, folder) if place.is_dir()]
        if places:
            cache = VectorCache(places[-1], places[:-1])
            if all(key in cache for key in keys):
                found = cache.read(keys)
                num = min(len(item) for item in found)
                return torch.stack([item[:num] for item in found])
        raise RandSlotError(f"vectors are missing from {folder}: evaluate again, they are made anew")


@dataclass(frozen=True)
class Run:
    """One model in one setting, with the parts of each task that it was evaluated on.

    left_out: results of it that were read and not used, in words. has_prefixes: whether the vectors of a smaller budget
    are the first ones of a larger.
    """

    name: str
    benchmark: str
    num_vectors: int  # of the side that has fewer
    tasks: dict[str, list[Part]]
    left_out: tuple[str, ...] = ()
    has_prefixes: bool = True

    def parts(self) -> list[Part]:
        """Return the parts of all tasks."""
        return list(chain.from_iterable(self.tasks.values()))

    def page_shape(self) -> tuple[int, int]:
        """Return how many vectors its pages have, and of which dimension."""
        num, dim = self.parts()[0].load()[1].shape[1:]
        return num, dim


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the runs below some folders, each with its largest budget; they must have the same tasks.

    Errors: UsageError or RandSlotError, in one line, for what cannot be analysed together.
    """
    groups: dict[RunKey, list[Result]] = defaultdict(list)
    for result in read_results(*folders):
        if result.vectors:  # a search that was evaluated left none
            groups[result.run_key].append(result)
    if not groups:
        raise UsageError("these results are of searches, which leave no vectors to analyse: evaluate a model")
    names = run_names(list(groups))
    runs = [_make_run(names[key], results) for key, results in groups.items()]
    for run in runs[1:]:
        if (run.benchmark, set(run.tasks)) != (runs[0].benchmark, set(runs[0].tasks)):
            raise UsageError(
                f"{runs[0].name} was evaluated on {_list_tasks(runs[0])}, and {run.name} on {_list_tasks(run)}: "
                "analyse them one by one, or evaluate both on the same"
            )
    return runs


def run_names(keys: Sequence[RunKey]) -> dict[RunKey, str]:
    """Return a name for each run: as short as it can be while no two are the same."""
    names = {}
    for key in keys:
        name = f"{key.model}, {key.label}"
        alike = [other for other in keys if (other.model, other.label) == (key.model, key.label)]
        if len(alike) > 1:
            name += f", seed {key.seed}"
        if sum(other.seed == key.seed for other in alike) > 1:
            name += f", {key.weights[:8]}"
        names[key] = name
    return names


def _list_tasks(run: Run) -> str:
    return f"{run.benchmark} ({', '.join(run.tasks)})"


def _make_run(name: str, results: Sequence[Result]) -> Run:
    """Make a run from its results: those of the largest budget."""
    benchmarks = list(dict.fromkeys(result.benchmark for result in results))
    if len(benchmarks) > 1:
        raise UsageError(f"{name} has results of {' and '.join(benchmarks)}: analyse one benchmark, name its folder")
    budgets: dict[tuple[int, int], dict[str, Result]] = defaultdict(dict)
    for result in results:
        if "kind" in result.settings and None not in result.counts.values():
            raise UsageError(f"{name} is not a RandSlot model: there are no slots to analyse")
        query, page = result.counts["query"], result.counts["page"]
        if query is None or page is None:
            raise UsageError(f"{name} has a vector for every token: there are no slots to analyse")
        budgets[query, page][result.task] = result
    largest = max(budgets, key=lambda budget: (min(budget), sum(budget)))
    left_out = []
    for (query, page), tasks in budgets.items():
        if (query, page) != largest:
            analysed = f"{largest[0]}/{largest[1]} are analysed"
            left_out.append(f"{name}, {query}/{page} vectors ({', '.join(tasks)}): {analysed}")
    chosen = budgets[largest]
    has_prefixes = all(_has_prefixes(result) for result in chosen.values())
    parts = {task: _make_parts(result, has_prefixes) for task, result in chosen.items()}
    return Run(name, benchmarks[0], min(largest), parts, tuple(left_out), has_prefixes)


def _has_prefixes(result: Result) -> bool:
    """Whether the vectors of a smaller budget are the first ones of a larger; not for a strategy unknown here."""
    if result.settings["inference"] not in STRATEGIES:
        return False
    settings = Settings(**result.settings)
    return all(settings.has_prefixes(side) for side in SIDES)


def _make_parts(result: Result, has_prefixes: bool) -> list[Part]:
    root = result.cache_folder
    folders = {side: root / folder for side, folder in result.vectors.items()}
    parts = []
    for subset in result.subsets.values():
        parts.append(Part(read_judged(root / JUDGED, subset.judged), folders, has_prefixes))
    return parts


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
