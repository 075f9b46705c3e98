"""Write the report of a study from its rows: Markdown and figures."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch

from randslot.evaluation.analysis import Readouts, Winners, list_gains, list_readouts, list_winners, macro
from randslot.evaluation.compare import DRAWS, LEVEL, judge
from randslot.model.reader import SIDES, Side
from randslot.plots import draw_budgets, draw_readouts, draw_winners
from randslot.tables import Cell, Table, write_table

from .claims import (
    CONFIRMED,
    CONTRADICTED,
    EXTRA_RULE,
    FULL,
    NOISE,
    RULE,
    Claim,
    Key,
    ask_paper,
    judge_extra,
    judge_question,
    measure_rows,
    paper_averages,
    paper_budgets,
    read_rows,
)
from .plan import BASE, BUDGET, MAX_BUDGET, METHOD, STRATEGIES, Study
from .run import COLUMNS, SINGLES

ZEROS = "RS-Z"  # random slots in training, zeros at inference


def write_report(study: Study) -> Path:
    """Write the report and its figures, and return its path."""
    report, file = Report(study), Path(study.report)
    images = file.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    report.draw_budgets(images / f"{file.stem}-budgets.svg")
    shares: dict[str, list[list[float]]] = {}
    full: dict[str, float] = {}
    without: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    gains: dict[str, dict[str, float]] = {}
    for key in report.keys[: len(STRATEGIES)]:
        name, winners, readouts = report.name(key), report.winners(key), report.readouts(key)
        entropy, spread = mean(one.entropy for one in winners), mean(one.spread for one in winners)
        pooled = Winners(name, torch.stack([one.counts for one in winners]).sum(0), 0, 0, 0)
        shares[f"{name}\nH {entropy:.3f}  U {spread:.3f}"] = (100 * pooled.shares).tolist()
        full[name] = mean(macro(one.full) for one in readouts)
        for side in SIDES:
            scores = np.mean([[macro(scores) for scores in one.without[side]] for one in readouts], axis=0)
            without[side][name] = scores.tolist()
        by_seed = [one.task_gains() | {"all, one fixed": one.joint_gain()} for one in readouts]
        gains[name] = {task: mean(one[task] for one in by_seed) for task in by_seed[0]}
    draw_winners(shares, images / f"{file.stem}-winners.svg")
    draw_readouts(full, without, gains, images / f"{file.stem}-readouts.svg")
    file.write_text(report.make_text(), encoding="utf-8")
    return file


class Report:
    """The content of the report, from the rows of a study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.rows = read_rows(study)
        self.found = measure_rows(self.rows)
        self.claims = [judge_question(question, self.found) for question in ask_paper()]
        # The five strategies as trained, then zeros at inference, then extras.
        self.keys: list[Key] = [*((arm, arm) for arm in STRATEGIES), (METHOD, BASE)]
        self.keys += [key for key in self.found if key[0] not in STRATEGIES]

    def name(self, key: Key) -> str:
        """Return the name of an arm with an inference in tables."""
        if key == (METHOD, BASE):
            return ZEROS
        is_replaced = key[0] not in STRATEGIES and key[1] == BASE
        return self.study.arms[key[0]] + (", zeros at inference" if is_replaced else "")

    def records(self, key: Key) -> list[dict[str, Any]]:
        """Return the diagnostics of an arm with an inference, seed by seed."""
        return [row.record["inference"][key[1]] for row in self.rows if row.record["arm"] == key[0]]

    def columns(self, key: Key, *names: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return the sums over queries of columns by task, seed by seed: (S, C)."""
        rows = [row.lines[key[1]] for row in self.rows if row.record["arm"] == key[0]]
        places = [COLUMNS.index(name) for name in names]
        return {task: np.stack([lines[task][:, places].sum(0) for lines in rows]) for task in rows[0]}

    def winners(self, key: Key) -> list[Winners]:
        """Return the winners of an arm, seed by seed."""
        sums = np.sum(list(self.columns(key, "pairs", "distinct").values()), axis=0)
        found = []
        for seed, record, (pairs, distinct) in zip(self.study.seeds, self.records(key), sums, strict=True):
            counts, name = torch.tensor(record["winners"]), f"{self.name(key)}, seed {seed}"
            found.append(Winners(name, counts, int(pairs), record["ties"], int(distinct)))
        return found

    def readouts(self, key: Key) -> list[Readouts]:
        """Return the ablations of an arm, seed by seed; those of one page readout by task."""
        found = []
        for place, (seed, record) in enumerate(zip(self.study.seeds, self.records(key), strict=True)):
            full, singles = {}, {}
            for task, sums in self.columns(key, FULL, *SINGLES).items():
                full[task], *singles[task] = (
                    100 * sums[place] / self.rows[0].record["tasks"][task]["queries"]
                ).tolist()
            only: dict[Side, list[dict[str, float]]] = {}
            without: dict[Side, list[dict[str, float]]] = {}
            for side in SIDES:
                only[side] = [{"all": score} for score in record["only"][side]]
                without[side] = [{"all": score} for score in record["without"][side]]
            only["page"] = [{task: scores[place] for task, scores in singles.items()} for place in range(BUDGET)]
            found.append(Readouts(f"{self.name(key)}, seed {seed}", full, only, without))
        return found

    def make_text(self) -> str:
        """Return the whole report."""
        study, first, num_seeds = self.study, self.rows[0].record, len(self.study.seeds)
        queries, pages = (sum(task[key] for task in first["tasks"].values()) for key in ("queries", "pages"))
        start = "the same backbone" if first["settings"]["backbone"] else "random weights, which differ by seed"
        place = Path(os.path.relpath(study.results, Path(study.report).parent)).as_posix()
        seeds = f"{', '.join(map(str, study.seeds[:-1]))} and {study.seeds[-1]}"
        counts, lists = [], []
        for verdict in (CONFIRMED, CONTRADICTED, NOISE):
            claims = [claim.question.text for claim in self.claims if claim.verdict == verdict]
            counts.append(f"{len(claims)} are {verdict}")
            lists.append(f"{verdict.capitalize()}: *{'; '.join(claims)}*.")
        winners = [one for key in self.keys for one in self.winners(key)]
        readouts = [one for key in self.keys for one in self.readouts(key)]
        blocks = [
            f"# {study.title}",
            f"Do the paper's findings on its 3B and 4B models hold here? We trained five strategies with seeds {seeds} "
            f"for {first['steps']:,} steps from {start}, with K = {BUDGET}. All strategies of a seed see the data in "
            f"the same order. We evaluated them with {queries:,} questions about {pages:,} held-out pages of "
            f"{len(first['tasks'])} tasks.",
            study.note,
            f"**Of {len(self.claims)} claims of the paper, {', '.join(counts)}.**",
            *lists,
            f"`python -m research.study` generates this page, including verdicts, from [rows]({place}).",
            "## Which of the paper's claims are confirmed",
            RULE,
            f"Intervals come from a paired bootstrap: {DRAWS:,} resamples of seeds, and of queries within tasks. "
            "Differences are RandSlot's value minus the other's, in points of nDCG@5 except for H and U. \"Seeds\" "
            f"counts the seeds that agree with the claim. If seeds were the only noise, all {num_seeds} would agree by "
            f"chance in one case of {2 ** (num_seeds - 1)}. Claims that differ only in the budget are closely related. "
            "The paper's diagnostics are from its 3B model.",
            self._claims_table(),
            "## Strategies",
            f"nDCG@5 in percent with {BUDGET} vectors per side: mean and sample standard deviation over seeds. {ZEROS} "
            "is RandSlot with zeros instead of random slots at inference. 3B and 4B are the paper's averages on "
            "ViDoRe V3. Those tasks are different, so compare differences, not levels.",
            self._strategies_table(),
            "## Budgets",
            f"Models were trained with {BUDGET} vectors per side and evaluated with 1 to {MAX_BUDGET}. Bands show the "
            "standard deviation over seeds.",
            self._image("budgets", "nDCG@5 by budget, here and in the paper"),
            self._budgets_table(),
            "## Winners",
            "Counts are over all pairs of a query and a relevant page. The figure pools shares over seeds. H is 1 if "
            "all page readouts win equally often, and 0 if one always wins. U is the mean number of distinct winners "
            "per pair.",
            self._image("winners", "Shares of wins by page and query readout"),
            _markdown(list_winners(winners)),
            "## Readouts",
            "nDCG@5 with only one readout of a side, points lost without it, and the gain of all page readouts over "
            "the best single one. The best one is chosen on the same results, so the gain is only a diagnostic.",
            self._image("readouts", "Scores without each readout, and gains of joint use"),
            _markdown(list_readouts(readouts)),
            _markdown(list_gains(readouts)),
            *self._describe_extras(),
            "## Runs",
            *self._describe_runs(),
        ]
        filled = [block if block.startswith(("#", "|", "!")) else _fill(block) for block in blocks if block]
        return "\n\n".join(filled) + "\n"

    def _claims_table(self) -> str:
        lines: list[list[Cell]] = []
        for claim in self.claims:
            digits = 3 if claim.question.measure in ("H", "U") else 2
            paper = [_signed(value, 3 if digits == 3 else 1) for value in claim.question.paper]
            lines.append([claim.question.text, *paper, *self._judged(claim, digits)])
        heads = ["claim of the paper", "3B", "4B", "here", f"{LEVEL} % interval", "seeds", "verdict"]
        return _markdown(Table("", heads, lines))

    def _judged(self, claim: Claim, digits: int) -> list[Cell]:
        interval = f"{_signed(claim.low, digits)} to {_signed(claim.high, digits)}"
        verdict = claim.verdict if claim.verdict == NOISE else f"**{claim.verdict}**"
        return [_signed(claim.difference, digits), interval, f"{claim.agreeing} of {len(self.study.seeds)}", verdict]

    def _strategies_table(self) -> str:
        tasks, base = self.rows[0].record["tasks"], self.found[BASE, BASE]
        lines: list[list[Cell]] = []
        for key in self.keys:
            name, ours = self.name(key), self.found[key]
            cells: list[Cell] = [name]
            for task, sums in self.columns(key, FULL).items():
                cells.append(_spread((100 * sums[:, 0] / tasks[task]["queries"]).tolist()))
            cells += [_spread(ours.seeds(FULL)), None, None]
            if key != (BASE, BASE):
                difference = mean(ours.seeds(FULL)) - mean(base.seeds(FULL))
                _, low, high, _ = judge(difference, ours.draws(FULL) - base.draws(FULL))
                cells[-2:] = [_signed(difference, 2), f"{_signed(low, 2)} to {_signed(high, 2)}"]
            lines.append([*cells, *paper_averages("table4" if name == ZEROS else "table3", name)])
        heads = ["method", *tasks, "avg", "minus Zero-Feedback", f"{LEVEL} % interval", "3B", "4B"]
        return _markdown(Table("", heads, lines))

    def _budgets_table(self) -> str:
        counts = range(1, MAX_BUDGET + 1)
        lines: list[list[Cell]] = []
        for key in self.keys:
            lines.append([self.name(key), "both", *(_spread(self.found[key].seeds(f"k{num}")) for num in counts)])
            for side in SIDES:
                scores = np.mean([record["budgets"][side] for record in self.records(key)], axis=0)
                lines.append([self.name(key), side, *scores.tolist()])
        for method in STRATEGIES.values():
            if scores := paper_budgets(method):
                lines.append([f"the paper's 3B: {method}", "both", *scores])
        return _markdown(Table("", ["vectors", "side that varies", *map(str, counts)], lines))

    def draw_budgets(self, file: Path) -> None:
        """Plot the scores by budget, with bands, next to the paper's."""
        here: dict[str, list[float]] = {}
        spread: dict[str, list[float]] = {}
        # Zeros at inference only for RandSlot itself: a figure has seven colours.
        for key in [key for key in self.keys if key[0] in STRATEGIES or key[1] != BASE][:7]:
            by_budget = [self.found[key].seeds(f"k{num}") for num in range(1, MAX_BUDGET + 1)]
            here[self.name(key)] = [mean(seeds) for seeds in by_budget]
            spread[self.name(key)] = [stdev(seeds) for seeds in by_budget]
        paper = {method: paper_budgets(method) for method in STRATEGIES.values() if paper_budgets(method)}
        panels = {"vectors per side": here, "vectors per side, from 4": here, "vectors per side, the paper's 3B": paper}
        draw_budgets(panels, [1, 4, 1], file, dict.fromkeys(list(panels)[:2], spread))

    def _describe_extras(self) -> Iterator[str]:
        for extra in self.study.extra:
            yield f"## Extra: {extra.title}"
            judged = judge_extra(self.study, extra, self.found)
            if judged is None:
                yield f"Hypothesis: *{extra.hypothesis.strip()}* Its runs are not finished."
                continue
            claims, verdict = judged
            yield f"Hypothesis: *{extra.hypothesis.strip()}* Result: **{verdict}**."
            yield EXTRA_RULE
            lines = [[claim.question.text, *self._judged(claim, 2)] for claim in claims]
            yield _markdown(Table("", ["budget", "difference", f"{LEVEL} % interval", "seeds", "verdict"], lines))

    def _describe_runs(self) -> Iterator[str]:
        lines: list[list[Cell]] = []
        minutes = []
        for row in self.rows:
            record = row.record
            key = (record["arm"], self.study.inferences(record["arm"])[0])
            score = self.found[key].seeds(FULL)[self.study.seeds.index(record["seed"])]
            times = [record["training_seconds"] / 60, record["evaluation_seconds"] / 60]
            minutes.append(sum(times))
            lines.append([record["run"], score, record["loss"], *times, (record["commit"] or "-")[:7], record["date"]])
        machine = self.rows[0].record["machine"]
        heads = ["run", "nDCG@5", "final loss", "training, min", "evaluation, min", "commit", "date"]
        yield _markdown(Table("", heads, lines, digits=2))
        yield (
            f"{machine['processor']}, {machine['threads']} thread per run, {self.study.side_by_side} runs in parallel, "
            f"torch {machine['torch']}. The median run took {median(minutes):.0f} minutes. Each row has all settings "
            "of its run."
        )

    def _image(self, name: str, text: str) -> str:
        return f"![{text}](images/{Path(self.study.report).stem}-{name}.svg)"


def _markdown(table: Table) -> str:
    """Return a table without its title, which the section already has."""
    return write_table(table, "md").partition("\n\n")[2].strip()


def _fill(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def _spread(values: Sequence[float], digits: int = 1) -> str:
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def _signed(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:+.{digits}f}"
