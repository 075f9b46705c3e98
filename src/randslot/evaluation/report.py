"""The paper's tables with rows of one's own among the published ones, as Markdown, CSV or LaTeX."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tables import Cell, Table, check_style, write_table
from .published import TASKS, rows_for
from .result import CUTS, Result, read_results

PUBLISHED_CUT = 5  # the paper has nDCG@5 only


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
    check_style(style)
    results = read_results(folder)
    if style == "csv":
        return write_table(_list_scores(results), style)
    return "\n".join(write_table(table, style) for table in make_tables(results))


def list_means(results: Sequence[Result]) -> list[str]:
    """Return lines with the scores of each task, and of its subsets, and the mean of each benchmark."""
    labels = list(dict.fromkeys(result.label for result in results))
    lines = []
    for label in labels:
        if len(labels) > 1:
            lines.append(f"with {label} slots:")
        lines += _list_means([result for result in results if result.label == label])
    return lines


def _list_means(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        if len(result.subsets) > 1:
            lines += [f"  {name}: {_show_ndcg(subset.ndcg)}" for name, subset in result.subsets.items()]
        lines.append(f"{result.task}: {_show_ndcg(result.ndcg)}")
    for benchmark, same in _by_benchmark(results).items():
        if len(same) > 1:
            means = {cut: sum(result.ndcg[cut] for result in same) / len(same) for cut in CUTS}
            lines.append(f"{benchmark}, mean of {len(same)} tasks: {_show_ndcg(means)}")
    return lines


def _show_ndcg(ndcg: dict[int, float]) -> str:
    return "  ".join(f"nDCG@{cut} {100 * value:.2f}" for cut, value in ndcg.items())


def _by_benchmark(results: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.benchmark, []).append(result)
    return groups


def make_tables(results: Sequence[Result]) -> list[Table]:
    """Make a table for each benchmark and metric, then the seeds beside each other where there are several."""
    tables = []
    for benchmark, same in _by_benchmark(results).items():
        for cut in CUTS:
            rows = _own_rows(same, cut)
            tables.append(_make_table(benchmark, cut, rows))
            tables += _make_differences(benchmark, cut, rows)
    return tables


def _make_differences(benchmark: str, cut: int, rows: list[Row]) -> list[Table]:
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
    title = f"{benchmark}, nDCG@{cut}: mean over seeds, minus {first.method} ({first.vectors})"
    return [Table(title, ["method", *tasks, "avg"], lines)]


def _own_rows(results: Iterable[Result], cut: int) -> list[Row]:
    """Group results into rows: one for each model and setting, with its seeds together."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[f"{result.model}, {result.label}", result.counts_text].append(result)
    rows = []
    for (method, counts), same in groups.items():
        runs = _complete_runs(same, cut)
        scores = {task: [run[task] for run in runs if task in run] for task in runs[0]}
        average = [statistics.mean(run.values()) for run in runs]
        rows.append(Row(method, counts, "yours", scores, average))
    return rows


def _complete_runs(results: Iterable[Result], cut: int) -> list[dict[str, float]]:
    """Return the scores of each run by task, in percent; a run that was stopped counts for nothing."""
    runs: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for result in results:
        runs[result.seed, result.weights][result.task] = 100 * result.ndcg[cut]
    most = max(len(scores) for scores in runs.values())
    return [scores for scores in runs.values() if len(scores) == most]


def _published(benchmark: str, cut: int) -> list[Row]:
    """Return the rows of the paper, which has nDCG@5 of complete benchmarks."""
    if benchmark not in TASKS or cut != PUBLISHED_CUT:
        return []
    rows = []
    for row in rows_for(benchmark):
        counts = [str(count) if count is not None else "-" for count in (row.query_vectors, row.page_vectors)]
        method = f"{row.method} ({row.backbone})" if row.backbone else row.method
        if len(row.seeds) > 1:
            method += f", mean of {len(row.seeds)} seeds"
        scores = {task: [score] for task, score in row.scores.items()}
        rows.append(Row(method, "/".join(counts), row.source, scores, [statistics.mean(row.scores.values())]))
    return rows


def _make_table(benchmark: str, cut: int, own: list[Row]) -> Table:
    """Make one table, best average first, with the gap to the best; rows of some tasks only have no rank."""
    tasks = _list_tasks(benchmark, own)
    ranked = [*(row for row in own if row.has(tasks)), *_published(benchmark, cut)]
    ranked.sort(key=lambda row: -row.mean())
    lines = []
    for place, row in enumerate(ranked, start=1):
        gap = row.mean() - ranked[0].mean()
        lines.append([str(place), *_line(row, tasks), _show(row.average), f"{gap:+.1f}"])
    for row in own:
        if not row.has(tasks):
            lines.append(["-", *_line(row, tasks), "-", "-"])
    heads = ["rank", "method", "vectors", "source", *tasks, "avg", "gap"]
    return _drop_empty(Table(f"{benchmark}, nDCG@{cut}", heads, lines))


def _drop_empty(table: Table) -> Table:
    """Return a table without the columns in which no row has anything."""
    used = [place for place in range(len(table.heads)) if any(row[place] != "-" for row in table.rows)]
    rows = [[row[place] for place in used] for row in table.rows]
    return Table(table.title, [table.heads[place] for place in used], rows)


def _list_tasks(benchmark: str, rows: Iterable[Row]) -> list[str]:
    """Return the tasks of a benchmark; sets of one's own are all that some row has."""
    if benchmark in TASKS:
        return list(TASKS[benchmark])
    tasks: dict[str, None] = {}
    for row in rows:
        tasks |= dict.fromkeys(row.scores)
    return list(tasks)


def _line(row: Row, tasks: Iterable[str]) -> list[str]:
    return [row.method, row.vectors, row.source, *(_show(row.scores.get(task, [])) for task in tasks)]


def _show(values: Sequence[float]) -> str:
    """Show a score, or the mean and sample standard deviation of several."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def _list_scores(results: Iterable[Result]) -> Table:
    """Make one row for each score: for other programs."""
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
