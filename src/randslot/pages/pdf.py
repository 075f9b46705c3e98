"""Read the text layer of PDF pages with pdfium, and render pages.

pdfium sorts the characters of a page, adds spaces and line breaks at gaps, expands ligatures, and marks hyphens at the
end of lines. This module makes lines and words with boxes of them.
"""

from __future__ import annotations

import ctypes
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api
from PIL import Image

from ..errors import RandSlotError
from .formats import PIXELS, show_pages
from .text import (
    BLANK,
    HYPHEN,
    NO_TEXT,
    SOFT_BREAK,
    Box,
    PageText,
    clean_word,
    decode,
    is_legible,
    is_plain,
    pack_boxes,
    split_words,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PDFIUM = Lock()  # pdfium is not thread-safe: concurrent use crashes the process
MAX_USES = 200  # of an open PDF: pdfium keeps the fonts and objects of all pages in memory until it is closed
MAX_CHARACTERS = 1_000_000  # read per page; a dense printed page has 10,000
# pdfium takes about 300 bytes per character. A page with more objects is read in parts to bound memory; a few huge
# objects still need much, so open untrusted files in a worker process.
MAX_OBJECTS = 10_000
PASSWORDS: list[str] = []


def use_passwords(passwords: Sequence[str]) -> None:
    """Set the passwords for encrypted PDFs, in this process and in workers that it starts later."""
    PASSWORDS[:] = passwords


def list_passwords() -> list[str]:
    """Return the passwords to try: those of `use_passwords`, or the one in the environment."""
    password = os.environ.get("RANDSLOT_PASSWORD")
    return PASSWORDS or ([password] if password else [])


def open_pdf(file: Path) -> pdfium.PdfDocument:
    """Open a PDF; try all passwords if it is encrypted."""
    try:
        return pdfium.PdfDocument(file)
    except pdfium.PdfiumError as error:
        if error.err_code != pdf_api.FPDF_ERR_PASSWORD:
            raise
        for password in list_passwords():
            try:
                return pdfium.PdfDocument(file, password=password)
            except pdfium.PdfiumError as other:
                if other.err_code != pdf_api.FPDF_ERR_PASSWORD:
                    raise
        raise


def num_pdf_pages(file: Path) -> int:
    """Count the pages of a PDF."""
    with _pdf_errors(file, "open"), PDFIUM, open_pdf(file) as pdf:
        return len(pdf)


def read_pdf_properties(file: Path) -> dict[str, str]:
    """Return the title, author and creation date of a PDF, unparsed."""
    with PDFIUM, open_pdf(file) as pdf:
        names = {"title": "Title", "author": "Author", "date": "CreationDate"}
        return {name: pdf.get_metadata_value(key) for name, key in names.items()}


def render_pdf_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Render one page (from 1) of a PDF at about `pixels` pixels."""
    return crop_pdf_page(file, number, (0.0, 0.0, 1.0, 1.0), pixels)


def crop_pdf_page(file: Path, number: int, box: Box, pixels: int, max_width: int | None = None) -> Image.Image:
    """Render a part of a page at about `pixels` pixels, and at most `max_width` pixels wide.

    box: left, top, right, bottom, in fractions of the page.
    """
    with open_pdf_page(file, number) as page:
        width, height = page.get_size()
        if not max(width, height) <= 14_400:  # points, 200 inches: the largest page that PDF readers support
            raise RandSlotError(f"page {number} of {file} is too large: {width:.0f} x {height:.0f} points")
        left, top, right, bottom = box
        scale = float((pixels / max((right - left) * width * (bottom - top) * height, 1.0)) ** 0.5)
        if max_width is not None:
            scale = min(scale, max_width / ((right - left) * width))
        crop = (left * width, (1 - bottom) * height, (1 - right) * width, top * height)
        image: Image.Image = page.render(scale=scale, crop=crop).to_pil()
        return image.convert("RGB")


def read_pdf_outline(file: Path) -> list[tuple[int, str, int]]:
    """Return the outline of a PDF in page order: the level (from 0), title and page of each entry."""
    with _pdf_errors(file, "open"), PDFIUM, open_pdf(file) as pdf:
        fields = PdfFields(pdf)
    outline = []
    for page in fields.pages:
        outline += [(len(path) - 1, path[-1], page) for path in fields.entries[page]]
    return outline


class OpenPdf:
    """Keeps the last PDF open, to read its pages one after the other.

    It reopens a file that has changed on disk, was used `MAX_USES` times, or was modified in memory. Not thread-safe:
    use it under the lock `PDFIUM`.
    """

    def __init__(self) -> None:
        self.pdf: pdfium.PdfDocument | None = None
        self.key: tuple[object, ...] = ()
        self.num_pages = 0
        self.num_uses = 0
        self.fields_cache: dict[tuple[object, ...], PdfFields] = {}  # also of closed files

    @contextmanager
    def open(self, file: Path) -> Iterator[pdfium.PdfDocument]:
        """Open a PDF, and keep it open after the `with` block unless that fails."""
        status = file.stat()
        key = (file, status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
        if self.pdf is None or self.key != key or self.num_uses >= MAX_USES:
            self.close()
            self.pdf, self.key, self.num_uses = open_pdf(file), key, 0
            self.num_pages = len(self.pdf)
            if key not in self.fields_cache:
                if len(self.fields_cache) >= 100:
                    self.fields_cache.clear()
                self.fields_cache[key] = PdfFields(self.pdf)
            self.fields = self.fields_cache[key]
        self.num_uses += 1
        try:
            yield self.pdf
        except BaseException:
            self.close()
            raise
        if len(self.pdf) != self.num_pages:  # a large page was split into parts
            self.close()

    def close(self) -> None:
        """Close the PDF, if one is open."""
        if self.pdf is not None:
            self.pdf.close()
        self.pdf = None


@contextmanager
def open_pdf_page(file: Path, number: int, kept: OpenPdf | None = None) -> Iterator[pdfium.PdfPage]:
    """Open one page (from 1) of a PDF; other threads cannot use pdfium until it is closed.

    kept: keeps the PDF open afterwards.
    """
    with (
        _pdf_errors(file, f"read page {number} of"),
        PDFIUM,
        kept.open(file) if kept else open_pdf(file) as pdf,
    ):
        if not 1 <= number <= len(pdf):
            raise RandSlotError(f"{file} has {show_pages(len(pdf))}, so there is no page {number}")
        page = pdf[number - 1]
        try:
            if not min(page.get_size()) > 0:
                raise RandSlotError(f"page {number} of {file} has no area: its crop box is outside of it")
            yield page
        finally:
            page.close()


@contextmanager
def _pdf_errors(file: Path, action: str) -> Iterator[None]:
    """Convert pdfium's errors to one-line errors with the file name."""
    try:
        yield
    except FileNotFoundError as error:
        raise RandSlotError(f"PDF not found: {file}") from error
    except pdfium.PdfiumError as error:
        reasons = {
            pdf_api.FPDF_ERR_PASSWORD: "it is encrypted, and "
            + ("none of the given passwords fits" if list_passwords() else "needs a password (--password)"),
            pdf_api.FPDF_ERR_FORMAT: "it is corrupt, or not a PDF",
            pdf_api.FPDF_ERR_SUCCESS: "it has no pages",
        }
        reason = reasons.get(error.err_code, str(error))
        with file.open("rb") as content:
            if re.search(rb"/Kids\s*\[\s*\]", content.read(2**16)):  # then pdfium returns the code of an earlier error
                reason = "it has no pages"
        raise RandSlotError(f"cannot {action} {file}: {reason}") from error


def read_pdf_text(file: Path, number: int, kept: OpenPdf | None = None, *, with_boxes: bool = True) -> PageText:
    """Read the text of one page (from 1) of a PDF, at most `MAX_CHARACTERS` characters.

    with_boxes: read the boxes of words, which doubles the time.

    Words outside of the crop box are left out: pages of PDFs that were split by cropping all have the same text. A page
    with illegible text, from fonts without a Unicode mapping, has no text. An empty page is blank.
    """
    with open_pdf_page(file, number, kept) as page:
        if not pdf_api.FPDFPage_CountObjects(page) and not pdf_api.FPDFPage_GetAnnotCount(page):
            return BLANK
        fields = (kept.fields if kept else PdfFields(page.pdf)).find(number)
        layer = TextLayer(page, with_boxes)
        num = 0
        for part in _split_page(page):
            text_page = part.get_textpage()
            num_here = max(pdf_api.FPDFText_CountChars(text_page), 0)
            layer.read(text_page, min(num_here, MAX_CHARACTERS - num))
            text_page.close()
            num += num_here
            if num > MAX_CHARACTERS:
                break
    if not layer.lines or not is_legible(layer.raw_words):
        return NO_TEXT
    heading = find_headings(layer.lines, layer.sizes)
    if not heading and "section" not in fields:
        heading = "\n".join(line for line in layer.lines[:2] if len(line) <= 90 and not line.endswith((".", ",")))
    if heading:
        fields["heading"] = heading
    return PageText("\n".join(layer.lines), b"".join(layer.boxes), truncated=num > MAX_CHARACTERS, fields=fields)


class PdfFields:
    """The title and outline of a PDF, read once for all pages."""

    def __init__(self, pdf: pdfium.PdfDocument) -> None:
        self.title = pdf.get_metadata_value("Title").strip()[:200]
        self.entries: dict[int, list[list[str]]] = {}  # paths of titles from the root to each entry, by page from 1
        above: list[str] = []
        try:
            for entry in islice(pdf.get_toc(max_depth=6), 10_000):
                above = [*above[: entry.level], " ".join(entry.get_title().split())[:200]]
                target = entry.get_dest()
                index = target.get_index() if target else None
                if index is not None:
                    self.entries.setdefault(index + 1, []).append(above)
        except pdfium.PdfiumError:  # ignore a damaged outline
            pass
        self.pages = sorted(self.entries)

    def find(self, number: int) -> dict[str, str]:
        """Return the title of the file, and the section titles of a page."""
        before = bisect_left(self.pages, number)
        paths = [self.entries[self.pages[before - 1]][-1]] if before else []
        paths += self.entries.get(number, [])
        titles = list(dict.fromkeys(chain.from_iterable(paths)))
        fields = {"title": self.title} if self.title else {}
        if any(titles):
            fields["section"] = "\n".join(titles)[:2000]
        return fields


def find_headings(lines: Sequence[str], sizes: Sequence[float]) -> str:
    """Return the lines in a larger font size than most of a page."""
    letters: Counter[float] = Counter()
    for line, size in zip(lines, sizes, strict=True):
        letters[size] += len(line)
    body_size = letters.most_common(1)[0][0] if letters else 0.0
    headings = []
    for line, size in zip(lines, sizes, strict=True):
        if size >= 1.15 * body_size and 3 <= len(line) <= 120 and re.search(r"[^\W\d_]{2}", line):
            headings.append(line)
    return "\n".join(headings[:12])


def _split_page(page: pdfium.PdfPage) -> Iterator[pdfium.PdfPage]:
    """Yield the page, or if it has many objects, pages with batches of them, in order."""
    if pdf_api.FPDFPage_CountObjects(page) <= MAX_OBJECTS:
        yield page
        return
    while num := pdf_api.FPDFPage_CountObjects(page):
        part = page.pdf.new_page(*page.get_size())
        part.set_mediabox(*page.get_bbox())
        part.set_rotation(page.get_rotation())
        for _ in range(min(num, MAX_OBJECTS)):
            item = pdf_api.FPDFPage_GetObject(page, 0)
            pdf_api.FPDFPage_RemoveObject(page, item)
            pdf_api.FPDFPage_InsertObject(part, item)
        yield part
        part.close()


# Indexed by whether the text has soft hyphens at the end of lines.
WORDS = (re.compile(r"\S+"), re.compile(rf"(?:{SOFT_BREAK}|\S)+"))
LINES = (re.compile(r"[^\r\n]+"), re.compile(rf"(?:{SOFT_BREAK}|[^\r\n])+"))


class TextLayer:
    """The lines and words of a page, read in one or more parts.

    starts: index of the first character of each line of the current part. sizes: font size of each line's first
    character, in points. boxes: packed boxes of the words, by part. raw_words: words before cleaning, also illegible
    ones.
    """

    def __init__(self, page: pdfium.PdfPage, with_boxes: bool) -> None:
        self.frame, self.rotation, self.with_boxes = page.get_bbox(), page.get_rotation(), with_boxes
        self.lines: list[str] = []
        self.starts: list[int] = []
        self.sizes: list[float] = []
        self.boxes: list[bytes] = []
        self.raw_words: list[str] = []

    def read(self, text_page: pdfium.PdfTextPage, num: int) -> None:
        """Add the lines and words of the first `num` characters of a text page."""
        self.address = ctypes.cast(text_page.raw, ctypes.c_void_p).value
        characters = _read_characters(text_page, num)
        self.starts.clear()
        is_soft = re.search(SOFT_BREAK, characters) is not None
        boxes: NDArray[np.float64] | None = None
        kept: NDArray[np.bool_] | None = None  # whether each word is visible; None if all are
        if self.with_boxes or self._is_cropped():
            spans = [found.span() for found in re.finditer(WORDS[is_soft], characters)]
            boxes = self._to_fractions(self._find_boxes(text_page, spans))
            kept = self._find_visible(boxes)
        is_all_plain = is_plain(characters.replace("\r\n", " "))
        known = set(split_words(characters)) if HYPHEN in characters else set()
        if is_all_plain if kept is not None and kept.all() else kept is None and not is_soft:
            self._add_lines(characters, known, is_all_plain)
        else:
            self._add_words(characters, 0, known, kept, is_soft)
        self.sizes += [round(_get_font_size(self.address, start), 1) for start in self.starts]
        if self.with_boxes and boxes is not None:
            self.boxes.append(pack_boxes(boxes[kept]))

    def _add_lines(self, characters: str, known: set[str], is_all_plain: bool) -> None:
        """Add lines of visible words; most lines are plain and need no cleaning."""
        start = 0
        for raw in characters.split("\r\n"):
            if not (is_all_plain or is_plain(raw)):
                self._add_words(raw, start, known)
            elif line := raw.strip():
                self.raw_words += raw.split()
                self.lines.append(line if "  " not in line else " ".join(line.split()))
                self.starts.append(start + raw.index(line[0]))
            start += len(raw) + 2

    def _add_words(
        self,
        characters: str,
        start: int,
        known: set[str],
        kept: NDArray[np.bool_] | None = None,
        is_soft: bool = False,
    ) -> None:
        """Clean words, join hyphenated ones, and add their lines.

        start: index of the first character. kept: whether each word is visible; becomes False if cleaning empties it.
        """
        num_words = first = 0  # first: index of the first word of a line
        for found in re.finditer(LINES[is_soft], characters):
            words: list[str] = []
            for found_word in re.finditer(WORDS[is_soft], found[0]):
                raw = found_word[0]
                text, decoded = (raw, raw) if is_plain(raw) else (clean_word(raw, known), decode(raw))
                if kept is None or kept[num_words]:
                    self.raw_words.append(decoded.replace(HYPHEN, ""))
                else:
                    text = ""
                if kept is not None:
                    kept[num_words] = bool(text)
                num_words += 1
                if text:
                    first = first if words else start + found.start() + found_word.start()
                    words.append(text)
                if words and (HYPHEN in raw or (is_soft and re.search(SOFT_BREAK, raw))):
                    self._end_line(words, first)  # the rest of the word is on the next line
                    words = []
            if words:
                self._end_line(words, first)

    def _is_cropped(self) -> bool:
        """Whether some characters are outside of the crop box."""
        left, bottom, right, top = self.frame
        far = 1e7
        outside = ((-far, far, left, -far), (right, far, far, -far), (-far, far, far, top), (-far, bottom, far, -far))
        return any(_count_bounded(self.address, *rect, None, 0) for rect in outside)

    def _end_line(self, words: list[str], start: int) -> None:
        self.lines.append(" ".join(words))
        self.starts.append(start)

    def _find_boxes(self, text_page: pdfium.PdfTextPage, spans: list[tuple[int, int]]) -> NDArray[np.float64]:
        """Return the bounding box (left, bottom, right, top in points) of each span of characters.

        Characters without area count only if all have none. pdfium returns rectangles that cover the span, mostly one
        per word: three times as fast as a box per character.
        """
        import numpy as np  # not needed without boxes

        boxes = np.empty((len(spans), 4))
        page, address = self.address, boxes.ctypes.data
        for i, (start, end) in enumerate(spans):
            num = _count_rects(page, start, end - start)
            box = address + 32 * i
            _get_rect(page, 0, box, box + 24, box + 16, box + 8)
            if num != 1:
                parts = [boxes[i].copy()]
                for place in range(1, num):
                    _get_rect(page, place, box, box + 24, box + 16, box + 8)
                    parts.append(boxes[i].copy())
                if not num:
                    parts = [text_page.get_charbox(place) for place in range(start, end)]
                lefts, bottoms, rights, tops = zip(*parts, strict=True)
                boxes[i] = min(lefts), min(bottoms), max(rights), max(tops)
        return boxes

    def _to_fractions(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert left, bottom, right, top in points to left, top, right, bottom in fractions of the upright page."""
        frame_left, frame_bottom, frame_right, frame_top = self.frame
        width, height = frame_right - frame_left, frame_top - frame_bottom
        left, right = (points[:, 0] - frame_left) / width, (points[:, 2] - frame_left) / width
        top, bottom = (frame_top - points[:, 3]) / height, (frame_top - points[:, 1]) / height
        for _ in range(self.rotation // 90):
            left, top, right, bottom = 1 - bottom, left, 1 - top, right
        import numpy as np

        return np.stack([left, top, right, bottom], axis=1)

    @staticmethod
    def _find_visible(boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which boxes overlap the page."""
        visible: NDArray[np.bool_] = ((boxes[:, 2:] >= 0) & (boxes[:, :2] <= 1)).all(axis=1)  # type: ignore[assignment]
        return visible


def _read_characters(text_page: pdfium.PdfTextPage, num: int) -> str:
    """Return the first `num` characters, one per index of pdfium."""
    if num < 1:
        return ""
    buffer = (ctypes.c_ushort * (num + 1))()
    num_written = pdf_api.FPDFText_GetText(text_page, 0, num, buffer) - 1
    characters = bytes(buffer)[: 2 * num].decode("utf-16-le", "surrogatepass")
    if num_written != num or len(characters) != num:  # pdfium skipped some, or wrote surrogate pairs
        return "".join(_read_character(text_page, i) for i in range(num))
    # Check possible hyphens at the end of lines, for which pdfium has two characters.
    for found in re.finditer(f"[{HYPHEN}\ufffe]", characters):
        i = found.start()
        characters = characters[:i] + _read_character(text_page, i) + characters[i + 1 :]
    return characters


def _read_character(text_page: pdfium.PdfTextPage, i: int) -> str:
    character = chr(pdf_api.FPDFText_GetUnicode(text_page, i))
    if character == HYPHEN and not pdf_api.FPDFText_IsHyphen(text_page, i):
        return "\0"  # an ordinary control character
    return character


def _declare(function: Any, result: Any, *arguments: Any) -> Any:
    """Wrap a function of pdfium to take addresses as integers, which halves the time of a call."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return ctypes.PYFUNCTYPE(result, *arguments)(address)


_count_rects = _declare(pdf_api.FPDFText_CountRects, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_get_rect = _declare(pdf_api.FPDFText_GetRect, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 4)
_count_bounded = _declare(
    pdf_api.FPDFText_GetBoundedText,
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_double] * 4,
    ctypes.c_void_p,
    ctypes.c_int,
)
_get_font_size = _declare(pdf_api.FPDFText_GetFontSize, ctypes.c_double, ctypes.c_void_p, ctypes.c_int)
