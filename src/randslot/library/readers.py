"""What a page of a model takes, told as soon as its first pages are encoded: before an hour has gone into it."""

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
from .stores.base import BYTES_PER_NUMBER, Vectors
from .workers import WorkerPool, hash_image


@dataclass(frozen=True)
class Content:
    """What a model takes of a page (None if there is no model, or nothing for it), the text of the page, and a hash.

    hash: of what the model takes; a page with the same hash has the same vectors. Without a model, of the text.
    cut: whether the page has more text than the model reads, where that is known already.
    """

    page: Any  # an image or a text, or what a model has made of it
    text: PageText
    hash: str
    cut: bool = False


def read_content(pool: WorkerPool, reads: Reads | None, pixels: int, file: str, number: int) -> Content:
    """Open a page of a file: its text, and an image of about `pixels` pixels if that is what a model reads.

    A page without text has nothing for a model that reads text: it gets its vectors when OCR has read it.

    Errors: RandSlotError with the reason why it cannot be opened.
    """
    if reads == "image":
        image = pool.render(file, number, pixels)
        return Content(image, _read_text_if_any(pool, file, number), hash_image(image))
    text = pool.read_text(file, number)
    wanted = reads == "text" and text.text.strip()
    return Content(text.text if wanted else None, text, hash_text(text.text))


def _read_text_if_any(pool: WorkerPool, file: str, number: int) -> PageText:
    """Read the text of a page that can be seen; one whose text cannot be read counts as having none."""
    try:
        return pool.read_text(file, number)
    except RandSlotError:
        return NO_TEXT


def hash_text(text: str) -> str:
    """Return a hash of a text; "" for none, since pages without text are not all the same."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if text else ""


@dataclass(frozen=True)
class WantedPages:
    """Pages of a file that are to be read.

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
        waiting: list[tuple[Place, Content]] = []
        size = 0.0
        for (pages, number), future in self._open_ahead(wanted, model, failed):
            if pages.file in failed:
                continue
            error = _error(future)
            if error:
                failed.add(pages.file)
                waiting = [item for item in waiting if item[0][0].file not in failed]
                size = sum(page_share(content.page) for _, content in waiting)
                yield [ReadPage(pages.file, number, error=error)]
                continue
            waiting.append(((pages, number), future.result()))
            size += page_share(waiting[-1][1].page)
            if size >= self.batch:
                yield _encode(model, waiting)
                waiting, size = [], 0.0
                return_freed_memory()
        if waiting:
            yield _encode(model, waiting)

    def _open_ahead(
        self, wanted: Sequence[WantedPages], model: PageReader | None, failed: set[str]
    ) -> Iterator[tuple[Place, Future[Content]]]:
        """Open pages in order, some ahead of the one that is used; those of failed files are passed over."""
        reads, pixels = (model.reads, model.page_pixels) if model else (None, 0)
        prepare = getattr(model, "prepare_page", None)  # what needs no model is done here, while it encodes other pages

        def open_page(place: Place) -> Content:
            pages, number = place
            if pages.file in failed:
                raise RandSlotError("another page of the file cannot be opened")
            content = read_content(self.pool, reads, pixels, pages.source, number)
            if model is None or prepare is None or content.page is None or content.hash in pages.known:
                return content
            return replace(content, page=prepare(content.page), cut=_is_cut(model, content))

        def places() -> Iterator[Place]:
            for pages in wanted:
                for number in pages.numbers:
                    if pages.file not in failed:
                        yield pages, number

        depth = 2 * self.batch + len(self.pool.workers)
        return self.pool.ahead(open_page, places(), depth)


def _is_cut(model: PageReader, content: Content) -> bool:
    return content.cut or (isinstance(content.page, str) and model.is_cut(content.page))


def _error(future: Future[Content]) -> str:
    """Return why a page could not be opened; an error that is not the page's fault is raised."""
    error = future.exception()
    if error is not None and not isinstance(error, RandSlotError):
        raise error
    return str(error) if error else ""


def _encode(model: PageReader | None, opened: list[tuple[Place, Content]]) -> list[ReadPage]:
    """Encode the pages whose hash is not known, all together."""
    new = []
    for (pages, _), content in opened:
        if content.page is not None and content.hash not in pages.known:
            new.append(content.page)
    vectors = iter(model.embed_pages(new) if model and new else [])
    read = []
    for (pages, number), content in opened:
        is_new = content.page is not None and content.hash not in pages.known
        own = next(vectors) if is_new else None
        cut = model is not None and _is_cut(model, content)
        read.append(ReadPage(pages.file, number, content.hash, own, content.text, cut=cut))
    return read


NOTES = logging.getLogger("randslot")
RANDSLOT_BYTES = BYTES_PER_NUMBER * 4 * 2048  # four vectors a page, as the paper's models make them


class TellingReader:
    """Reads as another reader does, and tells what the first pages take."""

    def __init__(self, reader: FileReader) -> None:
        self.reader, self.told = reader, False

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        for pages in self.reader.read(wanted):
            vectors = [page.vectors for page in pages if page.vectors is not None]
            if vectors and not self.told:
                NOTES.warning("%s", describe_size(vectors))
                self.told = True
            yield pages


def describe_size(pages: Sequence[Vectors]) -> str:
    """Return what pages like these take: "about 760 vectors of 128: 195 KB a page, 12 times RandSlot"."""
    counts = [len(vectors) for vectors in pages]
    num, dim = round(sum(counts) / len(counts)), pages[0].shape[1]
    size = BYTES_PER_NUMBER * num * dim
    about = "" if len(set(counts)) == 1 else "about "
    what = "1 vector" if num == 1 else f"{num:,} vectors"
    shown = f"{size / 1000:.0f} KB" if size >= 10_000 else f"{size / 1000:.1f} KB"
    ratio = size / RANDSLOT_BYTES
    if ratio >= 1.5:
        beside = f", {ratio:.0f} times RandSlot" if ratio >= 9.5 else f", {ratio:.1f} times RandSlot"
    else:
        beside = ", as RandSlot" if ratio > 0.67 else f", {ratio:.2g} of RandSlot"
    return f"{about}{what} of {dim:,}: {shown} a page{beside}"
