"""Text as tokens, with their places in it: words, numbers, identifiers, and scripts that are written without spaces.

"INV-20931" is the tokens inv and 20931, and also inv-20931 as a whole, so an identifier is found as typed and by its
parts; C++ is not C. Chinese, Japanese, Korean and Thai are cut into single characters and pairs of neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

UNSPACED = (  # scripts whose words are not separated: Thai to Burmese, Khmer, kana, Chinese characters, Hangul
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff"  # vowels and accents that `\w` does not know
LETTER = rf"(?:[^\W_]|[{MARKS}{UNSPACED}])"
COMPOUND = re.compile(rf"{LETTER}+(?:[-._/:,'\u2019\u2010\u2011]{LETTER}+)*")
PART = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}]){LETTER})+")
IS_UNSPACED = re.compile(rf"[{UNSPACED}]+")
APOSTROPHES = re.compile("['\u2019]")
DASHES = re.compile("[\u2010\u2011]")
NAME_MARKS = re.compile(r"[-._]|\d")  # what makes parts that are joined one name: a hyphen, a dot, a digit
SIGN = re.compile(rf"(?:\+\+|#)(?!{LETTER})")
GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
ACCENTS = re.compile("[\u0300-\u036f]")
LONGEST = 200  # characters of a token that count; a longer run of letters is not a word


class Token(NamedTuple):
    """One token, in lower case, and where it stands in the text.

    extra: it stands for several tokens or for a pair of characters, beside them; a phrase does not count it.
    """

    text: str
    start: int
    end: int
    extra: bool = False


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, in order."""
    for found in COMPOUND.finditer(text):
        start, word = found.start(), found[0]
        if sign := SIGN.match(text, found.end()):  # C++ and C# are not C
            yield Token(fold_case(word + sign[0]), start, sign.end())
            yield Token(fold_case(word), start, found.end(), extra=True)
            continue
        if word.isascii() and word.isalnum():  # most words, the quick way
            yield Token(word[:LONGEST].lower(), start, found.end())
            continue
        elided = APOSTROPHES.search(word) is not None
        num = 0
        for part in PART.finditer(word):
            if elided and len(part[0]) == 1:  # the l of l'eau, the s of what's
                continue
            place = start + part.start()
            if IS_UNSPACED.match(part[0]):
                yield from _split_unspaced(part[0], place)
            else:
                yield Token(fold_case(part[0]), place, place + len(part[0]))
            num += 1
        if num > 1:
            yield from _join(word, start)


def _split_unspaced(run: str, start: int) -> Iterator[Token]:
    """Yield the characters of a run, and each pair of neighbours."""
    for i, character in enumerate(run):
        yield Token(fold_case(character), start + i, start + i + 1)
        if i + 1 < len(run):
            yield Token(fold_case(run[i : i + 2]), start + i, start + i + 2, extra=True)


def _join(compound: str, start: int) -> Iterator[Token]:
    """Yield what is joined as one name: INV-20931, 4.2.1, e-mail; not l'eau, and not and/or."""
    whole = DASHES.sub("-", compound)
    if APOSTROPHES.search(whole) or not NAME_MARKS.search(whole):
        return
    whole = fold_case(whole)
    if GROUPED.fullmatch(whole):
        whole = whole.replace(",", "")
    yield Token(whole, start, start + len(compound), extra=True)


def fold_case(text: str) -> str:
    """Return a word in lower case, with compatible characters replaced: full-width letters, ligatures, ß."""
    if text.isascii():
        return text[:LONGEST].lower()
    return unicodedata.normalize("NFKC", text[:LONGEST]).casefold()


def remove_accents(word: str) -> str:
    """Return a word without the accents of its letters: café is found as cafe, whoever typed or scanned it so."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", ACCENTS.sub("", unicodedata.normalize("NFD", word)))
