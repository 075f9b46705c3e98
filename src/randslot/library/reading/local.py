"""Pages read in this process: worker processes open pages while the model, if there is one, encodes others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from ...errors import RandSlotError
from ...model.ahead import page_share, return_freed_memory
from ...model.reader import PageReader
from .content import Content, read_content
from .reader import ReadPage, WantedPages
from .workers import Renderers

Place = tuple[WantedPages, int]  # a page: its file and its number


class LocalReader:
    """Reads in this process and its workers; takes memory for a few batches, however many pages there are."""

    def __init__(self, renderers: Renderers, load_model: Callable[[], PageReader | None], batch: int) -> None:
        """load_model: called when the first page is wanted; without a model pages have text and no vectors.

        batch: pages of the largest size that are encoded at once; of smaller ones more.
        """
        self.renderers, self.load_model, self.batch = renderers, load_model, batch

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
            content = read_content(self.renderers, reads, pixels, pages.source, number)
            if model is None or prepare is None or content.page is None or content.hash in pages.known:
                return content
            return replace(content, page=prepare(content.page), cut=_is_cut(model, content))

        def places() -> Iterator[Place]:
            for pages in wanted:
                for number in pages.numbers:
                    if pages.file not in failed:
                        yield pages, number

        depth = 2 * self.batch + len(self.renderers.workers)
        return self.renderers.ahead(open_page, places(), depth)


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
