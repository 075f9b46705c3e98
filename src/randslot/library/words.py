"""How a library reads words: its language, which its first pages decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..words.analyzer import Analyzer, get_analyzer
from ..words.languages import DEFAULT, detect_language


class LibraryWords:
    """The language of a library, and the analyzer of it."""

    def __init__(self, language: str | None, keep: Callable[[str], None]) -> None:
        """language: None until there is a page with text. keep: writes a language into the library."""
        self.language, self._keep = language, keep

    @property
    def analyzer(self) -> Analyzer:
        return get_analyzer(self.language)

    def decide(self, texts: Iterable[str]) -> Analyzer:
        """Return the analyzer for texts that are to be stored, the first of which decide on the language."""
        if self.language is None:
            texts = [text for text in texts if text]
            if texts:
                self.set(detect_language(texts) or DEFAULT)
        return self.analyzer

    def set(self, language: str) -> None:
        """Take another language; pages that are stored keep their terms."""
        self._keep(language)
        self.language = language
