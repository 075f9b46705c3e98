"""All analyses of some runs in a folder: tables, figures, and one page that shows them.

What is heavy is imported by the part that needs it: costs are plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...model.reader import SIDES
from ...tables import Cell, Table, write_table
from ..evaluation.published import published_tables
from .cost import PAPER, list_costs, measure_files, measure_libraries, own_budgets

if TYPE_CHECKING:
    from .readouts import Readouts
    from .runs import Run

V3 = "ViDoRe(v3)"
SUFFIXES = {"md": ".md", "csv": ".csv", "latex": ".tex"}


@dataclass(frozen=True)
class Subject:
    """What a report is about: runs, or for the cost also libraries and a dimension, with a number of vectors a side."""

    runs: Sequence[Run]
    num_vectors: int = 4
    libraries: Sequence[Path] = ()
    dim: int | None = None


@dataclass(frozen=True)
class Section:
    """One part of the report: how to read it, its tables, and the functions that draw its figures, by name."""

    name: str
    explanation: str
    tables: dict[str, Table]
    figures: dict[str, Callable[[Path], None]] = field(default_factory=dict)


def make_budgets(subject: Subject) -> Section:
    from ...figures import draw_budgets
    from .budgets import judge_budgets, sweep_budgets

    runs, num_vectors = subject.runs, subject.num_vectors
    table = sweep_budgets(runs, num_vectors)

    def lines(side: str) -> dict[str, list[float]]:
        return {str(row[0]): [float(score or 0) for score in row[2:]] for row in table.rows if row[1] == side}

    def draw_both(file: Path) -> None:
        panels = {"vectors a side": lines("both"), "vectors a side, from four on": lines("both")}
        if len(table.heads) <= 2 + 4:
            del panels["vectors a side, from four on"]
        draw_budgets(panels, [1, 4][: len(panels)], file)

    def draw_sides(file: Path) -> None:
        panels = {f"vectors of a {side}, {num_vectors} of the other": lines(side) for side in SIDES}
        draw_budgets(panels, [1, 1], file)

    text = (
        "The score with the first 1, 2, ... vectors of each side. A line that still rises says that more vectors are "
        f"worth their bytes; one that is flat says that fewer would do. One side alone varies against {num_vectors} "
        "of the other."
    )
    tables = {"budgets": table}
    if len(table.heads) > 2 + num_vectors:
        tables["budgets-noise"] = judge_budgets(runs, num_vectors)
        text += (
            " Ups and downs of a panel that starts at four are drawn large and may be noise: the second table says "
            f"what each budget gains over {num_vectors}, with an interval over queries."
        )
    return Section("budgets", text, tables, {"budgets": draw_both, "budgets-sides": draw_sides})


def make_winners(subject: Subject) -> Section:
    from ...figures import draw_winners
    from .winners import count_winners, list_shares, list_winners

    found = [count_winners(run, subject.num_vectors) for run in subject.runs]

    def draw(file: Path) -> None:
        titles = [f"{winners.name}\nH {winners.entropy:.3f}  U {winners.spread:.3f}" for winners in found]
        shares = [(100 * winners.shares).tolist() for winners in found]
        draw_winners(dict(zip(titles, shares, strict=True)), file)

    text = (
        "For each query and page that belong together: which page readout (d) is nearest to each query readout (q). "
        "A column sums to 100 %. H is 1 when all page readouts win alike and 0 when one wins all; U is how many "
        "different ones win within a pair."
    )
    return Section("winners", text, {"winners": list_winners(found), "shares": list_shares(found)}, {"winners": draw})


def make_readouts(subject: Subject) -> Section:
    from .readouts import intervene, list_gains, list_readouts

    found = [intervene(run, subject.num_vectors) for run in subject.runs]
    text = (
        "The score when only one readout of a side is kept, or all but one, with all of the other side. A removal that "
        "costs much is a readout that the others cannot replace; a negative one is better left out. Gains of joint "
        "use say how much all page readouts find beyond the best single one: in each task its own best, and last "
        "(bold, behind the line) one fixed readout for all tasks. The best one is chosen on the same results: a "
        "diagnosis, not a rule for pruning."
    )
    tables = {"readouts": list_readouts(found), "gains": list_gains(found)}
    return Section("readouts", text, tables, {"readouts": partial(_draw_readouts, found)})


def _draw_readouts(found: Sequence[Readouts], file: Path) -> None:
    from ...figures import draw_readouts
    from .views import macro

    full = {readouts.name: macro(readouts.full) for readouts in found}
    gains = {one.name: one.task_gains() | {"all, one fixed": one.joint_gain()} for one in found}
    without: dict[str, dict[str, list[float]]] = {}
    for side in SIDES:
        without[side] = {one.name: [macro(scores) for scores in one.without[side]] for one in found}
    draw_readouts(full, without, gains, file)


def make_cost(subject: Subject) -> Section:
    budgets = [*PAPER]
    dim = subject.runs[0].page_shape()[1] if subject.runs else subject.dim
    if dim is not None:
        budgets += own_budgets(subject.num_vectors, dim)
    tables = {"cost": list_costs(budgets)}
    if subject.runs:
        tables["files"] = measure_files(subject.runs)
    if subject.libraries:
        tables["libraries"] = measure_libraries(subject.libraries)
    text = (
        "What the vectors alone take, and the work of comparing one query with one page. It grows with the vectors of "
        "a page and with both budgets; an index adds its own."
    )
    return Section("cost", text, tables)


PARTS: dict[str, Callable[[Subject], Section]] = {
    "budgets": make_budgets,
    "winners": make_winners,
    "readouts": make_readouts,
    "cost": make_cost,
}
PAPER_TABLES = {
    "budgets": [("budgets", "table11")],
    "winners": [("winners", "figure4")],
    "readouts": [("readouts", "table13"), ("gains", "figure5")],
    "cost": [("cost", "table5")],
}


def make_sections(parts: Sequence[str], subject: Subject) -> list[Section]:
    """Make some parts of the report; runs on ViDoRe V3 have the paper's numbers beside theirs."""
    sections = []
    for part in parts:
        section = PARTS[part](subject)
        if subject.runs and subject.runs[0].benchmark == V3:
            for name, key in PAPER_TABLES[part]:
                section.tables[f"{name}-paper"] = _paper_table(key)
        sections.append(section)
    return sections


def _paper_table(key: str) -> Table:
    table = published_tables()[key]
    rows: list[list[Cell]] = []
    for row in table.rows:
        numbers = [row.averages.get(V3), *(row.values.get(column) for column in table.columns)]
        rows.append([row.method, row.side or "both", row.query_vectors, row.page_vectors, *numbers])
    heads = ["method", "side", "Kq", "Kd", "ViDoRe V3", *table.columns]
    used = [i for i in range(len(heads)) if any(row[i] is not None for row in rows)]
    return Table(
        f"The paper: {table.caption}", [heads[i] for i in used], [[row[i] for i in used] for row in rows], digits=3
    )


def write_report(sections: Sequence[Section], folder: Path) -> Path:
    """Write tables, figures and index.html into a folder, and return the page's path.

    Errors: UsageError if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            for name, table in section.tables.items():
                for style, suffix in SUFFIXES.items():
                    (folder / f"{name}{suffix}").write_text(write_table(table, style), encoding="utf-8")
            for name, draw in section.figures.items():
                draw(folder / f"{name}.svg")
        page = folder / "index.html"
        page.write_text(_make_page(sections), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    return page


def _make_page(sections: Sequence[Section]) -> str:
    template = Template((resources.files(__package__) / "report.html").read_text(encoding="utf-8"))
    return template.substitute(sections="\n".join(map(_section_html, sections)))


def _section_html(section: Section) -> str:
    figures = "".join(
        f'<img src="{name}.svg" alt="{escape(section.name)}: {escape(name)}">\n' for name in section.figures
    )
    tables = "".join(_table_html(table) for table in section.tables.values())
    return (
        f"<section>\n<h2>{escape(section.name.capitalize())}</h2>\n<p>{escape(section.explanation)}</p>\n"
        f"{figures}{tables}</section>"
    )


def _table_html(table: Table) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = ""
    for row in table.rows:
        cells = "".join(f"<td>{escape(table.show(cell))}</td>" for cell in row)
        rows += f"<tr>{cells}</tr>\n"
    return (
        f"<figure><table>\n<tr>{heads}</tr>\n{rows}</table>\n<figcaption>{escape(table.title)}</figcaption></figure>\n"
    )
