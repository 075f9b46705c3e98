"""One process at a time may write: the lease is taken, renewed, given back, and taken over from the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from randslot.errors import BusyError, RandSlotError
from randslot.library.stores.qdrant_records import LeaseName, WriteLease, parse_lease_name


class NamesInMemory:
    """Names as a server keeps them: a rename of one that is not there is refused.

    lose_next: the answer of the next rename gets lost. away: nobody answers.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.away = self.lose_next = False

    def list(self) -> list[str]:
        if self.away:
            raise BusyError("the server is unreachable")
        return sorted(self.kept)

    def add(self, name: str) -> None:
        self.kept.add(name)

    def rename(self, old: str, new: str, drop: Sequence[str] = ()) -> bool:
        if self.away:
            raise BusyError("the server is unreachable")
        if old not in self.kept:
            return False
        self.kept = (self.kept - {old, *drop}) | {new}
        if self.lose_next:
            self.lose_next = False
            raise BusyError("the answer was lost")
        return True

    def drop(self, name: str) -> None:
        self.kept.discard(name)


class FakeClock:
    def __init__(self) -> None:
        self.value = 1000.0

    def __call__(self) -> float:
        return self.value


@dataclass
class Server:
    names: NamesInMemory = field(default_factory=NamesInMemory)

    def lease(self, seconds: float = 60.0, clock: FakeClock | None = None) -> WriteLease:
        lease = WriteLease(self.names, "papers", seconds)
        if clock is not None:
            lease.now = lease.monotonic = clock
        return lease


@pytest.fixture
def server() -> Server:
    return Server()


def test_only_one_holds_it(server):
    one, two = server.lease(), server.lease()
    with one.hold():
        one.check()
        with pytest.raises(BusyError, match=f"process {os.getpid()} on .* is writing"), two.hold():
            pass
    with two.hold():
        two.check()
        assert two.number == 2
    with pytest.raises(RandSlotError, match="lost the write lease"):
        two.check()
    assert len(server.names.kept) == 1


def test_the_lease_of_a_dead_process_is_taken_at_once_and_that_of_another_machine_when_it_expires(server):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    time_now = FakeClock()
    lease = server.lease(clock=time_now)
    left = LeaseName(7, time_now.value + 50, f"{dead.pid}.{lease.machine}.x.host")
    server.names.kept = {str(left)}
    with lease.hold():
        assert lease.number == 8
    server.names.kept = {str(replace(left, token=f"{dead.pid}.another.x.some.host"))}
    with pytest.raises(BusyError, match=f"process {dead.pid} on some.host"), lease.hold():
        pass
    time_now.value += 51
    with lease.hold():
        lease.check()


def test_of_two_that_see_it_free_one_gets_it(server, monkeypatch):
    first, second = server.lease(), server.lease()
    with first.hold():
        pass
    free = server.names.list()
    monkeypatch.setattr(
        second, "_list", lambda: [parse_lease_name(name) for name in free]
    )  # what it saw, some time ago
    with first.hold(), pytest.raises(BusyError), second.hold():
        pass


def test_of_two_that_see_none_at_most_one_gets_it(server, monkeypatch):
    """Each adds a free name and takes its own; who comes second sees the first."""
    first, second = server.lease(), server.lease()
    with first.hold():
        seen = second._list
        answers = [[]]  # as of before the first came
        monkeypatch.setattr(second, "_check_free", lambda _: None)
        monkeypatch.setattr(second, "_list", lambda: answers.pop() if answers else seen())
        with pytest.raises(BusyError), second.hold():
            pass
        first.renew()
        assert server.names.list() == [str(first.held)]


def test_one_that_was_held_up_goes_on_unless_another_has_it(server):
    time_now = FakeClock()
    lease, other = (server.lease(clock=time_now) for _ in range(2))
    with lease.hold():
        time_now.value += 1000
        lease.check()  # nobody wanted it
        time_now.value += 1000
        with other.hold(), pytest.raises(RandSlotError, match="lost the write lease"):
            lease.check()


def test_it_is_renewed_while_it_is_held(server):
    lease = server.lease(seconds=0.4)
    with lease.hold():
        before = lease.held
        time.sleep(0.8)
        assert lease.held.until > before.until + 0.3
        with pytest.raises(BusyError), server.lease().hold():
            pass


def test_a_renewal_whose_answer_got_lost_loses_nothing(server):
    lease = server.lease()
    with lease.hold():
        server.names.lose_next = True
        with pytest.raises(BusyError):
            lease.renew()
        lease.renew()
        assert server.names.list() == [str(lease.held)]
        assert lease.number == 1


def test_one_that_could_not_be_given_back_is_taken_again_by_its_owner(server):
    lease = server.lease()
    with lease.hold():
        server.names.away = True
    server.names.away = False
    with lease.hold():
        lease.check()


@pytest.mark.parametrize("num", [2, 30])
def test_a_node_that_lags_behind_does_not_lose_the_lease(num, server, monkeypatch):
    """An answer is lost, and the node that is asked next lists the name of before; for long, if a node is frozen."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    lease = server.lease()
    with lease.hold():
        before = list(server.names.kept)
        server.names.lose_next = True
        with pytest.raises(BusyError):
            lease.renew()
        lists = iter([before] * num)
        now = server.names.list
        monkeypatch.setattr(server.names, "list", lambda: next(lists, None) or now())
        lease.renew()
        assert [parse_lease_name(name) for name in server.names.kept] == [lease.held]
