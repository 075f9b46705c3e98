"""Searches of a library: what a query compares, what the store is asked, and the hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from ..errors import RandSlotError, UsageError
from ..model.reader import Identity
from ..pages import NO_TEXT, PageText, short
from ..words.language import NO_STEMS, is_foreign
from ..words.query import WordQuery, check_length, list_named, read_query, show_longest
from ..words.snippets import Found, find_words
from ..words.tokens import remove_accents, tokenize
from .languages import LibraryWords, read_stored_text
from .manifest import File, Manifest
from .models import ACROSS, EMBEDDED, LIGHT, ReadingCheck
from .results import BY, By, Copy, Hit, Match
from .sources import is_match
from .stores.base import Store, StoredPage, StoreHit, StoreQuery, Vectors, Where


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Refuse metadata that no search could filter by.

    Errors: UsageError.
    """
    for key, value in (metadata or {}).items():
        if key in ("source", "page") or not isinstance(key, str):
            raise UsageError(f"metadata cannot be called {key!r}: searches filter by source and page already")
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(f"metadata {key!r} must be text, a number, or true or false, not {type(value).__name__}")


def make_where(filters: Mapping[str, Any], manifest: Manifest, library: str) -> Where | None:
    """Return which pages a search looks at, or None if there are none.

    Errors: UsageError for a wrong range of pages, or a key that no file has.
    """
    hidden = manifest.hidden()
    first, last = _page_range(filters.get("page"))
    metadata = {key: value for key, value in filters.items() if key != "page"}
    if not metadata:
        return Where(None, hidden, first, last)
    done = manifest.find(state="done")
    _check_keys(metadata, done, library)
    files = frozenset(file.id for file in done if is_meant(file, metadata))
    return Where(files, hidden, first, last) if files else None


def is_meant(file: File, filters: Mapping[str, Any]) -> bool:
    """Whether a file is one of those that filters by source and metadata let through."""
    metadata = {key: value for key, value in filters.items() if key not in ("page", "source")}
    return _is_source(filters.get("source"), file) and has_metadata(file, metadata)


def _check_keys(metadata: Mapping[str, Any], files: list[File], library: str) -> None:
    known = {"source", "page"}
    for file in files:
        known.update(file.metadata)
    for key in metadata:
        if key not in known:
            names = ", ".join(sorted(known))
            raise UsageError(f"no page in library {library} has {key!r} to filter by, only {names}")


def _is_source(source: Any, file: File) -> bool:
    """Whether a file is meant by a pattern, or is one of a set of paths."""
    if source is None or isinstance(source, frozenset):
        return source is None or file.source in source
    return is_match(str(source), file.source)


def has_metadata(file: File, wanted: Mapping[str, Any]) -> bool:
    """Whether a file has these metadata."""
    for key, value in wanted.items():
        if key not in file.metadata or _text(file.metadata[key]) != _text(value):
            return False
    return True


def _text(value: Any) -> str:
    """Return a value of metadata as text: 2023 and "2023" are the same to a filter."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _page_range(page: Any) -> tuple[int, int | None]:
    if page is None:
        return 1, None
    match page if isinstance(page, (tuple, list)) else (page, page):
        case (int(first), int(last)) if 1 <= first <= last:
            return first, last
    shown = "-".join(map(str, page)) if isinstance(page, (tuple, list)) else repr(page)
    raise UsageError(f"page must be a number from 1, or the first and the last of a range as in 3-9, not {shown}")


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


MOST_HITS = 1_000_000
MOST_EQUAL = 1000  # pages beyond the last hit that are looked at because they may be its equals, or copies of others
MOST_WORDS = 50  # of a query that are looked up one by one


@dataclass(frozen=True)
class Searcher:
    """Searches a library as it is now.

    name: of the library, for messages. binding: which model its vectors are of; None if it has none. reading_check: how
    well these know its pages, if known. encode: queries to vectors, so many each if a number is given.
    """

    name: str
    manifest: Manifest
    store: Store
    words: LibraryWords
    binding: Identity | None
    reading_check: ReadingCheck | None
    encode: Callable[[list[str], int | None], list[Vectors]]

    def search_all(
        self,
        queries: Sequence[str],
        k: int,
        *,
        by: By | None,
        filters: Mapping[str, Any],
        exact: bool,
        query_vectors: int | None,
        collapse: bool,
    ) -> list[list[Hit]]:
        """Return the k best pages for each query; options as `Library.search`."""
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}")
        if k > MOST_HITS:
            raise UsageError(f"k must be at most {MOST_HITS:,}, not {k}")
        by = self.choose_by(by)
        for query in queries:
            check_length(query)
        where = make_where(filters, self.manifest, self.name)
        words = [read_query(query, self.words.analyzer) for query in queries]
        asked = self._make_queries(list(queries), words, by, query_vectors)
        able: dict[int, StoreQuery] = {}
        for i, one in enumerate(asked):
            if where is not None and (one.terms is not None or one.vectors is not None):
                able[i] = one
        # Codes are signs alone: they say nothing of vectors whose lengths count.
        exact = exact or bool(self.binding and not self.binding.settings.get("unit", True))
        found = {} if where is None else self._find(able, words, k, where, exact, collapse)
        return [found.get(i, []) for i in range(len(queries))]

    def _find(
        self, waiting: dict[int, StoreQuery], words: list[WordQuery], k: int, where: Where, exact: bool, collapse: bool
    ) -> dict[int, list[Hit]]:
        """Ask the store for more until it is decided which pages are the first k; return hits by numbers of queries."""
        hits: dict[int, list[Hit]] = {}
        num = k + 1  # one more shows whether the last one has equals
        while waiting:
            found = self.store.search(list(waiting.values()), num, where, exact)
            pages, files = self._read_found(found)
            again: dict[int, StoreQuery] = {}
            for (i, asked), some in zip(waiting.items(), found, strict=True):
                forms = find_forms(some, asked, words[i], pages) if asked.terms else []
                if forms:
                    again[i] = replace(asked, excluded=(*asked.excluded, *forms))
                    continue
                own = make_hits(some, asked, words[i], pages, files)
                own = join_copies(own) if collapse else own
                hits[i] = own[:k]
                if not _is_decided(some, own, k, num):
                    again[i] = asked
            waiting, num = again, min(2 * num, k + MOST_EQUAL)
        return hits

    def _read_found(self, found: list[list[StoreHit]]) -> tuple[dict[str, StoredPage], dict[str, File]]:
        ids: set[str] = set()
        file_ids: set[str] = set()
        for some in found:
            ids.update(hit.id for hit in some)
            file_ids.update(hit.file for hit in some)
        return self.store.read(list(ids)), self.manifest.get(file_ids)

    def find_unknown(self, query: str, filters: Mapping[str, Any]) -> list[str]:
        """Return the words of a query that no page has in any form; see `Library.find_unknown`."""
        where = make_where(filters, self.manifest, self.name)
        if where is None or self.words.language is None:
            return []
        words = read_query(query, self.words.analyzer)
        named, joined = list_named(words)[:MOST_WORDS], words.joined[:MOST_WORDS]
        if not named:
            return []
        terms = [word.terms for word in named] + [word.terms for word in joined]
        asked = [StoreQuery(terms=words.analyzer.weigh_query(some)) for some in terms]
        found = self.store.search(asked, 1, where, False)
        known: set[str] = set()  # as part of a word that pages have
        for one, hits in zip(joined, found[len(named) :], strict=True):
            known.update(one.parts if hits else ())
        missing = [word for word, hits in zip(named, found[: len(named)], strict=True) if not hits]
        return show_longest([word for word in missing if known.isdisjoint(word.terms)])

    def choose_by(self, by: By | None) -> By:
        """Return what a search compares: what is asked for, or what the library has and its model can read.

        Errors: UsageError if it is not there.
        """
        has_words, has_vectors = self.words.language is not None, self.binding is not None
        if by is None:
            if has_words and has_vectors:
                return "both" if self._reads() else "words"
            return "vectors" if has_vectors else "words"
        if by not in BY:
            raise UsageError(f"a search is by {', '.join(BY)}, not {by!r}")
        if by != "words" and not has_vectors:
            raise UsageError(f"library {self.name} has no vectors: randslot index --model adds them")
        if by != "vectors" and not has_words and has_vectors:
            raise UsageError(f"no page in library {self.name} has words yet: randslot library words reads them")
        return by

    def _reads(self) -> bool:
        """Whether the model can read these pages, as far as is known; the embedded one has to show it."""
        if self.reading_check is None:
            return self.binding is not None and self.binding.name != EMBEDDED
        return self.reading_check.reads

    def _make_queries(self, queries: list[str], words: list[WordQuery], by: By, num: int | None) -> list[StoreQuery]:
        """Return what the store is asked. A query without any word is asked by vectors alone, or not at all.

        One without a letter or a digit asks for nothing: vectors of signs find pages that have little on them.
        """
        vectors: list[Vectors] | list[None] = [None] * len(queries)
        if by == "vectors":
            vectors = self.encode(queries, num)
        elif by == "both":
            vectors = self.encode([word.plain or query for query, word in zip(queries, words, strict=True)], num)
        made = []
        for query, word, own in zip(queries, words, vectors, strict=True):
            if not any(character.isalnum() for character in query):
                made.append(StoreQuery())
            elif by == "vectors":
                made.append(StoreQuery(own))
            else:
                if word.excluded and not word.terms.numbers:
                    raise UsageError("the query only leaves words out: name some to look for")
                terms = word.terms if word.terms.numbers else None
                made.append(StoreQuery(own, terms, word.phrases, word.excluded, self._weigh(query)))
        return made

    def _weigh(self, query: str) -> float:
        """Return how much ranks by vectors count beside those by words."""
        multilingual = self.binding is not None and self.binding.settings.get("multilingual", False)
        if multilingual and self._reads() and is_foreign(query, self.words.language or NO_STEMS):
            return ACROSS
        return self.reading_check.weight if self.reading_check else LIGHT

    def compare(self, query: str, page: str) -> Vectors:
        """Return how near each readout of a query is to each of a page; see `Library.compare`."""
        stored = self._read_page(page)
        if stored.vectors is None:
            raise RandSlotError(f"page {short(page)} of library {self.name} has no vectors")
        (vectors,) = self.encode([query], None)
        similarities: Vectors = vectors @ stored.vectors.astype(np.float32).T
        return similarities

    def read_text(self, page: str) -> PageText:
        """Return the text of a page; see `Library.read_text`."""
        stored = self._read_page(page)
        return read_stored_text(stored.text) if stored.text else NO_TEXT

    def find_on_page(self, query: str, page: str) -> Found:
        """Return where the words of a query stand on a page."""
        return find_words(self.read_text(page), read_query(query, self.words.analyzer))

    def _read_page(self, page: str) -> StoredPage:
        stored = self.store.read([page]).get(page)
        if stored is None:
            raise RandSlotError(f"no page {short(page)} in library {self.name}")
        return stored


def _is_decided(found: list[StoreHit], hits: list[Hit], k: int, num: int) -> bool:
    """Whether nothing that the store has beyond `found` could be among the first k hits, or equal to one of them."""
    if len(found) < num or num >= k + MOST_EQUAL:
        return True
    return len(hits) >= k and found[-1].score < hits[k - 1].score
