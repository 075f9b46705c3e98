"""From files to stored pages: find out what changed, have it read, store it, and make whole files visible.

A run may be stopped or killed at any moment: pages that are stored stay, files become visible when they are whole, and
the next run goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from stat import S_ISREG
from typing import Any

from ..errors import RandSlotError
from .location import clear
from .manifest import File, Manifest
from .reading.local import Job, Read, Reader
from .reading.workers import Inspected, Renderers
from .results import Progress, Summary
from .sources import is_gone
from .stores.store import Store, StoredPage, page_id

SAFE_SECONDS = 5.0  # between two times that everything is brought to the disk and whole files become visible


@dataclass
class Ingest:
    """One run over some files, with what it works on."""

    manifest: Manifest
    store: Store
    renderers: Renderers
    reader: Reader
    metadata: Mapping[str, Any] | None
    tell: Callable[[Progress], None]
    summary: Summary = field(default_factory=Summary)

    def run(self, sources: list[str]) -> None:
        """Bring the library up to date with some files, and fill in the summary."""
        jobs = self._look(sources)
        self.num_files, self.num_pages = len(jobs), sum(len(job.missing) for job in jobs)
        self.files_done = self.pages_done = self.bytes = 0
        self.begun: set[str] = set()
        self.whole: list[Job] = [job for job in jobs if not job.missing]
        self.safe_at = time.monotonic()
        try:
            self._read(jobs)
        finally:
            self._show_whole()  # also when it is stopped
        if jobs:
            self.store.optimize()

    # -- what changed

    def _look(self, sources: list[str]) -> list[Job]:
        """Return the files to read: those that are neither known as they are nor only moved."""
        jobs: list[Job] = []
        depth = 4 * len(self.renderers.workers)
        looked = self.renderers.ahead(self._inspect, sources, depth)
        for num, (source, future) in enumerate(looked, start=1):
            try:
                if job := self._judge(source, *future.result()):
                    jobs.append(job)
            except RandSlotError as error:
                self.summary.failed[source] = str(error)
            self.tell(Progress(num, len(sources), 0, 0))
        return jobs

    def _inspect(self, source: str) -> tuple[File | None, os.stat_result, Inspected]:
        """Look into a file, unless its size and time say that it is as it was; return what was known of it too."""
        try:
            stat = os.stat(source)
        except OSError as error:
            raise RandSlotError(error.strerror or str(error)) from error
        if not S_ISREG(stat.st_mode):
            raise RandSlotError("not a regular file")
        old = next(iter(self.manifest.find(source=source, state="done")), None)
        if old and (old.size, old.modified) == (stat.st_size, stat.st_mtime_ns):
            return old, stat, Inspected(old.hash, old.num_pages)
        return old, stat, self.renderers.inspect(source)

    def _judge(self, source: str, old: File | None, stat: os.stat_result, found: Inspected) -> Job | None:
        """Return a file as a job, if it has to be read; otherwise keep what is known of it."""
        known = old if old and old.hash == found.hash else self._moved(found.hash)
        metadata = self.metadata if self.metadata is not None else known.metadata if known else {}
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

    def _moved(self, hash: str) -> File | None:
        """Return a file with this content that is no longer where it was."""
        same = self.manifest.find(hash=hash, state="done")
        return next((file for file in same if is_gone(file.source)), None)

    def _make_job(self, new: File, old: File | None) -> Job:
        """Begin with a file, or go on with it where an earlier run was stopped."""
        missing = set(range(1, new.num_pages + 1))
        for pending in self.manifest.find(source=new.source, state="pending"):
            if pending.hash == new.hash:
                new = replace(new, id=pending.id)
                missing -= self.store.images(new.id).keys()
            else:
                self._clear([pending])
        reuse = {image: page_id(old.id, number) for number, image in self.store.images(old.id).items()} if old else {}
        return Job(new, old, missing, reuse)

    # -- from files to pages

    def _read(self, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if job.missing]
        if jobs:
            self._tell()  # the first pages wait for the model
        for pages in self.reader.read(jobs) if jobs else ():  # a model is not loaded before it is needed
            for page in pages:
                if page.error and not page.job.failed:
                    self._fail(page)
            self._store([page for page in pages if not page.job.failed])

    def _fail(self, page: Read) -> None:
        """A page that cannot be opened fails its file."""
        job = page.job
        job.failed = f"page {page.number}: {page.error}" if job.file.num_pages > 1 else page.error
        self.summary.failed[job.file.source] = job.failed
        self.files_done += 1
        self._clear([job.file])

    def _store(self, pages: list[Read]) -> None:
        """Store pages, and make the files visible that are whole now."""
        if not pages:
            return
        self._begin({page.job.file.id: page.job for page in pages})
        stored = self.store.read([page.job.reuse[page.image] for page in pages if page.vectors is None])
        complete = [
            page.vectors if page.vectors is not None else stored[page.job.reuse[page.image]].vectors for page in pages
        ]
        self.store.add(
            [
                StoredPage(page.job.file.id, page.number, page.image, vectors)
                for page, vectors in zip(pages, complete, strict=True)
            ]
        )
        self.pages_done += len(pages)
        self.bytes += 2 * sum(vectors.size for vectors in complete)
        self.summary.encoded += sum(page.vectors is not None for page in pages)
        self.summary.vector_bytes_per_page = self.bytes // self.pages_done
        for page in pages:
            page.job.missing.discard(page.number)
            if not page.job.missing:
                self.whole.append(page.job)
        if time.monotonic() - self.safe_at >= SAFE_SECONDS:
            self._show_whole()
        else:
            self._tell()

    def _begin(self, jobs: Mapping[str, Job]) -> None:
        """Hide files before their first page is stored: searches are told of those that are under way, and no more."""
        new = [job.file for id, job in jobs.items() if id not in self.begun]
        if new:
            self.manifest.put(*new)
            self.begun.update(file.id for file in new)

    # -- from pages to visible files

    def _show_whole(self) -> None:
        """Bring all to the disk, then make whole files visible and delete what they replace.

        Also without whole files: after a crash the engine does again what was not on the disk, and that takes time.
        """
        self.store.flush()
        for job in self.whole:
            self._clear(self.manifest.show(job.file))
            (self.summary.changed if job.old else self.summary.added).append(job.file.source)
            self.summary.pages += job.file.num_pages
        self.files_done += len(self.whole)
        finished = tuple(job.file.source for job in self.whole)
        self.whole, self.safe_at = [], time.monotonic()
        self._tell(finished)

    def _clear(self, files: Iterable[File]) -> None:
        clear(self.manifest, self.store, files)

    def _tell(self, finished: tuple[str, ...] = ()) -> None:
        self.tell(Progress(self.files_done, self.num_files, self.pages_done, self.num_pages, finished))
