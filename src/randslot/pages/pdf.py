"""PDFs through pdfium: how many pages a file has, and a page as an image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock

import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api
from PIL import Image

from ..errors import RandSlotError
from .paths import is_file, show_pages

PIXELS = 1536 * 32 * 32  # of a page image: the default number of visual tokens, 32 x 32 pixels each
PDF_SIDE = 14_400  # points, 200 inches: the largest page that PDF readers support
PDFIUM = Lock()  # pdfium kills the process when two threads use it at once
NO_PAGES = re.compile(rb"/Kids\s*\[\s*\]")  # in a PDF's tree of pages
MOST_USES = 200  # of one open PDF: pdfium keeps the fonts and objects of every page until the PDF is closed


def num_pdf_pages(file: Path) -> int:
    """Return how many pages a PDF has.

    Errors: RandSlotError if it cannot be opened.
    """
    try:
        with PDFIUM, pdfium.PdfDocument(file) as pdf:
            return len(pdf)
    except pdfium.PdfiumError as error:
        raise RandSlotError(f"cannot open {file}: {_pdf_reason(file, error)}") from error


def render_pdf_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Render one page of a PDF, counted from 1, with about `pixels` pixels.

    Errors: RandSlotError if the file is missing, broken or encrypted, or has no such page.
    """
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
        key = _file_key(file)
        if self.pdf is None or self.key != key or self.num_uses >= MOST_USES:
            self.close()
            self.pdf, self.key, self.num_uses = pdfium.PdfDocument(file), key, 0
            self.num_pages = len(self.pdf)
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


def _file_key(file: Path) -> tuple[object, ...]:
    """Return what changes when a file is changed or replaced."""
    status = file.stat()
    return file, status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


@contextmanager
def open_pdf_page(file: Path, number: int, kept: OpenPdf | None = None) -> Iterator[pdfium.PdfPage]:
    """Open one page of a PDF, counted from 1; no other thread can use pdfium until it is closed.

    kept: where the PDF stays open afterwards; without it, it is closed.

    Errors: RandSlotError if the file is missing, broken or encrypted, or has no such page.
    """
    if not is_file(file):
        raise RandSlotError(f"PDF not found: {file}")
    try:
        with PDFIUM, _open(file, kept) as pdf:
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
        reason = _pdf_reason(file, error)
        raise RandSlotError(f"cannot read page {number} of {file}: {reason}") from error


def _open(file: Path, kept: OpenPdf | None) -> AbstractContextManager[pdfium.PdfDocument]:
    opened: AbstractContextManager[pdfium.PdfDocument] = kept.open(file) if kept else pdfium.PdfDocument(file)
    return opened


def _pdf_reason(file: Path, error: pdfium.PdfiumError) -> str:
    """Say why a PDF does not open; pdfium takes one without pages for a broken one."""
    if error.err_code == pdf_api.FPDF_ERR_PASSWORD:
        return "it is encrypted, and needs a password"
    if error.err_code != pdf_api.FPDF_ERR_FORMAT:
        return str(error)
    with file.open("rb") as content:
        return "it has no pages" if NO_PAGES.search(content.read(2**16)) else "it is corrupt, or not a PDF"
