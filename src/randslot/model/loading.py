"""The front door: load a model, or make one that is not trained. All return a `RandSlotModel`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.util import get_device_name

from ..errors import UsageError
from .backbone import build_backbone, load_backbone
from .checkpoint import add_adapter, is_saved_model
from .embedding_loading import adopt_embedding_model
from .embedding_model import EmbeddingModel
from .encoder import SlotEncoder, load_encoder
from .families import find_family
from .hub import Source, find
from .model import RandSlotModel
from .settings import Settings


def load(
    name: str | Path,
    *,
    lora: bool | PeftConfig | Mapping[str, Any] = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    backbone: str | Path | None = None,
    **settings: Any,
) -> RandSlotModel:
    """Load a saved RandSlot model, or make a new one on a backbone; `name` is a folder or a hub id.

    lora: True for the paper's adapter, a table with another rank, alpha or dropout, or a PEFT config. dtype: by default
    bfloat16 on a GPU and float32 elsewhere. backbone: where the backbone of a saved adapter is now, if it has moved.

    settings: any of `Settings`; they override what was saved, but for `slots` and `template`, which are for a new
    model. slots: "random", "zero", "fixed", "learned" or "feedback": how it is trained; "tokens" appends nothing and
    gives every token a vector, and then `reduction` ("random", "kmeans", "semcluster" or "pool1d") brings each page to
    `page_vectors` when encoding. inference: what is appended when encoding. query_vectors, page_vectors: the budgets.
    visual_tokens: the most visual tokens a page may take. seed: for adapters, tables and random slots. template: what
    stands around queries and pages: "paper", or "embedding" on a retrieval model such as Qwen3-VL-Embedding.
    """
    return load_source(
        find(name, revision),
        lora=lora,
        device=device,
        dtype=dtype,
        attn_implementation=attn_implementation,
        backbone=backbone,
        **settings,
    )


def load_source(
    source: Source,
    *,
    lora: bool | PeftConfig | Mapping[str, Any] = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    backbone: str | Path | None = None,
    **settings: Any,
) -> RandSlotModel:
    """As `load`, of a model that was found."""
    changes = {key: value for key, value in settings.items() if value is not None}
    device = str(device or get_device_name())
    kind = choose_dtype(dtype, device)
    if is_saved_model(source):
        encoder = load_encoder(
            source, changes=changes, backbone=backbone, dtype=kind, attn_implementation=attn_implementation
        )
        return _finish(encoder, lora, device)
    if backbone is not None:
        raise UsageError(f"backbone= goes with a saved RandSlot model, and {source.name} is not one")
    chosen = Settings().change(**_with_inference(changes))
    parts = load_backbone(source, dtype=kind, attn_implementation=attn_implementation)
    return _finish(SlotEncoder(parts, chosen), lora, device)


def untrained(
    shape: str,
    *,
    lora: bool | PeftConfig | Mapping[str, Any] = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    **settings: Any,
) -> RandSlotModel:
    """Make a model with random weights: no download.

    shape: a real one, such as "qwen2.5-vl-3b" or "smolvlm-256m", a tiny one, such as "qwen3-vl-tiny", or the path of a
    JSON like those in `randslot/model/shapes`, where all are. `device="meta"` makes the shape without memory. Other
    options as `load`.
    """
    chosen = Settings().change(**_with_inference(settings))
    device = str(device or get_device_name())
    backbone = build_backbone(
        shape,
        seed=chosen.seed,
        device=device,
        dtype=choose_dtype(dtype, device),
        attn_implementation=attn_implementation,
    )
    return _finish(SlotEncoder(backbone, chosen), lora, device)


def tiny(family: str, **options: Any) -> RandSlotModel:
    """Make a tiny model with random weights, for tests and examples, of a family such as "qwen3-vl" or "smolvlm".

    Options as `untrained`.
    """
    return untrained(f"{find_family(family).name}-tiny", **options)


def adopt(model: Any) -> RandSlotModel | EmbeddingModel:
    """Return a model that plain sentence-transformers has loaded as a reader of pages.

    Errors: UsageError if it is something else.
    """
    if isinstance(model, MultiVectorEncoder) and isinstance(model[0], SlotEncoder):
        return RandSlotModel(modules=list(model), device=str(model.device))
    if isinstance(model, MultiVectorEncoder | SentenceTransformer):
        return adopt_embedding_model(model)
    raise UsageError(f"a library takes a loaded model, or the folder or hub id of one, not {type(model).__name__}")


def _with_inference(settings: dict[str, Any]) -> dict[str, Any]:
    """Let the strategy decide what is appended when encoding, unless it is said."""
    return {"inference": "", **settings}


def _finish(encoder: SlotEncoder, lora: bool | PeftConfig | Mapping[str, Any], device: str) -> RandSlotModel:
    if lora is True:
        lora = {}
    if isinstance(lora, Mapping):
        lora = encoder.family.make_lora(**lora)
    if lora is not False:
        encoder.parts = add_adapter(encoder.parts, lora, encoder.settings.seed)
    return RandSlotModel(modules=[encoder], device=device)


def choose_dtype(dtype: str | torch.dtype | None, device: str) -> torch.dtype:
    """Return the type of weights that is meant: by default bfloat16 on a GPU and float32 elsewhere."""
    if dtype is None:
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"dtype={dtype!r} is not a floating point type such as 'float32' or 'bfloat16'")
    return found
