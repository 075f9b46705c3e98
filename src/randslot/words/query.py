"""Parse queries: words, "quoted phrases" and -excluded words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ..errors import UsageError
from .analyzer import Analyzer, Terms, Token, hash_terms, list_words, make_name_term, tokenize
from .language import IS_UNSPACED, load_stopwords
from .matching import Matcher

MAX_CHARACTERS = 10_000  # of a query
MAX_TERMS, MAX_PHRASES = 256, 32  # of a query; more are ignored
QUOTES = '"\u201c\u201d\u201e\u201f\u00ab\u00bb'
PIECE = re.compile(
    rf"(?P<minus>(?<!\S)-)?[{QUOTES}](?P<phrase>[^{QUOTES}]*)[{QUOTES}]"
    r"|(?<!\S)-(?P<excluded>[^\W\d_]{3}\S*)"  # letters must follow: -5 is a number, -l and --prune are options
)
# Of stopwords, of two words written as one, and of stems in other languages than the main one.
STOPWORD_WEIGHT, JOINED_WEIGHT, OTHER_WEIGHT = 0.1, 0.3, 0.7
COMPLETION_WEIGHT = 0.5  # of completions of the last word


class QueryWord(NamedTuple):
    """A word of a query as typed, its terms, and its offsets."""

    text: str
    terms: tuple[str, ...]
    start: int
    end: int


class JoinedWord(NamedTuple):
    """Two words of a query as typed, the terms of their joined form, and those of both parts."""

    text: str
    terms: tuple[str, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class WordQuery:
    """A parsed query.

    analyzer: of the query's languages. plain: the query without quotes and excluded words, for a model. terms: to match
    and weigh pages. phrases and excluded: words separated by spaces. excluded_terms: of single excluded words outside
    of quotes, which are excluded in any form. marked: terms to highlight. unquoted: those that are not only in phrases.
    joined: neighbouring words outside of phrases, as one word. neighbours: for each term, those before and after it
    without stopwords, each with the smaller IDF of both. idf: of terms in the library.
    """

    analyzer: Analyzer
    plain: str
    terms: Terms
    phrases: tuple[str, ...]
    excluded: tuple[str, ...]
    marked: frozenset[str]
    excluded_terms: frozenset[str] = frozenset()
    unquoted: frozenset[str] = frozenset()
    joined: tuple[JoinedWord, ...] = ()
    neighbours: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    idf: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def content_words(self) -> list[QueryWord]:
        """The distinct words that are no stopwords; no bigrams."""
        words: dict[tuple[str, ...], QueryWord] = {}
        spans: set[tuple[int, int]] = set()  # inv-20931 and inv20931 are one word as typed
        for token in tokenize(self.plain):
            terms, span = self.analyzer.find_terms(token), (token.start, token.end)
            if self.marked.issuperset(terms) and not _is_bigram(token) and span not in spans:
                spans.add(span)
                words.setdefault(terms, QueryWord(self.plain[token.start : token.end], terms, *span))
        return list(words.values())

    @cached_property
    def matcher(self) -> Matcher:
        """Finds the terms to highlight, also joined ones."""
        return Matcher(self.analyzer, self.marked.union(*(word.terms for word in self.joined)))


def read_query(
    text: str,
    analyzer: Analyzer,
    completions: Sequence[str] = (),
    find_idf: Callable[[str], float] = lambda word: 1.0,
    foreign_stopwords: frozenset[str] = frozenset(),
) -> WordQuery:
    """Parse a query. An unclosed quote is ignored; a query of only excluded words has no terms.

    completions: of its last word, while it is being typed. find_idf: returns the IDF of a word.
    foreign_stopwords: of the query's language, if no page is in it.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the query has {len(text):,} characters: use at most {MAX_CHARACTERS:,}")
    phrases, excluded = [], []
    excluded_terms: set[str] = set()
    rest, outside = [], []
    end = 0
    for piece in PIECE.finditer(text):
        rest.append(text[end : piece.start()])
        outside.append(rest[-1])
        end = piece.end()
        words = " ".join(list_words(piece["excluded"] or piece["phrase"] or ""))
        if piece["excluded"] or piece["minus"]:
            excluded.append(words)
            tokens = list(tokenize(piece["excluded"] or ""))
            if len(tokens) == 1:
                excluded_terms.update(analyzer.find_terms(tokens[0]))
            continue
        phrases.append(words)
        rest.append(piece["phrase"])
    rest.append(text[end:])
    outside.append(rest[-1])
    plain = " ".join("".join(rest).split())
    stopwords = analyzer.find_stopwords(plain) | foreign_stopwords
    content = {token.text for token in tokenize(plain) if not token.extra} - stopwords
    question_words = load_stopwords()["asking"]
    if len(content) >= 8 and len(content - question_words) >= 2:  # in a short query they may be the topic
        stopwords |= question_words
    weights = _weigh_terms(plain, analyzer, stopwords, foreign_stopwords)
    marked = _choose_marked(plain, analyzer, stopwords) or frozenset(weights)
    joined: list[JoinedWord] = []
    for part in outside:
        joined += _join_neighbours(part, analyzer, stopwords)
    for word in joined:
        for term in word.terms:
            weights.setdefault(term, JOINED_WEIGHT)
    for completion in completions:
        terms = analyzer.find_terms(Token(completion, 0, 0))
        marked |= set(terms)
        for term in terms:
            weights.setdefault(term, COMPLETION_WEIGHT)
    if len(weights) > MAX_TERMS:
        weights = dict(sorted(weights.items(), key=lambda item: -item[1])[:MAX_TERMS])
    idf, neighbours = _find_neighbours(plain, analyzer, stopwords, find_idf)
    for term, weight in list(weights.items()):  # in a file name, the 2018 of FY2018 is worth as much as FY2018
        weights[make_name_term(term)] = 1.0 if weight > STOPWORD_WEIGHT else weight
    return WordQuery(
        analyzer,
        plain,
        hash_terms(weights),
        tuple(filter(None, dict.fromkeys(phrases)))[:MAX_PHRASES],
        tuple(filter(None, dict.fromkeys(excluded)))[:MAX_PHRASES],
        marked,
        frozenset(excluded_terms),
        _choose_marked(" ".join(outside), analyzer, stopwords) if phrases else marked,
        tuple(dict.fromkeys(joined)),
        neighbours,
        idf,
    )


def _find_neighbours(
    text: str, analyzer: Analyzer, stopwords: frozenset[str], find_idf: Callable[[str], float]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the IDF of the terms of a query, and the neighbours of each word."""
    idf: dict[str, float] = {}
    words: list[str] = []
    for token in tokenize(text):
        if token.text not in stopwords:
            terms = analyzer.find_terms(token)
            if terms[0] not in idf:
                idf |= dict.fromkeys(terms, find_idf(token.text))
            if not token.extra:
                words.append(terms[0])
    neighbours: dict[str, dict[str, float]] = {}
    for first, second in pairwise(words[:MAX_TERMS]):
        if first != second:
            neighbours.setdefault(first, {})[second] = min(idf[first], idf[second])
            neighbours.setdefault(second, {})[first] = min(idf[first], idf[second])
    return idf, neighbours


def choose_longest(words: list[QueryWord]) -> list[QueryWord]:
    """Remove words that are parts of others: 20931 beside INV-20931."""
    longest = []
    for word in words:
        if not any(other != word and other.start <= word.start and word.end <= other.end for other in words):
            longest.append(word)
    return longest


def _weigh_terms(
    text: str, analyzer: Analyzer, stopwords: frozenset[str], foreign_stopwords: frozenset[str]
) -> dict[str, float]:
    """Return the terms of a query with their weights: in the main language, then in others.

    Characters of scripts without spaces are dropped in favour of bigrams: single ones are too common. Stopwords count
    little, and foreign ones nothing, unless the query has no other words.
    """
    tokens = list(tokenize(text))
    in_bigrams: set[int] = set()
    for token in tokens:
        if _is_bigram(token):
            in_bigrams.update((token.start, token.start + 1))
    tokens = [token for token in tokens if token.extra or token.start not in in_bigrams]
    has_content = any(token.text not in stopwords for token in tokens)
    terms: dict[str, float] = {}
    others: dict[str, float] = {}
    for token in tokens:
        if has_content and token.text in foreign_stopwords:
            continue
        weight = STOPWORD_WEIGHT if has_content and token.text in stopwords else token.weight
        first, *rest = analyzer.find_terms(token)
        terms[first] = max(weight, terms.get(first, 0.0))
        for term in rest:
            others[term] = max(weight, others.get(term, 0.0))
    for term, weight in others.items():
        terms.setdefault(term, OTHER_WEIGHT * weight)
    return terms


def _join_neighbours(text: str, analyzer: Analyzer, stopwords: frozenset[str]) -> Iterator[JoinedWord]:
    """Yield neighbouring words as one: readonly of "read only" and "read-only", email of "e-mail"; not "into"."""
    words = [token for token in tokenize(text) if not token.extra]
    for first, second in pairwise(words):
        between = text[first.end : second.start]
        if not _may_join(first.text, second.text, between, stopwords):
            continue
        parts = (*analyzer.find_terms(first), *analyzer.find_terms(second))
        whole = analyzer.find_terms(Token(first.text + second.text, first.start, second.end))
        terms = tuple(term for term in whole if term not in parts)
        if terms:
            yield JoinedWord(text[first.start : second.end], terms, parts)


def _may_join(first: str, second: str, between: str, stopwords: frozenset[str]) -> bool:
    """Whether two words may also be written as one: only letters, and not both stopwords."""
    if not (first + second).isalpha() or IS_UNSPACED.match(first) or IS_UNSPACED.match(second):
        return False
    if between not in "-\u2010\u2011" and (not between.isspace() or 1 in (len(first), len(second))):
        return False
    return not {first, second} <= stopwords


def _is_bigram(token: Token) -> bool:
    return token.extra and token.end - token.start == 2 and token.text.isalpha()


def _choose_marked(text: str, analyzer: Analyzer, stopwords: frozenset[str]) -> frozenset[str]:
    """Return the terms to highlight: not "of", and not the 4 of 4.2.1."""
    tokens = list(tokenize(text))
    in_identifiers: set[int] = set()
    for token in tokens:
        if token.extra:
            in_identifiers.update(range(token.start, token.end))
    found: set[str] = set()
    for token in tokens:
        is_part = not token.extra and token.start in in_identifiers and len(token.text) <= 2
        if not is_part and token.text not in stopwords:
            found.update(analyzer.find_terms(token))
    return frozenset(found)
