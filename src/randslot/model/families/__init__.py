"""The families of backbones, by transformers model type. To add one, write its class and list it here."""

from __future__ import annotations

from ..settings import check_choice
from .base import Family
from .idefics3 import SmolVLM
from .qwen_vl import Qwen3VL, Qwen25VL, Qwen35
from .text import Llama, Qwen2, Qwen3

FAMILIES: dict[str, Family] = {}


def add_family(family: Family) -> None:
    """Register a family, such as one defined outside this package."""
    FAMILIES[family.model_type] = family


for _family in (Qwen25VL(), Qwen3VL(), Qwen35(), SmolVLM(), Llama(), Qwen2(), Qwen3()):
    add_family(_family)


def find_family(name: str) -> Family:
    """Return a family by its name, such as "qwen3-vl"."""
    known = {family.name: family for family in FAMILIES.values()}
    check_choice("family", name, known)
    return known[name]
