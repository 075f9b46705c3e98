"""What a library on a server knows beside its pages: its files, and whose turn it is to write. Knows no engine."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Any, Protocol

from ..errors import BusyError, RandSlotError
from .manifest import File, replaced

TURN_SECONDS = 60.0  # that a turn lasts unless it is renewed
RAW = "bytes:"  # before a path that is no text, in hexadecimal


class Records(Protocol):
    """Records by id, on a server."""

    def put(self, records: Mapping[str, Mapping[str, Any]], *, only_if: Mapping[str, str] | None = None) -> None:
        """Keep records by their ids. only_if: leave one alone that is there and has another value than this."""

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
        wanted = {"source": None if source is None else _write_source(source), "hash": hash, "state": state}
        given = {name: value for name, value in wanted.items() if value is not None}
        found = self.records.find(kind="file", **given)
        return sorted((_file(id, record) for id, record in found.items()), key=_source)

    def get(self, ids: Iterable[str]) -> dict[str, File]:
        found = self.records.get({id for id in ids if is_id(id)})
        return {id: _file(id, record) for id, record in found.items() if record.get("kind") == "file"}

    def hidden(self) -> frozenset[str]:
        """Return the ids of files whose pages must not be seen: those under way, and those of stopped runs."""
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

    def close(self) -> None:
        """Nothing to do: the connection is closed by who made it."""


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


class Turn:
    """Whose turn it is to write: one record, taken and renewed under the condition that nobody else has changed it.

    A process that has it renews it; one that is killed loses it after a minute, or at once if the next is on the same
    machine and sees that it is dead. One that was held up for too long finds its turn over before its next write. The
    clocks of the machines should agree within some seconds.
    """

    def __init__(self, records: Records, id: str, library: str) -> None:
        self.records, self.id, self.library = records, id, library
        self.token = ""
        self.ended: set[str] = set()  # tokens of turns that are over, also if the server was not there to hear it
        self.safe_until = 0.0  # by the clock that cannot be set
        self.owner = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Have the turn in a block.

        Errors: BusyError if another process has it.
        """
        self._take()
        over = Event()
        thread = Thread(target=self._renew, args=[over], name="turn", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.ended.add(self.token)
            with suppress(RandSlotError):  # it will run out by itself
                self._change(self.token, "", 0.0)
            self.token = ""

    def check(self) -> None:
        """Refuse to write when it is not, or no longer, the turn of this process."""
        if not self.token or time.monotonic() >= self.safe_until:
            raise RandSlotError(
                f"{self.library} was out of reach for too long, and another may write now: run it again"
            )

    def _take(self) -> None:
        now = self.records.get([self.id]).get(self.id)
        if now is not None and now["until"] > time.time() and not self._is_over(now):
            raise BusyError(_busy(self.library, now))
        self.token = str(uuid.uuid4())
        if not self._change(now["token"] if now else "", self.token, TURN_SECONDS):
            self.token = ""
            raise BusyError(_busy(self.library, self.records.get([self.id])[self.id]))

    def _is_over(self, now: Mapping[str, Any]) -> bool:
        """Whether who had the turn was this one, or a process of this machine that is no more."""
        if now["token"] in self.ended:
            return True
        if now["machine"] != self.owner["machine"] or now["pid"] == os.getpid():
            return False
        try:
            os.kill(int(now["pid"]), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def _renew(self, over: Event) -> None:
        while not over.wait(TURN_SECONDS / 4):
            with suppress(RandSlotError):  # a server that is away for a moment: tried again until the turn is over
                self._change(self.token, self.token, TURN_SECONDS)

    def _change(self, before: str, token: str, seconds: float) -> bool:
        """Write the record if it still has the token of before; return whether it is ours now."""
        start = time.monotonic()
        record = {"kind": "turn", **self.owner, "token": token, "until": time.time() + seconds}
        self.records.put({self.id: record}, only_if={"token": before})
        now = self.records.get([self.id]).get(self.id, {})
        if now.get("token") != token:
            return False
        self.safe_until = start + 0.8 * seconds
        return True


def _busy(library: str, now: Mapping[str, Any]) -> str:
    return (
        f"library {library} is being written by process {now['pid']} of {now['host']}: one at a time, so wait until "
        "it ends, or a minute if it was killed"
    )


def _machine() -> str:
    """Return what two processes share if one can see whether the other lives."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
