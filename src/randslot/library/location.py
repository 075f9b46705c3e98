"""Where a library is: a folder of this machine, which one process at a time has open, or a server (qdrant_records.py).

A folder has `library.json` (format, model and language), `files.sqlite` (the manifest), `pages/` (the store), `images/`
(what was added without a file), `uploads/` (what was added in a browser), `lock`, `owner` (which process has it open),
and blobs such as `sketches.npz`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import RandSlotError, UsageError, first_line
from ..files import read_json, write_json, write_whole
from .address import is_address, read_address
from .manifest import File, FileManifest, Manifest
from .sources import is_below
from .stores.edge import EdgeStore
from .stores.store import Store

FORMAT = 2  # of new libraries
FORMATS = (2, 3)  # that can be opened; 3 has sketches
LIBRARY_FILE, IMAGES, UPLOADS = "library.json", "images", "uploads"
BEGUN = ("lock", "owner", "owner.part", f"{LIBRARY_FILE}.part")  # all that a library has before it is one


class InUseError(RandSlotError):
    """Another process has the library open. socket: where it answers commands, if it is a service."""

    def __init__(self, message: str, socket: str | None = None) -> None:
        super().__init__(message)
        self.socket = socket


class Location(ABC):
    """A place with one library, or none yet.

    name: in messages. folder: on this machine, for images and uploads that have no other file. shared: whether other
    processes may have it open. manifest, store: its files and pages, once it is open.
    """

    name: str
    folder: Path
    shared: bool
    manifest: Manifest
    store: Store

    @abstractmethod
    def read(self) -> dict[str, Any] | None:
        """Return the description of the library; None if there is none."""

    @abstractmethod
    def write(self, about: dict[str, Any]) -> None:
        """Write the description of the library; from then on there is one."""

    @abstractmethod
    def open(self, dim: int | None, *, repair: bool) -> None:
        """Open the manifest and the store, or make them.

        dim: of the vectors; None if the library has none. repair: make the store also where there was one.
        """

    @abstractmethod
    def read_blob(self, kind: str, file: str) -> bytes | None:
        """Return bytes that belong to the library, if any. kind, file: their name on a server, and in a folder."""

    @abstractmethod
    def write_blob(self, kind: str, file: str, content: bytes) -> None:
        """Keep bytes that belong to the library."""

    @abstractmethod
    def check(self) -> None:
        """Ask for something small of all that a search needs, which fails if searches would."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes on disk, or those of the vectors on a server."""

    @abstractmethod
    def close(self) -> None:
        """Close the library."""

    def hold_lease(self) -> AbstractContextManager[None]:
        """Return a block in which only this process writes; BusyError if another one is writing."""
        return nullcontext()

    def announce(self, socket: str | None) -> None:  # noqa: B027
        """Tell other processes where this one answers them; None: nowhere any more."""

    def is_same(self, other: Location) -> bool:
        """Whether another location, whose write lease this process holds, is this one by another name."""
        return False

    def abandon(self) -> None:
        """Close a library that could not be opened, and remove what was begun of it."""
        self.close()


def open_location(place: str | os.PathLike[str], *, create: bool) -> Location:
    """Return the location of a library, by its folder or its address."""
    if not os.fspath(place):
        raise UsageError("empty library path: pass a folder, or an address such as qdrant://host:6334/papers")
    if is_address(os.fspath(place)):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say what it would print by itself
        from .stores.qdrant_records import ServerLocation

        return ServerLocation(read_address(os.fspath(place)), create=create)
    return FolderLocation(Path(place).expanduser(), create=create)


class FolderLocation(Location):
    """A library in a folder, whose lock this process holds: so nobody else writes, and it is not opened twice."""

    shared = False

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Lock a folder, which is created if it may be."""
        self.folder, self.name = folder, str(folder)
        self.new_parents: list[Path] = []
        try:
            if not (folder / LIBRARY_FILE).is_file():
                if not create:
                    raise UsageError(f"no library at {folder}: randslot index creates one")
                self.new_parents = [parent for parent in folder.parents if not parent.exists()]
                folder.mkdir(parents=True, exist_ok=True)
                if any(path.name not in BEGUN for path in folder.iterdir()):
                    raise UsageError(f"{folder} is not a library and not empty: choose another folder")
        except OSError as error:
            raise UsageError(f"cannot make or read a library at {folder}: {first_line(error)}") from error
        self._acquire_lock()

    def _acquire_lock(self) -> None:
        self.lock = FileLock(self.folder / "lock", thread_local=False)  # another thread may close the library
        try:
            try:
                self.lock.acquire(timeout=0)
            except Timeout:
                if not has_ended(self._read_owner().get("pid", os.getpid())):
                    raise
                self.lock.acquire(timeout=5.0)  # a process that a killed one was about to start may keep it so long
            self.announce(None)
        except Timeout as error:
            owner = self._read_owner()
            user = f"in use by another process ({owner.get('pid', 'unknown')})"
            remedy = "stop it" if owner.get("socket") else "share it with randslot serve"
            line = f"library {self.folder} is {user}: wait until it ends, or {remedy}"
            raise InUseError(line, owner.get("socket")) from error
        except OSError as error:
            advice = "Copy the folder (cp -r, then chmod -R u+w), or ask its owner to run randslot serve"
            needs = "Searching needs write access (lock and log)"
            raise UsageError(f"cannot write to {self.folder}: {first_line(error)}. {needs}. {advice}") from error

    def _read_owner(self) -> dict[str, Any]:
        with suppress(RandSlotError):  # it is being written just now
            return read_json(self.folder / "owner")
        return {}

    def announce(self, socket: str | None) -> None:
        write_json(self.folder / "owner", {"pid": os.getpid(), "socket": socket})

    def read(self) -> dict[str, Any] | None:
        file = self.folder / LIBRARY_FILE
        return read_json(file) if file.is_file() else None

    def write(self, about: dict[str, Any]) -> None:
        write_json(self.folder / LIBRARY_FILE, {**about, "folder": str(self.folder.absolute())})

    def open(self, dim: int | None, *, repair: bool) -> None:
        pages, files = self.folder / "pages", self.folder / "files.sqlite"
        if pages.exists() and not repair and not (files.exists() and files.stat().st_size):
            # An empty list of files would hide all pages.
            raise report_lost(f"files.sqlite of library {self.name} is", self.name)
        self.manifest = FileManifest(files)
        if not (repair or pages.exists()) and self.manifest.find():
            raise report_lost(f"the pages of library {self.name} are", self.name)
        self.store = EdgeStore(pages, dim)
        about, now = read_json(self.folder / LIBRARY_FILE), str(self.folder.absolute())
        before = str(about.get("folder", now))
        if before != now:  # the library was moved, and with it the images that it keeps
            kept = [file for file in self.manifest.find() if is_kept(file.source, before)]
            self.manifest.put(*(replace(file, source=now + file.source.removeprefix(before)) for file in kept))
            self.write(about)
        clear(self.manifest, self.store, self.manifest.find(state="gone"))

    def read_blob(self, kind: str, file: str) -> bytes | None:
        path = self.folder / file
        return path.read_bytes() if path.is_file() else None

    def write_blob(self, kind: str, file: str, content: bytes) -> None:
        write_whole(self.folder / file, content)

    def check(self) -> None:
        self.manifest.totals()

    def size(self) -> int:
        return folder_size(self.folder)

    def close(self) -> None:
        for name in ("store", "manifest"):
            if hasattr(self, name):  # it was opened
                getattr(self, name).close()
        self.lock.release()

    def abandon(self) -> None:
        self.close()
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
        if path.is_file() and log not in path.parents and not path.name.endswith(("-wal", "-shm", "journal.dat")):
            size += path.stat().st_blocks * 512
    return size


def is_kept(source: str, library: str) -> bool:
    """Whether a library keeps a file inside its folder."""
    return any(is_below(source, os.path.join(library, own)) for own in (IMAGES, UPLOADS))


def report_lost(what: str, name: str) -> RandSlotError:
    """Return the error for a library that lacks its files or its store: in an empty one, nothing would be found."""
    remedy = f"Restore a backup, or run randslot library verify --repair -l {name} and index the files again"
    return RandSlotError(f"{what} missing. {remedy}")


def has_ended(pid: int) -> bool:
    """Whether no process of this machine has this number, as far as can be seen from here."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # else it belongs to another user
    return False


def clear(manifest: Manifest, store: Store, files: Iterable[File]) -> None:
    """Hide files, delete their pages, then the files; the next change of the library resumes it."""
    files = list(files)
    manifest.put(*(replace(file, state="gone") for file in files))
    for file in files:
        store.delete(file.id)
    if files:
        store.flush()  # else pages of no file would be found after a crash
    for file in files:
        manifest.forget(file)
