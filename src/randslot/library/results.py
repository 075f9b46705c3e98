"""What a library answers: how far a run is and what it did, pages that were found, and what the library holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from ..pages import PIXELS, open_file_page


@dataclass(frozen=True)
class Progress:
    """How far a run is; `finished` are the files that became visible since the last report."""

    files_done: int
    num_files: int
    pages_done: int
    num_pages: int
    finished: tuple[str, ...] = ()


@dataclass
class Summary:
    """What a run did: the files by what became of them, the pages stored and encoded, the time."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unchanged: int = 0
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    pages: int = 0
    encoded: int = 0
    vector_bytes_per_page: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Match:
    """Which page readout was nearest to a query readout, both from 1, and how near."""

    query: int
    page: int
    similarity: float


@dataclass(frozen=True)
class Hit:
    """A page that was found: its id, its file, its number from 1, its score, and the matches that add up to it.

    file: the id of the version of the file that the page belongs to.
    """

    id: str
    source: str
    page: int
    score: float
    matches: tuple[Match, ...]
    metadata: Mapping[str, Any]
    file: str = ""

    def image(self, pixels: int = PIXELS) -> Image.Image:
        """Open the page, from the file that it is in.

        Errors: RandSlotError if the file is not there any more, or cannot be read.
        """
        return open_file_page(Path(self.source), self.page, pixels)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Status:
    """What a library holds: files and pages that can be found, files that are not complete yet, sizes, and its model.

    bytes: on disk, with codes, payload and the list of files; of a library on a server, of the vectors alone.
    vector_bytes_per_page: 0 if pages of this model differ in their number of vectors.
    """

    folder: str
    files: int
    pages: int
    pending: int
    missing: int
    bytes: int
    bytes_per_page: int
    vector_bytes_per_page: int
    model: Mapping[str, Any]
    format: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
