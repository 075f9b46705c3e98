"""A library as a service, without HTTP: its documents, images and searches. One process owns the library."""

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
PATIENCE = 0.4  # seconds that a search may take before the next one starts beside it
MAX_IMAGES = 30  # that one visitor may wait for
SEARCH_SECONDS = 2.0  # of work on the hits of a query, after which what was found is the answer
HEALTH_SECONDS = 3.0  # for a library to answer, and for how long its answer is cached
ImageSize = Literal["small", "large", "full"]
Part = tuple[Box, int]  # of a page, and its width in pixels
Answer = tuple[QueryResult, dict[str, File]]  # of a search: what was found, and the documents by their ids


class Filters(BaseModel):
    """A filter of documents by what visitors are shown of them: all fields that are given must match."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    source: str | None = Field(
        default=None, min_length=1, max_length=MAX_NAME, description="a name, folder/name, or wildcards as in *.pdf"
    )
    name: str = Field(default="", max_length=MAX_NAME, description="a part of the name, or wildcards")
    folder: str | None = Field(default=None, max_length=MAX_NAME, description="the name of the folder")
    in_: str | None = Field(
        default=None, alias="in", max_length=MAX_NAME, description="a part of the name or of the folders, in any case"
    )
    year: int | None = Field(
        default=None, strict=False, ge=1, le=9999, description="of the name, else of the document, else of the file"
    )
    type: str | None = Field(
        default=None, max_length=MAX_NAME, description="pdf, document, slides, sheet, text, web, mail, book, image"
    )
    language: str | None = Field(default=None, max_length=MAX_NAME, description="main language, as in german")
    modified_from: date | None = Field(
        default=None, strict=False, description="first day of the file's last change, UTC"
    )
    modified_to: date | None = Field(default=None, strict=False, description="last day")
    within: UUID | None = Field(default=None, strict=False, description="the id of the only document to search")

    def values(self) -> dict[str, Any]:
        """Return the filters that a library knows too."""
        values = {"in": self.in_, "year": self.year, "type": self.type, "language": self.language}
        return {key: value for key, value in values.items() if value is not None}

    def allows(self, file: File, root: str) -> bool:
        """Return whether a document matches. root: the folder that all files of the library are in."""
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

    metadata: dict[str, str | int | float | bool] = Field(default={}, max_length=20, description="values by their keys")

    @property
    def is_given(self) -> bool:
        """Whether it leaves any document out."""
        return self.folder is not None or any(getattr(self, name) for name in Choice.model_fields)

    def values(self) -> dict[str, Any]:
        return self.metadata | super().values()

    def allows(self, file: File, root: str) -> bool:
        return self.metadata.keys() <= file.metadata.keys() and super().allows(file, root)


class Batches:
    """Answers requests in batches of one kind: others gather while it is busy, and a single one never waits.

    name: what requests are called, as in "searches". answer: returns one result for each item of one kind.
    batch: how many are answered together. num_threads: batches at the same time. The next one starts only if all others
    have taken `PATIENCE` seconds: threads of Python slow each other down, and a slow batch must not hold up the next.
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
        self.begun: dict[int, float] = {}  # when threads that are busy took their batches
        self.threads = [Thread(target=self._run, name=name, daemon=True) for _ in range(num_threads)]
        for thread in self.threads:
            thread.start()

    def ask(self, kind: Hashable, item: Any) -> Future[Any]:
        """Queue a request; refuse it if too many are waiting."""
        result: Future[Any] = Future()
        with self.changed:
            if len(self.waiting) >= self.max_waiting:
                raise Refused(503, f"{self.max_waiting} {self.name} are waiting: try again later")
            self.waiting.append((kind, item, result))
            self.changed.notify()
        return result

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self.waiting or self._is_served():
                    if self.is_closing and not self.waiting:
                        return
                    self.changed.wait(PATIENCE if self.waiting else None)
                self.begun[get_ident()] = time.monotonic()
                kind = self.waiting[0][0]
                taken = [asked for asked in self.waiting if asked[0] == kind][: self.batch]
                for asked in taken:
                    self.waiting.remove(asked)
            group = [asked for asked in taken if asked[2].set_running_or_notify_cancel()]
            try:
                results = self.answer(kind, [item for _, item, _ in group]) if group else []
                for (_, _, future), result in zip(group, results, strict=True):
                    future.set_result(result)
            except Exception as error:  # raised again where the answer is awaited; the thread must survive
                for _, _, future in group:
                    future.set_exception(error)
            with self.changed:
                del self.begun[get_ident()]

    def _is_served(self) -> bool:
        """Whether another thread has just begun with a batch."""
        return any(time.monotonic() - begun < PATIENCE for begun in self.begun.values())


class Service:
    """Searches, pages, documents and uploads of one library."""

    def __init__(self, library: Library, *, read_only: bool = False, upload_limits: UploadLimits | None = None) -> None:
        self.library = library
        self.own_folders = tuple(os.path.join(library.folder.absolute(), name, "") for name in (IMAGES, UPLOADS))
        if library.choose_by() != "words":
            _ = library.models.query_model  # the first search should not wait for it
        self.pool = WorkerPool(2, 20.0)
        self.threads = ThreadPoolExecutor(2, "images")
        self.drawing: Counter[str] = Counter()  # images that visitors wait for, by address
        self.searches = Batches("searches", self._search_together, batch=32, max_waiting=1_000, num_threads=3)
        self.embeddings = Embeddings(library)
        self.uploads = None if read_only else Uploads(library, upload_limits or UploadLimits())
        self._draw_cached = lru_cache(300)(self._draw)
        self._hash = lru_cache(1000)(_hash_file)
        self.shown: dict[str, tuple[tuple[File, str], Any]] = {}  # what visitors were shown of documents, by their ids
        self._places: tuple[float, dict[str, str]] = (-1.0, {})
        self._health: tuple[float, Future[Any]] | None = None
        self._health_thread = ThreadPoolExecutor(1, "health")

    def close(self, seconds: float | None = None) -> None:
        """Answer and index what is waiting, for some seconds, then stop; the library stays open."""
        if self.uploads:
            self.uploads.close(seconds)
        self.searches.close()
        self.embeddings.close()
        self.pool.close()
        self.threads.shutdown(cancel_futures=True)
        self._health_thread.shutdown(wait=False, cancel_futures=True)

    # -- documents and pages

    def find(self, choice: Filters) -> list[File]:
        """Return the documents that match a filter, by name."""
        root = self.library.words.root
        found = [file for file in self.library.manifest.find(state="done") if choice.allows(file, root)]
        return sorted(found, key=lambda file: (show_name(file).lower(), file.source))

    def place(self, file: File) -> str:
        """Return the folder of a document if others have its name; cached for two seconds."""
        if time.monotonic() - self._places[0] > 2:
            self._places = time.monotonic(), tell_apart(self.library.manifest.find(state="done"))
        return self._places[1].get(file.id, "")

    def remove(self, id: str) -> None:
        """Remove a document; of its files, only an uploaded one is deleted."""
        if self.uploads is None:
            raise Refused(403, "this library is served read-only")
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
        """Return the path of a document, if it still leads to the content that was indexed."""
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
        """Return a page or a part of it as a JPEG; it is not drawn if the visitor has gone before its turn."""
        if self.drawing[address] >= MAX_IMAGES:
            raise Refused(429, f"{MAX_IMAGES} images are being sent: try again")
        self.drawing[address] += 1
        drawn = self.threads.submit(self._draw_page, id, number, size)
        try:
            waiting = asyncio.wrap_future(drawn)
            while not (await asyncio.wait([waiting], timeout=0.5))[0]:
                if await is_gone():
                    raise Refused(408, "the client stopped waiting for this image")
            return await waiting
        finally:
            drawn.cancel()
            self.drawing[address] -= 1
            self.drawing += Counter()  # forgets addresses without any

    def _draw_page(self, id: str, number: int, size: ImageSize | Part) -> bytes:
        file = self.page(id, number)
        draw = self._draw if size == "full" else self._draw_cached  # those are megabytes, and browsers cache them
        try:
            return draw(str(self.check_file(file)), number, size, file.id)
        except (OSError, RandSlotError) as error:
            if isinstance(error, Refused):
                raise
            needs = ": its file needs a password (serve --password-file)" if "needs a password" in str(error) else ""
            raise Refused(404, f"this page cannot be rendered{needs}") from error

    def _draw(self, source: str, number: int, size: ImageSize | Part, version: str) -> bytes:
        """Render a page in a process with limits of time and memory; `version` is part of the cache key."""
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
        """Find the best pages of the documents that match; return also their documents. Options as `Library.search`."""
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
        """Queue a search in some files or in all; queries with equal options are answered together."""
        return self.searches.ask((sources, tuple(options.items())), query)

    def _search_together(self, kind: tuple[frozenset[str] | None, Any], queries: list[str]) -> list[Answer]:
        sources, options = kind
        filters = {} if sources is None else {"source": sources}
        results = self.library.search_results(queries, filters=filters, seconds=SEARCH_SECONDS, **dict(options))
        return [(result, self.find_documents(result)) for result in results]

    def find_documents(self, result: QueryResult) -> dict[str, File]:
        """Return the documents of hits and of their copies by id; drop hits of documents that were just removed."""
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
        """Return whether the library answers; cached, and given up on, after a few seconds."""
        now = time.monotonic()
        if self._health is None or (self._health[1].done() and now - self._health[0] > HEALTH_SECONDS):
            self._health = now, self._health_thread.submit(self.library.location.check)
        answer = asyncio.wrap_future(self._health[1])
        answer.add_done_callback(lambda one: one.cancelled() or one.exception())  # it may come when nobody waits
        try:
            await asyncio.wait_for(asyncio.shield(answer), HEALTH_SECONDS)
        except Exception as error:
            LOG.warning("searches are not answered: %s", first_line(error))
            return False
        return True


def _hash_file(path: Path, modified: int, inode: int) -> str:
    """Return the hash of a file's content, as the manifest has it; `modified` and `inode` are part of the cache key."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
