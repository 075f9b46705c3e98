"""What a page of a model takes, told as soon as its first pages are encoded: before an hour has gone into it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from ..stores.store import BYTES_PER_NUMBER, Vectors
from .reader import FileReader, ReadPage, WantedPages

NOTES = logging.getLogger("randslot")
RANDSLOT_BYTES = BYTES_PER_NUMBER * 4 * 2048  # four vectors a page, as the paper's models make them


class TellingReader:
    """Reads as another reader does, and tells what the first pages take."""

    def __init__(self, reader: FileReader) -> None:
        self.reader, self.told = reader, False

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        for pages in self.reader.read(wanted):
            vectors = [page.vectors for page in pages if page.vectors is not None]
            if vectors and not self.told:
                NOTES.warning("%s", describe_size(vectors))
                self.told = True
            yield pages


def describe_size(pages: Sequence[Vectors]) -> str:
    """Return what pages like these take: "about 760 vectors of 128: 195 KB a page, 12 times RandSlot"."""
    counts = [len(vectors) for vectors in pages]
    num, dim = round(sum(counts) / len(counts)), pages[0].shape[1]
    size = BYTES_PER_NUMBER * num * dim
    about = "" if len(set(counts)) == 1 else "about "
    what = "1 vector" if num == 1 else f"{num:,} vectors"
    shown = f"{size / 1000:.0f} KB" if size >= 10_000 else f"{size / 1000:.1f} KB"
    ratio = size / RANDSLOT_BYTES
    if ratio >= 1.5:
        beside = f", {ratio:.0f} times RandSlot" if ratio >= 9.5 else f", {ratio:.1f} times RandSlot"
    else:
        beside = ", as RandSlot" if ratio > 0.67 else f", {ratio:.2g} of RandSlot"
    return f"{about}{what} of {dim:,}: {shown} a page{beside}"
