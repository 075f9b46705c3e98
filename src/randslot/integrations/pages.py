"""Pages as frameworks take them: text, where it is from, a score; the picture when it is asked for."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError, first_line
from ..library.library import Library
from ..library.results import BY, By, Hit
from ..library.sharing import SharedLibrary
from ..pages import render_file_page
from ..pages.images import to_jpeg


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """A block of imports from a framework.

    Errors: ImportError in one line if the package is missing, or fails in whatever way when it is imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = f'this needs {package}: pip install "randslot[{extra}]" ({first_line(error)})'
        raise ImportError(line, name=error.name) from error
    except Exception as error:
        raise ImportError(f"{package} does not work here: {type(error).__name__}: {first_line(error)}") from error


PICTURE_PIXELS = 1200 * 1500
PICTURE_BYTES = 1_000_000
PICTURE_TYPE = "image/jpeg"


@dataclass(frozen=True)
class RetrievedPage:
    """A page that was found, with its whole text."""

    hit: Hit
    text: str

    @property
    def id(self) -> str:
        return self.hit.id

    @property
    def score(self) -> float:
        return self.hit.score

    def metadata(self) -> dict[str, Any]:
        """Return what is known of the page: the user's own metadata, then ours, which `read_picture` needs."""
        snippet = self.hit.snippet.text if self.hit.snippet else ""
        ours = {"source": self.hit.source, "page": self.hit.page, "document": self.hit.file, "id": self.hit.id}
        return {**self.hit.metadata, **ours, "score": self.hit.score, "by": self.hit.by, "snippet": snippet}


class Finder:
    """Finds pages in a library, from any thread."""

    def __init__(
        self,
        library: Library | str | os.PathLike[str],
        k: int = 5,
        by: By | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> None:
        """library: one that is open, or where it is; while another process has it open, that one is asked.

        k: how many pages. by, filters: as in `Library.search`.

        Errors: UsageError for a wrong value.
        """
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}")
        if by is not None and by not in BY:
            raise UsageError(f"by={by!r} is not one of {', '.join(BY)}")
        self.shared, self.k, self.by, self.filters = SharedLibrary(library), k, by, dict(filters or {})

    def find(self, query: str, k: int | None = None, filters: Mapping[str, Any] | None = None) -> list[RetrievedPage]:
        """Return the best pages, identical ones once; k and filters: others than its own.

        Errors: UsageError for filters that are not names and values.
        """
        chosen = self.filters if filters is None else dict(filters)
        if "operator" in chosen and chosen.keys() & {"field", "conditions"}:
            raise UsageError('filters are names and values, as in {"year": 2026}: there are no operators')
        with self.shared.use() as library:
            (hits,) = library.search_all([query], k or self.k, by=self.by, filters=chosen, collapse=True)
            return [RetrievedPage(hit, library.read_text(hit.id).text) for hit in hits]

    def close(self) -> None:
        """Let go of the library, if it was opened here."""
        self.shared.close()


def read_picture(metadata: Mapping[str, Any], pixels: int = PICTURE_PIXELS) -> bytes:
    """Return the picture of a page as a JPEG of bounded size, by the metadata of what a retriever gave.

    Errors: RandSlotError if its file is not there any more, or cannot be read.
    """
    return to_jpeg(render_file_page(Path(metadata["source"]), int(metadata["page"]), pixels), PICTURE_BYTES)


def encode_picture(metadata: Mapping[str, Any], pixels: int = PICTURE_PIXELS) -> str:
    """Return the picture of a page as base64 of a JPEG, as chat models take it."""
    return base64.b64encode(read_picture(metadata, pixels)).decode()
