"""From what people have (files, images) to what a model reads: an upright RGB image on white paper."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from .errors import RandSlotError

PageInput = str | os.PathLike[str] | Image.Image
WHITE = (255, 255, 255)


def open_page(page: PageInput) -> Image.Image:
    """Open one page as an upright RGB image.

    Errors: RandSlotError in one line that names the file, for a missing, corrupt, too large or foreign input.
    """
    if isinstance(page, Image.Image):
        return _read(page, getattr(page, "filename", "") or f"a {page.width}x{page.height} image")
    if not isinstance(page, (str, os.PathLike)):
        raise RandSlotError(f"a page must be an image or the path of one, not {type(page).__name__}")
    path = Path(page)
    if not path.is_file():
        raise RandSlotError(f"page image not found: {path}")
    try:
        with Image.open(path) as image:
            return _read(image, str(path))
    except UnidentifiedImageError as error:
        raise RandSlotError(f"not an image that can be read: {path}") from error
    except Image.DecompressionBombError as error:
        raise RandSlotError(f"image too large to open safely: {path} ({error})") from error
    except OSError as error:
        raise RandSlotError(f"cannot read page image {path}: {error}") from error


def _read(image: Image.Image, name: str) -> Image.Image:
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
    # Pillow's own conversion of 16-bit gray clips every value above 255 to white.
    values = np.asarray(image, dtype=np.float64)
    top = 65535.0 if image.mode != "F" else max(float(values.max(initial=0.0)), 1.0)
    if image.mode == "I" and values.max(initial=0.0) <= 255:
        top = 255.0
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
