"""From files to stored pages: find out what changed, open pages in worker processes while the model encodes others.

A run takes memory for a few batches of pages, however many files there are. It may be stopped or killed at any moment:
pages that are stored stay, files become visible when they are whole, and the next run goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from stat import S_ISREG
from typing import Any

import numpy as np
from PIL import Image
from sentence_transformers import MultiVectorEncoder

from ..errors import RandSlotError
from .files import is_gone
from .manifest import File, Manifest
from .renderers import Inspected, Renderers
from .store import Store, StoredPage, Vectors, page_id

SAFE_SECONDS = 5.0  # between two times that everything is brought to the disk and whole files become visible


@dataclass(frozen=True)
class Progress:
    """How far a run is; `finished` are the files that became visible since the last time it was told."""

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
    bytes_per_page: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Job:
    """A file on its way into the library: what it replaces, which pages are missing, and why it failed if it did."""

    file: File
    old: File | None
    missing: set[int]
    reuse: dict[str, str]  # pages of the old version, by the hash of their image
    failed: str = ""


@dataclass
class Ingest:
    """One run over some files, with what it works on."""

    manifest: Manifest
    store: Store
    load_model: Callable[[], MultiVectorEncoder]
    renderers: Renderers
    batch: int
    metadata: Mapping[str, Any] | None
    tell: Callable[[Progress], None]
    summary: Summary = field(default_factory=Summary)

    def run(self, sources: list[str]) -> None:
        """Bring the library up to date with some files, and fill in the summary."""
        jobs = self._look(sources)
        self.num_files, self.num_pages = len(jobs), sum(len(job.missing) for job in jobs)
        self.files_done = self.pages_done = self.bytes = 0
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
        for pending in self.manifest.find(source=new.source, state="pending"):
            if pending.hash == new.hash:
                new = replace(new, id=pending.id)
            else:
                self._clear([pending])
        self.manifest.put(new)
        missing = set(range(1, new.num_pages + 1)) - set(self.store.images(new.id))
        reuse = {image: page_id(old.id, number) for number, image in self.store.images(old.id).items()} if old else {}
        return Job(new, old, missing, reuse)

    # -- from files to pages

    def _read(self, jobs: list[Job]) -> None:
        if not any(job.missing for job in jobs):
            return
        self.model = self.load_model()  # not before it is needed: most runs find little new
        self.pixels = self.model[0].most_pixels
        waiting: list[tuple[Job, int, str, Image.Image]] = []
        wanted = ((job, number) for job in jobs for number in sorted(job.missing) if not job.failed)
        depth = 2 * self.batch + len(self.renderers.workers)
        for (job, number), future in self.renderers.ahead(self._open, wanted, depth):
            if job.failed or not (page := self._take(job, number, future)):
                continue
            waiting.append(page)
            if len(waiting) == self.batch:
                self._store(waiting)
                waiting = []
        self._store(waiting)

    def _open(self, wanted: tuple[Job, int]) -> Image.Image:
        job, number = wanted
        if job.failed:
            raise RandSlotError(job.failed)
        return self.renderers.render(job.file.source, number, self.pixels)

    def _take(self, job: Job, number: int, future: Future[Image.Image]) -> tuple[Job, int, str, Image.Image] | None:
        """Return a page with the hash of its image; a page that cannot be opened fails its file."""
        try:
            image = future.result()
        except RandSlotError as error:
            many = job.file.num_pages > 1
            job.failed = f"page {number}: {error}" if many else str(error)
            self.summary.failed[job.file.source] = job.failed
            self.files_done += 1
            self._clear([job.file])
            return None
        return job, number, blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest(), image

    def _store(self, pages: list[tuple[Job, int, str, Image.Image]]) -> None:
        """Encode pages, store them, and make the files visible that are whole now."""
        pages = [page for page in pages if not page[0].failed]
        if not pages:
            return
        stored = self.store.read([job.reuse[image] for job, _, image, _ in pages if image in job.reuse])
        known = {id: page.vectors for id, page in stored.items()}
        vectors = [known.get(job.reuse.get(image, "")) for job, _, image, _ in pages]
        fresh = iter(self._encode([page[3] for page, found in zip(pages, vectors, strict=True) if found is None]))
        complete = [next(fresh) if found is None else found for found in vectors]
        self.store.add(
            [
                StoredPage(job.file.id, number, image, found)
                for (job, number, image, _), found in zip(pages, complete, strict=True)
            ]
        )
        self.pages_done += len(pages)
        self.bytes += 2 * sum(found.size for found in complete)
        self.summary.encoded += sum(found is None for found in vectors)
        self.summary.bytes_per_page = self.bytes // self.pages_done
        for job, number, _, _ in pages:
            job.missing.discard(number)
            if not job.missing:
                self.whole.append(job)
        if time.monotonic() - self.safe_at >= SAFE_SECONDS:
            self._show_whole()
        else:
            self._tell()

    def _encode(self, images: list[Image.Image]) -> list[Vectors]:
        if not images:
            return []
        encoded = self.model.encode_document(images, batch_size=len(images))
        return [np.asarray(vectors.float().cpu(), np.float32) for vectors in encoded]

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


def clear(manifest: Manifest, store: Store, files: Iterable[File]) -> None:
    """Hide files, delete their pages, and forget them: what is left undone is done when the library is next opened."""
    files = list(files)
    manifest.put(*(replace(file, state="gone") for file in files))
    for file in files:
        store.delete(file.id)
        manifest.forget(file)
