"""Llama, and what is built like it: SmolLM2, TinyLlama, Llama 3."""

from __future__ import annotations

from .text_model import TextModel


class Llama(TextModel):
    """Llama, and what is built like it: SmolLM2, TinyLlama, Llama 3."""

    name = "llama"
    model_type = "llama"


FAMILY = Llama()
