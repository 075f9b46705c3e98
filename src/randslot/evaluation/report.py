"""The paper's tables with your rows among the published ones, as Markdown, CSV or LaTeX."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tables import Cell, Style, Table, write_table
from .published import TASKS, rows_for
from .result_files import CUTS, Result, read_results


@dataclass(frozen=True)
class ReportRow:
    """A method with its vectors and scores in percent; each score is a list over seeds."""

    method: str
    vectors: str
    source: str
    scores: dict[str, list[float]]  # by task
    average: list[float]

    def has(self, tasks: Iterable[str]) -> bool:
        """Whether it has all these tasks: only then its average compares with others."""
        return self.scores.keys() >= set(tasks)

    def cells(self, tasks: Iterable[str]) -> list[str]:
        """Return it as the cells of a table."""
        return [self.method, self.vectors, self.source, *(_show(self.scores.get(task, [])) for task in tasks)]


def _show(values: Sequence[float]) -> str:
    """Show a score, or the mean and sample standard deviation of several."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def make_report(folder: Path, style: Style = "md") -> str:
    """Return the tables of all results below a folder."""
    results = read_results(folder)
    if style == "csv":
        return write_table(_list_scores(results), style)
    return "\n".join(write_table(table, style) for table in make_tables(results))


def list_means(results: Sequence[Result]) -> list[str]:
    """Return lines with the scores of each task, and of its subsets, and the mean of each benchmark."""

    def show(ndcg: dict[int, float]) -> str:
        return "  ".join(f"nDCG@{cut} {100 * value:.2f}" for cut, value in ndcg.items())

    by_label: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_label[result.label].append(result)
    lines = []
    for label, same in by_label.items():
        if len(by_label) > 1:
            lines.append(f"with {label} slots:")
        for result in same:
            if len(result.subsets) > 1:
                lines += [f"  {name}: {show(subset.ndcg)}" for name, subset in result.subsets.items()]
            lines.append(f"{result.task}: {show(result.ndcg)}")
        for benchmark, tasks in _by_benchmark(same).items():
            if len(tasks) > 1:
                means = {cut: statistics.mean(task.ndcg[cut] for task in tasks) for cut in CUTS}
                lines.append(f"{benchmark}, mean of {len(tasks)} tasks: {show(means)}")
    return lines


def _by_benchmark(results: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.benchmark].append(result)
    return groups


def make_tables(results: Sequence[Result]) -> list[Table]:
    """Make a table for each benchmark and metric, and the differences between settings with several seeds."""
    tables = []
    for benchmark, same in _by_benchmark(results).items():
        for cut in CUTS:
            rows = _own_rows(same, cut)
            tables.append(_rank(benchmark, cut, rows))
            several = [row for row in rows if len(row.average) > 1]
            if len(several) > 1:
                tables.append(_subtract(benchmark, cut, several))
    return tables


def _own_rows(results: Iterable[Result], cut: int) -> list[ReportRow]:
    """Group results into rows, one for each model and setting, with its seeds together.

    A run with fewer tasks than others of its row was stopped, and is left out.
    """
    groups: dict[tuple[str, str], dict[tuple[int, str], dict[str, float]]] = {}
    for result in results:
        runs = groups.setdefault((f"{result.model}, {result.label}", result.counts_text), {})
        runs.setdefault((result.seed, result.weights), {})[result.task] = 100 * result.ndcg[cut]
    rows = []
    for (method, counts), runs in groups.items():
        most = max(len(run) for run in runs.values())
        complete = [run for run in runs.values() if len(run) == most]
        scores = {task: [run[task] for run in complete if task in run] for task in complete[0]}
        average = [statistics.mean(run.values()) for run in complete]
        rows.append(ReportRow(method, counts, "yours", scores, average))
    return rows


def _published(benchmark: str, cut: int) -> list[ReportRow]:
    """Return the rows of the paper, which has nDCG@5 of complete benchmarks."""
    if benchmark not in TASKS or cut != 5:
        return []
    rows = []
    for row in rows_for(benchmark):
        counts = [str(count) if count is not None else "-" for count in (row.query_vectors, row.page_vectors)]
        method = f"{row.method} ({row.backbone})" if row.backbone else row.method
        if len(row.seeds) > 1:
            method += f", mean of {len(row.seeds)} seeds"
        scores = {task: [score] for task, score in row.scores.items()}
        rows.append(ReportRow(method, "/".join(counts), row.source, scores, [statistics.mean(row.scores.values())]))
    return rows


def _list_tasks(benchmark: str, rows: Iterable[ReportRow]) -> list[str]:
    """Return the tasks of a benchmark; for your own sets, those of all rows."""
    if benchmark in TASKS:
        return list(TASKS[benchmark])
    return list(dict.fromkeys(task for row in rows for task in row.scores))


def _rank(benchmark: str, cut: int, own: list[ReportRow]) -> Table:
    """Make one table, best average first, with the gap to the best; rows with some of the tasks have no rank."""
    tasks = _list_tasks(benchmark, own)
    ranked = []
    for row in [*(row for row in own if row.has(tasks)), *_published(benchmark, cut)]:
        ranked.append((statistics.mean(row.average), row))
    ranked.sort(key=lambda pair: -pair[0])
    lines = []
    for place, (average, row) in enumerate(ranked, start=1):
        lines.append([str(place), *row.cells(tasks), _show(row.average), f"{average - ranked[0][0]:+.1f}"])
    for row in own:
        if not row.has(tasks):
            lines.append(["-", *row.cells(tasks), "-", "-"])
    heads = ["rank", "method", "vectors", "source", *tasks, "avg", "gap"]
    return Table(f"{benchmark}, nDCG@{cut}", heads, lines).drop_empty()


def _subtract(benchmark: str, cut: int, rows: list[ReportRow]) -> Table:
    """Make the table of differences to the first row, as in the paper's appendix."""
    first, *others = rows
    tasks = [task for task in TASKS.get(benchmark, first.scores) if all(task in row.scores for row in rows)]
    lines = []
    for row in others:
        means = [statistics.mean(row.scores[task]) - statistics.mean(first.scores[task]) for task in tasks]
        differences = [*means, statistics.mean(means)]
        lines.append([f"{row.method} ({row.vectors})", *(f"{difference:+.2f}" for difference in differences)])
    title = f"{benchmark}, nDCG@{cut}: mean over seeds, minus {first.method} ({first.vectors})"
    return Table(title, ["method", *tasks, "avg"], lines)


def _list_scores(results: Iterable[Result]) -> Table:
    """Make one row for each score, for other programs."""
    rows: list[list[Cell]] = []
    for benchmark, same in _by_benchmark(results).items():
        for cut in CUTS:
            own = _own_rows(same, cut)
            tasks = _list_tasks(benchmark, own)
            for row in [*own, *_published(benchmark, cut)]:
                scores = {**row.scores, "avg": row.average} if row.has(tasks) else row.scores
                for task, values in scores.items():
                    deviation = statistics.stdev(values) if len(values) > 1 else None
                    who = [benchmark, f"nDCG@{cut}", row.method, row.vectors, row.source]
                    rows.append([*who, task, statistics.mean(values), deviation, len(values)])
    heads = ["benchmark", "metric", "method", "vectors", "source", "task", "mean", "deviation", "runs"]
    return Table("scores", heads, rows)
