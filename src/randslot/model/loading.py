"""Makes RandSlot models: loads them, adds slots to a backbone, builds untrained ones and students."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig
from sentence_transformers.util import get_device_name
from torch import Tensor

from ..errors import UsageError
from .backbone import build_backbone, list_shapes, load_backbone
from .checkpoint import add_adapter, is_saved_model, merge_adapter, read_files
from .encoder import SlotEncoder, load_encoder
from .families import find_family
from .families.text import TextFamily
from .hub import Source, find
from .model import RandSlotModel
from .reader import Identity
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
    """Like `load`, for a resolved source."""
    changes = {key: value for key, value in settings.items() if value is not None}
    device = str(device or get_device_name())
    weights = choose_dtype(dtype, device)
    if is_saved_model(source):
        encoder = load_encoder(
            source, changes=changes, backbone=backbone, dtype=weights, attn_implementation=attn_implementation
        )
        return _finish(encoder, lora, device)
    if backbone is not None:
        raise UsageError(f"backbone= goes with a saved RandSlot model, and {source.name} is not one")
    chosen = Settings().change(**{"inference": "", **changes})  # "": what the strategy appends
    parts = load_backbone(source, dtype=weights, attn_implementation=attn_implementation)
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
    chosen = Settings().change(**{"inference": "", **settings})  # "": what the strategy appends
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


def _finish(encoder: SlotEncoder, lora: bool | PeftConfig | Mapping[str, Any], device: str) -> RandSlotModel:
    if lora is True:
        lora = {}
    if isinstance(lora, Mapping):
        lora = encoder.family.make_lora(**lora)
    if lora is not False:
        encoder.parts = add_adapter(encoder.parts, lora, encoder.settings.seed)
    return RandSlotModel(modules=[encoder], device=device)


def choose_dtype(dtype: str | torch.dtype | None, device: str) -> torch.dtype:
    """Return the dtype of weights: by default bfloat16 on a GPU and float32 elsewhere."""
    if dtype is None:
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"dtype={dtype!r} is not a floating point type such as 'float32' or 'bfloat16'")
    return found


def make_student(name: str, teacher: Identity, *, layers: int = 0, seed: int = 42) -> RandSlotModel:
    """Make a student, a small text model that learns the query vectors of a teacher: in float32, with zero slots.

    name: a folder or hub id of a text model to start from, adapter merged; or a shape to build with random weights: its
    name, "tiny", or a JSON file. layers: keep only this many, the first ones, and the last one if the start makes
    vectors; 0: all. A student of the same teacher continues from its weights.

    Errors: UsageError for a teacher without a fixed number of vectors, a start that is no text model, or a student of
    another teacher.
    """
    num = teacher.num_vectors("query")
    if num is None:
        raise UsageError(f"{teacher} has a vector for every token of a query: a student learns a fixed number of them")
    head: dict[str, Tensor] = {}
    makes_vectors = False
    shape = "llama-tiny" if name == "tiny" else name
    if not Path(name).is_dir() and (shape.endswith(".json") or shape in list_shapes()):
        parts = build_backbone(shape, seed=seed, dtype=torch.float32)
    elif not is_saved_model(source := find(name)):
        parts = load_backbone(source, dtype=torch.float32)
    else:
        saved = read_files(source, dtype=torch.float32)
        old = saved.teacher
        if old is not None and (old.weights, old.settings) != (teacher.weights, teacher.settings):
            raise UsageError(f"student {name} has learned from {old}, and this is {teacher}: name another start")
        merge_adapter(saved.backbone.model).requires_grad_(True)
        parts, head, makes_vectors = saved.backbone, saved.head, True
    if not isinstance(parts.family, TextFamily):
        raise UsageError(f"student {name} is a {parts.family} model: queries are text, so name a text model")
    if layers:
        # The last layer of a model that was trained to make vectors makes them; one that predicts words does not.
        parts.family.keep_layers(parts.model, layers, last=makes_vectors and layers > 1)
    encoder = SlotEncoder(parts, Settings(slots="zero", query_vectors=num, page_vectors=num, seed=seed))
    encoder.follow(teacher)
    if encoder.head is not None and head:
        encoder.head.load_state_dict(head)
    return RandSlotModel(modules=[encoder], device=get_device_name())
