"""Uploads: what may come in, where it is kept, and the thread that indexes it while searches go on.

An upload is acknowledged once its file is on the disk, in the library's folder `uploads/`. From then on it is indexed,
at the latest when the library is next served. One that cannot be indexed is deleted, and its job says why.
"""

from __future__ import annotations

import asyncio
import filecmp
import logging
import os
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from threading import Event, Lock, Thread
from typing import IO

from ..errors import BusyError, RandSlotError
from ..library.folder import UPLOADS
from ..library.library import Library
from ..library.manifest import File, show_name
from ..library.results import Progress
from ..library.workers import WorkerPool
from ..pages import DOCUMENT_SUFFIXES, HEAD, KINDS
from ..pages.ocr import find_engine
from .access import NAME_BYTES, Refused, UploadLimits

REMEMBERED = 100  # jobs that are over
PART = ".part"
LOG = logging.getLogger("randslot")


@dataclass(frozen=True)
class UploadJob:
    """What becomes of an upload: "waiting", "reading", "done" or "failed"; `error` says why."""

    id: str
    name: str
    state: str = "waiting"
    pages_done: int = 0
    num_pages: int = 0
    error: str | None = None
    same_as: str | None = None  # the name of the document that has this content already: nothing was added

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")


def check_name(name: str) -> None:
    """Refuse a name that is not that of a document, or that a file in a folder cannot have."""
    if os.path.basename(name) != name or "\0" in name or name in (".", ".."):
        raise Refused(400, "that is not a file name: it is a path, or has characters that no file has in its name")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise Refused(400, f"the file name is longer than {NAME_BYTES} bytes")
    if Path(name).suffix.lower() not in KINDS:
        raise Refused(415, f"only PDFs and images can be added: {', '.join(DOCUMENT_SUFFIXES)}")


def check_head(name: str, head: bytes) -> None:
    """Refuse a file that does not begin as its name says."""
    suffix = Path(name).suffix.lower()
    if not head:
        raise Refused(400, "the file is empty")
    if not KINDS[suffix].matches(head):
        raise Refused(415, f"the content is not that of a {suffix} file")


class Uploads:
    """Takes files in, and indexes them one after the other."""

    def __init__(self, library: Library, pool: WorkerPool, limits: UploadLimits) -> None:
        self.library, self.pool, self.limits = library, pool, limits
        self.folder = library.folder.absolute() / UPLOADS
        self.jobs: dict[str, UploadJob] = {}
        self.coming = 0  # uploads that are being received
        self.lock = Lock()
        self.closing = Event()
        self.waiting: Queue[tuple[str, Path] | None] = Queue()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._resume()
        self.thread = Thread(target=self._run, name="uploads", daemon=True)
        self.thread.start()

    def _resume(self) -> None:
        """Queue what a stopped process had acknowledged, and delete what it had not."""
        for file in sorted(self.folder.iterdir()):
            if file.suffix == PART:
                file.unlink()
            elif not self.library.manifest.find(source=str(file), state="done"):
                self._queue(file)

    # -- from the network to the disk

    async def receive(self, name: str, content: AsyncIterator[bytes], size: int) -> UploadJob:
        """Keep an upload and queue it; size: its bytes, as the visitor says, or 0.

        Errors: Refused for a name, kind or size that is not taken, or if too many are in progress.
        """
        self.limits.check_size(size)
        check_name(name)
        with self.lock:
            waiting = sum(not job.over for job in self.jobs.values())
            if self.coming + waiting >= self.limits.waiting:
                raise Refused(429, f"{self.limits.waiting} uploads are in progress: wait until some are done")
            self.coming += 1
        try:
            part = await self._write(name, content)
        finally:
            with self.lock:
                self.coming -= 1
        return self._queue(await asyncio.to_thread(self._settle, part, name))

    async def _write(self, name: str, content: AsyncIterator[bytes]) -> Path:
        """Write what comes in to a file, as long as it is what it should be."""
        head, size, checked = b"", 0, False
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=PART, delete=False) as file:
            part = Path(file.name)
            try:
                async for chunk in content:
                    size += len(chunk)
                    self.limits.check_size(size)
                    head += chunk[: HEAD - len(head)]
                    if not checked and len(head) == HEAD:
                        check_head(name, head)
                        checked = True
                    await asyncio.to_thread(file.write, chunk)
                check_head(name, head)
                await asyncio.to_thread(_save, file)
            except BaseException:
                part.unlink()
                raise
        return part

    def _settle(self, part: Path, name: str) -> Path:
        """Give a file its name; if another file has that, one with a number: report-2.pdf.

        Errors: Refused if the file system does not take the name.
        """
        with self.lock:
            try:
                file, number = self.folder / name, 1
                while file.exists() and not filecmp.cmp(file, part, shallow=False):
                    number += 1
                    file = self.folder / _add_number(name, number)
                os.replace(part, file)
            except OSError as error:
                part.unlink(missing_ok=True)
                raise Refused(400, f"the file cannot be kept under this name: {error.strerror}") from error
        _sync(self.folder)
        return file

    def _queue(self, file: Path) -> UploadJob:
        job = UploadJob(str(uuid.uuid4()), file.name)
        self._note(job)
        self.waiting.put((job.id, file))
        return job

    # -- from the disk into the library

    def _run(self) -> None:
        while (work := self.waiting.get()) is not None:
            id, file = work
            try:
                self._index(id, file)
                self._read_scans()
            except BusyError:  # another process writes, or the library is out of reach: the file stays
                self._note(replace(self.jobs[id], state="waiting"))
                if not self.closing.wait(self.limits.retry_seconds):
                    self.waiting.put(work)
            except RandSlotError as error:
                self._fail(id, file, str(error).replace(str(file), file.name))
            except Exception:  # the thread must go on; the file stays, and is tried again at the next start
                LOG.exception("could not index %r", str(file))
                self._note(replace(self.jobs[id], state="failed", error="an error of the service: see its log"))

    def _index(self, id: str, file: Path) -> None:
        """Bring a file into the library.

        Errors: RandSlotError if it cannot be read, or has too many pages.
        """

        def tell(now: Progress) -> None:
            self._note(replace(self.jobs[id], pages_done=now.pages_done, num_pages=now.num_pages))

        self._note(replace(self.jobs[id], state="reading"))
        found = self.pool.inspect(str(file))
        num = found.num_pages
        if num > self.limits.pages:
            raise RandSlotError(f"{file.name} has {num:,} pages, more than {self.limits.pages:,}")
        same = self._find_same(found.hash, str(file))
        if same is not None:
            if same.source != str(file):
                file.unlink()
            name = show_name(same)
            self._note(replace(self.jobs[id], state="done", pages_done=num, num_pages=num, same_as=name))
            return
        summary = self.library.add([file], workers=1, progress=tell)
        if summary.failed:
            raise RandSlotError(next(iter(summary.failed.values())))
        self._note(replace(self.jobs[id], state="done", pages_done=num, num_pages=num))

    def _read_scans(self) -> None:
        """Read pages without text by OCR while no upload waits: they can be opened meanwhile."""
        if self.waiting.empty() and find_engine() and self.library.count_without_text():
            self.library.read_words(ocr="missing", workers=1, stop=lambda: not self.waiting.empty())

    def _find_same(self, hash: str, source: str) -> File | None:
        """Return the document that has this content already and can still be opened; the file itself first."""
        same = self.library.manifest.find(hash=hash, state="done")
        same.sort(key=lambda file: file.source != source)
        return next((file for file in same if os.path.isfile(file.source)), None)

    def _fail(self, id: str, file: Path, reason: str) -> None:
        file.unlink(missing_ok=True)
        self._note(replace(self.jobs[id], state="failed", error=reason))

    def _note(self, job: UploadJob) -> None:
        """Remember the state of an upload, and forget the oldest ones that are over."""
        with self.lock:
            self.jobs[job.id] = job
            over = [one.id for one in self.jobs.values() if one.over]
            for id in over[: len(over) - REMEMBERED]:
                del self.jobs[id]

    # -- state

    def list_jobs(self) -> list[UploadJob]:
        """Return the recent uploads, the latest first."""
        with self.lock:
            return list(reversed(self.jobs.values()))

    def find_job(self, id: str) -> UploadJob:
        """Return one upload.

        Errors: Refused if it is not known, or not any more.
        """
        with self.lock:
            if id not in self.jobs:
                raise Refused(404, "no such upload")
            return self.jobs[id]

    def num_waiting(self) -> int:
        """Return how many uploads are not done yet."""
        return sum(not job.over for job in self.list_jobs())

    def close(self) -> None:
        """Index what was acknowledged, then stop; what has to wait for another process is left for the next start."""
        self.closing.set()
        self.waiting.put(None)
        self.thread.join()


def _add_number(name: str, number: int) -> str:
    """Return a name with a number before its suffix; one that is too long then loses the end of its stem."""
    stem, suffix = os.path.splitext(name)
    ending = f"-{number}{suffix}"
    return os.fsencode(stem)[: NAME_BYTES - len(os.fsencode(ending))].decode("utf-8", "ignore") + ending


def _save(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Bring a folder's list of names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
