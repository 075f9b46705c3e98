"""RandSlot: compact visual document retrieval, four vectors a page."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .extras import needs_extra

if TYPE_CHECKING:
    from .errors import RandSlotError, UsageError
    from .library.library import Library
    from .model import Settings, SlotEncoder, load, open_model, remote, tiny, untrained
    from .training.recipe import Recipe
    from .training.train import train

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
    "open_model",
    "remote",
    "tiny",
    "train",
    "untrained",
]

_HOMES = {
    "RandSlotError": "errors",
    "Settings": "model",
    "SlotEncoder": "model",
    "UsageError": "errors",
    "Library": "library.library",
    "Recipe": "training.recipe",
    "load": "model",
    "open_model": "model",
    "remote": "model",
    "tiny": "model",
    "train": "training.train",
    "untrained": "model",
}


def __getattr__(name: str) -> Any:
    """Import a public name lazily, so that `import randslot` is instant.

    Errors: MissingError in one line if the name needs an extra.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'randslot' has no attribute {name!r}")
    with needs_extra("train" if _HOMES[name].startswith("training.") else ""):
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
