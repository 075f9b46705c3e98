"""Make study data from real manuals of Debian: pairs of section title and page for training, and held-out tasks.

    python -m research.studies.manual_pages data/study-manuals
    python -m research.studies.manual_pages data/study-manuals --spans 4    # only queries.jsonl, for a student

It writes pairs.jsonl (training: a title, and the beginning of its page's text), spans.jsonl (the same, plus random
words from the beginning of pages as queries, for a shared start), tasks/validation/NAME and tasks/test/NAME: sets for
`randslot evaluate --data`. Packages are fetched by name and unpacked, not installed. A package is in one split only,
and splits share no translation of a manual. The task "questions" has realistic questions about the test manuals; all
other queries are titles. queries.jsonl has words of all pages of the training manuals, including those without titles.

A title is kept if it is within the first characters of its page, which are all that a small model reads, and identifies
one page of its manual.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium

from randslot.pages import Page
from randslot.training.pairs import is_useful, read_outline, read_spans
from research.debian import unpack_debian
from research.manuals import list_questions

SEEN = 320  # a title must be within these first characters of a page: about 96 tokens
KEPT = 800  # characters of a page's text in a training pair
SPANS, SPAN_SEEN = 4, 200  # per training page, and from how many of its first characters
MOST_PAGES = 100  # of a held-out manual: those with titles first
SEED = 0

# Packages and their manuals; None: all PDFs but those left out. R's and LilyPond's references, and the code of LaTeX
# packages, are lists of names.
TRAINING: dict[str, tuple[str, ...]] = {
    "r-doc-pdf": ("refman.pdf", "fullrefman.pdf"),
    "bacula-doc": (),
    "debian-reference-en": (),
    "lilypond-doc-pdf": ("internals.pdf", "snippets.pdf"),
    "texlive-latex-recommended-doc": ("lwarp.pdf", "listings-devel.pdf", "unicode-math-code.pdf"),
    "gap-doc": (),
    "zsh-doc": (),
    "asymptote-doc": (),
    "pari-doc": (),
    "lammps-doc": (),
}
VALIDATION = {"gnuplot": ("gnuplot-doc", "gnuplot.pdf"), "krb5": ("krb5-doc", "admin.pdf")}
TEST = {
    "ngspice": ("ngspice-doc", "manual.pdf"),
    "octave": ("octave-doc", "octave.pdf"),
    "swig": ("swig4.0-doc", "SWIGDocumentation.pdf"),
    "openafs": ("openafs-doc", "auagd000.pdf"),
    "pyxplot": ("pyxplot-doc", "pyxplot.pdf"),
}
QUESTIONS = {"ngspice": "ngspice", "octave": "octave", "swig": "swig", "openafs-admin": "openafs", "pyxplot": "pyxplot"}


@dataclass(frozen=True)
class Manual:
    """A PDF, its titles by page (from 1), and the texts of those pages."""

    file: Path
    titles: dict[int, list[str]]
    texts: dict[int, str]


def read_manual(file: Path) -> Manual:
    """Read the titles of a manual that identify one page each and are at its beginning."""
    entries = list(dict.fromkeys(entry for entry in read_outline(file) if is_useful(entry[0])))
    counts = Counter(title.casefold() for title, _ in entries)
    titles: dict[int, list[str]] = {}
    texts: dict[int, str] = {}
    for title, number in entries:
        if counts[title.casefold()] > 1:
            continue
        if number not in texts:
            texts[number] = Page(file, number).text().text
        if plain(title) in plain(texts[number][:SEEN]):
            titles.setdefault(number, []).append(title)
    return Manual(file, titles, texts)


def plain(text: str) -> str:
    """Normalise text for comparing titles, ignoring all but letters and digits."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.casefold()).split())


def fetch(package: str, folder: Path) -> list[Path]:
    """Return the PDFs of a package, each once."""
    place = folder / package
    if not place.is_dir():
        part = folder / f"{package}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        unpack_debian(package, part)
        for packed in part.rglob("*.pdf.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        part.rename(place)
    found: dict[bytes, Path] = {}
    for file in sorted(place.rglob("*.pdf")):
        if file.is_file() and not file.is_symlink():
            found.setdefault(file.read_bytes(), file)
    return list(found.values())


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_pairs(output: Path, packages: Path) -> int:
    """Write the training pairs: one row per title."""
    rows: list[dict[str, Any]] = []
    for package, left_out in TRAINING.items():
        for file in fetch(package, packages):
            if file.name in left_out:
                continue
            manual = read_manual(file)
            for page, titles in manual.titles.items():
                rows += [{"query": title, "page": manual.texts[page][:KEPT]} for title in titles]
    write_lines(output / "pairs.jsonl", rows)
    write_lines(output / "spans.jsonl", cut_spans(rows))
    return len(rows)


def write_queries(output: Path, packages: Path, num: int) -> int:
    """Write training queries for a student: all titles of the training manuals, and words of each page."""
    dice = random.Random(SEED)
    queries: dict[str, None] = {}
    for package, left_out in TRAINING.items():
        for file in fetch(package, packages):
            if file.name not in left_out:
                found = [
                    *(title for title, _ in read_outline(file)),
                    *(span for span, _ in read_spans(file, num, dice)),
                ]
                queries |= dict.fromkeys(query for query in found if is_useful(query))
    write_lines(output / "queries.jsonl", [{"query": query} for query in queries])
    return len(queries)


def cut_spans(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return random spans from the beginning of every page, each with its page, interleaved with the titles."""
    dice = random.Random(SEED)
    spans: list[dict[str, Any]] = []
    for text in dict.fromkeys(row["page"] for row in rows):
        words = text[:SPAN_SEEN].split()
        for _ in range(SPANS):
            first, num = dice.randrange(max(len(words) - 3, 1)), dice.randint(2, 6)
            spans.append({"query": " ".join(words[first : first + num]), "page": text})
    mixed = [*rows, *spans]
    dice.shuffle(mixed)
    return mixed


def choose_pages(manual: Manual, also: set[int]) -> list[int]:
    """Return the pages of a task, in order: required pages, then pages with titles, then others."""
    dice = random.Random(SEED)
    with pdfium.PdfDocument(manual.file) as pdf:
        others = [number for number in range(1, len(pdf) + 1) if number not in manual.titles]
    titled = sorted(manual.titles)
    dice.shuffle(titled)
    dice.shuffle(others)
    chosen = list(dict.fromkeys([*sorted(also), *titled, *others]))[: max(MOST_PAGES, len(also))]
    return sorted(chosen)


def copy_pages(file: Path, pages: list[int], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with pdfium.PdfDocument(file) as pdf, pdfium.PdfDocument.new() as some:
        some.import_pages(pdf, [number - 1 for number in pages])
        some.save(target)
    # Remove the date and a random number, so that the same pages give the same file and study.
    made = re.sub(rb"/CreationDate\(D:\d{14}", b"/CreationDate(D:20000101000000", target.read_bytes())
    made = re.sub(rb"/ID\[<\w{32}><\w{32}>\]", b"/ID[<%b><%b>]" % (b"0" * 32, b"0" * 32), made)
    target.write_bytes(made)


def write_task(folder: Path, name: str, manual: Manual, pages: list[int]) -> None:
    """Write a set of pages of a manual, with their titles as queries."""
    copy_pages(manual.file, pages, folder / "pages" / f"{name}.pdf")
    queries: list[dict[str, Any]] = []
    grades: list[dict[str, Any]] = []
    for place, number in enumerate(pages, start=1):
        for title in manual.titles.get(number, []):
            id = f"{name}-{len(queries) + 1}"
            queries.append({"id": id, "query": title})
            grades.append({"query": id, "page": f"{name}.pdf#page={place}", "grade": 1})
    write_lines(folder / "queries.jsonl", queries)
    write_lines(folder / "qrels.jsonl", grades)


def write_questions(folder: Path, chosen: dict[str, list[int]]) -> None:
    """Write the questions about the test manuals as one more set, over the pages of all of them."""
    queries: list[dict[str, Any]] = []
    grades: list[dict[str, Any]] = []
    for question in list_questions():
        name = QUESTIONS.get(question["manual"])
        if name is None:
            continue
        queries.append({"id": question["id"], "query": question["query"]})
        for number, grade in question["pages"].items():
            place = chosen[name].index(int(number)) + 1
            grades.append({"query": question["id"], "page": f"{name}.pdf#page={place}", "grade": grade})
    for name in chosen:
        target = folder / "questions" / "pages" / f"{name}.pdf"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name / "pages" / f"{name}.pdf", target)
    write_lines(folder / "questions" / "queries.jsonl", queries)
    write_lines(folder / "questions" / "qrels.jsonl", grades)


def write_tasks(output: Path, packages: Path) -> None:
    asked: dict[str, set[int]] = {}
    for question in list_questions():
        if question["manual"] in QUESTIONS:
            numbers = asked.setdefault(QUESTIONS[question["manual"]], set())
            numbers.update(int(number) for number in question["pages"])
    for split, manuals in (("validation", VALIDATION), ("test", TEST)):
        chosen: dict[str, list[int]] = {}
        for name, (package, file_name) in manuals.items():
            (file,) = [file for file in fetch(package, packages) if file.name == file_name]
            manual = read_manual(file)
            chosen[name] = choose_pages(manual, asked.get(name, set()))
            write_task(output / "tasks" / split / name, name, manual, chosen[name])
            num = sum(len(manual.titles.get(number, [])) for number in chosen[name])
            print(f"{split} {name}: {len(chosen[name])} pages, {num} titles")
        if split == "test":
            write_questions(output / "tasks" / split, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--spans", type=int, default=0, metavar="N", help="spans per page; write only queries.jsonl")
    asked = parser.parse_args()
    output: Path = asked.output
    if asked.spans:
        print(f"{write_queries(output, output / 'packages', asked.spans)} queries to learn from")
        return
    print(f"{write_pairs(output, output / 'packages')} titles to train on")
    write_tasks(output, output / "packages")


if __name__ == "__main__":
    main()
