"""What is taken of a page, opened by a worker process: its text, and its image for a model that looks at pages."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ...errors import RandSlotError
from ...model.reader import Reads
from ...pages.text import NO_TEXT, PageText
from .workers import Renderers, hash_image


@dataclass(frozen=True)
class Content:
    """What a model takes of a page (None if there is no model, or nothing for it), the text of the page, and a hash.

    hash: of what the model takes; a page with the same hash has the same vectors. Without a model, of the text.
    cut: whether the page has more text than the model reads, where that is known already.
    """

    page: Any  # an image or a text, or what a model has made of it
    text: PageText
    hash: str
    cut: bool = False


def read_content(renderers: Renderers, reads: Reads | None, pixels: int, file: str, number: int) -> Content:
    """Open a page of a file: its text, and an image of about `pixels` pixels if that is what a model reads.

    A page without text has nothing for a model that reads text: it gets its vectors when OCR has read it.

    Errors: RandSlotError with the reason why it cannot be opened.
    """
    if reads == "image":
        image = renderers.render(file, number, pixels)
        return Content(image, _read_text_if_any(renderers, file, number), hash_image(image))
    text = renderers.read_text(file, number)
    wanted = reads == "text" and text.text.strip()
    return Content(text.text if wanted else None, text, hash_text(text.text))


def _read_text_if_any(renderers: Renderers, file: str, number: int) -> PageText:
    """Read the text of a page that can be seen; one whose text cannot be read counts as having none."""
    try:
        return renderers.read_text(file, number)
    except RandSlotError:
        return NO_TEXT


def hash_text(text: str) -> str:
    """Return a hash of a text; "" for none, since pages without text are not all the same."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if text else ""
