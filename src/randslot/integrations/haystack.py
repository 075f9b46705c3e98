"""A retriever for Haystack. The only file that imports haystack."""

import asyncio
import os
from typing import Any

from ..extras import needs_extra
from ..library.library import Library
from ..library.results import By
from .pages import PICTURE_TYPE, Finder, read_picture

with needs_extra():
    from haystack import component
    from haystack.dataclasses import ByteStream, Document


@component
class RandSlotRetriever:
    """Finds pages of a library: `RandSlotRetriever("mylib").run(query="deferred tax")["documents"]`."""

    def __init__(
        self,
        library: Library | str | os.PathLike[str],
        top_k: int = 5,
        by: By | None = None,
        filters: dict[str, Any] | None = None,
        pictures: bool = False,
    ) -> None:
        """library: an open one, its folder or its address. top_k: number of pages. by, filters: as in `Library.search`.

        pictures: add the image of each page as `blob`, a JPEG; or call `randslot.integrations.pages.read_picture` when
        needed.
        """
        # Haystack serializes plain attributes with a pipeline.
        self.library = library if isinstance(library, Library) else os.fspath(library)
        self.top_k, self.by, self.filters, self.pictures = top_k, by, filters, pictures
        self.finder = Finder(library, top_k, by, filters)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """Return the best pages; top_k and filters override the defaults."""
        documents = []
        for text, metadata in self.finder.find(query, top_k, filters):
            blob = ByteStream(read_picture(metadata), mime_type=PICTURE_TYPE) if self.pictures else None
            made = Document(id=metadata["id"], content=text, blob=blob, meta=metadata, score=metadata["score"])
            documents.append(made)
        return {"documents": documents}

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """Return the best pages, without blocking."""
        found: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, top_k, filters)
        return found

    def close(self) -> None:
        """Close the library, if it was opened here."""
        self.finder.close()
