"""Packages that come with an extra, and what is said in one line where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingError

MODEL = "model"  # the extra that every model needs
EXTRAS = {
    "accelerate": MODEL,
    "huggingface_hub": MODEL,
    "peft": MODEL,
    "safetensors": MODEL,
    "sentence_transformers": MODEL,
    "sklearn": MODEL,
    "tokenizers": MODEL,
    "torch": MODEL,
    "transformers": MODEL,
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
    "mcp": "mcp",
    "mcp_types": "mcp",
}
INCLUDED = (MODEL, "train", "evaluate")  # what a command that names its extra is complete with


def describe_missing(error: ModuleNotFoundError, wanted: str = "") -> str:
    """Return what to install, in one line; nothing if the package is of no extra.

    wanted: the extra that has all that a command needs, to be named in place of the package's own.
    """
    extra = EXTRAS.get(str(error.name).partition(".")[0])
    if extra is None:
        return ""
    if wanted and extra in INCLUDED:
        extra = wanted
    who = "models need" if extra == MODEL else "this needs"
    return f'{who} {error.name}: pip install "randslot[{extra}]"'


@contextmanager
def needs_extra(wanted: str = "") -> Iterator[None]:
    """A block, or a function, that imports packages of extras.

    Errors: MissingError in one line if one is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = describe_missing(error, wanted)
        if not line:
            raise
        raise MissingError(line, name=error.name) from error
