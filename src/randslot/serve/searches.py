"""Searches in a thread of their own: queries that wait together are encoded together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any, Protocol

from ..library.results import By, Hit
from .limits import BATCH, WAITING_SEARCHES, Refused


@dataclass(frozen=True)
class Options:
    """How to search; queries with equal options can be answered together.

    source: as in the library's filters: a pattern, or the paths of the files that count.
    """

    k: int = 10
    source: str | frozenset[str] | None = None
    exact: bool = False
    by: By | None = None
    collapse: bool = False


@dataclass(frozen=True)
class Asked:
    """A query that waits, and the future of its hits."""

    query: str
    options: Options
    hits: Future[list[Hit]] = field(default_factory=Future)


class Searchable(Protocol):
    """What answers several queries at once: a library."""

    def search_all(
        self, queries: Sequence[str], k: int, *, by: By | None, filters: Mapping[str, Any], exact: bool, collapse: bool
    ) -> list[list[Hit]]: ...


class Searches:
    """Answers queries, as many at once as are waiting; most: how many may wait."""

    def __init__(self, library: Searchable, most: int = WAITING_SEARCHES) -> None:
        self.library, self.most = library, most
        self.waiting: Queue[Asked | None] = Queue(most)
        self.thread = Thread(target=self._run, name="searches", daemon=True)
        self.thread.start()

    def ask(self, query: str, options: Options) -> Future[list[Hit]]:
        """Queue a query.

        Errors: Refused if too many are waiting.
        """
        asked = Asked(query, options)
        try:
            self.waiting.put_nowait(asked)
        except Full as error:
            raise Refused(503, f"{self.most} searches are waiting: try again later") from error
        return asked.hits

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.waiting.put(None)
        self.thread.join()

    def _run(self) -> None:
        while True:
            batch = self._take()
            groups: dict[Options, list[Asked]] = {}
            for asked in batch:
                if asked is not None and asked.hits.set_running_or_notify_cancel():
                    groups.setdefault(asked.options, []).append(asked)
            for options, group in groups.items():
                self._answer(group, options)
            if None in batch:
                return

    def _take(self) -> list[Asked | None]:
        """Wait for a query, and take those that have come in since with it."""
        batch = [self.waiting.get()]
        while len(batch) < BATCH and batch[-1] is not None:
            try:
                batch.append(self.waiting.get_nowait())
            except Empty:
                break
        return batch

    def _answer(self, group: list[Asked], options: Options) -> None:
        filters = {} if options.source is None else {"source": options.source}
        try:
            found = self.library.search_all(
                [asked.query for asked in group],
                options.k,
                by=options.by,
                filters=filters,
                exact=options.exact,
                collapse=options.collapse,
            )
        except Exception as error:  # raised again where the answer is awaited; the thread must go on
            for asked in group:
                asked.hits.set_exception(error)
            return
        for asked, hits in zip(group, found, strict=True):
            asked.hits.set_result(hits)
