"""The results of a library: progress and summaries of runs, hits of searches, and its status."""

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
    """The progress of a run. finished: files that became visible since the last report.

    stage: "reading", or for stored pages "words", "counting", "scans", "vectors", "sketches"; in the stage "queries",
    pages are queries.
    """

    files_done: int
    num_files: int
    pages_done: int
    num_pages: int
    finished: tuple[str, ...] = ()
    stage: str = "reading"


@dataclass
class Summary:
    """The summary of a run: files by outcome, pages stored and encoded, and the time.

    others: files of unsupported types. links: links to folders, not followed. known_failures: failed files that failed
    in the last run for the same reason. by_ocr: pages read by OCR; ocr_seconds: its time. without_text: pages of the
    whole library that keyword search cannot find.
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
    """The page vector nearest to a query vector, both counted from 1, and their similarity."""

    query: int
    page: int
    similarity: float


@dataclass(frozen=True)
class Copy:
    """A page that is identical to a hit; `file` as in `Hit`."""

    source: str
    page: int
    file: str = ""


@dataclass(frozen=True)
class Hit:
    """A page found by a search. page: its number, from 1.

    score: BM25 by words, MaxSim by vectors, a sum of normalised scores by both; comparable within one search only.
    matches: of query vectors with page vectors, if vectors were compared. file: the id of the file's version. snippet:
    an excerpt with words of the query. boxes: of these words, in fractions of the page. best: the most relevant box.
    passage: boxes of the lines nearest in meaning, if a text model encodes pages in windows. copies: identical pages,
    with `collapse`. twin: equal for hits of one search that are copies. fields: where words of the query are: the
    file's "name" or "folder", the page's "title", "section", "heading" or "text". rerank: the reranker's score. gone:
    its file is no longer on disk. library: the library it was found in, if several were searched together.
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
        """Render the page from its file.

        Errors: RandSlotError if the file no longer exists or cannot be read.
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
    """The result of a search for one query: hits, best first.

    by: "vectors" also in a search by both if no page has a word of the query: its hits are only similar in meaning.
    corrected: the query that was searched for, if typos were corrected. unknown: words of the query that no page has.
    without_text: if words found nothing, the number of pages without text. is_cut: the search hit its time limit, and
    some hits or snippets are missing. rerank_note: why hits were not reranked. filter_note: why no file passes the
    filters.
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
    """The status of a library. files, pages: searchable. pending: incomplete files. missing: files no longer on disk.

    bytes: on disk; on a server, only of the vectors. vector_bytes_per_page: the mean of some pages if they differ; 0
    without a model. model: None without vectors. language: the main one; None if no page has text. languages: all, the
    main one first. origins: pages by the origin of their text; see `StoredText`. notes: for people who search the
    library. sketches: how searches use them; empty if there are none. reads: whether the model can read the pages; None
    if unknown.
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
        """The number of pages with text, from the file or by OCR."""
        return self.origins.get("layer", 0) + self.origins.get("ocr", 0)
