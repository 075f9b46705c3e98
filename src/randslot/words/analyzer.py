"""Turn text into weighted terms: split it into tokens, and stem words; numbers and identifiers stay as they are.

An identifier is found as typed, by its parts and without its separators: INV-20931 is inv, 20931, inv-20931 and
inv20931; FY2018 is fy2018, fy and 2018; 1,577 is also 1577; C++ is not C. Chinese, Japanese, Korean and Thai are split
into single characters and pairs of neighbours.

A page is weighted by BM25F: a word counts more in a heading or in the file's name than in the text. Words of the name
count a second time as terms of their own, so that the name decides between reports that all mention 2017 and 2018. How
rare a word is among all pages is left to the engine.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, pairwise
from threading import Lock
from typing import NamedTuple, TypeVar
from zlib import crc32

import Stemmer

from .language import DEFAULT, IS_UNSPACED, NO_STEMS, UNSPACED, list_function_words

T = TypeVar("T")
# Vowels and accents that `\w` does not know.
MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
LETTER = rf"(?:[^\W_]|[{MARKS}])"
LETTER_SIGN = re.compile(LETTER)
COMPOUND = re.compile(rf"{LETTER}+(?:[-._/:,'\u2019\u2010\u2011]{LETTER}+)*(?:(?:\+\+|#)(?!{LETTER}))?")
PART = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}]){LETTER})+")
SIGNS = "!\"$%&'()*,-./:;<=>?@[\\]^_`{|}~\u2018\u2019\u201c\u201d\u2026"  # around words; not those of C++ and C#
MAX_LENGTH = 200  # characters of a token that count; a longer run of letters is not a word


class Token(NamedTuple):
    """One token in lower case, where it stands in the text, and its weight in a query.

    extra: it stands beside other tokens of the same place, and is no word of a phrase.
    """

    text: str
    start: int
    end: int
    extra: bool = False
    weight: float = 1.0

    @property
    def is_name(self) -> bool:
        """Whether it is a compound as one name, such as INV-20931."""
        return self.extra and self.weight == 1


@dataclass(frozen=True)
class Terms:
    """Terms by their numbers (32 bits of a hash), and the weight of each."""

    numbers: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


# How much once in a field counts, where once in the text counts 1. These, and BM25's k1 and b, were chosen on the
# development shelf and manuals: research/log.md, "Fields".
FIELD_WEIGHTS = {"name": 3.0, "folder": 3.0, "heading": 2.0, "section": 1.0, "title": 0.5}
NAME_WEIGHT = 0.5  # of a word in the name or folder, beside its share in BM25F, which saturates
CONTENTS_FACTOR = 0.7  # of a list of contents: it names what other pages say
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

    A short query does not tell its language, so each word is stemmed in all of them. Stems in other
    languages are stemmed again in the usual one, so that an English word is the same term on English and German pages.
    """

    def __init__(self, language: str, others: Sequence[str] = (), usual: Analyzer | None = None) -> None:
        self.language, self.usual = language, usual
        self.others = [get_page_analyzer(other, language) for other in others]
        self.function_words = list_function_words().get(language, frozenset())
        self._stem = _make_stem(language)
        self._known = Memo(self._number_word)
        self._known_fields = lru_cache(1000)(self._number_field)  # pages of a file have many in common
        self._field_words = Memo(self._read_word)
        self._find_terms = lru_cache(100_000)(self._stem_in_all)
        self.read = Memo(self._read_tokens)

    def find_terms(self, token: Token) -> tuple[str, ...]:
        """Return the distinct terms of a query's token: in the usual language, then in others."""
        return self._find_terms(token.text, token.is_name)

    def _stem_in_all(self, word: str, is_name: bool) -> tuple[str, ...]:
        return tuple(dict.fromkeys([one.stem(word, is_name) for one in (self, *self.others)]))

    def _read_tokens(self, word: str) -> list[tuple[Token, tuple[str, ...]]]:
        """Return the tokens of what stands between two spaces of a page, and the terms of each."""
        core = word.strip(SIGNS)
        if is_one_token(core):
            start = word.index(core)
            return [(Token(core.lower(), start, start + len(core)), self._stem_in_all(core.lower(), False))]
        return [(token, self.find_terms(token)) for token in tokenize(word)]

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
        return self.stem(token.text, token.is_name)

    def stem(self, word: str, is_name: bool = False) -> str:
        """Return the term of a word; names of things, and what is not of letters, are not stemmed."""
        if self.language == DEFAULT:  # its stemmer knows no accents
            word = remove_accents(word)
        if is_name or not word.isalpha():
            return remove_accents(word)
        term = remove_accents(self._stem(word))
        return self.usual.stem(term) if self.usual else term

    def analyse_page(
        self, text: str, fields: Mapping[str, str] | None = None, mean_length: float = MEAN_LENGTH
    ) -> tuple[Terms, str]:
        """Return the weighted terms of a page, and its words in order, for phrases.

        fields: the texts of some of `FIELD_WEIGHTS`. mean_length: terms of a page, in the mean of the library.
        """
        raw = text.split()
        scores: dict[int, float] = {}
        known: dict[str, str] = {}
        for word, num in Counter(raw).items():
            numbers, known[word] = self._known[word]
            for number in numbers:
                scores[number] = scores.get(number, 0) + num
        words = " ".join(filter(None, map(known.__getitem__, raw)))
        k1, b = 1.6, 0.4  # saturation, and how much the length of a page counts
        norm = k1 * (1 - b + b * sum(scores.values()) / mean_length)
        named: set[int] = set()
        for field, content in (fields or {}).items():
            found, as_names = self._known_fields(content)
            for number in found:
                scores[number] = scores.get(number, 0.0) + FIELD_WEIGHTS[field]
            if field in ("name", "folder"):
                named |= as_names
        factor = (k1 + 1) * (CONTENTS_FACTOR if is_contents(text) else 1)
        weights = {score: score * factor / (score + norm) for score in set(scores.values())}
        weighted = dict(zip(scores, map(weights.__getitem__, scores.values()), strict=True))
        weighted |= dict.fromkeys(named, NAME_WEIGHT)
        return Terms(tuple(weighted), tuple(weighted.values())), words

    def count_terms(self, text: str) -> int:
        """Return the length of a text in terms."""
        return sum(len(self._known[word][0]) for word in text.split())

    def _number_word(self, word: str) -> tuple[tuple[int, ...], str]:
        """Return the numbers of the terms of what stands between two spaces of a page, and its words for phrases."""
        core = word.strip(SIGNS)
        if core != word:
            return self._known[core]
        compounds = [] if core.isalnum() else COMPOUND.findall(core)
        if compounds and compounds != [core]:
            known = list(map(self._known.__getitem__, compounds))
            return tuple(chain.from_iterable(one[0] for one in known)), " ".join(one[1] for one in known if one[1])
        terms, words = self._read_word(core)
        return tuple(map(number_term, terms)), words

    def _number_field(self, content: str) -> tuple[frozenset[int], frozenset[int]]:
        """Return the numbers of the terms of a field, and their numbers as those of a file's name."""
        terms: set[str] = set()
        for word in content.split():
            terms.update(self._field_words[word.strip(SIGNS)][0])
        return frozenset(map(number_term, terms)), frozenset(map(number_term, map(make_name_term, terms)))

    def _read_word(self, core: str) -> tuple[Sequence[str], str]:
        """Return the terms of a word without signs around it, and its words for phrases."""
        if len(core) <= MAX_LENGTH and core.isascii():  # most words are one token
            if core.isdigit():
                return (core,), core
            if is_one_token(core):
                core = core.lower()
                term = self._stem(core)
                return (self.usual.stem(term) if self.usual else term,), core
        elif len(core) <= MAX_LENGTH and core.isalpha() and not IS_UNSPACED.search(core):
            core = fold_case(core)
            return (self.stem(core),), remove_accents(core)
        terms, words = [], []
        for compound in COMPOUND.findall(core):
            for token in split_compound(compound):
                terms.append(self.find_term(token))
                if not token.extra:
                    words.append(remove_accents(token.text))
        return terms, " ".join(words)


class Memo(dict[str, T]):
    """Remembers what a function returned for a word: most words of a page were seen before."""

    def __init__(self, find: Callable[[str], T]) -> None:
        self.find = find

    def __missing__(self, word: str) -> T:
        found = self.find(word)
        if len(self) >= 200_000:
            self.clear()
        if len(word) <= MAX_LENGTH:  # a longer one is not worth remembering
            self[word] = found
        return found


def is_one_token(word: str) -> bool:
    """Whether a word is of plain letters, in one case but for the first; most words are."""
    return word.isascii() and word.isalpha() and len(word) <= MAX_LENGTH and (word[1:].islower() or word.isupper())


def is_contents(text: str) -> bool:
    """Whether a page is a list of contents: most of its lines are words and a number, and the numbers rise."""
    lines = text.split("\n")
    with_number = [line for line in lines if line[-1:].isdecimal()]
    if len(with_number) <= max(5, (len(lines) - 1) / 2):  # most pages
        return False
    found = [re.search(r"[^\W\d_][)?]?[ .]+(\d{1,4})$", line) for line in with_number]
    numbers = [int(match[1]) for match in found if match]
    num_rising = sum(0 <= after - before <= 60 for before, after in pairwise(numbers))
    return len(numbers) >= 6 and num_rising >= 0.8 * len(numbers) and len(numbers) > (len(lines) - 1) / 2


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
    stemmer, lock = Stemmer.Stemmer(language, 0), Lock()  # its own cache is slower than stemming

    def stem(word: str) -> str:
        with lock:
            found: str = stemmer.stemWord(word)
        return found

    return stem


def number_term(term: str) -> int:
    """Return the number of a term, a hash: two that have the same by chance are one."""
    return crc32(term.encode("utf-8", "surrogatepass"))


def number_terms(weights: Mapping[str, float]) -> Terms:
    """Number terms; of two with the same number, the larger weight counts."""
    numbered: dict[int, float] = {}
    for term, weight in weights.items():
        number = number_term(term)
        numbered[number] = max(weight, numbered.get(number, 0.0))
    return Terms(tuple(numbered), tuple(numbered.values()))


# -- tokens


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, in order."""
    for found in COMPOUND.finditer(text):
        start = found.start()
        for token in split_compound(found[0]):
            text, first, last, extra, weight = token
            yield Token(text, first + start, last + start, extra, weight) if start else token


def split_compound(compound: str) -> tuple[Token, ...]:
    """Return the tokens of one compound, placed from its beginning."""
    if len(compound) > MAX_LENGTH:  # not worth remembering
        return tuple(_split_words(compound))
    return _split_known(compound)


@lru_cache(200_000)
def _split_known(compound: str) -> tuple[Token, ...]:
    return tuple(_split_words(compound))


def _split_words(compound: str) -> Iterator[Token]:
    end = len(compound)
    if compound[-1] in "+#":  # C++ and C# are not C
        yield Token(fold_case(compound), 0, end)
        yield Token(fold_case(compound.rstrip("+#")), 0, end, extra=True)
        return
    if compound.isascii() and compound.isalnum():
        yield Token(compound[:MAX_LENGTH].lower(), 0, end)
        yield from _split_runs(compound, 0)
        return
    is_elided = "'" in compound or "\u2019" in compound
    num = 0
    for part in PART.finditer(compound):
        if is_elided and len(part[0]) == 1:  # the l of l'eau, the s of what's
            continue
        if IS_UNSPACED.match(part[0]):
            yield from _split_unspaced(part[0], part.start())
        else:
            yield Token(fold_case(part[0]), part.start(), part.end())
            yield from _split_runs(part[0], part.start())
        num += 1
    if num > 1 and not is_elided:
        for whole in _join(compound):
            yield Token(whole, 0, end, extra=True)


def _split_runs(word: str, start: int) -> Iterator[Token]:
    """Yield letters and digits apart, and the words of camelCase; not of a hash, which has too many."""
    if not word.isascii() or word.isdigit():
        return
    if word.isalpha() and (word[1:].islower() or word.isupper() or word[:-1].isupper()):  # Tax, PDF and PDFs
        return
    runs = list(re.finditer(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]", word))
    if not 1 < len(runs) <= 6:
        return
    weight = 0.4  # beside the word as typed; chosen on the development shelf
    for i, run in enumerate(runs):
        if len(run[0]) > 1:
            yield Token(run[0].lower(), start + run.start(), start + run.end(), extra=True, weight=weight)
        if len(runs) > 2 and run[0].isdigit() and i and not runs[i - 1][0].isdigit():  # the q3 of Q3FY22
            pair = runs[i - 1][0] + run[0]
            yield Token(pair.lower(), start + runs[i - 1].start(), start + run.end(), extra=True, weight=weight)


def _split_unspaced(run: str, start: int) -> Iterator[Token]:
    """Yield the characters of a run, and each pair of neighbours."""
    for i, character in enumerate(run):
        yield Token(fold_case(character), start + i, start + i + 1)
        if i + 1 < len(run):
            yield Token(fold_case(run[i : i + 2]), start + i, start + i + 2, extra=True)


def _join(compound: str) -> Iterator[str]:
    """Yield what is joined as one name: INV-20931, 4.2.1, e-mail; not and/or."""
    whole = compound.replace("\u2010", "-").replace("\u2011", "-")
    if not re.search(r"[-._]|\d", whole):
        return
    whole = fold_case(whole)
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", whole):  # 1,577.00
        yield _drop_zeros(whole.replace(",", ""))
        return
    yield whole
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?", whole):  # 1.577,00 in German and other languages
        yield _drop_zeros(whole.replace(".", "").replace(",", "."))
    elif whole.isascii() and re.search(r"\d", whole) and re.search(r"[a-z]", whole):  # 10-K is also 10K
        yield re.sub(r"[-._/:,]", "", whole)


def _drop_zeros(number: str) -> str:
    """Return a number without zeros after its decimal point: 1577.00 is 1577."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def fold_case(text: str) -> str:
    """Return a word in lower case, with compatible characters replaced: full-width letters, ligatures, ß."""
    if text.isascii():
        return text[:MAX_LENGTH].lower()
    return unicodedata.normalize("NFKC", text[:MAX_LENGTH]).casefold()


def remove_accents(word: str) -> str:
    """Return a word without the accents of its letters: café is found as cafe."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word)))
