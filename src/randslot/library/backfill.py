"""In which order stored pages get what they lack: words first, because they are cheap, then vectors or scans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import RandSlotError
from ..model.reader import PageReader, Reads
from ..pages.text import PageText
from ..words.language import AUTO, detect_language
from .ingest import SAFE_SECONDS, SAMPLE
from .languages import LibraryWords, make_stored_text
from .manifest import Manifest
from .readers import FileReader, WantedPages, hash_text
from .results import Progress
from .sources import is_gone
from .stores.base import Origin, Store, StoredPage, StoredText
from .workers import WorkerPool

TOGETHER = 32  # pages that are stored at once
STORE_SECONDS = 2.0  # after which they are stored even if they are fewer: reading a scan takes as long


@dataclass
class Fill:
    """One run over pages that are stored; `stop` is asked after each page that was read, and ends the run."""

    manifest: Manifest
    store: Store
    words: LibraryWords
    pool: WorkerPool
    report: Callable[[Progress], None]
    stop: Callable[[], bool] = lambda: False

    def read_layers(self) -> int:
        """Read the text layers of pages that nobody has looked at; return how many have text."""
        return self._read("words", ("",), self.pool.read_text, "layer", "none")

    def read_scans(self, *, all_pages: bool) -> int:
        """Read pages without text by OCR, or all pages; return how many were read."""
        origins: tuple[Origin, ...] = ("none", "failed", "layer", "ocr", "blank", "") if all_pages else ("none",)
        return self._read("scans", origins, self.pool.read_by_ocr, "ocr", "blank")

    def encode(self, reader: FileReader) -> int:
        """Have a model encode pages that have no vectors; return how many were encoded."""
        wanted = self._list_wanted(self.store.find(None, vectors=False))
        total = sum(len(pages.numbers) for pages in wanted)
        done = num = 0
        flushed = time.monotonic()
        for pages in reader.read(wanted) if wanted else ():
            stored = []
            for page in pages:
                if page.vectors is not None:
                    stored.append(StoredPage(page.file, page.number, page.hash, page.vectors))
            self.store.update(stored)
            done, num = done + len(pages), num + len(stored)
            self.report(Progress(0, 0, done, total, stage="vectors"))
            if time.monotonic() - flushed >= SAFE_SECONDS:
                self.store.flush()
                flushed = time.monotonic()
        return num

    def encode_texts(self, load_model: Callable[[], PageReader], *, again: bool, batch: int = 8) -> int:
        """Have a model encode the stored texts of pages that have no vectors; return how many were encoded.

        again: also of pages that have vectors, where the text is another one than they were made from.
        """
        ids = [page.id for page in self.store.find(("layer", "ocr"), vectors=None if again else False)]
        num = 0
        for start in range(0, len(ids), batch):
            pages = [page for page in self.store.read(ids[start : start + batch]).values() if _has_news(page)]
            if pages:
                self.store.update(_encode_texts(load_model(), pages))
                num += len(pages)
            self.report(Progress(0, 0, start + batch, len(ids), stage="vectors"))
        return num

    def detect_language(self) -> str | None:
        """Return the language that most of the stored pages are in, by some of them."""
        ids = [page.id for page in self.store.find(("layer", "ocr"))]
        pages = self.store.read(ids[:: max(len(ids) // SAMPLE, 1)]).values()
        return detect_language([page.text.text for page in pages if page.text])

    def count_again(self) -> bool:
        """Count the words of all stored texts anew, in other languages; return whether it was not stopped."""
        ids = [page.id for page in self.store.find(("layer", "ocr"))]
        for start in range(0, len(ids), TOGETHER):
            counted = []
            for page in self.store.read(ids[start : start + TOGETHER]).values():
                if page.text:
                    terms = self.words.choose(page.text.text).weigh_page(page.text.text)
                    counted.append(replace(page, vectors=None, text=replace(page.text, terms=terms)))
            self.store.update(counted)
            self.report(Progress(0, 0, min(start + TOGETHER, len(ids)), len(ids), stage="counting"))
            if self.stop():
                return False
        self.store.flush()
        return True

    def _read(
        self,
        stage: str,
        origins: tuple[Origin, ...],
        read: Callable[[str, int], PageText],
        origin: Origin,
        without: Origin,
    ) -> int:
        """Read the text of pages, some ahead of those that are stored; `without` is what pages without text get."""
        wanted = self._list_wanted(self.store.find(origins))
        total = sum(len(pages.numbers) for pages in wanted)
        stored: list[StoredPage] = []
        num = 0
        stored_at = flushed_at = time.monotonic()
        for done, (place, text) in enumerate(self._read_ahead(wanted, read), start=1):
            num += bool(text and text.text)
            stored.append(self._make_page(place, text, origin, without))
            now = time.monotonic()
            if len(stored) == TOGETHER or now - stored_at >= STORE_SECONDS:
                self.store.update(stored)
                stored, stored_at = [], now
            if now - flushed_at >= SAFE_SECONDS:
                self.store.flush()
                flushed_at = now
            self.report(Progress(0, 0, done, total, stage=stage))
            if self.stop():
                break
        if stored:
            self.store.update(stored)
        return num

    def _read_ahead(
        self, wanted: list[WantedPages], read: Callable[[str, int], PageText]
    ) -> Iterator[tuple[tuple[WantedPages, int], PageText | None]]:
        """Yield pages with their text; None for one that cannot be read."""

        def places() -> Iterator[tuple[WantedPages, int]]:
            for pages in wanted:
                for number in pages.numbers:
                    yield pages, number

        def read_one(place: tuple[WantedPages, int]) -> PageText:
            return read(place[0].source, place[1])

        for place, future in self.pool.ahead(read_one, places(), 4 * len(self.pool.workers)):
            error = future.exception()
            if error is not None and not isinstance(error, RandSlotError):
                raise error
            yield place, None if error else future.result()

    def _make_page(
        self, place: tuple[WantedPages, int], text: PageText | None, origin: Origin, without: Origin
    ) -> StoredPage:
        pages, number = place
        if text is None:
            stored = StoredText("failed" if origin == "ocr" else "none")
        elif text.text:
            stored = make_stored_text(text, origin, self.words.choose(text.text))
        else:
            stored = StoredText("blank" if text.has_layer else without)
        return StoredPage(pages.file, number, "", None, stored)

    def _list_wanted(self, found: Iterable[StoredPage]) -> list[WantedPages]:
        """Return pages of files that are complete and where they were, file by file in the order of their names."""
        numbers: dict[str, list[int]] = {}
        for page in found:
            numbers.setdefault(page.file, []).append(page.number)
        wanted = []
        for file in self.manifest.find(state="done"):
            if file.id in numbers and not is_gone(file.source):
                wanted.append(WantedPages(file.id, file.source, tuple(sorted(numbers[file.id]))))
        return wanted


def _has_news(page: StoredPage) -> bool:
    """Whether a page has a text that its vectors, if it has any, were not made from."""
    text = page.text.text if page.text else ""
    return bool(text.strip()) and (page.vectors is None or page.image != hash_text(text))


def _encode_texts(model: PageReader, pages: list[StoredPage]) -> list[StoredPage]:
    """Return the new vectors of pages by their texts, as the store takes them."""
    texts = [page.text.text for page in pages if page.text]
    encoded = []
    for page, text, vectors in zip(pages, texts, model.embed_pages(texts), strict=True):
        encoded.append(StoredPage(page.file, page.number, hash_text(text), vectors, cut=model.is_cut(text)))
    return encoded


Ocr = Literal["missing", "all"]


@dataclass(frozen=True)
class BoundModel:
    """The model of a library before it is loaded: what it takes of a page."""

    reads: Reads
    load: Callable[[], PageReader]


def complete_pages(fill: Fill, reader: FileReader, model: BoundModel | None) -> int:
    """Read and encode what pages lack that are stored already; return how many were encoded."""
    read = fill.read_layers()
    encoded = 0
    if model is not None and model.reads == "text":
        encoded = fill.encode_texts(model.load, again=False)
    elif model is not None:
        encoded = fill.encode(reader)
    if read or encoded:
        fill.store.optimize()
    return encoded


def read_words(fill: Fill, model: BoundModel | None, *, language: str | None, ocr: Ocr | None) -> int:
    """Read the words of pages that have none yet, and all in another language if one is named.

    Return how many were read. Texts that OCR has found are encoded if the model reads text.
    """
    each = language == AUTO
    if each:
        language = fill.detect_language() or fill.words.language
    has_others = not each and len(fill.words.languages) > 1  # they came by a copy
    if language and (has_others or (language, each) != (fill.words.language, fill.words.each)):
        fill.words.begin(language, each)
    if fill.words.begun:
        if not fill.count_again():
            return 0
        fill.words.finish()
    num = fill.read_layers()
    if ocr is not None:
        num += fill.read_scans(all_pages=ocr == "all")
        if model is not None and model.reads == "text":
            fill.encode_texts(model.load, again=ocr == "all")
    fill.store.optimize()
    return num


def count_unread(store: Store, manifest: Manifest) -> int:
    """Return how many pages no search by words can find: those that OCR has not read, or nobody has looked at."""
    contents = store.contents(manifest.hidden())
    return contents.origins.get("none", 0) + contents.origins.get("", 0)
