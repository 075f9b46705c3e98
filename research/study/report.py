"""The report of a study, in Markdown with figures, from its rows alone: every number and every verdict is computed."""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from randslot.errors import UsageError
from randslot.evaluation.compare import DRAWS, LEVEL, judge
from randslot.model.reader import SIDES, Side
from randslot.plots import draw_budgets, draw_readouts, draw_winners
from randslot.tables import Cell, Table, write_table

from .beside import read_other
from .claims import (
    CONFIRMED,
    CONTRADICTED,
    EXTRA_RULE,
    LARGE,
    NOISE,
    RULE,
    SMALL,
    Claim,
    Key,
    judge_claims,
    judge_crossover,
    judge_extra,
    paper_average,
    paper_budgets,
    paper_seeds,
    paper_value,
)
from .measures import FULL, measure_rows
from .plan import BASE, BUDGET, METHOD, MOST, STRATEGIES, Study, make_rule, read_choice
from .rows import COLUMNS, SINGLES, Inference, Row, read_rows

ZEROS = "RS-Z"  # random slots in training, zeros at inference
BACKBONES = (SMALL, LARGE)
COUNTS = range(1, MOST + 1)
PLACES = range(1, BUDGET + 1)
LINES = 7  # that a picture has colours for
VERDICTS = {CONFIRMED: "are confirmed here", CONTRADICTED: "are contradicted", NOISE: "are within noise"}


def write_report(study: Study) -> Path:
    """Write the report and its figures, and return its path.

    Errors: UsageError if rows are missing, or the files cannot be written.
    """
    report = Report(study)
    file = Path(study.report)
    images = file.parent / "images"
    try:
        images.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            for name, draw in report.figures().items():
                draw(Path(folder, f"{name}.svg"))
                shutil.copyfile(Path(folder, f"{name}.svg"), images / f"{file.stem}-{name}.svg")
        file.write_text(report.make_text(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    return file


class Report:
    """All that the report says, from the rows of a study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.rows = read_rows(study)
        self.choice = read_choice(study)
        self.found = measure_rows(self.rows)
        self.claims = judge_claims(self.found)
        self.other = read_other(study)
        self.beside = [self.other.name] if self.other else []  # as a column of tables
        # The five strategies as they are trained, then zeros at inference, then extras.
        self.keys: list[Key] = [(arm, arm) for arm in STRATEGIES]
        self.keys.append((METHOD, BASE))
        for extra in study.extra:
            self.keys += [key for key in self.found if key[0] == extra.name]

    def name(self, key: Key) -> str:
        arm, inference = key
        if key == (METHOD, BASE):
            return ZEROS
        title = self.study.arms[arm]
        return f"{title}, zeros at inference" if arm not in STRATEGIES and inference == BASE else title

    def of(self, key: Key) -> list[Row]:
        """Return the rows of an arm, seed by seed."""
        return [row for row in self.rows if row.arm == key[0]]

    def records(self, key: Key) -> list[Inference]:
        """Return what the rows of an arm say about one inference, seed by seed."""
        return [row.record.inference[key[1]] for row in self.of(key)]

    def make_text(self) -> str:
        sections = [
            self.begin(),
            self.verdict(),
            self.strategies(),
            self.budgets(),
            self.winners(),
            self.readouts(),
            *self.extras(),
            self.choosing(),
            self.runs(),
        ]
        return "\n".join(sections)

    # -- words and tables

    def begin(self) -> str:
        study, first = self.study, self.rows[0].record
        counts, lists = [], []
        for verdict, words in VERDICTS.items():
            claims = [claim.question.text for claim in self.claims if claim.verdict == verdict]
            if claims:
                counts.append(f"{len(claims)} {words}")
                lists.append(f"{verdict.capitalize()}: *{'; '.join(claims)}*.")
        queries = sum(task.queries for task in first.tasks.values())
        pages = sum(task.pages for task in first.tasks.values())
        rows = Path(os.path.relpath(study.results, Path(study.report).parent)).as_posix()
        start = "the same backbone" if first.settings["backbone"] else "random weights, others for each seed"
        kind = "sets" if study.sets else "layouts"
        claims_counted, claims_listed = ", ".join(counts), "\n\n".join(lists)
        other = self.other.describe(Path(study.report)) if self.other else ""
        note = f"{study.note}\n\n" if study.note else ""
        return _fill(f"""# {study.title}

Does what the paper found on its 3B and 4B models hold here? Five strategies, seeds {_list(study.seeds)},
{first.steps:,} steps from {start}, K = {BUDGET}, the same order of data for all strategies of a seed;
{queries:,} questions about {pages:,} held-out pages of {len(first.tasks)} {kind}, each of which is a task.

{note}**Of {len(self.claims)} claims of the paper, {claims_counted}.** {other}

{claims_listed}

This page is written from [rows]({rows}), verdicts included, by `python -m research.study`.
""")

    def verdict(self) -> str:
        lines: list[list[Cell]] = []
        for claim in self.claims:
            digits = 3 if claim.question.group == "winners" else 2
            paper = [_signed(claim.question.paper[name], 3 if digits == 3 else 1) for name in BACKBONES]
            other = self.other.judged(claim.question.text, digits) if self.other else []
            lines.append([claim.question.text, *paper, *other, *self._judged(claim, digits)])
        there = [*self.beside, "verdict there"] if self.other else []
        heads = ["the paper's claim", "3B", "4B", *there, "here", f"{LEVEL} % interval", "seeds", "verdict"]
        table = Table("", heads, lines)
        study, crossover = self.study, judge_crossover(self.claims)
        ends = [_signed(one.difference, 1) for one in self.claims if one.question.group == "budget"]
        return _fill(f"""## Which of the paper's claims are confirmed

{RULE} Intervals are of a paired bootstrap ({DRAWS:,} draws of seeds, and of queries within
tasks). Differences are RandSlot's value minus the other's, in points of nDCG@5, but for H and U. "Seeds" is how many
agree with the claim. The paper's diagnostics are of its 3B model.

Read *confirmed* as "all {len(study.seeds)} seeds agree, beyond the noise of queries". With so few seeds the ends of an
interval lie about at the worst seed and the best one; were seeds the only noise, all {len(study.seeds)} would agree by
luck in one case of {2 ** (len(study.seeds) - 1)}. Claims that differ in the budget only are nearly one claim.

{_markdown(table)}
The crossover, Zero-Feedback ahead with one vector and RandSlot with {MOST}: **{crossover}**
(RandSlot minus Zero-Feedback: {ends[0]} with one vector, {ends[-1]} with {MOST}).
""")

    def _judged(self, claim: Claim, digits: int) -> list[Cell]:
        interval = f"{_signed(claim.low, digits)} to {_signed(claim.high, digits)}"
        agreeing = f"{claim.agreeing} of {len(self.study.seeds)}"
        verdict = claim.verdict if claim.verdict == NOISE else f"**{claim.verdict}**"
        return [_signed(claim.difference, digits), interval, agreeing, verdict]

    def strategies(self) -> str:
        tasks = list(self.rows[0].record.tasks)
        lines: list[list[Cell]] = []
        for key in self.keys:
            name, scores = self.name(key), [_spread(self.task_scores(key, FULL, task)) for task in tasks]
            paper = [paper_average("table4" if name == ZEROS else "table3", backbone, name) for backbone in BACKBONES]
            other = [self.other.average(key, FULL)] if self.other else []
            lines.append([name, *scores, _spread(self.found[key].seeds(FULL)), *self._minus_base(key), *paper, *other])
        heads = ["method", *tasks, "avg", "minus Zero-Feedback", f"{LEVEL} % interval", "3B", "4B", *self.beside]
        seeds = ", ".join(f"{method} {score:.2f} ± {spread:.2f}" for method, (score, spread) in paper_seeds().items())
        return _fill(f"""## Strategies

nDCG@5 in percent with {BUDGET} vectors a side: mean and sample standard deviation over seeds. {ZEROS} is RandSlot with
zeros in place of random slots at inference. 3B and 4B are the paper's averages on ViDoRe V3, other tasks: compare
differences, not levels. With several seeds the paper has only two of its 3B models: {seeds}.

{_markdown(Table("", heads, lines))}""")

    def task_scores(self, key: Key, column: str, task: str) -> list[float]:
        """Return the score of one task in percent, seed by seed."""
        place = COLUMNS.index(column)
        return [100 * float(row.queries[key[1]][task][:, place].mean()) for row in self.of(key)]

    def _minus_base(self, key: Key) -> list[Cell]:
        if key == (BASE, BASE):
            return [None, None]
        ours, base = self.found[key], self.found[BASE, BASE]
        difference = mean(ours.seeds(FULL)) - mean(base.seeds(FULL))
        difference, low, high, _ = judge(difference, ours.draws(FULL) - base.draws(FULL))
        return [_signed(difference, 2), f"{_signed(low, 2)} to {_signed(high, 2)}"]

    def budgets(self) -> str:
        lines: list[list[Cell]] = []
        sides: list[list[Cell]] = []
        for key in self.keys:
            lines.append([self.name(key), *(_spread(self.found[key].seeds(f"k{num}")) for num in COUNTS)])
            for side in SIDES:
                sides.append([self.name(key), side, *_means([record.budgets[side] for record in self.records(key)])])
        for method in STRATEGIES.values():
            if scores := paper_budgets(method):
                lines.append([f"the paper's 3B: {method}", *scores])
        lines += [[f"{self.beside[0]}: {method}", *scores] for method, scores in self._other_budgets().items()]
        counts = list(map(str, COUNTS))
        return f"""## Budgets

Trained with {BUDGET} vectors a side, judged with 1 to {MOST}. Bands in the picture are the sample standard deviation
over seeds, on either side of the mean. Extras with zeros at inference are in the tables only.

{self._image("budgets", "nDCG@5 by budget, here and in the paper")}

{_markdown(Table("", ["vectors a side", *counts], lines))}
One side alone, {BUDGET} vectors on the other (means over seeds):

{_markdown(Table("", ["method", "side that varies", *counts], sides))}"""

    def _other_budgets(self) -> dict[str, list[float]]:
        """Return the sweeps of the study that stands beside this one, by name of the arm."""
        if self.other is None:
            return {}
        keys = [key for key in self.keys if key in self.other.found and (key[0] in STRATEGIES or key[1] != BASE)]
        return {self.name(key): [mean(self.other.found[key].seeds(f"k{num}")) for num in COUNTS] for key in keys}

    def winners(self) -> str:
        lines: list[list[Cell]] = []
        for key in self.keys:
            cells = [_spread(self.found[key].seeds(measure), 3) for measure in ("H", "U")]
            ties = sum(record.ties for record in self.records(key))
            paper = [paper_value("figure4", self.name(key), column) for column in ("H", "U")]
            other = [self.other.average(key, measure) for measure in ("H", "U")] if self.other else []
            lines.append([self.name(key), *cells, ties, *paper, *other])
        there = [f"{name}, {measure}" for name in self.beside for measure in ("H", "U")]
        table = Table("", ["method", "H", "U", "ties", "the paper's H", "the paper's U", *there], lines, digits=3)
        return f"""## Winners

Which page readout (d) is nearest to each query readout (q), over all right pages; pooled over seeds in the picture.
H is 1 when all page readouts win alike and 0 when one wins all; U is how many different ones win within a pair.
The picture has the five strategies; {ZEROS} and extras are in the table only.

{self._image("winners", "Shares of wins by page and query readout")}

{_markdown(table)}"""

    def readouts(self) -> str:
        heads = ["method", "side", *(f"only r{k}" for k in PLACES), *(f"lost without r{k}" for k in PLACES)]
        gain_heads = ["method", "joint-use gain", "mean of the tasks' gains", "the paper's 3B", "its mean of tasks"]
        gain_heads += [f"{name}, joint-use gain" for name in self.beside]
        return f"""## Readouts

nDCG@5 with only one readout of a side, and points lost without it, the other side whole (means over seeds; negative:
it is better without). The picture has the five strategies; {ZEROS} and extras are in the tables only.

{self._image("readouts", "Scores without each readout, and gains of joint use")}

{_markdown(Table("", heads, [*self._interventions(), *self._paper_interventions()], digits=2))}
Joint use: points that all page readouts gain over the single one that is best over all tasks, and over the one that is
best in each task. The best one is chosen on the same results: a diagnosis.

{_markdown(Table("", gain_heads, self._gains(), digits=2))}"""

    def _interventions(self) -> list[list[Cell]]:
        lines: list[list[Cell]] = []
        for key in self.keys:
            records = self.records(key)
            for side in SIDES:
                only = _means([record.only[side] for record in records])
                lost = [self._full(key) - score for score in self._without(key, side)]
                lines.append([self.name(key), side, *only, *lost])
        return lines

    def _paper_interventions(self) -> list[list[Cell]]:
        kinds = [*(f"single r{k}" for k in PLACES), *(f"removal r{k}" for k in PLACES)]
        lines: list[list[Cell]] = []
        for method in STRATEGIES.values():
            for side in SIDES:
                values = [paper_value("table13", method, kind, side) for kind in kinds]
                if values[0] is not None:
                    lines.append([f"the paper's 3B: {method}", side, *values])
        return lines

    def _gains(self) -> list[list[Cell]]:
        lines: list[list[Cell]] = []
        for key in self.keys:
            by_seed = _means(list(self._task_gains(key).values()))
            paper = [paper_value("figure5", self.name(key), column) for column in ("joint-use gain", "mean task gain")]
            other = [self.other.average(key, "gain")] if self.other else []
            gain = _spread(self.found[key].seeds("gain"), 2)
            lines.append([self.name(key), gain, _spread(by_seed, 2), *paper, *other])
        return lines

    def _full(self, key: Key) -> float:
        return mean(record.full for record in self.records(key))

    def _without(self, key: Key, side: Side) -> list[float]:
        return _means([record.without[side] for record in self.records(key)])

    def _task_gains(self, key: Key) -> dict[str, list[float]]:
        """Return by task, seed by seed, what all page readouts gain over the one that is best there."""
        gains = {}
        for task in self.rows[0].record.tasks:
            singles = zip(*(self.task_scores(key, column, task) for column in SINGLES), strict=True)
            full = self.task_scores(key, FULL, task)
            gains[task] = [all_of_them - max(single) for all_of_them, single in zip(full, singles, strict=True)]
        return gains

    def extras(self) -> list[str]:
        sections = []
        for extra in self.study.extra:
            known = extra.name in self.choice.get("hypotheses", {})
            when = "Written down before the runs" if known else "No record says that this was written before the runs"
            judged = judge_extra(self.study, extra, self.found)
            if judged is None:
                sections.append(
                    _fill(f"## Extra: {extra.title}\n\n{when}: *{extra.hypothesis}* Its runs are not finished.\n")
                )
                continue
            claims, verdict = judged
            there = self.other.verdict(extra.name) if self.other else None
            other = f" In {self.beside[0]}: {there}." if there else ""
            lines = [[claim.question.text, *self._judged(claim, 2)] for claim in claims]
            heads = ["budget", "difference", f"{LEVEL} % interval", "seeds", "verdict"]
            sections.append(
                _fill(f"""## Extra: {extra.title}

{when}: *{extra.hypothesis}* Here: **{verdict}**.{other}

{EXTRA_RULE}

{_markdown(Table("", heads, lines))}""")
            )
        if left := [name for name in self.choice.get("hypotheses", {}) if name not in self.study.arms]:
            sections.append(f"## Extras left out\n\nWritten down, and in the study no more: {', '.join(left)}.\n")
        return sections

    def choosing(self) -> str:
        rule = make_rule(self.study)
        low, high = rule["range"]
        most = rule.get("most_rise")
        rise = f", and more than with the length before it, by at most {most:g} points" if most else ""
        words = _fill(f"""## How length and pages were chosen

On {STRATEGIES[BASE]} alone (seed {rule["seed"]}) and on validation pages, before the study trained any other strategy,
so that there is room above and below: of {self._choices(rule)}, in this order, the first with which it scores {low} to
{high} nDCG@5{rise}. Nothing was tuned afterwards, and nothing for one strategy alone. Rate, batch and data are those of
{self._source()}.
""")
        if "steps" not in self.choice:
            return f"{words}\nNo record of the choice is among the rows.\n"
        keys = [key for key in ("candidate", "steps", "reports") if key in self.choice]
        lines: list[list[Cell]] = []
        for tried in self.choice["tried"]:
            is_chosen = all(tried[key] == self.choice[key] for key in keys)
            lines.append([*tried.values(), "chosen" if is_chosen else ""])
        for earlier in self.choice.get("before", []):
            changed = [f"{name} = {value}" for name, value in earlier["rule"].items() if value != rule.get(name)]
            note = f"before, with {', '.join(changed) or 'other settings'}"
            lines += [[*tried.values(), note] for tried in earlier["tried"]]
        if self.choice.get("before"):
            words += "\nThe rule was changed on the way, when what the table calls *before* had been tried.\n"
        heads = ["reports of each layout" if key == "reports" else key for key in keys]
        table = Table("", [*heads, "nDCG@5, validation", ""], lines)
        return f"{words}\n{_markdown(table)}"

    def _source(self) -> str:
        """Return in words what decides rate, batch and data."""
        changed = {*self.study.set, *(key for candidate in self.study.candidates for key in candidate.set)}
        where = " and of the study's file" if changed & {"learning_rate", "batch", "data"} else ""
        return f"the recipe `{self.study.recipe}`{where}"

    def _choices(self, rule: dict[str, Any]) -> str:
        """Return in words what could be chosen."""
        words = f"{_list(rule['lengths'])} steps"
        if "candidates" in rule:
            words = f"{', '.join(rule['candidates'])}, and for each of {words}"
        if "reports" in rule:
            words += f", and for each of {_list(rule['reports'])} reports a layout"
        return words

    def runs(self) -> str:
        lines: list[list[Cell]] = []
        for row in self.rows:
            record = row.record
            key = (row.arm, self.study.inferences(row.arm)[0])
            score = self.found[key].seeds(FULL)[self.study.seeds.index(row.seed)]
            minutes = [record.training_seconds / 60, record.evaluation_seconds / 60]
            lines.append([record.run, score, record.loss, *minutes, (record.commit or "-")[:7], record.date])
        machine = self.rows[0].record.machine
        usual = median((row.record.training_seconds + row.record.evaluation_seconds) / 60 for row in self.rows)
        heads = ["run", "nDCG@5", "loss at the end", "training, min", "evaluation, min", "commit", "date"]
        return _fill(f"""## Runs

{_markdown(Table("", heads, lines, digits=2))}
{machine["processor"]}, {machine["threads"]} thread a run, {self.study.side_by_side} runs side by side, torch
{machine["torch"]}. Minutes are by the clock: a run that was held up has waited too, and one that was interrupted has
those since it went on. At the median of {usual:.0f} minutes a run, all {len(lines)} take about
{usual * len(lines) / self.study.side_by_side / 60:.1f} hours; the choice comes on top. A commit is missing where the
code did not lie in a repository. All settings of a run are in its row.
""")

    def _image(self, name: str, text: str) -> str:
        return f"![{text}](images/{Path(self.study.report).stem}-{name}.svg)"

    # -- figures

    def figures(self) -> dict[str, Callable[[Path], None]]:
        return {"budgets": self.draw_budgets, "winners": self.draw_winners, "readouts": self.draw_readouts}

    def draw_budgets(self, file: Path) -> None:
        def line(key: Key, summary: Callable[[list[float]], float]) -> list[float]:
            return [summary(self.found[key].seeds(f"k{num}")) for num in COUNTS]

        # Zeros at inference only for RandSlot itself, so that extras have a colour too.
        keys = [key for key in self.keys if key[0] in STRATEGIES or key[1] != BASE][:LINES]
        here, spread = ({self.name(key): line(key, summary) for key in keys} for summary in (mean, stdev))
        paper = {method: paper_budgets(method) for method in STRATEGIES.values() if paper_budgets(method)}
        panels = {"vectors a side": here, "vectors a side, from four on": here, "vectors a side, the paper's 3B": paper}
        spreads = dict.fromkeys(list(panels)[:2], spread)
        for name in self.beside:
            panels[f"vectors a side, {name}"] = self._other_budgets()
        draw_budgets(panels, [1, 4, 1, 1][: len(panels)], file, spreads)

    def draw_winners(self, file: Path) -> None:
        panels = {}
        for key in self.keys[: len(STRATEGIES)]:
            counts = np.sum([record.winners for record in self.records(key)], axis=0)
            shares = 100 * (counts / counts.sum(1, keepdims=True)).T
            entropy, spread = (mean(self.found[key].seeds(measure)) for measure in ("H", "U"))
            panels[f"{self.name(key)}\nH {entropy:.3f}  U {spread:.3f}"] = shares.tolist()
        draw_winners(panels, file)

    def draw_readouts(self, file: Path) -> None:
        keys = self.keys[: len(STRATEGIES)]
        full = {self.name(key): self._full(key) for key in keys}
        without: dict[str, dict[str, list[float]]] = {}
        for side in SIDES:
            without[side] = {self.name(key): self._without(key, side) for key in keys}
        gains = {}
        for key in keys:
            by_task = {task: mean(values) for task, values in self._task_gains(key).items()}
            gains[self.name(key)] = by_task | {"all, one fixed": mean(self.found[key].seeds("gain"))}
        draw_readouts(full, without, gains, file)


def _markdown(table: Table) -> str:
    """Return a table without its title, which a section of the report has already."""
    return write_table(table, "md").partition("\n\n")[2]


def _fill(text: str) -> str:
    """Break the lines of paragraphs anew, now that numbers stand in them; all else stays."""
    filled = []
    for part in text.split("\n\n"):
        if part.startswith(("#", "|", "!", "\n")) or "\n|" in part:
            filled.append(part)
        else:
            end = "\n" if part.endswith("\n") else ""
            filled.append(textwrap.fill(part, 120, break_on_hyphens=False, break_long_words=False) + end)
    return "\n\n".join(filled)


def _means(lists: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of the first values of some lists, of the second ones, and so on."""
    return [mean(values) for values in zip(*lists, strict=True)]


def _spread(values: Sequence[float], digits: int = 1) -> str:
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def _signed(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:+.{digits}f}"


def _list(values: Iterable[int]) -> str:
    *others, last = [f"{value:,}" if value >= 10_000 else str(value) for value in values]
    return f"{', '.join(others)} and {last}" if others else last
