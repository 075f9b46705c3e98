"""Page texts, cleaning of words from PDFs, and detection of garbled text layers."""

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
    """A word and its bounding box, in fractions of the upright page from its upper left corner.

    A word that is hyphenated across lines is one word, and its box contains both parts.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class PageText:
    """The text of a page.

    text: lines of words separated by single spaces; `text.split()` gives the texts of `words`. boxes: of the words, by
    `pack_boxes`. has_layer: whether the text layer is usable; False for images, scans, and fonts without a Unicode
    mapping. A page with a layer and no text is blank. truncated: whether only a part of the text was read. problem: why
    the text could not be read, in one line. fields: "heading" (its large lines), "section" (its titles in the outline),
    "title" (of the file).
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
        """Return the boxes of words by index, or of all."""
        import numpy as np  # not needed to read text

        boxes = np.frombuffer(self.boxes, "<u2").reshape(-1, 4)
        found: list[list[float]] = ((boxes if words is None else boxes[words]) / 65_535).round(5).tolist()
        return found


def pack_boxes(boxes: ArrayLike) -> bytes:
    """Pack boxes (left, top, right, bottom in fractions of the page) into eight bytes each."""
    import numpy as np

    packed: bytes = np.rint(np.clip(boxes, 0.0, 1.0) * 65_535).astype("<u2").tobytes()
    return packed


NO_TEXT, BLANK = PageText(has_layer=False), PageText()


class NoTextError(RandSlotError):
    """A page for a text model has no text."""


HYPHEN = "\x02"  # in pdfium's text: a hyphen at the end of a line, without a line break
SOFT_BREAK = r"[\xad\ufffe][\r\n]+"  # a soft hyphen at the end of a line always hyphenates a word
# Old TeX fonts have no accented letters: the accent is a separate character before the letter.
ACCENTS = dict(
    zip(
        "\xb4\xa8\u02c6\u02dc\xaf\u02d8\u02d9\u02da\u02dd\u02c7\xb8`",
        "\u0301\u0308\u0302\u0303\u0304\u0306\u0307\u030a\u030b\u030c\u0327\u0300",
        strict=True,
    )
)
# Common words of at least three letters: shifted numbers and abbreviations often become shorter ones.
COMMON_WORDS = {
    *("the", "and", "for", "that", "with", "are", "this", "not", "can", "from", "you", "will", "which"),
    *("les", "des", "une", "que", "los", "las", "che", "pour", "dans", "est", "con", "por", "para", "del"),
    *("der", "die", "und", "das", "den", "von", "mit", "ist", "nicht", "ein", "eine", "auf", "zum"),
}
SHIFTS = (29, 31, 28, 30)  # of letters in fonts without a Unicode mapping
# Characters that need no cleaning: no controls, soft hyphens or separate accents.
PLAIN = re.compile("[ -_a-~\xa1-\xa7\xa9-\xac\xae\xb0-\xb3\xb5-\xb7\xb9-\u017f\u2010-\u2027\u2030-\u205e]*")


def is_plain(text: str) -> bool:
    """Whether a text needs no cleaning."""
    return PLAIN.fullmatch(text) is not None


def clean_word(word: str, known: Collection[str] = ()) -> str:
    """Clean a word: join its hyphenated parts, and remove invisible and unreadable characters.

    known: other words of the page, from `split_words`.
    """
    return clean_characters(join_parts(word, known))


@lru_cache(100_000)
def clean_characters(word: str) -> str:
    """Clean the characters of a word on one line."""
    word = join_accents(decode(word))
    if word.isascii() and word.isprintable():
        return word
    # Invisible: soft hyphens, zero-width characters, direction marks, variation selectors, non-characters.
    word = re.sub(
        "[\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufffe\uffff"
        "\U000e0100-\U000e01ef]",
        "",
        word,
    )
    # Private-use old-style figures and small capitals of Adobe fonts.
    word = re.sub("[\uf730-\uf739\uf761-\uf77a]", lambda found: chr(ord(found[0]) - 0xF700), word)
    # Compatibility characters: Kangxi radicals, ligatures, Hebrew and Arabic presentation forms, duplicate ideographs,
    # full-width Latin and half-width Japanese letters, mathematical letters. Some Arabic ones normalise to text with
    # spaces, which a word must not have.
    word = re.sub(
        "[\u2f00-\u2fd5\uf900-\ufaff\ufb00-\ufb4f\ufb50-\ufdff\ufe70-\ufefc\uff01-\uff9f\U0001d400-\U0001d7ff]",
        lambda found: "".join(unicodedata.normalize("NFKC", found[0]).split()),
        word,
    )
    if len(word) <= 1_000:  # composition takes quadratic time on a hostile word
        word = unicodedata.normalize("NFC", word)
    return "".join(character for character in word if not is_unreadable(character))


def join_accents(word: str) -> str:
    """Join separate accents with the letters after them: "Lib\xb4eration" of old TeX fonts is "Lib\xe9ration"."""
    # A grave accent is also a quote, but hardly ever single and between two letters.
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
    """Join surrogate pairs in a word; drop lone surrogates."""
    if word.isascii():
        return word
    return word.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def split_words(characters: str) -> list[str]:
    """Split a text into words in lower case, without surrounding punctuation; hyphenated parts stay apart."""
    return re.findall(r"\w+(?:-\w+)*", characters.lower())


def join_parts(word: str, known: Collection[str]) -> str:
    """Join the parts of a word that is hyphenated across lines.

    The hyphen is kept or dropped as in the same word elsewhere on the page. Otherwise it is dropped before a lower-case
    letter, and kept in "COVID-19" and "Linux-System".
    """
    joined, *parts = re.sub(SOFT_BREAK, "", word).split(HYPHEN)
    for part in parts:
        is_one_word = False
        if joined[-1:].isalpha() and part[:1].isalpha():
            before, after = split_words(joined)[-1], split_words(part)[0]  # without paths and punctuation
            is_one_word = f"{before}-{after}" not in known and (part[0].islower() or before + after in known)
        joined += part if is_one_word else f"-{part}"
    return joined


def is_unreadable(character: str) -> bool:
    """Whether a character is unreadable: a control, unassigned, private-use or surrogate one."""
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")


def is_legible(words: Sequence[str]) -> bool:
    """Whether the raw words of a PDF page are text rather than glyph numbers or other garbage.

    They are not if most words are garbled, or if they become text when their letters are shifted.
    """
    distinct = set(words)
    suspicious = _find_suspicious(distinct - _harmless)
    if len(_harmless) > 200_000:
        _harmless.clear()
    _harmless.update(distinct - suspicious)
    if not suspicious:  # most pages
        return True
    if garbled := set(filter(_is_garbled, suspicious)):
        # A readable word has three letters in a row, a number, or a character of a script without spaces.
        readable = re.compile(r"[^\W\d_]{3}|\d\d|[\u0900-\u11ff\u2e80-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
        num_garbled = sum(word in garbled for word in words)
        num_readable = sum(word not in garbled and readable.search(word) is not None for word in words)
        if num_garbled >= 3 and num_garbled > num_readable and (num_garbled >= 10 or not num_readable):
            return False
    return not _is_shifted(distinct)


_harmless: set[str] = set()  # words of earlier pages that are neither garbled nor shifted
CONTROLS = re.compile("[\x01-\x04]")  # spaces, in shifted text
ACCENTED = "[\xa1-\xbf\xc0-\xd6\xd8-\xf6\xf8-\u024f]{5}"  # no language has five accented letters in a row
MAY_BE_GARBLED = re.compile(rf"\(cid:|(?<!\S)[!-/:-@\[-`{{-~]{{4,}}(?!\S)|{ACCENTED}")


def _find_suspicious(words: AbstractSet[str]) -> set[str]:
    """Return the words that may be garbled or shifted."""
    found = set(words & _list_shifted())
    text = " ".join(words)
    if not is_plain(text) or MAY_BE_GARBLED.search(text):
        found.update(word for word in words if CONTROLS.search(word) or _is_garbled(word))
    return found


def _is_garbled(word: str) -> bool:
    """Whether a word is garbled; single glyphs of music or formulae are not words."""
    if word.isalnum() and word.isascii():
        return False
    if word.isascii() and word.isprintable():
        if "(cid:" in word:  # some programs write (cid:12) for a glyph without a Unicode mapping
            return re.search(r"\(cid:\d+\)", word) is not None
        return re.fullmatch(r"[!-/:-@\[-`{-~]{4,}", word) is not None and len(set(word)) >= 3
    unreadable = [character for character in word if is_unreadable(character)]
    if len(set(unreadable)) >= 3 and 2 * len(unreadable) >= len(word):
        return True
    if re.search(ACCENTED, word):  # letters of another script, decoded as Latin
        return True
    controls = sum(unicodedata.category(character) == "Cc" for character in unreadable)
    return len(word) >= 4 and 5 * controls >= len(word) > len(unreadable)


def _is_shifted(words: AbstractSet[str]) -> bool:
    """Whether shifting all letters gives several times as many common words.

    Fonts without a Unicode mapping give glyph numbers: often the letters, shifted by a constant.
    """
    text = " ".join(words)
    has_controls = CONTROLS.search(text) is not None
    num_common = len(COMMON_WORDS.intersection(text.lower().split()))
    for shift in SHIFTS:
        if has_controls:
            shifted = text.translate({code: code + shift for code in range(1, 127 - shift) if code != ord(" ")})
            num_shifted = len(COMMON_WORDS.intersection(shifted.split()))
        else:
            common = _find_shifted(shift)
            num_shifted = len({common[word] for word in common.keys() & words})
        # Three distinct ones: a table may repeat an abbreviation.
        if num_shifted >= max(3, 3 * num_common + 1):
            return True
    return False


@cache
def _list_shifted() -> frozenset[str]:
    """Return all shifted common words that are no common words themselves."""
    return frozenset().union(*map(_find_shifted, SHIFTS)) - COMMON_WORDS


@cache
def _find_shifted(shift: int) -> dict[str, str]:
    """Map shifted common words to the words; letters from 127 - `shift` on may be shifted or not."""
    found: dict[str, str] = {}
    for word in COMMON_WORDS:
        choices = []
        for letter in word:
            shifted = chr(ord(letter) - shift)
            choices.append(shifted + letter if ord(letter) >= 127 - shift else shifted)
        for letters in product(*choices):
            found["".join(letters)] = word
    return found
