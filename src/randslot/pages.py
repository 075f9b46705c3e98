"""From what people have (PDFs, image files, images) to what a model reads: an upright RGB image on white paper."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np
import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api
from PIL import Image, ImageOps, UnidentifiedImageError

from .errors import RandSlotError

PageInput = str | os.PathLike[str] | bytes | Image.Image
WHITE = (255, 255, 255)
PIXELS = 1536 * 32 * 32  # of a page image: what the default of visual tokens comes to, 32 pixels a side each
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
TIFF_SUFFIXES = (".tif", ".tiff")  # the images that can have several pages
PDF_SIDE = 14_400  # points, 200 inches: the largest page that PDF readers take
PDFIUM = Lock()  # pdfium kills the process when two threads use it at once
NO_PAGES = re.compile(rb"/Kids\s*\[\s*\]")  # in a PDF's tree of pages
FILE_PAGE = re.compile(r"(?P<file>.+\.(?:pdf|tiff?))#page=(?P<number>\d+)", re.IGNORECASE | re.DOTALL)


def open_page(page: PageInput, pixels: int = PIXELS) -> Image.Image:
    """Open one page as an upright RGB image.

    A page is an image, the path of an image file, the bytes of one, or "report.pdf#page=3", which is rendered at about
    `pixels` pixels; "scan.tif#page=2" is the second page of a TIFF.

    Errors: RandSlotError in one line that names the file, for a missing, corrupt, too large or foreign input.
    """
    if isinstance(page, Image.Image):
        return _read(page, getattr(page, "filename", "") or f"a {page.width}x{page.height} image")
    if isinstance(page, bytes):
        return _open_image(BytesIO(page), f"of {len(page)} bytes")
    if not isinstance(page, (str, os.PathLike)):
        raise RandSlotError(f"a page must be an image or the path of one, not {type(page).__name__}")
    path = Path(page).expanduser()
    if not is_file(path):
        if found := FILE_PAGE.fullmatch(str(path)):
            return open_file_page(Path(found["file"]), int(found["number"]), pixels)
        raise RandSlotError(f"page image not found: {short(str(page))}")
    if path.suffix.lower() == ".pdf":
        raise RandSlotError(f"{path} has pages: name one, as in {path.name}#page=1")
    return _open_image(path, str(path))


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def short(name: str) -> str:
    """Return a name for one line of an error: what was given, if it is an ordinary one."""
    return name if name.isprintable() and 0 < len(name) <= 300 else ascii(name[:80])


def page_file(page: str) -> Path:
    """Return the file that a page's path points into: the path itself, or the PDF before "#page=3"."""
    found = None if is_file(Path(page)) else FILE_PAGE.fullmatch(page)
    return Path(found["file"] if found else page)


def list_pages(folder: Path) -> list[str]:
    """Return every page below a folder, by its path there: images, and the pages of PDFs as "report.pdf#page=3".

    Errors: RandSlotError if a PDF cannot be opened.
    """
    found: list[str] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if file.suffix.lower() == ".pdf":
            found += [f"{name}#page={number}" for number in range(1, num_pdf_pages(file) + 1)]
        elif file.suffix.lower() in IMAGE_SUFFIXES:
            found.append(name)
    return found


def num_pages(file: Path) -> int:
    """Return how many pages a PDF or an image file has; only a TIFF can have more than one image.

    Errors: RandSlotError if it cannot be opened, or is no PDF and no image.
    """
    if file.suffix.lower() == ".pdf":
        return num_pdf_pages(file)
    with _image_errors(str(file)), Image.open(file) as image:
        return int(getattr(image, "n_frames", 1)) if file.suffix.lower() in TIFF_SUFFIXES else 1


def open_file_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Open one page of a PDF, TIFF or other image file, counted from 1.

    Errors: RandSlotError as `open_page`, or if there is no such page.
    """
    if file.suffix.lower() == ".pdf":
        return render_pdf_page(file, number, pixels)
    if not is_file(file):
        raise RandSlotError(f"page image not found: {short(str(file))}")
    return _open_image(file, str(file), number)


def shrink(image: Image.Image, pixels: int) -> Image.Image:
    """Return an image with at most about `pixels` pixels, of the same shape."""
    scale = (pixels / (image.width * image.height)) ** 0.5
    if scale >= 1:
        return image
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def num_pdf_pages(file: Path) -> int:
    """Return how many pages a PDF has.

    Errors: RandSlotError if it cannot be opened.
    """
    try:
        with PDFIUM, pdfium.PdfDocument(file) as pdf:
            return len(pdf)
    except pdfium.PdfiumError as error:
        raise RandSlotError(f"cannot open {file}: {_pdf_reason(file, error)}") from error


def _pdf_reason(file: Path, error: pdfium.PdfiumError) -> str:
    """Say in our words why a PDF does not open; pdfium takes one without pages for a broken one."""
    if error.err_code == pdf_api.FPDF_ERR_PASSWORD:
        return "it is encrypted, and needs a password"
    if error.err_code != pdf_api.FPDF_ERR_FORMAT:
        return str(error)
    with file.open("rb") as content:
        return "it has no pages" if NO_PAGES.search(content.read(2**16)) else "it is broken, or no PDF"


def render_pdf_page(file: Path, number: int, pixels: int = PIXELS) -> Image.Image:
    """Render one page of a PDF, counted from 1, with about `pixels` pixels.

    Errors: RandSlotError if the file is missing, broken or encrypted, or has no such page.
    """
    if not is_file(file):
        raise RandSlotError(f"PDF not found: {file}")
    try:
        with PDFIUM, pdfium.PdfDocument(file) as pdf:
            if not 1 <= number <= len(pdf):
                raise RandSlotError(f"{file} has {len(pdf)} pages, so there is no page {number}")
            page = pdf[number - 1]
            width, height = page.get_size()
            if not max(width, height) <= PDF_SIDE:
                raise RandSlotError(
                    f"page {number} of {file} is {width:.0f} x {height:.0f} points, more than {PDF_SIDE} a side"
                )
            image: Image.Image = page.render(scale=(pixels / max(width * height, 1.0)) ** 0.5).to_pil()
            return image.convert("RGB")
    except pdfium.PdfiumError as error:
        reason = _pdf_reason(file, error)
        raise RandSlotError(f"cannot read page {number} of {file}: {reason}") from error


def _open_image(source: Path | BytesIO, name: str, number: int = 1) -> Image.Image:
    with _image_errors(name), Image.open(source) as image:
        if number != 1:
            frames = int(getattr(image, "n_frames", 1))
            if not 1 <= number <= frames:
                raise RandSlotError(f"{name} has {frames} pages, so there is no page {number}")
            image.seek(number - 1)
        return _read(image, name)


@contextmanager
def _image_errors(name: str) -> Iterator[None]:
    """Say in one line of ours what Pillow found wrong with an image."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise RandSlotError(f"not an image that can be read: {name}") from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # what Pillow takes for a bomb
        raise RandSlotError(f"image too large to open safely, more than {most:,} pixels: {name}") from error
    except OSError as error:
        raise RandSlotError(f"cannot read page image {name}: {error}") from error


def _read(image: Image.Image, name: str) -> Image.Image:
    if not image.width or not image.height:
        raise RandSlotError(f"empty page image, {image.width}x{image.height} pixels: {name}")
    try:
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises on broken image data
        raise RandSlotError(f"cannot read page image {name}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_8_bit(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGB", image.size, WHITE)
        paper.paste(image, mask=image.getchannel("A"))
        return paper
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    # Pillow's own conversion clips every value above 255 to white. White is the largest value of as many bits as the
    # image uses: scanners store 12 bits in 16.
    values = np.asarray(image, dtype=np.float64)
    brightest = float(values.max(initial=0.0))
    top = max(brightest, 1.0) if image.mode == "F" else 2.0 ** max(int(brightest).bit_length(), 8) - 1
    return Image.fromarray(np.clip(values * (255.0 / top), 0, 255).round().astype(np.uint8))


def limit_aspect(image: Image.Image, most: float) -> Image.Image:
    """Pad an extremely long or tall image with white until its sides differ by `most` at the most."""
    width, height = image.size
    least = int(np.ceil(max(width, height) / most))
    if min(width, height) >= least:
        return image
    size = (max(width, least), max(height, least))
    paper = Image.new("RGB", size, WHITE)
    paper.paste(image, ((size[0] - width) // 2, (size[1] - height) // 2))
    return paper
