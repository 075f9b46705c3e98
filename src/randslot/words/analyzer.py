"""Turn text into weighted terms: tokenize it and stem words; numbers and identifiers are not stemmed.

An identifier matches as typed, by its parts and without its separators: INV-20931 is inv, 20931, inv-20931 and
inv20931; FY2018 is fy2018, fy and 2018; 1,577 is also 1577; C++ is not C. Chinese, Japanese, Korean and Thai are split
into characters and bigrams.

Pages are weighted by BM25F: a word counts more in a heading or the file name than in the text. Words of the file name
are also separate terms, so that the name decides between reports that all mention 2017 and 2018. The engine applies
IDF.
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

from .language import DEFAULT, IS_UNSPACED, NO_STEMS, UNSPACED, load_stopwords

T = TypeVar("T")
# Combining marks that `\w` does not match.
MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
LETTER = rf"(?:[^\W_]|[{MARKS}])"
IS_LETTER = re.compile(LETTER)
COMPOUND = re.compile(rf"{LETTER}+(?:[-._/:,'\u2019\u2010\u2011]{LETTER}+)*(?:(?:\+\+|#)(?!{LETTER}))?")
PART = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}]){LETTER})+")
PUNCTUATION = "!\"$%&'()*,-./:;<=>?@[\\]^_`{|}~\u2018\u2019\u201c\u201d\u2026"  # around words; not those of C++ and C#
MAX_LENGTH = 200  # characters of a token; longer runs of letters are truncated


class Token(NamedTuple):
    """One token in lower case, its offsets in the text, and its weight in a query.

    extra: it overlaps other tokens and is not part of phrases.
    """

    text: str
    start: int
    end: int
    extra: bool = False
    weight: float = 1.0

    @property
    def is_name(self) -> bool:
        """Whether it is a whole identifier, such as INV-20931."""
        return self.extra and self.weight == 1


@dataclass(frozen=True)
class Terms:
    """Terms as numbers (32-bit hashes), and their weights."""

    numbers: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


# Weight of one occurrence, relative to one in the text. These, and BM25's k1 and b, were tuned on the development shelf
# and manuals: research/log.md, "Fields".
FIELD_WEIGHTS = {"name": 3.0, "folder": 3.0, "heading": 2.0, "section": 1.0, "title": 0.5}
NAME_WEIGHT = 0.5  # of the separate term of a word in the name or folder: BM25F saturates
CONTENTS_FACTOR = 0.7  # of tables of contents, which only name the topics of other pages
MEAN_LENGTH = 400.0  # terms per page, until a library has measured its own mean


@cache
def get_analyzer(language: str | None, *others: str) -> Analyzer:
    """Return the analyzer of a main language (None: the default) that also stems queries in others."""
    return Analyzer(language or DEFAULT, others)


@cache
def get_page_analyzer(language: str, main: str) -> Analyzer:
    """Return the analyzer for pages in a language, in a library with another main language."""
    return get_analyzer(main) if language == main else Analyzer(language, main=get_analyzer(main))


class Analyzer:
    """Turns text into terms: pages in one language, queries in several. Thread-safe.

    The language of a short query is uncertain, so each of its words is stemmed in all languages. Stems in other
    languages are stemmed again in the main one, so that an English word is the same term on English and German pages.
    """

    def __init__(self, language: str, others: Sequence[str] = (), main: Analyzer | None = None) -> None:
        self.language, self.main = language, main
        self.others = [get_page_analyzer(other, language) for other in others]
        self.stopwords = load_stopwords().get(language, frozenset())
        self._stem = _make_stem(language)
        self._hashed_words = WordCache(self._hash_word)
        self._hashed_fields = lru_cache(1000)(self._hash_field)  # pages of a file share most fields
        self._field_words = WordCache(self._read_word)
        self._find_terms = lru_cache(100_000)(self._stem_in_all)
        self.read = WordCache(self._read_tokens)

    def find_terms(self, token: Token) -> tuple[str, ...]:
        """Return the distinct terms of a query token: in the main language, then in others."""
        return self._find_terms(token.text, token.is_name)

    def _stem_in_all(self, word: str, is_name: bool) -> tuple[str, ...]:
        return tuple(dict.fromkeys([one.stem(word, is_name) for one in (self, *self.others)]))

    def _read_tokens(self, word: str) -> list[tuple[Token, tuple[str, ...]]]:
        """Return the tokens of a whitespace-separated word of a page, each with its terms."""
        core = word.strip(PUNCTUATION)
        if is_one_token(core):
            start = word.index(core)
            return [(Token(core.lower(), start, start + len(core)), self._stem_in_all(core.lower(), False))]
        return [(token, self.find_terms(token)) for token in tokenize(word)]

    def find_stopwords(self, query: str) -> frozenset[str]:
        """Return the stopwords of the language with the most stopwords in a query."""
        words = {token.text for token in tokenize(query)} if self.others else set()
        best, max_num = self.stopwords, len(self.stopwords & words)
        for other in self.others:
            num = len(other.stopwords & words)
            if num > max_num:
                best, max_num = other.stopwords, num
        return best

    def find_term(self, token: Token) -> str:
        """Return the term of a page token."""
        return self.stem(token.text, token.is_name)

    def stem(self, word: str, is_name: bool = False) -> str:
        """Return the term of a word: stemmed, unless it is an identifier or has digits or signs."""
        if self.language == DEFAULT:  # the English stemmer expects no accents
            word = remove_accents(word)
        if is_name or not word.isalpha():
            return remove_accents(word)
        term = remove_accents(self._stem(word))
        return self.main.stem(term) if self.main else term

    def analyse_page(
        self, text: str, fields: Mapping[str, str] | None = None, mean_length: float = MEAN_LENGTH
    ) -> tuple[Terms, str]:
        """Return the weighted terms of a page, and its words in order, for phrases.

        fields: texts by the keys of `FIELD_WEIGHTS`. mean_length: mean terms per page of the library.
        """
        raw = text.split()
        scores: dict[int, float] = {}
        phrase_words: dict[str, str] = {}
        for word, num in Counter(raw).items():
            terms, phrase_words[word] = self._hashed_words[word]
            for term in terms:
                scores[term] = scores.get(term, 0) + num
        words = " ".join(filter(None, map(phrase_words.__getitem__, raw)))
        k1, b = 1.6, 0.4  # saturation, length normalisation
        norm = k1 * (1 - b + b * sum(scores.values()) / mean_length)
        all_name_terms: set[int] = set()
        for field, content in (fields or {}).items():
            field_terms, name_terms = self._hashed_fields(content)
            for term in field_terms:
                scores[term] = scores.get(term, 0.0) + FIELD_WEIGHTS[field]
            if field in ("name", "folder"):
                all_name_terms |= name_terms
        factor = (k1 + 1) * (CONTENTS_FACTOR if is_contents(text) else 1)
        weights = {score: score * factor / (score + norm) for score in set(scores.values())}
        weighted = dict(zip(scores, map(weights.__getitem__, scores.values()), strict=True))
        weighted |= dict.fromkeys(all_name_terms, NAME_WEIGHT)
        return Terms(tuple(weighted), tuple(weighted.values())), words

    def count_terms(self, text: str) -> int:
        """Count the terms of a text."""
        return sum(len(self._hashed_words[word][0]) for word in text.split())

    def _hash_word(self, word: str) -> tuple[tuple[int, ...], str]:
        """Return the hashed terms of a whitespace-separated word, and its words for phrases."""
        core = word.strip(PUNCTUATION)
        if core != word:
            return self._hashed_words[core]
        compounds = [] if core.isalnum() else COMPOUND.findall(core)
        if compounds and compounds != [core]:
            parts = list(map(self._hashed_words.__getitem__, compounds))
            return tuple(chain.from_iterable(part[0] for part in parts)), " ".join(part[1] for part in parts if part[1])
        terms, words = self._read_word(core)
        return tuple(map(hash_term, terms)), words

    def _hash_field(self, content: str) -> tuple[frozenset[int], frozenset[int]]:
        """Return the hashed terms of a field, and its hashed name terms."""
        terms: set[str] = set()
        for word in content.split():
            terms.update(self._field_words[word.strip(PUNCTUATION)][0])
        return frozenset(map(hash_term, terms)), frozenset(map(hash_term, map(make_name_term, terms)))

    def _read_word(self, core: str) -> tuple[Sequence[str], str]:
        """Return the terms of a word without surrounding punctuation, and its words for phrases."""
        if len(core) <= MAX_LENGTH and core.isascii():  # most words are one token
            if core.isdigit():
                return (core,), core
            if is_one_token(core):
                core = core.lower()
                term = self._stem(core)
                return (self.main.stem(term) if self.main else term,), core
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


class WordCache(dict[str, T]):
    """Caches the results of a function by word: most words of a page are cached already."""

    def __init__(self, function: Callable[[str], T]) -> None:
        self.function = function

    def __missing__(self, word: str) -> T:
        result = self.function(word)
        if len(self) >= 200_000:
            self.clear()
        if len(word) <= MAX_LENGTH:  # longer ones are not worth caching
            self[word] = result
        return result


def is_one_token(word: str) -> bool:
    """Whether a word is a single token: ASCII letters without camelCase, as most words."""
    return word.isascii() and word.isalpha() and len(word) <= MAX_LENGTH and (word[1:].islower() or word.isupper())


def is_contents(text: str) -> bool:
    """Whether a page is a table of contents: most lines are words and a page number, and the numbers rise."""
    lines = text.split("\n")
    with_number = [line for line in lines if line[-1:].isdecimal()]
    if len(with_number) <= max(5, (len(lines) - 1) / 2):  # most pages
        return False
    found = [re.search(r"[^\W\d_][)?]?[ .]+(\d{1,4})$", line) for line in with_number]
    numbers = [int(match[1]) for match in found if match]
    num_rising = sum(0 <= after - before <= 60 for before, after in pairwise(numbers))
    return len(numbers) >= 6 and num_rising >= 0.8 * len(numbers) and len(numbers) > (len(lines) - 1) / 2


def make_name_term(term: str) -> str:
    """Return the separate term of a word in a file or folder name; words have no spaces, so it is unique."""
    return f"name {term}"


def list_words(text: str) -> Iterator[str]:
    """Yield the words of a text in order, in lower case and without accents, to match phrases."""
    for token in tokenize(text):
        if not token.extra:
            yield remove_accents(token.text)


def _make_stem(language: str) -> Callable[[str], str]:
    """Return a thread-safe stemmer."""
    if language == NO_STEMS:
        return str
    stemmer, lock = Stemmer.Stemmer(language, 0), Lock()  # its own cache is slower than stemming

    def stem(word: str) -> str:
        with lock:
            found: str = stemmer.stemWord(word)
        return found

    return stem


def hash_term(term: str) -> int:
    """Hash a term; terms that collide are treated as one."""
    return crc32(term.encode("utf-8", "surrogatepass"))


def hash_terms(weights: Mapping[str, float]) -> Terms:
    """Hash weighted terms; if two collide, the larger weight counts."""
    hashed: dict[int, float] = {}
    for term, weight in weights.items():
        number = hash_term(term)
        hashed[number] = max(weight, hashed.get(number, 0.0))
    return Terms(tuple(hashed), tuple(hashed.values()))


# -- tokens


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, in order."""
    for found in COMPOUND.finditer(text):
        start = found.start()
        for token in split_compound(found[0]):
            text, first, last, extra, weight = token
            yield Token(text, first + start, last + start, extra, weight) if start else token


def split_compound(compound: str) -> tuple[Token, ...]:
    """Split a compound into tokens, with offsets from its start."""
    if len(compound) > MAX_LENGTH:  # not worth caching
        return tuple(_yield_tokens(compound))
    return _split_cached(compound)


@lru_cache(200_000)
def _split_cached(compound: str) -> tuple[Token, ...]:
    return tuple(_yield_tokens(compound))


def _yield_tokens(compound: str) -> Iterator[Token]:
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
        for whole in _join_parts(compound):
            yield Token(whole, 0, end, extra=True)


def _split_runs(word: str, start: int) -> Iterator[Token]:
    """Yield runs of letters or digits, and the words of camelCase; none of a hash, which has too many."""
    if not word.isascii() or word.isdigit():
        return
    if word.isalpha() and (word[1:].islower() or word.isupper() or word[:-1].isupper()):  # Tax, PDF and PDFs
        return
    runs = list(re.finditer(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]", word))
    if not 1 < len(runs) <= 6:
        return
    weight = 0.4  # relative to the whole word; tuned on the development shelf
    for i, run in enumerate(runs):
        if len(run[0]) > 1:
            yield Token(run[0].lower(), start + run.start(), start + run.end(), extra=True, weight=weight)
        if len(runs) > 2 and run[0].isdigit() and i and not runs[i - 1][0].isdigit():  # the q3 of Q3FY22
            pair = runs[i - 1][0] + run[0]
            yield Token(pair.lower(), start + runs[i - 1].start(), start + run.end(), extra=True, weight=weight)


def _split_unspaced(run: str, start: int) -> Iterator[Token]:
    """Yield the characters of a run, and its bigrams."""
    for i, character in enumerate(run):
        yield Token(fold_case(character), start + i, start + i + 1)
        if i + 1 < len(run):
            yield Token(fold_case(run[i : i + 2]), start + i, start + i + 2, extra=True)


def _join_parts(compound: str) -> Iterator[str]:
    """Yield the joined forms of an identifier or a number: INV-20931, 4.2.1, e-mail; not and/or."""
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
    """Remove trailing zeros after the decimal point: 1577.00 is 1577."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def fold_case(text: str) -> str:
    """Normalise a word: lower case, without compatibility characters such as full-width letters, ligatures and ß."""
    if text.isascii():
        return text[:MAX_LENGTH].lower()
    return unicodedata.normalize("NFKC", text[:MAX_LENGTH]).casefold()


def remove_accents(word: str) -> str:
    """Remove the accents of a word: café is found as cafe."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word)))
