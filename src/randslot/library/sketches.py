"""Sketches for a library of very many pages: fitted to its own pages and lines, and used only if they find enough."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import RandSlotError, UsageError
from .location import FORMAT, SKETCHED, Location
from .models import choose_line
from .results import Progress
from .stores.base import (
    MAX_NUMBERS,
    Sketches,
    Store,
    StoreHit,
    StoreQuery,
    Vectors,
    Where,
    mean_numbers,
    pages_at_once,
)
from .stores.sketch import Sketcher, fit_sketcher

LOOK_SECONDS = 1.0  # after which a search looks at what another process has written about the library


class LibrarySketches:
    """The sketches of a library that is open."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.noted: dict[str, Any] | None = None

    def take(self, about: dict[str, Any]) -> None:
        """Have pages sketched, and searches use that, as is written about the library; another process may write it."""
        noted = about.get("sketches")
        if noted == self.noted:
            return
        self.noted = noted
        content = self.location.read_sketcher() if noted else None
        self.location.store.sketches = None
        if noted and content:
            with suppress(RandSlotError):  # it is damaged, as `describe` tells
                self.location.store.sketches = Sketches(Sketcher.from_bytes(content), int(noted["candidates"]))

    def note(self, noted: dict[str, Any] | None) -> None:
        """Write about them; None if the library has none any more. Who searches by those of before has stopped then."""
        was_used = bool(self.noted and self.noted["candidates"])
        about = self.location.read() or {}
        self.location.write(about | {"sketches": noted, "format": SKETCHED if noted else FORMAT})
        self.noted = noted
        if was_used and self.location.shared:
            time.sleep(2 * LOOK_SECONDS)

    @property
    def begun(self) -> Sketcher | None:
        """What a run that was stopped has begun with."""
        sketches = self.location.store.sketches
        return sketches.sketcher if sketches and not sketches.candidates else None

    def describe(self) -> str:
        """Return which sketches searches use, in a line; nothing if there are none."""
        if not self.noted:
            return ""
        if self.location.store.sketches is None:
            return "lost: randslot library sketch makes them again"
        if not self.noted["candidates"]:
            return "not of all pages yet: randslot library sketch goes on"
        found = f"{100 * self.noted['recall']:.1f} % of the best pages were found so"
        return f"a search by vectors scores {self.noted['candidates']:,} pages in full, which they find; {found}"

    def find_problems(self) -> list[str]:
        """Return what is wrong with them, a line each."""
        store = self.location.store
        if store.sketches is None or not store.sketches.candidates:
            return []
        without = sum(1 for _ in store.find(None, vectors=True, sketch=False))
        if not without:
            return []
        pages = "1 page has" if without == 1 else f"{without:,} pages have"
        return [f"{pages} no sketch: randslot library sketch makes them all again"]


LINES = 600  # of pages, that are asked for
MOST_QUERIES = 2000  # of those that are given
TESTED = 100  # of each, that sketches are not fitted to
FEWEST = 2 * TESTED  # queries
PAGES = 4000  # that sketches are fitted to
AT_ONCE = 1000  # pages that get sketches
CANDIDATES = (100, 200, 300, 500, 1000, 2000, 4000)  # tried in this order
HITS, ENOUGH = 5, 0.98  # of the best pages, how many must be found
WANTED = 0.99  # how many, to be content with fewer candidates: people ask otherwise than pages are written


@dataclass(frozen=True)
class Made:
    """What became of it: pages with sketches, candidates that a search scores in full, and the share of the best pages
    that it then finds, over so many queries."""

    pages: int
    candidates: int
    recall: float
    queries: int


@dataclass(frozen=True)
class Sketching:
    """Makes the sketches of a library, whose write lease is held.

    visible: ids of its files. hidden: of those that no search finds. embed: texts as queries. save: keeps a sketcher.
    note: keeps what is written about sketches in the library; None if it has none.
    """

    name: str
    store: Store
    visible: Collection[str]
    hidden: frozenset[str]
    embed: Callable[[list[str]], list[Vectors]]
    save: Callable[[bytes], None]
    note: Callable[[dict[str, Any] | None], None]

    def make(self, texts: Sequence[str] | None, begun: Sketcher | None, progress: Callable[[Progress], None]) -> Made:
        """Give all pages sketches, and let searches use them if they find enough.

        texts: queries as people ask them, beside lines of pages; None for lines alone. begun: the sketcher of a run
        that was stopped.

        Errors: UsageError if there are too few queries. RandSlotError if sketches find too little.
        """
        tested: list[list[Vectors]] = []
        fitted: list[Vectors] = []
        for group in self._choose_queries(texts):
            vectors = self._encode(group, progress)
            tested.append(vectors[:TESTED])
            fitted += vectors[TESTED:]
        sketcher = begun or self._begin(fitted)
        self.store.sketches = Sketches(sketcher)
        num = self._add_all(progress)
        candidates, recall = self._measure(tested)
        if recall < ENOUGH:
            self._drop()
            raise RandSlotError(
                f"sketches of library {self.name} find {100 * recall:.1f} % of the {HITS} best pages, and should find "
                f"{100 * ENOUGH:.0f}: they are not used, and searches look at all pages as before"
            )
        self.note({"candidates": candidates, "recall": round(recall, 4), "made": sketcher.key})
        self.store.sketches = Sketches(sketcher, candidates)
        return Made(num, min(candidates, num), recall, sum(map(len, tested)))

    def _choose_queries(self, texts: Sequence[str] | None) -> list[list[str]]:
        """Return the queries that were given and lines of pages, each once; sketches must do well by both."""
        dice = random.Random(0)
        lines = list(dict.fromkeys(self._choose_lines(dice)))
        groups = [lines] if texts is None else [list(dict.fromkeys(texts)), lines]
        if len(groups[0]) < FEWEST:
            kind = "lines of pages with vectors" if texts is None else "different ones"
            raise UsageError(
                f"sketches need {FEWEST} queries to be made by, and there are {len(groups[0])} {kind}: name a file "
                "with queries, one on each line, by --queries"
            )
        for group in groups:
            dice.shuffle(group)
        return [group[:MOST_QUERIES] for group in groups if len(group) >= TESTED]

    def _encode(self, texts: list[str], progress: Callable[[Progress], None]) -> list[Vectors]:
        vectors: list[Vectors] = []
        for start in range(0, len(texts), 50):
            vectors += self.embed(texts[start : start + 50])
            progress(Progress(0, 0, len(vectors), len(texts), stage="queries"))
        return vectors

    def _choose_lines(self, dice: random.Random) -> list[str]:
        ids = [page.id for page in self.store.find(("layer", "ocr"), vectors=True) if page.file in self.visible]
        chosen = dice.sample(ids, min(len(ids), LINES))
        step = pages_at_once(self.store, AT_ONCE)
        lines = []
        for start in range(0, len(chosen), step):
            for page in self.store.read(chosen[start : start + step]).values():
                line = choose_line(page, dice)
                if line:
                    lines.append(line)
        return lines

    def _begin(self, queries: list[Vectors]) -> Sketcher:
        """Fit a sketcher, keep it, and make room for sketches."""
        dice = random.Random(1)
        ids = [page.id for page in self.store.find(None, vectors=True)]
        most = min(PAGES, 8 * MAX_NUMBERS // max(mean_numbers(self.store), 1))
        pages = self.store.read(dice.sample(ids, min(len(ids), most))).values()
        sketcher = fit_sketcher(queries, [page.vectors for page in pages if page.vectors is not None])
        # In this order, sketches and what made them belong together whenever the process is killed.
        self.note({"candidates": 0})
        self.store.clear_sketches()
        self.save(sketcher.to_bytes())
        return sketcher

    def _add_all(self, progress: Callable[[Progress], None]) -> int:
        """Give sketches to all pages that have none; return how many pages have one then."""
        ids = [page.id for page in self.store.find(None, vectors=True, sketch=False)]
        step = pages_at_once(self.store, AT_ONCE)
        for start in range(0, len(ids), step):
            some = ids[start : start + step]
            self.store.add_sketches(list(self.store.read(some).values()))
            progress(Progress(0, 0, start + len(some), len(ids), stage="sketches"))
        self.store.flush()
        self.store.wait_optimized()
        return self.store.contents(self.hidden).with_vectors

    def _measure(self, groups: list[list[Vectors]]) -> tuple[int, float]:
        """Return the fewest candidates that find what is wanted, and their share of the best pages; or the most.

        Of several groups of queries, the one with which least is found counts.
        """
        where = Where(hidden=self.hidden)
        asked = [[StoreQuery(query) for query in group] for group in groups]
        wanted = [self.store.search(group, HITS, where, True) for group in asked]
        assert self.store.sketches is not None
        for candidates in CANDIDATES:
            self.store.sketches = Sketches(self.store.sketches.sketcher, candidates)
            shares = []
            for group, right in zip(asked, wanted, strict=True):
                shares.append(_share(self.store.search(group, HITS, where, False), right))
            if min(shares) >= WANTED:
                break
        return candidates, min(shares)

    def _drop(self) -> None:
        self.store.sketches = None
        self.note(None)
        self.store.clear_sketches()


def _share(found: list[list[StoreHit]], right: list[list[StoreHit]]) -> float:
    """Return how many of the right hits were found."""
    shared = total = 0
    for some, best in zip(found, right, strict=True):
        shared += len({hit.id for hit in some} & {hit.id for hit in best})
        total += len(best)
    return shared / max(total, 1)
