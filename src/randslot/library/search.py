"""Search a library: parse queries, query the store, and return hits with snippets."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UsageError
from ..pages.text import PageText
from ..words.analyzer import Token, hash_terms, remove_accents, tokenize
from ..words.language import find_query_language
from ..words.matching import Matcher
from ..words.query import QueryWord, WordQuery, choose_longest
from ..words.snippets import Found, find_fields, find_words, score_proximity, show_window
from .facets import OWN, explain_none, is_meant
from .languages import read_stored_text
from .manifest import File
from .rerank import Reranker, rerank_hits
from .results import By, Copy, Hit, Match, QueryResult
from .sources import is_gone
from .stores.points import StoredPage, StoredText, Vectors
from .stores.store import Reward, StoreHit, StoreQuery, Where

if TYPE_CHECKING:
    from .library import Library

MAX_HITS = 1_000_000
MAX_TIES = 1000  # pages to check beyond the last hit, for ties and copies
MAX_WORDS = 50  # of a query to look up one by one
MAX_SIMILAR_TERMS = 80  # terms of a page to find similar ones by
PROXIMITY_WEIGHT, COVERAGE_WEIGHT, MAX_COVERED = 0.8, 0.5, 4  # coverage: for up to MAX_COVERED words


@dataclass
class QueryState:
    """The state of one query: its text, its parsed words, the store's query, and the result.

    pages, files: those found, by id. unknown: words that no page has.
    """

    text: str
    words: WordQuery
    store: StoreQuery
    result: QueryResult
    pages: dict[str, StoredPage] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    unknown: list[QueryWord] = field(default_factory=list)


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
    offset: int = 0,
    seconds: float = math.inf,
    rerank: str | Reranker | Literal[False] | None = None,
    verbatim: bool = False,
    group: Literal["document"] | None = None,
    prefix: bool = False,
    boxes: bool = False,
) -> list[QueryResult]:
    """Return the k best pages for each query, after the first `offset`; for options see `Library.search`.

    explain: also find words that no page has, and count pages without text if nothing was found. seconds: time limit
    per query, after which the result is partial (`is_cut`).
    """
    if not 1 <= k <= MAX_HITS:
        raise UsageError(f"k must be from 1 to {MAX_HITS:,}, not {k}")
    if group not in (None, "document"):
        raise UsageError(f"hits can be grouped by document, not by {group!r}")
    by = library.choose_by(by)
    where = make_where(library, filters or {})
    if isinstance(where, str):
        return [QueryResult(by, filter_note=where) for _ in queries]
    reranker = library.models.find_reranker(rerank)
    num = max(offset + k, reranker.pages) if reranker else offset + k

    def find(texts: Sequence[str]) -> list[QueryState]:
        states = read_queries(library, texts, by, query_vectors, prefix)
        find_pages(library, states, num, where, exact, collapse, group, time.monotonic() + seconds)
        return states

    states = find(queries)
    if by != "vectors" and not prefix and (explain or not verbatim):  # an unfinished word is not unknown
        find_unknown(library, states, where)
    if by != "vectors" and not prefix and not verbatim:
        changed = correct_queries(library, states, where)
        for i, state in zip(changed, find(list(changed.values())), strict=True):
            state.result.corrected, state.result.unknown = states[i].result.corrected, states[i].result.unknown
            states[i] = state
    for state in states:
        if reranker:
            state.result.hits, state.result.rerank_note = rerank_hits(
                reranker, state.text, state.result.hits, state.pages
            )
        state.result.hits = state.result.hits[offset : offset + k]
        mark_hits(library, state, boxes, time.monotonic() + seconds)
        if by == "both" and state.result.unknown and not any(hit.fields for hit in state.result.hits):
            state.result.by = "vectors"  # no page has any word of the query
    if explain and by != "vectors" and not all(state.result.hits for state in states):
        without_text = library.count_without_text()
        for state in states:
            state.result.without_text = 0 if state.result.hits else without_text
    return [state.result for state in states]


# -- filters


def make_where(library: Library, filters: Mapping[str, Any]) -> Where | str:
    """Return which pages to search, or a note why none match the filters."""
    pages = filters.get("page")
    match pages if isinstance(pages, (tuple, list)) else (pages, pages):
        case (None, None):
            first, last = 1, None
        case (int(first), int(last)) if 1 <= first <= last:
            pass
        case _:
            shown = "-".join(map(str, pages)) if isinstance(pages, (tuple, list)) else repr(pages)
            raise UsageError(f"page must be a number from 1 or a range such as 3-9, not {shown}")
    hidden = library.manifest.hidden()
    metadata = {key: value for key, value in filters.items() if key != "page"}
    if not metadata:
        return Where(None, hidden, first, last)
    done = library.manifest.find(state="done")
    known = set(OWN).union(*(file.metadata for file in done))
    for key in sorted(metadata.keys() - known):
        raise UsageError(f"library {library.name} has no {key!r} to filter by: choose from {', '.join(sorted(known))}")
    files = frozenset(file.id for file in done if is_meant(file, metadata, library.words.root))
    return Where(files, hidden, first, last) if files else explain_none(done, metadata, library.words.root)


# -- queries


def read_queries(
    library: Library, queries: Sequence[str], by: By, num_vectors: int | None, prefix: bool = False
) -> list[QueryState]:
    """Parse queries. One without words searches by vectors only, or not at all.

    A query without a letter or a digit finds nothing: vectors of punctuation match nearly empty pages.
    """
    words = [library.words.read_query(query, prefix) for query in queries]
    vectors: list[Vectors] | list[None] = [None] * len(queries)
    if by == "vectors":
        vectors = library.models.embed_queries(queries, num_vectors)
    elif by == "both":
        texts = [word.plain or query for query, word in zip(queries, words, strict=True)]
        vectors = library.models.embed_queries(texts, num_vectors)
    states = []
    for query, word, own in zip(queries, words, vectors, strict=True):
        if not any(character.isalnum() for character in query):
            store = StoreQuery()
        elif by == "vectors":
            store = StoreQuery(own)
        elif word.excluded and not word.terms.numbers:
            raise UsageError("add at least one word to search for")
        else:
            terms = word.terms if word.terms.numbers else None
            weight = library.models.weigh_vectors(query, library.words.language) if by == "both" else 1.0
            store = StoreQuery(own, terms, word.phrases, word.excluded, weight)
        state = QueryState(query, word, store, QueryResult(by))
        if store.terms is not None and word.neighbours:  # at least two words
            state.store = replace(store, reward=make_reward(library, state))
        states.append(state)
    return states


def make_reward(library: Library, state: QueryState) -> Reward:
    """Return a function that scores proximity and, for short queries, coverage: research/log.md has the figures."""
    words, matcher = state.words, state.words.matcher
    content = dict.fromkeys(word.terms[0] for word in choose_longest(words.content_words))  # ordered, for equal sums

    def reward(pages: Mapping[str, StoredPage]) -> dict[str, float]:
        state.pages.update(pages)
        files = state.files = library.manifest.get({page.file for page in pages.values()})
        bonuses: dict[str, float] = {}
        texts: dict[str, list[str]] = {}  # the text and fields of each page
        for id, page in pages.items():
            if page.text is not None and page.file in files:
                names = library.words.name_fields(files[page.file].source)
                texts[id] = [page.text.text, *page.text.fields.values(), *names.values()]
        matcher.read(chain.from_iterable(texts.values()))
        for id, (text, *fields) in texts.items():
            bonuses[id] = PROXIMITY_WEIGHT * score_proximity(matcher.match(text), words)
            if len(content) <= MAX_COVERED:
                covered: set[str] = set().union(*map(matcher.find_terms, (text, *fields)))
                bonuses[id] += COVERAGE_WEIGHT * sum(words.idf[term] for term in content if term in covered)
        return bonuses

    return reward


def find_pages(
    library: Library,
    states: list[QueryState],
    k: int,
    where: Where,
    exact: bool,
    collapse: bool,
    group: str | None,
    deadline: float,
) -> None:
    """Find the hits of queries; repeat with a larger limit where pages may be missing among the first k."""
    if library.binding and not library.binding.settings.get("unit", True):
        exact = True  # codes keep only signs, but here the norms of vectors matter
    pending = [state for state in states if state.store.terms is not None or state.store.vectors is not None]
    num = k + 1  # one more, to detect ties of the last
    while pending:
        found = library.store.search([state.store for state in pending], num, where, exact)
        has_vectors = any(state.store.vectors is not None for state in pending)
        pages: dict[str, StoredPage] = {}
        for state, scored in zip(pending, found, strict=True) if not has_vectors else ():
            pages |= state.pages
            pages |= {hit.id: hit.page for hit in scored if hit.page is not None}
        missing = {hit.id for scored in found for hit in scored}.difference(pages)
        pages |= library.store.read(list(missing), vectors=has_vectors)
        files = {id: file for state in pending for id, file in state.files.items()}
        files |= library.manifest.get({hit.file for scored in found for hit in scored} - files.keys())
        again = []
        for state, scored in zip(pending, found, strict=True):
            if forms := find_excluded_forms(state, scored, pages):
                state.store = replace(state.store, excluded=(*state.store.excluded, *forms))
                again.append(state)
                continue
            hits = make_hits(state, scored, pages, files)
            if collapse:
                hits = merge_copies(hits)
            if group is not None:  # the best page of each document
                hits = list({hit.file: hit for hit in reversed(hits)}.values())
                hits.sort(key=lambda hit: (-hit.score, hit.source, hit.page))
            state.result.hits, state.pages = hits[:k], pages
            is_last = len(scored) < num or num >= k + MAX_TIES
            if not is_last and (len(hits) < k or scored[-1].score >= hits[k - 1].score):
                again.append(state)  # the first k may be incomplete
        if time.monotonic() > deadline:
            for state in again:
                state.result.is_cut = True
            return
        pending, num = again, min(2 * num, k + MAX_TIES)


def find_excluded_forms(state: QueryState, found: list[StoreHit], pages: Mapping[str, StoredPage]) -> list[str]:
    """Return forms of excluded words on the found pages that the store has not excluded yet."""
    stems = state.words.excluded_terms
    if state.store.terms is None or not stems:
        return []
    matcher = Matcher(state.words.analyzer, stems)
    forms: set[str] = set()
    for hit in found:
        text = pages[hit.id].text if hit.id in pages else None
        words = text.words if text else ""
        forms.update(words.split()[i] for i, *_ in matcher.match(words))
    return sorted(forms.difference(state.store.excluded))


def find_unknown(library: Library, states: list[QueryState], where: Where) -> None:
    """Find the words of queries that no page has in any form; the first hits rule out most of them."""
    requests: dict[tuple[str, ...], StoreQuery] = {}
    for state in states:
        seen: set[str] = set()
        for hit in state.result.hits[:10]:
            text = state.pages[hit.id].text
            for name in library.words.name_fields(hit.source).values():
                seen |= state.words.matcher.find_terms(name)
            seen |= state.words.matcher.find_terms(text.text) if text else set()
        for word in state.words.content_words[:MAX_WORDS] if library.words.language else []:
            if seen.isdisjoint(word.terms):
                state.unknown.append(word)
                requests[word.terms] = make_request(word.terms)
        for pair in state.words.joined[:MAX_WORDS] if state.unknown else ():
            requests[pair.terms] = make_request(pair.terms)
    found = library.store.search(list(requests.values()), 1, where, False) if requests else []
    known = {terms for terms, hits in zip(requests, found, strict=True) if hits}
    for state in states:
        parts: set[str] = set()
        for pair in state.words.joined[:MAX_WORDS]:
            if pair.terms in known:
                parts.update(pair.parts)
        state.unknown = [word for word in state.unknown if word.terms not in known and parts.isdisjoint(word.terms)]
        state.result.unknown = [word.text for word in choose_longest(state.unknown)]


def make_request(terms: Sequence[str]) -> StoreQuery:
    """Return a query for pages with any of these terms."""
    return StoreQuery(terms=hash_terms(dict.fromkeys(terms, 1.0)))


def correct_queries(library: Library, states: list[QueryState], where: Where) -> dict[int, str]:
    """Correct queries with unknown words; return the new texts by index, and note them in the results.

    A typo is replaced by the most similar word of the library. Numbers, words in quotes, words that only pages outside
    the filter have, and queries in another language than the main one are not corrected. An identifier whose number is
    unknown is dropped: its letters would match other identifiers.
    """
    requests: dict[str, StoreQuery] = {}
    wanted: list[tuple[int, str, list[str]]] = []
    changed: dict[int, str] = {}
    for i, state in enumerate(states):
        for word in choose_longest(state.unknown):
            parts = [other.text for other in state.unknown if other != word and word.start <= other.start < word.end]
            if any(re.search(r"\d{3}", part) for part in parts) and not word.text.isdecimal():
                changed[i] = changed.get(i, state.text).replace(word.text, " ")
            elif is_correctable(library, state, word, where):
                assert library.words.vocabulary is not None
                suggestions = library.words.vocabulary.suggest(remove_accents(word.text.lower()))
                for other in suggestions:
                    requests[other] = make_request(state.words.analyzer.find_terms(Token(other, 0, len(other))))
                wanted.append((i, word.text, suggestions))
    found = library.store.search(list(requests.values()), 1, where, False) if requests else []
    known = {other for other, hits in zip(requests, found, strict=True) if hits}
    for i, typed, suggestions in wanted:
        best = next((other for other in suggestions if other in known), None)
        if best is not None:
            result = states[i].result
            typed_pattern, best = rf"(?<!\w){re.escape(typed)}(?!\w)", best.title() if typed.istitle() else best
            changed[i] = re.sub(typed_pattern, best, changed.get(i, states[i].text))
            result.corrected = re.sub(typed_pattern, best, result.corrected or states[i].text)
            result.unknown.remove(typed)
    return changed


def is_correctable(library: Library, state: QueryState, word: QueryWord, where: Where) -> bool:
    """Whether an unknown word may be a typo."""
    language, plain = library.words.language, remove_accents(word.text.lower())
    if not word.text.isalpha() or not (word.text.islower() or word.text.istitle()):
        return False
    if any(plain in phrase.split() for phrase in state.words.phrases):
        return False
    if where.files is not None and library.words.vocabulary and library.words.vocabulary.count(plain):
        return False
    return language is not None and find_query_language(state.text, language) == language


# -- hits


def make_hits(
    state: QueryState, found: list[StoreHit], pages: Mapping[str, StoredPage], files: Mapping[str, File]
) -> list[Hit]:
    """Return the pages found as hits, best first, ties by name; without removed files."""
    query = state.store
    by: By = "words" if query.vectors is None else "vectors" if query.terms is None else "both"
    hits = []
    for scored in found:
        file, page = files.get(scored.file), pages.get(scored.id)
        if file is None or file.state != "done" or page is None:
            continue
        matches = []
        if query.vectors is not None and page.vectors is not None:
            similarities = query.vectors @ page.vectors.T
            for i, best in enumerate(similarities.argmax(1)):
                matches.append(Match(i + 1, int(best) + 1, float(similarities[i, best])))
        twin = fingerprint(matches, page.text)
        about = (scored.id, file.source, scored.number, scored.score, tuple(matches), file.metadata, file.id, by)
        hits.append(Hit(*about, twin=twin))
    return sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page))


def merge_copies(hits: list[Hit]) -> list[Hit]:
    """Deduplicate hits: the best of identical pages lists the others as copies."""
    first: dict[str, int] = {}
    merged: list[Hit] = []
    for hit in hits:
        if hit.twin is not None and hit.twin in first:
            best = merged[first[hit.twin]]
            merged[first[hit.twin]] = replace(best, copies=(*best.copies, Copy(hit.source, hit.page, hit.file)))
            continue
        if hit.twin is not None:
            first[hit.twin] = len(merged)
        merged.append(hit)
    return merged


def fingerprint(matches: Sequence[Match], text: StoredText | None) -> str | None:
    """Return a fingerprint that copies of a page share; None for a page without text.

    Copies have the same text and similarities; their scores may differ by file name.
    """
    if text is None or not text.text:
        return None
    similarities = [round(match.similarity, 4) for match in matches]
    content = f"{similarities} {text.text}".encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=8).hexdigest()


def mark_hits(library: Library, state: QueryState, boxes: bool, deadline: float) -> None:
    """Add snippets, matching fields, whether the file is gone, and optionally boxes to hits."""
    gone = {source for source in {hit.source for hit in state.result.hits} if is_gone(source)}
    places = list(enumerate(state.result.hits))
    if boxes:
        places.sort(key=lambda place: place[1].source)  # a worker keeps only one file open
    for place, hit in places:
        if hit.source in gone:
            hit = state.result.hits[place] = replace(hit, gone=True)
        text = state.pages[hit.id].text
        if text is not None and text.text:
            if time.monotonic() > deadline:
                state.result.is_cut = True
                return
            page = read_stored_text(text)
            page = library.add_boxes(page, hit.source, hit.page) if boxes else replace(page, boxes=b"")
            marked = find_words(page, state.words)
            fields = find_fields({**library.words.name_fields(hit.source), **text.fields}, state.words)
            if marked.snippet.marks:
                fields.append("text")
            snippet, nearest = marked.snippet, hit.matches[0].page if hit.matches else 0
            passage = find_passage(library, nearest, state.pages[hit.id], page)
            if passage and not snippet.marks:
                snippet = passage.snippet  # nothing else shows why the page was found
            hit = replace(hit, snippet=snippet, boxes=marked.boxes, best=marked.best, fields=tuple(fields))
            state.result.hits[place] = replace(hit, passage=passage.boxes) if passage else hit


def find_passage(library: Library, vector: int, page: StoredPage, text: PageText) -> Found | None:
    """Return the text window of a page vector, counted from 1, if the model encodes pages in windows."""
    settings = library.binding.settings if library.binding else {}
    if settings.get("kind") != "one-vector" or page.vectors is None or not 1 <= vector <= len(page.vectors) > 1:
        return None
    return show_window(text, vector - 1, len(page.vectors))


def find_similar(library: Library, page: StoredPage, k: int, seconds: float) -> list[Hit]:
    """Return the most similar pages of k other documents: by vectors if the model can read the pages, else by words."""
    where = make_where(library, {})
    assert isinstance(where, Where)
    where = replace(where, hidden=where.hidden | {page.file})
    by: By = "words" if library.choose_by() == "words" or page.vectors is None else "vectors"
    analyzer, store = library.words.make_analyzer(""), StoreQuery(page.vectors)
    if by == "words":
        text = page.text.text if page.text else ""
        stopwords = analyzer.find_stopwords(text)
        counts = Counter(analyzer.find_term(token) for token in tokenize(text) if token.text not in stopwords)
        terms = hash_terms({term: 1.0 for term, _ in counts.most_common(MAX_SIMILAR_TERMS)})
        store = StoreQuery(terms=terms if counts else None)  # the engine applies IDF
    state = QueryState("", library.words.read_query(""), store, QueryResult(by))
    find_pages(library, [state], k, where, False, True, "document", time.monotonic() + seconds)
    mark_hits(library, state, False, time.monotonic() + seconds)
    return state.result.hits
