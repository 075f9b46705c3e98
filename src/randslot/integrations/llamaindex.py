"""A retriever for LlamaIndex. The only file that imports llama_index."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ..extras import needs_extra
from ..library.library import Library
from ..library.results import By
from .pages import PICTURE_TYPE, Finder, encode_picture

with needs_extra():
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
        """library: an open one, its folder or its address. k: number of pages. by, filters: as in `Library.search`.

        pictures: return image nodes, with each page as a base64 JPEG; or call
        `randslot.integrations.pages.read_picture` when needed.
        """
        super().__init__(callback_manager=callback_manager)
        self.finder, self.pictures = Finder(library, k, by, filters), pictures

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hidden = ["document", "id", "score", "by", "snippet"]  # useless to a language model that reads the page
        nodes = []
        for text, metadata in self.finder.find(query_bundle.query_str):
            about = {"id_": metadata["id"], "text": text, "metadata": metadata, "excluded_llm_metadata_keys": hidden}
            node = TextNode(**about)
            if self.pictures:
                node = ImageNode(**about, image=encode_picture(metadata), image_mimetype=PICTURE_TYPE)
            nodes.append(NodeWithScore(node=node, score=metadata["score"]))
        return nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def close(self) -> None:
        """Close the library, if it was opened here."""
        self.finder.close()
