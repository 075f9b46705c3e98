"""A library as a service: what the API answers, without HTTP. One process owns the library."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import RandSlotError
from ..library.library import Library
from ..library.manifest import File
from ..library.reading.workers import Renderers
from ..library.results import Hit
from ..library.stores.store import Vectors, page_id
from ..pages import KINDS
from ..words.snippets import Found
from .limits import RENDER_SECONDS, Refused, UploadLimits
from .searches import Options, Searches
from .uploads import Uploads

PIXELS = {"small": 360 * 480, "large": 1200 * 1600}  # of page images
RENDERERS = 2
CACHED = 300  # page images


@dataclass(frozen=True)
class FoundPage:
    """A page that was found, and the document that it is in."""

    hit: Hit
    document: File


@dataclass(frozen=True)
class Explanation:
    """How near each readout of a query is to each of a page, the nearest of each row (from 1), and their sum."""

    similarities: list[list[float]]
    winners: list[int]
    score: float


class Service:
    """Searches, pages, documents and uploads of one library. Close it: that finishes what was acknowledged."""

    def __init__(self, library: Library, *, read_only: bool = False, upload_limits: UploadLimits | None = None) -> None:
        self.library = library
        if library.choose_by() != "words":
            _ = library.model  # the first search should not wait for it
        self.renderers = Renderers(RENDERERS, RENDER_SECONDS)
        self.searches = Searches(library)
        self.uploads = None if read_only else Uploads(library, self.renderers, upload_limits or UploadLimits())
        self.threads = ThreadPoolExecutor(RENDERERS, "images")
        self._draw = lru_cache(CACHED)(self._draw_now)

    def close(self) -> None:
        """Answer and index what is waiting, then stop; the library stays open."""
        self.searches.close()
        if self.uploads:
            self.uploads.close()
        self.threads.shutdown(cancel_futures=True)
        self.renderers.close()

    # -- documents and pages

    def documents(self, part: str, offset: int, limit: int) -> tuple[int, list[File]]:
        """Return how many documents have a text in their name, and some of them, by name."""
        part = part.lower()
        found = []
        for file in self.library.files():
            if file.state == "done" and part in show_name(file).lower():
                found.append(file)
        found.sort(key=lambda file: (show_name(file).lower(), file.source))
        return len(found), found[offset : offset + limit]

    def document(self, id: str) -> File:
        """Return a document by its id.

        Errors: Refused if there is none.
        """
        file = self.library.manifest.get([id]).get(id)
        if file is None or file.state != "done":
            raise Refused(404, "no such document")
        return file

    def page(self, id: str, number: int) -> File:
        """Return the document that has this page.

        Errors: Refused if there is none.
        """
        file = self.document(id)
        if not 1 <= number <= file.num_pages:
            raise Refused(404, f"the document has {file.num_pages} pages, so there is no page {number}")
        return file

    def content(self, id: str) -> tuple[Path, str]:
        """Return the path of a document's file and its media type.

        Errors: Refused if the file is gone.
        """
        path = Path(self.document(id).source)
        if not path.is_file():
            raise Refused(404, "the file is not where it was when it was indexed")
        kind = KINDS.get(path.suffix.lower())
        return path, kind.media_type if kind else "application/octet-stream"

    def image(self, id: str, number: int, size: str) -> bytes:
        """Return a page as a JPEG, drawn in a process with limits of time and memory.

        Errors: Refused if there is no such page, or its file is gone or broken.
        """
        file = self.page(id, number)
        try:
            return self._draw(file.source, number, PIXELS[size], os.stat(file.source).st_mtime_ns)
        except (OSError, RandSlotError) as error:
            raise Refused(404, "this page cannot be shown: its file is gone, or has changed or broken") from error

    def _draw_now(self, source: str, number: int, pixels: int, modified: int) -> bytes:
        """Draw a page; `modified` is there so that a changed file is drawn again."""
        buffer = BytesIO()
        self.renderers.render(source, number, pixels).save(buffer, "JPEG", quality=88)
        return buffer.getvalue()

    # -- searches

    async def search(self, query: str, options: Options) -> list[FoundPage]:
        """Return the best pages for a query; pages of a document that has just been removed are left out.

        Errors: Refused if too many searches are waiting.
        """
        hits = await asyncio.wrap_future(self.searches.ask(query, options))
        return await asyncio.to_thread(self._find_documents, hits)

    def _find_documents(self, hits: list[Hit]) -> list[FoundPage]:
        files = self.library.manifest.get({hit.file for hit in hits})
        found = []
        for hit in hits:
            file = files.get(hit.file)
            if file is not None and file.state == "done":
                found.append(FoundPage(hit, file))
        return found

    def explain(self, query: str, id: str, number: int) -> Explanation:
        """Return why a page has its score for a query.

        Errors: Refused if there is no such page.
        """
        self.page(id, number)
        similarities: Vectors = self.library.compare(query, page_id(id, number))
        winners = [int(one) + 1 for one in similarities.argmax(1)]
        return Explanation(similarities.tolist(), winners, float(similarities.max(1).sum()))

    def find_words(self, query: str, id: str, number: int) -> Found:
        """Return where the words of a query stand on a page.

        Errors: Refused if there is no such page.
        """
        self.page(id, number)
        return self.library.find_on_page(query, page_id(id, number))

    # -- state

    def status(self) -> dict[str, Any]:
        """Return what the library holds and what the service allows."""
        found = self.library.status()
        return {
            "library": self.library.folder.absolute().name,
            "documents": found.files,
            "pages": found.pages,
            "bytes": found.bytes,
            "bytes_per_page": found.bytes_per_page,
            "vector_bytes_per_page": found.vector_bytes_per_page,
            **self._describe_model(),
            "by": self.library.choose_by(),
            "language": found.language,
            "pages_with_text": found.with_text,
            "notes": list(found.notes),
            "read_only": self.uploads is None,
            "uploads_waiting": self.uploads.num_waiting() if self.uploads else 0,
        }

    def _describe_model(self) -> dict[str, Any]:
        binding = self.library.binding
        if binding is None:
            return {"model": None, "page_vectors": 0, "query_vectors": 0, "dimension": 0}
        return {
            "model": Path(binding.name or "a model in memory").name,
            "page_vectors": binding.num_vectors("page"),
            "query_vectors": binding.num_vectors("query"),
            "dimension": binding.dimension,
        }


def show_name(file: File) -> str:
    """Return the name of a document as text that can be shown: bytes that are not text are replaced."""
    return _readable(os.path.basename(file.source))


def show_folder(file: File) -> str:
    """Return the name of the folder that a document is in, and not the path to it."""
    return _readable(os.path.basename(os.path.dirname(file.source)))


def _readable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
