"""The text analysis of a library: its languages, the fields of a page, and stored texts."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..pages.text import PageText
from ..words.analyzer import MEAN_LENGTH, Analyzer, fold_case, get_analyzer, get_page_analyzer, remove_accents
from ..words.language import DEFAULT, choose_language, detect_language, load_stopwords, recognize
from ..words.query import WordQuery, read_query
from .stores.points import Origin, StoredText
from .vocabulary import Vocabulary

SCORING = 4  # version of term weights; pages with older weights are weighted again


class LibraryWords:
    """The languages of a library, and the other settings that its term weights depend on.

    languages: the main one first; none until there is a page with text. counts: pages by language. each: whether pages
    are stemmed in their own language, else all in the main one. mean_length: mean terms per page. root: the common
    folder of all files; folders below it are fields. begun: some stored pages still have stale weights.
    """

    def __init__(
        self, settings: Mapping[str, Any], save: Callable[[dict[str, Any]], None], vocabulary: Vocabulary | None = None
    ) -> None:
        """settings: from the last `save`."""
        self._save, self.vocabulary = save, vocabulary
        self.load(settings)

    def load(self, settings: Mapping[str, Any]) -> None:
        """Load the settings from library.json, which another process may have written."""
        language = settings.get("language")
        self.languages: tuple[str, ...] = (language, *settings.get("others", ())) if language else ()
        self.counts: Counter[str] = Counter(settings.get("counts", {}))
        self.each = bool(settings.get("each", False))
        self.mean_length = float(settings.get("mean_length", MEAN_LENGTH))
        self.root = str(settings.get("root", ""))
        if self.vocabulary is not None:
            self.vocabulary.refresh(int(settings.get("vocabulary", 0)))
        is_old = bool(language) and settings.get("scoring") != SCORING
        self.begun = bool(settings.get("begun", False)) or is_old

    def save(self) -> None:
        """Write the settings to library.json, and the vocabulary."""
        settings: dict[str, Any] = {"language": self.language, "others": list(self.languages[1:]), "each": self.each}
        settings |= {"counts": dict(self.counts), "mean_length": round(self.mean_length, 1), "root": self.root}
        if self.vocabulary is not None:
            self.vocabulary.save()
            settings["vocabulary"] = self.vocabulary.stamp
        self._save(settings | {"scoring": SCORING} | ({"begun": True} if self.begun else {}))

    def set(self, languages: Sequence[str], each: bool, *, begun: bool) -> None:
        """Set the languages. begun: stored pages still have to be weighted with them."""
        self.languages, self.each, self.begun = tuple(languages), each, begun
        if begun:
            self.counts.clear()
        self.save()

    @property
    def language(self) -> str | None:
        """The main language."""
        return self.languages[0] if self.languages else None

    def make_analyzer(self, query: str) -> Analyzer:
        """Return the analyzer for a query: with the main language, other common ones, and the query's own.

        A query whose language is unknown, such as one or two words, is stemmed in all.
        """
        if not self.languages:
            return get_analyzer(None)
        main, *others = self.languages
        min_pages = 0.1 * self.counts.total()  # of languages that every query is stemmed in
        if rare := {other for other in others if self.counts and self.counts[other] < min_pages}:
            own, _ = recognize(query)
            others = [other for other in others if other not in rare or own in (other, None)]
        return get_analyzer(main, *others)

    def read_query(self, query: str, prefix: bool = False) -> WordQuery:
        """Parse a query. prefix: its last word is still being typed."""
        last = re.search(r"[^\W\d_]{2,}$", query) if prefix else None
        completions = self.complete(last[0], 5) if last else ()
        language, score = recognize(query)
        is_foreign = self.each and score >= 0.8 and language not in self.languages  # no page is in it
        foreign_stopwords = load_stopwords().get(language or "", frozenset()) if is_foreign else frozenset()
        return read_query(query, self.make_analyzer(query), completions, self.find_idf, foreign_stopwords)

    def complete(self, prefix: str, num: int = 8) -> list[str]:
        """Return completions of a prefix, most frequent first."""
        assert self.vocabulary is not None
        return self.vocabulary.complete(remove_accents(fold_case(prefix)), num) if prefix else []

    def find_idf(self, word: str) -> float:
        """Return the BM25 IDF of a word; a default for words outside the vocabulary."""
        num = self.vocabulary.count(remove_accents(word)) if self.vocabulary is not None else 0
        if not num:
            return 2.0 if word.isdigit() else 4.0
        return math.log(1 + (max(self.counts.total() - num, 0) + 0.5) / (num + 0.5))

    def detect_language(self, texts: Sequence[str]) -> None:
        """Detect the main language of a new library and the mean length of its pages from the first texts."""
        texts = [text for text in texts if text]
        if self.languages or not texts:
            return
        language = detect_language(texts) or DEFAULT
        lengths = [get_analyzer(language).count_terms(text) for text in texts]
        self.mean_length = min(max(sum(lengths) / len(lengths), 50.0), 1000.0)
        self.set((language,), self.each, begun=self.begun)

    def update_root(self, sources: Iterable[str]) -> None:
        """Find the common folder of all files; if it has changed, mark the weights of stored pages as stale."""
        folders = {os.path.dirname(source) for source in sources}
        try:
            root = os.path.commonpath(folders) if folders else self.root
        except ValueError:  # on several drives
            root = ""
        if root != self.root:
            self.begun = self.begun or bool(self.languages)
            self.root = root
            if self.languages:
                self.save()

    def name_fields(self, source: str) -> dict[str, str]:
        """Return the fields from a file's path: its name, and the folders below the library's root."""
        return dict(_name_fields(source, self.root))

    def choose_analyzer(self, text: str) -> Analyzer:
        """Return the analyzer for a page: of the main language, or of the page's own."""
        self.detect_language([text])
        main = self.language or DEFAULT
        language = choose_language(text, main) if self.each else main
        self.counts[language] += 1
        if language not in self.languages:
            self.set((*self.languages, language), self.each, begun=self.begun)
        return get_page_analyzer(language, main)

    def read_page(self, text: PageText, origin: Origin, source: str, without: Origin = "none") -> StoredText:
        """Make the stored text of a page. without: the origin if the page has no text."""
        if not text.text:
            return StoredText("blank" if text.has_layer else without)
        return self.count(StoredText(origin, text.text, text.boxes, fields=dict(text.fields)), source)

    def count(self, stored: StoredText, source: str) -> StoredText:
        """Weigh the terms of a stored text with the current settings."""
        analyzer = self.choose_analyzer(stored.text)
        fields = {**stored.fields, **self.name_fields(source)}
        terms, words = analyzer.analyse_page(stored.text, fields, self.mean_length)
        if self.vocabulary is not None:
            self.vocabulary.add(words)
        return replace(stored, terms=terms, words=words)


@lru_cache(10_000)
def _name_fields(source: str, root: str) -> tuple[tuple[str, str], ...]:
    path = Path(source)
    fields = [("name", f"{path.stem} {path.name}")]  # both are searched for
    if root and path.parent.is_relative_to(root):
        folders = path.parent.relative_to(root).parts
        if folders:
            fields.append(("folder", " ".join(folders[-3:])))
    return tuple(fields)


def read_stored_text(stored: StoredText) -> PageText:
    """Convert a stored text to a page text."""
    return PageText(stored.text, stored.boxes, has_layer=stored.origin == "layer", fields=stored.fields)
