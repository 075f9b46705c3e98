"""A library in a folder of this machine, which one process at a time has open.

The folder has `library.json` (format, model and language), `files.sqlite` (the manifest), `pages/` (the store),
`images/` (what was added without a file), `uploads/` (what was added in a browser), `lock`, and `sketches.npz` if pages
have sketches.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import RandSlotError, UsageError
from ..files import read_json, write_json, write_whole
from .location import InUseError, Location, clear, has_ended, lost_files, lost_pages
from .manifest import File, FileManifest, Manifest
from .sources import is_below
from .stores.base import Store
from .stores.edge import EdgeStore

LIBRARY_FILE, IMAGES, UPLOADS, SKETCHER = "library.json", "images", "uploads", "sketches.npz"
HOME = LIBRARY_FILE  # its name in earlier versions
BLOCK_BYTES = 512  # of a block, as the system counts them
LOGS = ("-wal", "-shm", "journal.dat")  # how the names of files end that the engines empty when they open a library
OWNER = "owner"  # the file that says which process has the library open
ENDED_SECONDS = 5.0  # that a process it was just about to start may keep the lock of one that was killed
BEGUN = ("lock", OWNER, f"{OWNER}.part", f"{LIBRARY_FILE}.part")  # all that a library has before it is one


class FolderLocation:
    """A library in a folder."""

    shared = False

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Take a folder for this process.

        Errors: RandSlotError in one line if it holds something else, or is open in another process.
        """
        self.folder, self.name = folder, str(folder)
        self.new_parents: list[Path] = []
        try:
            is_new = not (folder / LIBRARY_FILE).is_file()
        except OSError as error:
            raise UsageError(f"cannot read {folder}: {error.strerror or error}") from error
        if is_new:
            self._check_new(create)
        self._lock()

    def _check_new(self, create: bool) -> None:
        if not create:
            raise UsageError(f"no library at {self.folder}: randslot index makes one")
        self.new_parents = [parent for parent in self.folder.parents if not parent.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [path.name for path in self.folder.iterdir() if path.name not in BEGUN]
        except OSError as error:
            raise UsageError(f"cannot make a library at {self.folder}: {error.strerror or error}") from error
        if others:
            raise UsageError(f"{self.folder} is not a library and not empty: name another folder")

    def _lock(self) -> None:
        self.lock = FileLock(self.folder / "lock", thread_local=False)  # another thread may close the library
        try:
            self._take_lock()
            self.announce(None)
        except Timeout as error:
            raise self._in_use() from error
        except OSError as error:
            raise UsageError(
                f"cannot write into {self.folder}: {error.strerror or error}; searching writes too (a lock, the "
                "engine's log), so copy the folder to where you may write (cp -r, then chmod -R u+w), or let its owner "
                "run randslot serve"
            ) from error

    def _take_lock(self) -> None:
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            if not has_ended(self._read_owner().get("pid", os.getpid())):
                raise
            self.lock.acquire(timeout=ENDED_SECONDS)

    def announce(self, socket: str | None) -> None:
        write_json(self.folder / OWNER, {"pid": os.getpid(), "socket": socket})

    def _read_owner(self) -> dict[str, Any]:
        with suppress(RandSlotError):  # it is being written just now
            return read_json(self.folder / OWNER)
        return {}

    def _in_use(self) -> InUseError:
        """Return the error that says who has the library open, and what can be done about it."""
        owner = self._read_owner()
        by, socket = owner.get("pid", "unknown"), owner.get("socket")
        if socket is not None:
            message = (
                f"library {self.folder} is in use by another process ({by}), which answers searches: wait for its end, "
                "or stop it"
            )
            return InUseError(message, str(socket))
        return InUseError(
            f"library {self.folder} is in use by another process ({by}): one at a time, so wait until it ends, or let "
            "randslot serve open it, which others can use meanwhile"
        )

    def read(self) -> dict[str, Any] | None:
        if not (self.folder / LIBRARY_FILE).is_file():
            return None
        try:
            return read_json(self.folder / LIBRARY_FILE)
        except RandSlotError as error:
            raise RandSlotError(f"{error}: bring it back from a copy, or index into another folder") from error

    def write(self, about: dict[str, Any]) -> None:
        content = {**about, "folder": str(self.folder.absolute())}
        write_json(self.folder / LIBRARY_FILE, content)

    def open(self, dim: int | None, *, repair: bool) -> None:
        pages, files = self.folder / "pages", self.folder / "files.sqlite"
        if pages.exists() and not repair and not (files.exists() and files.stat().st_size):
            raise lost_files(self.name)
        self.manifest: Manifest = FileManifest(files)
        if not (repair or pages.exists()) and self.manifest.find():
            raise lost_pages(self.name)
        self.store: Store = EdgeStore(pages, dim)
        self._follow_images()
        clear(self.manifest, self.store, self.manifest.find(state="gone"))

    def _follow_images(self) -> None:
        """Know the images that are kept in here by their new paths, if the library was moved."""
        now = str(self.folder.absolute())
        about = read_json(self.folder / LIBRARY_FILE)
        before = str(about.get("folder", now))
        if before == now:
            return
        moved = []
        for file in self.manifest.find():
            if is_kept(file, before):
                moved.append(replace(file, source=now + file.source.removeprefix(before)))
        self.manifest.put(*moved)
        self.write(about)

    def read_sketcher(self) -> bytes | None:
        file = self.folder / SKETCHER
        return file.read_bytes() if file.is_file() else None

    def keep_sketcher(self, content: bytes) -> None:
        write_whole(self.folder / SKETCHER, content)

    def hold_lease(self) -> AbstractContextManager[None]:
        return nullcontext()  # this process has the lock

    def is_same(self, other: Location) -> bool:
        return False  # the lock lets no folder be opened twice

    def check(self) -> None:
        self.manifest.totals()

    def size(self) -> int:
        return folder_size(self.folder)

    def close(self) -> None:
        self.store.close()
        self.manifest.close()
        self.lock.release()

    def abandon(self) -> None:
        for opened in ("store", "manifest"):
            if hasattr(self, opened):
                getattr(self, opened).close()
        self.lock.release()
        if not (self.folder / LIBRARY_FILE).is_file():
            for name in BEGUN:
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()
            for parent in self.new_parents:  # the nearest first
                with suppress(OSError):  # somebody else has put something there
                    parent.rmdir()


def folder_size(folder: Path) -> int:
    """Return the bytes of a library on disk, without the logs of its engines, which come and go."""
    log = folder / "pages" / "wal"
    size = 0
    for path in folder.rglob("*"):
        if path.is_file() and log not in path.parents and not path.name.endswith(LOGS):
            size += path.stat().st_blocks * BLOCK_BYTES
    return size


def is_kept(file: File, library: str) -> bool:
    """Whether a file is one that a library keeps inside its folder."""
    return any(is_below(file.source, os.path.join(library, own)) for own in (IMAGES, UPLOADS))


Folder = FolderLocation  # its name in earlier versions
