"""How a library reads words: in which languages, with which fields, and the text of a page as it is stored."""

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
from ..words.language import DEFAULT, choose_language, detect_language, find_query_language, list_function_words
from ..words.query import WordQuery, read_query
from .stores.points import Origin, StoredText
from .vocabulary import Vocabulary

SCORING = 4  # how pages are weighted; pages that were weighted in another way are counted again


class LibraryWords:
    """The languages of a library, and what else the weights of its words depend on.

    languages: the usual one, and others that pages are in; none until there is a page with text. counts: how many pages
    were read in each. each: pages are read in their own language, else all in the usual one. mean_length: terms of a
    page. root: the folder that all files are in; folders below it are fields. begun: not all stored pages are counted
    with these settings yet.
    """

    def __init__(
        self, settings: Mapping[str, Any], save: Callable[[dict[str, Any]], None], vocabulary: Vocabulary | None = None
    ) -> None:
        """settings: as `save` got them."""
        self._save, self.vocabulary = save, vocabulary
        self.load(settings)

    def load(self, settings: Mapping[str, Any]) -> None:
        """Take the settings from library.json; another process may have written them."""
        language = settings.get("language")
        self.languages: tuple[str, ...] = (language, *settings.get("others", ())) if language else ()
        self.counts: Counter[str] = Counter(settings.get("counts", {}))
        self.each = bool(settings.get("each", False))
        self.mean_length = float(settings.get("mean_length", MEAN_LENGTH))
        self.root = str(settings.get("root", ""))
        if self.vocabulary is not None:
            self.vocabulary.follow(int(settings.get("vocabulary", 0)))
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
        """Take other languages. begun: stored pages are still to be counted in them."""
        self.languages, self.each, self.begun = tuple(languages), each, begun
        if begun:
            self.counts.clear()
        self.save()

    @property
    def language(self) -> str | None:
        """The usual one."""
        return self.languages[0] if self.languages else None

    def make_analyzer(self, query: str) -> Analyzer:
        """Return the analyzer for a query: of the usual language, of other common ones, and of the query's own."""
        if not self.languages:
            return get_analyzer(None)
        usual, *others = self.languages
        often = 0.1 * self.counts.total()  # pages from which on a language counts for every query
        if rare := {other for other in others if self.counts and self.counts[other] < often}:
            own = find_query_language(query, usual)
            others = [other for other in others if other == own or other not in rare]
        return get_analyzer(usual, *others)

    def read_query(self, query: str, prefix: bool = False) -> WordQuery:
        """Read a query. prefix: its last word is still being typed."""
        last = re.search(r"[^\W\d_]{2,}$", query) if prefix else None
        completions = self.complete(last[0], 5) if last else ()
        own = find_query_language(query, self.language or DEFAULT)
        foreign = list_function_words().get(own, frozenset()) if own not in self.languages else frozenset()
        return read_query(query, self.make_analyzer(query), completions, self.find_rarity, foreign)

    def complete(self, prefix: str, num: int = 8) -> list[str]:
        """Return completions of a prefix, most frequent first."""
        assert self.vocabulary is not None
        return self.vocabulary.complete(remove_accents(fold_case(prefix)), num) if prefix else []

    def find_rarity(self, word: str) -> float:
        """Return how rare a word is, as BM25 counts it; a guess for what the vocabulary does not count."""
        num = self.vocabulary.count(remove_accents(word)) if self.vocabulary is not None else 0
        if not num:
            return 2.0 if word.isdigit() else 4.0
        return math.log(1 + (max(self.counts.total() - num, 0) + 0.5) / (num + 0.5))

    def decide(self, texts: Sequence[str]) -> None:
        """Detect the usual language of a new library from the first texts, and the mean length of its pages."""
        texts = [text for text in texts if text]
        if self.languages or not texts:
            return
        language = detect_language(texts) or DEFAULT
        lengths = [get_analyzer(language).count_terms(text) for text in texts]
        self.mean_length = min(max(sum(lengths) / len(lengths), 50.0), 1000.0)
        self.set((language,), self.each, begun=self.begun)

    def take_root(self, sources: Iterable[str]) -> None:
        """Find the folder that all files are in; if it is another one than before, pages are to be counted again."""
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
        """Return the fields of a file that come from its path: its name, and the folders below the library's root."""
        return dict(_name_fields(source, self.root))

    def choose_analyzer(self, text: str) -> Analyzer:
        """Return the analyzer for a page: of the usual language, or of the page's own."""
        self.decide([text])
        usual = self.language or DEFAULT
        language = choose_language(text, usual) if self.each else usual
        self.counts[language] += 1
        if language not in self.languages:
            self.set((*self.languages, language), self.each, begun=self.begun)
        return get_page_analyzer(language, usual)

    def read_page(self, text: PageText, origin: Origin, source: str, without: Origin = "none") -> StoredText:
        """Return the text of a page as it is stored; without: the origin of a page that has no text."""
        if not text.text:
            return StoredText("blank" if text.has_layer else without)
        return self.count(StoredText(origin, text.text, text.boxes, fields=dict(text.fields)), source)

    def count(self, stored: StoredText, source: str) -> StoredText:
        """Return a stored text with the terms and weights that searches compare, by the settings of now."""
        analyzer = self.choose_analyzer(stored.text)
        fields = {**stored.fields, **self.name_fields(source)}
        terms, words = analyzer.analyse_page(stored.text, fields, self.mean_length)
        if self.vocabulary is not None:
            self.vocabulary.add(words)
        return replace(stored, terms=terms, words=words)


@lru_cache(10_000)
def _name_fields(source: str, root: str) -> tuple[tuple[str, str], ...]:
    path = Path(source)
    fields = [("name", f"{path.stem} {path.name}")]  # people type both
    if root and path.parent.is_relative_to(root):
        folders = path.parent.relative_to(root).parts
        if folders:
            fields.append(("folder", " ".join(folders[-3:])))
    return tuple(fields)


def read_stored_text(stored: StoredText) -> PageText:
    """Return a stored text with its words and their boxes."""
    return PageText(stored.text, stored.boxes, has_layer=stored.origin == "layer", fields=stored.fields)
