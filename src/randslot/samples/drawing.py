"""Sample reports as PDFs, drawn through pdfium with the fonts that it carries.

Measures are pixels of a page of 288 x 320, the size at which a small model reads it. The type is that of a typewriter,
each letter 8 wide, one line to each row of visual tokens, and each word begins at a tab stop, with a visual token: so a
word looks the same to the model wherever it stands, and a small model learns to read in minutes.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from random import Random

import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api

from .reports import Page, Report

WIDTH, HEIGHT, LINE = 288, 320, 32
TAB = 32  # words begin at multiples of it
POINTS = 2.0  # of the PDF for each pixel
WHITE, INK = (255, 255, 255), (30, 30, 36)
ACCENTS = ((0, 90, 160), (180, 60, 0), (0, 110, 80), (120, 50, 120), (150, 20, 40), (60, 60, 60))
PLAIN, BOLD = FONTS = ("Courier", "Courier-Bold")
LETTER = 8
SIZE = LETTER / 0.6  # a letter of Courier is 0.6 of its size wide
Colour = tuple[int, int, int]


class Canvas:
    """One page of a PDF, measured in pixels from its upper left corner."""

    def __init__(self, pdf: pdfium.PdfDocument, fonts: dict[str, object], height: int, width: int = WIDTH) -> None:
        self.pdf = pdf
        self.fonts = fonts
        self.height = height
        self.page = pdf.new_page(width * POINTS, height * POINTS)

    def text(self, x: float, row: int, text: str, font: str = PLAIN, colour: Colour = INK, scale: int = 1) -> None:
        """Write a text into a line, counted from 0, in type of 8 pixels a letter or `scale` times that."""
        part = pdf_api.FPDFPageObj_CreateTextObj(self.pdf, self.fonts[font], SIZE * scale * POINTS)
        letters = [ord(letter) for letter in text]
        pdf_api.FPDFText_SetText(part, (ctypes.c_ushort * (len(letters) + 1))(*letters))
        pdf_api.FPDFPageObj_SetFillColor(part, *colour, 255)
        baseline = row * LINE + 16 + 4 * scale
        pdf_api.FPDFPageObj_Transform(part, 1, 0, 0, 1, x * POINTS, (self.height - baseline) * POINTS)
        pdf_api.FPDFPage_InsertObject(self.page, part)

    def sentence(self, x: float, row: int, text: str) -> None:
        """Write a text word by word, each from the next tab stop on."""
        for word in text.split():
            self.text(x, row, word)
            x += TAB * math.ceil((len(word) + 1) * LETTER / TAB)

    def box(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        part = pdf_api.FPDFPageObj_CreateNewRect(
            x * POINTS, (self.height - y - height) * POINTS, width * POINTS, height * POINTS
        )
        pdf_api.FPDFPageObj_SetFillColor(part, *colour, 255)
        pdf_api.FPDFPath_SetDrawMode(part, pdf_api.FPDF_FILLMODE_WINDING, False)
        pdf_api.FPDFPage_InsertObject(self.page, part)

    def path(self, points: list[tuple[float, float]], colour: Colour, thickness: float) -> None:
        (x, y), *others = points
        part = pdf_api.FPDFPageObj_CreateNewPath(x * POINTS, (self.height - y) * POINTS)
        for x, y in others:
            pdf_api.FPDFPath_LineTo(part, x * POINTS, (self.height - y) * POINTS)
        pdf_api.FPDFPageObj_SetStrokeColor(part, *colour, 255)
        pdf_api.FPDFPageObj_SetStrokeWidth(part, thickness * POINTS)
        pdf_api.FPDFPath_SetDrawMode(part, pdf_api.FPDF_FILLMODE_NONE, True)
        pdf_api.FPDFPage_InsertObject(self.page, part)

    def close(self) -> None:
        pdf_api.FPDFPage_GenerateContent(self.page)
        self.page.close()


class Style:
    """The look of a report: colour, fonts, margins, table rules."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.accent: Colour = random.choice(ACCENTS)
        self.title = random.choice((1, 2, 3)) * TAB
        self.indent = random.choice((1, 2)) * TAB
        self.banner = random.random() < 0.3
        self.ruled = random.random() < 0.5
        self.rows = random.choice((PLAIN, BOLD))

    @property
    def tint(self) -> Colour:
        """The accent, faint enough to write on."""
        red, green, blue = (255 - (255 - part) // 8 for part in self.accent)
        return red, green, blue


def draw_report(report: Report) -> bytes:
    """Draw a report and return it as a PDF; the same report gives the same bytes."""
    style = Style(report.style)
    with _new_pdf() as (pdf, fonts, buffer):
        for page in report.pages:
            _draw_page(pdf, fonts, page, style)
    return _without_time(buffer.getvalue())


def draw_words(words: Sequence[str], seed: int) -> bytes:
    """Draw single words, each as a tiny page of its own, as a PDF: what reading begins with."""
    random = Random(seed)
    with _new_pdf() as (pdf, fonts, buffer):
        for word in words:
            scale = random.choice((1, 1, 2))
            canvas = Canvas(pdf, fonts, LINE, width=96 * scale)
            colour = random.choice(ACCENTS) if scale == 2 else INK
            canvas.text(0, 0, word, random.choice(FONTS), colour, scale)
            canvas.close()
    return _without_time(buffer.getvalue())


@contextmanager
def _new_pdf() -> Iterator[tuple[pdfium.PdfDocument, dict[str, object], BytesIO]]:
    """Give a new PDF with its fonts, and a buffer that holds it in the end."""
    buffer = BytesIO()
    pdf = pdfium.PdfDocument.new()
    fonts = {name: pdf_api.FPDFText_LoadStandardFont(pdf, name.encode()) for name in FONTS}
    yield pdf, fonts, buffer
    pdf.save(buffer)
    for font in fonts.values():
        pdf_api.FPDFFont_Close(font)
    pdf.close()


def _without_time(pdf: bytes) -> bytes:
    """Put fixed values where pdfium writes the time and an id made from it."""
    pdf = re.sub(rb"\(D:\d{14}", b"(D:20250101000000", pdf)
    return re.sub(rb"(?<=<)[0-9A-F]{32}(?=>)", b"0" * 32, pdf)


def _draw_page(pdf: pdfium.PdfDocument, fonts: dict[str, object], page: Page, style: Style) -> None:
    canvas = Canvas(pdf, fonts, LINE * sum(LINES[block] for block in page.blocks))
    row = 0
    for block in page.blocks:
        DRAW[block](canvas, page, style, row)
        row += LINES[block]
    canvas.close()


def _draw_title(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    colour = style.accent
    if style.banner:
        canvas.box(0, row * LINE, WIDTH, 2 * LINE - 2, style.accent)
        colour = WHITE
    canvas.text(style.title, row, page.place, BOLD, colour, scale=2)
    canvas.text(style.title, row + 1, page.theme, BOLD, colour, scale=2)


def _draw_text(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    for i, (subject, verb) in enumerate(page.sentences, start=row):
        canvas.sentence(style.indent, i, f"{subject.capitalize()} {verb}.")


def _draw_table(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    columns = [TAB + 3 * TAB * i for i in range(len(page.measures) + 1)]
    left, right = TAB - 4, WIDTH
    canvas.box(left, row * LINE + 4, right - left, LINE - 8, style.tint)
    for x, measure in zip(columns[1:], page.measures, strict=True):
        canvas.text(x, row, measure, BOLD)
    for i, (good, values) in enumerate(zip(page.goods, page.values, strict=True), start=row + 1):
        canvas.text(columns[0], i, good, style.rows)
        for x, value in zip(columns[1:], values, strict=True):
            canvas.text(x, i, str(value))
        if style.ruled:
            canvas.path([(left, (i + 1) * LINE - 2), (right, (i + 1) * LINE - 2)], style.tint, 1)


def _draw_chart(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    if page.chart == "bars":
        axis = style.indent + 64
        for i, (label, height) in enumerate(zip(page.labels, page.heights, strict=True), start=row):
            canvas.text(style.indent, i, label)
            canvas.box(axis, i * LINE + 8, 1.5 * height, LINE - 16, style.accent)
        canvas.path([(axis, row * LINE + 2), (axis, (row + len(page.labels)) * LINE - 2)], INK, 1)
        return
    floor, tall = (row + 2) * LINE, 1.8 * LINE
    xs = [TAB + 3 * TAB * i for i in range(len(page.labels))]
    tops = [floor - tall * height / 100 for height in page.heights]
    canvas.path([(xs[0], floor), (xs[-1] + 56, floor)], INK, 1)
    for x, label in zip(xs, page.labels, strict=True):
        canvas.text(x, row + 2, label)
    if page.chart == "line":
        canvas.path([(x + 24, top) for x, top in zip(xs, tops, strict=True)], style.accent, 2)
        return
    for x, top in zip(xs, tops, strict=True):
        canvas.box(x + 8, top, 32, floor - top, style.accent)


LINES = {"title": 2, "text": 2, "table": 3, "chart": 3}  # of 32 pixels
DRAW = {"title": _draw_title, "text": _draw_text, "table": _draw_table, "chart": _draw_chart}
