"""Pairs from PDFs without labelling: an outline's entry is a (section title -> page) pair."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pypdfium2 as pdfium

from ..errors import UsageError

# Titles that could stand on any document's page say nothing about which one.
GENERIC = frozenset(
    """abstract, acknowledgements, acknowledgments, appendix, background, bibliography, conclusion, conclusions,
    contents, copyright, credits, discussion, example, examples, foreword, further reading, getting started, glossary,
    index, introduction, license, list of figures, list of tables, notes, overview, preface, references, results,
    see also, summary, table of contents, title, usage""".replace("\n   ", "").split(", ")
)


@dataclass
class Found:
    """What a folder of PDFs gave: pairs, files that could not be read, titles that were dropped."""

    pairs: list[dict[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    without_outline: list[str] = field(default_factory=list)
    generic: int = 0
    repeated: int = 0


def find_pairs(folder: Path) -> Found:
    """Make a pair of every useful outline entry of the PDFs below a folder.

    A title is dropped if it is generic or too short, or if it names more than one page of the same PDF or of another.
    """
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}")
    found = Found()
    entries: list[tuple[str, str]] = []
    for file in sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".pdf" and path.is_file()):
        try:
            titles = list(read_outline(file))
        except pdfium.PdfiumError as error:
            found.failed.append(f"{file}: {error}")
            continue
        if not titles:
            found.without_outline.append(str(file))
        entries += [(title, f"{file.relative_to(folder)}#page={page}") for title, page in titles]
    useful = [(title, page) for title, page in dict.fromkeys(entries) if is_useful(title)]
    found.generic = len(dict.fromkeys(entries)) - len(useful)
    counts = Counter(title.casefold() for title, _ in useful)
    found.pairs = [{"query": title, "image": page} for title, page in useful if counts[title.casefold()] == 1]
    found.repeated = len(useful) - len(found.pairs)
    return found


def read_outline(file: Path) -> Iterator[tuple[str, int]]:
    """Yield each outline entry's title and page, counted from 1."""
    with pdfium.PdfDocument(file) as pdf:
        for bookmark in pdf.get_toc():
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            title = clean_title(bookmark.get_title() or "")
            if title and index is not None:
                yield title, index + 1


NUMBER = re.compile(
    r"(?:(?i:chapter|section|appendix|part)\s+[\dA-Z]{1,3}(?:\.\d+)*[.:)]?|\d{1,2}(?:\.\d+)*[.:)]?|[A-Z](?:\.\d+)+[.:)]?|[A-Z][.:)])\s+"
)


def clean_title(title: str) -> str:
    """Take the number before a title away, and extra spaces."""
    title = re.sub(r"\s+", " ", title.replace("\x00", "")).strip()
    return NUMBER.sub("", title, count=1) if NUMBER.match(title) else title


def is_useful(title: str) -> bool:
    """Whether a title says enough to search by."""
    return (
        len(title) >= 4
        and title.casefold().strip(" .:") not in GENERIC
        and re.search(r"[^\W\d_]{3}", title) is not None
    )


def write_pairs(found: Found, folder: Path, file: Path) -> None:
    """Write pairs as JSON lines; page paths count from the folder of that file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for pair in found.pairs:
            place = os.path.relpath(folder.resolve() / pair["image"], file.parent.resolve())
            lines.write(json.dumps(pair | {"image": place}, ensure_ascii=False) + "\n")
