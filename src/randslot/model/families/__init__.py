"""The families of backbones, a file each, named as transformers names their type: qwen3_vl.py for "qwen3_vl".

A file defines FAMILY. Adding one adds a family: nothing else names them.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ...errors import UsageError
from .base import Family

_ADDED: dict[str, Family] = {}


def add_family(family: Family) -> None:
    """Add a family that is defined outside of this package."""
    _ADDED[family.model_type] = family


def list_families() -> dict[str, Family]:
    """Return all families by the type of their models."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        family = getattr(import_module(f"{__name__}.{module.name}"), "FAMILY", None)
        if family is not None:
            found[family.model_type] = family
    return found | _ADDED


def find_family(name: str) -> Family:
    """Return a family by its name, as in "qwen3-vl".

    Errors: UsageError that names the known ones.
    """
    known = {family.name: family for family in list_families().values()}
    if name not in known:
        raise UsageError(f"unknown family {name!r}; known ones: {', '.join(known)}")
    return known[name]
