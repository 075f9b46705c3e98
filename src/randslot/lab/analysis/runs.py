"""Evaluations to look into: their vectors, and what scoring needs, from the files that `randslot evaluate` left.

Shapes: Q queries, P pages, K vectors, D dimension.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import RandSlotError, UsageError
from ..evaluation.judged import JUDGED, Judged, read_judged
from ..evaluation.report import read_results
from ..evaluation.vectors import VectorCache, larger_caches


@dataclass(frozen=True)
class Part:
    """One subset of a task, such as a language: who was judged, and where the vectors are."""

    judged: Judged
    folders: dict[str, Path]  # of vectors, by side

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

    def _read(self, side: str, keys: list[str]) -> Tensor:
        folder = self.folders[side]
        places = [place for place in (*larger_caches(folder), folder) if place.is_dir()]
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

    left_out: results of it that were read and not used, in words.
    """

    name: str
    benchmark: str
    num_vectors: int  # of the side that has fewer
    tasks: dict[str, list[Part]]
    left_out: tuple[str, ...] = ()


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the runs below some folders, each with its largest budget; they must have the same tasks.

    Errors: UsageError or RandSlotError, in one line, for what cannot be analysed together.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for result in read_results(*folders):
        groups[run_key(result)].append(result)
    names = run_names(list(groups))
    runs = [_make_run(names[key], results) for key, results in groups.items()]
    for run in runs[1:]:
        if (run.benchmark, set(run.tasks)) != (runs[0].benchmark, set(runs[0].tasks)):
            raise UsageError(
                f"{runs[0].name} was evaluated on {_list_tasks(runs[0])}, and {run.name} on {_list_tasks(run)}: "
                "analyse them one by one, or evaluate both on the same"
            )
    return runs


def run_key(result: dict[str, Any]) -> tuple[str, str, int, str]:
    """Return what tells runs apart: model, what it appends, seed, weights."""
    return result["model"], result["how"], result["settings"]["seed"], result["weights"]


def run_names(keys: list[tuple[str, str, int, str]]) -> dict[tuple[str, str, int, str], str]:
    """Return a name for each run: as short as it can be while no two are the same."""
    names = {}
    for model, how, seed, weights in keys:
        name = f"{model}, {how}"
        if sum(other[:2] == (model, how) for other in keys) > 1:
            name += f", seed {seed}"
        if sum(other[:3] == (model, how, seed) for other in keys) > 1:
            name += f", {weights[:8]}"
        names[model, how, seed, weights] = name
    return names


def _list_tasks(run: Run) -> str:
    return f"{run.benchmark} ({', '.join(run.tasks)})"


def _make_run(name: str, results: list[dict[str, Any]]) -> Run:
    benchmarks = list(dict.fromkeys(result["benchmark"] for result in results))
    if len(benchmarks) > 1:
        raise UsageError(f"{name} has results of {' and '.join(benchmarks)}: analyse one benchmark, name its folder")
    if any(num is None for result in results for num in result["counts"].values()):
        raise UsageError(f"{name} has a vector for every token: there are no slots to analyse")
    budgets: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for result in results:
        budgets[result["counts"]["query"], result["counts"]["page"]][result["task"]] = result
    largest = max(budgets, key=lambda budget: (min(budget), sum(budget)))
    left_out = tuple(
        f"{name}, {query}/{page} vectors ({', '.join(tasks)}): {largest[0]}/{largest[1]} are analysed"
        for (query, page), tasks in budgets.items()
        if (query, page) != largest
    )
    tasks = {task: _parts(result) for task, result in budgets[largest].items()}
    return Run(name, benchmarks[0], min(largest), tasks, left_out)


def _parts(result: dict[str, Any]) -> list[Part]:
    root = Path(os.path.normpath(Path(result["file"]).parent / result["cache"]))
    folders = {side: root / folder for side, folder in result["vectors"].items()}
    return [Part(read_judged(root / JUDGED, subset["judged"]), folders) for subset in result["subsets"].values()]
