"""Requests that wait together are answered together, in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from threading import Thread
from typing import Generic, TypeVar

from .access import Refused

Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Asked(Generic[Kind, Item, Result]):
    """A request that waits, and the future of its answer; those of equal kind can be answered together."""

    kind: Kind
    item: Item
    result: Future[Result] = field(default_factory=Future)


class Batches(Generic[Kind, Item, Result]):
    """Answers requests, as many at once as are waiting: while it is busy others gather, and a lone one never waits.

    name: what requests are called, as in "searches". answer: gives one result for each of some items of one kind.
    batch: how many are answered at once. most: how many may wait.
    """

    def __init__(
        self, name: str, answer: Callable[[Kind, list[Item]], Sequence[Result]], *, batch: int, most: int
    ) -> None:
        self.name, self.answer, self.batch, self.most = name, answer, batch, most
        self.waiting: Queue[Asked[Kind, Item, Result] | None] = Queue(most)
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def ask(self, kind: Kind, item: Item) -> Future[Result]:
        """Queue a request.

        Errors: Refused if too many are waiting.
        """
        asked: Asked[Kind, Item, Result] = Asked(kind, item)
        try:
            self.waiting.put_nowait(asked)
        except Full as error:
            raise Refused(503, f"{self.most} {self.name} are waiting: try again later") from error
        return asked.result

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.waiting.put(None)
        self.thread.join()

    def _run(self) -> None:
        while True:
            batch = self._take()
            groups: dict[Kind, list[Asked[Kind, Item, Result]]] = {}
            for asked in batch:
                if asked is not None and asked.result.set_running_or_notify_cancel():
                    groups.setdefault(asked.kind, []).append(asked)
            for kind, group in groups.items():
                self._answer(kind, group)
            if None in batch:
                return

    def _take(self) -> list[Asked[Kind, Item, Result] | None]:
        """Wait for a request, and take those that have come in since with it."""
        batch = [self.waiting.get()]
        while len(batch) < self.batch and batch[-1] is not None:
            try:
                batch.append(self.waiting.get_nowait())
            except Empty:
                break
        return batch

    def _answer(self, kind: Kind, group: list[Asked[Kind, Item, Result]]) -> None:
        try:
            results = self.answer(kind, [asked.item for asked in group])
        except Exception as error:  # raised again where the answer is awaited; the thread must go on
            for asked in group:
                asked.result.set_exception(error)
            return
        for asked, result in zip(group, results, strict=True):
            asked.result.set_result(result)
