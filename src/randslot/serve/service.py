"""A library as a service: what the API answers, without HTTP. One process owns the library."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol

from ..errors import RandSlotError, first_line
from ..library.folder import is_kept
from ..library.library import Library
from ..library.manifest import File, show_folder, show_name, tell_apart
from ..library.results import By, Hit
from ..library.search import has_metadata
from ..library.sources import is_match
from ..library.stores.base import Vectors, page_id
from ..library.workers import WorkerPool
from ..pages import KINDS
from ..pages.formats import show_pages
from ..words.query import read_query
from ..words.snippets import Found
from ..words.tokens import tokenize
from .access import BATCH, CHOICES, HEALTH_SECONDS, HITS, RENDER_SECONDS, WAITING_SEARCHES, Refused, UploadLimits
from .batches import Batches
from .embeddings import Embeddings
from .uploads import Uploads

Sort = Literal["name", "folder", "pages", "size", "modified"]
MOST_YEAR = 9999


@dataclass(frozen=True)
class Choice:
    """What a document must be, as far as it is given.

    name: a part of the name in any case, or wildcards. folder: its name. first, last: days of its last change, in UTC.
    source: as in the library's filters.
    """

    name: str = ""
    folder: str | None = None
    first: date | None = None
    last: date | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether it says no more than the library's own filter by source can."""
        return self == Choice(source=self.source)

    def allows(self, file: File) -> bool:
        """Whether a document is meant."""
        day = show_modified(file).date()
        return (
            has_name(file, self.name)
            and (self.folder is None or show_folder(file) == self.folder)
            and (self.first is None or day >= self.first)
            and (self.last is None or day <= self.last)
            and has_metadata(file, self.metadata)
            and (self.source is None or is_match(self.source, file.source))
        )


@dataclass(frozen=True)
class Choices:
    """What documents can be chosen by, each with how many there are: the most frequent first, years by time."""

    folders: dict[str, int] = field(metadata={"description": "how many documents are in each"})
    years: dict[int, int] = field(metadata={"description": "how many documents were last changed in each"})
    metadata: dict[str, dict[str, int]] = field(metadata={"description": "by key, how many documents have each value"})


def list_choices(files: Iterable[File]) -> Choices:
    """Return what there is to choose from."""
    folders: Counter[str] = Counter()
    years: Counter[int] = Counter()
    metadata: dict[str, Counter[str]] = {}
    for file in files:
        folders[show_folder(file)] += 1
        years[show_modified(file).year] += 1
        for key, value in file.metadata.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            metadata.setdefault(key, Counter())[text] += 1
    return Choices(
        dict(folders.most_common(CHOICES)),
        dict(sorted(years.items(), reverse=True)[:CHOICES]),
        {key: dict(values.most_common(CHOICES)) for key, values in sorted(metadata.items())[:CHOICES]},
    )


def sort_files(files: list[File], by: Sort, descending: bool) -> list[File]:
    """Return documents in an order; equal ones by name."""
    keys: dict[Sort, Callable[[File], Any]] = {
        "name": lambda file: 0,
        "folder": lambda file: show_folder(file).lower(),
        "pages": lambda file: file.num_pages,
        "size": lambda file: file.size,
        "modified": lambda file: file.modified,
    }
    by_name = sorted(
        files, key=lambda file: (show_name(file).lower(), file.source), reverse=descending and by == "name"
    )
    return sorted(by_name, key=keys[by], reverse=descending)


def has_name(file: File, part: str) -> bool:
    """Whether a document has a text in its name, or a name that fits these wildcards."""
    name, part = show_name(file).lower(), part.lower()
    return part in name or fnmatchcase(name, part)


def show_modified(file: File) -> datetime:
    """Return when a file was last changed; what no calendar has becomes the first or the last moment that it has."""
    try:
        return datetime.fromtimestamp(file.modified // 10**9, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime(MOST_YEAR if file.modified > 0 else 1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Options:
    """How to search; queries with equal options can be answered together.

    source: as in the library's filters: a pattern, or the paths of the files that count.
    """

    k: int = 10
    source: str | frozenset[str] | None = None
    exact: bool = False
    by: By | None = None
    collapse: bool = False


class Searchable(Protocol):
    """What answers several queries at once: a library."""

    def search_all(
        self, queries: Sequence[str], k: int, *, by: By | None, filters: Mapping[str, Any], exact: bool, collapse: bool
    ) -> list[list[Hit]]: ...


class Searches:
    """Answers queries, as many at once as are waiting; most: how many may wait."""

    def __init__(self, library: Searchable, most: int = WAITING_SEARCHES) -> None:
        self.library = library
        self.batches: Batches[Options, str, list[Hit]] = Batches("searches", self._search, batch=BATCH, most=most)

    def ask(self, query: str, options: Options) -> Future[list[Hit]]:
        """Queue a query.

        Errors: Refused if too many are waiting.
        """
        return self.batches.ask(options, query)

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.batches.close()

    def _search(self, options: Options, queries: list[str]) -> list[list[Hit]]:
        filters = {} if options.source is None else {"source": options.source}
        return self.library.search_all(
            queries, options.k, by=options.by, filters=filters, exact=options.exact, collapse=options.collapse
        )


PIXELS = {"small": 360 * 480, "large": 1200 * 1600, "full": 2400 * 3200}  # of page images
RENDERERS = 2
CACHED = 300  # page images
PLACES_SECONDS = 2.0  # for which it is known which documents have the same name
MOST_COLUMNS = 64  # readouts of a page that are all compared with those of a query
LOG = logging.getLogger("randslot")


def _about(text: str) -> dict[str, str]:
    """Return what the description of the API says about a field of an answer."""
    return {"description": text}


@dataclass(frozen=True)
class FoundPage:
    """A page that was found, the document that it is in, and where its copies are."""

    hit: Hit
    document: File
    copies: list[tuple[File, int]]


@dataclass(frozen=True)
class Explanation:
    """How near each readout of a query is to each of a page, and the sum of the nearest."""

    similarities: list[list[float]] = field(metadata=_about("a row for each readout of the query"))
    winners: list[int] = field(metadata=_about("the nearest readout of the page in each row, from 1"))
    score: float
    columns: list[int] = field(
        metadata=_about("which readout of the page each column is, from 1; of many, only those that are nearest to one")
    )


@dataclass(frozen=True)
class WordCount:
    """A word of a query, and how often it is on a page."""

    word: str = field(metadata=_about("as in the query"))
    count: int = field(metadata=_about("how often the page has it, in any of its forms"))


@dataclass(frozen=True)
class Ranks:
    """Which place a page has by words and by vectors."""

    words: int | None = field(
        default=None, metadata=_about(f"from 1; null if pages are not compared so, or not among the first {HITS}")
    )
    vectors: int | None = None


class Service:
    """Searches, pages, documents and uploads of one library. Close it: that finishes what was acknowledged."""

    def __init__(
        self,
        library: Library,
        *,
        read_only: bool = False,
        upload_limits: UploadLimits | None = None,
        add_from: Sequence[Path] = (),
    ) -> None:
        """add_from: folders below which agents may add documents."""
        self.library, self.add_from = library, tuple(add_from)
        if library.choose_by() != "words":
            _ = library.query_model  # the first search should not wait for it
        self.pool = WorkerPool(RENDERERS, RENDER_SECONDS)
        self.searches = Searches(library)
        self.embeddings = Embeddings(library)
        self.uploads = None if read_only else Uploads(library, self.pool, upload_limits or UploadLimits())
        self.threads = ThreadPoolExecutor(RENDERERS, "images")
        self._draw = lru_cache(CACHED)(self._draw_now)
        self._places: tuple[float, dict[str, str]] | None = None
        self._looking = ThreadPoolExecutor(1, "health")
        self._looked: tuple[float, Future[Any]] | None = None

    def close(self) -> None:
        """Answer and index what is waiting, then stop; the library stays open."""
        self.searches.close()
        self.embeddings.close()
        if self.uploads:
            self.uploads.close()
        self.threads.shutdown(cancel_futures=True)
        self._looking.shutdown(wait=False, cancel_futures=True)
        self.pool.close()

    # -- documents and pages

    def documents(
        self, choice: Choice, sort: Sort, descending: bool, offset: int, limit: int
    ) -> tuple[int, list[File]]:
        """Return how many documents are meant, and some of them, in an order."""
        found = sort_files(self._choose(choice), sort, descending)
        return len(found), found[offset : offset + limit]

    def choices(self) -> Choices:
        """Return what documents can be filtered by."""
        return list_choices(self.library.manifest.find(state="done"))

    def _choose(self, choice: Choice) -> list[File]:
        return [file for file in self.library.manifest.find(state="done") if choice.allows(file)]

    def place(self, file: File) -> str:
        """Return where a document is, if others have its name, too; looked up anew every few seconds at most."""
        now = time.monotonic()
        if self._places is None or now - self._places[0] > PLACES_SECONDS:
            self._places = now, tell_apart(self.library.manifest.find(state="done"))
        return self._places[1].get(file.id, "")

    def is_uploaded(self, file: File) -> bool:
        """Whether the library keeps the file itself, so that forgetting the document deletes it."""
        return is_kept(file, str(self.library.folder.absolute()))

    def remove(self, id: str) -> None:
        """Forget a document. Files of the user's folders stay; an uploaded one is deleted.

        Errors: Refused if there is none, or the library is read-only.
        """
        if self.uploads is None:
            raise Refused(403, "this library is served read-only")
        self.library.remove(escape(self.document(id).source))  # a name may look like a pattern for others

    def document(self, id: str) -> File:
        """Return a document by its id.

        Errors: Refused if there is none.
        """
        file = self.library.manifest.get([id]).get(id)
        if file is None or file.state != "done":
            raise Refused(404, "no such document")
        return file

    def page(self, id: str, number: int) -> File:
        """Return the document that has this page.

        Errors: Refused if there is none.
        """
        file = self.document(id)
        if not 1 <= number <= file.num_pages:
            raise Refused(404, f"the document has {show_pages(file.num_pages)}, so there is no page {number}")
        return file

    def content(self, id: str) -> tuple[Path, str]:
        """Return the path of a document's file and its media type.

        Errors: Refused if the file is gone.
        """
        path = Path(self.document(id).source)
        if not path.is_file():
            raise Refused(404, "the file is not where it was when it was indexed")
        kind = KINDS.get(path.suffix.lower())
        return path, kind.media_type if kind else "application/octet-stream"

    def image(self, id: str, number: int, size: str) -> bytes:
        """Return a page as a JPEG, drawn in a process with limits of time and memory.

        Errors: Refused if there is no such page, or its file is gone or broken.
        """
        file = self.page(id, number)
        draw = self._draw_now if size == "full" else self._draw  # those are megabytes, and the browser keeps them
        try:
            return draw(file.source, number, PIXELS[size], os.stat(file.source).st_mtime_ns)
        except (OSError, RandSlotError) as error:
            raise Refused(404, "this page cannot be shown: its file is gone, or has changed or broken") from error

    def _draw_now(self, source: str, number: int, pixels: int, modified: int) -> bytes:
        """Draw a page; `modified` is there so that a changed file is drawn again."""
        buffer = BytesIO()
        self.pool.render(source, number, pixels).save(buffer, "JPEG", quality=88)
        return buffer.getvalue()

    # -- searches

    async def search(self, query: str, options: Options, choice: Choice, offset: int = 0) -> list[FoundPage]:
        """Return the best pages for a query, after the first `offset` ones, in documents that are meant.

        Pages of a document that has just been removed are left out.

        Errors: Refused if too many searches are waiting.
        """
        hits = await self._ask(query, replace(options, k=offset + options.k), choice)
        return await asyncio.to_thread(self._find_documents, hits[offset:])

    async def _ask(self, query: str, options: Options, choice: Choice) -> list[Hit]:
        source = await asyncio.to_thread(self._choose_source, choice)
        return await asyncio.wrap_future(self.searches.ask(query, replace(options, source=source)))

    async def rank(self, query: str, id: str, number: int, choice: Choice) -> Ranks:
        """Return which place a page has by words and by vectors, among the first hundred.

        Errors: Refused if there is no such page.
        """
        await asyncio.to_thread(self.page, id, number)
        by = await asyncio.to_thread(self.library.choose_by)
        ranks: dict[str, int | None] = {}
        kinds: Collection[By] = ("words", "vectors") if by == "both" else (by,)
        for kind in kinds:
            hits = await self._ask(query, Options(HITS, by=kind), choice)
            places = [place for place, hit in enumerate(hits, 1) if hit.id == page_id(id, number)]
            ranks[kind] = places[0] if places else None
        return Ranks(**ranks)

    def _find_documents(self, hits: list[Hit]) -> list[FoundPage]:
        ids = {hit.file for hit in hits}
        for hit in hits:
            ids.update(copy.file for copy in hit.copies)
        files = {id: file for id, file in self.library.manifest.get(ids).items() if file.state == "done"}
        found = []
        for hit in hits:
            if hit.file in files:
                self.place(files[hit.file])  # looked up here, where waiting holds nobody up
                copies = [(files[copy.file], copy.page) for copy in hit.copies if copy.file in files]
                found.append(FoundPage(hit, files[hit.file], copies))
        return found

    async def find_unknown(self, query: str, by: By | None, choice: Choice) -> list[str]:
        """Return the words of a query that no page of the documents that are meant has; none if words do not count."""
        return await asyncio.to_thread(self._find_unknown, query, by, choice)

    def _find_unknown(self, query: str, by: By | None, choice: Choice) -> list[str]:
        if self.library.choose_by(by) == "vectors":
            return []
        source = self._choose_source(choice)
        return self.library.find_unknown(query, filters={} if source is None else {"source": source})

    def _choose_source(self, choice: Choice) -> str | frozenset[str] | None:
        """Return the documents that are meant as the library's own filter by source takes them."""
        if choice.is_pattern:
            return choice.source
        return frozenset(file.source for file in self._choose(choice))

    def explain(self, query: str, id: str, number: int) -> Explanation:
        """Return why a page has its score for a query.

        Errors: Refused if there is no such page.
        """
        self.page(id, number)
        similarities: Vectors = self.library.compare(query, page_id(id, number))
        winners = [int(one) + 1 for one in similarities.argmax(1)]
        columns = list(range(1, similarities.shape[1] + 1))
        if len(columns) > MOST_COLUMNS:
            columns = sorted(set(winners))
        shown = similarities[:, [column - 1 for column in columns]]
        return Explanation(shown.tolist(), winners, float(similarities.max(1).sum()), columns)

    def find_words(self, query: str, id: str, number: int) -> Found:
        """Return where the words of a query stand on a page.

        Errors: Refused if there is no such page.
        """
        self.page(id, number)
        return self.library.find_on_page(query, page_id(id, number))

    def count_words(self, query: str, id: str, number: int) -> list[WordCount]:
        """Return how often each word of a query is on a page, those that are not on it included.

        Errors: Refused if there is no such page.
        """
        self.page(id, number)
        asked = read_query(query, self.library.words.analyzer)
        analyzer = asked.analyzer
        text = self.library.read_text(page_id(id, number)).text
        on_page = Counter(analyzer.find_terms(token) for token in tokenize(text))

        def count(terms: tuple[str, ...]) -> int:
            return sum(num for others, num in on_page.items() if not set(terms).isdisjoint(others))

        found: dict[tuple[str, ...], WordCount] = {}
        for token in tokenize(asked.plain):
            terms = analyzer.find_terms(token)
            if asked.marked.issuperset(terms) and terms not in found:
                found[terms] = WordCount(asked.plain[token.start : token.end], count(terms))
        for joined in asked.joined:
            if count(joined.terms) and joined.terms not in found:
                found[joined.terms] = WordCount(joined.text, count(joined.terms))
        return list(found.values())

    # -- state

    async def is_reachable(self) -> bool:
        """Whether searches are answered; looked at anew every few seconds at most, and given up on after as many."""
        if self._looked is None or (self._looked[1].done() and time.monotonic() - self._looked[0] > HEALTH_SECONDS):
            self._looked = time.monotonic(), self._looking.submit(self.library.location.check)
        answer = asyncio.wrap_future(self._looked[1])
        answer.add_done_callback(lambda one: one.cancelled() or one.exception())  # it may come when nobody waits
        try:
            await asyncio.wait_for(asyncio.shield(answer), HEALTH_SECONDS)
        except Exception as error:  # whatever it is, the library does not answer
            LOG.warning("searches are not answered: %s", first_line(error))
            return False
        return True

    def status(self) -> dict[str, Any]:
        """Return what the library holds and what the service allows."""
        found = self.library.status()
        return {
            "library": self.library.folder.absolute().name,
            "documents": found.files,
            "pages": found.pages,
            "bytes": found.bytes,
            "bytes_per_page": found.bytes_per_page,
            "vector_bytes_per_page": found.vector_bytes_per_page,
            **self._describe_model(),
            "by": self.library.choose_by(),
            "language": found.language,
            "languages": list(found.languages),
            "pages_with_text": found.with_text,
            "notes": list(found.notes),
            "read_only": self.uploads is None,
            "uploads_waiting": self.uploads.num_waiting() if self.uploads else 0,
        }

    def _describe_model(self) -> dict[str, Any]:
        binding = self.library.binding
        if binding is None:
            return {"model": None, "page_vectors": 0, "query_vectors": 0, "dimension": 0}
        return {
            "model": Path(binding.name or "a model in memory").name,
            "page_vectors": binding.num_vectors("page"),
            "query_vectors": binding.num_vectors("query"),
            "dimension": binding.dimension,
        }
