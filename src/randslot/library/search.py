"""Search a library: read the queries, ask the store, and make hits of the pages it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..words.analyzer import number_terms, remove_accents, tokenize
from ..words.query import WordQuery, list_named, read_query, show_longest
from ..words.snippets import find_words
from .languages import read_stored_text
from .manifest import File
from .results import By, Copy, Hit, Match, QueryResult
from .sources import is_match
from .stores.points import StoredPage, Vectors
from .stores.store import StoreHit, StoreQuery, Where

if TYPE_CHECKING:
    from .library import Library

MAX_HITS = 1_000_000
MAX_TIES = 1000  # pages after the last hit to look at: they may have its score, or be copies of other hits
MAX_WORDS = 50  # of a query to look up one by one


def search(
    library: Library,
    queries: Sequence[str],
    k: int,
    *,
    by: By | None = None,
    filters: Mapping[str, Any] | None = None,
    exact: bool = False,
    query_vectors: int | None = None,
    collapse: bool = False,
    explain: bool = False,
) -> list[QueryResult]:
    """Return the k best pages for each query; options as `Library.search`.

    explain: also find words that no page has, and count pages without text if nothing was found.
    """
    if not 1 <= k <= MAX_HITS:
        raise UsageError(f"k must be at {f'most {MAX_HITS:,}' if k > 1 else 'least 1'}, not {k}")
    by = library.choose_by(by)
    words = [read_query(query, library.words.make_analyzer(query)) for query in queries]
    where = make_where(library, filters or {})
    asked = make_queries(library, queries, words, by, query_vectors)
    results = [QueryResult(by) for _ in queries]
    if where is None:
        return results
    if library.binding and not library.binding.settings.get("unit", True):
        exact = True  # codes are only signs, and here the lengths of vectors count
    seen = [frozenset[int]() for _ in queries]
    waiting = {i: one for i, one in enumerate(asked) if one.terms is not None or one.vectors is not None}
    num = k + 1  # one more shows whether the last one has ties
    while waiting:
        found = library.store.search(list(waiting.values()), num, where, exact)
        pages = library.store.read(list({hit.id for some in found for hit in some}))
        files = library.manifest.get({hit.file for some in found for hit in some})
        again: dict[int, StoreQuery] = {}
        for (i, one), some in zip(waiting.items(), found, strict=True):
            if forms := find_excluded_forms(one, words[i], some, pages):
                again[i] = replace(one, excluded=(*one.excluded, *forms))
                continue
            hits = make_hits(some, one, words[i], pages, files)
            if collapse:
                hits = join_copies(hits)
            results[i].hits = hits[:k]
            texts = [pages[hit.id].text for hit in some if hit.id in pages]
            seen[i] = frozenset().union(*(text.terms.numbers for text in texts if text))
            is_last = len(some) < num or num >= k + MAX_TIES
            if not is_last and (len(hits) < k or some[-1].score >= hits[k - 1].score):
                again[i] = one  # pages that were not asked for may belong among the first k
        waiting, num = again, min(2 * num, k + MAX_TIES)
    if explain and by != "vectors":
        without_text = 0 if all(result.hits for result in results) else library.count_without_text()
        for result, missing in zip(results, find_unknown(library, words, seen, where), strict=True):
            result.unknown = missing
            result.without_text = 0 if result.hits else without_text
    return results


# -- which pages


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Raise UsageError for metadata that no search could filter by."""
    for key, value in (metadata or {}).items():
        if key in ("source", "page") or not isinstance(key, str):
            raise UsageError(f"metadata cannot be called {key!r}: searches filter by source and page already")
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(f"metadata {key!r} must be text, a number, or true or false, not {type(value).__name__}")


def make_where(library: Library, filters: Mapping[str, Any]) -> Where | None:
    """Return which pages a search looks at, or None if there are none."""
    hidden = library.manifest.hidden()
    first, last = _page_range(filters.get("page"))
    metadata = {key: value for key, value in filters.items() if key != "page"}
    if not metadata:
        return Where(None, hidden, first, last)
    done = library.manifest.find(state="done")
    known = {"source", "page"}.union(*(file.metadata for file in done))
    for key in sorted(metadata.keys() - known):
        raise UsageError(f"no page in library {library.name} has {key!r} to filter by, only {', '.join(sorted(known))}")
    files = frozenset(file.id for file in done if is_meant(file, metadata))
    return Where(files, hidden, first, last) if files else None


def _page_range(page: Any) -> tuple[int, int | None]:
    if page is None:
        return 1, None
    match page if isinstance(page, (tuple, list)) else (page, page):
        case (int(first), int(last)) if 1 <= first <= last:
            return first, last
    shown = "-".join(map(str, page)) if isinstance(page, (tuple, list)) else repr(page)
    raise UsageError(f"page must be a number from 1, or the first and the last of a range as in 3-9, not {shown}")


def is_meant(file: File, filters: Mapping[str, Any]) -> bool:
    """Whether a file passes filters by source (a pattern, or a set of paths) and metadata."""
    source = filters.get("source")
    if isinstance(source, frozenset):
        if file.source not in source:
            return False
    elif source is not None and not is_match(str(source), file.source):
        return False
    return has_metadata(file, {key: value for key, value in filters.items() if key not in ("page", "source")})


def has_metadata(file: File, wanted: Mapping[str, Any]) -> bool:
    """Whether a file has these metadata; 2023 and "2023" are the same."""

    def show(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    for key, value in wanted.items():
        if key not in file.metadata or show(file.metadata[key]) != show(value):
            return False
    return True


# -- what the store is asked


def make_queries(
    library: Library, queries: Sequence[str], words: list[WordQuery], by: By, num_vectors: int | None
) -> list[StoreQuery]:
    """Return what to ask the store. A query without words is asked by vectors only, or not at all.

    A query without a letter or a digit asks for nothing: vectors of signs find pages that have little on them.
    """
    vectors: list[Vectors] | list[None] = [None] * len(queries)
    if by == "vectors":
        vectors = library.models.embed_queries(queries, num_vectors)
    elif by == "both":
        texts = [word.plain or query for query, word in zip(queries, words, strict=True)]
        vectors = library.models.embed_queries(texts, num_vectors)
    made = []
    for query, word, own in zip(queries, words, vectors, strict=True):
        if not any(character.isalnum() for character in query):
            made.append(StoreQuery())
        elif by == "vectors":
            made.append(StoreQuery(own))
        elif word.excluded and not word.terms.numbers:
            raise UsageError("the query only leaves words out: name some to look for")
        else:
            terms = word.terms if word.terms.numbers else None
            weight = library.models.weigh_vectors(query, library.words.language)
            made.append(StoreQuery(own, terms, word.phrases, word.excluded, weight))
    return made


def find_excluded_forms(
    asked: StoreQuery, words: WordQuery, found: list[StoreHit], pages: Mapping[str, StoredPage]
) -> list[str]:
    """Return forms of excluded words that pages have, and that the store was not asked to leave out yet."""
    stems, analyzer = frozenset(words.excluded_terms), words.analyzer
    if asked.terms is None or not stems:
        return []
    numbers = set(number_terms(dict.fromkeys(stems, 1.0)).numbers)
    forms: set[str] = set()
    for hit in found:
        text = pages[hit.id].text if hit.id in pages else None
        if text is None or numbers.isdisjoint(text.terms.numbers):
            continue
        for token in tokenize(text.text):
            if not token.extra and not stems.isdisjoint(analyzer.find_terms(token)):
                forms.add(remove_accents(token.text))
    return sorted(forms.difference(asked.excluded))


def find_unknown(
    library: Library, words: Sequence[WordQuery], seen: Sequence[frozenset[int]], where: Where
) -> list[list[str]]:
    """Return the words of each query that no page has in any form.

    seen: numbers of terms of pages that were found. The store is asked about the other words, all at once.
    """
    missing = []
    asked: dict[frozenset[int], StoreQuery] = {}
    for query, known in zip(words, seen, strict=True):
        named = []
        for word in list_named(query)[:MAX_WORDS] if library.words.language else []:
            terms = number_terms(dict.fromkeys(word.terms, 1.0))
            if known.isdisjoint(terms.numbers):
                named.append((word, frozenset(terms.numbers)))
                asked[frozenset(terms.numbers)] = StoreQuery(terms=terms)
        joined = []
        for pair in query.joined[:MAX_WORDS] if named else ():
            terms = number_terms(dict.fromkeys(pair.terms, 1.0))
            joined.append((pair, frozenset(terms.numbers)))
            asked[frozenset(terms.numbers)] = StoreQuery(terms=terms)
        missing.append((named, joined))
    found = library.store.search(list(asked.values()), 1, where, False) if asked else []
    known_terms = {numbers for numbers, hits in zip(asked, found, strict=True) if hits}
    unknown = []
    for named, joined in missing:
        parts = {part for pair, numbers in joined if numbers in known_terms for part in pair.parts}
        left = [word for word, numbers in named if numbers not in known_terms and parts.isdisjoint(word.terms)]
        unknown.append(show_longest(left))
    return unknown


# -- what it found


def make_hits(
    found: list[StoreHit],
    asked: StoreQuery,
    words: WordQuery,
    pages: Mapping[str, StoredPage],
    files: Mapping[str, File],
) -> list[Hit]:
    """Return what a store found as hits, best first, ties by name; without files that were removed meanwhile."""
    by: By = "words" if asked.vectors is None else "vectors" if asked.terms is None else "both"
    hits = []
    for one in found:
        file, page = files.get(one.file), pages.get(one.id)
        if file is None or file.state != "done" or page is None:
            continue
        matches = []
        if asked.vectors is not None and page.vectors is not None:
            similarities = asked.vectors @ page.vectors.T
            for i, best in enumerate(similarities.argmax(1)):
                matches.append(Match(i + 1, int(best) + 1, float(similarities[i, best])))
        hit = Hit(one.id, file.source, one.number, one.score, tuple(matches), file.metadata, file.id, by)
        if page.text is not None and page.text.text:
            marked = find_words(read_stored_text(page.text), words)
            hit = replace(hit, snippet=marked.snippet, boxes=marked.boxes)
        hits.append(hit)
    return sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page))


def join_copies(hits: list[Hit]) -> list[Hit]:
    """Return hits without copies of better ones, which name their copies."""
    first: dict[str, int] = {}
    joined: list[Hit] = []
    for hit in hits:
        key = sign(hit)
        if key is not None and key in first:
            best = joined[first[key]]
            joined[first[key]] = replace(best, copies=(*best.copies, Copy(hit.source, hit.page, hit.file)))
            continue
        if key is not None:
            first[key] = len(joined)
        joined.append(hit)
    return joined


def sign(hit: Hit) -> str | None:
    """Return a key that is equal for copies of a page; None for a page without text to compare.

    Copies have the same text, at the same places, and the same score. By words and vectors the score is a sum over
    ranks, which copies do not share: then their similarities are compared.
    """
    if hit.snippet is None or not hit.snippet.text:
        return None
    similarities = [round(match.similarity, 4) for match in hit.matches]
    score = None if hit.by == "both" else round(hit.score, 4)
    seen = (hit.snippet.text, hit.boxes, similarities, score)
    return blake2b(repr(seen).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
