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

# Titles that any document may have do not say which page is meant.
GENERIC = frozenset(
    """abstract, acknowledgements, acknowledgments, appendix, background, bibliography, conclusion, conclusions,
    contents, copyright, credits, discussion, example, examples, foreword, further reading, getting started, glossary,
    index, introduction, license, list of figures, list of tables, notes, overview, preface, references, results,
    see also, summary, table of contents, title, usage""".replace("\n   ", "").split(", ")
)


@dataclass
class FoundPairs:
    """The pairs from a folder of PDFs, files without any, and how many titles were dropped as generic or repeated."""

    pairs: list[dict[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    without_outline: list[str] = field(default_factory=list)
    generic: int = 0
    repeated: int = 0


def find_pairs(folder: Path) -> FoundPairs:
    """Make a pair of every useful outline entry of the PDFs below a folder.

    A title is dropped if it is generic or too short, or if it names more than one page of the same PDF or of another.
    """
    found = FoundPairs()
    useful = []
    for title, page in _read_outlines(folder, found):
        if is_useful(title):
            useful.append((title, page))
        else:
            found.generic += 1
    counts = Counter(title.casefold() for title, _ in useful)
    for title, page in useful:
        if counts[title.casefold()] == 1:
            found.pairs.append({"query": title, "image": page})
        else:
            found.repeated += 1
    return found


def _read_outlines(folder: Path, found: FoundPairs) -> list[tuple[str, str]]:
    """Return the different (title, page) entries of all PDFs below a folder; note the files that have none."""
    entries: list[tuple[str, str]] = []
    for file in list_pdfs(folder):
        try:
            titles = list(read_outline(file))
        except pdfium.PdfiumError as error:
            found.failed.append(f"{file}: {error}")
            continue
        if not titles:
            found.without_outline.append(str(file))
        for title, page in titles:
            entries.append((title, f"{file.relative_to(folder)}#page={page}"))
    return list(dict.fromkeys(entries))


def list_pdfs(folder: Path) -> list[Path]:
    """Return the PDFs below a folder.

    Errors: UsageError if there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}")
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".pdf" and path.is_file())


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
    """Remove the number before a title, and extra spaces."""
    title = re.sub(r"\s+", " ", title.replace("\x00", "")).strip()
    return NUMBER.sub("", title, count=1) if NUMBER.match(title) else title


def is_useful(title: str) -> bool:
    """Whether a title says enough to search by."""
    return (
        len(title) >= 4
        and title.casefold().strip(" .:") not in GENERIC
        and re.search(r"[^\W\d_]{3}", title) is not None
    )


def write_pairs(found: FoundPairs, folder: Path, file: Path) -> None:
    """Write pairs as JSON lines; page paths are relative to the folder of that file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for pair in found.pairs:
            place = os.path.relpath(folder.resolve() / pair["image"], file.parent.resolve())
            lines.write(json.dumps(pair | {"image": place}, ensure_ascii=False) + "\n")
