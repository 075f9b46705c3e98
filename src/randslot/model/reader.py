"""What a reader of pages is: all that a library needs of a model, whatever is behind it. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

Side = Literal["query", "page"]
SIDES: tuple[Side, Side] = ("query", "page")
Reads = Literal["image", "text"]  # what a model takes of a page
Vectors = NDArray[np.float32]  # (K, D), unit length


@dataclass(frozen=True)
class Identity:
    """Which model this is, and how it makes vectors.

    name: a folder, a hub id or the address of a server; None for a model that was made in memory. weights: a hash of
    the weights and of the processors before them. settings: all else that its vectors depend on. reads: whether it
    takes the image of a page or its text.
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
        """Return how many vectors a query or a page has; None if that depends on what is in it."""
        every_token = self.settings.get("slots") == "tokens"
        reduced = side == "page" and self.settings.get("reduction", "none") != "none"
        if every_token and not reduced:
            return None
        return self.settings.get(f"{side}_vectors")

    def as_dict(self) -> dict[str, Any]:
        """Return it as one flat table, as library.json keeps it."""
        first = {"name": self.name, "revision": self.revision, "weights": self.weights, "dtype": self.dtype}
        return {**first, **self.settings, "dimension": self.dimension, "reads": self.reads}


def read_identity(values: Mapping[str, Any]) -> Identity:
    """Read an identity as `as_dict` wrote it.

    Errors: KeyError for what is missing.
    """
    own = ("name", "revision", "weights", "dtype", "dimension")
    settings = {key: value for key, value in values.items() if key not in (*own, "reads")}
    return Identity(**{key: values[key] for key in own}, settings=settings, reads=values["reads"])


def check_query(query: Any) -> str:
    """Return a query that can be encoded.

    Errors: UsageError in one line if it is not text, empty, or broken.
    """
    if not isinstance(query, str):
        raise UsageError(f"a query must be text, not {type(query).__name__}; pages go to encode_document")
    if not query.strip():
        raise UsageError("empty query: a query needs at least one character that is not a space")
    if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
        raise UsageError(f"a query has characters that are not valid text: {ascii(query)[:80]}")
    return query


def is_url(name: str) -> bool:
    """Whether a model's name is the address of a server."""
    return name.startswith(("http://", "https://"))


def find_teacher(model: object) -> Identity | None:
    """Return whose vectors of queries a student makes; None for a model that has vectors of its own."""
    teacher: Identity | None = getattr(model, "teacher", None)
    return teacher


class PageReader(Protocol):
    """A model that turns queries and pages into vectors that can be compared by MaxSim."""

    @property
    def identity(self) -> Identity:
        """Which model this is, as it is set now."""

    @property
    def dimension(self) -> int:
        """The dimension of its vectors."""

    @property
    def reads(self) -> Reads:
        """Whether it takes the image of a page or its text."""

    @property
    def page_pixels(self) -> int:
        """The most pixels of a page image that it looks at."""

    def is_cut(self, page: str) -> bool:
        """Whether a text is longer than what it reads of a page; the rest has no part in the vectors."""

    def num_vectors(self, side: Side) -> int | None:
        """Return how many vectors a query or a page has; None if that depends on what is in it."""

    def use(self, **settings: Any) -> None:
        """Change settings; a value equal to the present one is always accepted.

        Errors: UsageError for one that this model does not have, or that cannot be changed.
        """

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        """Return the vectors of each query; num_vectors: another budget than the model's own.

        Errors: UsageError for a query without text, or a budget that the model does not have.
        """

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        """Return the vectors of each page, all in one batch: images, or texts for a model that reads text."""
