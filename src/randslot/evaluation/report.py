"""The paper's tables with your results added, as Markdown, CSV or LaTeX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from ..errors import UsageError
from ..tables import Cell, Style, Table, write_table
from .published import TASKS, rows_for
from .result_files import CUTS, Result, choose_base, read_results


class Score(NamedTuple):
    """A score in percent: the mean over runs, with the sample standard deviation if there are several."""

    mean: float
    deviation: float | None = None
    runs: int = 1

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class ReportRow:
    """A method with its vectors and scores by task. slots: the training strategy of your model."""

    method: str
    vectors: str
    source: str
    scores: dict[str, Score]
    average: Score
    slots: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.method} ({self.vectors})"


def make_report(folder: Path, style: Style = "md", base: str | None = None) -> str:
    """Return the tables of all results in a folder. base: see `make_tables`."""
    results = read_results(folder)
    if style == "csv":
        return write_table(_list_scores(results), style)
    return "\n".join(write_table(table, style) for table in make_tables(results, base))


def list_means(results: Sequence[Result]) -> list[str]:
    """Return lines with the scores of each task and subset, and the mean of each benchmark."""

    def show(ndcg: dict[int, float]) -> str:
        return "  ".join(f"nDCG@{cut} {100 * value:.2f}" for cut, value in ndcg.items())

    by_setting: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_setting[result.how].append(result)
    lines = []
    for how, same in by_setting.items():
        if len(by_setting) > 1:
            lines.append(f"with {how} slots:")
        for result in same:
            if len(result.subsets) > 1:
                lines += [f"  {name}: {show(subset.ndcg)}" for name, subset in result.subsets.items()]
            lines.append(f"{result.task}: {show(result.ndcg)}")
        for benchmark, tasks in _by_benchmark(same).items():
            if len(tasks) > 1:
                means = {cut: mean(task.ndcg[cut] for task in tasks) for cut in CUTS}
                lines.append(f"{benchmark}, mean of {len(tasks)} tasks: {show(means)}")
    return lines


def make_tables(results: Sequence[Result], base: str | None = None) -> list[Table]:
    """Make a table per benchmark and metric, and tables of differences between settings with several runs.

    base: the baseline setting to subtract, by its name or a part of it. By default, as in the paper: a model trained
    with zero slots, else one with zeros at inference, else the first.
    """
    tables = []
    has_base = False
    for benchmark, same in _by_benchmark(results).items():
        for cut in CUTS:
            rows = _own_rows(same, cut)
            tables.append(_rank(benchmark, cut, rows))
            several = {row.name: row for row in rows if row.average.runs > 1}
            if len(several) > 1:
                has_base = True
                tables.append(_subtract(benchmark, cut, several, base))
    if base and not has_base:
        raise UsageError(f"--base {base!r}: differences need two settings with several runs each")
    return tables


def _by_benchmark(results: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.benchmark].append(result)
    return groups


def _own_rows(results: Iterable[Result], cut: int) -> list[ReportRow]:
    """Group results into one row per model and setting, over all its runs.

    Incomplete runs, with fewer tasks than others of the row, are skipped.
    """
    groups: dict[tuple[str, str], dict[tuple[int, str], dict[str, float]]] = {}
    slots: dict[tuple[str, str], str] = {}
    for result in results:
        key = (f"{result.model}, {result.how}", result.counts_text)
        runs = groups.setdefault(key, {})
        runs.setdefault((result.seed, result.weights), {})[result.task] = 100 * result.ndcg[cut]
        slots[key] = result.settings.get("slots", "")
    rows = []
    for (method, counts), runs in groups.items():
        num_tasks = max(map(len, runs.values()))
        values: dict[str, list[float]] = defaultdict(list)
        means = []
        for run in runs.values():
            if len(run) == num_tasks:
                means.append(mean(run.values()))
                for task, value in run.items():
                    values[task].append(value)
        scores = {task: _average(each) for task, each in values.items()}
        rows.append(ReportRow(method, counts, "yours", scores, _average(means), slots[method, counts]))
    return rows


def _average(values: Sequence[float]) -> Score:
    return Score(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def _published_rows(benchmark: str, cut: int) -> list[ReportRow]:
    """Return the paper's rows, which have nDCG@5 of complete benchmarks only."""
    if benchmark not in TASKS or cut != 5:
        return []
    rows = []
    for row in rows_for(benchmark):
        method = f"{row.method} ({row.backbone})" if row.backbone else row.method
        if len(row.seeds) > 1:
            method += f", mean of {len(row.seeds)} seeds"
        runs = max(len(row.seeds), 1)
        scores = {task: Score(score, row.deviations.get(task), runs) for task, score in row.scores.items()}
        average = Score(row.averages[benchmark], row.average_deviations.get(benchmark), runs)
        found = mean(row.scores.values())
        note = ""
        if abs(found - average.mean) > 0.1:  # more than rounding explains
            note = f"the paper prints an average of {average}; its scores average {found:.1f}"
        vectors = f"{row.query_vectors or '-'}/{row.page_vectors or '-'}"
        rows.append(ReportRow(method, vectors, row.source, scores, average, note=note))
    return rows


def _list_tasks(benchmark: str, rows: Iterable[ReportRow]) -> list[str]:
    """Return the tasks of a benchmark; for your own sets, those of all rows."""
    if benchmark in TASKS:
        return list(TASKS[benchmark])
    tasks: dict[str, Score] = {}
    for row in rows:
        tasks |= row.scores
    return list(tasks)


def _rank(benchmark: str, cut: int, own: list[ReportRow]) -> Table:
    """Make one table, best average first, with the gap to the best; incomplete rows have no rank."""
    tasks = _list_tasks(benchmark, own)
    complete = [row for row in own if row.scores.keys() >= set(tasks)]
    partial = [row for row in own if row not in complete]
    complete += _published_rows(benchmark, cut)
    complete.sort(key=lambda row: -row.average.mean)
    lines, notes = [], []
    for place, row in enumerate([*complete, *partial], start=1):
        ends = ["-", "-", "-"]
        if place <= len(complete):
            ends = [str(place), str(row.average), f"{row.average.mean - complete[0].average.mean:+.1f}"]
        scores = [str(row.scores.get(task, "-")) for task in tasks]
        lines.append([ends[0], row.method, row.vectors, row.source, *scores, *ends[1:]])
        if row.note:
            notes.append(f"{row.method}: {row.note}.")
    heads = ["rank", "method", "vectors", "source", *tasks, "avg", "gap"]
    return Table(f"{benchmark}, nDCG@{cut}", heads, lines, note=" ".join(notes)).drop_empty()


def _subtract(benchmark: str, cut: int, rows: dict[str, ReportRow], base: str | None) -> Table:
    """Make the table of differences between means over runs, as in the paper's appendix."""
    usual = sorted(rows, key=lambda name: (rows[name].slots != "zero", not rows[name].method.endswith(", zero")))
    name = choose_base(base, usual)
    first = rows[name]
    tasks = list(TASKS.get(benchmark, first.scores))
    for row in rows.values():
        tasks = [task for task in tasks if task in row.scores]
    lines = []
    for other, row in rows.items():
        if row is not first:
            differences = [row.scores[task].mean - first.scores[task].mean for task in tasks]
            lines.append([other, *(f"{difference:+.2f}" for difference in [*differences, mean(differences)])])
    return Table(f"{benchmark}, nDCG@{cut}: mean over seeds, minus {name}", ["method", *tasks, "avg"], lines)


def _list_scores(results: Iterable[Result]) -> Table:
    """Make one row per score, for other programs."""
    rows: list[list[Cell]] = []
    for benchmark, same in _by_benchmark(results).items():
        for cut in CUTS:
            own = _own_rows(same, cut)
            tasks = _list_tasks(benchmark, own)
            for row in [*own, *_published_rows(benchmark, cut)]:
                key = [benchmark, f"nDCG@{cut}", row.method, row.vectors]
                for task, score in row.scores.items():
                    rows.append([*key, row.source, task, *score])
                if row.scores.keys() >= set(tasks):
                    rows.append([*key, f"{row.source} ({row.note})" if row.note else row.source, "avg", *row.average])
    heads = ["benchmark", "metric", "method", "vectors", "source", "task", "mean", "deviation", "runs"]
    return Table("scores", heads, rows)
