"""The interface between a library and a model: `PageReader` and `Identity`. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, in_one_line

if TYPE_CHECKING:
    from PIL import Image

Side = Literal["query", "page"]
SIDES: tuple[Side, Side] = ("query", "page")
Reads = Literal["image", "text"]  # what a model reads of a page
Vectors = NDArray[np.float32]  # (K, D), unit length


def narrow(vectors: Vectors, width: int, num: int | None = None, *, unit: bool = True) -> Vectors:
    """Return the first `num` vectors, cut to `width` dimensions (0: all) and of unit length again.

    Vectors are rounded to half precision first, as libraries store them: so narrowing a library gives the same bits as
    encoding its pages at that width. unit: whether the vectors have unit length. Shape: (..., K, D).
    """
    vectors = vectors[..., :num, :]
    if not 0 < width < vectors.shape[-1]:
        return vectors
    cut = np.ascontiguousarray(vectors[..., :width].astype(np.float16).astype(np.float32))
    if not unit:
        return cut
    lengths = np.sqrt((cut * cut).sum(-1, keepdims=True))
    narrowed: Vectors = cut / np.maximum(lengths, np.float32(1e-12))  # padding stays zero
    return narrowed


@dataclass(frozen=True)
class Identity:
    """The identity of a model and its settings.

    name: a folder, a hub id or a server URL; None for a model built in memory. weights: a hash of weights and
    processors. settings: everything else that its vectors depend on. reads: the image or the text of a page.
    """

    name: str | None
    revision: str | None
    weights: str
    dtype: str
    dimension: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    reads: Reads = "image"

    def __str__(self) -> str:
        revision = f" at revision {self.revision}" if self.revision else ""
        return f"{self.name or 'a model in memory'}{revision} (weights {self.weights[:8]})"

    def num_vectors(self, side: Side) -> int | None:
        """Return the number of vectors of a query or page; None if it depends on the content."""
        every_token = self.settings.get("slots") == "tokens"
        reduced = side == "page" and self.settings.get("reduction", "none") != "none"
        if every_token and not reduced:
            return None
        return self.settings.get(f"{side}_vectors")

    def narrowed(self, page_vectors: int | None, width: int | None) -> Identity:
        """Return this identity with fewer or narrower page vectors; UsageError if the model has no such prefix."""
        settings, dimension = dict(self.settings), self.dimension
        if page_vectors is not None:
            own = self.num_vectors("page")
            # Only slots have an order. Names of users' strategies have a colon.
            if "slots" not in settings or settings["slots"] == "tokens" or ":" in settings.get("inference", ""):
                raise UsageError(f"{self}: its page vectors have no order, so they cannot be cut to {page_vectors}")
            if own is None or not 1 <= page_vectors <= own:
                raise UsageError(f"page_vectors={page_vectors}: this library has {own} a page")
            settings["page_vectors"] = page_vectors
        if width is not None:
            if not 1 <= width <= dimension:
                raise UsageError(f"width={width}: vectors of this library have {dimension} dimensions")
            if width < dimension:
                settings["width"] = dimension = width
        return replace(self, dimension=dimension, settings=settings)

    def as_dict(self) -> dict[str, Any]:
        """Return a flat dictionary, as in library.json."""
        first = {"name": self.name, "revision": self.revision, "weights": self.weights, "dtype": self.dtype}
        return {**first, **self.settings, "dimension": self.dimension, "reads": self.reads}


def read_identity(values: Mapping[str, Any]) -> Identity:
    """Read an identity that `as_dict` wrote; KeyError for a missing key."""
    settings = dict(values)
    own = {key: settings.pop(key) for key in ("name", "revision", "weights", "dtype", "dimension", "reads")}
    return Identity(**own, settings=settings)


def check_query(query: Any) -> str:
    """Return a query; RandSlotError if it is empty or not valid text."""
    if not isinstance(query, str):
        raise UsageError(f"a query must be text, not {type(query).__name__}; pages go to encode_document")
    if not query.strip():
        raise UsageError("empty query: enter at least one character other than a space")
    with in_one_line(f"read the query {ascii(query)[:80]}", UsageError):
        query.encode()  # lone surrogates cannot be encoded
    return query


def is_url(name: str) -> bool:
    """Whether the name of a model is a server URL."""
    return name.startswith(("http://", "https://"))


def find_teacher(model: object) -> Identity | None:
    """Return the teacher of a student; None if the model is not a student."""
    teacher: Identity | None = getattr(model, "teacher", None)
    return teacher


class PageReader(Protocol):
    """A model that turns queries and pages into vectors for MaxSim."""

    @property
    def identity(self) -> Identity:
        """The identity of the model with its current settings."""

    @property
    def dimension(self) -> int:
        """The dimension of its vectors."""

    @property
    def reads(self) -> Reads:
        """Whether it reads the image or the text of a page."""

    @property
    def page_pixels(self) -> int:
        """The maximum number of pixels it uses of a page image."""

    def is_cut(self, page: str) -> bool:
        """Whether the model truncates a text."""

    def num_vectors(self, side: Side) -> int | None:
        """Return the number of vectors of a query or page; None if it depends on the content."""

    def use(self, **settings: Any) -> None:
        """Change settings; UsageError for a setting that does not exist or cannot change."""

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        """Return the vectors of each query; num_vectors overrides the model's setting."""

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        """Return the vectors of each page (image or text), encoded in one batch."""
