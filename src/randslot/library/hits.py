"""From what a store found to hits: files, matches of readouts, the words of the query on the page, and copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from ..words.query import WordQuery
from ..words.snippets import find_words
from ..words.tokens import remove_accents, tokenize
from .manifest import File
from .results import By, Copy, Hit, Match
from .stores.store import StoredPage, StoreHit, StoreQuery, Vectors
from .texts import read_stored_text

DIGITS = 4  # of scores that are compared


def make_hits(
    found: list[StoreHit],
    asked: StoreQuery,
    words: WordQuery,
    pages: Mapping[str, StoredPage],
    files: Mapping[str, File],
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
            marked = find_words(read_stored_text(page.text), words)
            hit = replace(hit, snippet=marked.snippet, boxes=marked.boxes)
        hits.append(hit)
    return sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page))


def find_forms(
    found: list[StoreHit], asked: StoreQuery, words: WordQuery, pages: Mapping[str, StoredPage]
) -> list[str]:
    """Return forms of excluded words that pages have, and that the store was not asked to leave out yet."""
    stems, analyzer = frozenset(words.excluded_terms), words.analyzer
    numbers = set(analyzer.weigh_query(stems).numbers)
    forms: set[str] = set()
    for one in found:
        text = pages[one.id].text if one.id in pages else None
        if text is None or numbers.isdisjoint(text.terms.numbers):
            continue
        for token in tokenize(text.text):
            if not token.extra and not stems.isdisjoint(analyzer.find_terms(token)):
                forms.add(remove_accents(token.text))
    return sorted(forms.difference(asked.excluded))


def _find_matches(query: Vectors | None, page: Vectors | None) -> tuple[Match, ...]:
    """Return which readout of a page is nearest to each of a query."""
    if query is None or page is None:
        return ()
    similarities = query @ page.T
    matches = []
    for i, best in enumerate(similarities.argmax(1)):
        matches.append(Match(i + 1, int(best) + 1, float(similarities[i, best])))
    return tuple(matches)


def join_copies(hits: list[Hit]) -> list[Hit]:
    """Return hits without those that are copies of a better one, which knows where they are."""
    first: dict[str, int] = {}
    joined: list[Hit] = []
    for hit in hits:
        key = sign(hit)
        if key is not None and key in first:
            place = first[key]
            joined[place] = replace(joined[place], copies=(*joined[place].copies, Copy(hit.source, hit.page, hit.file)))
            continue
        if key is not None:
            first[key] = len(joined)
        joined.append(hit)
    return joined


def sign(hit: Hit) -> str | None:
    """Return what is equal for pages that are the same to a search, and None for a page that shows nothing to compare.

    Copies of a page have the same text, at the same places, and the same score. By both words and vectors the score
    is a sum over ranks, which copies do not share: then their similarities are compared.
    """
    if hit.snippet is None or not hit.snippet.text:
        return None
    similarities = [round(match.similarity, DIGITS) for match in hit.matches]
    score = None if hit.by == "both" else round(hit.score, DIGITS)
    seen = (hit.snippet.text, hit.boxes, similarities, score)
    return blake2b(repr(seen).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
