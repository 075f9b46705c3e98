"""What somebody typed to find pages: words, "phrases in quotes", and -words that the page must not have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ..errors import UsageError
from .analyzer import Analyzer, Terms, Token, list_words, make_name_term, number_terms, tokenize
from .language import IS_UNSPACED, list_function_words
from .matching import Matcher

MAX_CHARACTERS = 10_000  # of a query
MAX_TERMS, MAX_PHRASES = 256, 32  # that count: nobody types more
QUOTES = '"\u201c\u201d\u201e\u201f\u00ab\u00bb'
PIECE = re.compile(
    rf"(?P<minus>(?<!\S)-)?[{QUOTES}](?P<phrase>[^{QUOTES}]*)[{QUOTES}]"
    r"|(?<!\S)-(?P<excluded>[^\W\d_]{3}\S*)"  # letters must follow: -5 is a number, -l and --prune are options
)
# Of words that only carry grammar, of two words written as one, and of stems in other languages than the usual one.
GRAMMAR_WEIGHT, JOINED_WEIGHT, OTHER_WEIGHT = 0.1, 0.3, 0.7
COMPLETION_WEIGHT = 0.5  # of a word that the last one may become


class NamedWord(NamedTuple):
    """A word of a query as it was typed, its terms, and where it stands."""

    text: str
    terms: tuple[str, ...]
    start: int
    end: int


class JoinedWord(NamedTuple):
    """Two words of a query as they were typed, the terms that they are as one, and those of both."""

    text: str
    terms: tuple[str, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class WordQuery:
    """A query by words.

    analyzer: of the languages that it is read in. plain: the query without quotes and excluded words, for a model.
    terms: what pages are compared by. phrases and excluded: words with a space between them. excluded_terms: of those
    that are single and not in quotes, which pages must not have in any form. marked: the terms that are worth marking
    on a page. free: those of them that are not only in phrases. joined: neighbours outside of phrases as one word,
    which a page may have in their place. neighbours: for each word, those before and after it, function words aside,
    with the rarity of the commoner of both. rarity: of terms in the library.
    """

    analyzer: Analyzer
    plain: str
    terms: Terms
    phrases: tuple[str, ...]
    excluded: tuple[str, ...]
    marked: frozenset[str]
    excluded_terms: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    joined: tuple[JoinedWord, ...] = ()
    neighbours: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rarity: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def named(self) -> list[NamedWord]:
        """Its distinct content words; no pairs of characters."""
        named: dict[tuple[str, ...], NamedWord] = {}
        places: set[tuple[int, int]] = set()  # inv-20931 and inv20931 are one word as typed
        for token in tokenize(self.plain):
            terms, place = self.analyzer.find_terms(token), (token.start, token.end)
            if self.marked.issuperset(terms) and not _is_pair(token) and place not in places:
                places.add(place)
                named.setdefault(terms, NamedWord(self.plain[token.start : token.end], terms, *place))
        return list(named.values())

    @cached_property
    def matcher(self) -> Matcher:
        """Finds the terms that are marked on a page, also of two words as one."""
        return Matcher(self.analyzer, self.marked.union(*(word.terms for word in self.joined)))


def read_query(
    text: str,
    analyzer: Analyzer,
    completions: Sequence[str] = (),
    find_rarity: Callable[[str], float] = lambda word: 1.0,
    foreign: frozenset[str] = frozenset(),
) -> WordQuery:
    """Read a query. A quote that nobody closed is ignored; a query that only excludes has no terms.

    completions: words that its last one may become while it is being typed. find_rarity: tells how rare a word is.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the query has {len(text):,} characters: ask with at most {MAX_CHARACTERS:,}")
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
    grammar = analyzer.find_grammar(plain) | foreign
    content = {token.text for token in tokenize(plain) if not token.extra} - grammar
    asking = list_function_words()["asking"]
    if len(content) >= 8 and len(content - asking) >= 2:  # in a short query they may be what is looked for
        grammar |= asking
    weights = _weigh_terms(plain, analyzer, grammar, foreign)
    marked = _choose_marked(plain, analyzer, grammar) or frozenset(weights)
    joined: list[JoinedWord] = []
    for part in outside:
        joined += _join_neighbours(part, analyzer, grammar)
    for word in joined:
        for term in word.terms:
            weights.setdefault(term, JOINED_WEIGHT)
    for one in completions:
        terms = analyzer.find_terms(Token(one, 0, 0))
        marked |= set(terms)
        for term in terms:
            weights.setdefault(term, COMPLETION_WEIGHT)
    if len(weights) > MAX_TERMS:
        weights = dict(sorted(weights.items(), key=lambda one: -one[1])[:MAX_TERMS])
    rarity, neighbours = _find_neighbours(plain, analyzer, grammar, find_rarity)
    for term, weight in list(weights.items()):  # of a name, the 2018 of FY2018 tells as much as FY2018
        weights[make_name_term(term)] = 1.0 if weight > GRAMMAR_WEIGHT else weight
    return WordQuery(
        analyzer,
        plain,
        number_terms(weights),
        tuple(filter(None, dict.fromkeys(phrases)))[:MAX_PHRASES],
        tuple(filter(None, dict.fromkeys(excluded)))[:MAX_PHRASES],
        marked,
        frozenset(excluded_terms),
        _choose_marked(" ".join(outside), analyzer, grammar) if phrases else marked,
        tuple(dict.fromkeys(joined)),
        neighbours,
        rarity,
    )


def _find_neighbours(
    text: str, analyzer: Analyzer, grammar: frozenset[str], find_rarity: Callable[[str], float]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return how rare the terms of a query are, and the neighbours of each word."""
    rarity: dict[str, float] = {}
    words: list[str] = []
    for token in tokenize(text):
        if token.text not in grammar:
            terms = analyzer.find_terms(token)
            if terms[0] not in rarity:
                rarity |= dict.fromkeys(terms, find_rarity(token.text))
            if not token.extra:
                words.append(terms[0])
    neighbours: dict[str, dict[str, float]] = {}
    for one, two in pairwise(words[:MAX_TERMS]):
        if one != two:
            neighbours.setdefault(one, {})[two] = min(rarity[one], rarity[two])
            neighbours.setdefault(two, {})[one] = min(rarity[one], rarity[two])
    return rarity, neighbours


def choose_longest(words: list[NamedWord]) -> list[NamedWord]:
    """Return words without those that are parts of others: INV-20931, and not 20931 too."""
    shown = []
    for word in words:
        if not any(other != word and other.start <= word.start and word.end <= other.end for other in words):
            shown.append(word)
    return shown


def _weigh_terms(text: str, analyzer: Analyzer, grammar: frozenset[str], foreign: frozenset[str]) -> dict[str, float]:
    """Return the terms of a query with their weights: in the usual language, then in others.

    Of characters that are written without spaces only pairs count, where there are any: single ones are everywhere.
    Words that only carry grammar count little, unless the query has nothing else.
    """
    tokens = list(tokenize(text))
    paired: set[int] = set()
    for token in tokens:
        if _is_pair(token):
            paired.update((token.start, token.start + 1))
    tokens = [token for token in tokens if token.extra or token.start not in paired]
    has_content = any(token.text not in grammar for token in tokens)
    terms: dict[str, float] = {}
    others: dict[str, float] = {}
    for token in tokens:
        if has_content and token.text in foreign:
            continue
        weight = GRAMMAR_WEIGHT if has_content and token.text in grammar else token.weight
        first, *rest = analyzer.find_terms(token)
        terms[first] = max(weight, terms.get(first, 0.0))
        for term in rest:
            others[term] = max(weight, others.get(term, 0.0))
    for term, weight in others.items():
        terms.setdefault(term, OTHER_WEIGHT * weight)
    return terms


def _join_neighbours(text: str, analyzer: Analyzer, grammar: frozenset[str]) -> Iterator[JoinedWord]:
    """Yield neighbouring words as one: readonly of "read only" and "read-only", email of "e-mail"; not "into"."""
    words = [token for token in tokenize(text) if not token.extra]
    for one, two in pairwise(words):
        between = text[one.end : two.start]
        if not _may_join(one.text, two.text, between, grammar):
            continue
        parts = (*analyzer.find_terms(one), *analyzer.find_terms(two))
        whole = analyzer.find_terms(Token(one.text + two.text, one.start, two.end))
        terms = tuple(term for term in whole if term not in parts)
        if terms:
            yield JoinedWord(text[one.start : two.end], terms, parts)


def _may_join(one: str, two: str, between: str, grammar: frozenset[str]) -> bool:
    """Whether two words may also be written as one: both of letters, and not both function words."""
    if not (one + two).isalpha() or IS_UNSPACED.match(one) or IS_UNSPACED.match(two):
        return False
    if between not in "-\u2010\u2011" and (not between.isspace() or 1 in (len(one), len(two))):
        return False
    return not {one, two} <= grammar


def _is_pair(token: Token) -> bool:
    return token.extra and token.end - token.start == 2 and token.text.isalpha()


def _choose_marked(text: str, analyzer: Analyzer, grammar: frozenset[str]) -> frozenset[str]:
    """Return the terms that mean something by themselves: not "of", and not the 4 of 4.2.1."""
    tokens = list(tokenize(text))
    joined: set[int] = set()
    for token in tokens:
        if token.extra:
            joined.update(range(token.start, token.end))
    found: set[str] = set()
    for token in tokens:
        is_part = not token.extra and token.start in joined and len(token.text) <= 2
        if not is_part and token.text not in grammar:
            found.update(analyzer.find_terms(token))
    return frozenset(found)
