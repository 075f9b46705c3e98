"""What runs are compared by, and how sure a difference is: a bootstrap that draws seeds and queries again.

Every draw takes the same queries and the same seeds for all arms, so differences are paired. Queries are drawn within
their task, seeds with all their queries; a measure is computed anew from what was drawn, and averaged over the seeds.

Shapes: N draws, T tasks, Q queries of a task, C columns of a row, S seeds, M measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randslot.evaluation.compare import DRAWS

from .plan import BUDGET
from .rows import BUDGETS, COLUMNS, SINGLES, WINS, Row

BLOCK = 1000  # draws at once
MEASURES = [*BUDGETS, "H", "U", "gain"]
FULL = f"k{BUDGET}"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One arm with one inference: each measure by seed (S, M), and its mean over seeds in every draw (N, M)."""

    by_seed_SM: Array
    drawn_NM: Array

    def seeds(self, measure: str) -> list[float]:
        values: list[float] = self.by_seed_SM[:, MEASURES.index(measure)].tolist()
        return values

    def draws(self, measure: str) -> Array:
        return self.drawn_NM[:, MEASURES.index(measure)]


def compute_measures(sums_TC: Array, sizes_T: Array) -> Array:
    """Return the measures (..., M) from sums over the queries of each task (..., T, C), and the number of these (T,).

    Scores and joint-use gain are in percent, each task counted alike; H and U are over the pairs of all tasks.
    """
    means = 100 * (sums_TC / sizes_T[:, None]).mean(-2)
    scores = means[..., _places(BUDGETS)]
    gain = means[..., _places([FULL])] - means[..., _places(SINGLES)].max(-1, keepdims=True)
    pooled = sums_TC.sum(-2)
    wins = pooled[..., _places(WINS)]
    parts = wins / wins.sum(-1, keepdims=True)
    logs = np.log(np.where(parts > 0, parts, 1))
    entropy = -(parts * logs).sum(-1, keepdims=True) / np.log(BUDGET)
    spread = pooled[..., _places(["distinct"])] / pooled[..., _places(["pairs"])]
    return np.concatenate([scores, entropy, spread, gain], -1)


def _places(names: Sequence[str]) -> list[int]:
    return [COLUMNS.index(name) for name in names]


def measure_rows(rows: Sequence[Row], *, draws: int = DRAWS, seed: int = 42) -> dict[tuple[str, str], Measured]:
    """Measure every arm with every inference."""
    lines: dict[tuple[str, str, int], dict[str, Array]] = {}
    for row in rows:
        for inference, by_task in row.queries.items():
            lines[row.arm, inference, row.seed] = by_task
    tasks = list(next(iter(lines.values())))
    sizes_T = np.array([len(next(iter(lines.values()))[task]) for task in tasks], dtype=float)
    random = np.random.default_rng(seed)
    drawn: dict[tuple[str, str, int], list[Array]] = {key: [] for key in lines}
    for counts in _draw_queries(random, sizes_T, draws):
        for key, by_task in lines.items():
            sums = np.stack([count @ by_task[task] for count, task in zip(counts, tasks, strict=True)], -2)
            drawn[key].append(compute_measures(sums, sizes_T))
    seeds = list(dict.fromkeys(row.seed for row in rows))
    chosen_NS = random.integers(0, len(seeds), (draws, len(seeds)))
    found = {}
    for arm, inference in dict.fromkeys(key[:2] for key in lines):
        keys = [(arm, inference, seed) for seed in seeds]
        values = np.stack([np.concatenate(drawn[key]) for key in keys], 1)  # (N, S, M)
        mean = np.take_along_axis(values, chosen_NS[..., None], 1).mean(1)
        by_seed = [compute_measures(np.stack([lines[key][task].sum(0) for task in tasks]), sizes_T) for key in keys]
        found[arm, inference] = Measured(np.stack(by_seed), mean)
    return found


def _draw_queries(random: np.random.Generator, sizes_T: Array, draws: int) -> Iterator[list[Array]]:
    """Yield, in blocks of draws, how often each query of each task is drawn (N, Q)."""
    for start in range(0, draws, BLOCK):
        num = min(BLOCK, draws - start)
        yield [random.multinomial(int(size), np.full(int(size), 1 / size), num).astype(float) for size in sizes_T]
