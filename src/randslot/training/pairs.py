"""Make training pairs from PDFs without labelling: section titles of outlines, and spans of words of pages."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium

from ..errors import RandSlotError, UsageError, in_one_line
from ..pages.page import num_pages, read_file_text
from ..pages.pdf import OpenPdf

# Generic titles.
GENERIC = frozenset(
    """abstract, acknowledgements, acknowledgments, appendix, background, bibliography, conclusion, conclusions,
    contents, copyright, credits, discussion, example, examples, foreword, further reading, getting started, glossary,
    index, introduction, license, list of figures, list of tables, notes, overview, preface, references, results,
    see also, summary, table of contents, title, usage""".replace("\n   ", "").split(", ")
)
NUMBER = re.compile(
    r"(?:(?i:chapter|section|appendix|part)\s+[\dA-Z]{1,3}(?:\.\d+)*[.:)]?|\d{1,2}(?:\.\d+)*[.:)]?|[A-Z](?:\.\d+)+[.:)]?|[A-Z][.:)])\s+"
)


@dataclass
class FoundPairs:
    """Pairs from a folder of PDFs, the files without pairs, and the number of generic or duplicate queries dropped."""

    pairs: list[dict[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    without_outline: list[str] = field(default_factory=list)
    generic: int = 0
    repeated: int = 0

    def add(self, queries: dict[tuple[str, str], None]) -> None:
        """Add (query, page) entries whose query is specific and identifies one page."""
        useful: dict[tuple[str, str], None] = {}
        for query, page in queries:
            if is_useful(query):
                useful[query, page] = None
            else:
                self.generic += 1
        counts = Counter(query.casefold() for query, _ in useful)
        counts.update(pair["query"].casefold() for pair in self.pairs)
        for query, page in useful:
            if counts[query.casefold()] == 1:
                self.pairs.append({"query": query, "image": page})
            else:
                self.repeated += 1


def find_pairs(folder: Path, spans: int = 0, seed: int = 0) -> FoundPairs:
    """Make a pair per specific outline title of the PDFs in a folder, and per span (`spans` a page)."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".pdf" and path.is_file())
    found, rng = FoundPairs(), random.Random(seed)
    titles: dict[tuple[str, str], None] = {}
    texts: dict[tuple[str, str], None] = {}
    for file in files:
        try:
            outline = list(read_outline(file))
            for title, number in outline:
                titles[title, f"{file.relative_to(folder)}#page={number}"] = None
            if not outline:
                found.without_outline.append(str(file))
            for span, number in read_spans(file, spans, rng) if spans else ():
                texts[span, f"{file.relative_to(folder)}#page={number}"] = None
        except (pdfium.PdfiumError, RandSlotError) as error:
            found.failed.append(f"{file}: {error}")
    found.add(titles)
    found.add(texts)
    return found


def read_outline(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the title and page number of each outline entry of a PDF."""
    with pdfium.PdfDocument(file) as pdf:
        for bookmark in pdf.get_toc():
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            title = clean_title(bookmark.get_title() or "")
            if title and index is not None:
                yield title, index + 1


def clean_title(title: str) -> str:
    """Strip the section number and extra spaces from a title."""
    title = re.sub(r"\s+", " ", title.replace("\x00", "")).strip()
    return NUMBER.sub("", title, count=1) if NUMBER.match(title) else title


def is_useful(title: str) -> bool:
    """Return whether a title is specific enough to search for."""
    is_generic = title.casefold().strip(" .:") in GENERIC
    return len(title) >= 4 and not is_generic and re.search(r"[^\W\d_]{3}", title) is not None


def read_spans(file: Path, num: int, rng: random.Random) -> Iterator[tuple[str, int]]:
    """Yield `num` spans of each page of a PDF with the page number."""
    kept = OpenPdf()
    try:
        for number in range(1, num_pages(file) + 1):
            for span in cut_spans(read_file_text(file, number, kept).text, num, rng):
                yield span, number
    finally:
        kept.close()


def cut_spans(text: str, num: int, rng: random.Random) -> list[str]:
    """Return `num` random spans of two to eight consecutive words; none for a text without words."""
    words = text.split()
    spans = []
    for _ in range(num if words else 0):
        length = rng.randint(2, 8)
        first = rng.randrange(max(len(words) - length, 0) + 1)
        spans.append(" ".join(words[first : first + length]))
    return spans


def write_pairs(pairs: Sequence[Mapping[str, Any]], folder: Path, file: Path) -> None:
    """Write pairs as JSON lines; page paths relative to the folder become relative to the file."""
    lines, here, there = [], folder.resolve(), file.parent.resolve()
    for pair in pairs:
        moved: dict[str, Any] = {"image": os.path.relpath(here / pair["image"], there)}
        if "negatives" in pair:
            moved["negatives"] = [os.path.relpath(here / page, there) for page in pair["negatives"]]
        lines.append(json.dumps({**pair, **moved}, ensure_ascii=False) + "\n")
    with in_one_line(f"write {file}", UsageError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines), encoding="utf-8")
