"""From pages of files to texts and vectors: workers open pages ahead of the model, which encodes them in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from ..errors import RandSlotError
from ..model.batching import page_share, return_freed_memory
from ..model.reader import PageReader, Reads
from ..pages.text import NO_TEXT, PageText
from .stores.points import BYTES_PER_NUMBER, Vectors
from .workers import WorkerPool


@dataclass(frozen=True)
class OpenedPage:
    """A page of a file: what a model takes of it, its text, and a hash.

    page: an image or a text, or what a model has made of it; None if there is no model, or nothing for it.
    hash: of what the model takes; a page with the same hash has the same vectors. Without a model, of the text.
    cut: whether the page has more text than the model reads, where that is known already.
    """

    page: Any
    text: PageText
    hash: str
    cut: bool = False


def open_page(pool: WorkerPool, reads: Reads | None, pixels: int, file: str, number: int) -> OpenedPage:
    """Open a page of a file: its text, and an image of about `pixels` pixels if that is what a model reads.

    A page without text has nothing for a model that reads text: it gets its vectors when OCR has read it.
    """
    if reads != "image":
        text = pool.read_text(file, number)
        return OpenedPage(text.text if reads == "text" and text.text.strip() else None, text, hash_text(text.text))
    image = pool.render(file, number, pixels)
    try:
        text = pool.read_text(file, number)
    except RandSlotError:  # a page that can be seen is fine without text
        text = NO_TEXT
    hash = blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()
    return OpenedPage(image, text, hash)


def hash_text(text: str) -> str:
    """Return a hash of a text; "" for none, since pages without text are not all the same."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if text else ""


@dataclass(frozen=True)
class WantedPages:
    """Pages of a file to read.

    file: its id. known: hashes of pages whose vectors are stored already; they are not encoded again.
    """

    file: str
    source: str
    numbers: tuple[int, ...]
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadPage:
    """A page that was read: the hash of what was read of it, its vectors, and its text.

    file: the file's id. vectors: None if the hash is known, or there is no model, or no text for it. text: None if it
    was not asked for. error: why the page could not be opened; then there is nothing else. cut: whether the page has
    more text than the model has read.
    """

    file: str
    number: int
    hash: str = ""
    vectors: Vectors | None = None
    text: PageText | None = None
    error: str = ""
    cut: bool = False


class FileReader(Protocol):
    """Opens pages of files, and has a model encode them if the library has one."""

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        """Yield the pages, some at a time; after one that cannot be opened, others of its file may be left out."""


Place = tuple[WantedPages, int]  # a page: its file and its number


class LocalReader:
    """Reads in this process and its workers; takes memory for a few batches, however many pages there are."""

    def __init__(self, pool: WorkerPool, load_model: Callable[[], PageReader | None], batch: int) -> None:
        """load_model: called when the first page is wanted; without a model pages have text and no vectors.

        batch: pages of the largest size that are encoded at once; of smaller ones more.
        """
        self.pool, self.load_model, self.batch = pool, load_model, batch

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        model = self.load_model()
        failed: set[str] = set()  # files with a page that cannot be opened
        waiting: list[tuple[Place, OpenedPage]] = []
        for (pages, number), future in self._open_ahead(wanted, model, failed):
            if pages.file in failed:
                continue
            error = future.exception()
            if error is None:
                waiting.append(((pages, number), future.result()))
            elif isinstance(error, RandSlotError):
                failed.add(pages.file)
                waiting = [item for item in waiting if item[0][0].file not in failed]
                yield [ReadPage(pages.file, number, error=str(error))]
            else:  # not the fault of the page
                raise error
            if sum(page_share(opened.page) for _, opened in waiting) >= self.batch:
                yield _encode(model, waiting)
                waiting = []
                return_freed_memory()
        if waiting:
            yield _encode(model, waiting)

    def _open_ahead(
        self, wanted: Sequence[WantedPages], model: PageReader | None, failed: set[str]
    ) -> Iterator[tuple[Place, Future[OpenedPage]]]:
        """Open pages in order, some ahead of the one that is used; skip those of failed files."""
        reads, pixels = (model.reads, model.page_pixels) if model else (None, 0)
        prepare = getattr(model, "prepare_page", None)  # what needs no model is done here, while it encodes other pages

        def open_one(place: Place) -> OpenedPage:
            pages, number = place
            if pages.file in failed:
                raise RandSlotError("another page of the file cannot be opened")
            opened = open_page(self.pool, reads, pixels, pages.source, number)
            if model is None or prepare is None or opened.page is None or opened.hash in pages.known:
                return opened
            return replace(opened, page=prepare(opened.page), cut=_is_cut(model, opened))

        places = ((pages, number) for pages in wanted for number in pages.numbers if pages.file not in failed)
        return self.pool.ahead(open_one, places, depth=2 * self.batch + len(self.pool.workers))


def _is_cut(model: PageReader, opened: OpenedPage) -> bool:
    return opened.cut or (isinstance(opened.page, str) and model.is_cut(opened.page))


def _encode(model: PageReader | None, opened: list[tuple[Place, OpenedPage]]) -> list[ReadPage]:
    """Encode the pages whose hash is not known, all together."""
    new = {}
    for i, ((pages, _), one) in enumerate(opened):
        if one.page is not None and one.hash not in pages.known:
            new[i] = one.page
    vectors = dict(zip(new, model.embed_pages(list(new.values())), strict=True)) if model and new else {}
    read = []
    for i, ((pages, number), one) in enumerate(opened):
        cut = model is not None and _is_cut(model, one)
        read.append(ReadPage(pages.file, number, one.hash, vectors.get(i), one.text, cut=cut))
    return read


class TellingReader:
    """Reads as another reader does, and logs what the first pages take: before an hour has gone into it."""

    def __init__(self, reader: FileReader) -> None:
        self.reader, self.told = reader, False

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        for pages in self.reader.read(wanted):
            vectors = [page.vectors for page in pages if page.vectors is not None]
            if vectors and not self.told:
                logging.getLogger("randslot").warning("%s", describe_size(vectors))
                self.told = True
            yield pages


def describe_size(pages: Sequence[Vectors]) -> str:
    """Return what pages like these take: "about 760 vectors of 128: 195 KB a page, 11.9 times RandSlot"."""
    counts = [len(vectors) for vectors in pages]
    num, dim = round(sum(counts) / len(counts)), pages[0].shape[1]
    size = BYTES_PER_NUMBER * num * dim
    about = "" if len(set(counts)) == 1 else "about "
    what = "1 vector" if num == 1 else f"{num:,} vectors"
    shown = f"{size / 1000:.0f} KB" if size >= 10_000 else f"{size / 1000:.1f} KB"
    ratio = size / (BYTES_PER_NUMBER * 4 * 2048)  # four vectors a page, as the paper's models make them
    times = f"{ratio:.1f}" if ratio > 0.1 else f"{ratio:.1g}"
    return f"{about}{what} of {dim:,}: {shown} a page, {times} times RandSlot"
