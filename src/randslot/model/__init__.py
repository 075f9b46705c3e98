"""A model: what turns pages and queries into vectors. Its face is `RandSlotModel`; nothing outside looks behind it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoder import Settings, SlotEncoder
    from .model import RandSlotModel, load, tiny, untrained, weights_key
    from .remote_model import open_model, remote

__all__ = [
    "RandSlotModel",
    "Settings",
    "SlotEncoder",
    "load",
    "open_model",
    "remote",
    "tiny",
    "untrained",
    "weights_key",
]

_HOMES = {
    "RandSlotModel": "model",
    "Settings": "encoder",
    "SlotEncoder": "encoder",
    "load": "model",
    "open_model": "remote_model",
    "remote": "remote_model",
    "tiny": "model",
    "untrained": "model",
    "weights_key": "model",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a library that is only looked into needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
