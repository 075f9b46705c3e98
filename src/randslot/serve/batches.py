"""Answer requests that wait together in one batch, in a few threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any

from .access import Refused


class Batches:
    """Answers requests in batches of one kind: others gather while it is busy, and a single one never waits.

    name: what requests are called, as in "searches". answer: returns one result for each item of one kind.
    batch: how many are answered together. num_threads: batches at the same time, so that one does not hold up the next.
    """

    def __init__(
        self,
        name: str,
        answer: Callable[[Any, list[Any]], Sequence[Any]],
        *,
        batch: int,
        max_waiting: int,
        num_threads: int = 1,
    ) -> None:
        self.name, self.answer, self.batch, self.max_waiting = name, answer, batch, max_waiting
        self.waiting: list[tuple[Hashable, Any, Future[Any]]] = []
        self.changed = Condition()
        self.is_closing = False
        self.threads = [Thread(target=self._run, name=name, daemon=True) for _ in range(num_threads)]
        for thread in self.threads:
            thread.start()

    def ask(self, kind: Hashable, item: Any) -> Future[Any]:
        """Queue a request; refuse it if too many are waiting."""
        result: Future[Any] = Future()
        with self.changed:
            if len(self.waiting) >= self.max_waiting:
                raise Refused(503, f"{self.max_waiting} {self.name} are waiting: try again later")
            self.waiting.append((kind, item, result))
            self.changed.notify()
        return result

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.is_closing)
                if not self.waiting:
                    return
                kind = self.waiting[0][0]
                taken = [asked for asked in self.waiting if asked[0] == kind][: self.batch]
                for asked in taken:
                    self.waiting.remove(asked)
            group = [asked for asked in taken if asked[2].set_running_or_notify_cancel()]
            try:
                results = self.answer(kind, [item for _, item, _ in group]) if group else []
            except Exception as error:  # raised again where the answer is awaited; the thread must survive
                for _, _, future in group:
                    future.set_exception(error)
                continue
            for (_, _, future), result in zip(group, results, strict=True):
                future.set_result(result)
