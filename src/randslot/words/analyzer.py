"""Turn text into weighted terms: stems of words, numbers and identifiers as they are.

A page is weighted by BM25F: a word counts more in a heading or in the file's name than in the text. Words of the name
count a second time as terms of their own, so that the name decides between reports that all mention 2017 and 2018. How
rare a word is among all pages is left to the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from threading import Lock
from zlib import crc32

import Stemmer

from .language import DEFAULT, NO_STEMS, list_function_words
from .tokens import COMPOUND, Token, remove_accents, split_compound, tokenize


@dataclass(frozen=True)
class Terms:
    """Terms by their numbers (32 bits of a hash), and the weight of each."""

    numbers: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


# How much once in a field counts, where once in the text counts 1. These, and BM25's k1 and b, were chosen on the
# development shelf and manuals: research/log.md, "Fields".
FIELD_WEIGHTS = {"name": 3.0, "folder": 3.0, "heading": 2.0, "section": 1.0, "title": 0.5}
NAME_WEIGHT = 0.5  # of a word in the name or folder, beside its share in BM25F, which saturates
MEAN_LENGTH = 400.0  # terms of a page, until a library knows its own mean


@cache
def get_analyzer(language: str | None, *others: str) -> Analyzer:
    """Return the analyzer of a language, None for the usual one, which reads queries in others too."""
    return Analyzer(language or DEFAULT, others)


@cache
def get_page_analyzer(language: str, usual: str) -> Analyzer:
    """Return the analyzer for pages in a language, in a library that is mostly in another one."""
    return get_analyzer(usual) if language == usual else Analyzer(language, usual=get_analyzer(usual))


class Analyzer:
    """Turns text into terms: pages in one language, queries in that one and others. Thread-safe.

    A short query does not tell its language, so each of its words stands for its stems in all of them. Stems in other
    languages are stemmed again in the usual one, so that an English word is the same term on English and German pages.
    """

    def __init__(self, language: str, others: Sequence[str] = (), usual: Analyzer | None = None) -> None:
        self.language, self.usual = language, usual
        self.others = [get_page_analyzer(other, language) for other in others]
        self.function_words = list_function_words().get(language, frozenset())
        self._stem = _make_stem(language)
        self._compounds: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def find_terms(self, token: Token) -> tuple[str, ...]:
        """Return the distinct terms of a query's token: in the usual language, then in others."""
        terms = [self.find_term(token)]
        for other in self.others:
            terms.append(other.find_term(token))
        return tuple(dict.fromkeys(terms))

    def find_grammar(self, query: str) -> frozenset[str]:
        """Return the function words of the language that a query has most of them of."""
        words = {token.text for token in tokenize(query)} if self.others else set()
        best, most = self.function_words, len(self.function_words & words)
        for other in self.others:
            num = len(other.function_words & words)
            if num > most:
                best, most = other.function_words, num
        return best

    def find_term(self, token: Token) -> str:
        """Return the term of a page's token."""
        word = token.text
        if self.language == DEFAULT:  # its stemmer knows no accents
            word = remove_accents(word)
        if not word.isalpha() or (token.extra and token.weight == 1):
            return remove_accents(word)
        term = remove_accents(self._stem(word))
        return self.usual.find_term(token._replace(text=term)) if self.usual else term

    def analyse_page(
        self, text: str, fields: Mapping[str, str] | None = None, mean_length: float = MEAN_LENGTH
    ) -> tuple[Terms, str]:
        """Return the weighted terms of a page, and its words in order, for phrases.

        fields: the texts of some of `FIELD_WEIGHTS`. mean_length: terms of a page, in the mean of the library.
        """
        counts: Counter[str] = Counter()
        words: list[str] = []
        for compound in COMPOUND.findall(text):
            terms, own = self._read_compound(compound)
            counts.update(terms)
            words += own
        k1, b = 1.2, 0.5  # saturation, and how much the length of a page counts
        norm = k1 * (1 - b + b * counts.total() / mean_length)
        scores: dict[str, float] = dict(counts)
        named: set[str] = set()
        for field, content in (fields or {}).items():
            found: set[str] = set()
            for compound in COMPOUND.findall(content):
                found.update(self._read_compound(compound)[0])
            for term in found:
                scores[term] = scores.get(term, 0.0) + FIELD_WEIGHTS[field]
            if field in ("name", "folder"):
                named |= found
        for term, score in scores.items():
            scores[term] = score * (k1 + 1) / (score + norm)
        for term in named:
            scores[make_name_term(term)] = NAME_WEIGHT
        return number_terms(scores), " ".join(words)

    def count_terms(self, text: str) -> int:
        """Return the length of a text in terms."""
        return sum(len(self._read_compound(compound)[0]) for compound in COMPOUND.findall(text))

    def _read_compound(self, compound: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the terms of a compound, and its words without accents; most compounds were seen before."""
        found = self._compounds.get(compound)
        if found is None:
            tokens = split_compound(compound)
            terms = tuple(self.find_term(token) for token in tokens)
            found = terms, tuple(remove_accents(token.text) for token in tokens if not token.extra)
            if len(self._compounds) >= 200_000:
                self._compounds.clear()
            self._compounds[compound] = found
        return found


def make_name_term(term: str) -> str:
    """Return a term as one of a file's name or folder; no word has a space in it."""
    return f"name {term}"


def list_words(text: str) -> Iterator[str]:
    """Yield the words of a text in order, as typed except for case and accents: what a phrase is made of."""
    for token in tokenize(text):
        if not token.extra:
            yield remove_accents(token.text)


def _make_stem(language: str) -> Callable[[str], str]:
    """Return a stemmer that is safe in several threads."""
    if language == NO_STEMS:
        return str
    stemmer, lock = Stemmer.Stemmer(language), Lock()

    @lru_cache(100_000)
    def stem(word: str) -> str:
        with lock:
            found: str = stemmer.stemWord(word)
        return found

    return stem


def number_terms(weights: Mapping[str, float]) -> Terms:
    """Number terms by their hashes; two that have the same number by chance are one, with the larger weight."""
    numbered: dict[int, float] = {}
    for term, weight in weights.items():
        number = crc32(term.encode("utf-8", "surrogatepass"))
        numbered[number] = max(weight, numbered.get(number, 0.0))
    return Terms(tuple(numbered), tuple(numbered.values()))
