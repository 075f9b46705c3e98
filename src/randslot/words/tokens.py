"""Split text into tokens: words, numbers, identifiers, and scripts that are written without spaces.

An identifier is found as typed, by its parts and without its separators: INV-20931 is inv, 20931, inv-20931 and
inv20931; FY2018 is fy2018, fy and 2018; 1,577 is also 1577; C++ is not C. Chinese, Japanese, Korean and Thai are split
into single characters and pairs of neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

UNSPACED = (  # scripts whose words are not separated: Thai to Burmese, Khmer, kana, Chinese characters, Hangul
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff"  # vowels and accents that `\w` does not know
LETTER = rf"(?:[^\W_]|[{MARKS}{UNSPACED}])"
COMPOUND = re.compile(rf"{LETTER}+(?:[-._/:,'\u2019\u2010\u2011]{LETTER}+)*(?:(?:\+\+|#)(?!{LETTER}))?")
PART = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}]){LETTER})+")
IS_UNSPACED = re.compile(rf"[{UNSPACED}]+")
APOSTROPHES = re.compile("['\u2019]")
DASHES = re.compile("[\u2010\u2011]")
NAME_MARKS = re.compile(r"[-._]|\d")  # what makes joined parts one name: a hyphen, a dot, a digit
GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # 1,577.00
GROUPED_BY_DOTS = re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?")  # 1.577,00 in German and other languages
RUNS = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]")  # the runs in getUserName and Q3FY22
ACCENTS = re.compile("[\u0300-\u036f]")
LONGEST = 200  # characters of a token that count; a longer run of letters is not a word
PART_WEIGHT = 0.4  # of a part in a query, beside the word as typed; chosen on the development shelf


class Token(NamedTuple):
    """One token in lower case, where it stands in the text, and its weight in a query.

    extra: it stands beside other tokens of the same place, and is no word of a phrase.
    """

    text: str
    start: int
    end: int
    extra: bool = False
    weight: float = 1.0


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, in order."""
    for found in COMPOUND.finditer(text):
        start = found.start()
        for token in split_compound(found[0]):
            yield token._replace(start=token.start + start, end=token.end + start)


def split_compound(compound: str) -> tuple[Token, ...]:
    """Return the tokens of one compound, placed from its beginning."""
    if len(compound) > LONGEST:  # not worth remembering
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
        yield Token(compound[:LONGEST].lower(), 0, end)
        yield from _split_runs(compound, 0)
        return
    elided = APOSTROPHES.search(compound) is not None
    num = 0
    for part in PART.finditer(compound):
        if elided and len(part[0]) == 1:  # the l of l'eau, the s of what's
            continue
        if IS_UNSPACED.match(part[0]):
            yield from _split_unspaced(part[0], part.start())
        else:
            yield Token(fold_case(part[0]), part.start(), part.end())
            yield from _split_runs(part[0], part.start())
        num += 1
    if num > 1:
        for whole in _join(compound):
            yield Token(whole, 0, end, extra=True)


def _split_runs(word: str, start: int) -> Iterator[Token]:
    """Yield letters and digits apart, and the words of camelCase; not of a hash, which has too many."""
    if not word.isascii() or word.isdigit():
        return
    if word.isalpha() and (word[1:].islower() or word.isupper() or word[:-1].isupper()):  # Tax, PDF and PDFs
        return
    runs = list(RUNS.finditer(word))
    if not 1 < len(runs) <= 6:
        return
    for i, run in enumerate(runs):
        if len(run[0]) > 1:
            yield Token(run[0].lower(), start + run.start(), start + run.end(), extra=True, weight=PART_WEIGHT)
        if len(runs) > 2 and run[0].isdigit() and i and not runs[i - 1][0].isdigit():  # the q3 of Q3FY22
            pair = runs[i - 1][0] + run[0]
            yield Token(pair.lower(), start + runs[i - 1].start(), start + run.end(), extra=True, weight=PART_WEIGHT)


def _split_unspaced(run: str, start: int) -> Iterator[Token]:
    """Yield the characters of a run, and each pair of neighbours."""
    for i, character in enumerate(run):
        yield Token(fold_case(character), start + i, start + i + 1)
        if i + 1 < len(run):
            yield Token(fold_case(run[i : i + 2]), start + i, start + i + 2, extra=True)


def _join(compound: str) -> Iterator[str]:
    """Yield what is joined as one name: INV-20931, 4.2.1, e-mail; not l'eau, and not and/or."""
    whole = DASHES.sub("-", compound)
    if APOSTROPHES.search(whole) or not NAME_MARKS.search(whole):
        return
    whole = fold_case(whole)
    if GROUPED.fullmatch(whole):
        yield _plain_number(whole.replace(",", ""))
        return
    yield whole
    if GROUPED_BY_DOTS.fullmatch(whole):
        yield _plain_number(whole.replace(".", "").replace(",", "."))
    elif whole.isascii() and re.search(r"\d", whole) and re.search(r"[a-z]", whole):  # 10-K is also 10K
        yield re.sub(r"[-._/:,]", "", whole)


def _plain_number(digits: str) -> str:
    """Return a number without zeros after its decimal point: 1577.00 is 1577."""
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def fold_case(text: str) -> str:
    """Return a word in lower case, with compatible characters replaced: full-width letters, ligatures, ß."""
    if text.isascii():
        return text[:LONGEST].lower()
    return unicodedata.normalize("NFKC", text[:LONGEST]).casefold()


def remove_accents(word: str) -> str:
    """Return a word without the accents of its letters: café is found as cafe."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", ACCENTS.sub("", unicodedata.normalize("NFD", word)))
