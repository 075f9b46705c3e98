"""The rows of a study: for each run a JSON file, and for each way to append slots a CSV with a line a query.

They are all that the report needs: models, pages and vectors may be gone. A line has nDCG@5 with the first 1 to 8
vectors of both sides (k1 ...), with only one page readout of four (d1 ...), how often each page readout wins MaxSim
over the query's right pages (w1 ...), and how many right pages and distinct winners there are.

Shapes: Q queries of a task, C columns.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import RandSlotError, UsageError
from .plan import BUDGET, CONTENTS, MOST, STRATEGIES, Job, Study, read_choice

BUDGETS = [f"k{num}" for num in range(1, MOST + 1)]
SINGLES = [f"d{num}" for num in range(1, BUDGET + 1)]
WINS = [f"w{num}" for num in range(1, BUDGET + 1)]
COLUMNS = [*BUDGETS, *SINGLES, *WINS, "pairs", "distinct"]
DIGITS = 4  # of nDCG of one query


@dataclass(frozen=True)
class Row:
    """One run: its record, and by inference and task the lines of its queries (Q, C)."""

    arm: str
    seed: int
    record: dict[str, Any]
    queries: dict[str, dict[str, NDArray[np.float64]]]


def write_row(folder: Path, record: dict[str, Any], queries: dict[str, dict[str, NDArray[np.float64]]]) -> None:
    """Write a run's files; the JSON comes last, so a run that has one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for inference, by_task in queries.items():
        file = folder / f"{record['run']}-{inference}.csv"
        part = file.with_suffix(".part")
        with part.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines, lineterminator="\n")
            writer.writerow(["task", *COLUMNS])
            for task, values in by_task.items():
                writer.writerows([task, *(f"{round(value, DIGITS):g}" for value in line)] for line in values.tolist())
        os.replace(part, file)
    write_json(folder / f"{record['run']}.json", record)


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(part, file)


def read_record(folder: Path, run: str) -> dict[str, Any] | None:
    """Return a run's record, or None if it has none yet."""
    file = folder / f"{run}.json"
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RandSlotError(f"{file} is broken ({error}): remove it, and run the study again") from error
    return record


def is_done(study: Study, job: Job) -> bool:
    """Whether a run has its rows.

    Errors: UsageError if they were made with other settings, naming one.
    """
    record = read_record(Path(study.results), job.name)
    if record is None:
        return False
    check_settings(record["settings"], study.settings(job), f"{study.results}/{job.name}.json")
    return True


def check_settings(before: dict[str, Any], now: dict[str, Any], file: str) -> None:
    """Refuse to go on with what was made with other settings, naming one."""
    for name in now:
        if before.get(name) != now[name]:
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
    records = {(arm, seed): read_record(folder, f"{arm}-{seed}") for seed in study.seeds for arm in study.arms}
    missing = [key for key, record in records.items() if record is None]
    unfinished = {arm for arm, _ in missing}
    if unfinished & STRATEGIES.keys():
        some = ", ".join(f"{arm}-{seed}" for arm, seed in missing[:3]) + (" and others" if len(missing) > 3 else "")
        raise UsageError(
            f"{folder} has no rows of {len(missing)} of {len(records)} runs ({some}): run the study to its end"
        )
    rows = [
        Row(arm, seed, record, {inference: _read_lines(folder, record, inference) for inference in record["inference"]})
        for (arm, seed), record in records.items()
        if record is not None and arm not in unfinished
    ]
    first = rows[0].record
    for row in rows[1:]:
        for name in ("tasks", "steps"):
            if row.record[name] != first[name]:
                raise UsageError(f"{folder}: {first['run']} and {row.record['run']} have other {name}: not one study")
    chosen = read_choice(study)
    for row in rows:
        before = row.record["settings"]
        job = Job(row.arm, row.seed, chosen.get("steps", before["steps"]), chosen.get("reports", before["reports"]))
        now = {name: value for name, value in study.values(job).items() if name in before and name not in CONTENTS}
        check_settings(before, now, f"{folder}/{job.name}.json")
    return rows


def _read_lines(folder: Path, record: dict[str, Any], inference: str) -> dict[str, NDArray[np.float64]]:
    file = folder / f"{record['run']}-{inference}.csv"
    try:
        with file.open(newline="", encoding="utf-8") as text:
            heads, *lines = csv.reader(text)
        found = {task: _lines_of(task, lines) for task in record["tasks"]}
    except (OSError, ValueError) as error:
        raise RandSlotError(f"cannot read {file}: {error}; run the study again, or get the file back") from error
    sizes = {task: len(values) for task, values in found.items()}
    if heads != ["task", *COLUMNS] or sizes != {task: about["queries"] for task, about in record["tasks"].items()}:
        raise RandSlotError(f"{file} does not fit {record['run']}.json: get both files back as they were")
    for values in found.values():
        scores = values[:, [COLUMNS.index(name) for name in (*BUDGETS, *SINGLES)]]
        if not ((scores >= 0) & (scores <= 1)).all():  # not a number is neither
            raise RandSlotError(f"{file} has scores that are not between 0 and 1: get the file back as it was")
    return found


def _lines_of(task: str, lines: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    return np.array([[float(cell) for cell in cells] for name, *cells in lines if name == task])
