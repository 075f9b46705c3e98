"""Qwen3 without vision, and Qwen3-Embedding, which is one."""

from __future__ import annotations

from typing import ClassVar

from ..template import Template
from .text_model import TextModel

# As Qwen3-Embedding was trained: an instruction before a query, pages as they are, and <|endoftext|>, which its
# tokenizer puts behind every text and whose state is its vector.
EMBEDDING = Template(
    page="{page}",
    query="Instruct: {instruction}\nQuery:{query}",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
    closed=True,
)


class Qwen3(TextModel):
    """Qwen3: queries and keys are normalised in each head."""

    name = "qwen3"
    model_type = "qwen3"
    templates: ClassVar = {"embedding": EMBEDDING}


FAMILY = Qwen3()
