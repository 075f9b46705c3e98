"""The service behind the HTTP routes: documents, page images and batched searches of one library."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from fnmatch import fnmatchcase
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from threading import Condition, Thread, get_ident
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from ..errors import RandSlotError, first_line
from ..library.facets import explain_none, is_meant, show_modified
from ..library.library import Library
from ..library.location import IMAGES, UPLOADS
from ..library.manifest import File, show_folder, show_name, tell_apart
from ..library.results import QueryResult
from ..library.workers import WorkerPool
from ..pages import Box
from ..pages.formats import show_pages
from .access import Refused
from .embeddings import Embeddings
from .uploads import UploadLimits, Uploads

LOG = logging.getLogger("randslot")
MAX_NAME = 300  # characters of a name or pattern
PATIENCE = 0.4  # seconds before another thread may start a batch concurrently
MAX_IMAGES = 30  # pending per client address
SEARCH_SECONDS = 2.0  # time limit for work on the hits of a query; then partial results are returned
HEALTH_SECONDS = 3.0  # timeout of a health check, and lifetime of its cached result
ImageSize = Literal["small", "large", "full"]
Part = tuple[Box, int]  # a crop of a page, and its width in pixels
Answer = tuple[QueryResult, dict[str, File]]  # the result of a search, and its documents by id


class Filters(BaseModel):
    """A filter of documents by public fields; all given fields must match."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    source: str | None = Field(
        default=None, min_length=1, max_length=MAX_NAME, description="a name, folder/name, or wildcards as in *.pdf"
    )
    name: str = Field(default="", max_length=MAX_NAME, description="a substring of the name, or wildcards")
    folder: str | None = Field(default=None, max_length=MAX_NAME, description="the name of the folder")
    in_: str | None = Field(
        default=None,
        alias="in",
        max_length=MAX_NAME,
        description="a substring of the name or folders, case-insensitive",
    )
    year: int | None = Field(
        default=None, strict=False, ge=1, le=9999, description="from the name, else the document, else the file"
    )
    type: str | None = Field(
        default=None, max_length=MAX_NAME, description="pdf, document, slides, sheet, text, web, mail, book, image"
    )
    language: str | None = Field(default=None, max_length=MAX_NAME, description="main language, as in german")
    modified_from: date | None = Field(
        default=None, strict=False, description="first day of the file's last change, UTC"
    )
    modified_to: date | None = Field(default=None, strict=False, description="last day")
    within: UUID | None = Field(default=None, strict=False, description="search only the document with this id")

    def values(self) -> dict[str, Any]:
        """Return the filters that a library supports."""
        values = {"in": self.in_, "year": self.year, "type": self.type, "language": self.language}
        return {key: value for key, value in values.items() if value is not None}

    def allows(self, file: File, root: str) -> bool:
        """Return whether a document matches. root: the common folder of the library's files."""
        name, folder, part = show_name(file), show_folder(file), self.name.lower()
        day = show_modified(file).date()
        if self.source is not None:
            shown = (name, folder, f"{folder}/{name}")
            if self.source not in shown and not any(fnmatchcase(one, self.source) for one in shown):
                return False
        return (
            self.within in (None, UUID(file.id))
            and (part in name.lower() or fnmatchcase(name.lower(), part))
            and (self.folder is None or folder == self.folder)
            and (self.modified_from is None or day >= self.modified_from)
            and (self.modified_to is None or day <= self.modified_to)
            and is_meant(file, self.values(), root)
        )


class Choice(Filters):
    """A filter of documents, also by metadata."""

    metadata: dict[str, str | int | float | bool] = Field(default={}, max_length=20, description="values by key")

    @property
    def is_given(self) -> bool:
        """Whether any filter is set."""
        return self.folder is not None or any(getattr(self, name) for name in Choice.model_fields)

    def values(self) -> dict[str, Any]:
        return self.metadata | super().values()

    def allows(self, file: File, root: str) -> bool:
        return self.metadata.keys() <= file.metadata.keys() and super().allows(file, root)


class Batcher:
    """A dynamic batcher: requests of one kind that queue up while threads are busy are answered together.

    name: of requests, as in "searches". answer: returns one result per item of one kind. batch: maximum batch size.
    num_threads: concurrent batches. A thread starts a batch only if all running ones have taken `PATIENCE` seconds:
    Python threads slow each other down, but a slow batch must not block the next.
    """

    def __init__(
        self,
        name: str,
        answer: Callable[[Any, list[Any]], Sequence[Any]],
        *,
        batch: int,
        max_waiting: int,
        num_threads: int = 1,
    ) -> None:
        self.name, self.answer, self.batch, self.max_waiting = name, answer, batch, max_waiting
        self.waiting: list[tuple[Hashable, Any, Future[Any]]] = []
        self.changed = Condition()
        self.is_closing = False
        self.started: dict[int, float] = {}  # start times of running batches, by thread
        self.threads = [Thread(target=self._run, name=name, daemon=True) for _ in range(num_threads)]
        for thread in self.threads:
            thread.start()

    def ask(self, kind: Hashable, item: Any) -> Future[Any]:
        """Queue a request; refuse it if the queue is full."""
        result: Future[Any] = Future()
        with self.changed:
            if len(self.waiting) >= self.max_waiting:
                raise Refused(503, f"too many {self.name} in the queue ({self.max_waiting}): try again later")
            self.waiting.append((kind, item, result))
            self.changed.notify()
        return result

    def close(self) -> None:
        """Finish pending requests, then stop."""
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self.waiting or self._just_started():
                    if self.is_closing and not self.waiting:
                        return
                    self.changed.wait(PATIENCE if self.waiting else None)
                self.started[get_ident()] = time.monotonic()
                kind = self.waiting[0][0]
                taken = [asked for asked in self.waiting if asked[0] == kind][: self.batch]
                for asked in taken:
                    self.waiting.remove(asked)
            group = [asked for asked in taken if asked[2].set_running_or_notify_cancel()]
            try:
                results = self.answer(kind, [item for _, item, _ in group]) if group else []
                for (_, _, future), result in zip(group, results, strict=True):
                    future.set_result(result)
            except Exception as error:  # raised where the result is awaited; the thread must survive
                for _, _, future in group:
                    future.set_exception(error)
            with self.changed:
                del self.started[get_ident()]

    def _just_started(self) -> bool:
        """Whether another thread has just started a batch."""
        return any(time.monotonic() - started < PATIENCE for started in self.started.values())


class Service:
    """Searches, pages, documents and uploads of one library."""

    def __init__(self, library: Library, *, read_only: bool = False, upload_limits: UploadLimits | None = None) -> None:
        self.library = library
        self.own_folders = tuple(os.path.join(library.folder.absolute(), name, "") for name in (IMAGES, UPLOADS))
        if library.choose_by() != "words":
            _ = library.models.query_model  # load it before the first search
        self.pool = WorkerPool(2, 20.0)
        self.threads = ThreadPoolExecutor(2, "images")
        self.drawing: Counter[str] = Counter()  # pending images, by client address
        self.searches = Batcher("searches", self._search_together, batch=32, max_waiting=1_000, num_threads=3)
        self.embeddings = Embeddings(library)
        self.uploads = None if read_only else Uploads(library, upload_limits or UploadLimits())
        self._draw_cached = lru_cache(300)(self._draw)
        self._hash = lru_cache(1000)(_hash_file)
        self.shown: dict[str, tuple[tuple[File, str], Any]] = {}  # cache of public descriptions, by document id
        self._places: tuple[float, dict[str, str]] = (-1.0, {})
        self._health: tuple[float, Future[Any]] | None = None
        self._health_thread = ThreadPoolExecutor(1, "health")

    def close(self, seconds: float | None = None) -> None:
        """Finish pending requests, and uploads for some seconds, then stop; the library stays open."""
        if self.uploads:
            self.uploads.close(seconds)
        self.searches.close()
        self.embeddings.close()
        self.pool.close()
        self.threads.shutdown(cancel_futures=True)
        self._health_thread.shutdown(wait=False, cancel_futures=True)

    # -- documents and pages

    def find(self, choice: Filters) -> list[File]:
        """Return the documents that match a filter, sorted by name."""
        root = self.library.words.root
        found = [file for file in self.library.manifest.find(state="done") if choice.allows(file, root)]
        return sorted(found, key=lambda file: (show_name(file).lower(), file.source))

    def place(self, file: File) -> str:
        """Return the folder of a document if its name is not unique; cached for two seconds."""
        if time.monotonic() - self._places[0] > 2:
            self._places = time.monotonic(), tell_apart(self.library.manifest.find(state="done"))
        return self._places[1].get(file.id, "")

    def remove(self, id: str) -> None:
        """Remove a document; delete its file only if it was uploaded."""
        if self.uploads is None:
            raise Refused(403, "this service is read-only")
        self.library.forget([self.document(id).source])

    def document(self, id: str) -> File:
        """Return a document."""
        file = self.library.manifest.get([id]).get(id)
        if file is None or file.state != "done":
            raise Refused(404, "no such document")
        return file

    def page(self, id: str, number: int) -> File:
        """Return the document of a page."""
        file = self.document(id)
        if not 1 <= number <= file.num_pages:
            raise Refused(404, f"the document has {show_pages(file.num_pages)}, so there is no page {number}")
        return file

    def check_file(self, file: File) -> Path:
        """Return the path of a document; refuse it if the file has changed since it was indexed."""
        path = Path(file.source)
        try:
            stat = path.stat()
            if not path.is_file():
                raise FileNotFoundError
            is_same = (stat.st_size, stat.st_mtime_ns) == (file.size, file.modified)
            is_same = is_same or (
                stat.st_size == file.size and self._hash(path, stat.st_mtime_ns, stat.st_ino) == file.hash
            )
        except OSError as error:
            raise Refused(404, "the file was moved or deleted: index again") from error
        if not is_same:
            raise Refused(410, "the file has changed since it was indexed: index it again")
        return path

    async def image(
        self, id: str, number: int, size: ImageSize | Part, address: str, is_gone: Callable[[], Awaitable[bool]]
    ) -> bytes:
        """Return a page or a part of it as a JPEG; skip it if the client disconnects first."""
        if self.drawing[address] >= MAX_IMAGES:
            raise Refused(429, f"too many pending images ({MAX_IMAGES}): try again")
        self.drawing[address] += 1
        drawn = self.threads.submit(self._draw_page, id, number, size)
        try:
            waiting = asyncio.wrap_future(drawn)
            while not (await asyncio.wait([waiting], timeout=0.5))[0]:
                if await is_gone():
                    raise Refused(408, "the client disconnected")
            return await waiting
        finally:
            drawn.cancel()
            self.drawing[address] -= 1
            self.drawing += Counter()  # drops zero counts

    def _draw_page(self, id: str, number: int, size: ImageSize | Part) -> bytes:
        file = self.page(id, number)
        draw = self._draw if size == "full" else self._draw_cached  # full images take megabytes; browsers cache them
        try:
            return draw(str(self.check_file(file)), number, size, file.id)
        except (OSError, RandSlotError) as error:
            if isinstance(error, Refused):
                raise
            needs = ": its file needs a password (serve --password-file)" if "needs a password" in str(error) else ""
            raise Refused(404, f"this page cannot be rendered{needs}") from error

    def _draw(self, source: str, number: int, size: ImageSize | Part, version: str) -> bytes:
        """Render a page in a process with time and memory limits; `version` is part of the cache key."""
        if isinstance(size, str):
            pixels = {"small": 360 * 480, "large": 1200 * 1600, "full": 2400 * 3200}[size]
            image = self.pool.render(source, number, pixels)
        else:
            image = self.pool.crop(source, number, *size)
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=88)
        return buffer.getvalue()

    # -- searches

    async def search(self, query: str, choice: Choice, **options: Any) -> Answer:
        """Search the documents that match; return also the documents of hits. Options as in `Library.search`."""
        sources = None
        if choice.is_given:
            found = await asyncio.to_thread(self.find, choice)
            sources = frozenset(file.source for file in found)
        result, documents = await asyncio.wrap_future(self.ask(query, sources, options))
        if sources is not None and not sources:
            files = await asyncio.to_thread(self.library.manifest.find, state="done")
            result.filter_note = explain_none(files, choice.values(), self.library.words.root)
        return result, documents

    def ask(self, query: str, sources: frozenset[str] | None, options: Mapping[str, Hashable]) -> Future[Answer]:
        """Queue a search of some files or all; queries with equal options are batched."""
        return self.searches.ask((sources, tuple(options.items())), query)

    def _search_together(self, kind: tuple[frozenset[str] | None, Any], queries: list[str]) -> list[Answer]:
        sources, options = kind
        filters = {} if sources is None else {"source": sources}
        results = self.library.search_results(queries, filters=filters, seconds=SEARCH_SECONDS, **dict(options))
        return [(result, self.find_documents(result)) for result in results]

    def find_documents(self, result: QueryResult) -> dict[str, File]:
        """Return the documents of hits and their copies by id; drop hits of documents that were just removed."""
        ids = {hit.file for hit in result.hits}
        for hit in result.hits:
            ids.update(copy.file for copy in hit.copies)
        documents = {}
        for id, file in self.library.manifest.get(ids).items():
            if file.state == "done":
                documents[id] = file
                self.place(file)  # fills the cache in this thread, not in the event loop
        result.hits = [hit for hit in result.hits if hit.file in documents]
        return documents

    # -- state

    async def is_reachable(self) -> bool:
        """Return whether the library answers in time; cached for a few seconds."""
        now = time.monotonic()
        if self._health is None or (self._health[1].done() and now - self._health[0] > HEALTH_SECONDS):
            self._health = now, self._health_thread.submit(self.library.location.check)
        answer = asyncio.wrap_future(self._health[1])
        answer.add_done_callback(lambda one: one.cancelled() or one.exception())  # avoid "exception never retrieved"
        try:
            await asyncio.wait_for(asyncio.shield(answer), HEALTH_SECONDS)
        except Exception as error:
            LOG.warning("the library does not answer: %s", first_line(error))
            return False
        return True


def _hash_file(path: Path, modified: int, inode: int) -> str:
    """Hash a file's content as in the manifest; `modified` and `inode` are part of the cache key."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
