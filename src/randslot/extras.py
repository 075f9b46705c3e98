"""Packages of extras, and the error if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingError

EXTRAS = {
    "accelerate": "model",
    "huggingface_hub": "model",
    "peft": "model",
    "safetensors": "model",
    "sentence_transformers": "model",
    "sklearn": "model",
    "tokenizers": "model",
    "torch": "model",
    "transformers": "model",
    "datasets": "train",
    "pyarrow": "train",
    "tensorboard": "train",
    "matplotlib": "evaluate",
    "mteb": "evaluate",
    "pydantic": "evaluate",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "grpc": "qdrant",
    "qdrant_client": "qdrant",
    "ray": "ray",
    "docx": "office",
    "olefile": "office",
    "openpyxl": "office",
    "pillow_heif": "office",
    "pptx": "office",
    "striprtf": "office",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "watchfiles": "watch",
    "langchain_core": "langchain",
    "llama_index": "llamaindex",
    "haystack": "haystack",
}


def describe_missing(error: ModuleNotFoundError, wanted: str = "") -> str:
    """Return what to install, in one line; "" if the package belongs to no extra.

    wanted: the extra with everything a command needs, to name instead of the package's own.
    """
    extra = EXTRAS.get(str(error.name).partition(".")[0])
    if extra is None:
        return ""
    if wanted and extra in ("model", "train", "evaluate"):
        extra = wanted
    return f'{"models need" if extra == "model" else "this needs"} {error.name}: pip install "randslot[{extra}]"'


@contextmanager
def needs_extra(wanted: str = "") -> Iterator[None]:
    """Convert a missing package of an extra to a MissingError. Context manager or decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        if line := describe_missing(error, wanted):
            raise MissingError(line, name=error.name) from error
        raise
