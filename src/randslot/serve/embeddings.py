"""The routes of an embedding server: /v1/models, /v1/embeddings as OpenAI has it, /pooling as vLLM has it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from ..errors import RandSlotError
from ..library.library import Library
from ..model.reader import PageReader, Side, Vectors
from ..pages import open_page
from .access import (
    BATCH,
    EMBED_CHARACTERS,
    EMBED_INPUTS,
    EMBED_PAGES,
    EMBED_PIXELS,
    QUERY_CHARACTERS,
    WAITING_EMBEDDINGS,
    Refused,
)
from .batches import Batches

PageContent = Image.Image | str


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

    async def embed_queries(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors of queries; refuse empty and long ones."""
        _check_texts(texts, QUERY_CHARACTERS)
        return await _gather([self.queries.ask("query", text) for text in texts])

    async def embed_pages(self, pages: Sequence[PageContent]) -> list[Vectors]:
        """Return the vectors of pages: images, or texts where the model reads text."""
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


async def _gather(futures: Sequence[Future[Vectors]]) -> list[Vectors]:
    found = await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
    return [np.asarray(vectors, np.float32) for vectors in found]


def _check_texts(texts: Sequence[str], most: int) -> None:
    for place, text in enumerate(texts):
        if not text.strip():
            raise Refused(400, f"input {place} is empty")
        if len(text) > most:
            raise Refused(400, f"input {place} has {len(text)} characters, and {most} are allowed")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused(400, f"input {place} has characters that are not valid text")


def read_message(messages: Sequence[Mapping[str, Any]]) -> PageContent:
    """Return the page in one message of a user: an image as a data: URL, or text.

    Nothing is fetched: a visitor must not make the service ask other machines.
    """
    if len(messages) != 1 or messages[0].get("role") != "user":
        raise Refused(400, "messages must be one message of the role user: a page")
    parts = messages[0].get("content")
    match [{"type": "text", "text": parts}] if isinstance(parts, str) else parts:
        case [{"type": "text", "text": str(text)}]:
            return text
        case [{"type": "image_url", "image_url": {"url": str(url)} | str(url)}]:
            return read_image(url)
    raise Refused(400, "the message must have one part: an image_url, or text")


def read_image(url: str) -> Image.Image:
    """Open the image of a data: URL; refuse other addresses and large images."""
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


Text = Annotated[str, Field(description="a query, or a page of a model that reads text")]


class EmbedBody(BaseModel):
    """The fields of both routes; other fields are ignored, as clients send many for other servers."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = Field(None, max_length=1000, description="as /v1/models names it; there is only one")
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=EMBED_INPUTS)] | None = None
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=1, description="a page: one message of the user, with one image_url that is a data: URL"
    )
    input_type: Literal["query", "document"] | None = Field(None, description="what `input` is; a query by default")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="only the model's own")

    @field_validator("input", mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """Give one message in place of one for each form that the input could have."""
        texts = given if isinstance(given, list) else [given]
        if given is None or (1 <= len(texts) <= EMBED_INPUTS and all(isinstance(text, str) for text in texts)):
            return given
        raise PydanticCustomError("texts", "must be a text, or a list of 1 to {most} texts", {"most": EMBED_INPUTS})


class PoolingBody(EmbedBody):
    task: Literal["token_embed"] | None = Field(None, description="several vectors an input")
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "little"


class Usage(BaseModel):
    prompt_tokens: int = Field(description="here, the number of vectors")
    total_tokens: int


class EmbeddingItem(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(BaseModel):
    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingItem]
    usage: Usage


class PoolingItem(BaseModel):
    object: Literal["pooling"] = "pooling"
    index: int
    data: list[list[float]] | str = Field(description="a row for each vector; or base64 of little-endian float32")


class PoolingAnswer(BaseModel):
    object: Literal["list"] = "list"
    id: str
    created: int
    model: str
    data: list[PoolingItem]
    usage: Usage


class Problem(BaseModel):
    message: str
    type: str
    code: int


class ProblemAnswer(BaseModel):
    error: Problem


class ServedModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: Literal["randslot"] = "randslot"
    root: str
    randslot: dict[str, Any] = Field(description="what `randslot.remote` needs to know of the model")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ServedModel]


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemAnswer, "description": "refused, and why"} for status in (422, 503, "4XX")
}


def add_embedding_routes(app: FastAPI, embeddings: Embeddings) -> None:
    """Add the routes to an app."""

    @app.get("/v1/models", tags=["vectors"], responses=ERRORS)
    async def models() -> ModelList:
        """The model of the library, if it has one."""
        if embeddings.library.binding is None:
            return ModelList(data=[])
        model = await asyncio.to_thread(embeddings.model)
        name = name_of(model)
        about = model.identity.as_dict() | {"name": name, "reads": model.reads, "page_pixels": model.page_pixels}
        return ModelList(data=[ServedModel(id=name, root=name, randslot=about)])

    @app.post("/v1/embeddings", tags=["vectors"], responses=ERRORS)
    async def embed(body: EmbedBody) -> EmbeddingAnswer:
        """One vector for each input, from a model that gives one; others are asked at /pooling."""
        model = await asyncio.to_thread(embeddings.model)
        side = find_side(body)
        if (num := model.num_vectors(side)) != 1:
            several = f"{num} vectors" if num else "a vector for every token"
            raise Refused(400, f"this model gives {several} of a {side}, not one: ask for them at /pooling")
        name, encoded = await encode(embeddings, body, model, side)
        data = []
        for index, vectors in enumerate(encoded):
            content = _as_base64(vectors) if body.encoding_format == "base64" else vectors[0].tolist()
            data.append(EmbeddingItem(index=index, embedding=content))
        return EmbeddingAnswer(model=name, data=data, usage=_usage(encoded))

    @app.post("/pooling", tags=["vectors"], responses=ERRORS)
    async def pool(body: PoolingBody) -> PoolingAnswer:
        """All vectors of each input, as the model gives them: unit vectors, to be compared by MaxSim."""
        model = await asyncio.to_thread(embeddings.model)
        name, encoded = await encode(embeddings, body, model, find_side(body))
        data = []
        for index, vectors in enumerate(encoded):
            content = _as_base64(vectors) if body.encoding_format == "base64" else vectors.tolist()
            data.append(PoolingItem(index=index, data=content))
        now = int(time.time())
        return PoolingAnswer(id=f"pooling-{now}", created=now, model=name, data=data, usage=_usage(encoded))


def name_of(model: PageReader) -> str:
    """Return the public name of a model, without its folders on this machine."""
    return Path(model.identity.name or "randslot").name


def find_side(body: EmbedBody) -> Side:
    """Return whether queries or pages are sent; refuse neither and both."""
    if (body.input is None) == (body.messages is None):
        raise Refused(400, "send either input, of queries, or messages, with a page")
    if body.messages is not None and body.input_type == "query":
        raise Refused(400, "a query is sent as input, not as messages")
    return "page" if body.messages is not None or body.input_type == "document" else "query"


async def encode(embeddings: Embeddings, body: EmbedBody, model: PageReader, side: Side) -> tuple[str, list[Vectors]]:
    """Return the name of the model and the vectors of each input; refuse another model or dimension."""
    if body.dimensions not in (None, model.dimension):
        raise Refused(400, f"vectors of this model have {model.dimension} dimensions, and no others")
    name = name_of(model)
    if body.model not in (None, name):
        raise Refused(404, f"there is no such model here, only {name}")
    if body.messages is not None:
        page = await asyncio.to_thread(read_message, body.messages)
        return name, await embeddings.embed_pages([page])
    texts = [body.input] if isinstance(body.input, str) else list(body.input or [])
    return name, await (embeddings.embed_pages(texts) if side == "page" else embeddings.embed_queries(texts))


def _as_base64(vectors: Vectors) -> str:
    """Return the numbers as little-endian float32, row after row."""
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()


def _usage(encoded: list[Vectors]) -> Usage:
    num = sum(len(vectors) for vectors in encoded)
    return Usage(prompt_tokens=num, total_tokens=num)
