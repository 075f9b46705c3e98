"""Qwen3 without vision, and Qwen3-Embedding, which is one."""

from __future__ import annotations

from .text_model import TextModel


class Qwen3(TextModel):
    """Qwen3 without vision, and Qwen3-Embedding, which is one."""

    name = "qwen3"
    model_type = "qwen3"


FAMILY = Qwen3()
