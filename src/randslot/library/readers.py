"""Read and encode pages: workers open them ahead of the model, which encodes batches."""

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

    file: its id. known: hashes of pages whose vectors are already stored, to skip encoding.
    """

    file: str
    source: str
    numbers: tuple[int, ...]
    known: frozenset[str] = frozenset()

    def split(self, size: int) -> Iterator[WantedPages]:
        """Yield batches of pages."""
        for start in range(0, len(self.numbers), size):
            yield replace(self, numbers=self.numbers[start : start + size])


@dataclass(frozen=True)
class ReadPage:
    """A page that was read: its text, the model's input, and its vectors.

    file: the file's id. hash: of the model's input, or of the text without a model; equal hashes mean equal vectors.
    error: why the page could not be opened; the other fields are empty then. content: the model's input, an image or a
    text, possibly preprocessed; None without a model, without input, or with a known hash. cut: whether the model has
    read only a part of the text.
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
    """Open pages of a file: their texts, and images of about `pixels` pixels for image models.

    For a text model, a page without text has no content: it is encoded after OCR.
    """
    opened = []
    texts = pool.read_texts(wanted.source, wanted.numbers)
    for number, text in zip(wanted.numbers, texts, strict=True):
        page = ReadPage(wanted.file, number)
        try:
            if reads == "image":  # images do not need text
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
    """Hash a text; "" for an empty one, since pages without text differ."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if text else ""


class FileReader(Protocol):
    """Reads pages of files, and encodes them if the library has a model."""

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        """Yield batches of pages; after an error, other pages of the file may be missing."""


class LocalReader:
    """Reads in this process and its workers; memory is bounded by a few batches."""

    def __init__(self, pool: WorkerPool, load_model: Callable[[], PageReader | None], batch: int) -> None:
        """load_model: called by the first read; without a model pages have no vectors.

        batch: pages per batch at the largest size; smaller pages make larger batches.
        """
        self.pool, self.load_model, self.batch = pool, load_model, batch

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        model = self.load_model()
        prepare = getattr(model, "prepare_page", None)  # preprocess in threads, while the model encodes
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

        size = 1 if model else 32  # pages per request
        work = (some for pages in wanted for some in pages.split(size))
        batch: list[ReadPage] = []
        for _, future in self.pool.ahead(open_some, work, (2 * self.batch if model else 2) + len(self.pool.workers)):
            for page in future.result():
                if page.file in failed:
                    continue
                if page.error:
                    failed.add(page.file)
                    batch = [other for other in batch if other.file != page.file]
                    yield [page]
                else:
                    batch.append(page)
            if model is None:
                yield batch
                batch = []
            elif sum(page_share(page.content) for page in batch) >= self.batch:
                yield _encode(model, batch)
                batch = []
                return_freed_memory()
        if model and batch:
            yield _encode(model, batch)


def _encode(model: PageReader, pages: list[ReadPage]) -> list[ReadPage]:
    """Encode the content of pages in one batch."""
    contents = [page.content for page in pages if page.content is not None]
    vectors = iter(model.embed_pages(contents) if contents else ())
    encoded = []
    for page in pages:
        encoded.append(page if page.content is None else replace(page, content=None, vectors=next(vectors)))
    return encoded
