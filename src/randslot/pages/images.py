"""Image files and images in memory as upright RGB images on white paper."""

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

LARGE = 50_000_000  # pixels, 200 MB: a larger image is made smaller while it is read, where a small one is wanted
GAP = 3.0  # times the wanted width and height, down to which pixels are averaged before the exact resampling
ROWS = 256  # about how many are converted at once


def num_image_pages(file: Path) -> int:
    """Return how many pages an image file has; only a TIFF can have more than one.

    Errors: RandSlotError if it is cut off or corrupt, by the pixels of its first page.
    """
    with image_page(file, str(file), 1) as image:
        num = getattr(image, "n_frames", 1) if KINDS[file.suffix.lower()].has_pages else 1
        image.seek(0)
        image.draft(None, (1, 1))  # does nothing if it is no JPEG
        image.load()
        return num


def open_image(source: Path | BytesIO, name: str, number: int = 1, pixels: int | None = None) -> Image.Image:
    """Open one page of an image file, counted from 1, shrunk to about `pixels` pixels if that is given.

    name: what errors call it. Of an image of more than `LARGE` pixels that is to be shrunk, only the file's own pixels
    are in memory; then values may differ by a little.
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
    """Return an image in RGB, turned as its EXIF data says, on white where it is transparent."""
    if not image.width or not image.height:
        raise RandSlotError(f"empty page image, {image.width}x{image.height} pixels: {name}")
    with _image_errors(name):
        image.load()
        return _to_rgb(_turn(image, image))


def shrink(image: Image.Image, pixels: int) -> Image.Image:
    """Return an image with at most about `pixels` pixels, of the same shape."""
    size = _find_size(image.size, pixels)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS, reducing_gap=GAP)


def to_jpeg(image: Image.Image, max_bytes: int) -> bytes:
    """Return an image as a JPEG file of at most `max_bytes`, made smaller if it must be."""
    while True:
        file = BytesIO()
        image.save(file, "JPEG", quality=80)
        if len(file.getvalue()) <= max_bytes or min(image.size) <= 16:
            return file.getvalue()
        image = image.resize((image.width * 3 // 4, image.height * 3 // 4))


def _find_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """Return the size of an image when it is shrunk to about `pixels` pixels."""
    scale = (pixels / (size[0] * size[1])) ** 0.5
    return size if scale >= 1 else (max(round(size[0] * scale), 1), max(round(size[1] * scale), 1))


def limit_aspect(image: Image.Image, max_aspect: float) -> Image.Image:
    """Pad an extremely wide or tall image with white until no side is more than `max_aspect` times the other."""
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
    """Turn what Pillow raises for a bad image into one line that names it."""
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
    """Read an opened image file upright and in RGB, some times smaller, but no smaller than `GAP` times as wanted.

    A JPEG is decoded at a reduced size. Of others, a few rows at a time are converted and averaged.
    """
    width, height = _find_size(image.size, pixels)
    image.draft(None, (round(GAP * width), round(GAP * height)))  # does nothing if it is no JPEG
    image.load()
    original = image
    if _is_deep(image):
        image = _to_8_bit(image)  # by the brightest of all pixels
    times = max(int(min(image.width / width, image.height / height) / GAP), 1)
    small = Image.new("RGB", (-(-image.width // times), -(-image.height // times)))
    rows = times * max(ROWS // times, 1)
    for top in range(0, image.height, rows):
        part = _to_rgb(image.crop((0, top, image.width, min(top + rows, image.height))))
        small.paste(part.reduce(times), (0, top // times))
    return _turn(small, original)


def _turn(image: Image.Image, original: Image.Image) -> Image.Image:
    """Turn an image as the EXIF data of the original say; an upright one is not copied, to save memory."""
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    turn = turns.get(original.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _is_deep(image: Image.Image) -> bool:
    """Whether an image is gray with more than 8 bits."""
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
    # Pillow's own conversion clips every value above 255 to white. White is the largest value of as many bits as the
    # image uses: scanners store 12 bits in 16.
    import numpy as np  # workers that read text do not need it

    values = np.asarray(image)
    brightest = float(values.max(initial=0))
    top = max(brightest, 1.0) if image.mode == "F" else 2.0 ** max(int(brightest).bit_length(), 8) - 1
    shown = np.empty(values.shape, np.uint8)
    for row in range(0, len(values), ROWS):  # as float64, a large image would take gigabytes
        scaled = values[row : row + ROWS].astype(np.float64) * (255.0 / top)
        shown[row : row + ROWS] = np.clip(scaled, 0, 255).round()
    return Image.fromarray(shown)
