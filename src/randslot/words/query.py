"""What somebody typed to find pages: words, "phrases in quotes", and -words that the page must not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UsageError
from .analyzer import Analyzer, list_words
from .terms import Terms
from .tokens import Token, tokenize

MOST_CHARACTERS = 10_000  # of a query
SHORT_PART = 2  # characters of a part of an identifier that says nothing alone
QUOTES = '"\u201c\u201d\u201e\u201f\u00ab\u00bb'
PIECE = re.compile(
    rf"(?P<minus>(?<!\S)-)?[{QUOTES}](?P<phrase>[^{QUOTES}]*)[{QUOTES}]"
    r"|(?<!\S)-(?P<excluded>[^\W\d_]{3}\S*)"  # letters must follow: -5 is a number, -l and --prune are options
)


@dataclass(frozen=True)
class WordQuery:
    """A query by words.

    plain: the query without quotes and excluded words, for a model. terms: what pages are compared by. phrases and
    excluded: words with a space between them. excluded_terms: of those that stand alone and not in quotes, which pages
    must not have in any form. marked: the terms that are worth marking on a page.
    """

    plain: str
    terms: Terms
    phrases: tuple[str, ...]
    excluded: tuple[str, ...]
    marked: frozenset[str]
    excluded_terms: frozenset[str] = frozenset()


class NamedWord(NamedTuple):
    """A word of a query as it was typed, its term, and where it stands."""

    text: str
    term: str
    start: int
    end: int


def read_query(text: str, analyzer: Analyzer) -> WordQuery:
    """Read a query. A quote that nobody closed is ignored; a query that only excludes has no terms.

    Errors: UsageError if it is far too long.
    """
    check_length(text)
    phrases, excluded = [], []
    excluded_terms: set[str] = set()
    rest = []
    end = 0
    for piece in PIECE.finditer(text):
        rest.append(text[end : piece.start()])
        end = piece.end()
        words = " ".join(list_words(piece["excluded"] or piece["phrase"] or ""))
        if piece["excluded"] or piece["minus"]:
            excluded.append(words)
            tokens = list(tokenize(piece["excluded"] or ""))
            if len(tokens) == 1:
                excluded_terms.add(analyzer.find_term(tokens[0]))
            continue
        phrases.append(words)
        rest.append(piece["phrase"])
    rest.append(text[end:])
    plain = " ".join("".join(rest).split())
    terms = list(_find_terms(plain, analyzer))
    return WordQuery(
        plain,
        analyzer.weigh_query(terms),
        tuple(phrase for phrase in phrases if phrase),
        tuple(phrase for phrase in excluded if phrase),
        _choose_marked(plain, analyzer) or frozenset(terms),
        frozenset(excluded_terms),
    )


def list_named(query: WordQuery, analyzer: Analyzer) -> list[NamedWord]:
    """Return the words of a query that mean something by themselves, each once; no pairs of characters."""
    named: dict[str, NamedWord] = {}
    for token in tokenize(query.plain):
        term = analyzer.find_term(token)
        if term in query.marked and not _is_pair(token):
            named.setdefault(term, NamedWord(query.plain[token.start : token.end], term, token.start, token.end))
    return list(named.values())


def show_longest(words: list[NamedWord]) -> list[str]:
    """Return words as they were typed, without those that are parts of others: INV-20931, and not 20931 too."""
    shown = []
    for word in words:
        around = [other for other in words if other.start <= word.start and word.end <= other.end]
        if around == [word]:
            shown.append(word.text)
    return shown


def check_length(text: str) -> None:
    """Refuse a query that is a document.

    Errors: UsageError.
    """
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"the query has {len(text):,} characters: ask with at most {MOST_CHARACTERS:,}")


def _find_terms(text: str, analyzer: Analyzer) -> Iterator[str]:
    """Yield the terms of a query.

    Of characters that are written without spaces, pairs alone count where there are any: single ones are everywhere.
    """
    tokens = list(tokenize(text))
    paired: set[int] = set()
    for token in tokens:
        if _is_pair(token):
            paired.update((token.start, token.start + 1))
    for token in tokens:
        if token.extra or token.start not in paired:
            yield analyzer.find_term(token)


def _is_pair(token: Token) -> bool:
    return token.extra and token.end - token.start == 2 and token.text.isalpha()


def _choose_marked(text: str, analyzer: Analyzer) -> frozenset[str]:
    """Return the terms that mean something by themselves: not "of", and not the 4 of 4.2.1."""
    tokens = list(tokenize(text))
    joined: set[int] = set()
    for token in tokens:
        if token.extra:
            joined.update(range(token.start, token.end))
    found = set()
    for token in tokens:
        is_part = not token.extra and token.start in joined and len(token.text) <= SHORT_PART
        if not is_part and token.text not in analyzer.function_words:
            found.add(analyzer.find_term(token))
    return frozenset(found)
