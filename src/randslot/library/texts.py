"""The text of a page as it is stored, and back: boxes take eight bytes a word."""

from __future__ import annotations

import numpy as np

from ..pages.text import PageText, Word
from ..words.analyzer import Analyzer
from .stores.store import Origin, StoredText

STEPS = 65_535  # that a side of the page is divided into


def make_stored_text(text: PageText, origin: Origin, analyzer: Analyzer) -> StoredText:
    """Return a text as it is stored: with the boxes of its words, and what searches compare."""
    boxes = np.zeros((len(text.words), 4), np.float64)
    for i, word in enumerate(text.words):
        boxes[i] = word.left, word.top, word.right, word.bottom
    packed = np.clip(boxes * STEPS, 0, STEPS).round().astype("<u2").tobytes()
    terms, words = analyzer.analyse_page(text.text)
    return StoredText(origin, text.text, packed, words, terms)


def read_stored_text(stored: StoredText) -> PageText:
    """Return a stored text with its words and their boxes."""
    boxes = (np.frombuffer(stored.boxes, "<u2").reshape(-1, 4) / STEPS).round(5).tolist()
    words = []
    for word, box in zip(stored.text.split(), boxes, strict=False):
        words.append(Word(word, *box))
    return PageText(stored.text, tuple(words), has_layer=stored.origin == "layer")
