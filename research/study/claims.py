"""Test the paper's claims one by one on the rows of a study, with intervals.

The bootstrap resamples queries within tasks, and seeds with all their queries, identically for all arms: differences
are paired. A measure is computed per resample, and averaged over seeds.

Shapes: N draws, T tasks, Q queries of a task, C columns of a row, S seeds, M measures.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from randslot.errors import UsageError
from randslot.evaluation.compare import DRAWS, LEVEL, judge
from randslot.evaluation.published import PublishedRow, published_tables
from randslot.files import read_json

from .plan import BASE, BUDGET, CONTENTS, METHOD, STRATEGIES, Extra, Study
from .run import BUDGETS, COLUMNS, SINGLES, WINS, check_settings

CONFIRMED, CONTRADICTED, NOISE = "confirmed", "contradicted", "within noise"
MARGIN = 1.0  # equivalence margin of two inferences, in points
V3 = "ViDoRe(v3)"
FULL = f"k{BUDGET}"
MEASURES = [*BUDGETS, "H", "U", "gain"]
RULE = (
    f"A claim is *confirmed* if the {LEVEL} % interval lies on the paper's side of zero and every seed agrees. It is "
    "*contradicted* if both are on the other side. All else is *within noise*. The claim that zeros can replace random "
    f"slots is confirmed if the interval lies within {MARGIN:g} point on either side of zero. It is contradicted if "
    "the interval lies beyond."
)
EXTRA_RULE = (
    f"*Better* follows the rule above. *No worse* is confirmed if the whole interval lies above -{MARGIN:g} point, and "
    "contradicted if it lies below. The hypothesis holds if all parts are confirmed. It does not hold if a part is "
    "contradicted."
)
Array = NDArray[np.float64]
Key = tuple[str, str]  # arm, inference


# -- rows


@dataclass(frozen=True)
class Row:
    """One run: its record, and the lines of its queries (Q, C) by inference and task."""

    record: dict[str, Any]
    lines: dict[str, dict[str, Array]]


def read_rows(study: Study) -> list[Row]:
    """Read the rows of all complete arms; UsageError if a strategy is incomplete or has other settings."""
    folder = Path(study.results)
    missing = [job for job in study.jobs if not (folder / f"{job[0]}-{job[1]}.json").is_file()]
    unfinished = {arm for arm, _ in missing}
    if unfinished & STRATEGIES.keys():
        arm, seed = missing[0]
        raise UsageError(f"{folder} lacks the rows of {len(missing)} runs, such as {arm}-{seed}: run the study again")
    rows = []
    for arm, seed in study.jobs:
        if arm in unfinished:
            continue
        file = folder / f"{arm}-{seed}.json"
        record = read_json(file)
        now = study.settings(arm, seed, hashed=False)  # the backbone and data may be gone
        check_settings(file, record["settings"], {name: now[name] for name in now.keys() - set(CONTENTS)})
        lines = {inference: _read_lines(folder, record, inference) for inference in record["inference"]}
        rows.append(Row(record, lines))
    return rows


def _read_lines(folder: Path, record: dict[str, Any], inference: str) -> dict[str, Array]:
    file = folder / f"{record['run']}-{inference}.csv"
    by_task: dict[str, list[list[float]]] = {task: [] for task in record["tasks"]}
    with file.open(newline="", encoding="utf-8") as text:
        heads, *lines = csv.reader(text)
        assert heads == ["task", *COLUMNS], file
        for task, *cells in lines:
            by_task[task].append([float(cell) for cell in cells])
    for task, found in by_task.items():
        if len(found) != record["tasks"][task]["queries"]:
            raise UsageError(f"{file} does not match {record['run']}.json. Restore both files.")
    return {task: np.array(found) for task, found in by_task.items()}


# -- measures


@dataclass(frozen=True)
class Measured:
    """One arm with one inference: each measure by seed (S, M), and its mean over seeds per resample (N, M)."""

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

    def columns(array: Array, *names: str) -> Array:
        return array[..., [COLUMNS.index(name) for name in names]]

    means = 100 * (sums_TC / sizes_T[:, None]).mean(-2)
    gain = columns(means, FULL) - columns(means, *SINGLES).max(-1, keepdims=True)
    pooled = sums_TC.sum(-2)
    wins = columns(pooled, *WINS)
    parts = wins / wins.sum(-1, keepdims=True)
    entropy = -(parts * np.log(np.where(parts > 0, parts, 1))).sum(-1, keepdims=True) / np.log(BUDGET)
    spread = columns(pooled, "distinct") / columns(pooled, "pairs")
    return np.concatenate([columns(means, *BUDGETS), entropy, spread, gain], -1)


def measure_rows(rows: list[Row], *, draws: int = DRAWS, seed: int = 42) -> dict[Key, Measured]:
    """Measure every arm with every inference."""
    lines: dict[tuple[str, str, int], dict[str, Array]] = {}
    for row in rows:
        for inference, by_task in row.lines.items():
            lines[row.record["arm"], inference, row.record["seed"]] = by_task
    tasks = list(next(iter(lines.values())))
    sizes_T = np.array([len(next(iter(lines.values()))[task]) for task in tasks], dtype=float)
    random = np.random.default_rng(seed)
    drawn: dict[tuple[str, str, int], list[Array]] = {key: [] for key in lines}
    for start in range(0, draws, 1000):  # how often each query of each task is drawn, in blocks of resamples
        num = min(1000, draws - start)
        counts = [random.multinomial(int(size), np.full(int(size), 1 / size), num).astype(float) for size in sizes_T]
        for key, by_task in lines.items():
            sums = np.stack([count @ by_task[task] for count, task in zip(counts, tasks, strict=True)], -2)
            drawn[key].append(compute_measures(sums, sizes_T))
    seeds = list(dict.fromkeys(row.record["seed"] for row in rows))
    chosen_NS = random.integers(0, len(seeds), (draws, len(seeds)))
    found = {}
    for arm, inference in dict.fromkeys(key[:2] for key in lines):
        keys = [(arm, inference, seed) for seed in seeds]
        values = np.stack([np.concatenate(drawn[key]) for key in keys], 1)  # (N, S, M)
        by_seed = [compute_measures(np.stack([lines[key][task].sum(0) for task in tasks]), sizes_T) for key in keys]
        means = np.take_along_axis(values, chosen_NS[..., None], 1).mean(1)
        found[arm, inference] = Measured(np.stack(by_seed), means)
    return found


# -- claims


@dataclass(frozen=True)
class Question:
    """A question: is a measure of an arm and inference above another's, below it, equal, or no worse?"""

    text: str
    measure: str
    left: Key
    right: Key
    paper: tuple[float | None, float | None] = (None, None)  # the differences of the paper's 3B and 4B models
    wanted: Literal["above", "below", "alike", "no worse"] = "above"
    right_measure: str = ""  # by default the same


@dataclass(frozen=True)
class Claim:
    """A question with its answer: the difference, its interval, the number of agreeing seeds, and the verdict."""

    question: Question
    difference: float
    low: float
    high: float
    agreeing: int
    verdict: str


def judge_question(question: Question, found: dict[Key, Measured]) -> Claim:
    """Judge a question by the interval of the difference and by each seed."""
    left, right, right_measure = found[question.left], found[question.right], question.right_measure or question.measure
    by_seed = np.subtract(left.seeds(question.measure), right.seeds(right_measure))
    draws = left.draws(question.measure) - right.draws(right_measure)
    difference, low, high, _ = judge(float(by_seed.mean()), draws)
    if question.wanted == "alike":
        agreeing = abs(by_seed) < MARGIN
        confirmed, contradicted = low > -MARGIN and high < MARGIN, low > MARGIN or high < -MARGIN
    elif question.wanted == "no worse":
        agreeing = by_seed > -MARGIN
        confirmed, contradicted = low > -MARGIN, high < -MARGIN
    else:
        is_above, is_below = low > 0, high < 0
        as_wanted, opposite = (is_above, is_below) if question.wanted == "above" else (is_below, is_above)
        agreeing = by_seed > 0 if question.wanted == "above" else by_seed < 0
        confirmed, contradicted = as_wanted and bool(agreeing.all()), opposite and not agreeing.any()
    verdict = CONFIRMED if confirmed else CONTRADICTED if contradicted else NOISE
    return Claim(question, difference, low, high, int(agreeing.sum()), verdict)


def ask_paper() -> Iterator[Question]:
    """Yield the paper's claims that can be tested here."""
    own, base = (METHOD, METHOD), (BASE, BASE)
    for arm, title in STRATEGIES.items():
        if arm != METHOD:
            paper = _differences("table3", STRATEGIES[METHOD], title)
            yield Question(f"RandSlot is better than {title}", FULL, own, (arm, arm), paper)
    text = "RandSlot with zeros at inference (RS-Z) is better than Zero-Feedback"
    yield Question(text, FULL, (METHOD, BASE), base, _differences("table4", "RS-Z", STRATEGIES[BASE]))
    text = "zeros at inference are as good as random slots (RS-Z minus RS-R)"
    yield Question(text, FULL, (METHOD, BASE), own, _differences("table4", "RS-Z", STRATEGIES[METHOD]), "alike")
    sweeps = zip(paper_budgets(STRATEGIES[METHOD]), paper_budgets(STRATEGIES[BASE]), strict=True)
    for num, (ours, theirs) in enumerate(sweeps, start=1):
        if num != BUDGET:  # that is a claim about strategies
            is_ahead = ours > theirs
            text = f"with {_vectors(num)} per side, RandSlot is {'ahead of' if is_ahead else 'behind'} Zero-Feedback"
            difference = round(ours - theirs, 1)
            yield Question(text, f"k{num}", own, base, (difference, None), "above" if is_ahead else "below")
    for text, measure, table, column in (
        ("wins are more even (H)", "H", "figure4", "H"),
        ("more readouts win per pair (U)", "U", "figure4", "U"),
        ("joint use of page readouts gains more", "gain", "figure5", "joint-use gain"),
    ):
        values = {row.method: row.values.get(column) for row in published_tables()[table].rows}
        for arm, title in STRATEGIES.items():
            if arm != METHOD and values.get(title) is not None:
                paper = (_minus(values[STRATEGIES[METHOD]], values[title], 3), None)
                yield Question(f"{text} than with {title}", measure, own, (arm, arm), paper)


def judge_extra(study: Study, extra: Extra, found: dict[Key, Measured]) -> tuple[list[Claim], str] | None:
    """Judge the hypothesis of an extra: its differences by budget, and the verdict; None if rows are missing."""
    left, right = ((arm, study.inferences(arm)[0]) for arm in (extra.name, extra.against))
    if left not in found or right not in found:
        return None
    against, questions = study.arms[extra.against], []
    for num in sorted({*extra.better, *extra.no_worse}):
        is_better = num in extra.better
        text = f"{_vectors(num)} per side: {'better' if is_better else 'no worse'} than {against}"
        questions.append(Question(text, f"k{num}", left, right, wanted="above" if is_better else "no worse"))
    for num in extra.below:
        text = f"{_vectors(num)} per side: below {against} with {BUDGET}"
        questions.append(Question(text, f"k{num}", left, right, wanted="below", right_measure=FULL))
    claims = [judge_question(question, found) for question in questions]
    verdicts = {claim.verdict for claim in claims}
    if CONTRADICTED in verdicts:
        return claims, "it does not hold"
    return claims, "it holds" if verdicts == {CONFIRMED} else "it is undecided (within noise)"


# -- the paper's numbers


def _vectors(num: int) -> str:
    return f"{num} vector{'s' * (num > 1)}"


def _rows(table: str, method: str) -> list[PublishedRow]:
    return [row for row in published_tables()[table].rows if row.method == method]


def paper_averages(table: str, method: str) -> tuple[float | None, float | None]:
    """Return the printed averages on ViDoRe V3 of the 3B and the 4B model."""
    found = {row.backbone: row.averages[V3] for row in _rows(table, method)}
    return found.get("Qwen2.5-VL-3B"), found.get("Qwen3-VL-4B")


def paper_budgets(method: str) -> list[float]:
    """Return the paper's budget sweep of one method, from one vector per side; empty if there is none."""
    return [row.averages[V3] for row in _rows("table11", method)]


def _differences(table: str, left: str, right: str) -> tuple[float | None, float | None]:
    pairs = zip(paper_averages(table, left), paper_averages(table, right), strict=True)
    small, large = (_minus(ours, theirs, 1) for ours, theirs in pairs)
    return small, large


def _minus(ours: float | None, theirs: float | None, digits: int) -> float | None:
    return None if ours is None or theirs is None else round(ours - theirs, digits)
