"""The text layer of PDF pages through pdfium: words with their boxes, without rendering anything.

pdfium puts the characters of a page in order, adds spaces and line breaks where there are gaps, writes ligatures out,
and marks hyphens that break a word at the end of a line. The words are made from that here.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api

from .pdf import open_pdf_page
from .text import NO_TEXT, PageText, Word

MOST_CHARACTERS = 1_000_000  # read of a page; a dense page of print has 10,000
# pdfium takes about 300 bytes for each character. A page of more objects is read in parts, so that a text layer of many
# megabytes is not all in memory; one of few but huge objects is, so unknown files belong into a worker process.
MOST_OBJECTS = 10_000
DIGITS = 5  # of a box: a hundredth of a point on ordinary paper

HYPHEN = 2  # pdfium's character for a hyphen that breaks a word at the end of a line; nothing stands for the line's end
LINE_END_HYPHEN = re.compile(r"\x02|[\xad\ufffe][\r\n]+")
WORD = re.compile(r"(?:[\xad\ufffe][\r\n]+|\S)+")
DROPPED = re.compile("[\x00-\x1f\x7f-\x9f\xad\ufeff\ufffe\uffff]")  # controls, soft hyphens, non-characters

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Frame:
    """The part of a PDF's plane that is seen as the page, in points, and the clockwise rotation of what is seen."""

    left: float
    bottom: float
    right: float
    top: float
    rotation: int

    def place(self, box: Box) -> Box:
        """Turn (left, bottom, right, top) in points into (left, top, right, bottom) in fractions of the page."""
        width, height = self.right - self.left, self.top - self.bottom
        left, right = (box[0] - self.left) / width, (box[2] - self.left) / width
        top, bottom = (self.top - box[3]) / height, (self.top - box[1]) / height
        if self.rotation == 90:
            return 1 - bottom, left, 1 - top, right
        if self.rotation == 180:
            return 1 - right, 1 - bottom, 1 - left, 1 - top
        if self.rotation == 270:
            return top, 1 - right, bottom, 1 - left
        return left, top, right, bottom


def read_pdf_text(file: Path, number: int) -> PageText:
    """Read the text of one page of a PDF, counted from 1: at most `MOST_CHARACTERS` characters.

    Words outside of what is seen of the page are left out: PDFs that were cut up by cropping have the same text on
    every page.

    Errors: RandSlotError if the file is missing, broken or encrypted, or has no such page.
    """
    with open_pdf_page(file, number) as page:
        left, bottom, right, top = page.get_bbox()
        frame = Frame(left, bottom, right, top, page.get_rotation())
        num = 0
        lines: list[str] = []
        words: list[Word] = []
        truncated = False
        for part in _parts(page):
            text_page = part.get_textpage()
            num_here = max(pdf_api.FPDFText_CountChars(text_page), 0)
            characters = _read_characters(text_page, min(num_here, MOST_CHARACTERS - num))
            _add_lines(text_page, characters, frame, lines, words)
            text_page.close()
            num += num_here
            if num > MOST_CHARACTERS:
                truncated = True
                break
    return PageText("\n".join(lines), tuple(words), truncated=truncated) if num else NO_TEXT


def _parts(page: pdfium.PdfPage) -> Iterator[pdfium.PdfPage]:
    """Yield the page, or if it has many objects, pages like it with some of them each, in their order."""
    if pdf_api.FPDFPage_CountObjects(page) <= MOST_OBJECTS:
        yield page
        return
    while num := pdf_api.FPDFPage_CountObjects(page):
        part = page.pdf.new_page(*page.get_size())
        part.set_mediabox(*page.get_bbox())
        part.set_rotation(page.get_rotation())
        for _ in range(min(num, MOST_OBJECTS)):
            item = pdf_api.FPDFPage_GetObject(page, 0)
            pdf_api.FPDFPage_RemoveObject(page, item)
            pdf_api.FPDFPage_InsertObject(part, item)
        yield part
        part.close()


def _read_characters(text_page: pdfium.PdfTextPage, num: int) -> str:
    """Return the first characters as they are, one for each index of pdfium's."""
    characters = []
    for i in range(num):
        code = pdf_api.FPDFText_GetUnicode(text_page, i)
        if code == HYPHEN and not pdf_api.FPDFText_IsHyphen(text_page, i):
            code = 0  # an ordinary control character
        characters.append(chr(code))
    return "".join(characters)


def _add_lines(
    text_page: pdfium.PdfTextPage, characters: str, frame: Frame, lines: list[str], words: list[Word]
) -> None:
    """Add the lines and words of some characters to those of the page."""
    line: list[str] = []
    end = 0
    broken = False  # the last word goes on to the next line, and ends there
    for found in WORD.finditer(characters):
        gap = characters[end : found.start()]
        if line and (broken or "\n" in gap or "\r" in gap):
            lines.append(" ".join(line))
            line = []
        end = found.end()
        broken = LINE_END_HYPHEN.search(found[0]) is not None
        word = _make_word(text_page, found[0], found.start(), frame)
        if word is not None:
            words.append(word)
            line.append(word.text)
    if line:
        lines.append(" ".join(line))


def _make_word(text_page: pdfium.PdfTextPage, characters: str, start: int, frame: Frame) -> Word | None:
    """Return a word, or None if nothing of it can be read or seen."""
    text = _clean(characters)
    left, top, right, bottom = frame.place(_find_box(text_page, start, len(characters)))
    if not text or right < 0 or bottom < 0 or left > 1 or top > 1:
        return None
    return Word(text, _limit(left), _limit(top), _limit(right), _limit(bottom))


def _clean(characters: str) -> str:
    """Return the characters of a word as text: joined where it was hyphenated, without what cannot be read."""
    joined = LINE_END_HYPHEN.sub("", characters)
    # pdfium gives characters beyond the first 65,536 as two surrogates; a surrogate alone means nothing.
    decoded = joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return DROPPED.sub("", decoded)


def _find_box(text_page: pdfium.PdfTextPage, start: int, num: int) -> Box:
    """Return (left, bottom, right, top) around some characters; those without an area count only if all are so."""
    boxes = _find_rectangles(text_page, start, num) or _find_character_boxes(text_page, start, num)
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _find_rectangles(text_page: pdfium.PdfTextPage, start: int, num: int) -> list[Box]:
    """Return a few boxes that hold the characters: three times as fast as a box of each character."""
    left, top, right, bottom = (ctypes.c_double() for _ in range(4))
    boxes = []
    for i in range(pdf_api.FPDFText_CountRects(text_page, start, num)):
        pdf_api.FPDFText_GetRect(text_page, i, left, top, right, bottom)
        boxes.append((left.value, bottom.value, right.value, top.value))
    return boxes


def _find_character_boxes(text_page: pdfium.PdfTextPage, start: int, num: int) -> list[Box]:
    return [text_page.get_charbox(i) for i in range(start, start + num)]


def _limit(fraction: float) -> float:
    return round(min(max(0.0, fraction), 1.0), DIGITS)
