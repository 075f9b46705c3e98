"""A student: a small text model that makes the vectors of queries as a large one does. Whose, it records by hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers.util import get_device_name
from torch import Tensor

from ..errors import UsageError
from .backbone import build_backbone, list_shapes, load_backbone
from .checkpoint import is_saved_model, merge_adapter, read_files
from .encoder import SlotEncoder
from .families.family import Backbone
from .families.text_model import TextModel
from .hub import find
from .model import RandSlotModel
from .reader import Identity
from .settings import Settings

TINY = "llama-tiny"  # the shape that "tiny" stands for


def make_student(name: str, teacher: Identity, *, layers: int = 0, seed: int = 42) -> RandSlotModel:
    """Make a student that has not learned yet, in float32, with zero slots.

    name: a folder or hub id of a text model, whose weights it begins with, an adapter merged; or a shape to build with
    random ones, by its name, "tiny", or a JSON file. layers: only so many, the first ones, but of a model that makes
    vectors its last one too, if there are two; 0: all.

    An earlier student of the same teacher goes on from where it is.

    Errors: UsageError for a teacher without a fixed number of vectors, for a student that is no text model, and for one
    of another teacher.
    """
    num = teacher.num_vectors("query")
    if num is None:
        raise UsageError(f"{teacher} has a vector for every token of a query: a student learns a fixed number of them")
    parts, makes_vectors, head = _find_parts(name, teacher, seed)
    if not isinstance(parts.family, TextModel):
        raise UsageError(f"student {name} is a {parts.family} model: queries are text, so name a text model")
    if layers:
        # The last layer of a model that was trained to make vectors makes them; one that predicts words does not.
        parts.family.keep_layers(parts.model, layers, last=makes_vectors and layers > 1)
    settings: dict[str, Any] = {"slots": "zero", "query_vectors": num, "page_vectors": num, "seed": seed}
    encoder = SlotEncoder(parts, Settings(**settings))
    encoder.follow(teacher)
    if encoder.head is not None and head:
        encoder.head.load_state_dict(head)
    return RandSlotModel(modules=[encoder], device=get_device_name())


def _find_parts(name: str, teacher: Identity, seed: int) -> tuple[Backbone, bool, dict[str, Tensor]]:
    """Return what a student begins with, whether that makes vectors, and the projection of an earlier student."""
    shape = TINY if name == "tiny" else name
    if not Path(name).is_dir() and (shape.endswith(".json") or shape in list_shapes()):
        return build_backbone(shape, seed=seed, dtype=torch.float32), False, {}
    source = find(name)
    if not is_saved_model(source):
        return load_backbone(source, dtype=torch.float32), False, {}
    saved = read_files(source, dtype=torch.float32)
    if saved.teacher is not None and (saved.teacher.weights, saved.teacher.settings) != (
        teacher.weights,
        teacher.settings,
    ):
        raise UsageError(f"student {name} has learned from {saved.teacher}, and this is {teacher}: name another start")
    merge_adapter(saved.backbone.model).requires_grad_(True)
    return saved.backbone, True, saved.head
