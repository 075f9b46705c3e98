"""From the characters that a PDF has for a word to the text of it, and whether the words of a page are text at all."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..errors import RandSlotError

PARTS = 100_000  # of a page, to which boxes are rounded: a hundredth of a point on ordinary paper


@dataclass(frozen=True, slots=True)
class Word:
    """A word and its box, in fractions (0 to 1) of the page as it is seen upright, from its upper left corner.

    A word that was hyphenated at the end of a line is one word, and its box holds both parts. Sides are whole numbers
    of 1 / `PARTS`.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class PageText:
    """What a file says is written on a page; whether that is true is for others to judge.

    text: a line break after each line, a single space between words; `text.split()` gives the texts of `words`.
    has_layer: whether the file says all that is written on this page; False for images and scans, and where fonts do
    not say what their glyphs mean. If it does and there is no text, the page is blank.
    truncated: whether the page has more text than was read.
    problem: why the text could not be read, in one line, if that failed for this page alone.
    fields: what else tells what the page is about: "heading" (its large lines), "section" (the titles that the outline
    of the file has for it), "title" (of the file).
    """

    text: str = ""
    words: tuple[Word, ...] = ()
    has_layer: bool = True
    truncated: bool = False
    problem: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


NO_TEXT, BLANK = PageText(has_layer=False), PageText()


class NoTextError(RandSlotError):
    """A page has no text, and a model that reads text is to read it."""


HYPHEN = "\x02"  # pdfium's mark for a hyphen at the end of a line; nothing stands for the line's end
# Soft hyphens before a line's end always break a word.
SOFT_BREAK = re.compile(r"[\xad\ufffe][\r\n]+")
LINE_BREAK = re.compile(rf"{HYPHEN}|{SOFT_BREAK.pattern}")
KNOWN = re.compile(r"\w+(?:-\w+)*")

# What takes no room: soft hyphens, zero-width characters, marks of direction, variation selectors, non-characters.
INVISIBLE = re.compile(
    "[\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufffe\uffff\U000e0100-\U000e01ef]"
)
# Other forms of ordinary characters: Kangxi radicals, ligatures, Hebrew and Arabic letters by their place in a word,
# ideographs that are in Unicode twice, wide Latin and narrow Japanese letters, letters of formulae.
PRESENTATION = re.compile(
    "[\u2f00-\u2fd5\uf900-\ufaff\ufb00-\ufb4f\ufb50-\ufdff\ufe70-\ufefc\uff01-\uff9f\U0001d400-\U0001d7ff]"
)
OLD_STYLE = re.compile("[\uf730-\uf739\uf761-\uf77a]")  # where Adobe's fonts have old style figures and small capitals
# Old fonts of TeX have no letters with accents, so the accent is a character of its own before the letter.
ACCENTS = {
    "\xb4": "\u0301",
    "\xa8": "\u0308",
    "\u02c6": "\u0302",
    "\u02dc": "\u0303",
    "\xaf": "\u0304",
    "\u02d8": "\u0306",
    "\u02d9": "\u0307",
    "\u02da": "\u030a",
    "\u02dd": "\u030b",
    "\u02c7": "\u030c",
    "\xb8": "\u0327",
    "`": "\u0300",
}
# A grave accent is also a quote, but hardly ever a single one between two letters.
ACCENTED = re.compile(f"([{''.join(ACCENTS).replace('`', '')}])([A-Za-z\u0131\u0237])")
GRAVE = re.compile(r"([^`]*[^\W\d_])`([aeiouAEIOU\u0131][^`]*)")
DOTLESS = {"\u0131": "i", "\u0237": "j"}
MOST_NORMALISED = 1_000  # characters of a word: Unicode's composition takes quadratic time on a hostile one

CID = re.compile(r"\(cid:\d+\)")  # some programs write it for a glyph without a meaning
# Letters with accents do not follow each other like this in any language, but they do where the letters of another
# script are taken for Latin ones.
FOREIGN = re.compile(r"[\xa1-\xbf\xc0-\xd6\xd8-\xf6\xf8-\u024f]{5}")
SYMBOLS = re.compile(r"[!-/:-@\[-`{-~]{4,}")
FOUND = re.compile(r"[^\W\d_]{3}|\d\d|[\u0900-\u11ff\u2e80-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")

# Common words of three letters or more: numbers and abbreviations easily become shorter ones when they are moved.
ENGLISH = ("the", "and", "for", "that", "with", "are", "this", "not", "can", "from", "you", "will", "which")
ROMANCE = ("les", "des", "une", "que", "los", "las", "che", "pour", "dans", "est", "con", "por", "para", "del")
GERMAN = ("der", "die", "und", "das", "den", "von", "mit", "ist", "nicht", "ein", "eine", "auf", "zum")
COMMON_WORDS = frozenset((*ENGLISH, *ROMANCE, *GERMAN))


def is_plain(word: str) -> bool:
    """Whether a word needs no cleaning."""
    return word.isascii() and word.isprintable()


def clean_word(word: str, known: AbstractSet[str] = frozenset()) -> str:
    """Return a word as it would be typed: joined where a line broke it, without what cannot be read or seen.

    known: words that the page has elsewhere, as `find_known` gives them.
    """
    word = join_accents(decode(join_parts(word, known)))
    if is_plain(word):
        return word
    word = OLD_STYLE.sub(lambda found: chr(ord(found[0]) - 0xF700), INVISIBLE.sub("", word))
    # Arabic vowel marks and a few phrases have spaces in their ordinary form, but a word has none.
    word = PRESENTATION.sub(lambda found: "".join(unicodedata.normalize("NFKC", found[0]).split()), word)
    if len(word) <= MOST_NORMALISED:
        word = unicodedata.normalize("NFC", word)
    return "".join(character for character in word if not is_unreadable(character))


def join_accents(word: str) -> str:
    """Join accents with the letters after them: "Lib\xb4eration", as old fonts of TeX have it, is "Lib\xe9ration"."""
    if grave := GRAVE.fullmatch(word):
        before, after = grave.groups()
        word = before + _join_accent("`", after[0]) + after[1:]
    if word.isascii():
        return word
    return ACCENTED.sub(lambda found: _join_accent(found[1], found[2]), word)


def _join_accent(accent: str, letter: str) -> str:
    joined = unicodedata.normalize("NFC", DOTLESS.get(letter, letter) + ACCENTS[accent])
    return joined if len(joined) == 1 else accent + letter


def decode(word: str) -> str:
    """Return a word with every two surrogates as the character they mean; a surrogate alone means nothing."""
    if word.isascii():
        return word
    return word.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def find_known(characters: str) -> set[str]:
    """Return the words that stand inside of a line, in lower case and without the punctuation around them."""
    return set(KNOWN.findall(characters.lower()))


def join_parts(word: str, known: AbstractSet[str]) -> str:
    """Join the parts of a word that was broken at the end of a line.

    The hyphen stays or goes as in the same word elsewhere on the page. If there is none, it goes between letters if the
    second part begins in lower case, and stays in "COVID-19" and "Linux-System".
    """
    if HYPHEN not in word:
        return SOFT_BREAK.sub("", word)
    joined, *parts = SOFT_BREAK.sub("", word).split(HYPHEN)
    for part in parts:
        joined = joined + part if _is_broken(joined, part, known) else f"{joined}-{part}"
    return joined


def _is_broken(first: str, second: str, known: AbstractSet[str]) -> bool:
    """Whether two parts are one word without a hyphen."""
    if not first[-1:].isalpha() or not second[:1].isalpha():
        return False
    before, after = KNOWN.findall(first.lower())[-1], KNOWN.findall(second.lower())[0]  # without paths and punctuation
    if f"{before}-{after}" in known:
        return False
    return second[:1].islower() or before + after in known


def is_unreadable(character: str) -> bool:
    """Whether a character means nothing to a reader: controls, unassigned, private use, half of a character."""
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")


def is_legible(words: Sequence[str]) -> bool:
    """Whether the words of a page, as a PDF has them, are text rather than numbers of glyphs or other nonsense.

    They are not if more words are lost than found, or if they become text when their letters are moved.
    """
    lost = sum(_is_lost(word) for word in words)
    if lost >= 3:
        # A word is found by three letters in a row, a number, or one sign of a script that has no spaces.
        found = sum(FOUND.search(word) is not None and not _is_lost(word) for word in words)
        if lost > found and (lost >= 10 or not found):
            return False
    return not _is_shifted(words)


def _is_lost(word: str) -> bool:
    """Whether what looks like a word cannot be read: a few glyphs, as in music and formulae, are not words."""
    if is_plain(word):
        return CID.search(word) is not None or (SYMBOLS.fullmatch(word) is not None and len(set(word)) >= 3)
    unreadable = [character for character in word if is_unreadable(character)]
    if len(set(unreadable)) >= 3 and 2 * len(unreadable) >= len(word):
        return True
    if FOREIGN.search(word):
        return True
    controls = sum(unicodedata.category(character) == "Cc" for character in unreadable)
    return len(word) >= 4 and 5 * controls >= len(word) > len(unreadable)


def _is_shifted(words: Sequence[str]) -> bool:
    """Whether moving every letter by the same number gives several times as many common words.

    Fonts without a map give the numbers of their glyphs: the letters of the alphabet, moved by as much.
    """
    text = " ".join(words)
    num_common = len(COMMON_WORDS.intersection(text.lower().split()))
    if 3 * num_common >= len(COMMON_WORDS):
        return False
    for shift in (29, 31, 28, 30):
        moved = text.translate({code: code + shift for code in range(1, 127 - shift) if code != ord(" ")})
        # Three different ones: one may be an abbreviation that a table repeats.
        if len(COMMON_WORDS.intersection(moved.split())) >= max(3, 3 * num_common + 1):
            return True
    return False
