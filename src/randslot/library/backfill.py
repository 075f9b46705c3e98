"""Give stored pages what they lack: words first, because they are cheap, then vectors or OCR."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
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

BATCH = 32  # pages to store at once
Ocr = Literal["missing", "all"]


@dataclass
class Backfill:
    """One run over the stored pages of a library whose write lease is held; `stop` is asked after each page."""

    library: Library
    pool: WorkerPool
    report: Callable[[Progress], None]
    stop: Callable[[], bool] = lambda: False

    def complete(self, reader: FileReader) -> int:
        """Read and encode what stored pages lack; return how many were encoded."""
        binding = self.library.binding
        if self.library.words.begun:
            self._count_again()
        num_read = self._read("words", ("",), self.pool.read_text)
        encoded = 0
        if binding is not None:
            encoded = self._encode_texts(again=False) if binding.reads == "text" else self._encode(reader)
        if num_read or encoded:
            self.library.store.optimize()
        return encoded

    def read_words(self, language: str | None, ocr: Ocr | None) -> int:
        """Read the words of pages that have none yet; count all again if another language is named.

        Return how many were read. If the model reads text, what OCR has read is encoded.
        """
        words = self.library.words
        each = language == "auto"
        if each:
            language = self._detect_language() or words.language
        has_others = not each and len(words.languages) > 1  # they came by a copy
        if language and (has_others or (language, each) != (words.language, words.each)):
            words.set((language,), each, begun=True)
        if words.begun and not self._count_again():
            return 0
        num = self._read("words", ("",), self.pool.read_text)
        if ocr is not None:
            origins: tuple[Origin, ...] = ("none", "failed", "layer", "ocr", "blank", "") if ocr == "all" else ("none",)
            num += self._read("scans", origins, self.pool.read_by_ocr)
            if self.library.binding is not None and self.library.binding.reads == "text":
                self._encode_texts(again=ocr == "all")
        self.library.store.optimize()
        return num

    # -- words

    def _detect_language(self) -> str | None:
        """Return the language of most stored pages, from a sample."""
        ids = [page.id for page in self.library.store.find(("layer", "ocr"))]
        pages = self.library.store.read(ids[:: max(len(ids) // SAMPLE, 1)]).values()
        return detect_language([page.text.text for page in pages if page.text])

    def _count_again(self) -> bool:
        """Count the words of all stored texts again, by other settings; return False if it was stopped."""
        store, words = self.library.store, self.library.words
        words.counts.clear()
        sources = {file.id: file.source for file in self.library.manifest.find()}
        ids = [page.id for page in store.find(("layer", "ocr"))]
        for start in range(0, len(ids), BATCH):
            counted = []
            for page in store.read(ids[start : start + BATCH]).values():
                if page.text and page.file in sources:
                    counted.append(replace(page, vectors=None, text=words.count(page.text, sources[page.file])))
            store.update(counted)
            self.report(Progress(0, 0, min(start + BATCH, len(ids)), len(ids), stage="counting"))
            if self.stop():
                return False
        store.flush()
        words.set(words.languages, words.each, begun=False)
        return True

    def _read(self, stage: str, origins: tuple[Origin, ...], read: Callable[[str, int], PageText]) -> int:
        """Read the text of pages by their origin; return how many have text."""
        store = self.library.store
        wanted = self._list_wanted(store.find(origins))
        total = sum(len(pages.numbers) for pages in wanted)
        places = ((pages, number) for pages in wanted for number in pages.numbers)
        stored: list[StoredPage] = []
        num = 0
        stored_at = flushed_at = time.monotonic()
        ahead = self.pool.ahead(lambda place: read(place[0].source, place[1]), places, 4 * len(self.pool.workers))
        for done, ((pages, number), future) in enumerate(ahead, start=1):
            text = self._make_text(future, pages.source, by_ocr=stage == "scans")
            num += bool(text.text)
            stored.append(StoredPage(pages.file, number, "", None, text))
            now = time.monotonic()
            if len(stored) == BATCH or now - stored_at >= 2:  # OCR takes seconds a page
                store.update(stored)
                stored, stored_at = [], now
            if now - flushed_at >= SAFE_SECONDS:
                store.flush()
                flushed_at = now
            self.report(Progress(0, 0, done, total, stage=stage))
            if self.stop():
                break
        if stored:
            store.update(stored)
        return num

    def _make_text(self, future: Future[PageText], source: str, by_ocr: bool) -> StoredText:
        """Return the text of a page that was read; an error that is not the page's fault is raised."""
        try:
            text = future.result()
        except RandSlotError:
            return StoredText("failed" if by_ocr else "none")
        words = self.library.words
        return words.read_page(text, "ocr" if by_ocr else "layer", source, "blank" if by_ocr else "none")

    def _list_wanted(self, found: Iterable[StoredPage]) -> list[WantedPages]:
        """Return pages of complete files that are still in their place, file by file in the order of their names."""
        numbers: dict[str, list[int]] = {}
        for page in found:
            numbers.setdefault(page.file, []).append(page.number)
        wanted = []
        for file in self.library.manifest.find(state="done"):
            if file.id in numbers and not is_gone(file.source):
                wanted.append(WantedPages(file.id, file.source, tuple(sorted(numbers[file.id]))))
        return wanted

    # -- vectors

    def _encode(self, reader: FileReader) -> int:
        """Encode pages that have no vectors; return how many were encoded."""
        store = self.library.store
        wanted = self._list_wanted(store.find(None, vectors=False))
        total = sum(len(pages.numbers) for pages in wanted)
        done = num = 0
        flushed = time.monotonic()
        for pages in reader.read(wanted) if wanted else ():
            stored = []
            for page in pages:
                if page.vectors is not None:
                    stored.append(StoredPage(page.file, page.number, page.hash, page.vectors))
            store.update(stored)
            done, num = done + len(pages), num + len(stored)
            self.report(Progress(0, 0, done, total, stage="vectors"))
            if time.monotonic() - flushed >= SAFE_SECONDS:
                store.flush()
                flushed = time.monotonic()
        return num

    def _encode_texts(self, *, again: bool, batch: int = 8) -> int:
        """Encode the stored texts of pages without vectors; return how many were encoded.

        again: also of pages with vectors, if their text has changed since.
        """
        store = self.library.store
        ids = [page.id for page in store.find(("layer", "ocr"), vectors=None if again else False)]
        num = 0
        for start in range(0, len(ids), batch):
            pages = []
            for page in store.read(ids[start : start + batch]).values():
                text = page.text.text if page.text else ""
                if text.strip() and (page.vectors is None or page.image != hash_text(text)):
                    pages.append((page, text))
            if pages:
                model = self.library.models.model
                encoded = []
                vectors = model.embed_pages([text for _, text in pages])
                for (page, text), own in zip(pages, vectors, strict=True):
                    encoded.append(StoredPage(page.file, page.number, hash_text(text), own, cut=model.is_cut(text)))
                store.update(encoded)
                num += len(pages)
            self.report(Progress(0, 0, start + batch, len(ids), stage="vectors"))
        return num
