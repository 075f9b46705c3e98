"""From files to vectors and text: which pages are wanted, what comes back of each, and what does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...pages.text import PageText
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
    """A page that was read: the hash of what was read of it, its vectors, and its text.

    file: the file's id. vectors: None if the hash is known, or there is no model, or no text for it. text: None if it
    was not asked for. error: why the page could not be opened; then there is nothing else. cut: whether the page has
    more text than the model has read.
    """

    file: str
    number: int
    hash: str = ""
    vectors: Vectors | None = None
    text: PageText | None = None
    error: str = ""
    cut: bool = False


class FileReader(Protocol):
    """Opens pages of files, and has a model encode them if the library has one."""

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        """Yield the pages, some at a time; after one that cannot be opened, others of its file may be left out."""
