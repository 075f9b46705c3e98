"""A model: what turns pages and queries into vectors. Its face is `RandSlotModel`; nothing outside looks behind it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..extras import needs_extra

if TYPE_CHECKING:
    from .encoder import SlotEncoder
    from .loading import load, tiny, untrained
    from .model import RandSlotModel
    from .opening import open_model
    from .reader import Identity, PageReader
    from .remote_model import remote
    from .sentence_model import EmbeddingModel
    from .settings import Settings

__all__ = [
    "EmbeddingModel",
    "Identity",
    "PageReader",
    "RandSlotModel",
    "Settings",
    "SlotEncoder",
    "load",
    "open_model",
    "remote",
    "tiny",
    "untrained",
]

_HOMES = {
    "EmbeddingModel": "sentence_model",
    "Identity": "reader",
    "PageReader": "reader",
    "RandSlotModel": "model",
    "Settings": "settings",
    "SlotEncoder": "encoder",
    "load": "loading",
    "open_model": "opening",
    "remote": "remote_model",
    "tiny": "loading",
    "untrained": "loading",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a library that is only looked into needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra():
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
