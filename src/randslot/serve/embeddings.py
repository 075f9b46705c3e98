"""Vectors of queries and pages by the library's model, for whoever asks: those that wait together are encoded together.

Requests and answers have the shapes of OpenAI's /v1/embeddings and of vLLM's /pooling; see docs/agents.md.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import RandSlotError
from ..library.library import Library
from ..model.reader import PageReader, Side, Vectors
from ..pages import open_page
from .batches import Batches
from .limits import BATCH, EMBED_CHARACTERS, EMBED_PAGES, EMBED_PIXELS, QUERY_CHARACTERS, WAITING_EMBEDDINGS, Refused

PageContent = Image.Image | str


@dataclass(frozen=True)
class Encoded:
    """Vectors of one input, (K, D)."""

    vectors: Vectors

    def as_rows(self) -> list[list[float]]:
        rows: list[list[float]] = self.vectors.tolist()
        return rows

    def as_base64(self) -> str:
        """Return the numbers as little-endian float32, row after row."""
        return base64.b64encode(self.vectors.astype("<f4").tobytes()).decode()


class Embeddings:
    """Encodes queries and pages; each kind has a thread, so that queries do not wait for pages."""

    def __init__(self, library: Library, most: int = WAITING_EMBEDDINGS) -> None:
        self.library = library
        self.queries: Batches[Side, str, Vectors] = Batches(
            "queries", lambda _, texts: library.embed_queries(texts), batch=BATCH, most=most
        )
        self.pages: Batches[Side, PageContent, Vectors] = Batches(
            "pages", lambda _, pages: library.model.embed_pages(pages), batch=EMBED_PAGES, most=most
        )

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.queries.close()
        self.pages.close()

    def model(self) -> PageReader:
        """Return the model that encodes queries, and pages if it is the library's own.

        Errors: Refused if the library has none.
        """
        if self.library.binding is None:
            raise Refused(404, "this library has no model: it finds pages by their words")
        return self.library.query_model

    async def embed_queries(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the vectors of queries.

        Errors: Refused for one that is empty or too long, and if too many are waiting.
        """
        _check_texts(texts, QUERY_CHARACTERS)
        return await _gather([self.queries.ask("query", text) for text in texts])

    async def embed_pages(self, pages: Sequence[PageContent]) -> list[Encoded]:
        """Return the vectors of pages: images, or texts where the model reads text.

        Errors: Refused for what the model does not read, and if too many are waiting.
        """
        reads = self.model().reads
        if self.library.has_student:
            raise Refused(400, "this service has a light model for queries, which makes no vectors of pages")
        texts = [page for page in pages if isinstance(page, str)]
        if reads == "image" and texts:
            raise Refused(400, "this model reads images of pages, not their text: send an image_url")
        if reads == "text" and len(texts) < len(pages):
            raise Refused(400, "this model reads the text of pages, not images of them: send text")
        _check_texts(texts, EMBED_CHARACTERS)
        return await _gather([self.pages.ask("page", page) for page in pages])


async def _gather(futures: Sequence[Any]) -> list[Encoded]:
    found = await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
    return [Encoded(np.asarray(vectors, np.float32)) for vectors in found]


def _check_texts(texts: Sequence[str], most: int) -> None:
    for place, text in enumerate(texts):
        if not text.strip():
            raise Refused(400, f"input {place} is empty")
        if len(text) > most:
            raise Refused(400, f"input {place} has {len(text)} characters, and {most} are allowed")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused(400, f"input {place} has characters that are not valid text")


def read_message(messages: Sequence[Mapping[str, Any]]) -> PageContent:
    """Return the page that one message of a user holds: an image as a data: URL, or text.

    Errors: Refused if it is anything else. Images are not fetched from anywhere: a visitor must not make the service
    ask other machines.
    """
    if len(messages) != 1 or messages[0].get("role") != "user":
        raise Refused(400, "messages must be one message of the role user: a page")
    content = messages[0].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
        raise Refused(400, "the message must have one part: an image_url, or text")
    part = parts[0]
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    url = part.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if part.get("type") != "image_url" or not isinstance(url, str):
        raise Refused(400, "the message must have one part: an image_url, or text")
    return read_image(url)


def read_image(url: str) -> Image.Image:
    """Open the image of a data: URL.

    Errors: Refused if it is another URL, not an image, or too large.
    """
    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise Refused(400, "an image_url must be a data: URL, as in data:image/png;base64,...: nothing is fetched")
    try:
        content = base64.b64decode(data, validate=True)
        with Image.open(BytesIO(content)) as image:
            size = image.width * image.height
        if size > EMBED_PIXELS:
            raise Refused(400, f"the image has {size:,} pixels, and {EMBED_PIXELS:,} are allowed")
        return open_page(content)
    except Refused:
        raise
    except (binascii.Error, UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error) if isinstance(error, RandSlotError) else "it is not an image in base64"
        raise Refused(400, f"the image cannot be read: {reason}") from error
