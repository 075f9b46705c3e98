"""Searches in a thread of their own: queries that wait together are encoded together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ..library.results import By, Hit
from .batches import Batches
from .limits import BATCH, WAITING_SEARCHES


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


class Searchable(Protocol):
    """What answers several queries at once: a library."""

    def search_all(
        self, queries: Sequence[str], k: int, *, by: By | None, filters: Mapping[str, Any], exact: bool, collapse: bool
    ) -> list[list[Hit]]: ...


class Searches:
    """Answers queries, as many at once as are waiting; most: how many may wait."""

    def __init__(self, library: Searchable, most: int = WAITING_SEARCHES) -> None:
        self.library = library
        self.batches: Batches[Options, str, list[Hit]] = Batches("searches", self._search, batch=BATCH, most=most)

    def ask(self, query: str, options: Options) -> Future[list[Hit]]:
        """Queue a query.

        Errors: Refused if too many are waiting.
        """
        return self.batches.ask(options, query)

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.batches.close()

    def _search(self, options: Options, queries: list[str]) -> list[list[Hit]]:
        filters = {} if options.source is None else {"source": options.source}
        return self.library.search_all(
            queries, options.k, by=options.by, filters=filters, exact=options.exact, collapse=options.collapse
        )
