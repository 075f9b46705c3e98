"""The text of a page: lines of words, and where each word stands."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    text: str = ""
    words: tuple[Word, ...] = ()
    has_layer: bool = True
    truncated: bool = False
    problem: str = ""


NO_TEXT, BLANK = PageText(has_layer=False), PageText()


class NoTextError(RandSlotError):
    """A page has no text, and a model that reads text is to read it."""
