"""The manifest of a library: its files, their states, and their display names."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from ..errors import DiskFullError, RandSlotError, first_line


@dataclass(frozen=True)
class File:
    """One version of a file.

    state: "pending", "done", "gone" (its pages are being deleted), or "failed" (it could not be read; it has no pages).
    modified: nanoseconds, from the file system. hash: of its content. metadata: from the user. properties: from the
    file: title, author, date, and main language; empty if not read yet.
    """

    source: str
    hash: str
    size: int
    modified: int
    num_pages: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    state: str = "pending"
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    properties: Mapping[str, str] = field(default_factory=dict)


class Manifest(ABC):
    """The files of a library. Safe to use from several threads."""

    @abstractmethod
    def find(self, *, source: str | None = None, hash: str | None = None, state: str | None = None) -> list[File]:
        """Return the files that match the given source, hash and state, by source."""

    @abstractmethod
    def get(self, ids: Iterable[str]) -> dict[str, File]:
        """Return files by their ids."""

    @abstractmethod
    def hidden(self) -> frozenset[str]:
        """Return the ids of files whose pages must not be found."""

    @abstractmethod
    def put(self, *files: File) -> None:
        """Store files atomically."""

    @abstractmethod
    def forget(self, file: File) -> None:
        """Delete a file whose pages are deleted."""

    @abstractmethod
    def totals(self) -> tuple[int, int]:
        """Return the number of searchable files and pages."""

    def check(self) -> None:  # noqa: B027
        """Raise RandSlotError if the manifest is damaged."""

    def close(self) -> None:  # noqa: B027
        """Close the manifest."""

    def show(self, file: File) -> list[File]:
        """Make a file visible and hide earlier versions; return them, so that their pages can be deleted."""
        old = [replace(one, state="gone") for one in self.find(source=file.source) if one.id != file.id]
        self.put(replace(file, state="done"), *old)
        return old


class FileManifest(Manifest):
    """The manifest in an SQLite file; each state change is one transaction."""

    def __init__(self, path: Path) -> None:
        """Open a manifest, or create an empty one."""
        self.path, self.lock = path, Lock()
        try:
            self.db = sqlite3.connect(path, check_same_thread=False)
            self.db.execute("pragma journal_mode = wal")
            self.db.execute("pragma synchronous = full")
            self.db.executescript(
                """
                create table if not exists files (
                    id text primary key, source blob not null, hash text not null, size integer not null,
                    modified integer not null, num_pages integer not null, state text not null, metadata text not null
                );
                create index if not exists by_source on files (source);
                create index if not exists by_hash on files (hash);
                create index if not exists by_state on files (state);
                """
            )
            if "properties" not in [row[1] for row in self.db.execute("pragma table_info(files)")]:
                self.db.execute("alter table files add column properties text not null default '{}'")
        except sqlite3.Error as error:
            raise self._make_error("open", error) from error

    def find(self, *, source: str | None = None, hash: str | None = None, state: str | None = None) -> list[File]:
        path = None if source is None else os.fsencode(source)
        conditions, values = ["true"], []
        for name, value in (("source", path), ("hash", hash), ("state", state)):
            if value is not None:
                conditions.append(f"{name} = ?")
                values.append(value)
        return self._read(f"select * from files where {' and '.join(conditions)} order by source", values)

    def get(self, ids: Iterable[str]) -> dict[str, File]:
        found: dict[str, File] = {}
        wanted = sorted(set(ids))
        for start in range(0, len(wanted), 500):
            batch = wanted[start : start + 500]
            for file in self._read(f"select * from files where id in ({', '.join('?' * len(batch))})", batch):
                found[file.id] = file
        return found

    def hidden(self) -> frozenset[str]:
        return frozenset(id for (id,) in self._select("select id from files where state in ('pending', 'gone')"))

    def put(self, *files: File) -> None:
        rows = []
        for file in files:
            source, metadata = os.fsencode(file.source), json.dumps(dict(file.metadata))  # a name need not be text
            about = (file.hash, file.size, file.modified, file.num_pages, file.state)
            rows.append((file.id, source, *about, metadata, json.dumps(dict(file.properties))))
        with self._transaction():
            self.db.executemany("insert or replace into files values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def forget(self, file: File) -> None:
        with self._transaction():
            self.db.execute("delete from files where id = ?", [file.id])

    def totals(self) -> tuple[int, int]:
        ((files, pages),) = self._select("select count(*), sum(num_pages) from files where state = 'done'")
        return files, pages or 0

    def check(self) -> None:
        ((found,),) = self._select("pragma integrity_check(1)")
        if found != "ok":
            raise self._make_error("read", sqlite3.DatabaseError(f"damaged: {' '.join(found.split())}"))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self.lock, self.db:
                yield
        except sqlite3.Error as error:
            raise self._make_error("write", error) from error

    def backup(self, path: Path) -> None:
        """Copy the manifest to a new file."""
        with self.lock, closing(sqlite3.connect(path)) as copy:
            self.db.backup(copy)

    def close(self) -> None:
        self.db.close()

    def _read(self, query: str, values: list[Any]) -> list[File]:
        files = []
        try:
            for id, source, hash, size, modified, num_pages, state, metadata, properties in self._select(query, values):
                about = (hash, size, modified, num_pages, json.loads(metadata), state)
                files.append(File(os.fsdecode(source), *about, id, json.loads(properties)))
        except (ValueError, TypeError) as error:
            raise self._make_error("read", sqlite3.DatabaseError(f"damaged: {first_line(error)}")) from error
        return files

    def _select(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            with self.lock:
                return self.db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._make_error("read", error) from error

    def _make_error(self, what: str, error: sqlite3.Error) -> RandSlotError:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return DiskFullError(f"cannot {what} {self.path}: the disk is full. Free some space, then retry")
        remedy = ""
        if type(error) is sqlite3.DatabaseError:  # damaged: not a full disk or missing permissions
            remedy = (
                ". Restore a backup, or move the file away, run "
                f"randslot library verify --repair -l {self.path.parent} and index the files again"
            )
        return RandSlotError(f"cannot {what} {self.path}: {error}{remedy}")


def show_name(file: File) -> str:
    """Return the display name of a document; invalid bytes are replaced."""
    return _readable(os.path.basename(file.source))


def show_folder(file: File) -> str:
    """Return the name of a document's folder, without its path."""
    return _readable(os.path.basename(os.path.dirname(file.source)))


def tell_apart(files: Iterable[File]) -> dict[str, str]:
    """Return the folders, by document id, that distinguish documents of the same name: as few as possible.

    As in "2023", or "2023/…" if the folders below it have the same names.
    """
    named: defaultdict[str, list[File]] = defaultdict(list)
    for file in files:
        named[show_name(file)].append(file)
    places: dict[str, str] = {}
    for same in named.values():
        if len(same) == 1:
            continue
        folders = {file.id: _readable(os.path.dirname(file.source)).strip(os.sep).split(os.sep) for file in same}
        ends: dict[str, tuple[str, ...]] = {}
        for depth in range(1, max(map(len, folders.values())) + 1):
            cut = {id: tuple(folder[-depth:]) for id, folder in folders.items()}
            counts = Counter(cut.values())
            for id, end in cut.items():
                if counts[end] == 1 or depth >= len(folders[id]):
                    ends.setdefault(id, end)
        short = {id: end[0] + ("/…" if len(end) > 1 else "") for id, end in ends.items()}
        num_same = Counter(short.values())
        for id, name in short.items():
            places[id] = name if num_same[name] == 1 else "/".join(ends[id])
    return places


def _readable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
