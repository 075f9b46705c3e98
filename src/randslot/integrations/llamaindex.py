"""A retriever for LlamaIndex. The only file that imports llama_index."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ..library.library import Library
from ..library.results import By
from .pages import PICTURE_TYPE, Finder, RetrievedPage, encode_picture, importing

with importing("llama-index-core", "llamaindex"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode


class RandSlotRetriever(BaseRetriever):
    """Finds pages of a library: `RandSlotRetriever("mylib", k=3).retrieve("deferred tax")`."""

    def __init__(
        self,
        library: Library | str | os.PathLike[str],
        k: int = 5,
        *,
        by: By | None = None,
        filters: Mapping[str, Any] | None = None,
        pictures: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """library: an open one, its folder or its address. k: how many pages. by, filters: as in `Library.search`.

        pictures: return image nodes, with the picture of each page as base64 of a JPEG; without it, `read_picture` of
        `randslot.integrations.pages` gives it when it is needed.
        """
        super().__init__(callback_manager=callback_manager)
        self.finder, self.pictures = Finder(library, k, by, filters), pictures

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [self._make(page) for page in self.finder.find(query_bundle.query_str)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _make(self, page: RetrievedPage) -> NodeWithScore:
        hidden = ["document", "id", "score", "by", "snippet"]  # of no use to a language model that reads the page
        about = {"id_": page.id, "text": page.text, "metadata": page.metadata, "excluded_llm_metadata_keys": hidden}
        if self.pictures:
            node = ImageNode(**about, image=encode_picture(page.metadata), image_mimetype=PICTURE_TYPE)
        else:
            node = TextNode(**about)
        return NodeWithScore(node=node, score=page.score)

    def close(self) -> None:
        """Close the library, if it was opened here."""
        self.finder.close()
