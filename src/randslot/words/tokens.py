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
# The second class: vowels and accents that `\w` does not know.
LETTER = rf"(?:[^\W_]|[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff{UNSPACED}])"
COMPOUND = re.compile(rf"{LETTER}+(?:[-._/:,'\u2019\u2010\u2011]{LETTER}+)*(?:(?:\+\+|#)(?!{LETTER}))?")
PART = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}]){LETTER})+")
IS_UNSPACED = re.compile(rf"[{UNSPACED}]+")
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


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, in order."""
    for found in COMPOUND.finditer(text):
        start = found.start()
        for token in split_compound(found[0]):
            yield token._replace(start=token.start + start, end=token.end + start)


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
