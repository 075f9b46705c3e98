"""The text of a page on its way from one process to another, as JSON."""

from __future__ import annotations

import json

from ...pages.text import PageText, Word


def write_text(text: PageText) -> str:
    """Return a text as JSON; each word is [text, left, top, right, bottom]."""
    words = [[word.text, word.left, word.top, word.right, word.bottom] for word in text.words]
    return json.dumps([text.text, words, text.has_layer, text.truncated])


def parse_text(line: str) -> PageText:
    """Read what `write_text` wrote."""
    text, words, has_layer, truncated = json.loads(line)
    return PageText(text, tuple(Word(*word) for word in words), has_layer, truncated)
