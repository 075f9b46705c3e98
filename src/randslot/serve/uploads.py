"""Uploads: receive files, and index them in a background thread.

An upload is acknowledged once its file is on disk, in the library's folder `uploads/`. Then it is a job in a
round-robin queue: a slow upload yields to the others after its time slice. A restart requeues unfinished jobs; a job
that crashes the service three times fails. A file that cannot be indexed is deleted, and its job has the reason.
"""

from __future__ import annotations

import asyncio
import filecmp
import logging
import os
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Condition, Thread, Timer
from typing import Any, Literal

from ..errors import BusyError, DiskFullError, RandSlotError
from ..files import check_space, read_json, write_json
from ..library.library import Library
from ..library.location import UPLOADS, clear
from ..library.manifest import show_name
from ..library.results import Progress
from ..library.workers import Interrupted, WorkerPool
from ..pages import DOCUMENT_SUFFIXES, HEAD, KINDS
from ..pages.ocr import find_engine
from .access import FULL, Refused

LOG = logging.getLogger("randslot")
MAX_NAME_BYTES = 255  # limit of file systems
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class UploadLimits:
    """Limits of uploads.

    max_in_transit, max_per_address: uploads being received. max_waiting: length of the queue. page_seconds: timeout per
    page. turn_seconds: time slice. retry_seconds: delay before a retry, as while another process writes.
    """

    bytes: int = 100 * 2**20
    pages: int = 2_000
    max_in_transit: int = 40
    max_per_address: int = 8
    max_waiting: int = 20
    page_seconds: float = 20.0
    turn_seconds: float = 10.0
    retry_seconds: float = 5.0


@dataclass(frozen=True)
class UploadJob:
    """An upload and its state."""

    id: str
    name: str
    state: Literal["waiting", "reading", "done", "failed", "cancelled"] = "waiting"
    pages_done: int = 0
    num_pages: int = 0
    error: str | None = None
    same_as: str | None = field(
        default=None, metadata={"description": "an existing document with the same content: nothing was added"}
    )

    @property
    def is_finished(self) -> bool:
        return self.state not in ("waiting", "reading")


def check_name(name: str) -> None:
    """Refuse an invalid file name or an unsupported type."""
    is_path = os.path.basename(name) != name or "\0" in name or name in (".", "..")
    if is_path or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise Refused(400, f"invalid file name: it is a path, or longer than {MAX_NAME_BYTES} bytes")
    if Path(name).suffix.lower() not in KINDS:
        raise Refused(415, f"unsupported file type: add {', '.join(DOCUMENT_SUFFIXES)}")


def check_head(name: str, head: bytes) -> None:
    """Refuse a file whose first bytes do not match its name."""
    suffix = Path(name).suffix.lower()
    if not head:
        raise Refused(400, "the file is empty")
    if not KINDS[suffix].matches(head):
        raise Refused(415, f"the content is not that of a {suffix} file")


class Uploads:
    """Receives uploads and indexes them, round-robin."""

    def __init__(self, library: Library, limits: UploadLimits) -> None:
        self.library, self.limits = library, limits
        self.folder = library.folder.absolute() / UPLOADS
        self.jobs: dict[str, UploadJob] = {}
        self.in_transit: Counter[str] = Counter()  # uploads in transit, by address
        self.queue: list[str] = []  # ids of waiting jobs
        self.used: defaultdict[str, float] = defaultdict(float)  # worker seconds per file
        self.pool: WorkerPool | None = None  # of the current upload
        self.stalled: Counter[str] = Counter()  # turns of each file that ended without progress
        self.turn_ends = 0.0
        self.is_closing = False
        self.changed = Condition()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.attempts_file = self.folder.with_name("uploads.json")
        self.attempts: dict[str, int] = read_json(self.attempts_file) if self.attempts_file.is_file() else {}
        for file in sorted(self.folder.iterdir(), key=lambda file: (self.attempts.get(file.name, 0), file.name)):
            if file.suffix == ".part":  # in transit when the process was killed
                file.unlink()
            elif not library.manifest.find(source=str(file), state="done"):
                self._queue(file)
        self.thread = Thread(target=self._run, name="uploads", daemon=True)
        self.thread.start()

    def close(self, seconds: float | None = None) -> None:
        """Index acknowledged uploads, for some seconds; leave the rest for the next start."""
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        self.thread.join(seconds)
        if self.thread.is_alive():
            with self.changed:
                self.queue.clear()
                pool = self.pool
            if pool is not None:
                pool.close()
            self.thread.join(1)

    # -- receiving

    async def receive(self, name: str, content: AsyncIterator[bytes], size: int, address: str = "") -> UploadJob:
        """Store an upload and queue it. size: Content-Length, or 0.

        An upload takes a place in the queue only once its body is complete; until then it counts as in transit.
        """
        check_name(name)
        self._check_size(size)
        self._check_queue()
        await asyncio.to_thread(check_space, self.folder, size)
        limits, num = self.limits, self.in_transit.total()
        if self.in_transit[address] >= limits.max_per_address or num >= limits.max_in_transit:
            raise Refused(429, "too many uploads in transit: try again later")
        self.in_transit[address] += 1
        try:
            part = await self._write(name, content)
        finally:
            self.in_transit[address] -= 1
            self.in_transit += Counter()  # drops zero counts
        try:
            self._check_queue()
        except Refused:
            part.unlink()
            raise
        return self._queue(await asyncio.to_thread(self._rename, part, name))

    def _check_size(self, size: int) -> None:
        if size > self.limits.bytes:
            raise Refused(413, f"the file is larger than {self.limits.bytes >> 20} MB")

    def _check_queue(self) -> None:
        if self.num_waiting() >= self.limits.max_waiting:
            raise Refused(429, f"too many uploads in the queue ({self.limits.max_waiting}): try again later")

    async def _write(self, name: str, content: AsyncIterator[bytes]) -> Path:
        """Write the content to a temporary file; check its size and first bytes."""
        head, size, is_checked = b"", 0, False
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                async for chunk in content:
                    size += len(chunk)
                    self._check_size(size)
                    head += chunk[: HEAD - len(head)]
                    if not is_checked and len(head) == HEAD:
                        check_head(name, head)
                        is_checked = True
                    await asyncio.to_thread(file.write, chunk)
                check_head(name, head)
                await asyncio.to_thread(file.flush)
                await asyncio.to_thread(os.fsync, file.fileno())
            except BaseException:
                part.unlink()
                raise
        return part

    def _rename(self, part: Path, name: str) -> Path:
        """Rename a temporary file; number the name if it is taken: report-2.pdf."""
        stem, suffix = os.path.splitext(name)
        with self.changed:
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
                raise Refused(400, f"cannot store a file with this name: {error.strerror}") from error
            handle = os.open(self.folder, os.O_RDONLY)
            os.fsync(handle)  # makes the rename durable
            os.close(handle)
        return file

    def _queue(self, file: Path) -> UploadJob:
        job = UploadJob(str(uuid.uuid4()), file.name)
        with self.changed:
            self.jobs[job.id] = job
            self.queue.append(job.id)
            self.changed.notify_all()
        self._end_turn()
        return job

    # -- indexing

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue or self.is_closing)
                if not self.queue:
                    return
                job = self.jobs[self.queue.pop(0)]
                file = self.folder / job.name
                # Doubled until a page is stored: else two uploads could preempt each other forever.
                seconds = self.limits.turn_seconds * 2 ** self.stalled[str(file)]
                self.pool, self.turn_ends = WorkerPool(1, self.limits.page_seconds), time.monotonic() + seconds
                self.pool.used = self.used
            timer = Timer(seconds, self._end_turn)
            timer.start()
            try:
                self._index(job.id, file, self.pool)
            finally:
                timer.cancel()
                self.pool.close()
            with suppress(RandSlotError):  # retried after the next upload
                if not self.queue and find_engine() and self.library.count_without_text():
                    self.library.read_words(ocr="missing", workers=1, stop=lambda: bool(self.queue or self.is_closing))

    def _end_turn(self) -> None:
        """Preempt the current upload if its time slice is over and another one waits."""
        with self.changed:
            is_due = self.queue and time.monotonic() >= self.turn_ends
            pool = self.pool
        if is_due and pool is not None:
            pool.close()

    def _index(self, id: str, file: Path, pool: WorkerPool) -> None:
        """Index an upload until it is done, fails, or its turn ends."""
        attempts, num_before = self.attempts.get(file.name, 0), self.jobs[id].pages_done
        self._update(id, state="reading", error=None)
        try:
            if attempts >= MAX_ATTEMPTS:
                raise RandSlotError(f"the service crashed {attempts} times while reading it")
            self._save_attempts(file, attempts + 1)
            num, same_as = self._add(id, file, pool)
            self._update(id, state="done", pages_done=num, num_pages=num, same_as=same_as)
            self._reset(file)
        except (Interrupted, BusyError, DiskFullError) as error:  # its turn ended, or a retry may succeed
            if self.jobs[id].state == "cancelled":
                self._discard(file)
                return
            self._save_attempts(file, attempts)
            if isinstance(error, Interrupted):
                is_stalled = self.jobs[id].pages_done == num_before
                self.stalled[str(file)] = self.stalled[str(file)] + 1 if is_stalled else 0
            with self.changed:
                is_full = isinstance(error, DiskFullError)
                self._update(id, state="waiting", error=FULL if is_full else None)
                if not isinstance(error, Interrupted):
                    self.changed.wait_for(lambda: self.is_closing, self.limits.retry_seconds)
                if not self.is_closing:
                    self.queue.append(id)
        except RandSlotError as error:
            self._discard(file)
            self._update(id, state="failed", error=str(error).replace(str(file), file.name))
        except Exception:  # the thread must survive; the next start retries the file
            LOG.exception("could not index %r", str(file))
            self._update(id, state="failed", error="internal server error; see the server log")

    def _add(self, id: str, file: Path, pool: WorkerPool) -> tuple[int, str | None]:
        """Add a file to the library; return its number of pages, and an existing document with the same content."""

        def report(now: Progress) -> None:
            if now.stage == "reading" and now.num_pages:  # the pages left after earlier turns
                self._update(id, pages_done=num - now.num_pages + now.pages_done, num_pages=num)

        found = pool.inspect(str(file))
        num = found.num_pages
        if num > self.limits.pages:
            raise RandSlotError(f"{file.name} has {num:,} pages: the limit is {self.limits.pages:,}")
        same = [one for one in self.library.manifest.find(hash=found.hash, state="done") if os.path.isfile(one.source)]
        for one in same:
            if one.source == str(file):
                return num, show_name(one)
        if same:
            file.unlink()
            return num, show_name(same[0])
        summary = self.library.add([file], progress=report, pool=pool)
        if summary.failed:
            raise RandSlotError(next(iter(summary.failed.values())))
        return num, None

    def _save_attempts(self, file: Path, attempts: int) -> None:
        """Persist the number of unfinished attempts of a file."""
        self.attempts.pop(file.name, None)
        if attempts:
            self.attempts[file.name] = attempts
        with suppress(OSError):  # best-effort: the disk may be full
            write_json(self.attempts_file, self.attempts)

    def _reset(self, file: Path) -> None:
        """Reset the counters of a file: its name may be reused."""
        self._save_attempts(file, 0)
        self.used.pop(str(file), None)
        self.stalled.pop(str(file), None)

    def _discard(self, file: Path) -> None:
        """Delete an upload that is not in the library, with its stored pages."""
        self._reset(file)
        manifest = self.library.manifest
        if not manifest.find(source=str(file), state="done"):
            if pending := manifest.find(source=str(file), state="pending"):
                with self.library.write():
                    clear(manifest, self.library.store, pending)
            file.unlink(missing_ok=True)

    # -- state

    def cancel(self, id: str) -> None:
        """Stop an upload and delete its file."""
        with self.changed:
            job = self.find_job(id)
            if job.is_finished:
                raise Refused(409, "this upload has already ended")
            self._update(id, state="cancelled")
            is_waiting = id in self.queue
            if is_waiting:
                self.queue.remove(id)
            pool = self.pool
        if is_waiting:
            self._discard(self.folder / job.name)
        elif pool is not None:
            pool.close()

    def _update(self, id: str, **changes: Any) -> None:
        """Update a job; keep only the last hundred finished jobs."""
        with self.changed:
            job = self.jobs[id]
            if job.state != "cancelled" or changes.get("state") == "done":  # done: too late to cancel
                self.jobs[id] = replace(job, **changes)
            finished = [one.id for one in self.jobs.values() if one.is_finished]
            for old in finished[:-100]:
                del self.jobs[old]

    def list_jobs(self) -> list[UploadJob]:
        """Return recent uploads, latest first."""
        with self.changed:
            return list(reversed(self.jobs.values()))

    def find_job(self, id: str) -> UploadJob:
        """Return one upload."""
        with self.changed:
            if id not in self.jobs:
                raise Refused(404, "no such upload")
            return self.jobs[id]

    def num_waiting(self) -> int:
        """Return the number of unfinished uploads."""
        return sum(not job.is_finished for job in self.list_jobs())
