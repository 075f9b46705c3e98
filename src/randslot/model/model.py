"""The front door: load a model, or make one that is not trained. Both return a `MultiVectorEncoder`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftConfig
from PIL import Image
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util import get_device_name

from ..errors import UsageError
from .backbone import FAMILIES, PAGE_PROMPT, build_backbone, default_lora, load_backbone
from .checkpoint import add_adapter, is_saved_model
from .encoder import Settings, SlotEncoder, load_encoder
from .hub import find
from .reader import Identity, Reads, Side, Vectors


def load(
    name: str | Path,
    *,
    slots: str | None = None,
    inference: str | None = None,
    query_vectors: int | None = None,
    page_vectors: int | None = None,
    visual_tokens: int | None = None,
    lora: bool | PeftConfig = False,
    seed: int | None = None,
    reduction: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    backbone: str | Path | None = None,
) -> RandSlotModel:
    """Load a saved RandSlot model, or make a new one on a backbone; `name` is a folder or a hub id.

    slots: "random", "zero", "fixed", "learned" or "feedback": how it is trained (a new model only); "tokens" appends
    nothing and gives every token a vector, and then `reduction` ("random", "cluster", "kmeans" or "pooling") brings
    each page to `page_vectors` when encoding.
    inference: what is appended when encoding; overrides what was saved. query_vectors, page_vectors: the budgets.
    visual_tokens: the most visual tokens a page may take. lora: True, or a PEFT config. seed: for adapters, tables
    and random slots. dtype: by default bfloat16 on a GPU and float32 elsewhere. backbone: where the backbone of a
    saved adapter is now, if it has moved.
    """
    changes = _given(
        slots=slots,
        inference=inference,
        query_vectors=query_vectors,
        page_vectors=page_vectors,
        visual_tokens=visual_tokens,
        seed=seed,
        reduction=reduction,
    )
    device = str(device or get_device_name())
    kind = _dtype(dtype, device)
    source = find(name, revision)
    if is_saved_model(source):
        encoder = load_encoder(
            source, changes=changes, backbone=backbone, dtype=kind, attn_implementation=attn_implementation
        )
        return _finish(encoder, lora, device)
    if backbone is not None:
        raise UsageError(f"backbone= goes with a saved RandSlot model, and {name} is not one")
    settings = Settings(**changes)
    parts = load_backbone(source, dtype=kind, attn_implementation=attn_implementation)
    return _finish(SlotEncoder(parts, settings), lora, device)


def untrained(
    shape: str,
    *,
    slots: str = "random",
    inference: str = "",
    query_vectors: int = 4,
    page_vectors: int = 4,
    visual_tokens: int = 1536,
    lora: bool | PeftConfig = False,
    seed: int = 42,
    reduction: str = "none",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> RandSlotModel:
    """Make a model with random weights: no download.

    shape: "qwen2.5-vl-3b" or "qwen3-vl-4b" (the real shapes), "qwen2.5-vl-tiny" or "qwen3-vl-tiny", or the path of
    a JSON like those in `randslot/backbones`. `device="meta"` makes the shape without memory. Other options as `load`.
    """
    settings = Settings(slots, inference, query_vectors, page_vectors, visual_tokens, seed, reduction)
    device = str(device or get_device_name())
    backbone = build_backbone(
        shape, seed=seed, device=device, dtype=_dtype(dtype, device), attn_implementation=attn_implementation
    )
    return _finish(SlotEncoder(backbone, settings), lora, device)


def tiny(
    family: str,
    *,
    slots: str = "random",
    inference: str = "",
    query_vectors: int = 4,
    page_vectors: int = 4,
    visual_tokens: int = 1536,
    lora: bool | PeftConfig = False,
    seed: int = 42,
    reduction: str = "none",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> RandSlotModel:
    """Make a tiny model with random weights, for tests and examples: "qwen2.5-vl" or "qwen3-vl". Options as `load`."""
    if family not in FAMILIES.values():
        raise UsageError(f"unknown family {family!r}; known ones: {', '.join(FAMILIES.values())}")
    return untrained(
        f"{family}-tiny",
        slots=slots,
        inference=inference,
        query_vectors=query_vectors,
        page_vectors=page_vectors,
        visual_tokens=visual_tokens,
        lora=lora,
        seed=seed,
        reduction=reduction,
        device=device,
        dtype=dtype,
        attn_implementation=attn_implementation,
    )


class RandSlotModel(MultiVectorEncoder):
    """A `MultiVectorEncoder`, and the only thing of a model that the rest of the package knows.

    It is a `PageReader`: a library can be made with it.
    """

    @property
    def encoder(self) -> SlotEncoder:
        """The one module that it is made of."""
        encoder: SlotEncoder = self[0]
        return encoder

    @property
    def settings(self) -> Settings:
        """How it makes its vectors."""
        return self.encoder.settings

    def use(self, **settings: Any) -> None:
        """Change settings of a model in use: any of `Settings` but `slots`, which is what it was trained with.

        Errors: UsageError for a wrong value, or another `slots`.
        """
        self.encoder.use(**settings)

    # -- a reader of pages

    @property
    def identity(self) -> Identity:
        home = self.encoder.home
        return Identity(
            home.name, home.revision, self.weights_key, self.encoder.dtype, self.dimension, asdict(self.settings)
        )

    @property
    def dimension(self) -> int:
        return self.encoder.get_embedding_dimension()

    @property
    def reads(self) -> Reads:
        return "image"

    @property
    def page_pixels(self) -> int:
        return self.encoder.most_pixels

    def num_vectors(self, side: Side) -> int | None:
        return self.identity.num_vectors(side)

    @property
    def weights_key(self) -> str:
        """A hash of its weights and of the processors before them: other weights, other vectors."""
        return weights_key(self)

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        own = self.settings.query_vectors
        if num_vectors is not None:
            if self.num_vectors("query") is None:
                raise UsageError("query_vectors is for models with slots: this one has a vector for every token")
            self.use(query_vectors=num_vectors)
        try:
            encoded = self.encode_query(list(queries)) if queries else []
        finally:
            self.use(query_vectors=own)
        return [np.asarray(vectors.float().cpu(), np.float32) for vectors in encoded]

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        if not pages:
            return []
        encoded = self.encode_document(list(pages), batch_size=len(pages))
        return [np.asarray(vectors.float().cpu(), np.float32) for vectors in encoded]

    # -- mteb, which takes one in memory for a text model if it is not told otherwise

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb wants to know; the revision stands for weights and settings, by which mteb keeps results."""
        settings = blake2b(repr(self[0].settings).encode(), digest_size=4).hexdigest()
        name = f"randslot/{Path(self[0].source.name or 'in-memory').name}"
        return self._mteb().mteb_model_meta.model_copy(
            update={"name": name, "revision": f"{weights_key(self)}-{settings}"}
        )

    def index(self, corpus: Any, **options: Any) -> None:
        """Take in the pages of a task, for mteb."""
        self._search = self._mteb()
        self._search.index(corpus, **options)

    def search(self, queries: Any, **options: Any) -> Any:
        """Search the pages that were taken in, for mteb."""
        return self._search.search(queries, **options)

    def _mteb(self) -> Any:
        from mteb.models import MultiVectorWrapper

        wrapper = MultiVectorWrapper(self)
        wrapper.mteb_model_meta = wrapper.mteb_model_meta.model_copy(update={"modalities": ["text", "image"]})
        return wrapper


def weights_key(model: MultiVectorEncoder) -> str:
    """Return a hash of a model's weights and of the processors before it: other weights, other vectors."""
    if not isinstance(model[0], SlotEncoder):  # a server has them
        return str(model[0].weights)
    digest = blake2b(digest_size=12)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    encoder = model[0]
    digest.update(PAGE_PROMPT.encode() + encoder.image_processor.to_json_string().encode())
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()


def _finish(encoder: SlotEncoder, lora: bool | PeftConfig, device: str) -> RandSlotModel:
    if lora is not False:
        encoder.parts = add_adapter(encoder.parts, default_lora() if lora is True else lora, encoder.settings.seed)
    return RandSlotModel(modules=[encoder], device=device)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _dtype(dtype: str | torch.dtype | None, device: str) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"dtype={dtype!r} is not a floating point type such as 'float32' or 'bfloat16'")
    return found
