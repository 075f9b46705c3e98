"""From pages of files to texts and vectors: workers open pages ahead of the model, which encodes them in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from ..errors import RandSlotError
from ..model.batching import page_share, return_freed_memory
from ..model.reader import PageReader, Reads
from ..pages.text import NO_TEXT, PageText
from .stores.points import Vectors
from .workers import WorkerPool


@dataclass(frozen=True)
class WantedPages:
    """Pages of a file to read.

    file: its id. known: hashes of pages whose vectors are stored already; they are not encoded again.
    """

    file: str
    source: str
    numbers: tuple[int, ...]
    known: frozenset[str] = frozenset()

    def split(self, size: int) -> Iterator[WantedPages]:
        """Yield some pages at a time."""
        for start in range(0, len(self.numbers), size):
            yield replace(self, numbers=self.numbers[start : start + size])


@dataclass(frozen=True)
class ReadPage:
    """A page of a file that was read: its text, what a model takes of it, and its vectors.

    file: the file's id. hash: of what the model takes; a page with the same hash has the same vectors. Without a model,
    of the text. error: why the page could not be opened; then there is nothing else. content: an image or a text, or
    what a model has made of it; None if there is no model, or nothing for it, or the hash is known. cut: whether the
    page has more text than the model has read.
    """

    file: str
    number: int
    hash: str = ""
    text: PageText | None = None
    error: str = ""
    content: Any = None
    vectors: Vectors | None = None
    cut: bool = False


def open_pages(pool: WorkerPool, reads: Reads | None, pixels: int, wanted: WantedPages) -> list[ReadPage]:
    """Open pages of a file: their texts, and images of about `pixels` pixels if that is what a model reads.

    A page without text has nothing for a model that reads text: it gets its vectors when OCR has read it.
    """
    opened = []
    texts = pool.read_texts(wanted.source, wanted.numbers)
    for number, text in zip(wanted.numbers, texts, strict=True):
        page = ReadPage(wanted.file, number)
        try:
            if reads == "image":  # a page that can be seen is fine without text
                image = pool.render(wanted.source, number, pixels)
                hash = blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()
                text = NO_TEXT if isinstance(text, RandSlotError) else text
                page = replace(page, hash=hash, text=text, content=image)
            elif isinstance(text, RandSlotError):
                raise text
            else:
                content = text.text if reads == "text" and text.text.strip() else None
                page = replace(page, hash=hash_text(text.text), text=text, content=content)
        except RandSlotError as error:
            page = replace(page, error=str(error))
        opened.append(replace(page, content=None) if page.hash in wanted.known else page)
    return opened


def hash_text(text: str) -> str:
    """Return a hash of a text; "" for none, since pages without text are not all the same."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if text else ""


class FileReader(Protocol):
    """Opens pages of files, and has a model encode them if the library has one."""

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        """Yield the pages, some at a time; after one that cannot be opened, others of its file may be left out."""


class LocalReader:
    """Reads in this process and its workers; takes memory for a few batches, however many pages there are."""

    def __init__(self, pool: WorkerPool, load_model: Callable[[], PageReader | None], batch: int) -> None:
        """load_model: called when the first page is wanted; without a model pages have text and no vectors.

        batch: pages of the largest size that are encoded at once; of smaller ones more.
        """
        self.pool, self.load_model, self.batch = pool, load_model, batch

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        model = self.load_model()
        prepare = getattr(model, "prepare_page", None)  # what needs no model is done here, while it encodes other pages
        failed: set[str] = set()  # files with a page that cannot be opened

        def open_some(some: WantedPages) -> list[ReadPage]:
            if some.file in failed:
                return []
            opened = open_pages(self.pool, model.reads if model else None, model.page_pixels if model else 0, some)
            for i, page in enumerate(opened):
                if model is not None and page.content is not None:
                    cut = isinstance(page.content, str) and model.is_cut(page.content)
                    content = prepare(page.content) if prepare else page.content
                    opened[i] = replace(page, content=content, cut=cut)
            return opened

        size = 1 if model else 64  # pages per request
        work = (some for pages in wanted for some in pages.split(size))
        waiting: list[ReadPage] = []
        for _, future in self.pool.ahead(open_some, work, (2 * self.batch if model else 2) + len(self.pool.workers)):
            for page in future.result():
                if page.file in failed:
                    continue
                if page.error:
                    failed.add(page.file)
                    waiting = [other for other in waiting if other.file != page.file]
                    yield [page]
                else:
                    waiting.append(page)
            if model is None:
                yield waiting
                waiting = []
            elif sum(page_share(page.content) for page in waiting) >= self.batch:
                yield _encode(model, waiting)
                waiting = []
                return_freed_memory()
        if model and waiting:
            yield _encode(model, waiting)


def _encode(model: PageReader, pages: list[ReadPage]) -> list[ReadPage]:
    """Encode the content of pages, all together."""
    contents = [page.content for page in pages if page.content is not None]
    vectors = iter(model.embed_pages(contents) if contents else ())
    encoded = []
    for page in pages:
        encoded.append(page if page.content is None else replace(page, content=None, vectors=next(vectors)))
    return encoded
