"""Evaluated runs with their cached vectors, scored from some of the vectors only.

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
from .result_files import Result, RunKey, read_results, run_names

BLOCK_BYTES = 2**27


@dataclass(frozen=True)
class CachedSubset:
    """One subset of a task, such as a language: what was judged, and the folders of vectors."""

    judged: Judged
    folders: dict[Side, Path]
    has_prefixes: bool = True

    def load(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of all queries (Q, K, D) and all pages (P, K, D)."""
        return self._read("query", self.judged.query_keys), self._read("page", self.judged.page_keys)

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
        raise RandSlotError(f"vectors are missing from {folder}. Evaluate again.")


@dataclass(frozen=True)
class CachedRun:
    """One model under one setting, with the subsets of each task that it was evaluated on.

    left_out: results of it that are not used, for people. has_prefixes: whether the vectors of a smaller budget are the
    first ones of a larger.
    """

    name: str
    benchmark: str
    num_vectors: int  # of the side that has fewer
    tasks: dict[str, list[CachedSubset]]
    left_out: tuple[str, ...] = ()
    has_prefixes: bool = True

    def subsets(self) -> list[CachedSubset]:
        """Return the subsets of all tasks."""
        return list(chain.from_iterable(self.tasks.values()))

    def page_shape(self) -> tuple[int, int]:
        """Return the number of vectors of a page, and their dimension."""
        num, dim = self.subsets()[0].load()[1].shape[1:]
        return num, dim

    def check_readouts(self, num: int, what: str, *, sweep: bool = False) -> None:
        """Refuse a run with fewer readouts than needed, or whose first ones are not those of a smaller budget."""
        if self.num_vectors < num:
            raise UsageError(
                f"{what} needs {num} vectors a side, and {self.name} was evaluated with {self.num_vectors}. "
                f"Evaluate with --query-vectors {num} --page-vectors {num}."
            )
        if (sweep or self.num_vectors > num) and not self.has_prefixes:
            raise UsageError(
                f"{what} needs the vectors of smaller budgets, which {self.name} does not contain. "
                f"Evaluate with each budget, or analyse it with --vectors {self.num_vectors}."
            )


def read_runs(folders: Sequence[Path]) -> list[CachedRun]:
    """Read the runs below some folders, each with its largest budget; they must have the same tasks."""
    groups: dict[RunKey, list[Result]] = defaultdict(list)
    for result in read_results(*folders):
        if result.vectors:  # a search leaves none
            groups[result.run_key].append(result)
    if not groups:
        raise UsageError("these results are of searches, which have no cached vectors. Evaluate a model.")
    names = run_names(list(groups))
    runs = [_make_run(names[key], results) for key, results in groups.items()]
    for run in runs[1:]:
        if (run.benchmark, set(run.tasks)) != (runs[0].benchmark, set(runs[0].tasks)):
            first, second = (f"{one.name} has {one.benchmark} ({', '.join(one.tasks)})" for one in (runs[0], run))
            raise UsageError(f"{first}, and {second}. Analyse them one by one, or evaluate both on the same tasks.")
    return runs


def _make_run(name: str, results: Sequence[Result]) -> CachedRun:
    """Make a run from the results of its largest budget."""
    benchmarks = list(dict.fromkeys(result.benchmark for result in results))
    if len(benchmarks) > 1:
        raise UsageError(f"{name} has results of {' and '.join(benchmarks)}. Name the folder of one benchmark.")
    budgets: dict[tuple[int, int], dict[str, Result]] = defaultdict(dict)
    for result in results:
        query, page = result.counts["query"], result.counts["page"]
        if query is None or page is None or "kind" in result.settings:
            raise UsageError(f"{name} has no slots to analyse: it is not a RandSlot model, or keeps all tokens")
        budgets[query, page][result.task] = result
    largest = max(budgets, key=lambda budget: (min(budget), sum(budget)))
    left_out = []
    for (query, page), tasks in budgets.items():
        if (query, page) != largest:
            analysed = f"{largest[0]}/{largest[1]} are analysed"
            left_out.append(f"{name}, {query}/{page} vectors ({', '.join(tasks)}): {analysed}")
    chosen = budgets[largest]
    has_prefixes = all(_has_prefixes(result) for result in chosen.values())
    runs = {task: _make_subsets(result, has_prefixes) for task, result in chosen.items()}
    return CachedRun(name, benchmarks[0], min(largest), runs, tuple(left_out), has_prefixes)


def _has_prefixes(result: Result) -> bool:
    """Whether the vectors of a smaller budget are the first ones of a larger; not for an unknown strategy."""
    if result.settings["inference"] not in STRATEGIES:
        return False
    settings = Settings(**result.settings)
    return all(settings.has_prefixes(side) for side in SIDES)


def _make_subsets(result: Result, has_prefixes: bool) -> list[CachedSubset]:
    root = result.cache_folder
    folders = {side: root / folder for side, folder in result.vectors.items()}
    judged = [read_judged(root / JUDGED, subset.judged) for subset in result.subsets.values()]
    return [CachedSubset(one, folders, has_prefixes) for one in judged]


# -- scores


@dataclass(frozen=True)
class View:
    """The readouts that count on each side, by index."""

    query: tuple[int, ...]
    page: tuple[int, ...]

    def change(self, side: Side, readouts: Sequence[int]) -> View:
        """Return this view with other readouts on one side."""
        return View(tuple(readouts), self.page) if side == "query" else View(self.query, tuple(readouts))


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
    """Return the mean over tasks, each counted alike."""
    return mean(scores.values())
