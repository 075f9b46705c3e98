"""The demo: sample reports as PDFs, indexed and searched with the embedded model, shown in the terminal and as HTML."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from importlib import resources
from io import BytesIO
from pathlib import Path
from string import Template

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from .errors import UsageError
from .library.library import Library, delete_library
from .model.hub import EMBEDDED
from .pages import open_page
from .samples.drawing import draw_report
from .samples.reports import ANSWERS, RELATED, Report, make_reports
from .samples.sets import Asked, ask_all, page_ids

NUM_REPORTS, HITS, BATCH = 20, 3, 10
MARKS = {ANSWERS: "answers it", RELATED: "comes near", 0: ""}


@dataclass(frozen=True)
class Hit:
    """A page that was found: its path, its score, and what it is to the query, where that is known."""

    page: str
    score: float
    note: str


@dataclass(frozen=True)
class Search:
    """A query and the pages found for it, best first."""

    query: str
    hits: list[Hit]


def run_demo(folder: Path, queries: list[str], console: Console) -> Path:
    """Write sample PDFs into a folder, search them, print the hits, and return the path of `demo.html` there.

    Without queries of the user's, one of each kind that the sample reports come with is asked.
    """
    if any(not query.strip() for query in queries):
        raise UsageError("empty query: ask for something that the sample pages could have")
    reports = list(make_reports(NUM_REPORTS, split="test", seed=1))
    pages = _write_pdfs(reports, folder)
    console.print(f"{len(reports)} sample reports, {len(pages)} pages, in [bold]{folder}[/bold]")
    asked = _choose(ask_all(reports))
    known = {one.question.text: one.grades for one in asked}
    delete_library(folder / "library")  # it may be that of another version of the model
    with Library(folder / "library", EMBEDDED) as library:
        _index(library, folder / "reports", len(pages), console)
        assert library.binding is not None
        num, dim = library.binding.num_vectors("page"), library.binding.dimension
        size = library.status().vector_bytes_per_page
        console.print(f"each page is {num} vectors of {dim} dimensions: {size:,} bytes in half precision\n")
        searches = [_search(library, query, folder, known.get(query)) for query in queries or known]
    for search in searches:
        _print(search, console)
    right = sum(search.hits[0].note == MARKS[ANSWERS] for search in searches)
    if not queries:
        console.print(
            f"the first page answers {right} of {len(searches)} questions; the embedded model is a small one\n"
        )
    file = folder / "demo.html"
    file.write_text(_make_html(searches, folder), encoding="utf-8")
    return file


def _write_pdfs(reports: list[Report], folder: Path) -> list[str]:
    """Write the reports and return the paths of their pages, counted from the folder."""
    try:
        (folder / "reports").mkdir(parents=True, exist_ok=True)
        for report in reports:
            (folder / "reports" / f"{report.name}.pdf").write_bytes(draw_report(report))
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    pages = []
    for report in reports:
        pages += [f"reports/{id}" for id in page_ids(report)]
    return pages


def _choose(asked: list[Asked]) -> list[Asked]:
    """Choose one question of each kind, about different reports."""
    by_kind: dict[str, list[Asked]] = {}
    for one in asked:
        by_kind.setdefault(one.question.kind, []).append(one)
    groups = list(by_kind.values())
    step = len(groups[0]) // len(groups)
    return [group[i * step] for i, group in enumerate(groups)]


def _index(library: Library, folder: Path, num_pages: int, console: Console) -> None:
    columns = TextColumn("reading pages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=num_pages)
        library.add(folder, batch=BATCH, progress=lambda now: bar.update(task, completed=now.pages_done))


def _search(library: Library, query: str, folder: Path, grades: dict[str, int] | None) -> Search:
    hits = []
    for found in library.search(query, HITS):
        page = f"{Path(found.source).relative_to(folder.absolute()).as_posix()}#page={found.page}"
        hits.append(Hit(page, found.score, MARKS[grades.get(Path(page).name, 0)] if grades else ""))
    return Search(query, hits)


def _print(search: Search, console: Console) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for rank, hit in enumerate(search.hits, start=1):
        file, _, number = Path(hit.page).name.partition("#page=")
        table.add_row(f"  {rank}.", f"{hit.score:.3f}", f"{file}  page {number}", Text(hit.note, style="green"))
    console.print(Text(f"? {search.query}", style="bold"), table, "", sep="\n")


def _make_html(searches: list[Search], folder: Path) -> str:
    """Make a page with everything in it: no file, script or font from elsewhere."""
    template = Template((resources.files("randslot") / "demo.html").read_text(encoding="utf-8"))
    return template.substitute(searches="\n".join(_search_html(search, folder) for search in searches))


def _search_html(search: Search, folder: Path) -> str:
    hits = "\n".join(_hit_html(hit, folder) for hit in search.hits)
    return f"<section>\n<h2>{escape(search.query)}</h2>\n<ol>\n{hits}\n</ol>\n</section>"


def _hit_html(hit: Hit, folder: Path) -> str:
    file, _, number = Path(hit.page).name.partition("#page=")
    name = f"{escape(file)}, page {number}"
    note = f'<span class="note">{escape(hit.note)}</span>' if hit.note else ""
    return (
        f'<li><a href="{escape(hit.page)}"><img src="{_thumbnail(folder / hit.page)}" alt="{name}"></a>'
        f'<p><b>{hit.score:.3f}</b> {note}<br><span class="name">{name}</span></p></li>'
    )


def _thumbnail(page: Path) -> str:
    buffer = BytesIO()
    open_page(str(page), pixels=320 * 400).quantize(32).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
