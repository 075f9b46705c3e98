"""The text of a page as it is stored, and back: boxes take eight bytes a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..pages.text import PageText, Word
from ..words.analyzer import Analyzer, get_analyzer, get_page_analyzer
from ..words.language import DEFAULT, choose_language, detect_language
from .stores.base import Origin, StoredText


class LibraryWords:
    """The languages of a library.

    languages: the usual one, and others that pages are in; none until there is a page with text. each: pages are read
    in the language that they are in; otherwise all in the usual one. begun: not all stored pages are counted in these
    languages yet.
    """

    def __init__(self, settings: Mapping[str, Any] | None, keep: Callable[[dict[str, Any]], None]) -> None:
        """settings: what `keep` was given before."""
        self._keep = keep
        self.take(settings or {})

    def take(self, settings: Mapping[str, Any]) -> None:
        """Have the languages that are written about the library; another process may have written them."""
        language = settings.get("language")
        self.languages: tuple[str, ...] = (language, *settings.get("others", ())) if language else ()
        self.each = bool(settings.get("each", False))
        self.begun = bool(settings.get("begun", False))

    @property
    def language(self) -> str | None:
        """The usual one."""
        return self.languages[0] if self.languages else None

    @property
    def analyzer(self) -> Analyzer:
        """What reads queries."""
        return get_analyzer(*self.languages) if self.languages else get_analyzer(None)

    def decide(self, texts: Iterable[str]) -> None:
        """Have the first texts that are to be stored decide on the usual language."""
        if not self.languages:
            texts = [text for text in texts if text]
            if texts:
                self.set((detect_language(texts) or DEFAULT,), self.each)

    def choose(self, text: str) -> Analyzer:
        """Return what reads a page that is to be stored."""
        self.decide([text])
        language = self.language or DEFAULT
        if self.each:
            language = choose_language(text, language)
            if language not in self.languages:
                self.set((*self.languages, language), True)
        return get_page_analyzer(language, self.language or DEFAULT)

    def set(self, languages: tuple[str, ...], each: bool) -> None:
        """Take other languages; pages that are stored keep their terms."""
        self._write(languages, each, self.begun)

    def begin(self, language: str, each: bool) -> None:
        """Take another usual language, which stored pages are to be counted in anew."""
        self._write((language,), each, True)

    def finish(self) -> None:
        """All stored pages are counted in the languages of now."""
        self._write(self.languages, self.each, False)

    def _write(self, languages: tuple[str, ...], each: bool, begun: bool) -> None:
        settings: dict[str, Any] = {"language": languages[0], "others": list(languages[1:]), "each": each}
        if begun:
            settings["begun"] = True
        self._keep(settings)
        self.take(settings)


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
