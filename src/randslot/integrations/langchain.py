"""A retriever for LangChain. The only file that imports langchain_core."""

from __future__ import annotations

from typing import Any

from ..extras import needs_extra
from ..library.results import By
from .pages import PICTURE_TYPE, Finder, encode_picture

with needs_extra():
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict, PrivateAttr


class RandSlotRetriever(BaseRetriever):
    """Finds pages of a library: `RandSlotRetriever(library="mylib", k=3).invoke("deferred tax")`.

    library: an open `Library`, its folder or its address. k: number of pages. by, filters: as in `Library.search`.
    pictures: add the image of each page to its metadata, as a base64 JPEG; or call
    `randslot.integrations.pages.read_picture` when needed.
    """

    model_config = ConfigDict(extra="forbid")

    library: Any
    k: int = 5
    by: By | None = None
    filters: dict[str, Any] | None = None
    pictures: bool = False
    _finder: Finder = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._finder = Finder(self.library, self.k, self.by, self.filters)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun | None = None
    ) -> list[Document]:
        documents = []
        for text, metadata in self._finder.find(query):
            if self.pictures:
                metadata |= {"picture": encode_picture(metadata), "picture_type": PICTURE_TYPE}
            documents.append(Document(id=metadata["id"], page_content=text, metadata=metadata))
        return documents

    def close(self) -> None:
        """Close the library, if it was opened here."""
        self._finder.close()
