"""Write a set of sample reports: PDFs, questions about them, and the pages that answer.

pages/          the reports
queries.jsonl   {"id", "query", "kind"}
qrels.jsonl     {"query": id, "page": path below pages/, "grade": 2 answers it, 1 has all but one piece of evidence}
pairs.jsonl     {"query", "image"}: pairs to train retrieval on
texts.jsonl     {"text", "image"}: what is written on each page

and, if a curriculum is asked for:
reading.parquet "text", "image": words, blocks and pages to read
lessons.jsonl   {"query", "image"}: parts of pages with lines to find them by, then whole pages with lines or
                questions, five for each
parts/          the parts of pages
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pypdfium2 as pdfium

from randslot.errors import UsageError

from .drawing import POINTS, draw_report, draw_words
from .reports import ANSWERS, RELATED, Page, Question, Report, arrange, ask, make_reports

FEW, MANY = 500, 2000  # reports in the first lessons, and in the last: repeating a few pages first speeds up learning
PARTS = (1, 2, 3)  # numbers of blocks to keep in easy lessons, the rest blank
EASY, EARLY, LATE = 5, 12, 14  # repetitions of each page: a few in parts, a few whole, then many whole
LINES = (1, 1, 2, 2, 3)  # maximum number of lines per query made of lines
LINES_LATER = 1 / 3  # the share of whole pages with lines as queries; the others have questions


@dataclass(frozen=True)
class Asked:
    """A question with the grades of its relevant pages."""

    id: str
    question: Question
    grades: dict[str, int]  # by page id: "name.pdf#page=1"


def page_ids(report: Report) -> list[str]:
    """Return the ids of a report's pages: file and number, as `open_page` takes them."""
    return [f"{report.name}.pdf#page={number}" for number in range(1, len(report.pages) + 1)]


def ask_all(reports: Iterable[Report]) -> list[Asked]:
    """Ask about every page of these reports, and grade all their pages for each question."""
    pages = {id: page for report in reports for id, page in zip(page_ids(report), report.pages, strict=True)}
    holders = _holders(pages)
    asked = []
    for id, page in pages.items():
        for question in ask(page, Random(id)):
            counts = Counter(holder for item in question.needs for holder in holders[item])
            values = {len(question.needs): ANSWERS, len(question.needs) - 1: RELATED}
            grades = {holder: values[count] for holder, count in sorted(counts.items()) if count in values}
            asked.append(Asked(f"{id} {question.kind}", question, grades))
    return asked


def _holders(pages: dict[str, Page]) -> dict[tuple[str, str], set[str]]:
    """Return which pages have each piece of evidence."""
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    for id, page in pages.items():
        for item in page.evidence():
            holders[item].add(id)
    return holders


def write_set(
    folder: Path, num_reports: int, *, split: str, seed: int, curriculum: bool = False, layout: str = ""
) -> tuple[int, int]:
    """Write a set into a new or empty folder; return the numbers of pages and questions.

    `layout` is one order of blocks for all pages, as in "table-chart-text"; by default, each page has its own.
    """
    if num_reports < 1:
        raise UsageError(f"a set needs at least 1 report, not {num_reports}")
    _make_empty(folder)
    reports = list(make_reports(num_reports, split=split, seed=seed))
    if layout:
        reports = [arrange(report, layout) for report in reports]
    for report in reports:
        (folder / "pages" / f"{report.name}.pdf").write_bytes(draw_report(report))
    pages = [(id, page) for report in reports for id, page in zip(page_ids(report), report.pages, strict=True)]
    asked = ask_all(reports)
    right = ((one, id) for one in asked for id, value in one.grades.items() if value == ANSWERS)
    _write(folder / "pairs.jsonl", ({"query": one.question.text, "image": f"pages/{id}"} for one, id in right))
    _write(
        folder / "queries.jsonl",
        ({"id": one.id, "query": one.question.text, "kind": one.question.kind} for one in asked),
    )
    _write(
        folder / "qrels.jsonl",
        ({"query": one.id, "page": id, "grade": value} for one in asked for id, value in one.grades.items()),
    )
    _write(folder / "texts.jsonl", ({"text": page.text, "image": f"pages/{id}"} for id, page in pages))
    if curriculum:
        _write_reading(folder / "reading.parquet", reports, Random(seed))
        _write(folder / "lessons.jsonl", _make_lessons(folder, reports[:MANY], Random(seed)))
    return len(pages), len(asked)


def _make_empty(folder: Path) -> None:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: choose another folder")
        (folder / "pages").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error


def _write_reading(file: Path, reports: list[Report], random: Random) -> None:
    """Write reading lessons in order: single words, five per page, then a block of each page, then whole pages, twice.

    They are images: a PDF page would be rendered at the model's maximum size, but single words must stay small.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    words: list[Lesson] = []
    for report in reports:
        chosen = [word for page in report.pages for word in random.sample(page.text.split(), 5)]
        words += zip(chosen, _render(draw_words(chosen, report.style)), strict=True)
    blocks = _draw(reports, lambda page: random.choice(page.clippings()))
    pages = _draw(reports, lambda page: page)
    rows = [row for group in (words, blocks, pages, pages) for row in random.sample(group, len(group))]
    pq.write_table(pa.table({"text": [text for text, _ in rows], "image": [image for _, image in rows]}), file)


Lesson = tuple[str, bytes]  # text, image


def _draw(reports: list[Report], change: Callable[[Page], Page]) -> list[Lesson]:
    """Apply a change to every page; return its text and image."""
    drawn: list[Lesson] = []
    for report in reports:
        changed = replace(report, pages=tuple(map(change, report.pages)))
        drawn += zip((page.text for page in changed.pages), _render(draw_report(changed)), strict=True)
    return drawn


def _make_lessons(folder: Path, reports: list[Report], random: Random) -> Iterator[dict[str, Any]]:
    """Yield pages with queries, every page once in each pass.

    First parts of a few pages with lines, then those pages, a third of them with lines and the rest with questions,
    then many pages in the same way.
    """
    few = [part for report in reports[:FEW] for part in _write_parts(folder / "parts", report, random)]
    for _ in range(EASY):
        for versions in random.sample(few, len(few)):
            image, page = random.choice(versions)
            yield {"query": _choose_lines(page, random), "image": image}
    ids = [(f"pages/{id}", page) for report in reports for id, page in zip(page_ids(report), report.pages, strict=True)]
    for pages in [ids[: len(few)]] * EARLY + [ids] * LATE:
        for image, page in random.sample(pages, len(pages)):
            lines = random.random() < LINES_LATER
            yield {"query": _choose_lines(page, random) if lines else _choose_questions(page, random), "image": image}


def _write_parts(folder: Path, report: Report, random: Random) -> Iterator[tuple[tuple[str, Page], ...]]:
    """Draw parts of a report's pages; yield the path and content of each page's parts and of the page."""
    folder.mkdir(exist_ok=True)
    versions = [[(f"pages/{id}", page) for id, page in zip(page_ids(report), report.pages, strict=True)]]
    for num in PARTS:
        pages = tuple(page.keep(num, random) for page in report.pages)
        part = replace(report, name=f"{report.name}-{num}", pages=pages)
        (folder / f"{part.name}.pdf").write_bytes(draw_report(part))
        versions.append([(f"parts/{id}", page) for id, page in zip(page_ids(part), pages, strict=True)])
    return zip(*versions, strict=True)


def _choose_lines(page: Page, random: Random) -> list[str]:
    lines = page.text.replace(".", "").splitlines()
    return [" ".join(random.sample(lines, min(num, len(lines)))) for num in LINES]


def _choose_questions(page: Page, random: Random) -> list[str]:
    return [question.text for question in ask(page, random)]


def _render(pdf: bytes) -> Iterator[bytes]:
    """Yield each page of a PDF as a PNG, at its layout resolution."""
    with pdfium.PdfDocument(pdf) as document:
        for page in document:
            buffer = BytesIO()
            page.render(scale=1 / POINTS).to_pil().save(buffer, "PNG", compress_level=1)
            yield buffer.getvalue()


def _write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
