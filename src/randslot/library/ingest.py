"""From files to stored pages: find out what changed, have it read, store it, and make complete files visible.

A run may be stopped or killed at any moment: pages that are stored stay, files become visible when they are complete,
and the next run goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from stat import S_ISREG
from typing import Any

from ..errors import RandSlotError
from .languages import LibraryWords, make_stored_text
from .location import clear
from .manifest import File, Manifest
from .readers import FileReader, ReadPage, WantedPages
from .results import Progress, Summary
from .sources import is_gone
from .stores.base import BYTES_PER_NUMBER, Store, StoredPage, StoredText, page_id
from .workers import Inspected, WorkerPool

SAFE_SECONDS = 5.0  # between two times that everything is brought to the disk and complete files become visible
SAMPLE = 40  # pages that the language of a new library is found by


@dataclass
class FileJob:
    """A file on its way into the library: what it replaces, and which of its pages are missing.

    reuse: ids of pages of the old version, by the hash of what was read of them.
    """

    file: File
    old: File | None
    missing: set[int]
    reuse: dict[str, str]

    def wanted(self) -> WantedPages:
        """Return what is to be read of the file."""
        return WantedPages(self.file.id, self.file.source, tuple(sorted(self.missing)), frozenset(self.reuse))


@dataclass
class Ingest:
    """One run over some files, with what it works on."""

    manifest: Manifest
    store: Store
    words: LibraryWords
    pool: WorkerPool
    reader: FileReader
    metadata: Mapping[str, Any] | None
    report: Callable[[Progress], None]
    summary: Summary = field(default_factory=Summary)

    def __post_init__(self) -> None:
        self.jobs: dict[str, FileJob] = {}  # files in progress, by id; those that failed are taken out
        self.complete: list[FileJob] = []  # files that are not visible yet
        self.begun: set[str] = set()  # ids of files that the manifest knows as pending
        self.num_files = self.num_pages = 0
        self.files_done = self.pages_done = self.bytes = 0
        self.safe_at = time.monotonic()

    def run(self, sources: list[str]) -> None:
        """Bring the library up to date with some files, and fill in the summary."""
        jobs = self._inspect_all(sources)
        self.jobs = {job.file.id: job for job in jobs}
        self.num_files, self.num_pages = len(jobs), sum(len(job.missing) for job in jobs)
        self.complete = [job for job in jobs if not job.missing]
        self.safe_at = time.monotonic()
        self._choose_language(jobs)
        try:
            self._read([job.wanted() for job in jobs if job.missing])
        finally:
            self._show_complete()  # also when it is stopped
        if jobs:
            self.store.optimize()

    def _choose_language(self, jobs: list[FileJob]) -> None:
        """Have pages from all over the files decide on the language of a new library."""
        if self.words.language is not None:
            return
        pages: list[tuple[str, int]] = []
        for job in jobs:
            pages += [(job.file.source, number) for number in sorted(job.missing)]
        chosen = pages[:: max(len(pages) // SAMPLE, 1)]

        def read(page: tuple[str, int]) -> str:
            return self.pool.read_text(*page, keep=True).text

        texts = []
        for _, future in self.pool.ahead(read, chosen, 2 * len(self.pool.workers)):
            if future.exception() is None:  # one that fails is told when it is read
                texts.append(future.result())
        self.words.decide(texts)

    # -- what changed

    def _inspect_all(self, sources: list[str]) -> list[FileJob]:
        """Return the files to read: those that are neither known as they are nor only moved."""
        jobs: list[FileJob] = []
        depth = 4 * len(self.pool.workers)
        inspected = self.pool.ahead(self._inspect, sources, depth)
        for num, (source, future) in enumerate(inspected, start=1):
            try:
                job = self._judge(source, *future.result())
            except RandSlotError as error:
                self.summary.failed[source] = str(error)
            else:
                if job is not None:
                    jobs.append(job)
            self.report(Progress(num, len(sources), 0, 0))
        return jobs

    def _inspect(self, source: str) -> tuple[File | None, os.stat_result, Inspected]:
        """Inspect a file, unless its size and time say that it is as it was; return what was known of it too."""
        try:
            stat = os.stat(source)
        except OSError as error:
            raise RandSlotError(error.strerror or str(error)) from error
        if not S_ISREG(stat.st_mode):
            raise RandSlotError("not a regular file")
        old = next(iter(self.manifest.find(source=source, state="done")), None)
        if old and (old.size, old.modified) == (stat.st_size, stat.st_mtime_ns):
            return old, stat, Inspected(old.hash, old.num_pages)
        return old, stat, self.pool.inspect(source)

    def _judge(self, source: str, old: File | None, stat: os.stat_result, found: Inspected) -> FileJob | None:
        """Return a file as a job, if it has to be read; otherwise keep what is known of it."""
        known = old if old and old.hash == found.hash else self._find_moved(found.hash)
        metadata = self.metadata
        if metadata is None:
            metadata = known.metadata if known else {}
        if known is None:
            new = File(source, found.hash, stat.st_size, stat.st_mtime_ns, found.num_pages, metadata)
            return self._make_job(new, old)
        now = replace(known, source=source, modified=stat.st_mtime_ns, metadata=metadata)
        if now != known:
            self._clear(self.manifest.show(now))
        if known is old:
            self.summary.unchanged += 1
        else:
            self.summary.moved.append(source)
        return None

    def _find_moved(self, hash: str) -> File | None:
        """Return a file with this content that is no longer where it was."""
        for file in self.manifest.find(hash=hash, state="done"):
            if is_gone(file.source):
                return file
        return None

    def _make_job(self, new: File, old: File | None) -> FileJob:
        """Begin with a file, or go on with it where an earlier run was stopped."""
        missing = set(range(1, new.num_pages + 1))
        for pending in self.manifest.find(source=new.source, state="pending"):
            if pending.hash == new.hash:
                new = replace(new, id=pending.id)
                missing -= self.store.images(new.id).keys()
            else:
                self._clear([pending])
        reuse: dict[str, str] = {}
        if old is not None:
            for number, hash in self.store.images(old.id).items():
                if hash:
                    reuse[hash] = page_id(old.id, number)
        return FileJob(new, old, missing, reuse)

    # -- from files to pages

    def _read(self, wanted: list[WantedPages]) -> None:
        if not wanted:
            return  # a model is not loaded before it is needed
        self._report()  # the first pages wait for the model
        for pages in self.reader.read(wanted):
            for page in pages:
                if page.error and page.file in self.jobs:
                    self._fail(page)
            self._store([page for page in pages if page.file in self.jobs])

    def _fail(self, page: ReadPage) -> None:
        """Give a file up because one of its pages cannot be opened; what still comes of it is left out."""
        file = self.jobs.pop(page.file).file
        reason = f"page {page.number}: {page.error}" if file.num_pages > 1 else page.error
        self.summary.failed[file.source] = reason
        self.files_done += 1
        self._clear([file])

    def _store(self, pages: list[ReadPage]) -> None:
        """Store pages, and make the files visible that are complete now."""
        if not pages:
            return
        self._begin(pages)
        reused = self._read_reused(pages)
        stored = [self._make_stored(page, reused.get((page.file, page.number))) for page in pages]
        self.store.add(stored)
        for one in stored:
            self.bytes += 0 if one.vectors is None else BYTES_PER_NUMBER * one.vectors.size
        self.summary.encoded += sum(page.vectors is not None for page in pages)
        self.pages_done += len(pages)
        self.summary.vector_bytes_per_page = self.bytes // self.pages_done
        for page in pages:
            job = self.jobs[page.file]
            job.missing.discard(page.number)
            if not job.missing:
                self.complete.append(job)
        if time.monotonic() - self.safe_at >= SAFE_SECONDS:
            self._show_complete()
        else:
            self._report()

    def _begin(self, pages: list[ReadPage]) -> None:
        """Hide files before their first page is stored: a search leaves out those that the manifest has as pending."""
        new: dict[str, File] = {}
        for page in pages:
            if page.file not in self.begun:
                new[page.file] = self.jobs[page.file].file
        if new:
            self.manifest.put(*new.values())
            self.begun.update(new)

    def _read_reused(self, pages: list[ReadPage]) -> dict[tuple[str, int], StoredPage]:
        """Return pages that the old version of their file has too, by the file and number of the new one."""
        ids: dict[tuple[str, int], str] = {}
        for page in pages:
            reuse = self.jobs[page.file].reuse
            if page.vectors is None and page.hash in reuse:
                ids[page.file, page.number] = reuse[page.hash]
        stored = self.store.read(list(ids.values()))
        return {place: stored[id] for place, id in ids.items()}

    def _make_stored(self, page: ReadPage, old: StoredPage | None) -> StoredPage:
        """Return a page as it is stored, with what the same page of the old version has."""
        vectors = old.vectors if old and page.vectors is None else page.vectors
        if vectors is not None and not len(vectors):  # a text that a model scores nothing of
            vectors = None
        text = self._make_text(page)
        if old and old.text and old.text.origin == "ocr" and text and text.origin == "none":
            text = old.text
        return StoredPage(page.file, page.number, page.hash, vectors, text, page.cut or bool(old and old.cut))

    def _make_text(self, page: ReadPage) -> StoredText | None:
        if page.text is None:
            return None
        if not page.text.text:
            return StoredText("blank" if page.text.has_layer else "none")
        return make_stored_text(page.text, "layer", self.words.choose(page.text.text))

    # -- from pages to visible files

    def _show_complete(self) -> None:
        """Bring all to the disk, then make complete files visible and delete what they replace.

        Also without complete files: after a crash the engine repeats what was not on the disk, and that takes time.
        """
        self.store.flush()
        for job in self.complete:
            self._clear(self.manifest.show(job.file))
            (self.summary.changed if job.old else self.summary.added).append(job.file.source)
            self.summary.pages += job.file.num_pages
        self.files_done += len(self.complete)
        finished = tuple(job.file.source for job in self.complete)
        self.complete, self.safe_at = [], time.monotonic()
        self._report(finished)

    def _clear(self, files: Iterable[File]) -> None:
        clear(self.manifest, self.store, files)

    def _report(self, finished: tuple[str, ...] = ()) -> None:
        self.report(Progress(self.files_done, self.num_files, self.pages_done, self.num_pages, finished))
