"""Compare runs by a paired bootstrap over queries, and by bytes per page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..tables import Cell, Table
from .result_files import Result, choose_base, name_runs, read_results

DRAWS = 10_000
LEVEL = 95  # of intervals, in percent
ALL = "all tasks"
Scores = NDArray[np.float64]  # of each query, in percent
Verdict = tuple[float, float, float, str]  # a difference, its interval, and "better", "worse" or "within noise"


# -- bootstrap


def judge_tasks(differences: dict[str, list[Scores]], seed: int = 42) -> dict[str, Verdict]:
    """Return the verdict per task, and over all tasks, weighted equally.

    differences: in points, by task: one array over queries per subset.
    """
    random = np.random.default_rng(seed)
    means: dict[str, float] = {}
    samples: dict[str, Scores] = {}
    for task, subsets in differences.items():
        means[task] = float(np.mean([subset.mean() for subset in subsets]))
        drawn = []
        for subset in subsets:
            num, blocks = len(subset), []
            for _ in range(DRAWS // 500):  # in blocks, to save memory
                blocks.append(subset[random.integers(0, num, (500, num))].mean(1))
            drawn.append(np.concatenate(blocks))
        samples[task] = np.mean(drawn, axis=0)
    means[ALL] = float(np.mean(list(means.values())))
    samples[ALL] = np.mean(list(samples.values()), axis=0)
    return {task: judge(means[task], samples[task]) for task in means}


def judge(difference: float, samples: Scores) -> Verdict:
    """Return a difference with its interval over the samples and a verdict."""
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(samples, [tail, 100 - tail]).tolist()
    return difference, low, high, "better" if low > 0 else "worse" if high < 0 else "within noise"


def describe_interval(result: Result) -> str:
    """Return a line with the bootstrap interval of a task's nDCG@5 over queries."""
    scores = [100 * np.array(subset.each) for subset in result.subsets.values()]
    _, low, high, _ = judge_tasks({result.task: scores})[result.task]
    num = sum(map(len, scores))
    return f"{result.task}: nDCG@5 from {low:.2f} to {high:.2f} ({LEVEL}% interval, {num} queries)"


# -- runs


def compare_runs(folders: Sequence[Path], *, base: str | None = None, seed: int = 42) -> Table:
    """Compare every run in folders with a baseline, per task and over all tasks, weighted equally.

    base: the name of the baseline or a unique part of it; by default the first run.
    """
    found = read_results(*folders)
    has_benchmarks = len({result.benchmark for result in found}) > 1
    has_budgets = len({result.counts_text for result in found}) > 1  # then they tell runs apart
    names = name_runs(list(dict.fromkeys(result.run_key for result in found)))
    runs: dict[str, dict[str, Result]] = {}
    for result in found:
        name = names[result.run_key] + (f", {result.counts_text}" if has_budgets else "")
        task = f"{result.benchmark} {result.task}" if has_benchmarks else result.task
        runs.setdefault(name, {})[task] = result
    if len(runs) < 2:
        raise UsageError(f"only one run found: {next(iter(runs))}. Pass the folders of two or more.")
    base = choose_base(base, list(runs))
    first = runs.pop(base)
    rows: list[list[Cell]] = [[base, task, score, None, None, None, "base"] for task, score in _scores(first).items()]
    for name, results in runs.items():
        if first.keys() != results.keys():
            raise UsageError(
                f"{base} has {', '.join(first)}, and {name} has {', '.join(results)}. Evaluate both on the same tasks."
            )
        differences: dict[str, list[Scores]] = {}
        for task, result in results.items():
            before, after = first[task].subsets, result.subsets
            differences[task] = []
            for subset in {**before, **after}:
                if subset not in before or subset not in after or before[subset].asked != after[subset].asked:
                    raise UsageError(f"{base} and {name} differ in queries or pages of {task}. Evaluate both again.")
                differences[task].append(100 * (np.array(after[subset].each) - np.array(before[subset].each)))
        verdicts = judge_tasks(differences, seed)
        rows += [[name, task, score, *verdicts[task]] for task, score in _scores(results).items()]
    title = f"nDCG@5 minus that of {base}, in points, with {LEVEL}% intervals (paired bootstrap over queries)"
    return Table(title, ["run", "task", "score", "difference", "from", "to", "verdict"], rows, digits=2)


def _scores(results: dict[str, Result]) -> dict[str, float]:
    """Return nDCG@5 in percent by task, and over all tasks if there are several."""
    scores = {task: 100 * result.ndcg[5] for task, result in results.items()}
    if len(scores) > 1:
        scores[ALL] = float(np.mean(list(scores.values())))
    return scores


# -- bytes


def find_frontier(compared: Iterable[Any]) -> list[Any]:
    """Return the Pareto frontier, smallest first, of anything that has `bytes` per page and `ndcg`."""
    best: list[Any] = []
    for one in sorted(compared, key=lambda one: (one.bytes, -one.ndcg)):
        if not best or one.ndcg > best[-1].ndcg:
            best.append(one)
    return best
