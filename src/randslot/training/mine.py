"""Mine hard negatives for training pairs: pages that rank high for a query but do not answer it.

A library of the pages ranks them by words, by its model's vectors, or by both, so any model can mine for any other.
sentence-transformers' `mine_hard_negatives` supports single-vector text models only, not MaxSim over pages.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..library.library import Library
from ..library.results import Hit
from ..pages.formats import KINDS, find_page
from .data import Pairs, list_queries

AT_ONCE = 64  # queries of one search
PagePlace = tuple[str, int]  # its file and its number


@dataclass(frozen=True)
class Mining:
    """How negatives are chosen from the hits of a query.

    num: how many. first, last: the range of ranks. margin: skip hits that score within this share of the query's own
    page, as they may answer it too; 0: no limit.
    """

    num: int = 4
    first: int = 1
    last: int = 100
    margin: float = 0.05

    def choose(self, hits: Sequence[Hit], positives: set[PagePlace]) -> list[Hit]:
        """Return negatives from the hits of a query, best first; none if the query's own page is not among them."""
        own = [hit for hit in hits if (hit.source, hit.page) in positives]
        if self.margin and not own:
            return []
        twins = {hit.twin for hit in own} - {None}
        max_score = (1 - self.margin) * max(hit.score for hit in own) if self.margin else float("inf")
        found = []
        for hit in hits[self.first - 1 : self.last]:
            is_own = (hit.source, hit.page) in positives or hit.twin in twins
            if not is_own and hit.score <= max_score:
                found.append(hit)
        return found[: self.num]


def mine(pairs: Pairs, library: Library, mining: Mining, by: Any) -> list[dict[str, Any]]:
    """Return a row per query with enough negatives: "query", "image", "negatives"; pages as paths.

    by: "words", "vectors" or "both", as in a search.

    Errors: UsageError for pages that are not files, or not in the library.
    """
    known = {file.source for file in library.files()}
    queries_and_places: list[tuple[str, PagePlace]] = []
    positives: dict[str, set[PagePlace]] = defaultdict(set)
    for row in pairs.dataset:
        page = pairs.locate(row["page"])
        if isinstance(page, bytes) or pairs.texts:
            raise UsageError(f"{pairs.name}: pages must be files, so that a library can index them")
        file, number = find_page(str(page)) or (str(page), 1)
        place = os.path.realpath(file), number
        if place[0] not in known:
            raise UsageError(f"{place[0]} is not in library {library.name}. Add it with randslot index.")
        for query in list_queries(row["query"]):
            queries_and_places.append((query, place))
            positives[query].add(place)
    rows = []
    for start in range(0, len(queries_and_places), AT_ONCE):
        batch = queries_and_places[start : start + AT_ONCE]
        queries = [query for query, _ in batch]
        found = library.search_all(queries, mining.last, by=by, exact=True, verbatim=True, rerank=False)
        for (query, place), hits in zip(batch, found, strict=True):
            negatives = mining.choose(hits, positives[query])
            if len(negatives) == mining.num:
                names = [page_path(hit.source, hit.page) for hit in negatives]
                rows.append({"query": query, "image": page_path(*place), "negatives": names})
    return rows


def page_path(source: str, number: int) -> str:
    """Return the path of a page, with a page number if its file has several."""
    kind = KINDS.get(Path(source).suffix.lower())
    return f"{source}#page={number}" if kind and kind.has_pages else source
