"""What each readout is worth: scores with only one of a side, without one, and what they gain together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ...errors import UsageError
from ...model.reader import SIDES, Side
from ...tables import Cell, Table
from .runs import Run
from .views import View, full_view, macro, need_readouts, score_views


@dataclass(frozen=True)
class Readouts:
    """Scores of one run by task, in percent: with all readouts, with only readout i of a side, and without it."""

    name: str
    full: dict[str, float]
    only: dict[Side, list[dict[str, float]]]
    without: dict[Side, list[dict[str, float]]]

    def removal(self, side: Side) -> list[float]:
        """Return what the score loses without each readout; negative where it gains."""
        return [macro(self.full) - macro(scores) for scores in self.without[side]]

    def best(self) -> int:
        """Return the index of the page readout that is best alone, over all tasks."""
        scores = [macro(by_task) for by_task in self.only["page"]]
        return scores.index(max(scores))

    def task_gains(self) -> dict[str, float]:
        """Return by task what all page readouts gain over the one that is best there."""
        return {task: score - max(by[task] for by in self.only["page"]) for task, score in self.full.items()}

    def joint_gain(self) -> float:
        """Return what all page readouts gain over one fixed readout, the best over all tasks."""
        return macro(self.full) - macro(self.only["page"][self.best()])


def intervene(run: Run, num_vectors: int = 4) -> Readouts:
    """Score a run with only one readout of a side and without it, with all readouts of the other side.

    Errors: UsageError for fewer than two readouts, or for vectors that the run does not have.
    """
    if num_vectors < 2:
        raise UsageError(f"readouts need at least 2 vectors a side, not {num_vectors}: one cannot be taken away")
    need_readouts(run, num_vectors, "the table of readouts")
    full = full_view(num_vectors)
    only: dict[Side, list[View]] = {}
    without: dict[Side, list[View]] = {}
    views = [full]
    for side in SIDES:
        only[side] = [full.change(side, [place]) for place in range(num_vectors)]
        without[side] = [full.drop(side, place) for place in range(num_vectors)]
        views += [*only[side], *without[side]]
    scores = score_views(run, views)
    return Readouts(
        run.name,
        scores[full],
        {side: [scores[view] for view in only[side]] for side in SIDES},
        {side: [scores[view] for view in without[side]] for side in SIDES},
    )


def list_readouts(found: Sequence[Readouts]) -> Table:
    """Return the table of interventions: single scores, and decreases by removal."""
    num = len(found[0].only["query"])
    rows: list[list[Cell]] = []
    for readouts in found:
        for side in SIDES:
            single = [macro(scores) for scores in readouts.only[side]]
            rows.append([readouts.name, side, macro(readouts.full), *single, *readouts.removal(side)])
    places = range(1, num + 1)
    heads = ["run", "side", "full", *(f"only r{k}" for k in places), *(f"removal of r{k}" for k in places)]
    title = "Readouts: nDCG@5 with only one of a side, and points lost by its removal (negative: removal helps)"
    return Table(title, heads, rows, digits=2)


def list_gains(found: Sequence[Readouts]) -> Table:
    """Return the joint-use gains: by task over the readout that is best there, then over one fixed readout."""
    rows: list[list[Cell]] = []
    for readouts in found:
        gains = readouts.task_gains()
        best = f"r{readouts.best() + 1}"
        rows.append([readouts.name, *gains.values(), readouts.joint_gain(), best, mean(gains.values())])
    tasks = list(found[0].full)
    heads = ["run", *tasks, "all, one fixed readout", "which", "mean of the tasks' gains"]
    title = "Joint use: points that all page readouts gain over the best single one"
    return Table(title, heads, rows, digits=2)
