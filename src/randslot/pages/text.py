"""From the characters that a PDF has for a word to the text of it, and whether the words of a page are text at all."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING

from ..errors import RandSlotError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in fractions of the page."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word and its box, in fractions (0 to 1) of the page as it is seen upright, from its upper left corner.

    A word that was hyphenated at the end of a line is one word, and its box holds both parts.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class PageText:
    """The text layer of a page, unverified.

    text: a line break after each line, a single space between words; `text.split()` gives the texts of `words`.
    boxes: of the words, as `pack_boxes` makes them. has_layer: whether the text layer is complete; False for
    images, scans, and fonts without a Unicode mapping. A page with a layer and no text is blank. truncated: whether
    the page has more text than was read. problem: why the text could not be read, in one line. fields: "heading" (its
    large lines), "section" (its titles in the outline), "title" (of the file).
    """

    text: str = ""
    boxes: bytes = b""
    has_layer: bool = True
    truncated: bool = False
    problem: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words with their boxes."""
        return tuple(Word(word, *box) for word, box in zip(self.text.split(), self.find_boxes(), strict=False))

    def find_boxes(self, words: Sequence[int] | None = None) -> list[list[float]]:
        """Return the boxes of some words, which are given by their places, or of all."""
        import numpy as np  # workers that read text do not need it

        boxes = np.frombuffer(self.boxes, "<u2").reshape(-1, 4)
        found: list[list[float]] = ((boxes if words is None else boxes[words]) / 65_535).round(5).tolist()
        return found


def pack_boxes(boxes: ArrayLike) -> bytes:
    """Pack boxes, each left, top, right, bottom in fractions of the page, into eight bytes each."""
    import numpy as np

    packed: bytes = np.rint(np.clip(boxes, 0.0, 1.0) * 65_535).astype("<u2").tobytes()
    return packed


NO_TEXT, BLANK = PageText(has_layer=False), PageText()


class NoTextError(RandSlotError):
    """A page has no text, and a model that reads text is to read it."""


HYPHEN = "\x02"  # pdfium's mark for a hyphen at the end of a line; there is no mark for the end of a line
SOFT_BREAK = r"[\xad\ufffe][\r\n]+"  # soft hyphens before a line's end always break a word
# Old fonts of TeX have no letters with accents, so the accent is a character of its own before the letter.
ACCENTS = dict(
    zip(
        "\xb4\xa8\u02c6\u02dc\xaf\u02d8\u02d9\u02da\u02dd\u02c7\xb8`",
        "\u0301\u0308\u0302\u0303\u0304\u0306\u0307\u030a\u030b\u030c\u0327\u0300",
        strict=True,
    )
)
# Common words of three letters or more: numbers and abbreviations easily become shorter ones when they are moved.
COMMON_WORDS = {
    *("the", "and", "for", "that", "with", "are", "this", "not", "can", "from", "you", "will", "which"),
    *("les", "des", "une", "que", "los", "las", "che", "pour", "dans", "est", "con", "por", "para", "del"),
    *("der", "die", "und", "das", "den", "von", "mit", "ist", "nicht", "ein", "eine", "auf", "zum"),
}
SHIFTS = (29, 31, 28, 30)  # by which fonts without a map move letters


# Letters, digits and signs that stay as they are: no control or soft hyphen, no accent beside its letter.
PLAIN = re.compile("[ -_a-~\xa1-\xa7\xa9-\xac\xae\xb0-\xb3\xb5-\xb7\xb9-\u017f\u2010-\u2027\u2030-\u205e]*")


def is_plain(text: str) -> bool:
    """Whether the words of a text need no cleaning."""
    return PLAIN.fullmatch(text) is not None


def clean_word(word: str, known: Collection[str] = ()) -> str:
    """Return a word as it would be typed: joined where a line broke it, without what cannot be read or seen.

    known: words that the page has elsewhere, as `find_known` gives them.
    """
    return clean_characters(join_parts(word, known))


@lru_cache(100_000)
def clean_characters(word: str) -> str:
    """Return a word that no line breaks as it would be typed."""
    word = join_accents(decode(word))
    if word.isascii() and word.isprintable():
        return word
    # What takes no room: soft hyphens, zero-width characters, marks of direction, variation selectors, non-characters.
    word = re.sub(
        "[\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufffe\uffff"
        "\U000e0100-\U000e01ef]",
        "",
        word,
    )
    # Where Adobe's fonts have old style figures and small capitals.
    word = re.sub("[\uf730-\uf739\uf761-\uf77a]", lambda found: chr(ord(found[0]) - 0xF700), word)
    # Other forms of ordinary characters: Kangxi radicals, ligatures, Hebrew and Arabic letters by their place in a
    # word, ideographs that are in Unicode twice, wide Latin and narrow Japanese letters, letters of formulae. Arabic
    # vowel marks and a few phrases have spaces in their ordinary form, but a word has none.
    word = re.sub(
        "[\u2f00-\u2fd5\uf900-\ufaff\ufb00-\ufb4f\ufb50-\ufdff\ufe70-\ufefc\uff01-\uff9f\U0001d400-\U0001d7ff]",
        lambda found: "".join(unicodedata.normalize("NFKC", found[0]).split()),
        word,
    )
    if len(word) <= 1_000:  # Unicode's composition takes quadratic time on a hostile word
        word = unicodedata.normalize("NFC", word)
    return "".join(character for character in word if not is_unreadable(character))


def join_accents(word: str) -> str:
    """Join accents with the letters after them: "Lib\xb4eration", as old fonts of TeX have it, is "Lib\xe9ration"."""
    # A grave accent is also a quote, but hardly ever a single one between two letters.
    if found := re.fullmatch(r"([^`]*[^\W\d_])`([aeiouAEIOU\u0131])([^`]*)", word):
        word = found[1] + _join_accent("`", found[2]) + found[3]
    if word.isascii():
        return word
    others = "".join(ACCENTS).replace("`", "")
    return re.sub(f"([{others}])([A-Za-z\u0131\u0237])", lambda found: _join_accent(found[1], found[2]), word)


def _join_accent(accent: str, letter: str) -> str:
    dotted = {"\u0131": "i", "\u0237": "j"}.get(letter, letter)
    joined = unicodedata.normalize("NFC", dotted + ACCENTS[accent])
    return joined if len(joined) == 1 else accent + letter


def decode(word: str) -> str:
    """Join surrogate pairs in a word; drop single surrogates."""
    if word.isascii():
        return word
    return word.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def find_known(characters: str) -> list[str]:
    """Return the words that stand inside of a line, in lower case and without the punctuation around them."""
    return re.findall(r"\w+(?:-\w+)*", characters.lower())


def join_parts(word: str, known: Collection[str]) -> str:
    """Join the parts of a word that was broken at the end of a line.

    The hyphen stays or goes as in the same word elsewhere on the page. If there is none, it goes between letters if the
    second part begins in lower case, and stays in "COVID-19" and "Linux-System".
    """
    joined, *parts = re.sub(SOFT_BREAK, "", word).split(HYPHEN)
    for part in parts:
        is_one_word = False
        if joined[-1:].isalpha() and part[:1].isalpha():
            before, after = find_known(joined)[-1], find_known(part)[0]  # without paths and punctuation
            is_one_word = f"{before}-{after}" not in known and (part[0].islower() or before + after in known)
        joined += part if is_one_word else f"-{part}"
    return joined


def is_unreadable(character: str) -> bool:
    """Whether a character means nothing to a reader: controls, unassigned, private use, half of a character."""
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")


def is_legible(words: Sequence[str]) -> bool:
    """Whether the words of a page, as a PDF has them, are text rather than numbers of glyphs or other nonsense.

    They are not if more words are lost than found, or if they become text when their letters are moved.
    """
    distinct = set(words)
    suspicious = _find_suspicious(distinct - _harmless)
    if len(_harmless) > 200_000:
        _harmless.clear()
    _harmless.update(distinct - suspicious)
    if not suspicious:  # most pages
        return True
    if lost_words := set(filter(_is_lost, suspicious)):
        # A word is found by three letters in a row, a number, or one sign of a script that has no spaces.
        sign = re.compile(r"[^\W\d_]{3}|\d\d|[\u0900-\u11ff\u2e80-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
        num_lost = sum(word in lost_words for word in words)
        num_found = sum(word not in lost_words and sign.search(word) is not None for word in words)
        if num_lost >= 3 and num_lost > num_found and (num_lost >= 10 or not num_found):
            return False
    return not _is_shifted(distinct)


_harmless: set[str] = set()  # words of earlier pages that are neither lost nor shifted
CONTROLS = re.compile("[\x01-\x04]")  # which become spaces if letters are moved
ACCENTED = "[\xa1-\xbf\xc0-\xd6\xd8-\xf6\xf8-\u024f]{5}"  # no language has so many letters with accents in a row
MAY_BE_LOST = re.compile(rf"\(cid:|(?<!\S)[!-/:-@\[-`{{-~]{{4,}}(?!\S)|{ACCENTED}")


def _find_suspicious(words: AbstractSet[str]) -> set[str]:
    """Return the words that may be lost or shifted."""
    found = set(words & _list_moved())
    text = " ".join(words)
    if not is_plain(text) or MAY_BE_LOST.search(text):
        found.update(word for word in words if CONTROLS.search(word) or _is_lost(word))
    return found


def _is_lost(word: str) -> bool:
    """Whether what looks like a word cannot be read: a few glyphs, as in music and formulae, are not words."""
    if word.isalnum() and word.isascii():
        return False
    if word.isascii() and word.isprintable():
        if "(cid:" in word:  # some programs write (cid:12) for a glyph without a meaning
            return re.search(r"\(cid:\d+\)", word) is not None
        return re.fullmatch(r"[!-/:-@\[-`{-~]{4,}", word) is not None and len(set(word)) >= 3
    unreadable = [character for character in word if is_unreadable(character)]
    if len(set(unreadable)) >= 3 and 2 * len(unreadable) >= len(word):
        return True
    if re.search(ACCENTED, word):  # the letters of another script, taken for Latin ones
        return True
    controls = sum(unicodedata.category(character) == "Cc" for character in unreadable)
    return len(word) >= 4 and 5 * controls >= len(word) > len(unreadable)


def _is_shifted(words: AbstractSet[str]) -> bool:
    """Whether moving every letter by the same number gives several times as many common words.

    Fonts without a map give the numbers of their glyphs: the letters of the alphabet, moved by as much.
    """
    text = " ".join(words)
    has_controls = CONTROLS.search(text) is not None
    num_common = len(COMMON_WORDS.intersection(text.lower().split()))
    for shift in SHIFTS:
        if has_controls:
            moved = text.translate({code: code + shift for code in range(1, 127 - shift) if code != ord(" ")})
            num_moved = len(COMMON_WORDS.intersection(moved.split()))
        else:
            common = _find_moved(shift)
            num_moved = len({common[word] for word in common.keys() & words})
        # Three different ones: one may be an abbreviation that a table repeats.
        if num_moved >= max(3, 3 * num_common + 1):
            return True
    return False


@cache
def _list_moved() -> frozenset[str]:
    """Return what becomes a common word by any shift, and is no common word itself."""
    return frozenset().union(*map(_find_moved, SHIFTS)) - COMMON_WORDS


@cache
def _find_moved(shift: int) -> dict[str, str]:
    """Return what becomes a common word when letters below 127 - `shift` are moved, with that word."""
    found: dict[str, str] = {}
    for word in COMMON_WORDS:
        choices = []
        for letter in word:
            moved = chr(ord(letter) - shift)
            choices.append(moved + letter if ord(letter) >= 127 - shift else moved)
        for letters in product(*choices):
            found["".join(letters)] = word
    return found
