"""From text to the terms that are counted: stems of words in one language, numbers and identifiers as they are.

The terms of a page are weighted by BM25 here, but for the part that depends on other pages, which the engine adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from threading import Lock
from zlib import crc32

import Stemmer

from .languages import DEFAULT, NO_STEMS, list_function_words
from .terms import Terms
from .tokens import Token, remove_accents, tokenize

# BM25: how soon more of a word stops to count, how much the length of a page counts, and the length that is usual.
SATURATION, LENGTH_SHARE, USUAL_LENGTH = 1.5, 0.75, 300

JOINED_WEIGHT = 0.5  # in a query, of two words written as one; see docs/log.md

STEMS = 100_000  # that are remembered


@cache
def get_analyzer(language: str | None) -> Analyzer:
    """Return the analyzer of a language; None for the usual one."""
    return Analyzer(language or DEFAULT)


class Analyzer:
    """Turns text into terms, the same for pages and queries of one language. Safe to use from several threads."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.function_words = list_function_words().get(language, frozenset())
        self._stem = _make_stem(language)

    def find_term(self, token: Token) -> str:
        """Return the term that a token counts as."""
        word = token.text
        if self.language == DEFAULT:  # its stems know no accents
            word = remove_accents(word)
        if token.extra or not word.isalpha():
            return remove_accents(word)
        return remove_accents(self._stem(word))

    def weigh_page(self, text: str) -> Terms:
        """Return the terms of a page with their weights."""
        return self.analyse_page(text)[0]

    def analyse_page(self, text: str) -> tuple[Terms, str]:
        """Return the terms of a page with their weights, and its words one after the other, for phrases."""
        counts: Counter[str] = Counter()
        words = []
        for token in tokenize(text):
            counts[self.find_term(token)] += 1
            if not token.extra:
                words.append(remove_accents(token.text))
        usual = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * len(words) / USUAL_LENGTH)
        weights = []
        for count in counts.values():
            weights.append(count * (SATURATION + 1) / (count + usual))
        return _number(counts, weights), " ".join(words)

    def weigh_query(self, terms: Iterable[str], joined: Iterable[str] = ()) -> Terms:
        """Return the terms of a query; one that is named twice counts twice. joined: of two words written as one."""
        weights = {term: float(count) for term, count in Counter(terms).items()}
        for term in joined:
            weights.setdefault(term, JOINED_WEIGHT)
        return _number(weights, list(weights.values()))


def list_words(text: str) -> Iterator[str]:
    """Yield the words of a text one after the other, as typed but for case and accents: what a phrase is made of."""
    for token in tokenize(text):
        if not token.extra:
            yield remove_accents(token.text)


def _make_stem(language: str) -> Callable[[str], str]:
    """Return what brings a word to its stem; a stemmer itself is not safe in several threads."""
    if language == NO_STEMS:
        return str
    stemmer, lock = Stemmer.Stemmer(language), Lock()

    @lru_cache(STEMS)
    def stem(word: str) -> str:
        with lock:
            found: str = stemmer.stemWord(word)
        return found

    return stem


def _number(terms: Iterable[str], weights: list[float]) -> Terms:
    """Number terms; two that have the same number by chance are one, with the larger weight."""
    numbered: dict[int, float] = {}
    for term, weight in zip(terms, weights, strict=True):
        number = crc32(term.encode("utf-8", "surrogatepass"))
        numbered[number] = max(weight, numbered.get(number, 0.0))
    return Terms(tuple(numbered), tuple(numbered.values()))
