"""The report of `randslot analyse`: sections of tables and figures, also as a web page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError, in_one_line
from ..model.reader import SIDES
from ..tables import Cell, Table, write_table
from .published import published_tables

if TYPE_CHECKING:  # torch and matplotlib are imported where used: the cost needs neither
    from .analysis import CachedRun

# The parts of a report, each with the paper's tables to show beside its own.
PARTS = {
    "budgets": {"budgets": "table11"},
    "winners": {"winners": "figure4"},
    "readouts": {"readouts": "table13", "gains": "figure5"},
    "cost": {"cost": "table5"},
}


@dataclass(frozen=True)
class Section:
    """One part of a report: an explanation, tables, and functions that draw figures, by name.

    benchmark: set if there are several, each with its own folder.
    """

    name: str
    explanation: str
    tables: dict[str, Table]
    figures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    benchmark: str = ""


def analyse(
    words: Sequence[str],
    *,
    benchmarks: Sequence[str] = (),
    data: Path | None = None,
    data_root: Path | None = None,
    num_vectors: int = 4,
    dim: int | None = None,
    results: Path = Path("report/results"),
    tell: Callable[[str], None] = print,
) -> list[Section]:
    """Analyse folders of results; the first word may name one part of the report.

    With benchmarks, or your own set in `data`, words are models to evaluate first, into `results`. dim: the dimension
    of vectors, for the cost without results. tell: called with a line for everything that is skipped.
    """
    sources = list(words)
    parts = [sources.pop(0)] if sources and sources[0] in PARTS else list(PARTS)
    is_cost = parts == ["cost"]
    if not sources and not is_cost:
        raise UsageError(f"missing results folder. One of {', '.join(PARTS)} may come before it.")
    if benchmarks or data:
        from .analysis import MAX_BUDGET
        from .evaluate import evaluate_model
        from .tasks import choose_tasks

        tasks = choose_tasks(benchmarks, [], data, data_root)
        largest = {"query_vectors": MAX_BUDGET, "page_vectors": MAX_BUDGET}
        for model in sources:
            evaluate_model(model, tasks, results, settings=largest)
        sources = [str(results)]
    folders = [Path(source) for source in sources]
    if dim is not None and (folders or not is_cost):
        raise UsageError("--dim only works with randslot analyse cost without results")
    if not folders:
        return [_show_cost([], num_vectors, dim)]
    if num_vectors < 2 and not {"winners", "readouts"}.isdisjoint(parts):
        raise UsageError(f"winners and readouts need --vectors 2 or more, not {num_vectors}")
    from .analysis import read_runs

    by_benchmark = group_runs(read_runs(folders), tell)
    sections = []
    for benchmark, runs in by_benchmark.items():
        for part in parts:
            if part == "budgets" and len(parts) > 1 and not all(run.has_prefixes for run in runs):
                tell("skipped: budgets, because the first vectors of a run are not those of a smaller budget")
                continue
            section = SHOWN[part](runs, num_vectors)
            for name, key in PARTS[part].items() if runs[0].benchmark == "ViDoRe(v3)" else ():
                section.tables[f"{name}-paper"] = _paper_table(key)
            sections.append(replace(section, benchmark=benchmark))
    return sections


def group_runs(runs: Sequence[CachedRun], tell: Callable[[str], None]) -> dict[str, list[CachedRun]]:
    """Return runs by benchmark, under "" if there is only one; report what was skipped."""
    groups: dict[str, list[CachedRun]] = {}
    for run in runs:
        groups.setdefault(run.benchmark, []).append(run)
        for line in run.left_out:
            tell(f"skipped: {line}")
    return groups if len(groups) > 1 else {"": list(runs)}


# -- sections


def _show_budgets(runs: Sequence[CachedRun], num_vectors: int) -> Section:
    from ..plots import draw_budgets
    from .analysis import judge_budgets, sweep_budgets

    table = sweep_budgets(runs, num_vectors)
    lines: dict[str, dict[str, list[float]]] = {}
    for name, side, *scores in table.rows:
        lines.setdefault(str(side), {})[str(name)] = [float(score or 0) for score in scores]
    both = {"vectors per side": lines["both"]}
    if len(table.heads) > 2 + 4:
        both["vectors per side, from four on"] = lines["both"]
    sides = {f"vectors of a {side}, {num_vectors} of the other": lines[side] for side in SIDES}
    figures = {
        "budgets": partial(draw_budgets, both, [1, 4][: len(both)]),
        "budgets-sides": partial(draw_budgets, sides, [1, 1]),
    }
    text = (
        "nDCG@5 with the first 1, 2, ... vectors of each side. A rising line means that more vectors help; a flat one, "
        f"that fewer are enough. If one side varies, the other has {num_vectors}."
    )
    tables = {"budgets": table}
    if len(table.heads) > 2 + num_vectors:
        tables["budgets-noise"] = judge_budgets(runs, num_vectors)
        text += (
            " Panels that start at four magnify noise: the second table has the gain of each budget over "
            f"{num_vectors}, with a confidence interval over queries."
        )
    return Section("budgets", text, tables, figures)


def _show_winners(runs: Sequence[CachedRun], num_vectors: int) -> Section:
    from ..plots import draw_winners
    from .analysis import count_winners, list_shares, list_winners

    found = [count_winners(run, num_vectors) for run in runs]
    panels = {}
    for one in found:
        panels[f"{one.name}\nH {one.entropy:.3f}  U {one.spread:.3f}"] = (100 * one.shares).tolist()
    text = (
        "For each relevant pair: which page readout (d) is nearest to each query readout (q). A column sums to 100%. "
        "H is 1 when all page readouts win equally often and 0 when one always wins; U is the number of different "
        "winners within a pair."
    )
    tables = {"winners": list_winners(found), "shares": list_shares(found)}
    return Section("winners", text, tables, {"winners": partial(draw_winners, panels)})


def _show_readouts(runs: Sequence[CachedRun], num_vectors: int) -> Section:
    from ..plots import draw_readouts
    from .analysis import intervene, list_gains, list_readouts, macro

    found = [intervene(run, num_vectors) for run in runs]
    full: dict[str, float] = {}
    gains: dict[str, dict[str, float]] = {}
    without: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    for one in found:
        full[one.name] = macro(one.full)
        gains[one.name] = one.task_gains() | {"all, one fixed": one.joint_gain()}
        for side in SIDES:
            without[side][one.name] = [macro(scores) for scores in one.without[side]]
    text = (
        "nDCG@5 with one readout only, and without each readout. A large loss means that the other readouts cannot "
        "replace it; a negative one means that removing it helps. Joint gain is the score of all page readouts minus "
        "the best single one: per task, and (bold) with one fixed readout for all tasks. The best readout is chosen on "
        "the same data, so use this for diagnosis, not for pruning."
    )
    tables = {"readouts": list_readouts(found), "gains": list_gains(found)}
    return Section("readouts", text, tables, {"readouts": partial(draw_readouts, full, without, gains)})


BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "1-bit": 0.125}  # of one number


class Budget(NamedTuple):
    """The vectors of a query and a page, their dimension and type of number."""

    name: str
    query_vectors: int
    page_vectors: int
    dim: int = 2048
    dtype: str = "fp16"


# The budgets that the paper compares.
PAPER = (Budget("CausalEmbed", 16, 32), Budget("RandSlot", 4, 4), Budget("RandSlot", 6, 6))


def list_costs(budgets: Sequence[Budget]) -> Table:
    """Return the cost of each budget: one page, many pages, and comparing a query with a page."""
    rows: list[list[Cell]] = []
    for one in budgets:
        products = one.query_vectors * one.page_vectors
        size = one.page_vectors * one.dim * BYTES[one.dtype]
        rows.append([*one, size / 1024, 100_000 * size / 1024**3, products, products * one.dim])
    heads = ["method", "Kq", "Kd", "dimensions", "type", "KiB per page", "GiB for 100,000 pages", "dot products"]
    heads.append("multiply-adds")
    return Table("Cost of the vectors only; products are those of one query with one page", heads, rows, digits=2)


def _show_cost(runs: Sequence[CachedRun], num_vectors: int, dim: int | None = None) -> Section:
    budgets = [*PAPER]
    if runs:
        first, *_ = runs[0].tasks.values()
        dim = first[0].load()[1].shape[-1]
    if dim is not None:
        budgets += [Budget("yours", num_vectors, num_vectors, dim, dtype) for dtype in BYTES]
    text = "Bytes of the vectors, and the work to compare one query with one page. Index overhead is not included."
    return Section("cost", text, {"cost": list_costs(budgets)})


SHOWN: dict[str, Callable[[Sequence[CachedRun], int], Section]] = {
    "budgets": _show_budgets,
    "winners": _show_winners,
    "readouts": _show_readouts,
    "cost": _show_cost,
}


def _paper_table(key: str) -> Table:
    table = published_tables()[key]
    rows: list[list[Cell]] = []
    for row in table.rows:
        numbers = [row.averages.get("ViDoRe(v3)"), *(row.values.get(column) for column in table.columns)]
        rows.append([row.method, row.side or "both", row.query_vectors, row.page_vectors, *numbers])
    heads = ["method", "side", "Kq", "Kd", "ViDoRe V3", *table.columns]
    note = "RandSlot has random slots at inference (RS-R), like your runs that end in random; RS-Z has zeros."
    return Table(f"The paper: {table.caption}", heads, rows, digits=3, note=note).drop_empty()


# -- files


def write_report(sections: Sequence[Section], folder: Path) -> Path:
    """Write tables, figures and index.html into a folder, and return the path of index.html."""
    template = Template((resources.files(__package__) / "analysis.html").read_text(encoding="utf-8"))
    html = ""
    with in_one_line(f"write into {folder}", UsageError):
        folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            place = folder / section.benchmark
            place.mkdir(exist_ok=True)
            title = f"{section.benchmark} {section.name.capitalize()}".strip()
            html += f"<section>\n<h2>{escape(title)}</h2>\n<p>{escape(section.explanation)}</p>\n"
            for name, draw in section.figures.items():
                draw(place / f"{name}.svg")
                source = Path(section.benchmark, f"{name}.svg").as_posix()
                html += f'<img src="{escape(source)}" alt="{escape(section.name)}: {escape(name)}">\n'
            for name, table in section.tables.items():
                (place / f"{name}.md").write_text(write_table(table, "md"), encoding="utf-8")
                (place / f"{name}.csv").write_text(write_table(table, "csv"), encoding="utf-8")
                (place / f"{name}.tex").write_text(write_table(table, "latex"), encoding="utf-8")
                rows = f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in table.heads)}</tr>\n"
                for row in table.rows:
                    rows += f"<tr>{''.join(f'<td>{escape(table.show(cell))}</td>' for cell in row)}</tr>\n"
                caption = f"<figcaption>{escape(table.title)}</figcaption>"
                html += f"<figure><table>\n{rows}</table>\n{caption}</figure>\n"
            html += "</section>\n"
        (folder / "index.html").write_text(template.substitute(sections=html.rstrip()), encoding="utf-8")
    return folder / "index.html"
