"""Page images with words on them, as a scanner makes them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont


def draw_scan(*lines: str) -> Image.Image:
    """Draw lines of text on a page."""
    image = Image.new("RGB", (600, 800), "white")
    for i, line in enumerate(lines):
        ImageDraw.Draw(image).text((80, 100 + 60 * i), line, "black", ImageFont.load_default(40))
    return image


def write_scan(file: Path, *lines: str) -> None:
    """Write such a page as an image file."""
    draw_scan(*lines).save(file)
