"""Where a library is kept: what a folder and a server have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ..errors import RandSlotError
from .manifest import File, Manifest
from .stores.base import Store

FORMAT = 2  # of new libraries
SKETCHED = 3  # of libraries with sketches: a version that does not know them would add pages without
FORMATS = (FORMAT, SKETCHED)  # that can be opened


class InUseError(RandSlotError):
    """Another process has the library open. socket: where it answers commands, if it is a service."""

    def __init__(self, message: str, socket: str | None = None) -> None:
        super().__init__(message)
        self.socket = socket


class Location(Protocol):
    """A place with one library, or none yet.

    name: what messages call it. folder: on this machine, for images and uploads that have no other file. shared:
    whether other processes may have it open.
    """

    name: str
    folder: Path
    shared: bool

    @property
    def manifest(self) -> Manifest:
        """The files of the library, once it is open."""

    @property
    def store(self) -> Store:
        """The pages of the library, once it is open."""

    def read(self) -> dict[str, Any] | None:
        """Return what was written about the library; None if there is none."""

    def write(self, about: dict[str, Any]) -> None:
        """Write about the library; from then on there is one."""

    def open(self, dim: int | None, *, repair: bool) -> None:
        """Open the manifest and the store, or make them.

        dim: of the vectors; None if the library has none. repair: make the store also where there was one.

        Errors: RandSlotError if it is lost, and not to be repaired.
        """

    def read_sketcher(self) -> bytes | None:
        """Return what makes the sketches of pages, as it was kept; None if there is nothing."""

    def keep_sketcher(self, content: bytes) -> None:
        """Keep what makes the sketches of pages."""

    def hold_lease(self) -> AbstractContextManager[None]:
        """Return a block in which this process may write, and no other one does.

        Errors: BusyError if another process is writing.
        """

    def announce(self, socket: str | None) -> None:
        """Say where this process answers other ones that want the library; None: nowhere any more."""

    def is_same(self, other: Location) -> bool:
        """Whether another location, whose write lease this process holds, is this one by another name."""

    def check(self) -> None:
        """Ask for something small of all that a search needs.

        Errors: RandSlotError if searches would not be answered.
        """

    def size(self) -> int:
        """Return the bytes that it takes on disk, or those of the vectors where that cannot be known."""

    def close(self) -> None:
        """Let go of it."""

    def abandon(self) -> None:
        """Let go of it, and remove what was begun of a library that could not be made."""


def lost_pages(name: str) -> RandSlotError:
    """Return the error for a library with files and no store: an empty store would look as if nothing was found."""
    return RandSlotError(
        f"the pages of library {name} are lost: randslot library verify --repair -l {name}, then index its files"
    )


def lost_files(name: str) -> RandSlotError:
    """Return the error for a library with pages and no list of files: an empty list would hide them all."""
    return RandSlotError(
        f"the list of files of library {name} is lost (files.sqlite): bring it back from a copy, or run "
        f"randslot library verify --repair -l {name}, then index its files"
    )


def has_ended(pid: int) -> bool:
    """Whether there is no process of this number on this machine, as far as can be seen from here."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to somebody else
        return False
    return False


def clear(manifest: Manifest, store: Store, files: Iterable[File]) -> None:
    """Hide files, delete their pages, and forget them: what is left undone is done when the library is next changed."""
    files = list(files)
    manifest.put(*(replace(file, state="gone") for file in files))
    for file in files:
        store.delete(file.id)
        manifest.forget(file)
