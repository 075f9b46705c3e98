"""The write lease of a library on a server: one process at a time may write. Knows no engine.

The lease is a name. Whoever renames it, from the name it has seen to one of its own, has the lease until the time that
the new name says. A server orders renames and refuses one of a name that is not there any more, and the nodes of a
cluster agree on that order by consensus, so of two processes one is refused, whatever nodes they ask and whichever
nodes are lost meanwhile. See "Why there is one writer" in docs/scale.md.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event, RLock, Thread
from typing import Any, Protocol

from ...errors import BusyError, RandSlotError
from ..location import has_ended
from ..manifest import File, replaced

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


LEASE_SECONDS = 60.0  # that a lease lasts unless it is renewed
SAFE = 0.4  # of these, how long a write may begin: it has half a lease to end, and clocks may differ by a tenth
PREFIX = "randslot-lease"


class Names(Protocol):
    """Names that a library has on a server; their changes are ordered, and durable."""

    def list(self) -> list[str]:
        """Return the names, as of the last change that the node which answers knows of."""

    def add(self, name: str) -> None:
        """Add a name."""

    def rename(self, old: str, new: str, drop: Sequence[str] = ()) -> bool:
        """Replace a name that is there, and remove some that may be; return False if it is not there."""

    def drop(self, name: str) -> None:
        """Remove a name, if it is there."""


@dataclass(frozen=True)
class Held:
    """What the name of a lease says: which one it is, until when by the time of day, and whose."""

    number: int
    until: float
    token: str

    def __str__(self) -> str:
        return f"{PREFIX}.{self.number}.{round(1000 * self.until)}.{self.token}"


def read_name(name: str) -> Held | None:
    """Read the name of a lease; None if it is another name."""
    prefix, *parts = name.split(".")
    if prefix != PREFIX or len(parts) != 3:
        return None
    number, until, token = parts
    return Held(int(number), int(until) / 1000, token)


@dataclass(frozen=True)
class Clock:
    """The time of day, which machines share, and the seconds of this machine, which nobody can set."""

    now: Callable[[], float] = time.time
    seconds: Callable[[], float] = time.monotonic


class WriteLease:
    """The right to write: taken and renewed by renaming it, if nobody else has.

    The process that holds it renews it. A killed process loses it after a minute, or at once if the next one is on the
    same machine and sees that it is dead. A process that was held up for too long renews it before its next write, or
    finds that another one has it. The clocks of the machines should agree within some seconds.
    """

    def __init__(
        self,
        names: Names,
        records: Records,
        id: str,
        library: str,
        seconds: float = LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Make a lease that nobody holds.

        id: of the record that says who holds it. library: what messages call it. seconds: that the lease lasts unless
        it is renewed.
        """
        self.names, self.records, self.id, self.library = names, records, id, library
        self.seconds, self.clock = seconds, clock or Clock()
        self.held: Held | None = None
        self.ended: set[str] = set()  # tokens of leases that this process gave back, even if the server was away
        self.safe_until = 0.0  # by the clock that cannot be set
        self.owner = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}
        self._lock = RLock()

    @property
    def token(self) -> str:
        """Which lease this process holds; empty if none."""
        return self.held.token if self.held else ""

    @property
    def number(self) -> int:
        """How often the lease had been taken when this process took it; 0 if it does not hold it."""
        return self.held.number if self.held else 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lease in a block.

        Errors: BusyError if another process holds it.
        """
        try:
            self._take()
        except BaseException:
            self._give_back()  # it may have been stopped halfway
            raise
        over = Event()
        thread = Thread(target=self._keep, args=[over], name="write lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._give_back()

    def check(self) -> None:
        """Refuse to write without the lease; one that is about to expire is renewed first.

        Errors: RandSlotError.
        """
        if self.held is None:
            raise RandSlotError(_lost(self.library))
        if self.clock.seconds() >= self.safe_until:
            self.renew()

    def renew(self) -> None:
        """Hold the lease for another while. Afterwards the node that was asked knows all that happened before.

        Errors: RandSlotError if it is lost.
        """
        with self._lock:
            if self.held is None:
                return
            if not self._rename(self.held, self._next(self.held.number, self.held.token)):
                self.held = None
                raise RandSlotError(_lost(self.library))

    def _next(self, number: int, token: str) -> Held:
        return Held(number, round(self.clock.now() + self.seconds, 3), token)

    def _rename(self, old: Held, new: Held, drop: Sequence[str] = ()) -> bool:
        """Change the name, if it is still the one that was seen; return whether it is ours now."""
        start = self.clock.seconds()
        if not self.names.rename(str(old), str(new), drop):
            # It may have been this process, now or in an earlier renewal: an answer can get lost.
            mine = next((held for held in self._list() if held.token == new.token), None)
            if mine is None or (mine != new and not self.names.rename(str(mine), str(new))):
                return False
        self.held, self.safe_until = new, start + SAFE * self.seconds
        return True

    def _take(self) -> None:
        seen = self._list()
        self._check_free(seen)
        if not seen:
            seen = [Held(0, 0.0, str(uuid.uuid4()))]
            self.names.add(str(seen[0]))
        last = max(seen, key=lambda held: held.number)
        others = [str(held) for held in seen if held != last]
        if not self._rename(last, self._next(last.number + 1, str(uuid.uuid4())), others):
            raise BusyError(self._busy(self._list()))
        # Two processes that saw no lease may each have added one: who comes second sees the first, and steps back.
        rivals = [held for held in self._list() if held != self.held]
        if rivals:
            mine, self.held = self.held, None
            self.names.drop(str(mine))
            raise BusyError(self._busy(rivals))
        self._say_who()

    def _list(self) -> list[Held]:
        read = [read_name(name) for name in self.names.list()]
        return [held for held in read if held is not None]

    def _check_free(self, seen: list[Held]) -> None:
        """Refuse to take a lease that another process holds.

        Errors: BusyError.
        """
        who = self.records.get([self.id]).get(self.id)
        untils = {held.token: held.until for held in seen}
        if who is not None:
            untils.setdefault(who["token"], float(who["until"]))  # of a version that knows no names
        for token, until in untils.items():
            own = who if who is not None and who["token"] == token else None
            if until > self.clock.now() and token not in self.ended and not (own and self._is_dead(own)):
                raise BusyError(_busy(self.library, own))

    def _busy(self, held: Sequence[Held]) -> str:
        who = self.records.get([self.id]).get(self.id)
        tokens = {one.token for one in held}
        return _busy(self.library, who if who is not None and who["token"] in tokens else None)

    def _is_dead(self, who: Mapping[str, Any]) -> bool:
        """Whether the holder was a process of this machine that has ended."""
        if who["machine"] != self.owner["machine"] or who["pid"] == os.getpid():
            return False
        return has_ended(int(who["pid"]))

    def _say_who(self) -> None:
        """Write down who holds the lease: only for messages, and for versions that know no names."""
        held = self.held
        if held is None:
            return
        record = {"kind": "turn", **self.owner, "token": held.token, "until": held.until}  # a name that servers have
        with suppress(RandSlotError):
            self.records.put({self.id: record})

    def _give_back(self) -> None:
        with self._lock:
            if self.held is None:
                return
            self.ended.add(self.held.token)
            try:
                with suppress(RandSlotError):  # it will expire by itself
                    free = Held(self.held.number, 0.0, self.held.token)
                    if self.names.rename(str(self.held), str(free)):
                        self.held = free
                        self._say_who()
            finally:
                self.held = None

    def _keep(self, over: Event) -> None:
        while not over.wait(self.seconds / 6):
            with suppress(RandSlotError):  # a server that is away for a moment: tried again until the lease expires
                self.renew()
                self._say_who()


def _lost(library: str) -> str:
    return f"{library} was out of reach for too long, and another process may have the write lease: run it again"


def _busy(library: str, who: Mapping[str, Any] | None) -> str:
    process = f"process {who['pid']} of {who['host']}" if who else "another process"
    return (
        f"library {library} is being written by {process}: one at a time, so wait until "
        "it ends, or a minute if it was killed"
    )


def _machine() -> str:
    """Return what two processes share if one can see whether the other is alive."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
