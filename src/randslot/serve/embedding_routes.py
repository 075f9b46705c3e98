"""The routes of an embedding server: /v1/models, /v1/embeddings as OpenAI has it, /pooling as vLLM has it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from ..model.reader import PageReader, Side
from .embeddings import Embeddings, Encoded, read_message
from .limits import EMBED_INPUTS, Refused

Format = Literal["float", "base64"]
Text = Annotated[str, Field(description="a query, or a page of a model that reads text")]


class EmbedBody(BaseModel):
    """What is common to both; what other servers take besides is ignored, as clients send much of it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = Field(None, max_length=1000, description="as /v1/models names it; there is only one")
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=EMBED_INPUTS)] | None = None
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=1, description="a page: one message of the user, with one image_url that is a data: URL"
    )
    input_type: Literal["query", "document"] | None = Field(None, description="what `input` is; a query by default")
    encoding_format: Format = "float"
    dimensions: int | None = Field(None, description="only the model's own")

    @field_validator("input", mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """Tell in one line what must be sent; else one is told of each form that it could have had."""
        texts = given if isinstance(given, list) else [given]
        if given is None or (1 <= len(texts) <= EMBED_INPUTS and all(isinstance(text, str) for text in texts)):
            return given
        raise PydanticCustomError("texts", "neither a text nor texts", {"most": EMBED_INPUTS})

    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else list(self.input or [])


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
        return ModelList(data=[describe(await asyncio.to_thread(embeddings.model))])

    @app.post("/v1/embeddings", tags=["vectors"], responses=ERRORS)
    async def embed(body: EmbedBody) -> EmbeddingAnswer:
        """One vector for each input, from a model that gives one; others are asked at /pooling."""
        model = await asyncio.to_thread(embeddings.model)
        side = find_side(body)
        if (num := model.num_vectors(side)) != 1:
            several = f"{num} vectors" if num else "a vector for every token"
            raise Refused(400, f"this model gives {several} of a {side}, not one: ask for them at /pooling")
        name = check_model(body, model)
        encoded = await _encode(embeddings, body, side)
        data = []
        for index, one in enumerate(encoded):
            vector = one.as_base64() if body.encoding_format == "base64" else one.as_rows()[0]
            data.append(EmbeddingItem(index=index, embedding=vector))
        return EmbeddingAnswer(model=name, data=data, usage=_usage(encoded))

    @app.post("/pooling", tags=["vectors"], responses=ERRORS)
    async def pool(body: PoolingBody) -> PoolingAnswer:
        """All vectors of each input, as the model gives them: unit vectors, to be compared by MaxSim."""
        model = await asyncio.to_thread(embeddings.model)
        name = check_model(body, model)
        encoded = await _encode(embeddings, body, find_side(body))
        data = []
        for index, one in enumerate(encoded):
            rows = one.as_base64() if body.encoding_format == "base64" else one.as_rows()
            data.append(PoolingItem(index=index, data=rows))
        now = int(time.time())
        return PoolingAnswer(id=f"pooling-{now}", created=now, model=name, data=data, usage=_usage(encoded))


def describe(model: PageReader) -> ServedModel:
    """Return how a model is listed: its name, without the folders before it, and what vectors depend on."""
    identity = model.identity
    known = identity.as_dict() | {"name": name_of(model), "reads": model.reads, "page_pixels": model.page_pixels}
    return ServedModel(id=name_of(model), root=name_of(model), randslot=known)


def name_of(model: PageReader) -> str:
    """Return what visitors call a model; where it is on this machine is not for them."""
    return Path(model.identity.name or "randslot").name


def check_model(body: EmbedBody, model: PageReader) -> str:
    """Return the name of the model that is asked.

    Errors: Refused if it is another one, or vectors of another size are asked for.
    """
    if body.dimensions not in (None, model.dimension):
        raise Refused(400, f"vectors of this model have {model.dimension} dimensions, and no others")
    name = name_of(model)
    if body.model not in (None, name):
        raise Refused(404, f"there is no such model here, only {name}")
    return name


def find_side(body: EmbedBody) -> Side:
    """Return whether queries or pages are sent.

    Errors: Refused if it is neither or both.
    """
    if (body.input is None) == (body.messages is None):
        raise Refused(400, "send either input, of queries, or messages, with a page")
    if body.messages is not None and body.input_type == "query":
        raise Refused(400, "a query is sent as input, not as messages")
    return "page" if body.messages is not None or body.input_type == "document" else "query"


async def _encode(embeddings: Embeddings, body: EmbedBody, side: Side) -> list[Encoded]:
    if body.messages is not None:
        page = await asyncio.to_thread(read_message, body.messages)
        return await embeddings.embed_pages([page])
    if side == "page":
        return await embeddings.embed_pages(body.texts())
    return await embeddings.embed_queries(body.texts())


def _usage(encoded: list[Encoded]) -> Usage:
    num = sum(len(one.vectors) for one in encoded)
    return Usage(prompt_tokens=num, total_tokens=num)
