"""Pages of files and images of all kinds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from ..errors import RandSlotError
from .formats import KINDS, PDF, PIXELS, find_page, is_file, short
from .images import image_page, num_image_pages, open_image, shrink, to_upright_rgb
from .pdf import OpenPdf, crop_pdf_page, num_pdf_pages, read_pdf_outline, read_pdf_text, render_pdf_page
from .text import NO_TEXT, Box, NoTextError, PageText


@dataclass(frozen=True, repr=False)
class Page:
    """One page of a document or an image; it reads its image and text lazily.

    source: a PDF or image file, an image, or the bytes of an image file. number: the page of a file, counted from 1.

    It caches neither image nor text: both can take megabytes, so a list of all pages of a library would not fit into
    memory.
    """

    source: str | os.PathLike[str] | bytes | Image.Image
    number: int = 1

    @classmethod
    def find(cls, page: PageInput) -> Page:
        """Resolve a page from an image, its bytes, a path, or "report.pdf#page=3"."""
        if isinstance(page, Page):
            return page
        if isinstance(page, (Image.Image, bytes)):
            return cls(page)
        if not isinstance(page, (str, os.PathLike)):
            raise RandSlotError(f"a page must be an image or the path of one, not {type(page).__name__}")
        path = Path(page).expanduser()
        if not is_file(path):
            if found := find_page(str(path)):
                return cls(Path(found[0]), found[1])
            raise RandSlotError(f"page image not found: {short(str(page))}")
        kind = KINDS.get(path.suffix.lower())
        if kind is PDF or (kind and kind.is_converted):
            raise RandSlotError(f"{path} is a document: choose a page, such as {path.name}#page=1")
        return cls(path)

    @property
    def file(self) -> Path | None:
        """The file of the page; None for images and bytes."""
        return None if isinstance(self.source, (bytes, Image.Image)) else Path(self.source)

    @property
    def name(self) -> str:
        """The name of the page in errors: "scan.png", "report.pdf#page=3", or a description of the image."""
        if isinstance(self.source, bytes):
            return f"of {len(self.source)} bytes"
        if isinstance(self.source, Image.Image):
            return getattr(self.source, "filename", "") or f"a {self.source.width}x{self.source.height} image"
        kind = KINDS.get(Path(self.source).suffix.lower())
        return f"{self.source}#page={self.number}" if kind and kind.has_pages else str(self.source)

    def __repr__(self) -> str:
        return f"Page({self.name})"

    def image(self, pixels: int = PIXELS) -> Image.Image:
        """Open the page as an upright RGB image. PDF pages get about `pixels` pixels; images keep their size.

        Errors: RandSlotError with the file name, if the file is missing, corrupt or too large, or has no such page.
        """
        if isinstance(self.source, Image.Image):
            return to_upright_rgb(self.source, self.name)
        if isinstance(self.source, bytes):
            return open_image(BytesIO(self.source), self.name, self.number)
        return open_file_page(Path(self.source), self.number, pixels)

    def text(self) -> PageText:
        """Read the text of the page from its file; images have none. Errors: as for `image`."""
        if isinstance(self.source, Image.Image):
            return NO_TEXT
        if isinstance(self.source, bytes):
            with image_page(BytesIO(self.source), self.name, self.number):
                return NO_TEXT
        return read_file_text(Path(self.source), self.number)


PageInput = str | os.PathLike[str] | bytes | Image.Image | Page


def open_page(page: PageInput, pixels: int = PIXELS) -> Image.Image:
    """Open one page as an upright RGB image.

    A page is an image, the path of an image file, the bytes of one, or "report.pdf#page=3", which is rendered at about
    `pixels` pixels; "scan.tif#page=2" is the second page of a TIFF.

    Errors: RandSlotError with the file name, if the file is missing, corrupt, too large or not a page.
    """
    return Page.find(page).image(pixels)


def read_page_text(page: PageInput) -> str:
    """Read the text of a page as for `open_page`. Errors: NoTextError if it has none."""
    found = Page.find(page)
    text = found.text()
    if text.problem:
        raise RandSlotError(text.problem)
    if not text.text.strip():
        raise NoTextError(f"page {found.name} has no text, and this model reads text")
    return text.text


def find_pdf(file: Path) -> Path | None:
    """Return the PDF of a file: the file itself, or a converted one; None for an image."""
    kind = KINDS.get(file.suffix.lower())
    if kind is PDF:
        return file
    if kind is None or not kind.is_converted:
        return None
    from .convert import convert_to_pdf  # takes 100 ms to import

    return convert_to_pdf(file)


def open_file_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Open one page (from 1) of a document or an image file."""
    pdf = find_pdf(file)
    return render_pdf_page(pdf, number, pixels) if pdf else open_image(file, str(file), number)


def render_file_page(file: Path, number: int, pixels: int) -> Image.Image:
    """Open one page of a file at about `pixels` pixels; smaller images keep their size."""
    pdf = find_pdf(file)
    return render_pdf_page(pdf, number, pixels) if pdf else open_image(file, str(file), number, pixels)


def crop_file_page(file: Path, number: int, box: Box, width: int, max_pixels: int = 2400 * 3200) -> Image.Image:
    """Open a part of a page at `width` pixels; smaller images are not enlarged."""
    pdf = find_pdf(file)
    if pdf:
        return crop_pdf_page(pdf, number, box, max_pixels, width)
    image = open_image(file, str(file), number, max_pixels)
    left, top, right, bottom = box
    part = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    image = image.crop(tuple(map(round, part)))  # type: ignore[arg-type]
    return shrink(image, min(width * width * image.height // image.width, max_pixels))


def read_outline(file: Path) -> list[tuple[int, str, int]]:
    """Return the outline of a document, as `read_pdf_outline`; [] for an image."""
    pdf = find_pdf(file)
    return read_pdf_outline(pdf) if pdf else []


def read_file_text(file: Path, number: int, kept: OpenPdf | None = None, *, with_boxes: bool = True) -> PageText:
    """Read the text of one page (from 1) of a file.

    kept: keeps a PDF open for the next page. with_boxes: read boxes of words; converted documents always have them.
    """
    pdf = find_pdf(file)
    if pdf is None:
        with image_page(file, str(file), number):
            return NO_TEXT
    if pdf != file:
        from .convert import read_plain_text

        if plain := read_plain_text(pdf, number):
            return plain
    return read_pdf_text(pdf, number, kept, with_boxes=with_boxes or pdf != file)


def num_pages(file: Path) -> int:
    """Count the pages of a document or an image file. Errors: RandSlotError if it is corrupt."""
    pdf = find_pdf(file)
    return num_pdf_pages(pdf) if pdf else num_image_pages(file)


def list_pages(folder: Path) -> list[str]:
    """List all pages below a folder by relative path: "scan.png", "report.pdf#page=3"."""
    found: list[str] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        pdf = find_pdf(file)
        if pdf:
            for number in range(1, num_pdf_pages(pdf) + 1):
                found.append(f"{name}#page={number}")
        elif file.suffix.lower() in KINDS:
            found.append(name)
    return found
