"""Pages of files and images, whatever their kind."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

from PIL import Image

from ..errors import RandSlotError
from .images import num_image_pages, open_image, to_upright_rgb
from .kinds import IMAGE_SUFFIXES
from .paths import FILE_PAGE, is_file, short
from .pdf import PIXELS, num_pdf_pages, render_pdf_page

PageInput = str | os.PathLike[str] | bytes | Image.Image


def open_page(page: PageInput, pixels: int = PIXELS) -> Image.Image:
    """Open one page as an upright RGB image.

    A page is an image, the path of an image file, the bytes of one, or "report.pdf#page=3", which is rendered at about
    `pixels` pixels; "scan.tif#page=2" is the second page of a TIFF.

    Errors: RandSlotError in one line that names the file, for a missing, corrupt, too large or foreign input.
    """
    if isinstance(page, Image.Image):
        return to_upright_rgb(page, getattr(page, "filename", "") or f"a {page.width}x{page.height} image")
    if isinstance(page, bytes):
        return open_image(BytesIO(page), f"of {len(page)} bytes")
    if not isinstance(page, (str, os.PathLike)):
        raise RandSlotError(f"a page must be an image or the path of one, not {type(page).__name__}")
    path = Path(page).expanduser()
    if not is_file(path):
        if found := FILE_PAGE.fullmatch(str(path)):
            return open_file_page(Path(found["file"]), int(found["number"]), pixels)
        raise RandSlotError(f"page image not found: {short(str(page))}")
    if path.suffix.lower() == ".pdf":
        raise RandSlotError(f"{path} has pages: name one, as in {path.name}#page=1")
    return open_image(path, str(path))


def open_file_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Open one page of a PDF, TIFF or other image file, counted from 1.

    Errors: RandSlotError as `open_page`, or if there is no such page.
    """
    if file.suffix.lower() == ".pdf":
        return render_pdf_page(file, number, pixels)
    if not is_file(file):
        raise RandSlotError(f"page image not found: {short(str(file))}")
    return open_image(file, str(file), number)


def num_pages(file: Path) -> int:
    """Return how many pages a PDF or an image file has; only a TIFF can have more than one image.

    Errors: RandSlotError if it cannot be opened, or is not a PDF or an image.
    """
    return num_pdf_pages(file) if file.suffix.lower() == ".pdf" else num_image_pages(file)


def list_pages(folder: Path) -> list[str]:
    """Return every page below a folder, by its path there: images, and the pages of PDFs as "report.pdf#page=3".

    Errors: RandSlotError if a PDF cannot be opened.
    """
    found: list[str] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if file.suffix.lower() == ".pdf":
            for number in range(1, num_pdf_pages(file) + 1):
                found.append(f"{name}#page={number}")
        elif file.suffix.lower() in IMAGE_SUFFIXES:
            found.append(name)
    return found
