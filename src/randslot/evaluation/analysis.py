"""From the words of a command to the sections of a report: which parts, of which runs, models or libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib import resources
from itertools import chain
from pathlib import Path
from statistics import mean
from string import Template
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UsageError
from ..library.folder import LIBRARY_FILE
from ..library.library import Library
from ..model.reader import SIDES, Side
from ..tables import Cell, Table, write_table
from .compare import ALL, DRAWS, LEVEL, judge_tasks
from .published import published_tables
from .runs import Part, Run, View, full_view, macro, need_prefixes, need_readouts, score_part, score_views

MOST = 8
SWEEP = "the budget sweep"
VARIED = ("both", *SIDES)  # the side that varies


def sweep_budgets(runs: Sequence[Run], num_vectors: int = 4) -> Table:
    """Return nDCG@5 with 1, 2, ... vectors: on both sides, and on each side alone with `num_vectors` on the other."""
    for run in runs:
        need_readouts(run, num_vectors, SWEEP)
        need_prefixes(run, SWEEP)
    most = min(MOST, *(run.num_vectors for run in runs)) if runs else MOST
    budgets = range(1, most + 1)
    rows: list[list[Cell]] = []
    for run in runs:
        views = {side: [_view(side, num, num_vectors) for num in budgets] for side in VARIED}
        scores = score_views(run, list(chain.from_iterable(views.values())))
        for side in VARIED:
            rows.append([run.name, side, *(macro(scores[view]) for view in views[side])])
    title = f"Budgets: nDCG@5 by the number of vectors; where one side varies, the other has {num_vectors}"
    return Table(title, ["run", "side", *map(str, budgets)], rows)


def _view(side: str, num: int, other: int) -> View:
    """Return the view with `num` vectors of the side that varies, and `other` vectors of the one that does not."""
    return full_view(num if side != "page" else other, num if side != "query" else other)


def judge_budgets(runs: Sequence[Run], num_vectors: int = 4, *, draws: int = DRAWS, seed: int = 42) -> Table:
    """Return what more than `num_vectors` a side gain, with intervals: drawn large, a flat line looks like a gain."""
    rows: list[list[Cell]] = []
    for run in runs:
        need_prefixes(run, SWEEP)
        budgets = range(num_vectors + 1, min(MOST, run.num_vectors) + 1)
        views = {budget: full_view(budget) for budget in budgets}
        base = full_view(num_vectors)
        gains: dict[int, dict[str, list[NDArray[np.float64]]]] = {budget: {} for budget in budgets}
        for task, parts in run.tasks.items() if budgets else ():
            found = [score_part(part, [base, *views.values()]) for part in parts]
            for budget, view in views.items():
                gains[budget][task] = [100 * (scores[view] - scores[base]) for scores in found]
        for budget in budgets:
            verdict = judge_tasks(gains[budget], np.random.default_rng(seed), draws)[ALL]
            rows.append([run.name, budget, *verdict])
    title = f"Budgets: nDCG@5 minus that with {num_vectors} vectors a side, with {LEVEL} % intervals (paired bootstrap)"
    return Table(title, ["run", "vectors", "difference", "from", "to", "verdict"], rows, digits=2)


TIE = 1e-8
PAIRS = 4096  # at once


@dataclass(frozen=True)
class Winners:
    """Counts of wins (query readout, page readout) over all pairs, ties, and the distinct winners of all pairs."""

    name: str
    counts: Tensor  # (K, K)
    pairs: int
    ties: int
    distinct: int

    @property
    def shares(self) -> Tensor:
        """The share of each page readout (rows) in the wins for each query readout (columns): a column sums to 1."""
        return (self.counts / self.counts.sum(1, keepdim=True)).T

    @property
    def entropy(self) -> float:
        """H: how evenly wins are spread over page readouts, from 0 (one wins all) to 1."""
        parts: list[float] = (self.counts.sum(0) / self.counts.sum()).tolist()
        return -sum(part * math.log(part) for part in parts if part) / math.log(len(parts))

    @property
    def spread(self) -> float:
        """U: how many different page readouts win within a pair, on average."""
        return self.distinct / self.pairs


def find_winners(queries_NKD: Tensor, pages_NKD: Tensor) -> tuple[Tensor, int]:
    """Return the winning page readout of each query readout (N, K) and how many of them tied.

    Readouts within 1e-8 of the best count as tied, and the lowest index wins.
    """
    similarities = queries_NKD.double() @ pages_NKD.double().transpose(1, 2)
    near = similarities >= similarities.amax(-1, keepdim=True) - TIE
    return near.int().argmax(-1), int((near.sum(-1) > 1).sum())


def count_winners(run: Run, num_vectors: int = 4) -> Winners:
    """Count the winners of one run over the pairs of all its tasks.

    Errors: UsageError for fewer than two readouts, or for vectors that the run does not have.
    """
    if num_vectors < 2:
        raise UsageError(f"winners need at least 2 vectors a side, not {num_vectors}: with one, it always wins")
    need_readouts(run, num_vectors, "the table of winners")
    counts = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
    pairs = ties = distinct = 0
    for part in run.parts():
        for _, queries, pages in positive_pairs(part, num_vectors):
            winners, tied = find_winners(queries, pages)
            won = torch.nn.functional.one_hot(winners, num_vectors)
            counts += won.sum(0)
            distinct += int(won.amax(1).sum())
            pairs, ties = pairs + len(winners), ties + tied
    return Winners(run.name, counts, pairs, ties, distinct)


def positive_pairs(part: Part, num_vectors: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield pairs in blocks: the number of each query (N,), and the first vectors of it and of its page (N, K, D)."""
    queries_QKD, pages_PKD = part.load()
    place = {id: index for index, id in enumerate(part.judged.page_ids)}
    pairs = []
    for query, grades in enumerate(part.judged.grades):
        pairs += [(query, place[page]) for page, grade in grades.items() if grade > 0 and page in place]
    for block in torch.tensor(pairs).split(PAIRS):
        yield block[:, 0], queries_QKD[block[:, 0], :num_vectors], pages_PKD[block[:, 1], :num_vectors]


def list_winners(found: Sequence[Winners]) -> Table:
    """Return H, U, pairs and ties of each run."""
    rows: list[list[Cell]] = [
        [winners.name, winners.entropy, winners.spread, winners.pairs, winners.ties] for winners in found
    ]
    heads = ["run", "H", "U", "pairs", "ties"]
    return Table("Winners: how evenly page readouts win MaxSim for the right pages", heads, rows, digits=3)


def list_shares(found: Sequence[Winners]) -> Table:
    """Return the share of each page readout in the wins for each query readout, in percent."""
    rows: list[list[Cell]] = []
    for winners in found:
        for place, shares in enumerate(winners.shares.tolist(), start=1):
            rows.append([winners.name, f"d{place}", *(100 * share for share in shares)])
    heads = ["run", "wins of", *(f"for q{place}" for place in range(1, len(found[0].counts) + 1))]
    return Table("Share of each page readout in the wins for each query readout, in percent", heads, rows)


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


if TYPE_CHECKING:
    from .runs import Run

BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "1-bit": 0.125}  # of one number
PAGES = 100_000
KIB, GIB = 1024, 1024**3


@dataclass(frozen=True)
class Budget:
    """How many vectors a query and a page have, of how many numbers, of which type."""

    name: str
    query_vectors: int
    page_vectors: int
    dim: int = 2048
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise UsageError(f"type {self.dtype!r} is not one of {', '.join(BYTES)}")
        if min(self.query_vectors, self.page_vectors, self.dim) < 1:
            raise UsageError("vectors and dimensions must be 1 or more")

    @property
    def page_bytes(self) -> float:
        return self.page_vectors * self.dim * BYTES[self.dtype]

    @property
    def dot_products(self) -> int:
        """Of one query and one page."""
        return self.query_vectors * self.page_vectors

    @property
    def multiply_adds(self) -> int:
        """Of one query and one page."""
        return self.dot_products * self.dim


# The budgets that the paper compares.
PAPER = (Budget("CausalEmbed", 16, 32), Budget("RandSlot", 4, 4), Budget("RandSlot", 6, 6))


def own_budgets(num_vectors: int, dim: int) -> list[Budget]:
    """Return a budget of `num_vectors` a side in every type of number."""
    return [Budget("yours", num_vectors, num_vectors, dim, dtype) for dtype in BYTES]


def list_costs(budgets: Sequence[Budget], pages: int = PAGES) -> Table:
    """Return what each budget costs: one page, a number of pages, and the comparison of a query with a page."""
    rows: list[list[Cell]] = []
    for budget in budgets:
        what: list[Cell] = [budget.name, budget.query_vectors, budget.page_vectors, budget.dim, budget.dtype]
        size = [budget.page_bytes / KIB, pages * budget.page_bytes / GIB]
        rows.append([*what, *size, budget.dot_products, budget.multiply_adds])
    pages_head = f"GiB for {pages:,} pages"
    heads = ["method", "Kq", "Kd", "dimensions", "type", "KiB a page", pages_head, "dot products", "multiply-adds"]
    return Table("Cost of the vectors alone; products are those of one query with one page", heads, rows, digits=2)


def measure_libraries(folders: Sequence[Path]) -> Table:
    """Return what the pages of some libraries take: their vectors in half precision, and all files on disk.

    Errors: UsageError for a folder that is not a library, or an empty one.
    """
    rows: list[list[Cell]] = []
    for folder in folders:
        with Library(folder, create=False) as library:
            status, model = library.status(), library.binding
        if not status.pages:
            raise UsageError(f"library {folder} has no pages: index some first")
        num, dim = (model.num_vectors("page"), model.dimension) if model else (0, 0)
        vectors, on_disk = float(status.vector_bytes_per_page), status.bytes / status.pages
        rows.append([folder.name, num, dim, status.pages, vectors, on_disk])
    heads = ["library", "Kd", "dimensions", "pages", "bytes a page, vectors alone", "bytes a page, on disk"]
    return Table("Libraries: float16 vectors with their codes, payload and the list of files", heads, rows, digits=0)


def is_library(folder: Path) -> bool:
    """Whether a folder is a library."""
    return (folder / LIBRARY_FILE).is_file()


def measure_files(runs: Sequence[Run]) -> Table:
    """Return what the vectors of each run take: by its budget in float32, and the files on disk."""
    rows: list[list[Cell]] = []
    for run in runs:
        folders: set[Path] = set()
        keys: set[str] = set()
        for part in run.parts():
            folders.add(part.folders["page"])
            keys.update(part.judged.page_keys)
        size = 0
        for folder in folders:
            size += sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        num, dim = run.page_shape()
        vectors = Budget(run.name, run.num_vectors, num, dim, "fp32").page_bytes
        rows.append([run.name, num, dim, len(keys), vectors, size / len(keys)])
    heads = ["run", "Kd", "dimensions", "pages", "bytes a page, vectors alone", "bytes a page, files"]
    return Table("Files of vectors that the evaluation left, float32", heads, rows, digits=0)


if TYPE_CHECKING:
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
    from ..plots import draw_budgets

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
    from ..plots import draw_winners

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
    from ..plots import draw_readouts
    from .runs import macro

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


def analyse(
    words: Sequence[str],
    *,
    benchmarks: Sequence[str] = (),
    data: Path | None = None,
    num_vectors: int = 4,
    dim: int | None = None,
    results: Path = Path("report/results"),
    tell: Callable[[str], None] = print,
) -> list[Section]:
    """Analyse what some words name: first one part if not all, then folders of results or libraries.

    With benchmarks, or a set of one's own in `data`, they are models, which are evaluated first, into `results`. dim:
    the dimension of vectors whose cost is asked for without results. tell: gets a line for every result left out.

    Errors: UsageError in one line for what cannot be analysed, or not together.
    """
    sources = list(words)
    parts = [sources.pop(0)] if sources and sources[0] in PARTS else list(PARTS)
    only_cost = parts == ["cost"]
    if not sources and not only_cost:
        raise UsageError(f"name the folder of results, or one of {', '.join(PARTS)} and the folder")
    if benchmarks or data:
        folders = [_evaluate(sources, benchmarks, data, results)]
    else:
        folders = [_need_folder(source) for source in sources]
    libraries = [folder for folder in folders if is_library(folder)]
    if libraries and not only_cost:
        raise UsageError(f"{libraries[0]} is a library: only its cost can be analysed, by randslot analyse cost")
    folders = [folder for folder in folders if folder not in libraries]
    if dim is not None and (folders or not only_cost):
        raise UsageError("--dim goes with randslot analyse cost without results: they have dimensions of their own")
    runs = []
    if folders:
        from .runs import read_runs

        runs = read_runs(folders)
    for run in runs:
        for line in run.left_out:
            tell(f"left out: {line}")
    return make_sections(parts, Subject(runs, num_vectors, libraries, dim))


def _need_folder(source: str) -> Path:
    if not Path(source).is_dir():
        raise UsageError(f"{source!r} is not a folder here, nor one of the parts {', '.join(PARTS)}")
    return Path(source)


def _evaluate(models: Sequence[str], benchmarks: Sequence[str], data: Path | None, results: Path) -> Path:
    """Evaluate models with as many vectors as a budget sweep takes, and return the folder of their results."""
    from .evaluate import evaluate_model
    from .tasks import choose_tasks

    tasks = choose_tasks(benchmarks, [], data)
    for model in models:
        evaluate_model(model, tasks, results, settings={"query_vectors": MOST, "page_vectors": MOST})
    return results
