"""What a library on a server knows beside its pages: records by id, and its files as such records. Knows no engine."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from .manifest import File, replaced

RAW = "bytes:"  # before a path that is not valid text, in hexadecimal


class Records(Protocol):
    """Records by id, on a server."""

    def put(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep records by their ids."""

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return records by their ids; those that are not there are left out."""

    def find(self, **values: str | tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return the records with these values, or one of several."""

    def forget(self, id: str) -> None:
        """Remove a record."""

    def tally(self, key: str, **values: str) -> dict[int, int]:
        """Return how many of the records with these values have each number of a key."""


class ServerManifest:
    """The files of a library, as records."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def find(self, *, source: str | None = None, hash: str | None = None, state: str | None = None) -> list[File]:
        given = {"kind": "file"}
        if source is not None:
            given["source"] = _write_source(source)
        if hash is not None:
            given["hash"] = hash
        if state is not None:
            given["state"] = state
        files = [_file(id, record) for id, record in self.records.find(**given).items()]
        return sorted(files, key=_source)

    def get(self, ids: Iterable[str]) -> dict[str, File]:
        found = self.records.get({id for id in ids if is_id(id)})
        return {id: _file(id, record) for id, record in found.items() if record.get("kind") == "file"}

    def hidden(self) -> frozenset[str]:
        """Return the ids of files whose pages must not be found: those in progress, and those of stopped runs."""
        return frozenset(self.records.find(kind="file", state=("pending", "gone")))

    def put(self, *files: File) -> None:
        if files:
            self.records.put({file.id: _record(file) for file in files})

    def show(self, file: File) -> list[File]:
        """Make a file visible in place of what had its source before: one request, which the server logs as one."""
        old = replaced(self, file)
        self.put(replace(file, state="done"), *old)
        return old

    def forget(self, file: File) -> None:
        self.records.forget(file.id)

    def totals(self) -> tuple[int, int]:
        tally = self.records.tally("num_pages", kind="file", state="done")
        return sum(tally.values()), sum(num * count for num, count in tally.items())

    def check(self) -> None:
        """Nothing to do: a server looks after its own files."""

    def close(self) -> None:
        """Nothing to do: the connection is closed by the location."""


def is_id(text: str) -> bool:
    """Whether a text can be an id: a server refuses others."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _source(file: File) -> bytes:
    return os.fsencode(file.source)


def _write_source(source: str) -> str:
    """Return a path as text that a server takes: a name need not be valid text."""
    raw = os.fsencode(source)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return RAW + raw.hex()


def _read_source(text: str) -> str:
    return os.fsdecode(bytes.fromhex(text.removeprefix(RAW)) if text.startswith(RAW) else text.encode())


def _record(file: File) -> dict[str, Any]:
    return {
        "kind": "file",
        "source": _write_source(file.source),
        "hash": file.hash,
        "size": file.size,
        "modified": file.modified,
        "num_pages": file.num_pages,
        "state": file.state,
        "metadata": json.dumps(dict(file.metadata)),
    }


def _file(id: str, record: Mapping[str, Any]) -> File:
    return File(
        _read_source(record["source"]),
        record["hash"],
        int(record["size"]),
        int(record["modified"]),
        int(record["num_pages"]),
        json.loads(record["metadata"]),
        record["state"],
        id,
    )
