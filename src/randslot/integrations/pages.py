"""Code shared by the retrievers: find pages with their text and metadata, and render them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..library.library import Library
from ..library.results import By
from ..library.sharing import SharedLibrary
from ..pages import render_file_page
from ..pages.images import to_jpeg

PICTURE_PIXELS = 1200 * 1500
PICTURE_BYTES = 1_000_000
PICTURE_TYPE = "image/jpeg"


class Finder:
    """Finds pages in a library. Thread-safe."""

    def __init__(
        self,
        library: Library | str | os.PathLike[str],
        k: int = 5,
        by: By | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> None:
        """library: an open one, its folder or its address. k: number of pages. by, filters: as in `Library.search`."""
        self.shared, self.k, self.by, self.filters = SharedLibrary(library), k, by, dict(filters or {})

    def find(
        self, query: str, k: int | None = None, filters: Mapping[str, Any] | None = None
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the texts of the best distinct pages, with the metadata that `read_picture` needs.

        k, filters: override the defaults. Errors: UsageError for filters with operators.
        """
        chosen = self.filters if filters is None else dict(filters)
        if "operator" in chosen and chosen.keys() & {"field", "conditions"}:
            raise UsageError('operators are not supported: pass filters such as {"year": 2026}')
        pages = []
        with self.shared.use() as library:
            for hit in library.search_all([query], k or self.k, by=self.by, filters=chosen, collapse=True)[0]:
                ours = {"source": hit.source, "page": hit.page, "document": hit.file, "id": hit.id, "score": hit.score}
                snippet = hit.snippet.text if hit.snippet else ""
                metadata = {**hit.metadata, **ours, "by": hit.by, "snippet": snippet}
                pages.append((library.read_text(hit.id).text, metadata))
        return pages

    def close(self) -> None:
        """Close the library, if it was opened here."""
        self.shared.close()


def read_picture(metadata: Mapping[str, Any], pixels: int = PICTURE_PIXELS) -> bytes:
    """Render a page as a JPEG of limited size. metadata: of a page from a retriever."""
    return to_jpeg(render_file_page(Path(metadata["source"]), int(metadata["page"]), pixels), PICTURE_BYTES)


def encode_picture(metadata: Mapping[str, Any], pixels: int = PICTURE_PIXELS) -> str:
    """Render a page as a base64 JPEG, as chat models expect."""
    return base64.b64encode(read_picture(metadata, pixels)).decode()
