"""Where a library is stored: a local folder, which one process opens at a time, or a server (qdrant_records.py).

A folder has `library.json` (format, model and language), `files.sqlite` (the manifest), `pages/` (the store), `images/`
(images added without a file), `uploads/` (files added in a browser), `lock`, `owner` (the process that has it open),
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
BEGUN = ("lock", "owner", "owner.part", f"{LIBRARY_FILE}.part")  # files of a library that is being created


class InUseError(RandSlotError):
    """Another process has the library open. socket: where it accepts requests, if it does."""

    def __init__(self, message: str, socket: str | None = None) -> None:
        super().__init__(message)
        self.socket = socket


class Location(ABC):
    """A place that holds one library, or none yet.

    name: in messages. folder: on this machine, for images and uploads. shared: whether other processes may open it at
    the same time. manifest, store: its files and pages, once it is open.
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
    def write(self, description: dict[str, Any]) -> None:
        """Write the description of the library; this creates it."""

    @abstractmethod
    def open(self, dim: int | None, *, repair: bool) -> None:
        """Open or create the manifest and the store.

        dim: of the vectors; None if the library has none. repair: recreate a lost store.
        """

    @abstractmethod
    def read_blob(self, kind: str, file: str) -> bytes | None:
        """Return a blob of the library, if any. kind, file: its name on a server, and in a folder."""

    @abstractmethod
    def write_blob(self, kind: str, file: str, content: bytes) -> None:
        """Store a blob of the library."""

    @abstractmethod
    def check(self) -> None:
        """Check that searches would work; raise if not."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes on disk; on a server, the bytes of the vectors."""

    @abstractmethod
    def close(self) -> None:
        """Close the library."""

    def hold_lease(self) -> AbstractContextManager[None]:
        """Return a context manager that holds the write lease; BusyError if another process holds it."""
        return nullcontext()

    def announce(self, socket: str | None) -> None:  # noqa: B027
        """Publish the socket on which this process accepts requests; None: it no longer does."""

    def is_same(self, other: Location) -> bool:
        """Whether another location, whose write lease this process holds, is the same library."""
        return False

    def abandon(self) -> None:
        """Close a library that could not be opened, and clean up a partial creation."""
        self.close()


def open_location(place: str | os.PathLike[str], *, create: bool) -> Location:
    """Open the location of a library: a folder or an address."""
    if not os.fspath(place):
        raise UsageError("empty library path: pass a folder, or an address such as qdrant://host:6334/papers")
    if is_address(os.fspath(place)):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors report the same
        from .stores.qdrant_records import ServerLocation

        return ServerLocation(read_address(os.fspath(place)), create=create)
    return FolderLocation(Path(place).expanduser(), create=create)


class FolderLocation(Location):
    """A library in a folder. The process that opens it holds its lock."""

    shared = False

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Lock a folder; create: create it if needed."""
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
            raise UsageError(f"cannot create or read a library at {folder}: {first_line(error)}") from error
        self._acquire_lock()

    def _acquire_lock(self) -> None:
        self.lock = FileLock(self.folder / "lock", thread_local=False)  # another thread may close the library
        try:
            try:
                self.lock.acquire(timeout=0)
            except Timeout:
                if not has_ended(self._read_owner().get("pid", os.getpid())):
                    raise
                self.lock.acquire(timeout=5.0)  # a child of the killed process may still hold it
            self.announce(None)
        except Timeout as error:
            owner = self._read_owner()
            remedy = "stop it" if owner.get("socket") else "share it with randslot serve"
            line = f"library {self.folder} is open in process {owner.get('pid', 'unknown')}: wait, or {remedy}"
            raise InUseError(line, owner.get("socket")) from error
        except OSError as error:
            advice = "Copy the folder (cp -r, then chmod -R u+w), or ask its owner to run randslot serve"
            needs = "Searching needs write access (lock and log)"
            raise UsageError(f"cannot write to {self.folder}: {first_line(error)}. {needs}. {advice}") from error

    def _read_owner(self) -> dict[str, Any]:
        with suppress(RandSlotError):  # another process may be writing it
            return read_json(self.folder / "owner")
        return {}

    def announce(self, socket: str | None) -> None:
        write_json(self.folder / "owner", {"pid": os.getpid(), "socket": socket})

    def read(self) -> dict[str, Any] | None:
        file = self.folder / LIBRARY_FILE
        return read_json(file) if file.is_file() else None

    def write(self, description: dict[str, Any]) -> None:
        write_json(self.folder / LIBRARY_FILE, {**description, "folder": str(self.folder.absolute())})

    def open(self, dim: int | None, *, repair: bool) -> None:
        pages, files = self.folder / "pages", self.folder / "files.sqlite"
        if pages.exists() and not repair and not (files.exists() and files.stat().st_size):
            # An empty list of files would hide all pages.
            raise report_lost(f"files.sqlite of library {self.name} is", self.name)
        self.manifest = FileManifest(files)
        if not (repair or pages.exists()) and self.manifest.find():
            raise report_lost(f"the pages of library {self.name} are", self.name)
        self.store = EdgeStore(pages, dim)
        description, now = read_json(self.folder / LIBRARY_FILE), str(self.folder.absolute())
        before = str(description.get("folder", now))
        if before != now:  # the library was moved, with its images and uploads
            kept = [file for file in self.manifest.find() if is_kept(file.source, before)]
            self.manifest.put(*(replace(file, source=now + file.source.removeprefix(before)) for file in kept))
            self.write(description)
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
            if hasattr(self, name):
                getattr(self, name).close()
        self.lock.release()

    def abandon(self) -> None:
        self.close()
        if not (self.folder / LIBRARY_FILE).is_file():
            for name in BEGUN:
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()
            for parent in self.new_parents:  # the nearest first
                with suppress(OSError):  # not empty any more
                    parent.rmdir()


def folder_size(folder: Path) -> int:
    """Return the bytes of a library on disk, without the engines' temporary logs."""
    log = folder / "pages" / "wal"
    size = 0
    for path in folder.rglob("*"):
        if path.is_file() and log not in path.parents and not path.name.endswith(("-wal", "-shm", "journal.dat")):
            size += path.stat().st_blocks * 512
    return size


def is_kept(source: str, library: str) -> bool:
    """Whether a file is stored inside the library's folder."""
    return any(is_below(source, os.path.join(library, own)) for own in (IMAGES, UPLOADS))


def report_lost(what: str, name: str) -> RandSlotError:
    """Return the error for a library whose manifest or store is missing."""
    remedy = f"Restore a backup, or run randslot library verify --repair -l {name} and index the files again"
    return RandSlotError(f"{what} missing. {remedy}")


def has_ended(pid: int) -> bool:
    """Whether a process of this machine has ended."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # else it belongs to another user
    return False


def clear(manifest: Manifest, store: Store, files: Iterable[File]) -> None:
    """Hide files, delete their pages, then forget the files; the next write resumes this after a crash."""
    files = list(files)
    manifest.put(*(replace(file, state="gone") for file in files))
    for file in files:
        store.delete(file.id)
    if files:
        store.flush()  # else a crash could leave pages without a file
    for file in files:
        manifest.forget(file)
