"""From text to the terms that are counted: stems of words, numbers and identifiers as they are.

The terms of a page are weighted by BM25 here, but for the part that depends on other pages, which the engine adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from threading import Lock
from zlib import crc32

import Stemmer

from .language import DEFAULT, NO_STEMS, list_function_words
from .tokens import Token, remove_accents, tokenize


@dataclass(frozen=True)
class Terms:
    """Terms by their numbers (32 bits of a hash), and the weight of each."""

    numbers: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


# BM25: how soon more of a word stops to count, how much the length of a page counts, and the length that is usual.
SATURATION, LENGTH_SHARE, USUAL_LENGTH = 1.5, 0.75, 300

# In a query, of two words written as one, and of stems in other languages than the usual one; see docs/log.md.
JOINED_WEIGHT, OTHER_WEIGHT = 0.5, 0.7

STEMS = 100_000  # that are remembered


@cache
def get_analyzer(language: str | None, *others: str) -> Analyzer:
    """Return the analyzer of a language, None for the usual one, which reads queries in others too."""
    return Analyzer(language or DEFAULT, others)


@cache
def get_page_analyzer(language: str, usual: str) -> Analyzer:
    """Return what reads pages in a language, in a library that is mostly in another one."""
    return get_analyzer(usual) if language == usual else Analyzer(language, usual=get_analyzer(usual))


class Analyzer:
    """Turns text into terms: pages in one language, and queries in that one and others. Safe in several threads.

    A short query does not tell its language, so each of its words stands for its stems in all of them. Stems in other
    languages are brought to stems in the usual one: so an English word is the same term on English and German pages.
    """

    def __init__(self, language: str, others: Sequence[str] = (), usual: Analyzer | None = None) -> None:
        self.language, self.usual = language, usual
        self.others = [get_page_analyzer(other, language) for other in others]
        self.function_words = list_function_words().get(language, frozenset())
        self._stem = _make_stem(language)

    def find_terms(self, token: Token) -> tuple[str, ...]:
        """Return the terms that a token of a query stands for, each once: of the usual language, then of others."""
        terms = [self.find_term(token)]
        for other in self.others:
            terms.append(other.find_term(token))
        return tuple(dict.fromkeys(terms))

    def find_grammar(self, query: str) -> frozenset[str]:
        """Return the words that carry the grammar of a query: those of the language that it has most of."""
        words = {token.text for token in tokenize(query)} if self.others else set()
        best, most = self.function_words, len(self.function_words & words)
        for other in self.others:
            num = len(other.function_words & words)
            if num > most:
                best, most = other.function_words, num
        return best

    def find_term(self, token: Token) -> str:
        """Return the term that a token of a page counts as."""
        word = token.text
        if self.language == DEFAULT:  # its stems know no accents
            word = remove_accents(word)
        if token.extra or not word.isalpha():
            return remove_accents(word)
        term = remove_accents(self._stem(word))
        return self.usual.find_term(token._replace(text=term)) if self.usual else term

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

    def weigh_query(self, terms: Iterable[str], others: Iterable[str] = (), joined: Iterable[str] = ()) -> Terms:
        """Return the terms of a query; one that is named twice counts twice.

        others: stems in other languages than the usual one. joined: of two words written as one.
        """
        weights = {term: float(count) for term, count in Counter(terms).items()}
        for term, count in Counter(others).items():
            weights.setdefault(term, OTHER_WEIGHT * count)
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
