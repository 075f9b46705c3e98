"""A library: index files, search pages."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from .. import pages
from ..errors import RandSlotError, UsageError
from ..files import write_whole
from ..model.reader import Identity, PageReader
from ..pages import NO_TEXT, PageText, short
from ..words.language import find_language
from ..words.snippets import Found, find_words
from .facets import check_metadata
from .languages import LibraryWords, read_stored_text
from .location import FORMAT, FORMATS, IMAGES, LIBRARY_FILE, clear, is_kept, open_location
from .manifest import File
from .models import EMBEDDED, LibraryModels, Name, ReadingCheck
from .rerank import Reranker
from .results import BY, By, Hit, Match, Progress, QueryResult, Status, Summary
from .search import find_passage, find_similar, search
from .sketches import REFRESH_SECONDS, LibrarySketches, SketchReport, count_pages
from .sources import expand, is_below, is_gone, is_match, list_files
from .stores.points import BYTES_PER_NUMBER, StoredPage, Vectors
from .stores.store import mean_numbers
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from PIL import Image

    from .backfill import Ocr
    from .readers import FileReader
    from .workers import WorkerPool

__all__ = ["Hit", "Library", "Match", "Progress", "Status", "Summary", "delete_library", "open_location"]


class Library:
    """A searchable collection of files. Close it, or use it in a `with` block.

    location: its folder or server. manifest: its files. store: its pages. words: its languages. models: of its vectors
    and queries. binding: the model that made the vectors; None without vectors. has_student: whether a distilled model
    encodes queries.
    """

    def __init__(
        self,
        folder: Name,
        model: Name | PageReader | Identity | None = None,
        *,
        query_model: Name | PageReader | None = None,
        create: bool = True,
        repair: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        """Open a library, or create one.

        folder: a folder, or the address of a server such as "qdrant://host:6334/papers". model: a folder, a hub id, a
        loaded model, or the binding of another library; it is loaded when first needed. Without a model, a new library
        supports keyword search only. If a library has no vectors, the next `add` encodes its pages with the model.
        query_model: a distilled student of the model, to encode queries. repair: open the library even if its pages are
        lost, to verify it. trust_remote_code: run the model's own Python code (review it first).

        Errors: RandSlotError in one line if the folder is not a library, belongs to another model, is open in another
        process, or has lost its pages.
        """
        self._writing = Lock()
        self._opening = Lock()
        self._pool: WorkerPool | None = None  # reads boxes from files
        self._boxes = lru_cache(1000)(self._read_boxes)
        self.location = open_location(folder, create=create)
        self.name, self.folder = self.location.name, self.location.folder
        self.models = LibraryModels(self.name, trust_remote_code)
        try:
            description = self.location.read()
            if description is None:
                described = None if model is None else self.models.bind(model).as_dict()
                description = {"format": FORMAT, "model": described, "words": {"language": None, "each": True}}
                self.location.write(description)
            else:
                check_format(description, self.name)
                if description["model"] is not None:
                    self.models.open(description["model"], model)
            self.location.open(description["model"] and description["model"]["dimension"], repair=repair)
            self.manifest, self.store = self.location.manifest, self.location.store
            vocabulary = Vocabulary(self.location)
            self.words = LibraryWords({}, lambda settings: self._update({"words": settings}), vocabulary)
            self.models.reading_check = ReadingCheck(**description["trust"]) if description.get("trust") else None
            self.sketches = LibrarySketches(self.location)
            self._load(description)
            if description["model"] is None and model is not None:  # the next `add` backfills vectors
                if not create:
                    self.models.need_binding()
                binding = self.models.bind(model)
                with self.write():
                    self.store.prepare(binding.dimension)
                    self._update({"model": binding.as_dict(), "trust": None})
            self.binding = self.models.binding
            self.has_student = query_model is not None
            if query_model is not None:
                self.models.use_student(query_model)
        except BaseException:
            self.location.abandon()
            raise

    def _read_description(self) -> dict[str, Any]:
        description = self.location.read()
        assert description is not None, "the library exists"
        return description

    def _update(self, changes: dict[str, Any]) -> None:
        """Update the description of the library."""
        self.location.write(self._read_description() | changes)

    def _load(self, description: dict[str, Any]) -> None:
        """Load languages and sketches from the description of the library; another process may have changed it."""
        self.refreshed_at = time.monotonic()
        self.words.load(description.get("words") or {})
        self.sketches.load(description)
        self.models.remembered_reranker = description.get("rerank")

    def close(self) -> None:
        """Close the library; another process can open it then."""
        if self._pool:
            self._pool.close()
        self.location.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of searchable pages."""
        return self.manifest.totals()[1]

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the write lease; finish deletions that an earlier process began."""
        with self._writing, self.location.hold_lease():
            self._load(self._read_description())
            clear(self.manifest, self.store, self.manifest.find(state="gone"))
            yield
            if self.words.vocabulary and self.words.vocabulary.is_changed:
                self.words.save()

    # -- indexing

    def add(
        self,
        inputs: Iterable[Name | Image.Image] | Name,
        *,
        metadata: Mapping[str, Any] | None = None,
        prune: bool = False,
        follow_links: bool = False,
        batch: int = 8,
        workers: int = 0,
        ray: str | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
        pool: WorkerPool | None = None,
    ) -> Summary:
        """Index files, folders (recursively), patterns and images; unchanged files are skipped.

        metadata: values to filter by. prune: remove files that no longer exist in these folders. follow_links: follow
        links to folders. batch: pages per batch. workers: processes that open files; default: cores minus one. ray:
        address of a Ray cluster that opens and encodes pages; "": the local one, started if needed. pool: a worker
        pool; closing it from another thread interrupts the run.

        The summary lists files that cannot be read, with the reason; the others are indexed.
        """
        from PIL import Image

        from .backfill import Backfill
        from .ingest import Ingest

        start = time.monotonic()
        assert batch >= 1, "pages per batch"
        check_metadata(metadata)
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        images = [self._save_image(one) for one in given if isinstance(one, Image.Image)]
        named = [one for one in given if not isinstance(one, Image.Image)]
        listing = list_files(named, self.folder, follow_links)
        summary = Summary(others=listing.others, links=listing.links, failed=listing.failed)
        try:
            with self.write(), pool or _open_pool(workers) as pool:
                reader = self._make_reader(pool, batch, ray)
                Ingest(self, pool, reader, metadata, progress, summary).run([*listing.files, *images])
                summary.encoded += Backfill(self, pool, progress).complete(reader)
                self._check_reading()
            if prune:
                summary.removed = self.forget(self.list_gone(listing.folders))
            summary.without_text = self.count_without_text()
        finally:
            summary.seconds = round(time.monotonic() - start, 3)
        return summary

    def read_words(
        self,
        *,
        language: str | None = None,
        ocr: Ocr | None = None,
        workers: int = 0,
        progress: Callable[[Progress], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Backfill text for keyword search; return the number of pages read.

        language: reindex all text for this language; "auto": detect it per page. ocr: also read pages without a text
        layer by OCR, or all pages; a text model also encodes them. stop: called after each page; true stops the run.
        Searches still work. Stopped or killed, the same call resumes.

        Errors: UsageError for an unknown language. RandSlotError if there is no OCR engine.
        """
        from ..pages.ocr import MISSING, find_engine
        from .backfill import Backfill

        wanted = None if language is None else find_language(language)
        if ocr is not None and find_engine() is None:
            raise RandSlotError(MISSING)
        with self.write(), _open_pool(workers) as pool:
            return Backfill(self, pool, progress, stop).read_words(wanted, ocr)

    def count_without_text(self) -> int:
        """Return the number of pages that keyword search cannot find: OCR found no text, or has not run."""
        origins = self.store.contents(self.manifest.hidden()).origins
        return origins.get("none", 0) + origins.get("", 0)

    def make_sketches(
        self, queries: Sequence[str] | None = None, *, progress: Callable[[Progress], None] = lambda _: None
    ) -> SketchReport:
        """Build sketches, a first stage for vector search in large libraries.

        queries: at least 200 distinct real queries, used in addition to lines of the library's pages. Sketches are
        kept only if recall@5 against exact search is at least 98% on held-out queries. Pages added later get sketches,
        too. Stopped or killed, the same call resumes.

        Errors: UsageError if the library has no vectors, or there are too few queries. RandSlotError if recall is too
        low.
        """
        self.models.need_binding()
        with self.write():
            return self.sketches.make(queries, self.models.embed_lines, progress)

    def remove_sketches(self) -> None:
        """Remove all sketches: vector search scores all pages again."""
        with self.write():
            self.sketches.remove()

    def _check_reading(self) -> None:
        """Check whether the model can read the pages, if it is loaded; searches rely on the result."""
        if self.models.loaded is None:
            return
        check = self.models.check_reading(self.store, {file.id for file in self.manifest.find(state="done")})
        if check is not None and check != self.models.reading_check:
            self.models.reading_check = check
            self._update({"trust": asdict(check)})

    def _make_reader(self, pool: WorkerPool, batch: int, ray: str | None) -> FileReader:
        from .readers import LocalReader

        models = self.models
        if ray is None:
            return LocalReader(pool, lambda: models.model if self.binding else None, batch)
        if self.binding is None:
            raise UsageError("--ray needs a library with a model: pass --model")
        from .ray_reader import RayReader

        return RayReader(ray, self.binding, self.name, lambda: models.model, batch, models.trust_remote_code)

    def _save_image(self, image: Image.Image) -> str:
        """Save an image in the library's folder; return its path."""
        image = pages.open_page(image)
        name = blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()
        file = self.folder.absolute() / IMAGES / f"{name}.png"
        if not file.is_file():
            content = BytesIO()
            image.save(content, "PNG")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content.getvalue())
        return str(file)

    def list_gone(self, paths: Iterable[Name] | Name) -> list[str]:
        """Return the library's files in these folders that no longer exist on disk."""
        folders: list[str] = []
        for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
            folders += filter(os.path.isdir, expand(path))
        gone = []
        for file in self.manifest.find():
            is_named = file.state in ("pending", "done") and any(is_below(file.source, folder) for folder in folders)
            if is_named and is_gone(file.source):
                gone.append(file.source)
        return gone

    def remove(self, *patterns: str) -> list[str]:
        """Remove files by path, name, folder or wildcards from the library; return their paths. They stay on disk.

        Errors: UsageError for a pattern that matches nothing.
        """
        return self.forget(file.source for file in self.find_files(*patterns))

    def forget(self, sources: Iterable[str]) -> list[str]:
        """Remove files by their exact paths, as in `files`; return those that were removed."""
        wanted = set(sources)
        files = [file for file in self.manifest.find() if file.source in wanted]
        with self.write():
            clear(self.manifest, self.store, files)
        for file in files:
            if is_kept(file.source, str(self.folder.absolute())):
                Path(file.source).unlink(missing_ok=True)
        if files:
            self.store.optimize()
        return list(dict.fromkeys(file.source for file in files))  # a file may have several versions

    def find_files(self, *patterns: str) -> list[File]:
        """Return the files that match paths, names, folders or wildcards; UsageError if one matches nothing."""
        files = self.files()
        found: dict[str, File] = {}
        for pattern in patterns:
            if not pattern.strip():
                raise UsageError("empty file name: randslot library list shows all files")
            matching = {file.id: file for file in files if is_match(pattern, file.source)}
            if not matching:
                raise UsageError(f"nothing in library {self.name} matches {pattern!r}: randslot library list shows all")
            found |= matching
        return [file for file in files if file.id in found]

    # -- searching

    def search(
        self,
        query: str,
        k: int = 5,
        *,
        by: By | None = None,
        filters: Mapping[str, Any] | None = None,
        exact: bool = False,
        query_vectors: int | None = None,
        collapse: bool = False,
        rerank: str | Reranker | Literal[False] | None = None,
        verbatim: bool = False,
        group: Literal["document"] | None = None,
        prefix: bool = False,
        boxes: bool = False,
    ) -> list[Hit]:
        """Return the k best pages for a query, best first; ties by source and page.

        by: "words", "vectors" or "both"; default: both if the model can read the pages, else what the library has.
        Quotes make a phrase; a minus before a word excludes pages that have it. filters: "source" (a path, name, folder
        or wildcards), "page" (a number, or first and last), and metadata by key; all must match. exact: score every
        page in full, not only candidates. query_vectors: vectors per query; default: the model's. collapse: merge
        identical pages into one hit, which names its copies. rerank: a cross-encoder (folder, hub id, or URL of a
        server) or a reranker from `open_reranker`; default: the library's own; False: none. verbatim: do not correct
        typos; otherwise a word that no page has is replaced by the most similar one, unless it is in quotes. group:
        "document" ranks documents, each by its best page. prefix: the last word may be incomplete, as when typing.
        boxes: also return where the words are on the page; for a PDF this takes a few milliseconds a hit.
        """
        options: dict[str, Any] = {"exact": exact, "query_vectors": query_vectors, "collapse": collapse}
        options |= {"rerank": rerank, "verbatim": verbatim, "group": group, "prefix": prefix, "boxes": boxes}
        return self.search_all([query], k, by=by, filters=filters, **options)[0]

    def search_all(self, queries: Sequence[str], k: int = 5, **options: Any) -> list[list[Hit]]:
        """Search for several queries at once; options as in `search`."""
        self._refresh()
        return [result.hits for result in search(self, queries, k, **options)]

    def search_results(self, queries: Sequence[str], k: int = 5, **options: Any) -> list[QueryResult]:
        """Search for several queries, and explain missing results; options as in `search`."""
        self._refresh()
        return search(self, queries, k, explain=True, **options)

    def remember_reranker(self, name: str | None) -> None:
        """Set the default reranker of searches; None: no reranking. See `search`."""
        if name is not None:
            self.models.find_reranker(name)
        with self.write():
            self._update({"rerank": name})
            self.models.remembered_reranker = name

    def find_unknown(self, query: str, *, filters: Mapping[str, Any] | None = None) -> list[str]:
        """Return the words of a query, as typed, that no page has in any form; filters as in `search`."""
        if self.words.language is None:
            return []
        options: dict[str, Any] = {"by": "words", "filters": filters, "rerank": False, "verbatim": True}
        return self.search_results([query], 1, **options)[0].unknown

    def complete(self, prefix: str, num: int = 8) -> list[str]:
        """Return completions of a prefix, most frequent first."""
        self._refresh()
        return self.words.complete(prefix, num)

    def _refresh(self) -> None:
        """Reload languages and sketches, if stale: another process may have changed them."""
        if self.location.shared and time.monotonic() - self.refreshed_at > REFRESH_SECONDS:
            self._load(self._read_description())

    def choose_by(self, by: By | None = None) -> By:
        """Return how to search: as asked, else by both if the model can read the pages, else what is available."""
        self._refresh()
        has_words, has_vectors = self.words.language is not None, self.binding is not None
        if by is None:
            if has_words and has_vectors:
                return "both" if self.models.can_read() else "words"
            return "vectors" if has_vectors else "words"
        if by not in BY:
            raise UsageError(f"by must be one of {', '.join(BY)}, not {by!r}")
        if by != "words" and not has_vectors:
            raise UsageError(f"library {self.name} has no vectors: add them with randslot index --model")
        if by != "vectors" and not has_words and has_vectors:
            raise UsageError(f"no page in library {self.name} has text yet: run randslot library words")
        return by

    def compare(self, query: str, page: str) -> Vectors:
        """Return the similarity of each query vector to each page vector. page: a page id.

        Shape: query vectors x page vectors. The row maxima add up to the page's score.
        """
        stored = self._read_page(page)
        if stored.vectors is None:
            raise RandSlotError(f"page {short(page)} of library {self.name} has no vectors")
        similarities: Vectors = self.models.embed_queries([query])[0] @ stored.vectors.astype(np.float32).T
        return similarities

    def find_similar(self, page: str, k: int = 5, *, seconds: float = math.inf) -> list[Hit]:
        """Return the most similar page of each of k other documents, best first. page: a page id.

        Pages are compared by vectors if the model can read them, else by words. seconds: budget for work on the hits.
        """
        self._refresh()
        return find_similar(self, self._read_page(page), k, seconds)

    def read_text(self, page: str, *, boxes: bool = False) -> PageText:
        """Return the text of a page, empty if it has none. page: a page id. boxes: also the boxes of its words."""
        stored = self._read_page(page)
        text = read_stored_text(stored.text) if stored.text else NO_TEXT
        file = self.manifest.get([stored.file]).get(stored.file)
        return self.add_boxes(text, file.source, stored.number) if boxes and file else text

    def add_boxes(self, text: PageText, source: str, number: int) -> PageText:
        """Return the text of a page with the boxes of its words, unless its file has changed or is gone."""
        if text.boxes or not text.has_layer:
            return text
        try:
            return replace(text, boxes=self._boxes(source, os.stat(source).st_mtime_ns, number, text.text))
        except (RandSlotError, OSError):
            return text

    def _read_boxes(self, source: str, _modified: int, number: int, text: str) -> bytes:
        from .workers import WorkerPool

        with self._opening:
            self._pool = self._pool or WorkerPool(1, seconds=20)
        found = self._pool.read_text(source, number, with_boxes=True)
        if found.text != text:
            raise RandSlotError(f"{source} has changed")
        return found.boxes

    def find_on_page(self, query: str, page: str, *, prefix: bool = False, vector: int = 0) -> Found:
        """Return where the words of a query are on a page. page: a page id.

        prefix: the last word may be incomplete. vector: a page vector, from 1, whose passage is returned too.
        """
        text = self.read_text(page, boxes=True)
        found = find_words(text, self.words.read_query(query, prefix))
        passage = find_passage(self, vector, self._read_page(page), text) if vector else None
        return replace(found, passage=passage.boxes) if passage else found

    def _read_page(self, page: str) -> StoredPage:
        stored = self.store.read([page]).get(page)
        if stored is None:
            raise RandSlotError(f"no page {short(page)} in library {self.name}")
        return stored

    # -- contents

    def files(self) -> list[File]:
        """Return the files of the library, sorted by path, also incomplete ones."""
        return [file for file in self.manifest.find() if file.state != "failed"]

    def status(self) -> Status:
        """Return what the library holds, without loading the model."""
        files, pages = self.manifest.totals()
        size = self.location.size()
        contents = self.store.contents(self.manifest.hidden())
        num_numbers = 0
        if self.binding is not None:
            num_vectors = self.binding.num_vectors("page")
            num_numbers = num_vectors * self.binding.dimension if num_vectors else mean_numbers(self.store)
        without_text = contents.pages - contents.origins.get("layer", 0) - contents.origins.get("ocr", 0)
        return Status(
            folder=self.name,
            files=files,
            pages=pages,
            pending=len(self.manifest.find(state="pending")),
            missing=sum(is_gone(file.source) for file in self.manifest.find(state="done")),
            bytes=size,
            bytes_per_page=size // max(pages, 1),
            vector_bytes_per_page=BYTES_PER_NUMBER * num_numbers,
            model=self.binding.as_dict() if self.binding else None,
            format=int(self._read_description()["format"]),
            language=self.words.language,
            languages=self.words.languages,
            with_vectors=contents.with_vectors,
            origins=contents.origins,
            notes=(*self.notes(), *self._note_texts(without_text)),
            sketches=self.sketches.describe(),
            reads=self.models.reading_check.reads if self.models.reading_check else None,
        )

    def notes(self) -> list[str]:
        """Return notes for people who search this library, one per line; `randslot serve` shows them."""
        notes, check = [], self.models.reading_check
        if self.binding is not None and self.binding.name == EMBEDDED:
            notes.append("the embedded model only reads the sample pages, not real documents")
        if check is not None and not check.reads:
            notes.append("the model cannot read these pages (vector ranking is near chance): using keyword search")
        if self.words.begun:
            notes.append("the keyword index is incomplete: run randslot library words")
        return notes

    def _note_texts(self, without_text: int) -> list[str]:
        """Return notes on pages that a text model has not read, or only in part."""
        if self.binding is None or self.binding.reads != "text":
            return []
        tokens = self.binding.settings.get("text_tokens")
        limit = f" ({tokens} tokens)" if tokens else ""
        notes = []
        if cut := self.store.count_cut(self.manifest.hidden()):
            notes.append(f"{count_pages(cut)} more text than the model reads{limit}; the rest is not encoded")
        if without_text:
            notes.append(f"{count_pages(without_text)} no text and no vectors: the model reads text only")
        return notes

    def verify(self, *, repair: bool = False, progress: Callable[[Progress], None] = lambda _: None) -> list[str]:
        """Compare the manifest with the stored pages, read all vectors, and return the problems, one per line.

        repair: hide incomplete files until they are reindexed; delete damaged and orphaned pages.

        Errors: RandSlotError if the manifest itself is damaged.
        """
        from .verify import verify_library

        return verify_library(self, progress, repair=repair) + self.sketches.find_problems()


def check_format(description: dict[str, Any], library: str) -> None:
    """Raise RandSlotError if this version cannot read the library."""
    found = description.get("format")
    if found not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        raise RandSlotError(f"library {library} has format {found!r}, but this version reads {known}")
    language = (description.get("words") or {}).get("language")
    if "model" not in description or not isinstance(language, str | None):
        raise RandSlotError(f"library.json of {library} is damaged: restore a backup, or index into another folder")


def _open_pool(workers: int) -> WorkerPool:
    from .workers import WorkerPool

    if workers < 0:
        raise UsageError(f"workers must be at least 0, not {workers}")
    return WorkerPool(workers or max((os.cpu_count() or 2) - 1, 1))


def delete_library(folder: Path) -> None:
    """Delete the library in a folder, if there is one."""
    if (folder / LIBRARY_FILE).is_file():
        shutil.rmtree(folder)
