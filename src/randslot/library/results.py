"""What a library answers: how far a run is and what it did, pages that were found, and what the library holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import pages
from ..pages import Box
from ..pages.formats import PIXELS
from ..words.snippets import Snippet

if TYPE_CHECKING:
    from PIL import Image

By = Literal["words", "vectors", "both"]
BY: tuple[By, ...] = ("words", "vectors", "both")


@dataclass(frozen=True)
class Progress:
    """How far a run is; `finished` are the files that became visible since the last report.

    stage: what is being done to pages: "reading", or for pages that are stored already "words", "counting", "scans",
    "vectors", "sketches"; "queries" are counted in place of pages.
    """

    files_done: int
    num_files: int
    pages_done: int
    num_pages: int
    finished: tuple[str, ...] = ()
    stage: str = "reading"


@dataclass
class Summary:
    """What a run did: the files by what became of them, the pages stored and encoded, the time.

    links: to folders, not followed. known_failures: failed files that failed in the last run for the same reason.
    by_ocr: pages read by OCR; ocr_seconds: its time. without_text: pages of the whole library that keyword search
    cannot find.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unchanged: int = 0
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    known_failures: list[str] = field(default_factory=list)
    pages: int = 0
    encoded: int = 0
    vector_bytes_per_page: int = 0
    seconds: float = 0.0
    by_ocr: int = 0
    ocr_seconds: float = 0.0
    without_text: int = 0


@dataclass(frozen=True)
class Match:
    """Which page readout was nearest to a query readout, both from 1, and how near."""

    query: int
    page: int
    similarity: float


@dataclass(frozen=True)
class Copy:
    """Where a page is that is identical to one that was found; `file` as in `Hit`."""

    source: str
    page: int
    file: str = ""


@dataclass(frozen=True)
class Hit:
    """A page that was found: its id, its file, its number from 1, and its score.

    score: BM25 by words, MaxSim by vectors, by both a sum of normalised scores; it compares pages of one search only.
    matches: of readouts, where vectors were compared. file: the id of the version of the file that the page belongs to.
    snippet: a part of the text with the words of the query. boxes: of these words, in fractions of the page. best: the
    one to look at first. passage: boxes of the lines that a model which reads text found nearest, if it reads in parts.
    copies: identical pages, if they were asked for as one. twin: equal for hits of one search that are copies. fields:
    where words of the query are: the file's "name" or "folder", the page's "title", "section", "heading" or "text".
    rerank: the score by which a reranker has put this hit into its place. gone: its file is no longer on disk.
    library: where it was found, if several were searched together.
    """

    id: str
    source: str
    page: int
    score: float
    matches: tuple[Match, ...]
    metadata: Mapping[str, Any]
    file: str = ""
    by: By = "vectors"
    snippet: Snippet | None = None
    boxes: tuple[Box, ...] = ()
    best: Box | None = None
    copies: tuple[Copy, ...] = ()
    twin: str | None = field(default=None, compare=False)
    passage: tuple[Box, ...] = ()
    fields: tuple[str, ...] = ()
    rerank: float | None = None
    gone: bool = False
    library: str = ""

    def image(self, pixels: int = PIXELS) -> Image.Image:
        """Open the page, from the file that it is in.

        Errors: RandSlotError if the file is not there any more, or cannot be read.
        """
        return pages.open_file_page(Path(self.source), self.page, pixels)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        for name in ("twin", "best", "passage"):
            del values[name]
        if self.rerank is None:
            del values["rerank"]
        if not self.library:
            del values["library"]
        return values


@dataclass
class QueryResult:
    """What a search found for one query: hits, best first, by words, vectors or both.

    by: "vectors" also in a search by both if no page has a word of the query: its hits are only similar in meaning.
    corrected: the query that was searched for, if words of the given one are on no page and like others that are.
    unknown: words of the query that no page has. without_text: if nothing was found by words, how many pages of the
    library no search by words can find. is_cut: the search took too long, and some hits or snippets are missing.
    rerank_note: why hits are in their first order, if a reranker failed or took too long. filter_note: why no file
    passes the filters, and what there is.
    """

    by: By
    hits: list[Hit] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    corrected: str = ""
    without_text: int = 0
    is_cut: bool = False
    rerank_note: str = ""
    filter_note: str = ""


@dataclass(frozen=True)
class Status:
    """What a library holds: files and pages that can be found, files that are not complete yet, sizes, and its model.

    bytes: on disk, with codes, payload and the list of files; on a server, only of the vectors.
    vector_bytes_per_page: the mean of some pages if they differ; 0 without a model. model: None for a library without
    vectors. language: the usual one; None if no page has text. languages: that one, and others that pages are in.
    origins: pages by where their text was found; see `StoredText`. notes: for people who search the library.
    sketches: how searches use them; empty if there are none. reads: whether the model reads the pages; None if unknown.
    """

    folder: str
    files: int
    pages: int
    pending: int
    missing: int
    bytes: int
    bytes_per_page: int
    vector_bytes_per_page: int
    model: Mapping[str, Any] | None
    format: int
    language: str | None = None
    languages: tuple[str, ...] = ()
    with_vectors: int = 0
    origins: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sketches: str = ""
    reads: bool | None = None

    @property
    def with_text(self) -> int:
        """How many pages have text, from the file or by OCR."""
        return self.origins.get("layer", 0) + self.origins.get("ocr", 0)
