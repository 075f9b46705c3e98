"""From what a store found to hits: files, matches of readouts, and the words of the query on the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..words.analyzer import Analyzer
from ..words.query import WordQuery
from ..words.snippets import find_words
from .manifest import File
from .results import By, Hit, Match
from .stores.store import StoredPage, StoreHit, StoreQuery, Vectors
from .texts import read_stored_text


def make_hits(
    found: list[StoreHit],
    asked: StoreQuery,
    words: WordQuery,
    pages: Mapping[str, StoredPage],
    files: Mapping[str, File],
    analyzer: Analyzer,
) -> list[Hit]:
    """Return what a store found as hits, best first, and equal ones by name.

    Files that another thread has removed since are left out.
    """
    by: By = "words" if asked.vectors is None else "vectors" if asked.terms is None else "both"
    hits = []
    for one in found:
        file = files.get(one.file)
        if file is None or file.state != "done" or one.id not in pages:
            continue
        page = pages[one.id]
        matches = _find_matches(asked.vectors, page.vectors)
        hit = Hit(one.id, file.source, one.number, one.score, matches, file.metadata, file.id, by)
        if page.text is not None and page.text.text:
            marked = find_words(read_stored_text(page.text), words, analyzer)
            hit = replace(hit, snippet=marked.snippet, boxes=marked.boxes)
        hits.append(hit)
    return sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page))


def _find_matches(query: Vectors | None, page: Vectors | None) -> tuple[Match, ...]:
    """Return which readout of a page is nearest to each of a query."""
    if query is None or page is None:
        return ()
    similarities = query @ page.T
    matches = []
    for i, best in enumerate(similarities.argmax(1)):
        matches.append(Match(i + 1, int(best) + 1, float(similarities[i, best])))
    return tuple(matches)
