"""Files of known pages, and what a library finds of them."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from randslot.errors import UsageError
from randslot.library.address import read_address
from randslot.library.library import Library
from randslot.library.stores.qdrant_connection import connect
from randslot.model.reader import Identity, Reads, Side, Vectors
from support.models import noise

TOY_CHARACTERS = 200  # of a text that a toy reads
REAL = os.environ.get("RANDSLOT_QDRANT_URL")  # as in qdrant://localhost:6334?shards=6&replicas=2


@contextmanager
def new_collection(base: str) -> Iterator[str]:
    """Name a collection on a server, and delete it afterwards."""
    place, _, settings = base.partition("?")
    url = f"{place.rstrip('/')}/test-{uuid.uuid4()}" + (f"?{settings}" if settings else "")
    yield url
    connection = connect(read_address(url))
    for name in (connection.address.collection, f"{connection.address.collection}-files"):
        connection.ask("delete_collection", collection_name=name)
    connection.close()


@dataclass
class ToyReader:
    """A model that is a `PageReader` and nothing more: the vectors of a page are noise of a seed, its content.

    stop_after: batches after which it is interrupted. batches: the pages that it has encoded.
    """

    reads: Reads = "image"
    query_vectors: int = 3
    page_vectors: int = 2
    stop_after: int | None = None
    dimension: int = 16
    page_pixels: int = 64 * 96
    batches: list[Sequence[Image.Image | str]] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        return Identity(None, None, "toy", "float32", self.dimension, {"tone": "plain"}, self.reads)

    def is_cut(self, page: str) -> bool:
        return len(page) > TOY_CHARACTERS

    def num_vectors(self, side: Side) -> int | None:
        return self.query_vectors if side == "query" else self.page_vectors

    def use(self, **settings: Any) -> None:
        if settings != self.identity.settings:
            raise UsageError("a toy has one setting")

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        return [self.vectors(query.encode(), num_vectors or self.query_vectors) for query in queries]

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        if len(self.batches) == self.stop_after:
            raise KeyboardInterrupt
        self.batches.append(pages)
        contents = [page.encode() if isinstance(page, str) else page.tobytes() for page in pages]
        return [self.vectors(content) for content in contents]

    def vectors(self, content: bytes, num: int | None = None) -> Vectors:
        """Return the vectors of something: by default as many as a page has."""
        seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        values = (
            np.random.default_rng(seed).standard_normal((num or self.page_vectors, self.dimension)).astype(np.float32)
        )
        return values / np.linalg.norm(values, axis=1, keepdims=True)


def write_tiff(file: Path, seeds: Sequence[int]) -> None:
    """Write a TIFF whose pages are noise of these seeds."""
    first, *rest = [noise(64, 96, seed) for seed in seeds]
    first.save(file, save_all=True, append_images=rest)


def visible(library: Library) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for hit in library.search("x", 1000, exact=True):
        found.setdefault(Path(hit.source).name, set()).add(hit.page)
    return found


def scores(library: Library) -> dict[tuple[str, int], float]:
    return {(Path(hit.source).name, hit.page): hit.score for hit in library.search("x", 1000, exact=True)}


def same(one: Library, two: Library) -> bool:
    a, b = scores(one), scores(two)
    return a.keys() == b.keys() and np.allclose([a[key] for key in a], [b[key] for key in a], atol=1e-3)
