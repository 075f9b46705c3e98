"""Search a library: read the queries, ask the store, and make hits of the pages it found."""

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
from ..words.analyzer import Token, number_terms, remove_accents, tokenize
from ..words.language import find_query_language
from ..words.matching import Matcher
from ..words.query import NamedWord, WordQuery, choose_longest
from ..words.snippets import Found, find_fields, find_words, measure_nearness, show_window
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
MAX_TIES = 1000  # pages after the last hit to look at: they may have its score, or be copies of other hits
MAX_WORDS = 50  # of a query to look up one by one
MAX_TELLING = 80  # terms of a page to find others by
NEARNESS_WEIGHT, COVERAGE_WEIGHT, MAX_COVERED = 0.8, 0.5, 4  # coverage counts up to so many words


@dataclass
class Asked:
    """One query of a search: its text, its words, what the store is asked, and what was found.

    pages: those that were found, and files: those they are in, by their ids. unknown: words that no page has.
    """

    text: str
    words: WordQuery
    store: StoreQuery
    result: QueryResult
    pages: dict[str, StoredPage] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    unknown: list[NamedWord] = field(default_factory=list)


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
    """Return the k best pages for each query, after the first `offset` ones; options as `Library.search`.

    explain: also find words that no page has, and count pages without text if nothing was found. seconds: of work on
    the hits of a query, after which what was found so far is the answer, and the result says that it was cut.
    """
    if not 1 <= k <= MAX_HITS:
        raise UsageError(f"k must be at {f'most {MAX_HITS:,}' if k > 1 else 'least 1'}, not {k}")
    if group not in (None, "document"):
        raise UsageError(f"hits are grouped by document, not by {group!r}")
    by = library.choose_by(by)
    where = make_where(library, filters or {})
    if isinstance(where, str):
        return [QueryResult(by, filter_note=where) for _ in queries]
    reranker = library.models.find_reranker(rerank)
    num = max(offset + k, reranker.pages) if reranker else offset + k

    def find(texts: Sequence[str]) -> list[Asked]:
        asked = read_queries(library, texts, by, query_vectors, prefix)
        find_pages(library, asked, num, where, exact, collapse, group, time.monotonic() + seconds)
        return asked

    asked = find(queries)
    if by != "vectors" and not prefix and (explain or not verbatim):  # a word that is being typed is not unknown
        find_unknown(library, asked, where)
    if by != "vectors" and not prefix and not verbatim:
        changed = correct_queries(library, asked, where)
        for i, one in zip(changed, find(list(changed.values())), strict=True):
            one.result.corrected, one.result.unknown = asked[i].result.corrected, asked[i].result.unknown
            asked[i] = one
    for one in asked:
        if reranker:
            one.result.hits, one.result.rerank_note = rerank_hits(reranker, one.text, one.result.hits, one.pages)
        one.result.hits = one.result.hits[offset : offset + k]
        mark_hits(library, one, boxes, time.monotonic() + seconds)
        if by == "both" and one.result.unknown and not any(hit.fields for hit in one.result.hits):
            one.result.by = "vectors"  # no page has a word of the query
    if explain and by != "vectors" and not all(one.result.hits for one in asked):
        without_text = library.count_without_text()
        for one in asked:
            one.result.without_text = 0 if one.result.hits else without_text
    return [one.result for one in asked]


# -- which pages


def make_where(library: Library, filters: Mapping[str, Any]) -> Where | str:
    """Return which pages a search looks at, or why there are none."""
    pages = filters.get("page")
    match pages if isinstance(pages, (tuple, list)) else (pages, pages):
        case (None, None):
            first, last = 1, None
        case (int(first), int(last)) if 1 <= first <= last:
            pass
        case _:
            shown = "-".join(map(str, pages)) if isinstance(pages, (tuple, list)) else repr(pages)
            raise UsageError(f"page must be a number from 1, or a range such as 3-9, not {shown}")
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


# -- what the store is asked


def read_queries(
    library: Library, queries: Sequence[str], by: By, num_vectors: int | None, prefix: bool = False
) -> list[Asked]:
    """Read queries. One without words is asked by vectors only, or not at all.

    A query without a letter or a digit asks for nothing: vectors of signs find pages that have little on them.
    """
    words = [library.words.read_query(query, prefix) for query in queries]
    vectors: list[Vectors] | list[None] = [None] * len(queries)
    if by == "vectors":
        vectors = library.models.embed_queries(queries, num_vectors)
    elif by == "both":
        texts = [word.plain or query for query, word in zip(queries, words, strict=True)]
        vectors = library.models.embed_queries(texts, num_vectors)
    asked = []
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
        one = Asked(query, word, store, QueryResult(by))
        if store.terms is not None and word.neighbours:  # not a single word
            one.store = replace(store, reward=make_reward(library, one))
        asked.append(one)
    return asked


def make_reward(library: Library, one: Asked) -> Reward:
    """Return what tells how much better pages are than their single words say: research/log.md has the figures.

    Neighbouring words of the query are near each other; and of a short query, all words are there.
    """
    words, matcher = one.words, one.words.matcher
    named = dict.fromkeys(word.terms[0] for word in choose_longest(words.named))  # in order: sums are the same then

    def reward(pages: Mapping[str, StoredPage]) -> dict[str, float]:
        one.pages.update(pages)
        files = one.files = library.manifest.get({page.file for page in pages.values()})
        bonuses: dict[str, float] = {}
        texts: dict[str, list[str]] = {}  # of pages, then of their fields
        for id, page in pages.items():
            if page.text is not None and page.file in files:
                names = library.words.name_fields(files[page.file].source)
                texts[id] = [page.text.text, *page.text.fields.values(), *names.values()]
        matcher.read(chain.from_iterable(texts.values()))
        for id, some in texts.items():
            bonuses[id] = NEARNESS_WEIGHT * measure_nearness(matcher.match(some[0]), words)
            if len(named) <= MAX_COVERED:
                covered: set[str] = set().union(*map(matcher.find_terms, some))
                bonuses[id] += COVERAGE_WEIGHT * sum(words.rarity[term] for term in named if term in covered)
        return bonuses

    return reward


def find_pages(
    library: Library,
    asked: list[Asked],
    k: int,
    where: Where,
    exact: bool,
    collapse: bool,
    group: str | None,
    deadline: float,
) -> None:
    """Set the hits of queries: ask the store, and again for more where pages may be missing among the first k."""
    if library.binding and not library.binding.settings.get("unit", True):
        exact = True  # codes are only signs, and here the lengths of vectors count
    waiting = [one for one in asked if one.store.terms is not None or one.store.vectors is not None]
    num = k + 1  # one more shows whether the last one has ties
    while waiting:
        found = library.store.search([one.store for one in waiting], num, where, exact)
        has_vectors = any(one.store.vectors is not None for one in waiting)
        pages: dict[str, StoredPage] = {}
        for one, some in zip(waiting, found, strict=True) if not has_vectors else ():
            pages |= one.pages
            pages |= {hit.id: hit.page for hit in some if hit.page is not None}
        missing = {hit.id for some in found for hit in some}.difference(pages)
        pages |= library.store.read(list(missing), vectors=has_vectors)
        files = {id: file for one in waiting for id, file in one.files.items()}
        files |= library.manifest.get({hit.file for some in found for hit in some} - files.keys())
        again = []
        for one, some in zip(waiting, found, strict=True):
            if forms := find_excluded_forms(one, some, pages):
                one.store = replace(one.store, excluded=(*one.store.excluded, *forms))
                again.append(one)
                continue
            hits = make_hits(one, some, pages, files)
            if collapse:
                hits = join_copies(hits)
            if group is not None:  # each document by its best page
                hits = list({hit.file: hit for hit in reversed(hits)}.values())
                hits.sort(key=lambda hit: (-hit.score, hit.source, hit.page))
            one.result.hits, one.pages = hits[:k], pages
            is_last = len(some) < num or num >= k + MAX_TIES
            if not is_last and (len(hits) < k or some[-1].score >= hits[k - 1].score):
                again.append(one)  # pages that were not asked for may belong among the first k
        if time.monotonic() > deadline:
            for one in again:
                one.result.is_cut = True
            return
        waiting, num = again, min(2 * num, k + MAX_TIES)


def find_excluded_forms(one: Asked, found: list[StoreHit], pages: Mapping[str, StoredPage]) -> list[str]:
    """Return forms of excluded words that pages have, and that the store was not asked to leave out yet."""
    stems = one.words.excluded_terms
    if one.store.terms is None or not stems:
        return []
    matcher = Matcher(one.words.analyzer, stems)
    forms: set[str] = set()
    for hit in found:
        text = pages[hit.id].text if hit.id in pages else None
        words = text.words if text else ""
        forms.update(words.split()[i] for i, *_ in matcher.match(words))
    return sorted(forms.difference(one.store.excluded))


def find_unknown(library: Library, asked: list[Asked], where: Where) -> None:
    """Set which words of queries no page has in any form; the store is asked once, about words of no found page."""
    requests: dict[tuple[str, ...], StoreQuery] = {}
    for one in asked:
        seen: set[str] = set()
        for hit in one.result.hits[:10]:
            text = one.pages[hit.id].text
            for name in library.words.name_fields(hit.source).values():
                seen |= one.words.matcher.find_terms(name)
            seen |= one.words.matcher.find_terms(text.text) if text else set()
        for word in one.words.named[:MAX_WORDS] if library.words.language else []:
            if seen.isdisjoint(word.terms):
                one.unknown.append(word)
                requests[word.terms] = make_request(word.terms)
        for pair in one.words.joined[:MAX_WORDS] if one.unknown else ():
            requests[pair.terms] = make_request(pair.terms)
    found = library.store.search(list(requests.values()), 1, where, False) if requests else []
    known = {terms for terms, hits in zip(requests, found, strict=True) if hits}
    for one in asked:
        parts: set[str] = set()
        for pair in one.words.joined[:MAX_WORDS]:
            if pair.terms in known:
                parts.update(pair.parts)
        one.unknown = [word for word in one.unknown if word.terms not in known and parts.isdisjoint(word.terms)]
        one.result.unknown = [word.text for word in choose_longest(one.unknown)]


def make_request(terms: Sequence[str]) -> StoreQuery:
    """Return a request for pages that have one of some terms."""
    return StoreQuery(terms=number_terms(dict.fromkeys(terms, 1.0)))


def correct_queries(library: Library, asked: list[Asked], where: Where) -> dict[int, str]:
    """Return what to search for in place of queries with unknown words, by their place; note it in the results.

    A misspelled word is replaced by the most similar word of pages. Numbers and words in quotes stay, words of pages
    that a filter leaves out, and queries in another language than the library's usual one, whose words may be right and
    on no page. An identifier whose number is on no page is left out: its letters would find pages of other ones.
    """
    requests: dict[str, StoreQuery] = {}
    wanted: list[tuple[int, str, list[str]]] = []
    changed: dict[int, str] = {}
    for i, one in enumerate(asked):
        for word in choose_longest(one.unknown):
            parts = [other.text for other in one.unknown if other != word and word.start <= other.start < word.end]
            if any(re.search(r"\d{3}", part) for part in parts) and not word.text.isdecimal():
                changed[i] = changed.get(i, one.text).replace(word.text, " ")
            elif is_correctable(library, one, word, where):
                assert library.words.vocabulary is not None
                suggestions = library.words.vocabulary.suggest(remove_accents(word.text.lower()))
                for other in suggestions:
                    requests[other] = make_request(one.words.analyzer.find_terms(Token(other, 0, len(other))))
                wanted.append((i, word.text, suggestions))
    found = library.store.search(list(requests.values()), 1, where, False) if requests else []
    known = {other for other, hits in zip(requests, found, strict=True) if hits}
    for i, typed, suggestions in wanted:
        best = next((other for other in suggestions if other in known), None)
        if best is not None:
            result = asked[i].result
            typed_pattern, best = rf"(?<!\w){re.escape(typed)}(?!\w)", best.title() if typed.istitle() else best
            changed[i] = re.sub(typed_pattern, best, changed.get(i, asked[i].text))
            result.corrected = re.sub(typed_pattern, best, result.corrected or asked[i].text)
            result.unknown.remove(typed)
    return changed


def is_correctable(library: Library, one: Asked, word: NamedWord, where: Where) -> bool:
    """Whether an unknown word may be a misspelled one."""
    language, plain = library.words.language, remove_accents(word.text.lower())
    if not word.text.isalpha() or not (word.text.islower() or word.text.istitle()):
        return False
    if any(plain in phrase.split() for phrase in one.words.phrases):
        return False
    if where.files is not None and library.words.vocabulary and library.words.vocabulary.count(plain):
        return False
    return language is not None and find_query_language(one.text, language) == language


# -- what it found


def make_hits(
    one: Asked, found: list[StoreHit], pages: Mapping[str, StoredPage], files: Mapping[str, File]
) -> list[Hit]:
    """Return what the store found as hits, best first, ties by name; without files that have been removed."""
    query = one.store
    by: By = "words" if query.vectors is None else "vectors" if query.terms is None else "both"
    hits = []
    for this in found:
        file, page = files.get(this.file), pages.get(this.id)
        if file is None or file.state != "done" or page is None:
            continue
        matches = []
        if query.vectors is not None and page.vectors is not None:
            similarities = query.vectors @ page.vectors.T
            for i, best in enumerate(similarities.argmax(1)):
                matches.append(Match(i + 1, int(best) + 1, float(similarities[i, best])))
        twin = sign(matches, page.text)
        about = (this.id, file.source, this.number, this.score, tuple(matches), file.metadata, file.id, by)
        hits.append(Hit(*about, twin=twin))
    return sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page))


def join_copies(hits: list[Hit]) -> list[Hit]:
    """Return hits without copies of better ones, which name their copies."""
    first: dict[str, int] = {}
    joined: list[Hit] = []
    for hit in hits:
        if hit.twin is not None and hit.twin in first:
            best = joined[first[hit.twin]]
            joined[first[hit.twin]] = replace(best, copies=(*best.copies, Copy(hit.source, hit.page, hit.file)))
            continue
        if hit.twin is not None:
            first[hit.twin] = len(joined)
        joined.append(hit)
    return joined


def sign(matches: Sequence[Match], text: StoredText | None) -> str | None:
    """Return a key that is equal for copies of a page; None for a page without text to compare.

    Copies have the same text and the same similarities; names of files may change their scores.
    """
    if text is None or not text.text:
        return None
    similarities = [round(match.similarity, 4) for match in matches]
    seen = f"{similarities} {text.text}".encode("utf-8", "surrogatepass")
    return blake2b(seen, digest_size=8).hexdigest()


def mark_hits(library: Library, one: Asked, boxes: bool, deadline: float) -> None:
    """Add snippets to hits, the fields that have words of the query, whether the file is gone, and boxes if asked."""
    gone = {source for source in {hit.source for hit in one.result.hits} if is_gone(source)}
    places = list(enumerate(one.result.hits))
    if boxes:
        places.sort(key=lambda place: place[1].source)  # the worker keeps one file open
    for place, hit in places:
        if hit.source in gone:
            hit = one.result.hits[place] = replace(hit, gone=True)
        text = one.pages[hit.id].text
        if text is not None and text.text:
            if time.monotonic() > deadline:
                one.result.is_cut = True
                return
            page = read_stored_text(text)
            page = library.add_boxes(page, hit.source, hit.page) if boxes else replace(page, boxes=b"")
            marked = find_words(page, one.words)
            fields = find_fields({**library.words.name_fields(hit.source), **text.fields}, one.words)
            if marked.snippet.marks:
                fields.append("text")
            snippet, nearest = marked.snippet, hit.matches[0].page if hit.matches else 0
            passage = find_passage(library, nearest, one.pages[hit.id], page)
            if passage and not snippet.marks:
                snippet = passage.snippet  # nothing else says why the page was found
            hit = replace(hit, snippet=snippet, boxes=marked.boxes, best=marked.best, fields=tuple(fields))
            one.result.hits[place] = replace(hit, passage=passage.boxes) if passage else hit


def find_passage(library: Library, vector: int, page: StoredPage, text: PageText) -> Found | None:
    """Return the window of a page's text that a vector of it, from 1, was made of, if the model reads in windows."""
    settings = library.binding.settings if library.binding else {}
    if settings.get("kind") != "one-vector" or page.vectors is None or not 1 <= vector <= len(page.vectors) > 1:
        return None
    return show_window(text, vector - 1, len(page.vectors))


def find_similar(library: Library, page: StoredPage, k: int, seconds: float) -> list[Hit]:
    """Return the pages most like one, of k other documents: by its vectors if the model can read, else by its words."""
    where = make_where(library, {})
    assert isinstance(where, Where)
    where = replace(where, hidden=where.hidden | {page.file})
    by: By = "words" if library.choose_by() == "words" or page.vectors is None else "vectors"
    analyzer, store = library.words.make_analyzer(""), StoreQuery(page.vectors)
    if by == "words":
        text = page.text.text if page.text else ""
        grammar = analyzer.find_grammar(text)
        often = Counter(analyzer.find_term(token) for token in tokenize(text) if token.text not in grammar)
        terms = number_terms({term: 1.0 for term, _ in often.most_common(MAX_TELLING)})
        store = StoreQuery(terms=terms if often else None)  # the engine weighs them by how rare they are
    asked = Asked("", library.words.read_query(""), store, QueryResult(by))
    find_pages(library, [asked], k, where, False, True, "document", time.monotonic() + seconds)
    mark_hits(library, asked, False, time.monotonic() + seconds)
    return asked.result.hits
