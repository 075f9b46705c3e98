"""In which languages a library reads words: its first pages decide on the usual one, and each page on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..words.analyzer import Analyzer, get_analyzer, get_page_analyzer
from ..words.languages import DEFAULT, choose_language, detect_language


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
