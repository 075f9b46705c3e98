"""From files to vectors: which pages are wanted, what comes back of each, and what does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..stores.store import Vectors


@dataclass(frozen=True)
class WantedPages:
    """Pages of a file that are to be read.

    file: its id. known: hashes of pages whose vectors are stored already; they are not encoded again.
    """

    file: str
    source: str
    numbers: tuple[int, ...]
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadPage:
    """A page that was read: the hash of what the model takes of it, and its vectors; None if its hash is known.

    file: the file's id. error: why it could not be opened; then there is nothing else.
    """

    file: str
    number: int
    hash: str = ""
    vectors: Vectors | None = None
    error: str = ""


class FileReader(Protocol):
    """Opens pages of files and has a model encode them."""

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        """Yield the pages, some at a time; after one that cannot be opened, others of its file may be left out."""
