"""`RandSlotModel`: a `MultiVectorEncoder` with what library, training, evaluation and export need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ..errors import UsageError
from .batching import cut_by_positions
from .encoder import SlotEncoder
from .families.base import Backbone, Family
from .preprocessing import PreparedPage, Preprocessor
from .reader import Identity, Reads, Side, Vectors, find_teacher
from .settings import Settings


class RandSlotModel(MultiVectorEncoder):
    """A `MultiVectorEncoder` that is also a `PageReader`, so that a library can use it.

    A remote model is a `RandSlotModel` too, with another module as its encoder.
    """

    # `embed_queries`, which encodes queries of strangers for a library or service, treats special tokens in them as
    # text. `encode_query` does not, like the paper's code.
    plain_queries = True

    @property
    def encoder(self) -> SlotEncoder:
        """Its only module."""
        encoder: SlotEncoder = self[0]
        return encoder

    @property
    def backbone(self) -> Backbone:
        """The backbone, with its processors and family."""
        return self.encoder.parts

    @property
    def family(self) -> Family:
        """The family of the backbone."""
        return self.encoder.family

    @property
    def settings(self) -> Settings:
        """How it makes its vectors."""
        return self.encoder.settings

    def use(self, **settings: Any) -> None:
        """Change settings of a model in use: any of `Settings` except `slots` and `template`.

        Errors: UsageError for a wrong value, or another value of these two.
        """
        self.encoder.use(**settings)

    @property
    def page_opener(self) -> Callable[[Any], Any]:
        """A function that opens a page as the model reads it; it can be sent to other processes."""
        return self.preprocessor.open_page

    @property
    def preprocessor(self) -> Preprocessor:
        """The preprocessing of queries and pages; it can be sent to other processes."""
        return self.encoder.preprocessor

    def page_grid(self, features: dict[str, Any]) -> tuple[int, int] | None:
        """Return the rows and columns of visual tokens of the first page; None if it has no grid."""
        return self.family.page_grid(self.encoder.processors, features)

    # -- a `PageReader`

    @property
    def weights_key(self) -> str:
        """A hash of its weights, template and processors."""
        return self.encoder.weights_key()

    @property
    def identity(self) -> Identity:
        home, encoder = self.encoder.home, self.encoder
        settings = asdict(self.settings)
        del settings["visual_tokens" if self.reads == "text" else "text_tokens"]  # the one that it does not use
        return Identity(home.name, home.revision, self.weights_key, encoder.dtype, self.dimension, settings, self.reads)

    @property
    def teacher(self) -> Identity | None:
        """The teacher of a student, which makes query vectors only."""
        return find_teacher(self.encoder)

    @property
    def dimension(self) -> int:
        return self.encoder.get_embedding_dimension()

    @property
    def reads(self) -> Reads:
        return self.family.reads

    @property
    def page_pixels(self) -> int:
        return self.encoder.page_pixels

    def is_cut(self, page: str) -> bool:
        return self.reads == "text" and len(self.encoder.open_page(page)) < len(page.strip())

    def num_vectors(self, side: Side) -> int | None:
        return self.settings.num_vectors(side)

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        if not queries:
            return []
        own = self.settings.query_vectors
        if num_vectors is not None:
            if self.num_vectors("query") is None:
                raise UsageError("query_vectors is for models with slots: this one has a vector for every token")
            self.use(query_vectors=num_vectors)
        self.encoder.plain_queries = self.plain_queries
        try:
            return _to_numpy(self.encode_query(list(queries)))
        finally:
            self.use(query_vectors=own)
            self.encoder.plain_queries = False

    def embed_pages(self, pages: Sequence[Image.Image | str | PreparedPage]) -> list[Vectors]:
        if not pages:
            return []
        if self.teacher is not None:
            self.encoder.refuse_pages()
        prepared = [page for page in pages if isinstance(page, PreparedPage)]
        if len(prepared) == len(pages):
            return _to_numpy(self.encode_prepared(prepared, len(pages)))
        return _to_numpy(self.encode_document(list(pages), batch_size=len(pages)))

    def prepare_page(self, page: Image.Image | str) -> Image.Image | str | PreparedPage:
        """Preprocess a page, unless the model is remote; safe to call in threads."""
        return self.preprocessor.prepare_page(page) if isinstance(self.encoder, SlotEncoder) else page

    def encode_prepared(self, pages: Sequence[PreparedPage], batch: int) -> list[Tensor]:
        """Return the vectors (K, D) of each page; a batch has at most as many tokens as `batch` pages of full size."""
        self.eval()
        lengths = [page.features["input_ids"].shape[1] for page in pages]
        most = max(batch * self.preprocessor.num_tokens, max(lengths))
        found: dict[int, Tensor] = {}
        for numbers in cut_by_positions(lengths, most):
            features = self.preprocessor.join_pages([pages[number] for number in numbers])
            with torch.inference_mode():
                output = self(batch_to_device(features, self.device), task="document")
            for row, number in enumerate(numbers):
                mask = output["attention_mask"][row].bool()
                found[number] = output["token_embeddings"][row][mask]
        return [found[number] for number in range(len(pages))]

    # -- mteb, which by default treats a model in memory as a text model

    @property
    def mteb_model_meta(self) -> Any:
        """The metadata of mteb; the revision identifies weights and settings, so that mteb keeps results apart."""
        settings = blake2b(repr(self.settings).encode(), digest_size=4).hexdigest()
        name = f"randslot/{Path(self.encoder.source.name or 'in-memory').name}"
        return self._mteb().mteb_model_meta.model_copy(
            update={"name": name, "revision": f"{self.weights_key}-{settings}"}
        )

    def index(self, corpus: Any, **options: Any) -> None:
        """Index the pages of a task, for mteb."""
        self._search = self._mteb()
        self._search.index(corpus, **options)

    def search(self, queries: Any, **options: Any) -> Any:
        """Search the indexed pages, for mteb."""
        return self._search.search(queries, **options)

    def _mteb(self) -> Any:
        from mteb.models import MultiVectorWrapper

        wrapper = MultiVectorWrapper(self)
        modalities = self.encoder.modalities
        wrapper.mteb_model_meta = wrapper.mteb_model_meta.model_copy(update={"modalities": modalities})
        return wrapper


def _to_numpy(encoded: Sequence[Any]) -> list[Vectors]:
    return [np.asarray(vectors.float().cpu(), np.float32) for vectors in encoded]
