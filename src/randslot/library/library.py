"""A library: files in, ranked pages out. It opens or makes one in a folder or on a server, and remembers its model."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image

from ..errors import RandSlotError, UsageError
from ..files import write_whole
from ..model.reader import Identity, PageReader
from ..pages import PageText, open_page
from ..pages.ocr import MISSING, find_engine
from ..words.language import find_language
from ..words.snippets import Found
from .address import is_address, read_address
from .backfill import BoundModel, Fill, Ocr, complete_pages, count_unread, read_words
from .folder import IMAGES, LIBRARY_FILE, FolderLocation, is_kept
from .ingest import Ingest
from .languages import LibraryWords
from .location import FORMAT, FORMATS, Location, clear
from .manifest import File, Manifest
from .models import EMBEDDED, LibraryModels, Name, ReadingCheck, check_reading, load_reading_check
from .readers import FileReader, LocalReader, TellingReader
from .results import By, Hit, Match, Progress, Status, Summary
from .search import Searcher, check_metadata
from .sketches import LOOK_SECONDS, LibrarySketches, Made, Sketching
from .sources import expand, is_below, is_gone, is_match, list_files
from .stores.base import BYTES_PER_NUMBER, DamagedError, Store, Vectors, mean_numbers, page_id, pages_at_once
from .workers import WorkerPool


def note_model(binding: Identity | None, reading_check: ReadingCheck | None) -> list[str]:
    """Return whether the model of a library can read its pages, if there is doubt."""
    notes = []
    if binding is not None and binding.name == EMBEDDED:
        notes.append("the embedded model of this library reads sample pages only, and no real documents")
    if reading_check is not None and not reading_check.reads:
        notes.append("the vectors of this library rank its pages little better than chance: words find them better")
    return notes


def note_words(words: LibraryWords) -> list[str]:
    """Return whether words are counted by halves; visitors of a service see it, so it does not say where."""
    if not words.begun:
        return []
    return ["words are being counted in another language; if that was stopped, randslot library words goes on"]


def note_texts(binding: Identity | None, store: Store, manifest: Manifest) -> list[str]:
    """Return which pages a model that reads text has not read, or not to their end."""
    notes: list[str] = []
    if binding is None or binding.reads != "text":
        return notes
    hidden = manifest.hidden()
    if cut := store.count_cut(hidden):
        most = binding.settings.get("text_tokens")
        limit = f" ({most} tokens)" if most else ""
        pages = "1 page has" if cut == 1 else f"{cut:,} pages have"
        notes.append(f"{pages} more text than the model reads{limit}: the rest has no part in the vectors")
    contents = store.contents(hidden)
    if without := contents.pages - contents.origins.get("layer", 0) - contents.origins.get("ocr", 0):
        pages = "1 page has" if without == 1 else f"{without:,} pages have"
        notes.append(f"{pages} no text, and so no vectors: the model of this library reads text")
    return notes


PAGES = 256  # that are read at once, if they are small


@dataclass
class Problems:
    """What is wrong with a library.

    counts: stored pages by the id of their file. incomplete: files that lack pages. damaged: how many pages of a file
    cannot be read, by its id. stray: ids of files that have pages and are not in the manifest.
    """

    files: dict[str, File]
    counts: dict[str, int]
    incomplete: list[File]
    damaged: Counter[str]
    stray: list[str]

    def lines(self) -> list[str]:
        """Return what is wrong, a line each."""
        lines = []
        for file in self.incomplete:
            lines.append(f"{file.source}: {self.counts.get(file.id, 0)} of {file.num_pages} pages are stored")
        for id, num in self.damaged.items():
            lines.append(f"{self.files[id].source}: {num} of {self.files[id].num_pages} pages are damaged")
        for id in self.stray:
            lines.append(f"{self.counts[id]} pages belong to no file ({id})")
        return lines

    def repair(self, manifest: Manifest, store: Store) -> None:
        """Hide files that lack pages until they are indexed again, and delete damaged pages and those of no file."""
        hidden = {file.id for file in self.incomplete} | self.damaged.keys()
        manifest.put(*(replace(self.files[id], state="pending") for id in hidden))
        for id in [*self.stray, *self.damaged]:
            store.delete(id)


def find_problems(
    manifest: Manifest, store: Store, report: Callable[[Progress], None], *, unit: bool = True
) -> Problems:
    """Compare the manifest with the pages that are stored, and read them all. unit: vectors have the length of one."""
    counts = store.counts()
    files = {file.id: file for file in manifest.find()}
    incomplete = []
    for file in files.values():
        if file.state == "done" and counts.get(file.id, 0) != file.num_pages:
            incomplete.append(file)
    stored = [file for file in files.values() if file.id in counts]
    damaged = _count_damaged(store, stored, report, _are_units if unit else _are_numbers)
    return Problems(files, counts, incomplete, damaged, sorted(counts.keys() - files.keys()))


def _count_damaged(
    store: Store, files: list[File], report: Callable[[Progress], None], are_good: Callable[[Vectors], bool]
) -> Counter[str]:
    """Read the vectors of all pages, and return how many of each file are not what was stored."""
    file_of: dict[str, str] = {}
    for file in files:
        for number in range(1, file.num_pages + 1):
            file_of[page_id(file.id, number)] = file.id
    pages = list(file_of)
    damaged: Counter[str] = Counter()
    step = pages_at_once(store, PAGES)
    for start in range(0, len(pages), step):
        some = pages[start : start + step]
        damaged.update(file_of[page] for page in _find_damaged(store, some, are_good))
        report(Progress(0, 0, start + len(some), len(pages)))
    return damaged


def _find_damaged(store: Store, pages: list[str], are_good: Callable[[Vectors], bool]) -> list[str]:
    """Return those of some pages that are there, and whose vectors cannot be read or are not what they should be."""
    try:
        found = store.read(pages)
    except DamagedError:
        if len(pages) == 1:
            return pages
        damaged = []
        for page in pages:
            damaged += _find_damaged(store, [page], are_good)
        return damaged
    # A page without vectors has nothing that could be damaged.
    return [id for id, page in found.items() if page.vectors is not None and not are_good(page.vectors)]


def _are_units(vectors: Vectors) -> bool:
    """Whether vectors have the length of one."""
    return bool(len(vectors) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.05))  # half precision


def _are_numbers(vectors: Vectors) -> bool:
    """Whether vectors are numbers, and not all zero: all that can be said where any length may be right."""
    return bool(len(vectors) and np.isfinite(vectors).all() and vectors.any())


__all__ = ["Hit", "Library", "Match", "Progress", "Status", "Summary", "delete_library", "open_location"]


class Library:
    """Files that can be searched. Close it, or use it in a `with` block."""

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
        """Open a library, or make one.

        folder: a folder, or the address of a server as in "qdrant://host:6334/papers". model: a folder, a hub id, a
        loaded model, or the binding of another library. A new library without a model finds pages by their words; one
        that is there and has no vectors gets those of the model with the next `add`. An open one loads its own model
        when it is needed. query_model: a student of that model, which searches then ask in its place: it is not loaded
        for them. repair: open it also if its pages are lost, to verify it. trust_remote_code: let the model
        run Python files of its own, which you should have read.

        Errors: RandSlotError in one line if the folder holds something else, belongs to another model, is open in
        another process, or has lost its pages.
        """
        self._writing = Lock()
        self.location = open_location(folder, create=create)
        self.name, self.folder = self.location.name, self.location.folder
        self.models = LibraryModels(self.name, trust_remote_code)
        try:
            about = self.location.read()
            if about is None:
                self._create(model)
            else:
                self._open(about, model)
            about = about or self._read_about()
            self.location.open(about["model"] and about["model"]["dimension"], repair=repair)
            self.manifest, self.store = self.location.manifest, self.location.store
            self.words = LibraryWords(about.get("words"), self._keep_words)
            self.reading_check = load_reading_check(about.get("trust"))
            self.sketches = LibrarySketches(self.location)
            self._take(about)
            if about["model"] is None and model is not None:
                self._adopt(model, create)
            if query_model is not None:
                self.models.take_student(query_model)
        except BaseException:
            self.location.abandon()
            raise

    def _create(self, model: Name | PageReader | Identity | None) -> None:
        described = None if model is None else self.models.bind(model).as_dict()
        self.location.write({"format": FORMAT, "model": described, "words": {"language": None, "each": True}})

    def _open(self, about: dict[str, Any], model: Name | PageReader | Identity | None) -> None:
        if about.get("format") not in FORMATS:
            raise RandSlotError(
                f"library {self.name} has format {about.get('format')!r}, and this version of randslot reads "
                f"{' and '.join(map(str, FORMATS))}"
            )
        language = (about.get("words") or {}).get("language")
        if "model" not in about or not isinstance(language, str | None):
            raise RandSlotError(
                f"what is written about library {self.name} (library.json) is damaged: bring it back from a copy, or "
                "index into another folder"
            )
        if about["model"] is not None:
            self.models.open(about["model"], model)

    def _adopt(self, model: Name | PageReader | Identity, create: bool) -> None:
        """Give a model to a library that has none; its pages get vectors with the next `add`."""
        if not create:
            self.models.need_binding()
        binding = self.models.bind(model)
        with self.write():
            self.store.prepare(binding.dimension)
            self.location.write(self._read_about() | {"model": binding.as_dict(), "trust": None})

    def _read_about(self) -> dict[str, Any]:
        about = self.location.read()
        assert about is not None, "it was read or written before"
        return about

    def _take(self, about: dict[str, Any]) -> None:
        """Go by what is written about the library; another process may write it."""
        self.looked_at = time.monotonic()
        self.words.take(about.get("words") or {})
        self.sketches.take(about)

    def _keep_words(self, settings: dict[str, Any]) -> None:
        self.location.write(self._read_about() | {"words": settings})

    @property
    def binding(self) -> Identity | None:
        """Which model the vectors are of; None for a library of words alone."""
        return self.models.binding

    @property
    def model(self) -> PageReader:
        """The model that the library belongs to, loaded when it is first needed.

        Errors: UsageError if the library has no vectors.
        """
        return self.models.model

    @property
    def query_model(self) -> PageReader:
        """What makes the vectors of queries: the student that was named, or the library's model.

        Errors: as `model`.
        """
        return self.models.query_model

    @property
    def has_student(self) -> bool:
        """Whether another model than the library's own makes the vectors of queries."""
        return self.models.has_student

    def close(self) -> None:
        """Let go of the library; another process can open it then."""
        self.location.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        """How many pages can be found."""
        return self.manifest.totals()[1]

    # -- files in

    def add(
        self,
        inputs: Iterable[Name | Image.Image] | Name,
        *,
        metadata: Mapping[str, Any] | None = None,
        prune: bool = False,
        batch: int = 8,
        workers: int = 0,
        ray: str | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> Summary:
        """Index files, folders (with all below them), patterns and images; what is known already is left as it is.

        metadata: what searches may filter by. prune: forget files of the named folders that are not there any more.
        batch: pages that are encoded at once. workers: processes that open files; by default one less than cores.
        ray: the address of a Ray cluster that opens and encodes pages; "" takes the one of this machine, or starts it.

        Files that cannot be read do not stop the others: they are in the summary with the reason.
        """
        start = time.monotonic()
        if batch < 1:
            raise UsageError(f"batch must be at least 1, not {batch}")
        if workers < 0:
            raise UsageError(f"workers must be at least 0, not {workers}")
        check_metadata(metadata)
        paths, images = self._sort_inputs(inputs)
        listing = list_files(paths, self.folder)
        summary = Summary(others=listing.others, failed=listing.failed)
        try:
            with self.write(), WorkerPool(workers or max((os.cpu_count() or 2) - 1, 1)) as pool:
                reader = self._make_reader(pool, batch, ray)
                ingest = Ingest(self.manifest, self.store, self.words, pool, reader, metadata, progress, summary)
                ingest.run([*listing.files, *images])
                fill = Fill(self.manifest, self.store, self.words, pool, progress)
                summary.encoded += complete_pages(fill, reader, self._bound_model())
                if self.models.is_loaded:
                    self._check_reading()
            if prune:
                summary.removed = self._drop(self._find_gone(listing.folders))
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
        """Read the words of pages that have none yet. Return how many pages have been read.

        Nothing is encoded, but for what OCR has read if the model of the library reads text.

        language: another one for the whole library, whose words are counted anew; "auto" for that of each page. ocr:
        also read pages without a text layer by OCR, or all pages. stop: asked after each page, and ends it. Searches go
        on meanwhile; stopped or killed, the same call goes on.

        Errors: UsageError for an unknown language. RandSlotError if there is no OCR engine.
        """
        if workers < 0:
            raise UsageError(f"workers must be at least 0, not {workers}")
        wanted = None if language is None else find_language(language)
        if ocr is not None and find_engine() is None:
            raise RandSlotError(MISSING)
        with self.write(), WorkerPool(workers or max((os.cpu_count() or 2) - 1, 1)) as pool:
            fill = Fill(self.manifest, self.store, self.words, pool, progress, stop)
            return read_words(fill, self._bound_model(), language=wanted, ocr=ocr)

    def make_sketches(
        self, queries: Sequence[str] | None = None, *, progress: Callable[[Progress], None] = lambda _: None
    ) -> Made:
        """Give every page a sketch, so that searches by vectors need not look at all pages; for very many of them.

        queries: as people ask them, 200 different ones at least, which are taken beside lines of the library's own
        pages. Searches use sketches only if they find 98 % of what an exact search finds, which is measured. Pages that
        are added later get theirs at once. Stopped or killed, the same call goes on.

        Errors: UsageError if the library has no vectors, or there are too few queries. RandSlotError if sketches find
        too little.
        """
        self.models.need_binding()
        with self.write():
            sketching = Sketching(
                name=self.name,
                store=self.store,
                visible={file.id for file in self.manifest.find(state="done")},
                hidden=self.manifest.hidden(),
                embed=self.models.embed_lines,
                save=self.location.keep_sketcher,
                note=self.sketches.note,
            )
            return sketching.make(queries, self.sketches.begun, progress)

    def remove_sketches(self) -> None:
        """Forget all sketches: searches by vectors look at all pages again."""
        with self.write():
            if self.sketches.noted:
                self.store.sketches = None
                self.sketches.note(None)
                self.store.clear_sketches()

    def _bound_model(self) -> BoundModel | None:
        return BoundModel(self.binding.reads, lambda: self.model) if self.binding else None

    def count_without_text(self) -> int:
        """Return how many pages no search by words can find: those that OCR has not read, or nobody has looked at."""
        return count_unread(self.store, self.manifest)

    def _check_reading(self) -> None:
        """Find out whether the model can read these pages, and keep it for searches to come, also by a student."""
        visible = {file.id for file in self.manifest.find(state="done")}
        check = check_reading(self.store, visible, self.models.embed_lines)
        if check is not None and check != self.reading_check:
            self.reading_check = check
            self.location.write(self._read_about() | {"trust": check.as_dict()})

    def _sort_inputs(self, inputs: Iterable[Name | Image.Image] | Name) -> tuple[list[Name], list[str]]:
        """Return the paths that were given, and the paths of images that were given without a file."""
        if isinstance(inputs, (str, os.PathLike)):
            return [inputs], []
        paths: list[Name] = []
        images: list[str] = []
        for one in inputs:
            if isinstance(one, Image.Image):
                images.append(self._keep_image(one))
            else:
                paths.append(one)
        return paths, images

    def _make_reader(self, pool: WorkerPool, batch: int, ray: str | None) -> FileReader:
        reader = self._choose_reader(pool, batch, ray)
        if self.binding is None or "kind" not in self.binding.settings:
            return reader
        has_vectors = self.store.contents(()).with_vectors > 0
        return reader if has_vectors else TellingReader(reader)  # of other people's models, before the first page

    def _choose_reader(self, pool: WorkerPool, batch: int, ray: str | None) -> FileReader:
        if ray is None:
            return LocalReader(pool, lambda: self.model if self.binding else None, batch)
        if self.binding is None:
            raise UsageError("--ray is for encoding, and this library has no model: name one by --model")
        from .ray_reader import RayReader

        return RayReader(ray, self.binding, self.name, lambda: self.model, batch, self.models.trust_remote_code)

    @contextmanager
    def write(self) -> Iterator[None]:
        """A block in which nobody else writes; what an earlier process left to delete is deleted first."""
        with self._writing, self.location.hold_lease():
            self._take(self._read_about())
            clear(self.manifest, self.store, self.manifest.find(state="gone"))
            yield

    def _keep_image(self, image: Image.Image) -> str:
        """Keep an image that has no file of its own in the library, and return its path there."""
        image = open_page(image)
        name = blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()
        file = self.folder.absolute() / IMAGES / f"{name}.png"
        if not file.is_file():
            content = BytesIO()
            image.save(content, "PNG")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content.getvalue())
        return str(file)

    def list_gone(self, paths: Iterable[Name] | Name) -> list[str]:
        """Return the files of named folders that the library has, and that are not there any more."""
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        folders = [found for path in given for found in expand(path) if os.path.isdir(found)]
        return [file.source for file in self._find_gone(folders)]

    def _find_gone(self, folders: list[str]) -> list[File]:
        gone = []
        for file in self.manifest.find(state="done") + self.manifest.find(state="pending"):
            if any(is_below(file.source, folder) for folder in folders) and is_gone(file.source):
                gone.append(file)
        return gone

    def remove(self, *patterns: str) -> list[str]:
        """Forget files by path, name, folder or wildcards, and return what they were; the files themselves stay.

        Errors: UsageError if nothing in the library matches one of them.
        """
        return self._drop(self.find_files(*patterns))

    def forget(self, sources: Iterable[str]) -> list[str]:
        """Forget files by their exact paths, as `files` has them."""
        wanted = set(sources)
        return self._drop([file for file in self.manifest.find() if file.source in wanted])

    def find_files(self, *patterns: str) -> list[File]:
        """Return the files that are meant by paths, names, folders or wildcards.

        Errors: UsageError if nothing in the library matches one of them.
        """
        files = self.manifest.find()
        for pattern in patterns:
            if not pattern.strip():
                raise UsageError("an empty name of a file: randslot library list shows all, and * means all")
            if not any(is_match(pattern, file.source) for file in files):
                raise UsageError(f"nothing in library {self.name} matches {pattern!r}: randslot library list shows all")
        return [file for file in files if any(is_match(pattern, file.source) for pattern in patterns)]

    def _drop(self, files: list[File]) -> list[str]:
        with self.write():
            clear(self.manifest, self.store, files)
        for file in files:
            if is_kept(file, str(self.folder.absolute())):
                Path(file.source).unlink(missing_ok=True)
        if files:
            self.store.optimize()
        return [file.source for file in files]

    # -- pages out

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
    ) -> list[Hit]:
        """Return the k best pages for a query, best first; equal ones by source and page, whatever k is.

        by: "words", "vectors" or "both"; by default what the library has and its model can read. Words may be in
        quotes, as a phrase, or have a minus before them, so that pages with them are left out. filters: "source" (a
        path, name, folder or wildcards), "page" (a number, or first and last), and metadata by their keys; all must
        hold. exact: score every page in full, not only the best by their compressed vectors. query_vectors: another
        budget of the query than the model's own. collapse: identical pages are one hit, which names its copies.
        """
        options: dict[str, Any] = {"exact": exact, "query_vectors": query_vectors, "collapse": collapse}
        return self.search_all([query], k, by=by, filters=filters, **options)[0]

    def search_all(
        self,
        queries: Sequence[str],
        k: int = 5,
        *,
        by: By | None = None,
        filters: Mapping[str, Any] | None = None,
        exact: bool = False,
        query_vectors: int | None = None,
        collapse: bool = False,
    ) -> list[list[Hit]]:
        """Search for several queries at once; options as `search`."""
        return self._searcher().search_all(
            queries,
            k,
            by=by,
            filters=filters or {},
            exact=exact,
            query_vectors=query_vectors,
            collapse=collapse,
        )

    def find_unknown(self, query: str, *, filters: Mapping[str, Any] | None = None) -> list[str]:
        """Return the words of a query that no page has in any form, as they were typed; filters as in `search`."""
        return self._searcher().find_unknown(query, filters or {})

    def choose_by(self, by: By | None = None) -> By:
        """Return what a search compares: what is asked for, or what the library has and its model can read.

        Errors: UsageError if it is not there.
        """
        return self._searcher().choose_by(by)

    def compare(self, query: str, page: str) -> Vectors:
        """Return how near each readout of a query is to each of a page, which is given by its id.

        Shape: vectors of the query x vectors of the page. The largest in each row add up to the page's score.

        Errors: RandSlotError if there is no such page.
        """
        return self._searcher().compare(query, page)

    def read_text(self, page: str) -> PageText:
        """Return the text of a page, which is given by its id; an empty one if it has none.

        Errors: RandSlotError if there is no such page.
        """
        return self._searcher().read_text(page)

    def find_on_page(self, query: str, page: str) -> Found:
        """Return where the words of a query stand on a page, which is given by its id."""
        return self._searcher().find_on_page(query, page)

    def embed_queries(self, queries: Sequence[str]) -> list[Vectors]:
        """Return the vectors of queries, as a search compares them; from any thread, as its budget may change between.

        Errors: UsageError if the library has no vectors.
        """
        return self.models.embed_queries(list(queries), None)

    def _searcher(self) -> Searcher:
        """Return what answers searches, as the library is now: its model, languages and sketches may change."""
        if self.location.shared and time.monotonic() - self.looked_at > LOOK_SECONDS:
            self._take(self._read_about())
        encode = self.models.embed_queries
        return Searcher(self.name, self.manifest, self.store, self.words, self.binding, self.reading_check, encode)

    # -- what is in it

    def files(self) -> list[File]:
        """Return the files of the library, also those that are not complete yet, by their paths."""
        return self.manifest.find()

    def status(self) -> Status:
        """Return what the library holds; the model is not loaded for it."""
        files, pages = self.manifest.totals()
        size = self.location.size()
        contents = self.store.contents(self.manifest.hidden())
        return Status(
            folder=self.name,
            files=files,
            pages=pages,
            pending=len(self.manifest.find(state="pending")),
            missing=sum(is_gone(file.source) for file in self.manifest.find(state="done")),
            bytes=size,
            bytes_per_page=size // max(pages, 1),
            vector_bytes_per_page=self._measure_vectors(),
            model=self.binding.as_dict() if self.binding else None,
            format=int(self._read_about()["format"]),
            language=self.words.language,
            languages=self.words.languages,
            with_vectors=contents.with_vectors,
            origins=contents.origins,
            notes=(*self.notes(), *note_texts(self.binding, self.store, self.manifest)),
            sketches=self.sketches.describe(),
        )

    def _measure_vectors(self) -> int:
        """Return the bytes of a page's vectors; where pages differ, the mean over some of them."""
        if self.binding is None:
            return 0
        num = self.binding.num_vectors("page")
        return BYTES_PER_NUMBER * (num * self.binding.dimension if num else mean_numbers(self.store))

    def notes(self) -> list[str]:
        """Return what everybody who searches this library should know, a line each."""
        return [*note_model(self.binding, self.reading_check), *note_words(self.words)]

    def verify(self, *, repair: bool = False, progress: Callable[[Progress], None] = lambda _: None) -> list[str]:
        """Compare the manifest with the pages that are stored, read them all, and return what is wrong, a line each.

        repair: hide files that lack pages until they are indexed again, and delete damaged pages and those of no file.

        Errors: RandSlotError if the manifest itself is damaged.
        """
        self.manifest.check()
        unit = self.binding is None or bool(self.binding.settings.get("unit", True))
        problems = find_problems(self.manifest, self.store, progress, unit=unit)
        lines = problems.lines()
        if repair and lines:
            with self.write():
                problems.repair(self.manifest, self.store)
        return lines + self.sketches.find_problems()


def open_location(place: Name, *, create: bool) -> Location:
    """Return the location of a library, by its folder or its address."""
    if not os.fspath(place):
        raise UsageError("an empty path of a library: name its folder, or an address such as qdrant://host:6334/papers")
    if is_address(os.fspath(place)):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say what it would print by itself
        from .stores.qdrant import ServerLocation

        return ServerLocation(read_address(os.fspath(place)), create=create)
    return FolderLocation(Path(place).expanduser(), create=create)


def delete_library(folder: Path) -> None:
    """Delete a library, if there is one in this folder."""
    if (folder / LIBRARY_FILE).is_file():
        shutil.rmtree(folder)
