"""Where page vectors are kept and searched: one small interface, with an engine behind it.

A store knows pages by the id of their file (one version of it) and their number. What a file is, and whether its pages
may be found, is the manifest's business: a search is given the files that count and those that are hidden.

Shapes: K vectors of one page or query, D dimension.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import RandSlotError

Vectors = NDArray[np.float32]
BYTES_PER_NUMBER = 2  # of a vector: stores keep half precision


class DamagedError(RandSlotError):
    """Vectors that should be there cannot be read."""


def page_id(file: str, number: int) -> str:
    """Return the id of a page, which is the same whenever and wherever it is stored."""
    return str(uuid.uuid5(uuid.UUID(file), str(number)))


@dataclass(frozen=True)
class StoredPage:
    """A page to keep: the file's id, its number from 1, a hash of its image, and its unit vectors (K, D)."""

    file: str
    number: int
    image: str
    vectors: Vectors

    @property
    def id(self) -> str:
        return page_id(self.file, self.number)


@dataclass(frozen=True)
class Where:
    """Which pages a search looks at: those of `files` (None: of all), not of `hidden` ones, in a range of numbers."""

    files: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()
    first: int = 1
    last: int | None = None


@dataclass(frozen=True)
class StoreHit:
    """A page that was found, and its MaxSim score."""

    id: str
    file: str
    number: int
    score: float


class Store(Protocol):
    """Pages and their vectors. What `add` and `delete` did survives a killed process once they have returned."""

    def add(self, pages: Sequence[StoredPage]) -> None:
        """Keep pages; one that is there already is replaced."""

    def delete(self, file: str) -> None:
        """Forget the pages of a file."""

    def search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        """Return the k best pages of each query (K, D), best first.

        exact: score every page in full; otherwise a store may look at compressed vectors first.

        Errors: DamagedError if vectors cannot be read.
        """

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        """Return pages by id, their vectors in half precision; those that are not there are left out.

        Errors: DamagedError if vectors cannot be read.
        """

    def images(self, file: str) -> dict[int, str]:
        """Return the hash of each stored page of a file, by number."""

    def counts(self) -> dict[str, int]:
        """Return how many pages of each file are stored."""

    def flush(self) -> None:
        """Bring everything to the disk, so that it survives a power cut too."""

    def optimize(self) -> None:
        """Make searches fast after many changes."""

    def close(self) -> None:
        """Let go of files and locks."""
