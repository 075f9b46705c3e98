"""One process at a time may write: the lease is taken, renewed, given back, and taken over from the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from randslot.errors import BusyError, RandSlotError
from randslot.library.lease import Clock, WriteLease


class RecordsInMemory:
    """Records as a server keeps them: a conditional update changes a record only if the condition holds."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.away = False

    def put(self, records: Mapping[str, Mapping[str, Any]], *, only_if: Mapping[str, str] | None = None) -> None:
        if self.away:
            raise BusyError("no server answers there")
        for id, record in records.items():
            now = self.kept.get(id)
            if now is None or all(now.get(key) == value for key, value in (only_if or {}).items()):
                self.kept[id] = dict(record)

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        return {id: self.kept[id] for id in ids if id in self.kept}


class FakeClock:
    def __init__(self) -> None:
        self.value = 1000.0
        self.clock = Clock(lambda: self.value, lambda: self.value)


@pytest.fixture
def records() -> RecordsInMemory:
    return RecordsInMemory()


def test_only_one_holds_it(records):
    one, two = (WriteLease(records, "id", "papers") for _ in range(2))
    with one.hold():
        one.check()
        with pytest.raises(BusyError, match=f"is being written by process {os.getpid()} of"), two.hold():
            pass
    with two.hold():
        two.check()
    with pytest.raises(RandSlotError, match="the write lease has expired"):
        two.check()


def test_the_lease_of_a_dead_process_is_taken_at_once_and_that_of_another_machine_when_it_expires(records):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    time_now = FakeClock()
    lease = WriteLease(records, "id", "papers", clock=time_now.clock)
    left = {**lease.owner, "kind": "turn", "token": "x", "pid": dead.pid, "until": time_now.value + 50}
    records.kept["id"] = left
    with lease.hold():
        lease.check()
    records.kept["id"] = {**left, "machine": "another"}
    with pytest.raises(BusyError, match=f"process {dead.pid} of"), lease.hold():
        pass
    time_now.value += 51
    with lease.hold():
        lease.check()


def test_of_two_that_see_it_free_one_gets_it(records):
    first, second = (WriteLease(records, "id", "papers") for _ in range(2))
    with first.hold():
        pass
    before = records.kept["id"]["token"]
    assert first.change(before, "first", 60)
    assert not second.change(before, "second", 60)


def test_one_that_was_held_up_does_not_write_any_more(records):
    time_now = FakeClock()
    lease = WriteLease(records, "id", "papers", clock=time_now.clock)
    with lease.hold():
        lease.check()
        time_now.value += 60
        with pytest.raises(RandSlotError, match="out of reach for too long, and the write lease has expired"):
            lease.check()


def test_it_is_renewed_while_it_is_held(records):
    lease = WriteLease(records, "id", "papers", seconds=0.4)
    with lease.hold():
        time.sleep(0.8)
        lease.check()


def test_one_that_could_not_be_given_back_is_taken_again_by_its_owner(records):
    lease = WriteLease(records, "id", "papers")
    with lease.hold():
        records.away = True
    records.away = False
    with lease.hold():
        lease.check()
