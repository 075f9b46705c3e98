"""Answer requests that wait together in one batch, in a thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from queue import Full, Queue
from threading import Thread
from typing import Generic, TypeVar

from .access import Refused

Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batches(Generic[Kind, Item, Result]):
    """Answers requests in batches of one kind: others gather while it is busy, and a single one never waits.

    name: what requests are called, as in "searches". answer: returns one result for each item of one kind.
    batch: how many are answered together.
    """

    def __init__(
        self, name: str, answer: Callable[[Kind, list[Item]], Sequence[Result]], *, batch: int, max_waiting: int
    ) -> None:
        self.name, self.answer, self.batch, self.max_waiting = name, answer, batch, max_waiting
        self.waiting: Queue[tuple[Kind, Item, Future[Result]] | None] = Queue(max_waiting)
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def ask(self, kind: Kind, item: Item) -> Future[Result]:
        """Queue a request; refuse it if too many are waiting."""
        result: Future[Result] = Future()
        try:
            self.waiting.put_nowait((kind, item, result))
        except Full as error:
            raise Refused(503, f"{self.max_waiting} {self.name} are waiting: try again later") from error
        return result

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.waiting.put(None)
        self.thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            batch = [self.waiting.get()]
            while len(batch) < self.batch and not self.waiting.empty():
                batch.append(self.waiting.get())
            groups: dict[Kind, list[tuple[Item, Future[Result]]]] = {}
            for asked in batch:
                if asked is None:
                    closing = True
                elif asked[2].set_running_or_notify_cancel():
                    groups.setdefault(asked[0], []).append(asked[1:])
            for kind, group in groups.items():
                try:
                    results = self.answer(kind, [item for item, _ in group])
                except Exception as error:  # raised again where the answer is awaited; the thread must survive
                    for _, future in group:
                        future.set_exception(error)
                    continue
                for (_, future), result in zip(group, results, strict=True):
                    future.set_result(result)
