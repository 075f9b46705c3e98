"""What a model takes of a page, opened by a worker process: its image, or its text. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from PIL import Image

from ...errors import RandSlotError
from ...model.reader import Reads
from .workers import Renderers, hash_image


@dataclass(frozen=True)
class Content:
    """The image or the text of a page, and a hash of it: a page with the same hash has the same vectors."""

    page: Image.Image | str
    hash: str


def read_content(renderers: Renderers, reads: Reads, pixels: int, file: str, number: int) -> Content:
    """Open a page of a file as a model reads it: as an image of about `pixels` pixels, or as text.

    Errors: RandSlotError with the reason why it cannot be opened, or has no text for a model that reads text.
    """
    if reads == "image":
        image = renderers.render(file, number, pixels)
        return Content(image, hash_image(image))
    read = renderers.read_text(file, number)
    if read.problem:
        raise RandSlotError(read.problem)
    text = read.text
    if not text.strip():
        raise RandSlotError("it has no text, and this model reads text: use a model that reads images")
    return Content(text, _hash_text(text))


def _hash_text(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
