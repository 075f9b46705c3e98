"""Backfill stored pages: text first, because it is cheap, then vectors or OCR."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..errors import RandSlotError
from ..pages.text import PageText
from ..words.language import detect_language
from .ingest import SAFE_SECONDS, SAMPLE
from .readers import FileReader, WantedPages, hash_text
from .results import Progress
from .sources import is_gone
from .stores.points import Origin, StoredPage, StoredText
from .workers import WorkerPool

if TYPE_CHECKING:
    from .library import Library

BATCH = 32  # pages to reindex at once
Ocr = Literal["missing", "all"]


@dataclass
class Backfill:
    """One run over the stored pages; the caller holds the write lease. stop: called after each page."""

    library: Library
    pool: WorkerPool
    report: Callable[[Progress], None]
    stop: Callable[[], bool] = lambda: False

    def complete(self, reader: FileReader) -> int:
        """Backfill text and vectors; return the number of encoded pages."""
        binding = self.library.binding
        is_changed = self.library.words.begun
        if is_changed:
            self._reindex_words()
        num_read = self._read(("",), by_ocr=False)
        encoded = 0
        if binding is not None:
            encoded = self._encode_texts(again=False) if binding.reads == "text" else self._encode(reader)
        if is_changed or num_read or encoded:
            self.library.store.optimize()
        return encoded

    def read_words(self, language: str | None, ocr: Ocr | None) -> int:
        """Backfill text, with OCR if asked; return the number of pages read.

        A new language reindexes all words. If the model reads text, OCR text is encoded too.
        """
        words = self.library.words
        each = language == "auto"
        if each:
            ids = [page.id for page in self.library.store.find(("layer", "ocr"))]
            sample = self.library.store.read(ids[:: max(len(ids) // SAMPLE, 1)]).values()
            language = detect_language([page.text.text for page in sample if page.text]) or words.language
        has_others = not each and len(words.languages) > 1  # from a copied library
        if language and (has_others or (language, each) != (words.language, words.each)):
            words.set((language,), each, begun=True)
        if words.begun and not self._reindex_words():
            return 0
        num = self._read(("",), by_ocr=False)
        if ocr is not None:
            origins: tuple[Origin, ...] = ("none", "failed", "layer", "ocr", "blank", "") if ocr == "all" else ("none",)
            num += self._read(origins, by_ocr=True)
            if self.library.binding is not None and self.library.binding.reads == "text":
                self._encode_texts(again=ocr == "all")
        self.library.store.optimize()
        return num

    # -- words

    def _reindex_words(self) -> bool:
        """Reindex the words of all stored texts; return False if it was stopped."""
        store, words = self.library.store, self.library.words
        words.counts.clear()
        if words.vocabulary:
            words.vocabulary.clear()
        sources = {file.id: file.source for file in self.library.manifest.find()}
        ids = [page.id for page in store.find(("layer", "ocr"))]

        def count() -> Iterator[tuple[int, list[StoredPage]]]:
            for start in range(0, len(ids), BATCH):
                counted = []
                for page in store.read(ids[start : start + BATCH]).values():
                    if page.text and page.file in sources:
                        counted.append(replace(page, vectors=None, text=words.count(page.text, sources[page.file])))
                yield len(ids[start : start + BATCH]), counted

        if not self._update("counting", len(ids), count()):
            return False
        store.flush()
        words.set(words.languages, words.each, begun=False)
        return True

    def _read(self, origins: tuple[Origin, ...], *, by_ocr: bool) -> int:
        """Read the text of pages with these origins; return how many have text."""
        words = self.library.words
        wanted = self._list_wanted(self.library.store.find(origins))
        num = 0
        samples: dict[str, list[str]] = {}  # texts of the current file, to detect its language

        def read_batch(batch: WantedPages) -> list[PageText | RandSlotError]:
            if not by_ocr:
                return self.pool.read_texts(batch.source, batch.numbers)
            try:
                return [self.pool.read_by_ocr(batch.source, batch.numbers[0])]
            except RandSlotError as error:
                return [error]

        def read() -> Iterator[tuple[int, list[StoredPage]]]:
            nonlocal num
            work = (batch for pages in wanted for batch in pages.split(1 if by_ocr else 16))
            for batch, future in self.pool.ahead(read_batch, work, 4 * len(self.pool.workers)):
                stored = []
                if batch.file not in samples:
                    self._set_language(samples)
                    samples.clear()
                for number, text in zip(batch.numbers, future.result(), strict=True):
                    if isinstance(text, RandSlotError):
                        page = StoredText("failed" if by_ocr else "none")
                    elif by_ocr:
                        page = words.read_page(text, "ocr", batch.source, "blank")
                    else:
                        page = words.read_page(text, "layer", batch.source)
                    num += bool(page.text)
                    if len(samples.setdefault(batch.file, [])) < 10:
                        samples[batch.file].append(page.text[:3000])
                    stored.append(StoredPage(batch.file, number, "", None, page))
                yield len(stored), stored
            self._set_language(samples)

        self._update("scans" if by_ocr else "words", sum(len(pages.numbers) for pages in wanted), read())
        return num

    def _set_language(self, samples: Mapping[str, list[str]]) -> None:
        """Set the language of files that had no text before. samples: their texts."""
        for file in self.library.manifest.get(samples).values():
            if not file.properties.get("language") and (language := detect_language(samples[file.id])):
                self.library.manifest.put(replace(file, properties={**file.properties, "language": language}))

    # -- vectors

    def _encode(self, reader: FileReader) -> int:
        """Encode pages without vectors; return how many were encoded."""
        wanted = self._list_wanted(self.library.store.find(None, vectors=False))
        num = 0

        def encode() -> Iterator[tuple[int, list[StoredPage]]]:
            nonlocal num
            for pages in reader.read(wanted) if wanted else ():
                stored = []
                for page in pages:
                    if page.vectors is not None:
                        stored.append(StoredPage(page.file, page.number, page.hash, page.vectors))
                num += len(stored)
                yield len(pages), stored

        self._update("vectors", sum(len(pages.numbers) for pages in wanted), encode())
        return num

    def _encode_texts(self, *, again: bool, batch: int = 8) -> int:
        """Encode the stored texts of pages without vectors; return how many were encoded.

        again: also of pages whose text has changed since they were encoded.
        """
        store = self.library.store
        ids = [page.id for page in store.find(("layer", "ocr"), vectors=None if again else False)]
        num = 0

        def encode() -> Iterator[tuple[int, list[StoredPage]]]:
            nonlocal num
            for start in range(0, len(ids), batch):
                pages, texts = [], []
                for page in store.read(ids[start : start + batch]).values():
                    text = page.text.text if page.text else ""
                    if text.strip() and (page.vectors is None or page.hash != hash_text(text)):
                        pages.append(page)
                        texts.append(text)
                encoded = []
                if pages:
                    model = self.library.models.model
                    for page, text, own in zip(pages, texts, model.embed_pages(texts), strict=True):
                        encoded.append(StoredPage(page.file, page.number, hash_text(text), own, cut=model.is_cut(text)))
                num += len(encoded)
                yield len(ids[start : start + batch]), encoded

        self._update("vectors", len(ids), encode())
        return num

    # -- shared

    def _list_wanted(self, found: Iterable[StoredPage]) -> list[WantedPages]:
        """Return pages of complete files that still exist, sorted by source."""
        numbers: dict[str, list[int]] = {}
        for page in found:
            numbers.setdefault(page.file, []).append(page.number)
        wanted = []
        for file in self.library.manifest.find(state="done"):
            if file.id in numbers and not is_gone(file.source):
                wanted.append(WantedPages(file.id, file.source, tuple(sorted(numbers[file.id]))))
        return wanted

    def _update(self, stage: str, total: int, batches: Iterable[tuple[int, list[StoredPage]]]) -> bool:
        """Store batches, each with the number of pages processed; return False if it was stopped."""
        store = self.library.store
        done = 0
        flushed_at = time.monotonic()
        for num, pages in batches:
            if pages:
                store.update(pages)
            done += num
            is_expensive = stage in ("scans", "vectors")
            if is_expensive or time.monotonic() - flushed_at >= SAFE_SECONDS:
                store.flush()
                flushed_at = time.monotonic()
            self.report(Progress(0, 0, done, total, stage=stage))
            if self.stop():
                return False
        return True
