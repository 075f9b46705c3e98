"""From wanted pages to their vectors, in this process: worker processes open pages while the model encodes others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from ...errors import RandSlotError
from ...model.reader import PageReader
from ..manifest import File
from ..stores.store import Vectors
from .workers import Renderers, hash_image


@dataclass
class Job:
    """A file on its way into the library: what it replaces, which pages are missing, and why it failed if it did."""

    file: File
    old: File | None
    missing: set[int]
    reuse: dict[str, str]  # pages of the old version, by the hash of their image
    failed: str = ""


@dataclass(frozen=True)
class Read:
    """A page that was read: the hash of its image, and its vectors, or none if its old version has that image too.

    error: why it could not be opened.
    """

    job: Job
    number: int
    image: str = ""
    vectors: Vectors | None = None
    error: str = ""


class Reader(Protocol):
    """What opens and encodes pages."""

    def read(self, jobs: Sequence[Job]) -> Iterator[list[Read]]:
        """Yield the missing pages of files, some at a time; those of a file that failed may be left out."""


class Here:
    """Reads in this process and its workers; takes memory for a few batches, however many pages there are."""

    def __init__(self, renderers: Renderers, load_model: Callable[[], PageReader], batch: int) -> None:
        self.renderers, self.load_model, self.batch = renderers, load_model, batch

    def read(self, jobs: Sequence[Job]) -> Iterator[list[Read]]:
        model = self.load_model()
        pixels = model.page_pixels

        def render(wanted: tuple[Job, int]) -> Image.Image:
            job, number = wanted
            if job.failed:
                raise RandSlotError(job.failed)
            return self.renderers.render(job.file.source, number, pixels)

        pages = ((job, number) for job in jobs for number in sorted(job.missing) if not job.failed)
        waiting: list[tuple[Job, int, Image.Image]] = []
        depth = 2 * self.batch + len(self.renderers.workers)
        for (job, number), future in self.renderers.ahead(render, pages, depth):
            if job.failed:
                continue
            if error := _error(future):
                yield [Read(job, number, error=error)]
                continue
            waiting.append((job, number, future.result()))
            if len(waiting) == self.batch:
                yield self._encode(model, waiting)
                waiting = []
        if waiting:
            yield self._encode(model, waiting)

    def _encode(self, model: PageReader, pages: list[tuple[Job, int, Image.Image]]) -> list[Read]:
        pages = [page for page in pages if not page[0].failed]
        hashes = [hash_image(image) for _, _, image in pages]
        new = [hash not in job.reuse for (job, _, _), hash in zip(pages, hashes, strict=True)]
        fresh = iter(model.embed_pages([image for (_, _, image), wanted in zip(pages, new, strict=True) if wanted]))
        return [
            Read(job, number, hash, next(fresh) if wanted else None)
            for (job, number, _), hash, wanted in zip(pages, hashes, new, strict=True)
        ]


def _error(future: Future[Image.Image]) -> str:
    """Return why a page could not be opened; what is no fault of the page is raised."""
    error = future.exception()
    if error is not None and not isinstance(error, RandSlotError):
        raise error
    return str(error) if error else ""
