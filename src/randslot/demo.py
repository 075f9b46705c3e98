"""The demo, in the terminal and as HTML.

First a real document, the project's own handbook, is searched by words. Then the method itself is seen at work: sample
reports, which the embedded model reads as images, four vectors a page.
"""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass
from html import escape
from importlib import resources
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from .errors import MissingError, UsageError
from .library.library import Library, delete_library
from .library.models import EMBEDDED
from .library.terminal import mark_words
from .pages import open_page
from .words.snippets import Box, Snippet

HITS = 3
ANSWERS = 2
MARKS = {ANSWERS: "answers it", 1: "comes near", 0: ""}
HANDBOOK = "handbook.pdf"
SAMPLES = resources.files("randslot") / "data" / "samples"
WORDS_TITLE = "A real document, found by its words"
WORDS_TEXT = "The handbook of this project. Its text was read in seconds; no model is needed to find pages by words."
VECTORS_TITLE = "The method: four vectors a page, read from its image"
VECTORS_TEXT = (
    "Sample reports, which the embedded model can read: it looks at the image of a page and keeps four vectors. "
    "It is a miniature for seeing the method at work, and reads nothing but such reports."
)

LIGHT_TEXT = (
    "The other half of the demo finds sample pages by four vectors each, which a small model that ships with the "
    "package reads from their images."
)


@dataclass(frozen=True)
class Hit:
    """A page that was found: its path, what it is to the query where that is known, and the words found on it."""

    page: str
    note: str
    snippet: Snippet | None = None
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Search:
    """A query and the pages found for it, best first."""

    query: str
    hits: list[Hit]


def run_demo(folder: Path, queries: list[str], console: Console) -> Path:
    """Search the handbook and sample reports in a folder, print the hits, and return the path of `demo.html` there.

    Without queries, ask some about the handbook, and one of each kind that the sample reports come with.
    """
    if any(not query.strip() for query in queries):
        raise UsageError("empty query: ask for something that the pages could have")
    parts = [(WORDS_TITLE, WORDS_TEXT, _show_words(folder, queries, console))]
    try:
        parts.append((VECTORS_TITLE, VECTORS_TEXT, _show_vectors(folder, queries, console)))
    except MissingError as error:
        parts.append((VECTORS_TITLE, f"{LIGHT_TEXT} {error}", []))
        console.print(f"{LIGHT_TEXT}\n{error}\n", markup=False)
    file = folder / "demo.html"
    file.write_text(_make_html(parts, folder), encoding="utf-8")
    return file


# -- words


def read_questions() -> dict[str, int]:
    """Return questions about the handbook, and the page that answers each."""
    content = (resources.files("randslot") / "handbook.json").read_text(encoding="utf-8")
    return {one["question"]: one["page"] for one in json.loads(content)}


def _show_words(folder: Path, queries: list[str], console: Console) -> list[Search]:
    """Find pages of the handbook by their words."""
    known = {} if queries else read_questions()
    _write(folder / HANDBOOK, (resources.files("randslot") / HANDBOOK).read_bytes())
    delete_library(folder / "words")
    with Library(folder / "words") as library:
        summary = library.add(folder / HANDBOOK)
        console.print(Text(WORDS_TITLE, style="bold underline"))
        console.print(f"{summary.pages} pages of [bold]{folder / HANDBOOK}[/bold], read in {summary.seconds:.1f} s\n")
        searches = []
        for query in queries or known:
            hits = []
            for found in library.search(query, HITS):
                note = MARKS[ANSWERS] if found.page == known.get(query) else ""
                hits.append(Hit(f"{HANDBOOK}#page={found.page}", note, found.snippet, found.boxes))
            searches.append(Search(query, hits))
    _print(searches, console, is_known=not queries)
    return searches


# -- vectors


def _show_vectors(folder: Path, queries: list[str], console: Console) -> list[Search]:
    """Find sample pages by four vectors each."""
    delete_library(folder / "library")  # it may be that of another version of the model
    console.print(Text(VECTORS_TITLE, style="bold underline"))
    with Library(folder / "library", EMBEDDED) as library:
        asked = _ask_samples()
        for file in (SAMPLES / "pages").iterdir():
            _write(folder / "reports" / file.name, file.read_bytes())
        num_pages = _index(library, folder / "reports", console)
        assert library.binding is not None
        num, dim = library.binding.num_vectors("page"), library.binding.dimension
        size = library.status().vector_bytes_per_page
        console.print(
            f"{num_pages} pages of sample reports, {num} vectors of {dim} dimensions each: {size:,} bytes a page; the "
            "embedded model is a miniature that reads only such reports\n"
        )
        searches = []
        for query in queries or asked:
            grades = asked.get(query)
            hits = []
            for found in library.search(query, HITS, by="vectors"):
                page = f"{Path(found.source).relative_to(folder.absolute()).as_posix()}#page={found.page}"
                hits.append(Hit(page, MARKS[grades.get(Path(page).name, 0)] if grades else ""))
            searches.append(Search(query, hits))
    _print(searches, console, is_known=not queries)
    return searches


def _ask_samples() -> dict[str, dict[str, int]]:
    """Choose a sample question of each kind, about different reports, with the grades of pages that count for it."""
    by_kind: dict[str, list[dict[str, str]]] = {}
    for row in _read_rows("queries.jsonl"):
        by_kind.setdefault(row["kind"], []).append(row)
    groups = list(by_kind.values())
    step = len(groups[0]) // len(groups)
    chosen = {group[i * step]["id"]: group[i * step]["query"] for i, group in enumerate(groups)}
    asked: dict[str, dict[str, int]] = {query: {} for query in chosen.values()}
    for row in _read_rows("qrels.jsonl"):
        if row["query"] in chosen:
            asked[chosen[row["query"]]][row["page"]] = row["grade"]
    return asked


def _read_rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines()]


def write_samples(folder: str | Path) -> Path:
    """Copy the sample set, as `randslot evaluate --data` takes it, to a new folder: reports, questions and pairs."""
    with resources.as_file(SAMPLES) as source:
        return Path(shutil.copytree(source, folder, dirs_exist_ok=True))


def _write(file: Path, content: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write into {file.parent}: {error.strerror or error}") from error


def _index(library: Library, folder: Path, console: Console) -> int:
    """Index the reports, of three pages each, and return how many pages there are."""
    num_pages = 3 * len(list(folder.glob("*.pdf")))
    columns = TextColumn("reading pages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=num_pages)
        library.add(folder, batch=10, progress=lambda now: bar.update(task, completed=now.pages_done))
    return num_pages


# -- what is shown


def _print(searches: list[Search], console: Console, *, is_known: bool) -> None:
    """Print queries and their hits; how many were answered, if that is known."""
    first = among = 0
    for search in searches:
        console.print(Text(f"? {search.query}", style="bold"))
        for rank, hit in enumerate(search.hits, start=1):
            file, _, number = Path(hit.page).name.partition("#page=")
            console.print(Text.assemble(f"  {rank}. {file}  page {number}  ", (hit.note, "green")))
            if hit.snippet is not None and (rank == 1 or hit.note):
                console.print(Padding(mark_words(hit.snippet), (0, 2, 0, 5)), soft_wrap=False)
        console.print()
        notes = [hit.note for hit in search.hits]
        first += notes[:1] == [MARKS[ANSWERS]]
        among += MARKS[ANSWERS] in notes
    if is_known:
        num = len(searches)
        console.print(f"the first page answers {first} of {num} questions, and the first {HITS} answer {among}\n")


def _make_html(parts: list[tuple[str, str, list[Search]]], folder: Path) -> str:
    """Make a page with everything in it: no file, script or font from elsewhere."""
    template = Template((resources.files("randslot") / "demo.html").read_text(encoding="utf-8"))
    content = []
    for title, text, searches in parts:
        content.append(f"<h2>{escape(title)}</h2>\n<p>{escape(text)}</p>")
        for search in searches:
            hits = "\n".join(_hit_html(hit, folder) for hit in search.hits)
            content.append(f"<section>\n<h3>{escape(search.query)}</h3>\n<ol>\n{hits}\n</ol>\n</section>")
    return template.substitute(searches="\n".join(content))


def _hit_html(hit: Hit, folder: Path) -> str:
    file, _, number = Path(hit.page).name.partition("#page=")
    name = f"{escape(file)}, page {number}"
    note = f' <span class="note">{escape(hit.note)}</span>' if hit.note else ""
    thumbnail = BytesIO()
    open_page(str(folder / hit.page), pixels=320 * 400).quantize(32).save(thumbnail, "PNG", optimize=True)
    picture = f"data:image/png;base64,{base64.b64encode(thumbnail.getvalue()).decode()}"
    marks = ""
    for box in hit.boxes:
        left, top, right, bottom = (100 * side for side in box)
        marks += f'<i style="left:{left:.2f}%;top:{top:.2f}%;width:{right - left:.2f}%;height:{bottom - top:.2f}%"></i>'
    return (
        f'<li><a class="page" href="{escape(hit.page)}"><img src="{picture}" alt="{name}">{marks}</a>'
        f'<p><span class="name">{name}</span>{note}{_snippet_html(hit.snippet)}</p></li>'
    )


def _snippet_html(snippet: Snippet | None) -> str:
    if snippet is None:
        return ""
    parts = []
    end = 0
    for start, stop in snippet.marks:
        parts.append(f"{escape(snippet.text[end:start])}<mark>{escape(snippet.text[start:stop])}</mark>")
        end = stop
    return f'<br><span class="snippet">{"".join(parts)}{escape(snippet.text[end:])}</span>'
