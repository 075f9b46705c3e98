"""Uploads: receive files, and index them in a thread while searches continue.

An upload is acknowledged once its file is on disk, in the library's folder `uploads/`. From then on it is a job of the
queue; jobs that a stopped process left behind are queued again at the next start. A file that cannot be indexed is
deleted, and its job says why.
"""

from __future__ import annotations

import asyncio
import filecmp
import logging
import os
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from threading import Event, Lock, Thread
from typing import Any, Literal

from ..errors import BusyError, RandSlotError
from ..library.library import Library
from ..library.location import UPLOADS
from ..library.manifest import show_name
from ..library.results import Progress
from ..library.workers import WorkerPool
from ..pages import DOCUMENT_SUFFIXES, HEAD, KINDS
from ..pages.ocr import find_engine
from .access import Refused

LOG = logging.getLogger("randslot")
PART = ".part"
MAX_NAME_BYTES = 255  # what file systems take


@dataclass(frozen=True)
class UploadLimits:
    """Limits of one upload, of uploads in progress, and the pause before a retry while another process writes.

    coming, coming_from: how many may be on their way, at all and from one address. waiting: to be indexed.
    """

    bytes: int = 100 * 2**20
    pages: int = 2_000
    coming: int = 40
    coming_from: int = 8
    waiting: int = 20
    retry_seconds: float = 5.0

    def check_size(self, size: int) -> None:
        """Refuse an upload of too many bytes."""
        if size > self.bytes:
            raise Refused(413, f"the file is larger than {self.bytes >> 20} MB")


@dataclass(frozen=True)
class UploadJob:
    """An upload and its state."""

    id: str
    name: str
    state: Literal["waiting", "reading", "done", "failed"] = "waiting"
    pages_done: int = 0
    num_pages: int = 0
    error: str | None = None
    same_as: str | None = field(
        default=None, metadata={"description": "the document that has this content already: nothing was added"}
    )

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")


def check_name(name: str) -> None:
    """Refuse a name that is a path, or not that of a document."""
    if os.path.basename(name) != name or "\0" in name or name in (".", ".."):
        raise Refused(400, "that is not a file name: it is a path, or has characters that no file has in its name")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise Refused(400, f"the file name is longer than {MAX_NAME_BYTES} bytes")
    if Path(name).suffix.lower() not in KINDS:
        raise Refused(415, f"only PDFs and images can be added: {', '.join(DOCUMENT_SUFFIXES)}")


def check_head(name: str, head: bytes) -> None:
    """Refuse a file whose first bytes do not match its name."""
    suffix = Path(name).suffix.lower()
    if not head:
        raise Refused(400, "the file is empty")
    if not KINDS[suffix].matches(head):
        raise Refused(415, f"the content is not that of a {suffix} file")


class Uploads:
    """Receives files, and indexes them one after the other."""

    def __init__(self, library: Library, pool: WorkerPool, limits: UploadLimits) -> None:
        self.library, self.pool, self.limits = library, pool, limits
        self.folder = library.folder.absolute() / UPLOADS
        self.jobs: dict[str, UploadJob] = {}
        self.coming: Counter[str] = Counter()  # uploads that are being received, by address
        self.lock = Lock()
        self.closing = Event()
        self.waiting: Queue[tuple[str, Path] | None] = Queue()
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.iterdir()):  # what a stopped process left behind
            if file.suffix == PART:
                file.unlink()
            elif not library.manifest.find(source=str(file), state="done"):
                self._queue(file)
        self.thread = Thread(target=self._run, name="uploads", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Index what was acknowledged, then stop; what waits for another process is left for the next start."""
        self.closing.set()
        self.waiting.put(None)
        self.thread.join()

    # -- from the network to the disk

    async def receive(self, name: str, content: AsyncIterator[bytes], size: int, address: str = "") -> UploadJob:
        """Store an upload and queue it; size: its length in bytes as the client says, or 0.

        A place in the queue is taken by a body that has arrived. Until then an upload counts for its address only.
        """
        self.limits.check_size(size)
        check_name(name)
        self._check_room()
        if self.coming[address] >= self.limits.coming_from or self.coming.total() >= self.limits.coming:
            raise Refused(429, "too many uploads are on their way: wait until some have arrived")
        self.coming[address] += 1
        try:
            part = await self._write(name, content)
        finally:
            self.coming[address] -= 1
            self.coming += Counter()  # forgets addresses without any
        try:
            self._check_room()
        except Refused:
            part.unlink()
            raise
        return self._queue(await asyncio.to_thread(self._give_name, part, name))

    def _check_room(self) -> None:
        if self.num_waiting() >= self.limits.waiting:
            raise Refused(429, f"{self.limits.waiting} uploads are waiting: wait until some are done")

    async def _write(self, name: str, content: AsyncIterator[bytes]) -> Path:
        """Write the content to a temporary file, and check its size and first bytes on the way."""
        head, size, is_checked = b"", 0, False
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=PART, delete=False) as file:
            part = Path(file.name)
            try:
                async for chunk in content:
                    size += len(chunk)
                    self.limits.check_size(size)
                    head += chunk[: HEAD - len(head)]
                    if not is_checked and len(head) == HEAD:
                        check_head(name, head)
                        is_checked = True
                    await asyncio.to_thread(file.write, chunk)
                check_head(name, head)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            except BaseException:
                part.unlink()
                raise
        return part

    def _give_name(self, part: Path, name: str) -> Path:
        """Rename a temporary file; a name that another file has gets a number: report-2.pdf."""
        stem, suffix = os.path.splitext(name)
        with self.lock:
            try:
                file, number = self.folder / name, 1
                while file.exists() and not filecmp.cmp(file, part, shallow=False):
                    number += 1
                    end = f"-{number}{suffix}"
                    max_bytes = MAX_NAME_BYTES - len(os.fsencode(end))
                    file = self.folder / (os.fsencode(stem)[:max_bytes].decode("utf-8", "ignore") + end)
                os.replace(part, file)
            except OSError as error:
                part.unlink(missing_ok=True)
                raise Refused(400, f"the file cannot be kept under this name: {error.strerror}") from error
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return file

    def _queue(self, file: Path) -> UploadJob:
        job = UploadJob(str(uuid.uuid4()), file.name)
        self._store(job)
        self.waiting.put((job.id, file))
        return job

    # -- from the disk into the library

    def _run(self) -> None:
        while (work := self.waiting.get()) is not None:
            id, file = work
            try:
                self._index(id, file)
                self._read_scans()
            except BusyError:  # another process writes, or the library is out of reach
                self._update(id, state="waiting")
                if not self.closing.wait(self.limits.retry_seconds):
                    self.waiting.put(work)
            except RandSlotError as error:
                file.unlink(missing_ok=True)
                self._update(id, state="failed", error=str(error).replace(str(file), file.name))
            except Exception:  # the thread must survive; the file is tried again at the next start
                LOG.exception("could not index %r", str(file))
                self._update(id, state="failed", error="an error of the service: see its log")

    def _index(self, id: str, file: Path) -> None:
        def report(now: Progress) -> None:
            self._update(id, pages_done=now.pages_done, num_pages=now.num_pages)

        self._update(id, state="reading")
        found = self.pool.inspect(str(file))
        num = found.num_pages
        if num > self.limits.pages:
            raise RandSlotError(f"{file.name} has {num:,} pages, more than {self.limits.pages:,}")
        same_as = self._find_same(found.hash, file)
        if same_as is None:
            summary = self.library.add([file], workers=1, progress=report)
            if summary.failed:
                raise RandSlotError(next(iter(summary.failed.values())))
        self._update(id, state="done", pages_done=num, num_pages=num, same_as=same_as)

    def _find_same(self, hash: str, file: Path) -> str | None:
        """Return the name of a document with this content, and delete the file if it is another one."""
        same = [one for one in self.library.manifest.find(hash=hash, state="done") if os.path.isfile(one.source)]
        if not same:
            return None
        for one in same:
            if one.source == str(file):
                return show_name(one)
        file.unlink()
        return show_name(same[0])

    def _read_scans(self) -> None:
        """Run OCR on pages without text while no upload waits."""
        if self.waiting.empty() and find_engine() and self.library.count_without_text():
            self.library.read_words(ocr="missing", workers=1, stop=lambda: not self.waiting.empty())

    # -- state

    def _update(self, id: str, **changes: Any) -> None:
        self._store(replace(self.jobs[id], **changes))

    def _store(self, job: UploadJob) -> None:
        """Store the state of a job; of jobs that are over, only the last hundred are kept."""
        with self.lock:
            self.jobs[job.id] = job
            over = [one.id for one in self.jobs.values() if one.is_over]
            for id in over[:-100]:
                del self.jobs[id]

    def list_jobs(self) -> list[UploadJob]:
        """Return the recent uploads, latest first."""
        with self.lock:
            return list(reversed(self.jobs.values()))

    def find_job(self, id: str) -> UploadJob:
        """Return one upload."""
        with self.lock:
            if id not in self.jobs:
                raise Refused(404, "no such upload")
            return self.jobs[id]

    def num_waiting(self) -> int:
        """Return how many uploads are not done yet."""
        return sum(not job.is_over for job in self.list_jobs())
