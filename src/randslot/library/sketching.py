"""Sketches for a library of very many pages: fitted to its own pages and lines, and used only if they find enough."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RandSlotError, UsageError
from .results import Progress
from .stores.sketches import Sketcher, fit_sketcher
from .stores.store import MOST_NUMBERS, Sketches, Store, StoreQuery, Vectors, Where, mean_numbers, pages_at_once
from .trust import choose_line

LINES = 600  # of pages that are asked for, if no queries are given
TESTED = 100  # of the queries, that sketches are not fitted to
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

    def make(self, texts: Sequence[str], begun: Sketcher | None, progress: Callable[[Progress], None]) -> Made:
        """Give all pages sketches, and let searches use them if they find enough.

        texts: queries as people ask them; without any, lines of pages. begun: the sketcher of a run that was stopped.

        Errors: UsageError if there are too few queries. RandSlotError if sketches find too little.
        """
        asked = self._encode(texts, progress)
        tested, fitted = asked[:TESTED], asked[TESTED:]
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
        self.note({"candidates": candidates, "recall": round(recall, 4)})
        self.store.sketches = Sketches(sketcher, candidates)
        return Made(num, candidates, recall, len(tested))

    def _encode(self, texts: Sequence[str], progress: Callable[[Progress], None]) -> list[Vectors]:
        dice = random.Random(0)
        wanted = list(texts) or self._choose_lines(dice)
        if len(wanted) < FEWEST:
            kind = "queries" if texts else "pages with text and vectors"
            raise UsageError(
                f"sketches need {FEWEST} queries to be made by, and there are {len(wanted)} {kind}: name a file with "
                "queries, one on each line, by --queries"
            )
        dice.shuffle(wanted)
        vectors: list[Vectors] = []
        for start in range(0, len(wanted), 50):
            vectors += self.embed(wanted[start : start + 50])
            progress(Progress(0, 0, len(vectors), len(wanted), stage="queries"))
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
        most = min(PAGES, 8 * MOST_NUMBERS // max(mean_numbers(self.store), 1))
        pages = self.store.read(dice.sample(ids, min(len(ids), most))).values()
        sketcher = fit_sketcher(queries, [page.vectors for page in pages if page.vectors is not None])
        self.save(sketcher.to_bytes())
        self.store.clear_sketches()
        self.note({"candidates": 0})
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

    def _measure(self, queries: list[Vectors]) -> tuple[int, float]:
        """Return the fewest candidates that find what is wanted, and their share of the best pages; or the most."""
        where = Where(hidden=self.hidden)
        asked = [StoreQuery(query) for query in queries]
        wanted = [{hit.id for hit in hits} for hits in self.store.search(asked, HITS, where, True)]
        assert self.store.sketches is not None
        for candidates in CANDIDATES:
            self.store.sketches = Sketches(self.store.sketches.sketcher, candidates)
            shared = 0
            for hits, right in zip(self.store.search(asked, HITS, where, False), wanted, strict=True):
                shared += len({hit.id for hit in hits} & right)
            recall = shared / max(sum(map(len, wanted)), 1)
            if recall >= WANTED:
                break
        return candidates, recall

    def _drop(self) -> None:
        self.store.sketches = None
        self.note(None)
        self.store.clear_sketches()
