"""The paper's tables with rows of one's own among the published ones, as Markdown, CSV or LaTeX."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RandSlotError, UsageError
from ...tables import STYLES, Cell, Table, write_table
from .published import TASKS, rows_for

SHOWN = {"ndcg@5": "nDCG@5", "ndcg@10": "nDCG@10"}
# What draws from the seed when encoding; all else gives the same vectors under any.
DRAWN = {"random", "tokens by random", "tokens by kmeans"}
# What a result has, beside its model and task.
PARTS = {
    "settings",
    "weights",
    "how",
    "counts",
    "cache",
    "vectors",
    "subsets",
    *SHOWN,
}


@dataclass(frozen=True)
class Row:
    """A line of a table: who, with how many vectors, and the scores in percent; several seeds give several of each."""

    method: str
    vectors: str
    source: str
    scores: dict[str, list[float]]  # by task
    average: list[float]

    def mean(self) -> float:
        return statistics.mean(self.average)

    def has(self, tasks: Iterable[str]) -> bool:
        """Whether it has all these tasks: only then its average can stand beside those of others."""
        return self.scores.keys() >= set(tasks)


def make_report(folder: Path, style: str = "md") -> str:
    """Return the tables of all results below a folder.

    Errors: UsageError for another style, or if there are no results.
    """
    if style not in STYLES:
        raise UsageError(f"format {style!r} is not one of {', '.join(STYLES)}")
    results = read_results(folder)
    if style == "csv":
        return write_table(_list_scores(results), style)
    return "\n".join(write_table(table, style) for table in make_tables(results))


def read_results(*folders: Path) -> list[dict[str, Any]]:
    """Read every result below some folders, with the file that it is from; other files are passed over.

    Errors: UsageError if there is none below one of them, RandSlotError for a broken one.
    """
    results = [result for folder in folders for result in _read_folder(folder)]
    seeds: dict[tuple[str, str, str], int] = {}
    for result in results:
        if result["how"] not in DRAWN:  # another seed, the same vectors: one run, under the first seed found
            same = (result["model"], result["how"], result["weights"])
            result["settings"]["seed"] = seeds.setdefault(same, result["settings"]["seed"])
    return results


def _read_folder(folder: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.rglob("*.json")):
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RandSlotError(f"{file} is not valid JSON: {error}") from error
        if isinstance(result, dict) and {"model", "task", "benchmark"} <= result.keys():
            if missing := sorted(PARTS - result.keys()):
                raise RandSlotError(f"{file} lacks {', '.join(missing)}: evaluate again")
            found.append(result | {"file": str(file)})
    if not found:
        raise UsageError(f"no results in {folder}: make some by randslot evaluate ... -o {folder}")
    return found


def make_tables(results: list[dict[str, Any]]) -> list[Table]:
    """Make a table for each benchmark and metric, then the seeds beside each other where there are several."""
    tables = []
    for benchmark in dict.fromkeys(result["benchmark"] for result in results):
        mine = [result for result in results if result["benchmark"] == benchmark]
        for metric in SHOWN:
            rows = _own_rows(mine, metric)
            tables.append(_make_table(benchmark, metric, rows))
            tables += _make_differences(benchmark, metric, rows)
    return tables


def _make_differences(benchmark: str, metric: str, rows: list[Row]) -> list[Table]:
    """Make the table of differences between settings that have several seeds, as the paper's appendix does."""
    several = [row for row in rows if len(row.average) > 1]
    if len(several) < 2:
        return []
    first, *others = several
    tasks = [task for task in TASKS.get(benchmark, first.scores) if all(task in row.scores for row in several)]
    lines = []
    for row in others:
        means = [statistics.mean(row.scores[task]) - statistics.mean(first.scores[task]) for task in tasks]
        differences = [*means, statistics.mean(means)]
        lines.append([f"{row.method} ({row.vectors})", *(f"{difference:+.2f}" for difference in differences)])
    title = f"{benchmark}, {SHOWN[metric]}: mean over seeds, minus {first.method} ({first.vectors})"
    return [Table(title, ["method", *tasks, "avg"], lines)]


def _own_rows(results: list[dict[str, Any]], metric: str) -> list[Row]:
    """Group results into rows: one for each model and setting, with its seeds together."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for result in results:
        counts = "/".join("all" if num is None else str(num) for num in result["counts"].values())
        run = (result["settings"]["seed"], result["weights"])
        groups[f"{result['model']}, {result['how']}", counts][run][result["task"]] = 100 * result[metric]
    rows = []
    for (method, counts), runs in groups.items():
        most = max(len(scores) for scores in runs.values())
        whole = [scores for scores in runs.values() if len(scores) == most]  # a run that was stopped counts for nothing
        scores = {task: [by_task[task] for by_task in whole if task in by_task] for task in whole[0]}
        average = [statistics.mean(by_task.values()) for by_task in whole]
        rows.append(Row(method, counts, "yours", scores, average))
    return rows


def _published(benchmark: str) -> list[Row]:
    rows = []
    for row in rows_for(benchmark):
        counts = [str(count) if count is not None else "-" for count in (row.query_vectors, row.page_vectors)]
        method = f"{row.method} ({row.backbone})" if row.backbone else row.method
        if len(row.seeds) > 1:
            method += f", mean of {len(row.seeds)} seeds"
        scores = {task: [score] for task, score in row.scores.items()}
        rows.append(Row(method, "/".join(counts), row.source, scores, [statistics.mean(row.scores.values())]))
    return rows


def _make_table(benchmark: str, metric: str, own: list[Row]) -> Table:
    """Make one table, best average first, with the gap to the best; published rows have nDCG@5 of whole benchmarks."""
    tasks = _list_tasks(benchmark, own)
    whole = [row for row in own if row.has(tasks)]
    parts = [row for row in own if not row.has(tasks)]
    ranked = whole + (_published(benchmark) if benchmark in TASKS and metric == "ndcg@5" else [])
    ranked.sort(key=lambda row: -row.mean())
    best = ranked[0].mean() if ranked else 0.0
    lines = [
        [str(place), *_line(row, tasks), _show(row.average), f"{row.mean() - best:+.1f}"]
        for place, row in enumerate(ranked, start=1)
    ]
    lines += [["-", *_line(row, tasks), "-", "-"] for row in parts]  # some tasks only: no rank, no average
    heads = ["rank", "method", "vectors", "source", *tasks, "avg", "gap"]
    used = [place for place in range(len(heads)) if any(line[place] != "-" for line in lines)]
    rows = [[line[place] for place in used] for line in lines]
    return Table(f"{benchmark}, {SHOWN[metric]}", [heads[place] for place in used], rows)


def _list_tasks(benchmark: str, rows: list[Row]) -> list[str]:
    """Return the tasks of a benchmark; sets of one's own are all that some row has."""
    return list(TASKS.get(benchmark, dict.fromkeys(task for row in rows for task in row.scores)))


def _line(row: Row, tasks: list[str]) -> list[str]:
    return [row.method, row.vectors, row.source, *(_show(row.scores.get(task, [])) for task in tasks)]


def _show(values: list[float]) -> str:
    """Show a score, or the mean and sample standard deviation of several."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def _list_scores(results: list[dict[str, Any]]) -> Table:
    """Make one row for each score: for other programs."""
    rows: list[list[Cell]] = []
    for benchmark in dict.fromkeys(result["benchmark"] for result in results):
        mine = [result for result in results if result["benchmark"] == benchmark]
        for metric in SHOWN:
            published = _published(benchmark) if benchmark in TASKS and metric == "ndcg@5" else []
            own = _own_rows(mine, metric)
            for row in [*own, *published]:
                average = {"avg": row.average} if row.has(_list_tasks(benchmark, own)) else {}
                for task, values in {**row.scores, **average}.items():
                    deviation = statistics.stdev(values) if len(values) > 1 else None
                    who = [benchmark, SHOWN[metric], row.method, row.vectors, row.source]
                    rows.append([*who, task, statistics.mean(values), deviation, len(values)])
    heads = ["benchmark", "metric", "method", "vectors", "source", "task", "mean", "deviation", "runs"]
    return Table("scores", heads, rows)
