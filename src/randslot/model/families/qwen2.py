"""Qwen2 and Qwen2.5 without vision."""

from __future__ import annotations

from .text_model import TextModel


class Qwen2(TextModel):
    """Qwen2 and Qwen2.5 without vision."""

    name = "qwen2"
    model_type = "qwen2"


FAMILY = Qwen2()
