"""Convert image files and images in memory to upright RGB images on white."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import RandSlotError
from ..extras import needs_extra
from .formats import KINDS, short, show_pages

LARGE = 50_000_000  # pixels, 200 MB: to shrink a larger image, it is downscaled while it is read
GAP = 3.0  # averaging stops at this multiple of the target size; the rest is resampled exactly
ROWS = 256  # rows converted at once, about


def num_image_pages(file: Path) -> int:
    """Count the pages of an image file; only a TIFF can have more than one.

    Errors: RandSlotError if its first page is truncated or corrupt.
    """
    with image_page(file, str(file), 1) as image:
        num = getattr(image, "n_frames", 1) if KINDS[file.suffix.lower()].has_pages else 1
        image.seek(0)
        image.draft(None, (1, 1))  # only JPEGs
        image.load()
        return num


def open_image(source: Path | BytesIO, name: str, number: int = 1, pixels: int | None = None) -> Image.Image:
    """Open one page (from 1) of an image file, shrunk to about `pixels` pixels if given.

    name: for errors. An image of more than `LARGE` pixels is shrunk without a full RGB copy in memory; its values may
    differ slightly.
    """
    with image_page(source, name, number) as image:
        if pixels is None:
            return to_upright_rgb(image, name)
        if image.width * image.height <= LARGE:
            return shrink(to_upright_rgb(image, name), pixels)
        return shrink(_read_reduced(image, pixels), pixels)


@contextmanager
def image_page(source: Path | BytesIO, name: str, number: int) -> Iterator[Image.Image]:
    """Open one page of an image file without reading its pixels."""
    if isinstance(source, Path) and source.suffix.lower() in (".heic", ".heif"):
        with needs_extra():
            from pillow_heif import register_heif_opener
        register_heif_opener()
    with _image_errors(name), Image.open(source) as image:
        if number != 1:
            num = getattr(image, "n_frames", 1)
            if not 1 <= number <= num:
                raise RandSlotError(f"{name} has {show_pages(num)}, so there is no page {number}")
            image.seek(number - 1)
        yield image


def to_upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert an image to RGB: rotated by its EXIF orientation, transparency on white."""
    if not image.width or not image.height:
        raise RandSlotError(f"empty page image, {image.width}x{image.height} pixels: {name}")
    with _image_errors(name):
        image.load()
        return _to_rgb(_rotate(image, image))


def shrink(image: Image.Image, pixels: int) -> Image.Image:
    """Shrink an image to about `pixels` pixels, if larger; keep its aspect ratio."""
    size = _find_size(image.size, pixels)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS, reducing_gap=GAP)


def to_jpeg(image: Image.Image, max_bytes: int) -> bytes:
    """Encode an image as a JPEG file of at most `max_bytes`, downscaled as needed."""
    while True:
        file = BytesIO()
        image.save(file, "JPEG", quality=80)
        if len(file.getvalue()) <= max_bytes or min(image.size) <= 16:
            return file.getvalue()
        image = image.resize((image.width * 3 // 4, image.height * 3 // 4))


def _find_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """Return the size of an image shrunk to about `pixels` pixels."""
    scale = (pixels / (size[0] * size[1])) ** 0.5
    return size if scale >= 1 else (max(round(size[0] * scale), 1), max(round(size[1] * scale), 1))


def limit_aspect(image: Image.Image, max_aspect: float) -> Image.Image:
    """Pad an image with white to an aspect ratio of at most `max_aspect`."""
    width, height = image.size
    min_side = math.ceil(max(width, height) / max_aspect)
    if min(width, height) >= min_side:
        return image
    size = (max(width, min_side), max(height, min_side))
    paper = Image.new("RGB", size, "white")
    paper.paste(image, ((size[0] - width) // 2, (size[1] - height) // 2))
    return paper


@contextmanager
def _image_errors(name: str) -> Iterator[None]:
    """Convert Pillow's errors to one-line errors with the image's name."""
    try:
        yield
    except RandSlotError:
        raise
    except UnidentifiedImageError as error:
        raise RandSlotError(f"not an image that can be read: {name}") from error
    except FileNotFoundError as error:
        raise RandSlotError(f"page image not found: {short(name)}") from error
    except Image.DecompressionBombError as error:
        raise RandSlotError(f"image too large to open safely: {name}: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise RandSlotError(f"cannot read page image {short(name)}: {error}") from error


def _read_reduced(image: Image.Image, pixels: int) -> Image.Image:
    """Read an opened image file upright and in RGB, downscaled to at least `GAP` times the target size.

    A JPEG is decoded at a reduced size; other images are converted and averaged a few rows at a time.
    """
    width, height = _find_size(image.size, pixels)
    image.draft(None, (round(GAP * width), round(GAP * height)))  # only JPEGs
    image.load()
    original = image
    if _is_deep(image):
        image = _to_8_bit(image)  # scaled by the brightest pixel of the whole image
    factor = max(int(min(image.width / width, image.height / height) / GAP), 1)
    small = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    rows = factor * max(ROWS // factor, 1)
    for top in range(0, image.height, rows):
        part = _to_rgb(image.crop((0, top, image.width, min(top + rows, image.height))))
        small.paste(part.reduce(factor), (0, top // factor))
    return _rotate(small, original)


def _rotate(image: Image.Image, original: Image.Image) -> Image.Image:
    """Rotate an image by the EXIF orientation of the original; do not copy an upright one."""
    transposes = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    transpose = transposes.get(original.getexif().get(ExifTags.Base.Orientation, 1))
    return image if transpose is None else image.transpose(transpose)


def _is_deep(image: Image.Image) -> bool:
    """Whether an image is greyscale with more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _to_rgb(image: Image.Image) -> Image.Image:
    if _is_deep(image):
        image = _to_8_bit(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image.getchannel("A"))
        return paper
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    # Pillow's conversion clips values above 255. Here, white is the largest value of the bits in use: scanners store 12
    # bits in 16.
    import numpy as np  # not needed to read text

    values = np.asarray(image)
    brightest = float(values.max(initial=0))
    top = max(brightest, 1.0) if image.mode == "F" else 2.0 ** max(int(brightest).bit_length(), 8) - 1
    result = np.empty(values.shape, np.uint8)
    for row in range(0, len(values), ROWS):  # as float64, a large image would take gigabytes
        scaled = values[row : row + ROWS].astype(np.float64) * (255.0 / top)
        result[row : row + ROWS] = np.clip(scaled, 0, 255).round()
    return Image.fromarray(result)
