"""Differences between runs, with an interval that says what chance alone would do: a paired bootstrap over queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..tables import Cell, Table
from .result import Result, RunKey, read_results
from .runs import run_names

DRAWS, BLOCK = 10_000, 500
LEVEL = 95
ALL = "all tasks"
ByTask = dict[str, Result]
Verdict = tuple[float, float, float, str]  # a difference, its interval, and what to think of it


def compare_runs(folders: Sequence[Path], *, base: str | None = None, draws: int = DRAWS, seed: int = 42) -> Table:
    """Compare every run below some folders with one, task by task and over all tasks, each counted alike.

    base: the name of that run, or a part of it that no other has; by default the first found.

    Errors: UsageError if there are not two runs or no such base, or if they were not judged on the same queries and
    pages.
    """
    runs = _read(folders)
    if len(runs) < 2:
        raise UsageError(f"only one run found, {next(iter(runs))}: name the folders of two or more")
    base = _choose(base, list(runs))
    first = runs.pop(base)
    rows: list[list[Cell]] = [[base, task, score, None, None, None, "base"] for task, score in _scores(first).items()]
    for name, results in runs.items():
        rows += _compare(base, first, name, results, draws, seed)
    title = f"nDCG@5 minus that of {base}, in points, with {LEVEL} % intervals (paired bootstrap over queries)"
    return Table(title, ["run", "task", "score", "difference", "from", "to", "verdict"], rows, digits=2)


def _choose(base: str | None, names: list[str]) -> str:
    """Return the name of the run that others are compared with."""
    if base is None or base in names:
        return base or names[0]
    found = [name for name in names if base in name]
    if len(found) != 1:
        what = "several runs" if found else "no run"
        raise UsageError(f"--base {base!r} names {what}; the runs are {'; '.join(names)}")
    return found[0]


def _scores(results: ByTask) -> dict[str, float]:
    """Return nDCG@5 of a run in percent by task, and over all tasks if there are several."""
    scores = {task: 100 * result.ndcg[5] for task, result in results.items()}
    if len(scores) > 1:
        scores[ALL] = float(np.mean(list(scores.values())))
    return scores


def _read(folders: Sequence[Path]) -> dict[str, ByTask]:
    """Return the results by run and task; budgets tell runs apart here."""
    groups: dict[tuple[RunKey, str], ByTask] = {}
    found = read_results(*folders)
    mixed = len({result.benchmark for result in found}) > 1
    for result in found:
        task = f"{result.benchmark} {result.task}" if mixed else result.task
        groups.setdefault((result.run_key, result.counts_text), {})[task] = result
    several = len({counts for _, counts in groups}) > 1
    names = run_names(list(dict.fromkeys(key for key, _ in groups)))
    runs = {}
    for (key, counts), results in groups.items():
        name = f"{names[key]}, {counts}" if several else names[key]
        runs[name] = results
    return runs


def _compare(base: str, first: ByTask, name: str, results: ByTask, draws: int, seed: int) -> list[list[Cell]]:
    if first.keys() != results.keys():
        raise UsageError(f"{base} has {', '.join(first)}, and {name} has {', '.join(results)}: compare the same tasks")
    random = np.random.default_rng(seed)
    parts = {task: _differences(base, first[task], name, result) for task, result in results.items()}
    judged = judge_tasks(parts, random, draws)
    return [[name, task, score, *judged[task]] for task, score in _scores(results).items()]


def judge_tasks(
    differences: dict[str, list[NDArray[np.float64]]], random: np.random.Generator, draws: int = DRAWS
) -> dict[str, Verdict]:
    """Return the verdict on each task, and on all tasks, each counted alike.

    differences: in points, by task; of each subset an array over queries.
    """
    means = {task: float(np.mean([part.mean() for part in parts])) for task, parts in differences.items()}
    samples = {
        task: np.mean([_bootstrap(part, random, draws) for part in parts], axis=0)
        for task, parts in differences.items()
    }
    means[ALL] = float(np.mean(list(means.values())))
    samples[ALL] = np.mean(list(samples.values()), axis=0)
    return {task: judge(means[task], samples[task]) for task in means}


def _differences(base: str, first: Result, name: str, second: Result) -> list[NDArray[np.float64]]:
    """Return the differences of each query, in points, by subset."""
    if _judged(first) != _judged(second):
        raise UsageError(
            f"{base} and {name} were not judged on the same queries and pages of {first.task}: evaluate both again"
        )
    pairs = zip(first.subsets.values(), second.subsets.values(), strict=True)
    return [100 * (np.array(after.each) - np.array(before.each)) for before, after in pairs]


def _judged(result: Result) -> dict[str, str]:
    """Return what each subset was judged on; results of earlier versions know only what was encoded."""
    return {name: subset.asked or subset.judged for name, subset in result.subsets.items()}


def _bootstrap(differences: NDArray[np.float64], random: np.random.Generator, draws: int) -> NDArray[np.float64]:
    """Return the mean difference of `draws` samples of the queries, with replacement."""
    num = len(differences)
    blocks = [min(BLOCK, draws - start) for start in range(0, draws, BLOCK)]
    return np.concatenate([differences[random.integers(0, num, (size, num))].mean(1) for size in blocks])


def judge(difference: float, samples: NDArray[np.float64]) -> Verdict:
    """Return a difference with its interval over the samples, and "better", "worse" or "within noise"."""
    tail = (100 - LEVEL) / 2
    low, high = (float(value) for value in np.percentile(samples, [tail, 100 - tail]))
    verdict = "better" if low > 0 else "worse" if high < 0 else "within noise"
    return difference, low, high, verdict
