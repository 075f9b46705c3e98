"""Index files: detect changes, read and store pages, and make complete files visible.

A run can be stopped or killed at any time: vectors, and texts older than five seconds, are on disk, complete files are
visible, and the next run resumes.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from ..errors import RandSlotError
from ..words.language import detect_language
from .location import clear, is_kept
from .manifest import File
from .readers import FileReader, ReadPage, WantedPages
from .results import Progress, Summary
from .sources import is_gone
from .stores.points import BYTES_PER_NUMBER, StoredPage, page_id
from .workers import Inspected, WorkerPool

if TYPE_CHECKING:
    from .library import Library

SAFE_SECONDS = 5.0  # between flushes; after each, complete files become visible
SAMPLE = 40  # pages to detect the main language from


@dataclass
class FileJob:
    """A file to index: its old version, and its missing pages.

    reuse: ids of pages of the old version, by hash. is_pending: the manifest has it as pending. samples: texts to
    detect its language from.
    """

    file: File
    old: File | None
    missing: set[int]
    reuse: dict[str, str]
    is_pending: bool = False
    samples: list[str] = field(default_factory=list)


@dataclass
class Ingest:
    """One indexing run, under the write lease of the library.

    jobs: files in progress by id, without failed ones. complete: files to make visible. failed_before: files that
    failed in the last run, by path.
    """

    library: Library
    pool: WorkerPool
    reader: FileReader
    metadata: Mapping[str, Any] | None
    report: Callable[[Progress], None]
    summary: Summary
    jobs: dict[str, FileJob] = field(default_factory=dict)
    complete: list[FileJob] = field(default_factory=list)
    failed_before: dict[str, File] = field(default_factory=dict)
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0, 0))
    vector_bytes: int = 0
    flushed_at: float = 0.0

    def run(self, sources: list[str]) -> None:
        """Index new and changed files, and complete the summary."""
        known = [file.source for file in self.library.manifest.find()]
        own = str(self.library.folder.absolute())
        self.library.words.update_root([source for source in (*known, *sources) if not is_kept(source, own)])
        self.failed_before = {file.source: file for file in self.library.manifest.find(state="failed")}
        for source, reason in self.summary.failed.items():
            self._fail(source, reason)
        inspected = self.pool.ahead(self._inspect, sources, 4 * len(self.pool.workers))
        for num, (source, future) in enumerate(inspected, start=1):
            try:
                if job := self._find_changes(source, *future.result()):
                    self.jobs[job.file.id] = job
            except RandSlotError as error:
                self._fail(source, str(error))
            self.report(Progress(num, len(sources), 0, 0))
        wanted = []
        for job in self.jobs.values():
            if job.missing:
                numbers = tuple(sorted(job.missing))
                wanted.append(WantedPages(job.file.id, job.file.source, numbers, frozenset(job.reuse)))
            else:
                self.complete.append(job)
        self.progress = Progress(0, len(self.jobs), 0, sum(len(pages.numbers) for pages in wanted))
        self.flushed_at = time.monotonic()
        has_changes = bool(self.jobs)
        try:
            if wanted:  # else the model is not loaded
                self.report(self.progress)  # the first pages wait for the model
                self._choose_language(wanted)
                for pages in self.reader.read(wanted):
                    self._store(pages)
        finally:
            self._show_complete()  # also when interrupted
        tried = set(sources)
        for source, file in self.failed_before.items():
            if source not in self.summary.failed and (source in tried or is_gone(source) or os.path.isdir(source)):
                self.library.manifest.forget(file)
        if has_changes:
            self.library.store.optimize()

    def _fail(self, source: str, reason: str) -> None:
        """Record that a file cannot be read; the next run counts it as a known failure."""
        self.summary.failed[source] = reason
        try:
            stat = os.stat(source)
        except OSError:
            return
        before = self.failed_before.get(source)
        id = before.id if before else str(uuid.uuid4())
        now = File(source, "", stat.st_size, stat.st_mtime_ns, 0, {}, "failed", id, {"error": reason})
        if now == before:
            self.summary.known_failures.append(source)
        else:
            self.library.manifest.put(now)

    # -- detect changes

    def _inspect(self, source: str) -> tuple[File | None, os.stat_result, Inspected]:
        """Inspect a file unless its size and time are unchanged; also return its old version."""
        try:
            stat = os.stat(source)
        except OSError as error:
            raise RandSlotError(error.strerror or str(error)) from error
        if not S_ISREG(stat.st_mode):
            raise RandSlotError("not a regular file")
        old = next(iter(self.library.manifest.find(source=source, state="done")), None)
        is_known = old and old.properties and (old.size, old.modified) == (stat.st_size, stat.st_mtime_ns)
        if old and is_known:
            return old, stat, Inspected(old.hash, old.num_pages, old.properties)
        return old, stat, self.pool.inspect(source)

    def _find_changes(self, source: str, old: File | None, stat: os.stat_result, found: Inspected) -> FileJob | None:
        """Return a job if the file must be read; otherwise update its entry."""
        known = old if old and old.hash == found.hash else None
        for file in [] if known else self.library.manifest.find(hash=found.hash, state="done"):
            if is_gone(file.source):  # it was moved
                known = file
                break
        metadata = self.metadata
        if metadata is None:
            metadata = known.metadata if known else {}
        if known is None:
            new = File(source, found.hash, stat.st_size, stat.st_mtime_ns, found.num_pages, metadata)
            return self._make_job(replace(new, properties=found.properties), old)
        properties = {**known.properties, **found.properties}
        now = replace(known, source=source, modified=stat.st_mtime_ns, metadata=metadata, properties=properties)
        if now != known:
            self._rename(known, now)
            self._show(now)
        if known is old:
            self.summary.unchanged += 1
        else:
            self.summary.moved.append(source)
        return None

    def _rename(self, old: File, new: File) -> None:
        """Update the term weights of a moved file's pages if its name or folders have changed, without reading it."""
        words, store = self.library.words, self.library.store
        if words.name_fields(old.source) == words.name_fields(new.source):
            return
        ids = [page_id(new.id, number) for number in store.hashes(new.id)]
        for start in range(0, len(ids), 100):
            weighted = []
            for page in store.read(ids[start : start + 100]).values():
                if page.text and page.text.text:
                    weighted.append(replace(page, vectors=None, text=words.count(page.text, new.source)))
            store.update(weighted)
        store.flush()

    def _make_job(self, new: File, old: File | None) -> FileJob:
        """Start a job, or resume one of an earlier run."""
        manifest, store = self.library.manifest, self.library.store
        missing = set(range(1, new.num_pages + 1))
        for pending in manifest.find(source=new.source, state="pending"):
            if pending.hash == new.hash:
                new = replace(new, id=pending.id)
                missing -= store.hashes(new.id).keys()
                self._restore_words(new)
            else:
                clear(manifest, store, [pending])
        reuse: dict[str, str] = {}
        if old is not None:
            for number, hash in store.hashes(old.id).items():
                if hash:
                    reuse[hash] = page_id(old.id, number)
        return FileJob(new, old, missing, reuse)

    def _restore_words(self, file: File) -> None:
        """Add the words of stored pages to the vocabulary, in case the earlier run was killed before it saved it."""
        store, vocabulary = self.library.store, self.library.words.vocabulary
        for page in store.read([page_id(file.id, number) for number in store.hashes(file.id)]).values():
            if page.text and vocabulary:
                vocabulary.add(page.text.words)

    # -- read and store pages

    def _choose_language(self, wanted: list[WantedPages]) -> None:
        """Detect the main language of a new library from a sample of pages, which are cached."""
        if self.library.words.language is not None:
            return
        places = [(pages.source, number) for pages in wanted for number in pages.numbers]
        sample = places[:: max(len(places) // SAMPLE, 1)]
        texts = []
        read = self.pool.ahead(lambda place: self.pool.read_text(*place, keep=True), sample, 2 * len(self.pool.workers))
        for _, future in read:
            if future.exception() is None:  # else the page fails again in the main pass
                texts.append(future.result().text)
        self.library.words.detect_language(texts)

    def _store(self, pages: list[ReadPage]) -> None:
        """Store pages, and update which files are complete or have failed."""
        manifest, store = self.library.manifest, self.library.store
        for page in pages:
            if page.error and page.file in self.jobs:
                file = self.jobs.pop(page.file).file
                reason = f"page {page.number}: {page.error}" if file.num_pages > 1 else page.error
                self._fail(file.source, reason)
                self.progress = replace(self.progress, files_done=self.progress.files_done + 1)
                clear(manifest, store, [file])
        pages = [page for page in pages if page.file in self.jobs]
        if not pages:
            return
        new: list[File] = []
        reused: dict[tuple[str, int], str] = {}
        for page in pages:
            job = self.jobs[page.file]
            if not job.is_pending:
                new.append(job.file)
                job.is_pending = True
            if page.vectors is None and page.hash in job.reuse:
                reused[page.file, page.number] = job.reuse[page.hash]
        if new:  # before the first page is stored: searches hide pending files
            manifest.put(*new)
        old_pages = store.read(list(reused.values())) if reused else {}
        stored = []
        for page in pages:
            old = old_pages.get(reused.get((page.file, page.number), ""))
            stored.append(self._make_stored(page, old))
        store.add(stored)
        if any(page.vectors is not None for page in stored):  # expensive: must survive a kill
            store.flush()
        for page, stored_page in zip(pages, stored, strict=True):
            vectors = stored_page.vectors
            self.vector_bytes += 0 if vectors is None else BYTES_PER_NUMBER * vectors.size
            self.summary.encoded += page.vectors is not None
            job = self.jobs[page.file]
            job.missing.discard(page.number)
            if not job.missing:
                self.complete.append(job)
        self.progress = replace(self.progress, pages_done=self.progress.pages_done + len(pages))
        self.summary.vector_bytes_per_page = self.vector_bytes // self.progress.pages_done
        if time.monotonic() - self.flushed_at >= SAFE_SECONDS:
            self._show_complete()
        else:
            self.report(self.progress)

    def _make_stored(self, page: ReadPage, old: StoredPage | None) -> StoredPage:
        """Make the stored page. old: an identical page of the old version, to reuse vectors and OCR text."""
        vectors = old.vectors if old else page.vectors
        if vectors is not None and not len(vectors):  # a text without any tokens that the model scores
            vectors = None
        text = None
        if page.text is not None:
            if page.text.text and len(self.jobs[page.file].samples) < 3:
                self.jobs[page.file].samples.append(page.text.text[:3000])
            text = self.library.words.read_page(page.text, "layer", self.jobs[page.file].file.source)
            if text.origin == "none" and old and old.text and old.text.origin == "ocr":
                text = old.text
        return StoredPage(page.file, page.number, page.hash, vectors, text, page.cut or bool(old and old.cut))

    # -- make files visible

    def _show_complete(self) -> None:
        """Flush to disk, then make complete files visible and delete their old versions.

        It also flushes without complete files: after a crash the engine replays unflushed writes, which takes time.
        """
        self.library.store.flush()
        if self.progress.pages_done:
            self.library.words.save()
        for job in self.complete:
            language = detect_language(job.samples) or ""
            self._show(replace(job.file, properties={**job.file.properties, "language": language}))
            (self.summary.changed if job.old else self.summary.added).append(job.file.source)
            self.summary.pages += job.file.num_pages
        self.progress = replace(self.progress, files_done=self.progress.files_done + len(self.complete))
        self.report(replace(self.progress, finished=tuple(job.file.source for job in self.complete)))
        self.complete, self.flushed_at = [], time.monotonic()

    def _show(self, file: File) -> None:
        clear(self.library.manifest, self.library.store, self.library.manifest.show(file))
