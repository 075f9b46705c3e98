"""The write lease of a library on a server: one process at a time may write. Knows no engine."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from ..errors import BusyError, RandSlotError
from .records import Records

LEASE_SECONDS = 60.0  # that a lease lasts unless it is renewed


@dataclass(frozen=True)
class Clock:
    """The time of day, which machines share, and the seconds of this machine, which nobody can set."""

    now: Callable[[], float] = time.time
    seconds: Callable[[], float] = time.monotonic


class WriteLease:
    """The right to write: one record, taken and renewed under the condition that nobody else has changed it.

    The process that holds it renews it. A killed process loses it after a minute, or at once if the next one is on the
    same machine and sees that it is dead. A process that was held up for too long finds that its lease has expired
    before its next write. The clocks of the machines should agree within some seconds.
    """

    def __init__(
        self, records: Records, id: str, library: str, seconds: float = LEASE_SECONDS, clock: Clock | None = None
    ) -> None:
        """id: of the record. library: what messages call it. seconds: that the lease lasts unless it is renewed."""
        self.records, self.id, self.library = records, id, library
        self.seconds, self.clock = seconds, clock or Clock()
        self.token = ""
        self.ended: set[str] = set()  # tokens of leases that this process gave back, even if the server was away
        self.safe_until = 0.0  # by the clock that cannot be set
        self.owner = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lease in a block.

        Errors: BusyError if another process holds it.
        """
        self._take()
        over = Event()
        thread = Thread(target=self._renew, args=[over], name="write lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.ended.add(self.token)
            with suppress(RandSlotError):  # it will expire by itself
                self.change(self.token, "", 0.0)
            self.token = ""

    def check(self) -> None:
        """Refuse to write without the lease, or after it has expired.

        Errors: RandSlotError.
        """
        if not self.token or self.clock.seconds() >= self.safe_until:
            raise RandSlotError(
                f"{self.library} was out of reach for too long, and the write lease has expired: run it again"
            )

    def change(self, before: str, token: str, seconds: float) -> bool:
        """Write the record if it still has the token `before`; return whether it has ours now."""
        start = self.clock.seconds()
        until = self.clock.now() + seconds
        record = {"kind": "turn", **self.owner, "token": token, "until": until}  # the name that servers have stored
        self.records.put({self.id: record}, only_if={"token": before})
        now = self.records.get([self.id]).get(self.id, {})
        if now.get("token") != token:
            return False
        self.safe_until = start + 0.8 * seconds
        return True

    def _take(self) -> None:
        now = self.records.get([self.id]).get(self.id)
        if now is not None and now["until"] > self.clock.now() and not self._is_over(now):
            raise BusyError(_busy(self.library, now))
        self.token = str(uuid.uuid4())
        if not self.change(now["token"] if now else "", self.token, self.seconds):
            self.token = ""
            raise BusyError(_busy(self.library, self.records.get([self.id])[self.id]))

    def _is_over(self, now: Mapping[str, Any]) -> bool:
        """Whether the holder was this object, or a process of this machine that has ended."""
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
        while not over.wait(self.seconds / 4):
            with suppress(RandSlotError):  # a server that is away for a moment: tried again until the lease expires
                self.change(self.token, self.token, self.seconds)


def _busy(library: str, now: Mapping[str, Any]) -> str:
    return (
        f"library {library} is being written by process {now['pid']} of {now['host']}: one at a time, so wait until "
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
