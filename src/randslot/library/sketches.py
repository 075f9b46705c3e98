"""Sketches for a library of very many pages: fitted to its own pages and lines, and used only if they find enough."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import RandSlotError, UsageError
from .location import FORMAT, Location
from .models import choose_line
from .results import Progress
from .stores.base import (
    MAX_NUMBERS,
    Sketches,
    StoreHit,
    StoreQuery,
    Vectors,
    Where,
    mean_numbers,
    pages_at_once,
)
from .stores.sketch import Sketcher, fit_sketcher

LOOK_SECONDS = 1.0  # after which a search reads the description of a shared library again
BLOB = ("sketcher", "sketches.npz")  # where the sketcher is: on a server, in a folder
AT_ONCE = 1000  # pages that get sketches
NUM_TESTED = 100  # queries of each group that sketches are not fitted to
CANDIDATES = (100, 200, 300, 500, 1000, 2000, 4000)  # tried in this order
HITS, ENOUGH = 5, 0.98  # of the best pages, the share that must be found


@dataclass(frozen=True)
class Made:
    """Pages with sketches, pages that a search scores in full, and the share of the best pages that it then finds."""

    pages: int
    candidates: int
    recall: float
    queries: int


class LibrarySketches:
    """The sketches of an open library, as its description says ("sketches" in library.json)."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.noted: dict[str, Any] | None = None

    def take(self, about: dict[str, Any]) -> None:
        """Follow the description of the library, which another process may have changed."""
        noted = about.get("sketches")
        if noted == self.noted:
            return
        self.noted = noted
        content = self.location.read_blob(*BLOB) if noted else None
        self.location.store.sketches = None
        if noted and content:
            with suppress(RandSlotError):  # it is damaged, as `describe` tells
                self.location.store.sketches = Sketches(Sketcher.from_bytes(content), int(noted["candidates"]))

    def _note(self, noted: dict[str, Any] | None) -> None:
        """Change the description of the library, and wait until readers drop the old sketches."""
        was_used = bool(self.noted and self.noted["candidates"])
        about = self.location.read() or {}
        # A version that does not know sketches refuses format 3: it would add pages without.
        self.location.write(about | {"sketches": noted, "format": 3 if noted else FORMAT})
        self.noted = noted
        if was_used and self.location.shared:
            time.sleep(2 * LOOK_SECONDS)

    def describe(self) -> str:
        """Return in one line how searches use sketches; nothing if there are none."""
        if not self.noted:
            return ""
        if self.location.store.sketches is None:
            return "lost: randslot library sketch makes them again"
        if not self.noted["candidates"]:
            return "incomplete: run randslot library sketch to resume"
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

    def remove(self) -> None:
        """Delete all sketches."""
        if self.noted:
            self.location.store.sketches = None
            self._note(None)
            self.location.store.clear_sketches()

    def make(
        self,
        texts: Sequence[str] | None,
        embed: Callable[[list[str]], list[Vectors]],
        progress: Callable[[Progress], None],
    ) -> Made:
        """Give all pages sketches, and let searches use them if they find enough. The write lease is held.

        texts: queries as people ask them, beside lines of pages; None for lines only. embed: from queries to vectors.
        """
        store = self.location.store
        tested: list[list[Vectors]] = []
        fitted: list[Vectors] = []
        for group in self._choose_queries(texts):
            vectors: list[Vectors] = []
            for start in range(0, len(group), 50):
                vectors += embed(group[start : start + 50])
                progress(Progress(0, 0, len(vectors), len(group), stage="queries"))
            tested.append(vectors[:NUM_TESTED])
            fitted += vectors[NUM_TESTED:]
        is_begun = store.sketches is not None and not store.sketches.candidates  # by a run that was stopped
        sketcher = store.sketches.sketcher if store.sketches and is_begun else self._begin(fitted)
        store.sketches = Sketches(sketcher)
        num = self._add_all(progress)
        candidates, recall = self._measure(tested)
        if recall < ENOUGH:
            self.remove()
            raise RandSlotError(
                f"sketches of library {self.location.name} find {100 * recall:.1f} % of the {HITS} best pages, and "
                f"should find {100 * ENOUGH:.0f}: they are not used, and searches look at all pages as before"
            )
        self._note({"candidates": candidates, "recall": round(recall, 4), "made": sketcher.key})
        store.sketches = Sketches(sketcher, candidates)
        return Made(num, min(candidates, num), recall, sum(map(len, tested)))

    def _choose_queries(self, texts: Sequence[str] | None) -> list[list[str]]:
        """Return the queries that were given and lines of pages, without duplicates; sketches must do well by both."""
        dice = random.Random(0)
        lines = list(dict.fromkeys(self._choose_lines(dice)))
        groups = [lines] if texts is None else [list(dict.fromkeys(texts)), lines]
        if len(groups[0]) < 2 * NUM_TESTED:
            kind = "lines of pages with vectors" if texts is None else "different ones"
            raise UsageError(
                f"sketches need {2 * NUM_TESTED} queries to be made by, and there are {len(groups[0])} {kind}: name a "
                "file with queries, one on each line, by --queries"
            )
        for group in groups:
            dice.shuffle(group)
        return [group[:2000] for group in groups if len(group) >= NUM_TESTED]

    def _choose_lines(self, dice: random.Random) -> list[str]:
        """Return lines of 600 pages."""
        store = self.location.store
        visible = {file.id for file in self.location.manifest.find(state="done")}
        ids = [page.id for page in store.find(("layer", "ocr"), vectors=True) if page.file in visible]
        chosen = dice.sample(ids, min(len(ids), 600))
        step = pages_at_once(store, AT_ONCE)
        lines = []
        for start in range(0, len(chosen), step):
            for page in store.read(chosen[start : start + step]).values():
                line = choose_line(page, dice)
                if line:
                    lines.append(line)
        return lines

    def _begin(self, queries: list[Vectors]) -> Sketcher:
        """Fit a sketcher to at most 4,000 pages, keep it, and make room for sketches."""
        store = self.location.store
        ids = [page.id for page in store.find(None, vectors=True)]
        max_pages = min(4000, 8 * MAX_NUMBERS // max(mean_numbers(store), 1))
        pages = store.read(random.Random(1).sample(ids, min(len(ids), max_pages))).values()
        sketcher = fit_sketcher(queries, [page.vectors for page in pages if page.vectors is not None])
        # In this order, sketches and sketcher belong together whenever the process is killed.
        self._note({"candidates": 0})
        store.clear_sketches()
        self.location.write_blob(*BLOB, sketcher.to_bytes())
        return sketcher

    def _add_all(self, progress: Callable[[Progress], None]) -> int:
        """Give sketches to all pages that have none; return how many pages have one then."""
        store = self.location.store
        ids = [page.id for page in store.find(None, vectors=True, sketch=False)]
        step = pages_at_once(store, AT_ONCE)
        for start in range(0, len(ids), step):
            some = ids[start : start + step]
            store.add_sketches(list(store.read(some).values()))
            progress(Progress(0, 0, start + len(some), len(ids), stage="sketches"))
        store.flush()
        store.wait_optimized()
        return store.contents(self.location.manifest.hidden()).with_vectors

    def _measure(self, groups: list[list[Vectors]]) -> tuple[int, float]:
        """Return the fewest candidates that find 99 % of the best pages, and their recall; or the most candidates.

        People ask otherwise than pages are written: so more is wanted than must be found, and the group of queries with
        the lowest recall counts.
        """
        store = self.location.store
        assert store.sketches is not None
        where = Where(hidden=self.location.manifest.hidden())
        asked = [[StoreQuery(query) for query in group] for group in groups]
        exact = [store.search(group, HITS, where, True) for group in asked]
        for candidates in CANDIDATES:
            store.sketches = Sketches(store.sketches.sketcher, candidates)
            recalls = []
            for group, best in zip(asked, exact, strict=True):
                recalls.append(_recall(store.search(group, HITS, where, False), best))
            if min(recalls) >= 0.99:
                break
        return candidates, min(recalls)


def _recall(found: list[list[StoreHit]], exact: list[list[StoreHit]]) -> float:
    """Return the share of exact hits that were found."""
    shared = total = 0
    for some, best in zip(found, exact, strict=True):
        shared += len({hit.id for hit in some} & {hit.id for hit in best})
        total += len(best)
    return shared / max(total, 1)
