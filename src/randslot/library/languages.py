"""The languages of a library, and the text of a page as it is stored: boxes take eight bytes a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..pages.text import PageText, Word
from ..words.analyzer import Analyzer, get_analyzer, get_page_analyzer
from ..words.language import DEFAULT, choose_language, detect_language
from .stores.base import Origin, StoredText


class LibraryWords:
    """The languages of a library.

    languages: the usual one, and others that pages are in; none until there is a page with text. each: pages are read
    in their own language, else all in the usual one. begun: not all stored pages are counted in these languages yet.
    """

    def __init__(self, settings: Mapping[str, Any], save: Callable[[dict[str, Any]], None]) -> None:
        """settings: as `save` got them."""
        self._save = save
        self.load(settings)

    def load(self, settings: Mapping[str, Any]) -> None:
        """Take the languages from library.json; another process may have written them."""
        language = settings.get("language")
        self.languages: tuple[str, ...] = (language, *settings.get("others", ())) if language else ()
        self.each = bool(settings.get("each", False))
        self.begun = bool(settings.get("begun", False))

    def set(self, languages: Sequence[str], each: bool, *, begun: bool) -> None:
        """Take other languages. begun: stored pages are still to be counted in them."""
        settings: dict[str, Any] = {"language": languages[0], "others": list(languages[1:]), "each": each}
        if begun:
            settings["begun"] = True
        self._save(settings)
        self.load(settings)

    @property
    def language(self) -> str | None:
        """The usual one."""
        return self.languages[0] if self.languages else None

    @property
    def analyzer(self) -> Analyzer:
        """Reads queries."""
        return get_analyzer(*self.languages) if self.languages else get_analyzer(None)

    def decide(self, texts: Sequence[str]) -> None:
        """Detect the usual language of a new library from the first texts."""
        if not self.languages and any(texts):
            self.set((detect_language(texts) or DEFAULT,), self.each, begun=self.begun)

    def choose_analyzer(self, text: str) -> Analyzer:
        """Return the analyzer for a page: of the usual language, or of the page's own."""
        self.decide([text])
        usual = self.language or DEFAULT
        language = choose_language(text, usual) if self.each else usual
        if language not in self.languages:
            self.set((*self.languages, language), self.each, begun=self.begun)
        return get_page_analyzer(language, usual)

    def read_page(self, text: PageText, origin: Origin, without: Origin = "none") -> StoredText:
        """Return the text of a page as it is stored; without: the origin of a page that has no text."""
        if not text.text:
            return StoredText("blank" if text.has_layer else without)
        return make_stored_text(text, origin, self.choose_analyzer(text.text))

    def count_again(self, stored: StoredText) -> StoredText:
        """Return a stored text with its terms in the languages of now."""
        terms, _ = self.choose_analyzer(stored.text).analyse_page(stored.text)
        return replace(stored, terms=terms)


STEPS = 65_535  # that a side of the page is divided into


def make_stored_text(text: PageText, origin: Origin, analyzer: Analyzer) -> StoredText:
    """Return a text as it is stored: with the boxes of its words, and the terms that searches compare."""
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
