"""Image files and images in memory as upright RGB images on white paper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import RandSlotError
from .kinds import TIFF_SUFFIXES

WHITE = (255, 255, 255)


def num_image_pages(file: Path) -> int:
    """Return how many pages an image file has; only a TIFF can have more than one.

    Errors: RandSlotError if it is not an image that can be opened.
    """
    with _image_errors(str(file)), Image.open(file) as image:
        return _num_frames(image) if file.suffix.lower() in TIFF_SUFFIXES else 1


def open_image(source: Path | BytesIO, name: str, number: int = 1) -> Image.Image:
    """Open one page of an image file, counted from 1; `name` is what errors call it.

    Errors: RandSlotError in one line if it is not an image, is corrupt or too large, or has no such page.
    """
    with image_page(source, name, number) as image:
        return to_upright_rgb(image, name)


@contextmanager
def image_page(source: Path | BytesIO, name: str, number: int) -> Iterator[Image.Image]:
    """Open one page of an image file without reading its pixels. Errors: as `open_image`."""
    with _image_errors(name), Image.open(source) as image:
        if number != 1:
            num = _num_frames(image)
            if not 1 <= number <= num:
                raise RandSlotError(f"{name} has {num} pages, so there is no page {number}")
            image.seek(number - 1)
        yield image


def to_upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image in RGB, turned as its EXIF data says, on white where it is transparent.

    Errors: RandSlotError if it is empty or its data are corrupt.
    """
    if not image.width or not image.height:
        raise RandSlotError(f"empty page image, {image.width}x{image.height} pixels: {name}")
    try:
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises on corrupt image data
        raise RandSlotError(f"cannot read page image {name}: {error}") from error


def shrink(image: Image.Image, pixels: int) -> Image.Image:
    """Return an image with at most about `pixels` pixels, of the same shape."""
    scale = (pixels / (image.width * image.height)) ** 0.5
    if scale >= 1:
        return image
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def limit_aspect(image: Image.Image, most: float) -> Image.Image:
    """Pad an extremely wide or tall image with white until no side is more than `most` times the other."""
    width, height = image.size
    least = int(np.ceil(max(width, height) / most))
    if min(width, height) >= least:
        return image
    size = (max(width, least), max(height, least))
    paper = Image.new("RGB", size, WHITE)
    paper.paste(image, ((size[0] - width) // 2, (size[1] - height) // 2))
    return paper


def _num_frames(image: Image.Image) -> int:
    return int(getattr(image, "n_frames", 1))


@contextmanager
def _image_errors(name: str) -> Iterator[None]:
    """Turn what Pillow raises for a bad image into one line that names it."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise RandSlotError(f"not an image that can be read: {name}") from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # above which Pillow refuses to open an image
        raise RandSlotError(f"image too large to open safely, more than {most:,} pixels: {name}") from error
    except OSError as error:
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
