"""Differences between runs, with an interval that says what chance alone would do: a paired bootstrap over queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..evaluation.report import read_results
from ..tables import Cell, Table
from .runs import run_key, run_names

DRAWS, BLOCK = 10_000, 500
LEVEL = 95


def compare_runs(folders: Sequence[Path], *, draws: int = DRAWS, seed: int = 42) -> Table:
    """Compare every run below some folders with the first, task by task and over all tasks, each counted alike.

    Errors: UsageError if there are not two runs, or if they were not judged on the same queries and pages.
    """
    runs = _read(folders)
    if len(runs) < 2:
        raise UsageError(f"only one run found, {next(iter(runs))}: name the folders of two or more")
    (base, first), *others = runs.items()
    rows: list[list[Cell]] = []
    for name, results in others:
        rows += _compare(base, first, name, results, draws, seed)
    title = f"nDCG@5 minus that of {base}, in points, with {LEVEL} % intervals (paired bootstrap over queries)"
    return Table(title, ["run", "task", "score", "difference", "from", "to", "verdict"], rows, digits=2)


def _read(folders: Sequence[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results by run and task; budgets tell runs apart here."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    found = [result for folder in folders for result in read_results(folder)]
    mixed = len({result["benchmark"] for result in found}) > 1
    for result in found:
        counts = "/".join(str(num or "all") for num in result["counts"].values())
        task = f"{result['benchmark']} {result['task']}" if mixed else result["task"]
        groups.setdefault((*run_key(result), counts), {})[task] = result
    several = len({key[-1] for key in groups}) > 1
    names = run_names(list({key[:-1]: None for key in groups}))
    return {names[key[:-1]] + (f", {key[-1]}" if several else ""): results for key, results in groups.items()}


def _compare(
    base: str, first: dict[str, Any], name: str, results: dict[str, Any], draws: int, seed: int
) -> list[list[Cell]]:
    if first.keys() != results.keys():
        raise UsageError(f"{base} has {', '.join(first)}, and {name} has {', '.join(results)}: compare the same tasks")
    random = np.random.default_rng(seed)
    rows: list[list[Cell]] = []
    means, drawn = [], np.zeros(draws)
    for task, result in results.items():
        parts = _differences(base, first[task], name, result)
        samples = np.mean([_bootstrap(part, random, draws) for part in parts], axis=0)
        difference = float(np.mean([part.mean() for part in parts]))
        rows.append([name, task, 100 * result["ndcg@5"], *judge(difference, samples)])
        means.append(difference)
        drawn += samples / len(results)
    if len(results) > 1:
        score = 100 * float(np.mean([result["ndcg@5"] for result in results.values()]))
        rows.append([name, "all tasks", score, *judge(float(np.mean(means)), drawn)])
    return rows


def _differences(base: str, first: dict[str, Any], name: str, second: dict[str, Any]) -> list[NDArray[np.float64]]:
    """Return the differences of each query, in points, by subset."""
    judged = [{subset: scores["judged"] for subset, scores in result["subsets"].items()} for result in (first, second)]
    if judged[0] != judged[1]:
        raise UsageError(
            f"{base} and {name} were not judged on the same queries and pages of {first['task']}: evaluate both again"
        )
    pairs = zip(first["subsets"].values(), second["subsets"].values(), strict=True)
    return [100 * (np.array(after["each"]) - np.array(before["each"])) for before, after in pairs]


def _bootstrap(differences: NDArray[np.float64], random: np.random.Generator, draws: int) -> NDArray[np.float64]:
    """Return the mean difference of `draws` samples of the queries, with replacement."""
    num = len(differences)
    blocks = [min(BLOCK, draws - start) for start in range(0, draws, BLOCK)]
    return np.concatenate([differences[random.integers(0, num, (size, num))].mean(1) for size in blocks])


def judge(difference: float, samples: NDArray[np.float64]) -> tuple[float, float, float, str]:
    """Return a difference with its interval over the samples, and "better", "worse" or "within noise"."""
    tail = (100 - LEVEL) / 2
    low, high = (float(value) for value in np.percentile(samples, [tail, 100 - tail]))
    verdict = "better" if low > 0 else "worse" if high < 0 else "within noise"
    return difference, low, high, verdict
