"""The embedding API: /v1/models, /v1/embeddings as in OpenAI's API, /pooling as in vLLM."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from ..errors import RandSlotError
from ..library.library import Library
from ..model.reader import PageReader, Side, Vectors, narrow
from ..pages import open_page
from .access import MAX_QUERY, Refused, Whole

MAX_PIXELS = 50_000_000  # of an image


class EmbedBody(BaseModel):
    """The fields of both routes; unknown fields are ignored, as clients send some meant for other servers."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = Field(None, max_length=1000, description="the name from /v1/models; there is only one")
    input: Annotated[list[str], Field(min_length=1, max_length=256)] | str | None = Field(
        None, description="queries, or pages of a model that reads text"
    )
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=1, description="a page: one user message with one image_url that is a data: URL"
    )
    input_type: Literal["query", "document"] | None = Field(None, description="what `input` is; a query by default")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = Field(None, description="truncate vectors to this size, if the model allows it")

    def find_side(self) -> Side:
        """Return whether the request has queries or pages; refuse neither and both."""
        if (self.input is None) == (self.messages is None) or (self.messages and self.input_type == "query"):
            raise Refused(400, "send either input (queries) or messages (a page)")
        return "page" if self.messages is not None or self.input_type == "document" else "query"

    def pack(self, vectors: Vectors) -> Any:
        """Return vectors as lists of numbers, or as base64 of little-endian float32."""
        vectors = np.asarray(vectors, "<f4")
        if self.encoding_format == "float":
            return vectors.tolist()
        return base64.b64encode(vectors.tobytes()).decode()


class PoolingBody(EmbedBody):
    task: Literal["token_embed"] | None = Field(None, description="several vectors per input")
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "little"


class Embeddings:
    """Encodes queries and pages in separate threads, so that queries do not wait for pages."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.threads = {"query": ThreadPoolExecutor(1, "queries"), "page": ThreadPoolExecutor(1, "pages")}

    def close(self) -> None:
        """Finish pending requests, then stop."""
        for thread in self.threads.values():
            thread.shutdown()

    async def find_model(self) -> PageReader:
        """Return the query model, which also encodes pages unless it is a student."""
        if self.library.binding is None:
            raise Refused(404, "this library has no model: only keyword search is available")
        return await asyncio.to_thread(lambda: self.library.models.query_model)

    async def encode(self, body: EmbedBody, model: PageReader) -> list[Vectors]:
        """Return the vectors of each input."""
        settings, full = model.identity.settings, model.dimension
        if "slots" in settings:
            widths = [one for one in settings.get("widths", ()) if one < full] + [full]
        else:  # third-party models do not declare their trained widths
            widths = list(range(1, full + 1))
        if body.dimensions not in (None, *widths):
            allowed = ", ".join(map(str, widths)) if "slots" in settings else f"1 to {full}"
            raise Refused(400, f"dimensions={body.dimensions}: this model supports {allowed}")
        if body.model not in (None, show_name(model)):
            raise Refused(404, f"unknown model {body.model[:100]!r}: use {show_name(model)}")
        side = body.find_side()
        inputs: Any = body.input
        if body.messages is not None:
            inputs = [await asyncio.to_thread(read_message, body.messages)]
        elif isinstance(inputs, str):
            inputs = [inputs]
        self._check(inputs, side, model)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.threads[side], self._encode, inputs, side)
        is_unit = bool(model.identity.settings.get("unit", True))
        return [narrow(vectors, body.dimensions or 0, unit=is_unit) for vectors in found]

    def _check(self, inputs: list[Any], side: Side, model: PageReader) -> None:
        wanted = {"image": "messages with an image_url", "text": "text"}
        max_characters = MAX_QUERY if side == "query" else 20_000
        for place, one in enumerate(inputs):
            if isinstance(one, str) and not (one.strip() and len(one) <= max_characters):
                raise Refused(400, f"input {place} has {len(one)} characters: send 1 to {max_characters}")
            if side == "page" and model.reads != ("text" if isinstance(one, str) else "image"):
                raise Refused(400, f"this model reads pages as {model.reads}: send {wanted[model.reads]}")
        if side == "page" and self.library.has_student:
            raise Refused(400, "this service uses a distilled query model, which cannot encode pages")

    def _encode(self, inputs: list[Any], side: Side) -> list[Vectors]:
        models, size = self.library.models, 32 if side == "query" else 4
        embed: Callable[[list[Any]], list[Vectors]]
        embed = models.embed_queries if side == "query" else models.model.embed_pages
        vectors: list[Vectors] = []
        for start in range(0, len(inputs), size):
            vectors += embed(inputs[start : start + size])
        return vectors


def show_name(model: PageReader) -> str:
    """Return the public name of a model, without its folders on this machine."""
    return Path(model.identity.name or "randslot").name


def read_message(messages: list[dict[str, Any]]) -> Image.Image | str:
    """Return the page of a user message: an image as a data: URL, or text.

    Other URLs are refused (server-side request forgery).
    """
    match messages:
        case [{"role": "user", "content": str(text) | [{"type": "text", "text": str(text)}]}]:
            return text
        case [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": str(url)} | str(url)}]}]:
            return read_image(url)
    raise Refused(400, "messages must be one user message with one part: an image_url or text")


def read_image(url: str) -> Image.Image:
    """Open the image of a data: URL; refuse other URLs and large images."""
    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise Refused(400, "image_url must be a data: URL, such as data:image/png;base64,...")
    try:
        content = base64.b64decode(data, validate=True)
        with Image.open(BytesIO(content)) as image:
            size = image.width * image.height
        if size <= MAX_PIXELS:
            return open_page(content)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error) if isinstance(error, RandSlotError) else "it is not an image in base64"
        raise Refused(400, f"the image cannot be read: {reason}") from error
    raise Refused(400, f"the image has {size:,} pixels: the limit is {MAX_PIXELS:,}")


def add_embedding_routes(app: FastAPI, embeddings: Embeddings) -> None:
    """Add the routes to an app. Responses have the fields of OpenAI's API and vLLM."""
    errors: dict[int | str, dict[str, Any]] = {}
    for status in (422, "4XX", "5XX"):
        errors[status] = {"description": "request refused, with the reason, in OpenAI's format"}

    @app.get("/v1/models", tags=["vectors"], responses=errors)
    async def models() -> dict[str, Any]:
        """List the model of the library, if it has one."""
        if embeddings.library.binding is None:
            return {"object": "list", "data": []}
        model = await embeddings.find_model()
        name = show_name(model)
        about = model.identity.as_dict() | {"name": name, "reads": model.reads, "page_pixels": model.page_pixels}
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "randslot", "root": name, "randslot": about}
        return {"object": "list", "data": [entry]}

    @app.post("/v1/embeddings", tags=["vectors"], responses=errors)
    async def embed(body: EmbedBody) -> dict[str, Any]:
        """Return one vector per input; for multi-vector models, use /pooling."""
        model = await embeddings.find_model()
        if (num := model.num_vectors(body.find_side())) != 1:
            raise Refused(400, f"this model returns {num or 'several'} vectors per input: use /pooling")
        data = []
        for index, vectors in enumerate(await embeddings.encode(body, model)):
            data.append({"object": "embedding", "index": index, "embedding": body.pack(vectors[0])})
        usage = {"prompt_tokens": len(data), "total_tokens": len(data)}
        return {"object": "list", "model": show_name(model), "data": data, "usage": usage}

    @app.post("/pooling", tags=["vectors"], responses=errors)
    async def pool(body: PoolingBody) -> dict[str, Any]:
        """Return all vectors of each input, to be compared by MaxSim."""
        model = await embeddings.find_model()
        data = []
        num = 0
        for index, vectors in enumerate(await embeddings.encode(body, model)):
            data.append({"object": "pooling", "index": index, "data": body.pack(vectors)})
            num += len(vectors)
        now, usage = int(time.time()), {"prompt_tokens": num, "total_tokens": num}
        about = {"object": "list", "id": f"pooling-{now}", "created": now, "model": show_name(model)}
        return about | {"data": data, "usage": usage}
