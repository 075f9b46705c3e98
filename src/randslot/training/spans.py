"""Queries without labelling, where titles are too few: some words in a row of a page's text, each with its page."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..errors import RandSlotError
from ..pages.page import num_pages, read_file_text
from ..pages.pdf import OpenPdf
from .outlines import FoundPairs, is_useful, list_pdfs

LEAST, MOST = 2, 8  # words of a span


def add_spans(found: FoundPairs, folder: Path, num: int, seed: int = 0) -> None:
    """Add `num` spans of every page of the PDFs below a folder to the pairs that were found there.

    A span without a word, or that names several pages or is a title, is dropped. A page without text has none, and a
    file that cannot be read is noted.
    """
    dice = random.Random(seed)
    spans: dict[tuple[str, str], None] = {}
    for file in list_pdfs(folder):
        try:
            for span, number in read_spans(file, num, dice):
                spans[span, f"{file.relative_to(folder)}#page={number}"] = None
        except RandSlotError as error:
            if not any(line.startswith(f"{file}: ") for line in found.failed):  # its outline was not read either
                found.failed.append(f"{file}: {error}")
    counts = Counter(span.casefold() for span, _ in spans)
    counts.update(pair["query"].casefold() for pair in found.pairs)
    for span, page in spans:
        if not is_useful(span):
            found.generic += 1
        elif counts[span.casefold()] > 1:
            found.repeated += 1
        else:
            found.pairs.append({"query": span, "image": page})


def read_spans(file: Path, num: int, dice: random.Random) -> Iterator[tuple[str, int]]:
    """Yield `num` spans of each page of a PDF with its number, counted from 1.

    Errors: RandSlotError if it cannot be read.
    """
    kept = OpenPdf()
    try:
        for number in range(1, num_pages(file) + 1):
            for span in cut_spans(read_file_text(file, number, kept).text, num, dice):
                yield span, number
    finally:
        kept.close()


def cut_spans(text: str, num: int, dice: random.Random) -> list[str]:
    """Return `num` spans of a text, two to eight words in a row each; none of a text without words."""
    words = text.split()
    if not words:
        return []
    spans = []
    for _ in range(num):
        length = dice.randint(LEAST, MOST)
        first = dice.randrange(max(len(words) - length, 0) + 1)
        spans.append(" ".join(words[first : first + length]))
    return spans
