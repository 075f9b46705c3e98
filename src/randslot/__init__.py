"""RandSlot: compact visual document retrieval, four vectors a page."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import remote
    from .encoder import Settings, SlotEncoder
    from .errors import RandSlotError, UsageError
    from .library.library import Library
    from .model import load, tiny, untrained
    from .training.recipe import Recipe
    from .training.run import train

__version__ = "0.1.0"
__all__ = [
    "Library",
    "RandSlotError",
    "Recipe",
    "Settings",
    "SlotEncoder",
    "UsageError",
    "__version__",
    "load",
    "remote",
    "tiny",
    "train",
    "untrained",
]

_HOMES = {
    "RandSlotError": "errors",
    "Settings": "encoder",
    "SlotEncoder": "encoder",
    "UsageError": "errors",
    "Library": "library.library",
    "Recipe": "training.recipe",
    "load": "model",
    "remote": "client",
    "tiny": "model",
    "train": "training.run",
    "untrained": "model",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import randslot` is instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'randslot' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
