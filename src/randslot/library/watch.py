"""Keep a library in sync with folders: index new and changed files, remove deleted ones."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from ..errors import RandSlotError
from ..extras import needs_extra
from ..pages import DOCUMENT_SUFFIXES
from ..pages.ocr import find_engine
from .library import Library
from .results import Summary
from .sharing import LibraryClient, SharedLibrary
from .sources import has_documents, is_below, is_gone, list_files
from .workers import Interrupted, WorkerPool

SETTLE_SECONDS = 1.0  # a file is indexed once it has not changed for so long
RESCAN_SECONDS = 300.0  # between full scans: notifications may get lost, and some network drives send none
RETRY_SECONDS = 10.0  # after a full disk, or while another process writes
MAX_FILES = 500  # per batch; then other writers have a turn
NETWORK_TYPES = re.compile(r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|vboxsf|virtiofs|fuse|fuse\..+")  # of file systems

Stamp = tuple[int, int] | None  # size and modification time of a file; None if it is gone


@dataclass
class Watch:
    """Watches folders until `stop` is set. say: prints a line about each file.

    pending: files that may have changed, with their last known stamps. failed: files that cannot be read, with their
    stamps; they are retried when they change.
    """

    library: SharedLibrary
    folders: list[str]
    say: Callable[[str], None]
    poll: bool = False
    follow_links: bool = False
    stop: Event = field(default_factory=Event)
    pending: dict[str, Stamp] = field(default_factory=dict)
    failed: dict[str, Stamp] = field(default_factory=dict)
    wait_until: float = 0.0
    num_scans: int = 0
    drives: list[str] = field(default_factory=list)
    pool: WorkerPool | None = None

    def __post_init__(self) -> None:
        with needs_extra():
            from watchfiles import watch
        self.watch = watch
        self.thread = Thread(target=self.run, name="watch", daemon=True)

    def start(self) -> None:
        """Watch in a thread, until `close`."""
        self.thread.start()

    def run(self) -> None:
        """Scan the folders, then watch for changes."""
        self.drives = find_drives(self.folders)
        for drive in [] if self.poll else self.drives:
            self.say(f"{drive} is a network drive: polling its files every second")
        changes = self.watch(
            *self.folders,
            watch_filter=lambda _, path: self._is_wanted(path),
            debounce=400,
            rust_timeout=int(1000 * SETTLE_SECONDS),
            yield_on_timeout=True,
            force_polling=self.poll or bool(self.drives) or None,
            poll_delay_ms=1000,
            ignore_permission_denied=True,
            stop_event=self.stop,
        )
        scanned_at = -RESCAN_SECONDS
        for batch in changes:
            for _, path in batch:
                self._enqueue(path)
            if time.monotonic() - scanned_at >= RESCAN_SECONDS:
                self._scan()
                scanned_at = time.monotonic()
            if self.pending and time.monotonic() >= self.wait_until:
                self._update()
            elif self.num_scans:
                self._read_scans()

    def close(self) -> None:
        """Stop the thread soon; the next start resumes unfinished work."""
        self.stop.set()
        if self.pool is not None:
            self.pool.close()
        self.thread.join(2)

    def _is_wanted(self, path: str) -> bool:
        """Whether a path may be a document or folder to index: not hidden, not in the library, not behind a link."""
        folder = next((one for one in self.folders if is_below(path, one)), None)
        if folder is None or is_below(path, self._own_folder()):
            return False
        if any(part.startswith(".") for part in Path(path).relative_to(folder).parts):
            return False
        parent = os.path.dirname(path)
        real = os.path.join(os.path.realpath(folder), os.path.relpath(parent, folder))
        return self.follow_links or os.path.realpath(parent) == os.path.normpath(real)

    def _own_folder(self) -> str:
        own = self.library.own
        return str(own.folder.absolute()) if own else self.library.place

    def _enqueue(self, path: str) -> None:
        """Enqueue a file that may have changed, or the files of a folder."""
        if os.path.isdir(path):
            listing = list_files([path], Path(self._own_folder()), self.follow_links)
            for file in listing.files:
                self.pending.setdefault(file, (-1, -1))
        elif path.lower().endswith(DOCUMENT_SUFFIXES) or is_gone(path):
            self.pending.setdefault(path, (-1, -1))

    def _scan(self) -> None:
        """Enqueue all files of the folders, and deleted files that the library still has."""
        for folder in self.folders:
            if not os.path.isdir(folder):
                self.say(f"{folder} does not exist: waiting for it")
                continue
            files = list_files([folder], Path(self._own_folder()), self.follow_links).files
            for file in files:
                if file not in self.failed or self.failed[file] != get_stamp(file):
                    self.pending.setdefault(file, (-1, -1))
            with self.library.use() as opened:
                gone = opened.list_gone([folder])
            for file in gone:
                self.pending.setdefault(file, (-1, -1))

    def _update(self) -> None:
        """Index or remove pending files that have settled."""
        present: list[str] = []
        gone: set[str] = set()
        for path, before in self.pending.items():
            now = get_stamp(path)
            if now != before:
                self.pending[path] = now
            elif now is None:
                gone.add(path)
            elif len(present) < MAX_FILES:
                present.append(path)
        if not present and not gone:
            return
        try:
            with self.library.use() as opened:
                summary = self._add(opened, present) if present else Summary()
                if len(present) < MAX_FILES:  # else moved files may still be pending
                    summary.removed = opened.forget(self._find_lost(opened, gone))
        except Interrupted:
            return
        except (RandSlotError, OSError) as error:  # a full disk, another writer, a process that has just stopped
            self.wait_until = time.monotonic() + RETRY_SECONDS
            self.say(f"{error} (retrying in {RETRY_SECONDS:.0f} s)")
            return
        for path in [*present, *(gone if len(present) < MAX_FILES else ())]:
            del self.pending[path]
        summary.failed = {path: reason for path, reason in summary.failed.items() if not is_gone(path)}
        for path in summary.failed:
            self.failed[path] = get_stamp(path)
        self._report(summary)
        self.num_scans = summary.without_text if find_engine() else 0

    def _add(self, opened: Library | LibraryClient, files: list[str]) -> Summary:
        if isinstance(opened, LibraryClient):
            return opened.add(files)
        with WorkerPool(max((os.cpu_count() or 2) - 1, 1)) as self.pool:
            return opened.add(files, pool=self.pool)

    def _find_lost(self, opened: Library | LibraryClient, gone: Iterable[str]) -> list[str]:
        """Return the files of a library that were deleted, themselves or with a parent folder.

        A folder without documents is assumed to be an unmounted drive: its files stay.
        """
        paths = set(gone)
        lost = []
        for file in opened.files() if paths else ():
            above = [file.source, *map(str, Path(file.source).parents)]
            if not paths.isdisjoint(above) and is_gone(file.source):
                lost.append(file.source)
        for folder in (*self.folders, *self.drives):
            kept = {source for source in lost if is_below(source, folder)}
            if kept and not has_documents(folder, Path(self._own_folder()), self.follow_links):
                self.say(f"{folder} is empty: keeping its {len(kept):,} files; randslot index --prune removes them")
                lost = [source for source in lost if source not in kept]
        return lost

    def _report(self, summary: Summary) -> None:
        from .terminal import shorten

        for what in ("added", "changed", "moved", "removed"):
            sources = getattr(summary, what)
            for source in sources[:10]:
                self.say(f"{what} {shorten(source)}")
            if len(sources) > 10:
                self.say(f"{what} {len(sources) - 10:,} more files")
        for source, reason in summary.failed.items():
            self.say(f"could not index {shorten(source)}: {reason}")

    def _read_scans(self) -> None:
        """Run OCR on pages without text for up to 10 s; then changed files have a turn."""
        before, end = self.num_scans, time.monotonic() + 10
        with self.library.use() as opened:
            if isinstance(opened, Library):
                opened.read_words(ocr="missing", stop=lambda: self.stop.is_set() or time.monotonic() > end)
            else:
                opened.read_words(ocr="missing")
            self.num_scans = opened.count_without_text()
        if self.num_scans >= before:  # no progress: their files are gone
            self.num_scans = 0


def find_drives(folders: Iterable[str], mounts: str = "/proc/mounts") -> list[str]:
    """Return the network drives above or below folders (Linux): they send no notifications."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return []
    kinds = {}  # the last mount of a place hides earlier ones
    for line in lines:
        _, place, kind, *_ = line.split(" ")
        kinds[re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)] = kind
    found = set()
    for folder in map(os.path.realpath, folders):
        above = [place for place in kinds if place == folder or is_below(folder, place)]
        below = [place for place in kinds if is_below(place, folder)]
        found |= {max(above, key=len, default="/"), *below}
    return sorted(place for place in found if NETWORK_TYPES.fullmatch(kinds.get(place, "")))


def get_stamp(path: str) -> Stamp:
    """Return size and modification time of a file; None if it is gone."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
