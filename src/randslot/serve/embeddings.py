"""The embedding API: /v1/models, /v1/embeddings as OpenAI has it, /pooling as vLLM has it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from ..errors import RandSlotError
from ..library.library import Library
from ..model.reader import PageReader, Side, Vectors
from ..pages import open_page
from .access import MAX_QUERY, Refused, Whole
from .batches import Batches

MAX_PIXELS = 50_000_000  # of an image
PageContent = Image.Image | str


class EmbedBody(BaseModel):
    """The fields of both routes; unknown fields are ignored, as clients send some for other servers."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = Field(None, max_length=1000, description="as /v1/models names it; there is only one")
    input: Annotated[list[str], Field(min_length=1, max_length=256)] | str | None = Field(
        None, description="queries, or pages of a model that reads text"
    )
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=1, description="a page: one message of the user, with one image_url that is a data: URL"
    )
    input_type: Literal["query", "document"] | None = Field(None, description="what `input` is; a query by default")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = Field(None, description="only the model's own")

    def find_side(self) -> Side:
        """Return whether queries or pages are sent; refuse neither and both."""
        if (self.input is None) == (self.messages is None) or (self.messages and self.input_type == "query"):
            raise Refused(400, "send either input, of queries, or messages, with a page")
        return "page" if self.messages is not None or self.input_type == "document" else "query"


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


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: Literal["randslot"] = "randslot"
    root: str
    randslot: dict[str, Any] = Field(description="what `randslot.remote` needs to know of the model")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Embeddings:
    """Encodes queries and pages; each has a thread, so that queries do not wait for pages."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.queries: Batches[Side, str, Vectors] = Batches(
            "queries", lambda _, texts: library.models.embed_queries(texts), batch=32, max_waiting=2_000
        )
        self.pages: Batches[Side, PageContent, Vectors] = Batches(
            "pages", lambda _, pages: library.models.model.embed_pages(pages), batch=4, max_waiting=2_000
        )

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        self.queries.close()
        self.pages.close()

    def model(self) -> PageReader:
        """Return the model that encodes queries, and pages if it is the library's own."""
        if self.library.binding is None:
            raise Refused(404, "this library has no model: it finds pages by their words")
        return self.library.models.query_model

    async def encode(self, body: EmbedBody, model: PageReader) -> tuple[str, list[Vectors]]:
        """Return the name of the model and the vectors of each input."""
        if body.dimensions not in (None, model.dimension):
            raise Refused(400, f"vectors of this model have {model.dimension} dimensions, and no others")
        name = _show_name(model)
        if body.model not in (None, name):
            raise Refused(404, f"there is no such model here, only {name}")
        side = body.find_side()
        inputs: Sequence[PageContent]
        if body.messages is not None:
            inputs = [await asyncio.to_thread(read_message, body.messages)]
        else:
            inputs = [body.input] if isinstance(body.input, str) else body.input or []
        wanted = {"image": "messages with an image_url", "text": "text"}
        max_characters = MAX_QUERY if side == "query" else 20_000
        for place, one in enumerate(inputs):
            if isinstance(one, str) and not (one.strip() and len(one) <= max_characters):
                raise Refused(
                    400, f"input {place} has {len(one)} characters: send 1 to {max_characters}, not all blank"
                )
            if side == "page" and model.reads != ("text" if isinstance(one, str) else "image"):
                raise Refused(400, f"this model reads pages as {model.reads}: send {wanted[model.reads]}")
        if side == "page" and self.library.has_student:
            raise Refused(400, "this service has a distilled query model, which cannot encode pages")
        if side == "query":
            futures = [self.queries.ask(side, str(text)) for text in inputs]
        else:
            futures = [self.pages.ask(side, page) for page in inputs]
        found = await asyncio.gather(*map(asyncio.wrap_future, futures))
        return name, [np.asarray(vectors, np.float32) for vectors in found]


def read_message(messages: list[dict[str, Any]]) -> PageContent:
    """Return the page in one message of a user: an image as a data: URL, or text.

    Nothing is fetched: a visitor must not make the service ask other machines.
    """
    match messages:
        case [{"role": "user", "content": str(text) | [{"type": "text", "text": str(text)}]}]:
            return text
        case [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": str(url)} | str(url)}]}]:
            return read_image(url)
    raise Refused(400, "messages must be one message of the role user with one part: an image_url, or text")


def read_image(url: str) -> Image.Image:
    """Open the image of a data: URL; refuse other addresses and large images."""
    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise Refused(400, "an image_url must be a data: URL, as in data:image/png;base64,...: nothing is fetched")
    try:
        content = base64.b64decode(data, validate=True)
        with Image.open(BytesIO(content)) as image:
            size = image.width * image.height
        if size <= MAX_PIXELS:
            return open_page(content)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error) if isinstance(error, RandSlotError) else "it is not an image in base64"
        raise Refused(400, f"the image cannot be read: {reason}") from error
    raise Refused(400, f"the image has {size:,} pixels, and {MAX_PIXELS:,} are allowed")


def add_embedding_routes(app: FastAPI, embeddings: Embeddings) -> None:
    """Add the routes to an app."""
    errors: dict[int | str, dict[str, Any]] = {}
    for status in (422, "4XX", "5XX"):
        errors[status] = {"model": ProblemAnswer, "description": "refused, and why"}

    @app.get("/v1/models", tags=["vectors"], responses=errors)
    async def models() -> ModelList:
        """The model of the library, if it has one."""
        if embeddings.library.binding is None:
            return ModelList(data=[])
        model = await asyncio.to_thread(embeddings.model)
        name = _show_name(model)
        about = model.identity.as_dict() | {"name": name, "reads": model.reads, "page_pixels": model.page_pixels}
        return ModelList(data=[ModelEntry(id=name, root=name, randslot=about)])

    @app.post("/v1/embeddings", tags=["vectors"], responses=errors)
    async def embed(body: EmbedBody) -> EmbeddingAnswer:
        """One vector for each input, from a model that gives one; others are asked at /pooling."""
        model = await asyncio.to_thread(embeddings.model)
        if (num := model.num_vectors(body.find_side())) != 1:
            raise Refused(400, f"this model gives {num or 'several'} vectors an input, not one: ask at /pooling")
        name, encoded = await embeddings.encode(body, model)
        data = []
        for index, vectors in enumerate(encoded):
            data.append(EmbeddingItem(index=index, embedding=_pack(vectors[0], body)))
        return EmbeddingAnswer(model=name, data=data, usage=_count(encoded))

    @app.post("/pooling", tags=["vectors"], responses=errors)
    async def pool(body: PoolingBody) -> PoolingAnswer:
        """All vectors of each input, as the model gives them: unit vectors, to be compared by MaxSim."""
        name, encoded = await embeddings.encode(body, await asyncio.to_thread(embeddings.model))
        data = []
        for index, vectors in enumerate(encoded):
            data.append(PoolingItem(index=index, data=_pack(vectors, body)))
        now = int(time.time())
        return PoolingAnswer(id=f"pooling-{now}", created=now, model=name, data=data, usage=_count(encoded))


def _show_name(model: PageReader) -> str:
    """Return the public name of a model, without its folders on this machine."""
    return Path(model.identity.name or "randslot").name


def _pack(vectors: Vectors, body: EmbedBody) -> Any:
    """Return vectors as lists of numbers, or as base64 of little-endian float32."""
    if body.encoding_format == "float":
        return vectors.tolist()
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()


def _count(encoded: list[Vectors]) -> Usage:
    num = sum(map(len, encoded))
    return Usage(prompt_tokens=num, total_tokens=num)
