"""The demo, in the terminal and as HTML.

It searches a real document by words: the project's handbook. Then it shows the method: the embedded model reads sample
reports as images, four vectors per page.
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

from .errors import MissingError, UsageError
from .library.library import Library, delete_library
from .library.models import EMBEDDED
from .library.terminal import mark_words, print_styled, show_progress
from .pages import Box, open_page
from .words.snippets import Snippet

HITS = 3  # for each query
ANSWERS = "answers it"
SAMPLES = resources.files("randslot") / "data" / "samples"


@dataclass(frozen=True)
class Hit:
    """A page found by a search: its path, its relevance if known, and the words found on it."""

    page: str
    note: str
    snippet: Snippet | None = None
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Part:
    """A part of the demo. searches: hits by query, best first."""

    title: str
    text: str
    searches: dict[str, list[Hit]]


def run_demo(folder: Path, queries: list[str]) -> Path:
    """Search the handbook and sample reports in a folder, print the hits, and return the path of `demo.html`.

    Without queries, use questions about the handbook, and one question of each kind about the sample reports.
    """
    if any(not query.strip() for query in queries):
        raise UsageError("empty query: enter at least one word")
    parts = [_show_words(folder, queries)]
    try:
        parts.append(_show_vectors(folder, queries))
    except MissingError as error:
        text = (
            "The second part of the demo searches sample pages by vectors: a small embedded model computes four per "
            "page from its image."
        )
        parts.append(Part("The method", f"{text} {error}", {}))
        print(f"{text}\n{error}\n")
    file = folder / "demo.html"
    file.write_text(_make_html(parts, folder), encoding="utf-8")
    return file


def _show_words(folder: Path, queries: list[str]) -> Part:
    """Search the handbook by words."""
    known = {} if queries else read_questions()
    handbook = folder / "handbook.pdf"
    folder.mkdir(parents=True, exist_ok=True)
    handbook.write_bytes((resources.files("randslot") / handbook.name).read_bytes())
    delete_library(folder / "words")
    title = "Keyword search in a real document"
    searches = {}
    with Library(folder / "words") as library:
        summary = library.add(handbook)
        print_styled((title, "bold underline"))
        print(f"{summary.pages} pages of {handbook}, read in {summary.seconds:.1f} s\n")
        for query in queries or known:
            hits = []
            for found in library.search(query, HITS, boxes=True):
                note = ANSWERS if found.page == known.get(query) else ""
                hits.append(Hit(f"{handbook.name}#page={found.page}", note, found.snippet, found.boxes))
            searches[query] = hits
    _print(searches, is_known=not queries)
    text = "The handbook of this project. Reading its text took seconds; keyword search needs no model."
    return Part(title, text, searches)


def read_questions() -> dict[str, int]:
    """Return questions about the handbook, with the page that answers each."""
    content = (resources.files("randslot") / "handbook.json").read_text(encoding="utf-8")
    return {one["question"]: one["page"] for one in json.loads(content)}


def _show_vectors(folder: Path, queries: list[str]) -> Part:
    """Search sample pages by vectors."""
    delete_library(folder / "library")  # may be of another version of the model
    title = "The method: four vectors per page, from its image"
    print_styled((title, "bold underline"))
    marks = {2: ANSWERS, 1: "related", 0: ""}
    searches = {}
    with Library(folder / "library", EMBEDDED) as library:
        asked = _choose_questions()
        (folder / "reports").mkdir(exist_ok=True)
        for file in (SAMPLES / "pages").iterdir():
            (folder / "reports" / file.name).write_bytes(file.read_bytes())
        with show_progress(False) as progress:
            library.add(folder / "reports", batch=10, progress=progress)
        assert library.binding is not None
        num, dim = library.binding.num_vectors("page"), library.binding.dimension
        size = library.status().vector_bytes_per_page
        print(
            f"{len(library)} pages of sample reports, {num} vectors of {dim} dimensions each: {size:,} bytes per page; "
            "the embedded model is tiny and reads only these reports\n"
        )
        for query in queries or asked:
            grades = asked.get(query, {})
            hits = []
            for found in library.search(query, HITS, by="vectors"):
                page = f"{Path(found.source).relative_to(folder.absolute()).as_posix()}#page={found.page}"
                hits.append(Hit(page, marks[grades.get(Path(page).name, 0)]))
            searches[query] = hits
    _print(searches, is_known=not queries)
    text = (
        "Sample reports. The embedded model reads the image of each page and stores four vectors. It is a tiny model "
        "that shows how the method works; it reads only these reports."
    )
    return Part(title, text, searches)


def _choose_questions() -> dict[str, dict[str, int]]:
    """Choose a sample question of each kind, about different reports, with the grades of relevant pages."""
    by_kind: dict[str, list[dict[str, str]]] = {}
    for line in (SAMPLES / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        by_kind.setdefault(row["kind"], []).append(row)
    chosen = {}
    for i, rows in enumerate(by_kind.values()):
        row = rows[i * len(rows) // len(by_kind)]
        chosen[row["id"]] = row["query"]
    asked: dict[str, dict[str, int]] = {query: {} for query in chosen.values()}
    for line in (SAMPLES / "qrels.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["query"] in chosen:
            asked[chosen[row["query"]]][row["page"]] = row["grade"]
    return asked


def write_samples(folder: str | Path) -> Path:
    """Copy the sample set (reports, questions and pairs) to a folder, for `randslot evaluate --data`."""
    with resources.as_file(SAMPLES) as source:
        return Path(shutil.copytree(source, folder, dirs_exist_ok=True))


# -- output


def _print(searches: dict[str, list[Hit]], *, is_known: bool) -> None:
    """Print queries and their hits, and the number of answered questions, if known."""
    first = among = 0
    for query, hits in searches.items():
        print_styled((f"? {query}", "bold"))
        for rank, hit in enumerate(hits, start=1):
            file, _, number = Path(hit.page).name.partition("#page=")
            print_styled((f"  {rank}. {file}  page {number}  ", ""), (hit.note, "green"))
            if hit.snippet is not None and (rank == 1 or hit.note):
                print_styled(*mark_words(hit.snippet), indent=5)
        print()
        notes = [hit.note for hit in hits]
        first += notes[:1] == [ANSWERS]
        among += ANSWERS in notes
    if is_known:
        num = len(searches)
        print(f"the first hit answers {first} of {num} questions, the first {HITS} answer {among}\n")


def _make_html(parts: list[Part], folder: Path) -> str:
    """Make a self-contained HTML page."""
    template = Template((resources.files("randslot") / "demo.html").read_text(encoding="utf-8"))
    content = []
    for part in parts:
        content.append(f"<h2>{escape(part.title)}</h2>\n<p>{escape(part.text)}</p>")
        for query, hits in part.searches.items():
            shown = "\n".join(_hit_html(hit, folder) for hit in hits)
            content.append(f"<section>\n<h3>{escape(query)}</h3>\n<ol>\n{shown}\n</ol>\n</section>")
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
    snippet = ""
    if hit.snippet is not None:
        text, end = "", 0
        for start, stop in hit.snippet.marks:
            text += f"{escape(hit.snippet.text[end:start])}<mark>{escape(hit.snippet.text[start:stop])}</mark>"
            end = stop
        snippet = f'<br><span class="snippet">{text}{escape(hit.snippet.text[end:])}</span>'
    return (
        f'<li><a class="page" href="{escape(hit.page)}"><img src="{picture}" alt="{name}">{marks}</a>'
        f'<p><span class="name">{name}</span>{note}{snippet}</p></li>'
    )
