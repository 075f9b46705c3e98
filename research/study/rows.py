"""The rows of a study: for each run a JSON file, and for each way to append slots a CSV with a line a query.

They are all that the report needs: models, pages and vectors may be gone. A line has nDCG@5 with the first 1 to 8
vectors of both sides (k1 ...), with only one page readout of four (d1 ...), how often each page readout wins MaxSim
over the query's right pages (w1 ...), and how many right pages and distinct winners there are.

Shapes: Q queries of a task, C columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from randslot.errors import RandSlotError, UsageError
from randslot.files import write_json, write_whole
from randslot.model.reader import Side
from randslot.training.recipe import Recipe

from .plan import BUDGET, CONTENTS, MOST, STRATEGIES, Job, Study, explain, read_choice

BUDGETS = [f"k{num}" for num in range(1, MOST + 1)]
SINGLES = [f"d{num}" for num in range(1, BUDGET + 1)]
WINS = [f"w{num}" for num in range(1, BUDGET + 1)]
COLUMNS = [*BUDGETS, *SINGLES, *WINS, "pairs", "distinct"]
DIGITS = 4  # of nDCG of one query
Queries = dict[str, dict[str, NDArray[np.float64]]]  # by inference and task


@dataclass(frozen=True)
class TaskSize:
    """How many queries and pages a task has, and the name of what was judged."""

    queries: int
    pages: int
    judged: str


@dataclass(frozen=True)
class Inference:
    """What the lines of queries do not say about one way to append slots; scores are nDCG@5 in percent.

    budgets: with 1 to 8 vectors of one side. full, only, without: with all readouts, with one of a side, and without
    it. winners: how often each page readout (columns) wins for each query readout (rows). ties: how many wins are tied.
    """

    budgets: dict[Side, list[float]]
    full: float
    only: dict[Side, list[float]]
    without: dict[Side, list[float]]
    winners: list[list[int]]
    ties: int


@dataclass(frozen=True)
class Record:
    """What the JSON file of a run has."""

    run: str
    arm: str
    seed: int
    steps: int
    settings: dict[str, Any]
    tasks: dict[str, TaskSize]
    loss: float
    training_seconds: float
    evaluation_seconds: float
    inference: dict[str, Inference]
    commit: str | None
    versions: dict[str, str]
    machine: dict[str, Any]
    date: str


@dataclass(frozen=True)
class Row:
    """One run: its record, and by inference and task the lines of its queries (Q, C)."""

    record: Record
    queries: Queries

    @property
    def arm(self) -> str:
        return self.record.arm

    @property
    def seed(self) -> int:
        return self.record.seed


def write_row(folder: Path, row: Row) -> None:
    """Write a run's files; the JSON comes last, so a run that has one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for inference, by_task in row.queries.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["task", *COLUMNS])
        for task, values in by_task.items():
            for line in values.tolist():
                writer.writerow([task, *(f"{round(value, DIGITS):g}" for value in line)])
        write_whole(folder / f"{row.record.run}-{inference}.csv", text.getvalue())
    write_json(folder / f"{row.record.run}.json", asdict(row.record))


def read_record(folder: Path, run: str) -> Record | None:
    """Return a run's record, or None if it has none yet."""
    file = folder / f"{run}.json"
    try:
        return TypeAdapter(Record).validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RandSlotError(f"{file} is broken ({explain(error)}): remove it, and run the study again") from error


def is_done(study: Study, job: Job) -> bool:
    """Whether a run has its rows.

    Errors: UsageError if they were made with other settings, naming one.
    """
    record = read_record(Path(study.results), job.name)
    if record is None:
        return False
    check_settings(record.settings, study.settings(job), f"{study.results}/{job.name}.json")
    return True


def check_settings(before: dict[str, Any], now: dict[str, Any], file: str) -> None:
    """Refuse to go on with what was made with other settings, naming one; a key that came later had its default."""
    defaults = {field.name: field.default for field in fields(Recipe)}
    for name in now:
        if before.get(name, defaults.get(name)) != now[name]:
            raise UsageError(
                f"{file} was made with another {name} ({before.get(name)!r}, not {now[name]!r}): "
                "remove it, or write the study's results elsewhere"
            )


def read_rows(study: Study) -> list[Row]:
    """Read the rows of all runs; those of an extra are left out until it has all of them.

    Errors: UsageError if some of a strategy are missing, do not belong together, or were made with other settings than
    the study's. A backbone and data need not be here any more, so they are not looked at.
    """
    folder = Path(study.results)
    records: dict[tuple[str, int], Record] = {}
    missing: list[tuple[str, int]] = []
    for seed in study.seeds:
        for arm in study.arms:
            record = read_record(folder, f"{arm}-{seed}")
            if record is None:
                missing.append((arm, seed))
            else:
                records[arm, seed] = record
    unfinished = {arm for arm, _ in missing}
    if unfinished & STRATEGIES.keys():
        some = ", ".join(f"{arm}-{seed}" for arm, seed in missing[:3]) + (" and others" if len(missing) > 3 else "")
        total = len(records) + len(missing)
        raise UsageError(f"{folder} has no rows of {len(missing)} of {total} runs ({some}): run the study to its end")
    rows = []
    for (arm, _), record in records.items():
        if arm not in unfinished:
            queries = {inference: _read_lines(folder, record, inference) for inference in record.inference}
            rows.append(Row(record, queries))
    _check_one_study(study, rows)
    return rows


def _check_one_study(study: Study, rows: Sequence[Row]) -> None:
    """Refuse rows that do not belong together, or were made with other settings than the study's."""
    folder, first = study.results, rows[0].record
    for row in rows[1:]:
        for name in ("tasks", "steps"):
            if getattr(row.record, name) != getattr(first, name):
                raise UsageError(f"{folder}: {first.run} and {row.record.run} have other {name}: not one study")
    chosen = read_choice(study)
    for row in rows:
        before = row.record.settings
        steps, reports = (chosen.get(name, before.get(name, 0)) for name in ("steps", "reports"))
        job = Job(row.arm, row.seed, steps, reports, chosen.get("candidate", ""))
        now = {name: value for name, value in study.values(job).items() if name in before and name not in CONTENTS}
        check_settings(before, now, f"{folder}/{job.name}.json")


def _read_lines(folder: Path, record: Record, inference: str) -> dict[str, NDArray[np.float64]]:
    file = folder / f"{record.run}-{inference}.csv"
    try:
        with file.open(newline="", encoding="utf-8") as text:
            heads, *lines = csv.reader(text)
        found = {task: _lines_of(task, lines) for task in record.tasks}
    except (OSError, ValueError) as error:
        raise RandSlotError(f"cannot read {file}: {error}; run the study again, or get the file back") from error
    sizes = {task: len(values) for task, values in found.items()}
    if heads != ["task", *COLUMNS] or sizes != {task: about.queries for task, about in record.tasks.items()}:
        raise RandSlotError(f"{file} does not fit {record.run}.json: get both files back as they were")
    for values in found.values():
        scores = values[:, [COLUMNS.index(name) for name in (*BUDGETS, *SINGLES)]]
        if not ((scores >= 0) & (scores <= 1)).all():  # not a number is neither
            raise RandSlotError(f"{file} has scores that are not between 0 and 1: get the file back as it was")
    return found


def _lines_of(task: str, lines: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    return np.array([[float(cell) for cell in cells] for name, *cells in lines if name == task])
