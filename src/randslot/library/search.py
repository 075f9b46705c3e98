"""Search a library: read the queries, ask the store, and make hits of the pages it found."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UsageError
from ..pages.text import PageText
from ..words.analyzer import Token, number_terms, remove_accents, tokenize
from ..words.language import find_query_language
from ..words.query import NamedWord, WordQuery, choose_longest, list_named, read_query
from ..words.snippets import Found, find_fields, find_words, show_window
from .facets import OWN, explain_none, is_meant
from .languages import read_stored_text
from .manifest import File
from .rerank import Reranker, rerank_hits
from .results import By, Copy, Hit, Match, QueryResult
from .sources import is_gone
from .stores.points import StoredPage, StoredText, Vectors
from .stores.store import StoreHit, StoreQuery, Where

if TYPE_CHECKING:
    from .library import Library

MAX_HITS = 1_000_000
MAX_TIES = 1000  # pages after the last hit to look at: they may have its score, or be copies of other hits
MAX_WORDS = 50  # of a query to look up one by one
MAX_TELLING = 80  # terms of a page to find others by


@dataclass
class Asked:
    """One query of a search: its words, what the store is asked, and what was found.

    seen: numbers of the terms of pages that were found. pages: those that were found, by their ids. unknown: words that
    no page has.
    """

    words: WordQuery
    store: StoreQuery
    result: QueryResult
    seen: set[int] = field(default_factory=set)
    pages: Mapping[str, StoredPage] = field(default_factory=dict)
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
    asked = read_queries(library, queries, by, query_vectors, prefix)
    where = make_where(library, filters or {})
    if isinstance(where, str):
        for one in asked:
            one.result.filter_note = where
    else:
        reranker = library.models.find_reranker(rerank)
        num = max(offset + k, reranker.pages) if reranker else offset + k
        find_pages(library, asked, num, where, exact, collapse, group, time.monotonic() + seconds)
        verbatim = verbatim or prefix  # a word that is still being typed is no mistake
        if by != "vectors" and not prefix and (explain or not verbatim):
            find_unknown(library, asked, where)
        if by != "vectors" and not verbatim:
            queries = correct_queries(library, queries, asked, where)
            again = [i for i, one in enumerate(asked) if one.result.corrected]
            for i, one in zip(
                again, read_queries(library, [queries[i] for i in again], by, query_vectors), strict=True
            ):
                one.result.corrected, one.result.unknown = asked[i].result.corrected, asked[i].result.unknown
                asked[i] = one
            find_pages(
                library, [asked[i] for i in again], num, where, exact, collapse, group, time.monotonic() + seconds
            )
        for one, query in zip(asked, queries, strict=True):
            if reranker:
                one.result.hits, one.result.rerank_note = rerank_hits(reranker, query, one.result.hits, one.pages)
            one.result.hits = one.result.hits[offset : offset + k]
            mark_hits(library, one, boxes, time.monotonic() + seconds)
        if explain and by != "vectors":
            without_text = 0 if all(one.result.hits for one in asked) else library.count_without_text()
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
            raise UsageError(
                f"page must be a number from 1, or the first and the last of a range as in 3-9, not {shown}"
            )
    hidden = library.manifest.hidden()
    metadata = {key: value for key, value in filters.items() if key != "page"}
    if not metadata:
        return Where(None, hidden, first, last)
    done = library.manifest.find(state="done")
    known = set(OWN).union(*(file.metadata for file in done))
    for key in sorted(metadata.keys() - known):
        raise UsageError(f"no page in library {library.name} has {key!r} to filter by, only {', '.join(sorted(known))}")
    files = frozenset(file.id for file in done if is_meant(file, metadata, library.words.root))
    return Where(files, hidden, first, last) if files else explain_none(done, metadata, library.words.root)


# -- what the store is asked


def read_queries(
    library: Library, queries: Sequence[str], by: By, num_vectors: int | None, prefix: bool = False
) -> list[Asked]:
    """Read queries. One without words is asked by vectors only, or not at all.

    A query without a letter or a digit asks for nothing: vectors of signs find pages that have little on them.
    """
    words = [read_words(library, query, prefix) for query in queries]
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
        asked.append(Asked(word, store, QueryResult(by)))
    return asked


def read_words(library: Library, query: str, prefix: bool = False) -> WordQuery:
    """Read the words of a query. prefix: the last one may go on."""
    last = re.search(r"[^\W\d_]{2,}$", query) if prefix else None
    completions = library.complete(last[0], 5) if last else ()
    return read_query(query, library.words.make_analyzer(query), completions)


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
        pages = library.store.read(list({hit.id for some in found for hit in some}))
        files = library.manifest.get({hit.file for some in found for hit in some})
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
            for hit in some:
                page = pages.get(hit.id)
                if page is not None and page.text is not None:
                    one.seen.update(page.text.terms.numbers)
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
    stems, analyzer = one.words.excluded_terms, one.words.analyzer
    if one.store.terms is None or not stems:
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
    return sorted(forms.difference(one.store.excluded))


def find_unknown(library: Library, asked: list[Asked], where: Where) -> None:
    """Set which words of queries no page has in any form; the store is asked once, about words of no found page."""
    requests: dict[tuple[str, ...], StoreQuery] = {}
    unseen = []
    for one in asked:
        words = []
        for word in list_named(one.words)[:MAX_WORDS] if library.words.language else []:
            terms = number_terms(dict.fromkeys(word.terms, 1.0))
            if one.seen.isdisjoint(terms.numbers):
                words.append(word)
                requests[word.terms] = StoreQuery(terms=terms)
        joined = one.words.joined[:MAX_WORDS] if words else ()
        for pair in joined:
            requests[pair.terms] = StoreQuery(terms=number_terms(dict.fromkeys(pair.terms, 1.0)))
        unseen.append((one, words, joined))
    if not requests:
        return
    found = library.store.search(list(requests.values()), 1, where, False)
    known = {terms for terms, hits in zip(requests, found, strict=True) if hits}
    for one, words, joined in unseen:
        parts: set[str] = set()
        for pair in joined:
            if pair.terms in known:
                parts.update(pair.parts)
        one.unknown = choose_longest(
            [word for word in words if word.terms not in known and parts.isdisjoint(word.terms)]
        )
        one.result.unknown = [word.text for word in one.unknown]


def correct_queries(library: Library, queries: Sequence[str], asked: list[Asked], where: Where) -> list[str]:
    """Return queries with unknown words replaced by the most similar words of pages; note it in the results.

    Identifiers, numbers and words in quotes stay, words of pages that a filter leaves out, and queries in another
    language than the library's usual one, whose words may be right and on no page.
    """
    vocabulary, language = library.words.vocabulary, library.words.language
    assert vocabulary is not None
    requests: dict[str, StoreQuery] = {}
    wanted: list[tuple[int, str, list[str]]] = []
    for i, one in enumerate(asked):
        if not one.unknown or not language or find_query_language(queries[i], language) != language:
            continue
        for word in one.unknown:
            plain = remove_accents(word.text.lower())
            is_word = word.text.isalpha() and (word.text.islower() or word.text.istitle())
            if not is_word or any(plain in phrase.split() for phrase in one.words.phrases):
                continue
            if where.files is not None and plain in vocabulary:
                continue
            suggestions = vocabulary.suggest(plain)
            for other in suggestions:
                terms = one.words.analyzer.find_terms(Token(other, 0, len(other)))
                requests[other] = StoreQuery(terms=number_terms(dict.fromkeys(terms, 1.0)))
            wanted.append((i, word.text, suggestions))
    found = library.store.search(list(requests.values()), 1, where, False) if requests else []
    known = {other for other, hits in zip(requests, found, strict=True) if hits}
    corrected = list(queries)
    for i, typed, suggestions in wanted:
        best = next((other for other in suggestions if other in known), None)
        if best is not None:
            best = best.title() if typed.istitle() else best
            corrected[i] = re.sub(rf"(?<!\w){re.escape(typed)}(?!\w)", best, corrected[i])
            asked[i].result.corrected = corrected[i]
            asked[i].result.unknown.remove(typed)
    return corrected


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
        hit = Hit(this.id, file.source, this.number, this.score, tuple(matches), file.metadata, file.id, by)
        hits.append(replace(hit, twin=sign(hit, page.text)))
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


def sign(hit: Hit, text: StoredText | None) -> str | None:
    """Return a key that is equal for copies of a page; None for a page without text to compare.

    Copies have the same text, and the same score. By words and vectors one of two copies may be
    among the best by vectors and not the other: then their similarities are compared.
    """
    if text is None or not text.text:
        return None
    similarities = [round(match.similarity, 4) for match in hit.matches]
    score = None if hit.by == "both" else round(hit.score, 4)
    seen = (text.text, similarities, score)
    return blake2b(repr(seen).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def mark_hits(library: Library, one: Asked, boxes: bool, deadline: float) -> None:
    """Add snippets to hits, the fields that have words of the query, whether the file is gone, and boxes if asked."""
    gone = {source for source in {hit.source for hit in one.result.hits} if is_gone(source)}
    for place, hit in enumerate(one.result.hits):
        if hit.source in gone:
            hit = one.result.hits[place] = replace(hit, gone=True)
        text = one.pages[hit.id].text
        if text is not None and text.text:
            if time.monotonic() > deadline:
                one.result.is_cut = True
                return
            page = read_stored_text(text)
            if boxes:
                page = library.add_boxes(page, hit.source, hit.page)
            marked = find_words(page, one.words)
            fields = find_fields({**library.words.name_fields(hit.source), **text.fields}, one.words)
            if marked.snippet.marks:
                fields.append("text")
            snippet, nearest = marked.snippet, hit.matches[0].page if hit.matches else 0
            passage = find_passage(library, nearest, one.pages[hit.id], page)
            if passage and not snippet.marks:
                snippet = passage.snippet  # nothing else says why the page was found
            hit = replace(hit, snippet=snippet, boxes=marked.boxes, best=marked.best, fields=tuple(fields))
            one.result.hits[place] = replace(hit, passage=passage.boxes if passage else ())


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
    asked = Asked(read_query("", analyzer), store, QueryResult(by))
    find_pages(library, [asked], k, where, False, True, "document", time.monotonic() + seconds)
    mark_hits(library, asked, False, time.monotonic() + seconds)
    return asked.result.hits
