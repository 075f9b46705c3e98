"""The text layer of PDF pages through pdfium: words with their boxes, without rendering anything.

pdfium puts the characters of a page in order, adds spaces and line breaks where there are gaps, writes ligatures out,
and marks hyphens that break a word at the end of a line. The words are made from that here.
"""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api
from PIL import Image

from ..errors import RandSlotError
from .formats import is_file, show_pages
from .text import (
    BLANK,
    HYPHEN,
    LINE_BREAK,
    NO_TEXT,
    PARTS,
    SOFT_BREAK,
    PageText,
    Word,
    clean_word,
    decode,
    find_known,
    is_legible,
    is_plain,
)

PIXELS = 1536 * 32 * 32  # of a page image: the default number of visual tokens, 32 x 32 pixels each
PDF_SIDE = 14_400  # points, 200 inches: the largest page that PDF readers support
PDFIUM = Lock()  # pdfium kills the process when two threads use it at once
MOST_USES = 200  # of one open PDF: pdfium keeps the fonts and objects of every page until the PDF is closed


def num_pdf_pages(file: Path) -> int:
    """Return how many pages a PDF has."""
    try:
        with PDFIUM, pdfium.PdfDocument(file) as pdf:
            return len(pdf)
    except pdfium.PdfiumError as error:
        raise RandSlotError(f"cannot open {file}: {_pdf_reason(file, error)}") from error


def render_pdf_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Render one page of a PDF, counted from 1, with about `pixels` pixels."""
    with open_pdf_page(file, number) as page:
        width, height = page.get_size()
        if not max(width, height) <= PDF_SIDE:
            raise RandSlotError(
                f"page {number} of {file} is {width:.0f} x {height:.0f} points, more than {PDF_SIDE} a side"
            )
        image: Image.Image = page.render(scale=(pixels / max(width * height, 1.0)) ** 0.5).to_pil()
        return image.convert("RGB")


class OpenPdf:
    """Keeps the last PDF open, for a process that reads one page of it after the other.

    A file that was changed or replaced is opened again; a PDF is closed when another is asked for, after `MOST_USES`
    uses, and when it was changed in memory. For one thread, under the lock `PDFIUM`.
    """

    def __init__(self) -> None:
        self.pdf: pdfium.PdfDocument | None = None
        self.key: tuple[object, ...] = ()
        self.num_pages = 0
        self.num_uses = 0

    @contextmanager
    def open(self, file: Path) -> Iterator[pdfium.PdfDocument]:
        """Use a PDF, which stays open after the `with` block unless that fails."""
        status = file.stat()
        key = (file, status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
        if self.pdf is None or self.key != key or self.num_uses >= MOST_USES:
            self.close()
            self.pdf, self.key, self.num_uses = pdfium.PdfDocument(file), key, 0
            self.num_pages, self.fields = len(self.pdf), PdfFields(self.pdf)
        self.num_uses += 1
        try:
            yield self.pdf
        except BaseException:
            self.close()
            raise
        if len(self.pdf) != self.num_pages:  # pages were added, to read a large one in parts
            self.close()

    def close(self) -> None:
        """Close the PDF, if one is open."""
        if self.pdf is not None:
            self.pdf.close()
        self.pdf = None


@contextmanager
def open_pdf_page(file: Path, number: int, kept: OpenPdf | None = None) -> Iterator[pdfium.PdfPage]:
    """Open one page of a PDF, counted from 1; no other thread can use pdfium until it is closed.

    kept: where the PDF stays open afterwards; without it, it is closed.
    """
    if not is_file(file):
        raise RandSlotError(f"PDF not found: {file}")
    try:
        with PDFIUM, kept.open(file) if kept else pdfium.PdfDocument(file) as pdf:
            if not 1 <= number <= len(pdf):
                raise RandSlotError(f"{file} has {show_pages(len(pdf))}, so there is no page {number}")
            page = pdf[number - 1]
            try:
                if not min(page.get_size()) > 0:
                    raise RandSlotError(f"page {number} of {file} has no area: its crop box is outside of it")
                yield page
            finally:
                page.close()
    except pdfium.PdfiumError as error:
        raise RandSlotError(f"cannot read page {number} of {file}: {_pdf_reason(file, error)}") from error


def _pdf_reason(file: Path, error: pdfium.PdfiumError) -> str:
    """Say why a PDF does not open; pdfium takes one without pages for a broken one."""
    if error.err_code == pdf_api.FPDF_ERR_PASSWORD:
        return "it is encrypted, and needs a password"
    if error.err_code != pdf_api.FPDF_ERR_FORMAT:
        return str(error)
    with file.open("rb") as content:
        is_empty = re.search(rb"/Kids\s*\[\s*\]", content.read(2**16))  # its tree of pages
    return "it has no pages" if is_empty else "it is corrupt, or not a PDF"


MOST_CHARACTERS = 1_000_000  # read of a page; a dense page of print has 10,000
# pdfium takes about 300 bytes for each character. A page of more objects is read in parts, so that a text layer of many
# megabytes is not all in memory; one of few but huge objects is, so unknown files belong into a worker process.
MOST_OBJECTS = 10_000

WORD = re.compile(rf"(?:{SOFT_BREAK.pattern}|\S)+")
MARKS = re.compile(f"[{HYPHEN}\ufffe]")  # may be a hyphen at the end of a line, which pdfium writes in two ways

Sides = tuple[npt.NDArray[np.float64], ...]  # of boxes: four arrays with a value for each box


@dataclass(frozen=True)
class Frame:
    """The part of a PDF's plane that is seen as the page, in points, and the clockwise rotation of what is seen."""

    left: float
    bottom: float
    right: float
    top: float
    rotation: int

    def place(self, sides: Sides) -> Sides:
        """Turn (left, bottom, right, top) in points into (left, top, right, bottom) in fractions of the page."""
        width, height = self.right - self.left, self.top - self.bottom
        left, right = (sides[0] - self.left) / width, (sides[2] - self.left) / width
        top, bottom = (self.top - sides[3]) / height, (self.top - sides[1]) / height
        if self.rotation == 90:
            return 1 - bottom, left, 1 - top, right
        if self.rotation == 180:
            return 1 - right, 1 - bottom, 1 - left, 1 - top
        if self.rotation == 270:
            return top, 1 - right, bottom, 1 - left
        return left, top, right, bottom


def read_pdf_text(file: Path, number: int, kept: OpenPdf | None = None) -> PageText:
    """Read the text of one page of a PDF, counted from 1: at most `MOST_CHARACTERS` characters.

    Words outside of what is seen of the page are left out: PDFs that were cut up by cropping have the same text on
    every page. A page whose text cannot be read, as its fonts do not say what their glyphs mean, has no text. One with
    nothing on it at all is blank.
    """
    with open_pdf_page(file, number, kept) as page:
        if not pdf_api.FPDFPage_CountObjects(page) and not pdf_api.FPDFPage_GetAnnotCount(page):
            return BLANK
        fields = (kept.fields if kept else PdfFields(page.pdf)).find(number)
        left, bottom, right, top = page.get_bbox()
        reading = Reading(Frame(left, bottom, right, top, page.get_rotation()))
        num = 0
        for part in _parts(page):
            text_page = part.get_textpage()
            num_here = max(pdf_api.FPDFText_CountChars(text_page), 0)
            reading.add(text_page, _read_characters(text_page, min(num_here, MOST_CHARACTERS - num)))
            text_page.close()
            num += num_here
            if num > MOST_CHARACTERS:
                break
    if not reading.words or not is_legible(reading.found):
        return NO_TEXT
    heading = find_headings(reading.lines, reading.sizes)
    if not heading and "section" not in fields:
        heading = "\n".join(line for line in reading.lines[:2] if len(line) <= 90 and not line.endswith((".", ",")))
    if heading:
        fields["heading"] = heading
    return PageText("\n".join(reading.lines), tuple(reading.words), truncated=num > MOST_CHARACTERS, fields=fields)


class PdfFields:
    """What a PDF says about its pages: its title, and its outline. Read once for all pages."""

    def __init__(self, pdf: pdfium.PdfDocument) -> None:
        self.title = pdf.get_metadata_value("Title").strip()[:200]
        self.entries: dict[int, list[list[str]]] = {}  # the titles above each entry and its own, by page from 1
        above: list[str] = []
        try:
            for entry in islice(pdf.get_toc(max_depth=6), 10_000):
                above = [*above[: entry.level], " ".join(entry.get_title().split())[:200]]
                target = entry.get_dest()
                index = target.get_index() if target else None
                if index is not None:
                    self.entries.setdefault(index + 1, []).append(above)
        except pdfium.PdfiumError:  # a damaged outline says nothing
            pass
        self.pages = sorted(self.entries)

    def find(self, number: int) -> dict[str, str]:
        """Return the title of the file, and the titles of the sections that a page is in."""
        before = bisect_left(self.pages, number)
        paths = [self.entries[self.pages[before - 1]][-1]] if before else []
        paths += self.entries.get(number, [])
        titles = dict.fromkeys(title for path in paths for title in path)
        fields = {"title": self.title, "section": "\n".join(titles)[:2000]}
        return {name: value for name, value in fields.items() if value}


def find_headings(lines: Sequence[str], sizes: Sequence[float]) -> str:
    """Return the lines that are set larger than most of a page."""
    letters: Counter[float] = Counter()
    for line, size in zip(lines, sizes, strict=True):
        letters[size] += len(line)
    usual = letters.most_common(1)[0][0] if letters else 0.0
    large = []
    for line, size in zip(lines, sizes, strict=True):
        if size >= 1.15 * usual and 3 <= len(line) <= 120 and re.search(r"[^\W\d_]{2}", line):
            large.append(line)
    return "\n".join(large[:12])


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
    if num < 1:
        return ""
    buffer = (ctypes.c_ushort * (num + 1))()
    num_written = pdf_api.FPDFText_GetText(text_page, 0, num, buffer) - 1
    characters = bytes(buffer)[: 2 * num].decode("utf-16-le", "surrogatepass")
    if num_written != num or len(characters) != num:  # pdfium left some out, or wrote some as two
        return "".join(_read_character(text_page, i) for i in range(num))
    for found in MARKS.finditer(characters):
        i = found.start()
        characters = characters[:i] + _read_character(text_page, i) + characters[i + 1 :]
    return characters


def _read_character(text_page: pdfium.PdfTextPage, i: int) -> str:
    character = chr(pdf_api.FPDFText_GetUnicode(text_page, i))
    if character == HYPHEN and not pdf_api.FPDFText_IsHyphen(text_page, i):
        return "\0"  # an ordinary control character
    return character


class Reading:
    """What was read of a page so far.

    found: the words as the PDF has them, also those of which nothing can be read.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.lines: list[str] = []
        self.sizes: list[float] = []  # of the first character of each line, in points
        self.words: list[Word] = []
        self.found: list[str] = []

    def add(self, text_page: pdfium.PdfTextPage, characters: str) -> None:
        """Add the lines and words of some characters."""
        spans = [found.span() for found in WORD.finditer(characters)]
        if not spans:
            return
        known = find_known(characters) if HYPHEN in characters else set()
        line: list[str] = []
        last = begin = 0
        broken = False  # the last word goes on to the next line, and ends there
        for (start, end), (box, seen) in zip(spans, self._find_boxes(text_page, spans), strict=True):
            if line and (broken or re.search(r"[\r\n]", characters[last:start])):
                self._end_line(text_page, line, begin)
                line = []
            last = end
            text = raw = characters[start:end]
            broken = False
            if not is_plain(raw) or "`" in raw:
                broken = LINE_BREAK.search(raw) is not None
                text = clean_word(raw, known)
                raw = decode(raw).replace(HYPHEN, "")
            if seen:
                self.found.append(raw)
                if text:
                    begin = begin if line else start
                    self.words.append(Word(text, *box))
                    line.append(text)
        if line:
            self._end_line(text_page, line, begin)

    def _end_line(self, text_page: pdfium.PdfTextPage, line: list[str], begin: int) -> None:
        self.lines.append(" ".join(line))
        self.sizes.append(round(pdf_api.FPDFText_GetFontSize(text_page, begin), 1))

    def _find_boxes(
        self, text_page: pdfium.PdfTextPage, spans: list[tuple[int, int]]
    ) -> list[tuple[list[float], bool]]:
        """Return the box of each word in fractions of the page, and whether it can be seen there."""
        boxes = Boxes(text_page)
        points = np.array([boxes.find(start, end - start) for start, end in spans])
        left, top, right, bottom = self.frame.place(tuple(points.T))
        seen = (right >= 0) & (bottom >= 0) & (left <= 1) & (top <= 1)
        fractions = np.clip(np.stack([left, top, right, bottom], axis=1), 0.0, 1.0)
        rounded = np.rint(fractions * PARTS) / PARTS
        return list(zip(rounded.tolist(), seen.tolist(), strict=True))


class Boxes:
    """Finds boxes around characters of a page, [left, bottom, right, top] in points.

    Most of the time of reading a page goes into these calls of pdfium, so what they take is made once.
    """

    def __init__(self, text_page: pdfium.PdfTextPage) -> None:
        self.text_page = text_page
        self.raw = text_page.raw
        self.box = (ctypes.c_double * 4)()
        self.left, self.bottom, self.right, self.top = (ctypes.c_double.from_buffer(self.box, 8 * i) for i in range(4))

    def find(self, start: int, num: int) -> Sequence[float]:
        """Return the box around some characters; those without an area count only if all are so.

        pdfium gives a few rectangles that hold the characters: three times as fast as a box of each character.
        """
        boxes: list[Sequence[float]] = []
        for i in range(pdf_api.FPDFText_CountRects(self.raw, start, num)):
            pdf_api.FPDFText_GetRect(self.raw, i, self.left, self.top, self.right, self.bottom)
            boxes.append(self.box[:])
        if len(boxes) == 1:
            return boxes[0]
        if not boxes:
            boxes = [self.text_page.get_charbox(i) for i in range(start, start + num)]
        lefts, bottoms, rights, tops = zip(*boxes, strict=True)
        return [min(lefts), min(bottoms), max(rights), max(tops)]
