"""Draw sample reports as PDFs, through pdfium with its built-in fonts.

Units are pixels of a page of 288 x 432, the input size of a small model. A page is a grid of cells of 48 x 48, each a
visual token with one word or number: so a word looks the same to the model anywhere on a page, and a small model
learns to read in minutes. The type is tall and narrow, to fill a cell.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from random import Random

import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api

from .reports import Page, Report

CELL = 48
WIDTH, HEIGHT = 6 * CELL, 9 * CELL
POINTS = 2.0  # PDF units per pixel
WHITE, INK = (255, 255, 255), (30, 30, 36)
ACCENTS = ((0, 90, 160), (180, 60, 0), (0, 110, 80), (120, 50, 120), (150, 20, 40), (60, 60, 60))
FAMILIES = (("Courier", "Courier-Bold"), ("Helvetica", "Helvetica-Bold"))  # plain, bold
FONTS = tuple(font for family in FAMILIES for font in family)
SIZES = {"Courier": 10.6, "Courier-Bold": 10.6, "Helvetica": 11.4, "Helvetica-Bold": 11.0}
TALL, TALLER = 2.0, 2.8  # vertical stretch of the type: text, titles
Colour = tuple[int, int, int]


class Canvas:
    """One page of a PDF, measured in pixels from its upper left corner."""

    def __init__(self, pdf: pdfium.PdfDocument, fonts: dict[str, object], height: int, width: int = WIDTH) -> None:
        self.pdf = pdf
        self.fonts = fonts
        self.height = height
        self.page = pdf.new_page(width * POINTS, height * POINTS)

    def word(self, column: int, row: int, word: str, font: str, colour: Colour = INK, tall: float = TALL) -> None:
        """Write a word or number into a cell, counted from 0."""
        part = pdf_api.FPDFPageObj_CreateTextObj(self.pdf, self.fonts[font], SIZES[font] * POINTS)
        letters = [ord(letter) for letter in word]
        pdf_api.FPDFText_SetText(part, (ctypes.c_ushort * (len(letters) + 1))(*letters))
        pdf_api.FPDFPageObj_SetFillColor(part, *colour, 255)
        baseline = row * CELL + 24 + 4 * tall
        pdf_api.FPDFPageObj_Transform(
            part, 1, 0, 0, tall, (column * CELL + 3) * POINTS, (self.height - baseline) * POINTS
        )
        pdf_api.FPDFPage_InsertObject(self.page, part)

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
        self.plain, self.bold = random.choice(FAMILIES)
        self.title = random.choice((0, 1, 2, 4))  # columns
        self.step = random.choice((1, 2))  # column spacing of a table or chart
        self.indent = random.choice((0, 1, 2) if self.step == 1 else (0, 1))
        self.banner = random.random() < 0.3
        self.ruled = random.random() < 0.5
        self.rows = random.choice((self.plain, self.bold))

    @property
    def tint(self) -> Colour:
        """The accent colour, light enough for a background."""
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
    """Draw single words, each on its own tiny page, as a PDF: the first reading lessons."""
    random = Random(seed)
    with _new_pdf() as (pdf, fonts, buffer):
        for word in words:
            canvas = Canvas(pdf, fonts, CELL, width=CELL)
            colour = random.choice((INK, INK, *ACCENTS))
            canvas.word(0, 0, word, random.choice(FONTS), colour, random.choice((TALL, TALL, TALLER)))
            canvas.close()
    return _without_time(buffer.getvalue())


@contextmanager
def _new_pdf() -> Iterator[tuple[pdfium.PdfDocument, dict[str, object], BytesIO]]:
    """Yield a new PDF with its fonts, and the buffer to save it in."""
    buffer = BytesIO()
    pdf = pdfium.PdfDocument.new()
    fonts = {name: pdf_api.FPDFText_LoadStandardFont(pdf, name.encode()) for name in FONTS}
    yield pdf, fonts, buffer
    pdf.save(buffer)
    for font in fonts.values():
        pdf_api.FPDFFont_Close(font)
    pdf.close()


def _without_time(pdf: bytes) -> bytes:
    """Replace pdfium's timestamp, and the ID derived from it, by fixed values."""
    pdf = re.sub(rb"\(D:\d{14}", b"(D:20250101000000", pdf)
    return re.sub(rb"(?<=<)[0-9A-F]{32}(?=>)", b"0" * 32, pdf)


def _draw_page(pdf: pdfium.PdfDocument, fonts: dict[str, object], page: Page, style: Style) -> None:
    canvas = Canvas(pdf, fonts, CELL * sum(ROWS[block] for block in page.blocks))
    row = 0
    for block in page.blocks:
        if block in page.shown:
            DRAW[block](canvas, page, style, row)
        row += ROWS[block]
    canvas.close()


def _draw_title(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    colour = style.accent
    if style.banner:
        canvas.box(0, row * CELL, WIDTH, CELL - 2, style.accent)
        colour = WHITE
    canvas.word(style.title, row, page.place, style.bold, colour, TALLER)
    canvas.word(style.title + 1, row, page.theme, style.bold, colour, TALLER)


def _draw_text(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    for i, (subject, verb) in enumerate(page.sentences, start=row):
        canvas.word(style.indent, i, subject.capitalize(), style.plain)
        canvas.word(style.indent + 1, i, f"{verb}.", style.plain)


def _draw_table(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    columns = [style.indent + style.step * i for i in range(len(page.measures) + 1)]
    left, right = columns[0] * CELL, (columns[-1] + 1) * CELL
    canvas.box(left, row * CELL + 6, right - left, CELL - 12, style.tint)
    for column, measure in zip(columns[1:], page.measures, strict=True):
        canvas.word(column, row, measure, style.bold)
    for i, (good, values) in enumerate(zip(page.goods, page.values, strict=True), start=row + 1):
        canvas.word(columns[0], i, good, style.rows)
        for column, value in zip(columns[1:], values, strict=True):
            canvas.word(column, i, str(value), style.plain)
        if style.ruled:
            canvas.path([(left, (i + 1) * CELL - 2), (right, (i + 1) * CELL - 2)], style.tint, 1)


def _draw_chart(canvas: Canvas, page: Page, style: Style, row: int) -> None:
    if page.chart == "bars":
        axis = (style.indent + 1) * CELL
        for i, (label, height) in enumerate(zip(page.labels, page.heights, strict=True), start=row):
            canvas.word(style.indent, i, label, style.plain)
            canvas.box(axis, i * CELL + 12, 1.4 * height, CELL - 24, style.accent)
        canvas.path([(axis, row * CELL + 2), (axis, (row + len(page.labels)) * CELL - 2)], INK, 1)
        return
    floor, tall = (row + 2) * CELL, 1.8 * CELL
    columns = [style.indent + style.step * i for i in range(len(page.labels))]
    tops = [floor - tall * height / 100 for height in page.heights]
    canvas.path([(columns[0] * CELL, floor), ((columns[-1] + 1) * CELL, floor)], INK, 1)
    for column, label in zip(columns, page.labels, strict=True):
        canvas.word(column, row + 2, label, style.plain)
    if page.chart == "line":
        canvas.path([((x + 0.5) * CELL, top) for x, top in zip(columns, tops, strict=True)], style.accent, 2)
        return
    for column, top in zip(columns, tops, strict=True):
        canvas.box(column * CELL + 10, top, CELL - 20, floor - top, style.accent)


ROWS = {"title": 1, "text": 2, "table": 3, "chart": 3}  # of the grid
DRAW = {"title": _draw_title, "text": _draw_text, "table": _draw_table, "chart": _draw_chart}
