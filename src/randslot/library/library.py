"""A library: files in, ranked pages out. It opens or makes one in a folder or on a server, and remembers its model."""

from __future__ import annotations

import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from ..model.hub import EMBEDDED
from ..model.reader import Identity, PageReader
from ..pages import open_page, short
from .address import is_address, read_address
from .binding import check_model, load_bound, read_binding
from .filters import check_metadata, make_where
from .folder import IMAGES, LIBRARY_FILE, FolderLocation, is_kept
from .ingest import Ingest
from .location import FORMAT, Location, clear
from .manifest import File
from .reading.local import LocalReader
from .reading.reader import FileReader
from .reading.workers import Renderers
from .results import Hit, Match, Progress, Status, Summary
from .sources import is_below, is_gone, is_match, list_files
from .stores.store import BYTES_PER_NUMBER, StoredPage, StoreHit, Vectors
from .verify import find_problems

__all__ = ["Hit", "Library", "Match", "Progress", "Status", "Summary", "delete_library", "open_location"]

NOTES = logging.getLogger("randslot")
Name = str | os.PathLike[str]


class Library:
    """Files that can be searched. Close it, or use it in a `with` block."""

    def __init__(
        self,
        folder: Name,
        model: Name | PageReader | Identity | None = None,
        *,
        create: bool = True,
        repair: bool = False,
    ) -> None:
        """Open a library, or make one.

        folder: a folder, or the address of a server as in "qdrant://host:6334/papers". model: a folder, a hub id, a
        loaded model, or the binding of another library; a new library takes the embedded one unless another is named,
        and an open one loads its own when it is needed. repair: open it also if its pages are lost, to verify it.

        Errors: RandSlotError in one line if the folder holds something else, belongs to another model, is open in
        another process, or has lost its pages.
        """
        self._model: PageReader | None = None
        self._encoding, self._writing = Lock(), Lock()
        self.location = open_location(folder, create=create)
        self.name, self.folder = self.location.name, self.location.folder
        try:
            about = self.location.read()
            self.binding = self._create(model) if about is None else self._open(about, model)
            self.location.open(self.binding.dimension, repair=repair)
            self.manifest, self.store = self.location.manifest, self.location.store
        except BaseException:
            self.location.abandon()
            raise

    def _create(self, model: Name | PageReader | Identity | None) -> Identity:
        if model is None:
            NOTES.warning("note: %s is made with the embedded model, which can read sample pages only", self.name)
            model = EMBEDDED
        if isinstance(model, Identity):
            binding = model
        else:
            self._model = _load(model) if isinstance(model, str | os.PathLike) else _as_reader(model)
            binding = self._model.identity
        self.location.write({"format": FORMAT, "model": binding.as_dict()})
        return binding

    def _open(self, about: dict[str, Any], model: Name | PageReader | Identity | None) -> Identity:
        if about.get("format") != FORMAT:
            raise RandSlotError(
                f"library {self.name} has format {about.get('format')!r}, and this version of randslot reads {FORMAT}"
            )
        binding = read_binding(about.get("model"), self.name)
        if isinstance(model, Identity):
            check_model(binding, model, self.name, "name another place")
        elif isinstance(model, str | os.PathLike):
            self._model = load_bound(binding, os.fspath(model), self.name)
        elif model is not None:
            self._model = _as_reader(model)
            check_model(binding, self._model.identity, self.name)
        return binding

    @property
    def model(self) -> PageReader:
        """The model that the library belongs to, loaded when it is first needed."""
        with self._encoding:
            if self._model is None:
                self._model = load_bound(self.binding, None, self.name)
            return self._model

    @property
    def home(self) -> Location:
        """The name of `location` in earlier versions."""
        warnings.warn("Library.home is now Library.location", DeprecationWarning, stacklevel=2)
        return self.location

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
        if batch < 1 or workers < 0:
            raise UsageError(f"batch must be at least 1 and workers at least 0, not {batch} and {workers}")
        check_metadata(metadata)
        paths, images = self._sort_inputs(inputs)
        listing = list_files(paths, self.folder)
        summary = Summary(others=listing.others, failed=listing.failed)
        try:
            with self.write(), Renderers(workers or max((os.cpu_count() or 2) - 1, 1)) as renderers:
                reader = self._make_reader(renderers, batch, ray)
                ingest = Ingest(self.manifest, self.store, renderers, reader, metadata, progress, summary)
                ingest.run([*listing.files, *images])
            if prune:
                summary.removed = self._prune(listing.folders)
        finally:
            summary.seconds = round(time.monotonic() - start, 3)
        return summary

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

    def _make_reader(self, renderers: Renderers, batch: int, ray: str | None) -> FileReader:
        if ray is None:
            return LocalReader(renderers, lambda: self.model, batch)
        from .reading.ray import RayReader  # an extra, and slow to import

        return RayReader(ray, self.binding, self.name, lambda: self.model, batch)

    @contextmanager
    def write(self) -> Iterator[None]:
        """A block in which nobody else writes; what an earlier process left to delete is deleted first."""
        with self._writing, self.location.hold_lease():
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

    def _prune(self, folders: list[str]) -> list[str]:
        gone = []
        for file in self.manifest.find(state="done") + self.manifest.find(state="pending"):
            if any(is_below(file.source, folder) for folder in folders) and is_gone(file.source):
                gone.append(file)
        return self._drop(gone)

    def remove(self, *patterns: str) -> list[str]:
        """Forget files by path, name, folder or wildcards, and return what they were; the files themselves stay.

        Errors: UsageError if nothing in the library matches one of them.
        """
        files = self.manifest.find()
        for pattern in patterns:
            if not any(is_match(pattern, file.source) for file in files):
                raise UsageError(f"nothing in library {self.name} matches {pattern!r}: randslot library list shows all")
        return self._drop([file for file in files if any(is_match(pattern, file.source) for pattern in patterns)])

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
        filters: Mapping[str, Any] | None = None,
        exact: bool = False,
        query_vectors: int | None = None,
    ) -> list[Hit]:
        """Return the k best pages for a query, best first.

        filters: "source" (a path, name, folder or wildcards), "page" (a number, or first and last), and metadata by
        their keys; all must hold. exact: score every page in full, not only the best by their compressed vectors.
        query_vectors: another budget of the query than the model's own.
        """
        return self.search_all([query], k, filters=filters, exact=exact, query_vectors=query_vectors)[0]

    def search_all(
        self,
        queries: Sequence[str],
        k: int = 5,
        *,
        filters: Mapping[str, Any] | None = None,
        exact: bool = False,
        query_vectors: int | None = None,
    ) -> list[list[Hit]]:
        """Search for several queries at once; options as `search`."""
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}")
        where = make_where(filters or {}, self.manifest, self.name)
        vectors = self._encode(list(queries), query_vectors)
        if where is None or not vectors:
            return [[] for _ in queries]
        found = self.store.search(vectors, k, where, exact)
        ids: set[str] = set()
        file_ids: set[str] = set()
        for hits in found:
            ids.update(hit.id for hit in hits)
            file_ids.update(hit.file for hit in hits)
        pages = self.store.read(list(ids))
        files = self.manifest.get(file_ids)
        return [_make_hits(hits, query, pages, files) for query, hits in zip(vectors, found, strict=True)]

    def compare(self, query: str, page: str) -> Vectors:
        """Return how near each readout of a query is to each of a page, which is given by its id.

        Shape: vectors of the query x vectors of the page. The largest in each row add up to the page's score.

        Errors: RandSlotError if there is no such page.
        """
        found = self.store.read([page])
        if page not in found:
            raise RandSlotError(f"no page {short(page)} in library {self.name}")
        (vectors,) = self._encode([query], None)
        similarities: Vectors = vectors @ found[page].vectors.astype(np.float32).T
        return similarities

    def _encode(self, queries: list[str], num: int | None) -> list[Vectors]:
        model = self.model
        with self._encoding:
            return model.embed_queries(queries, num_vectors=num)

    # -- what is in it

    def files(self) -> list[File]:
        """Return the files of the library, also those that are not complete yet, by their paths."""
        return self.manifest.find()

    def status(self) -> Status:
        """Return what the library holds; the model is not loaded for it."""
        files, pages = self.manifest.totals()
        size = self.location.size()
        numbers = (self.binding.num_vectors("page") or 0) * self.binding.dimension
        return Status(
            folder=self.name,
            files=files,
            pages=pages,
            pending=len(self.manifest.find(state="pending")),
            missing=sum(is_gone(file.source) for file in self.manifest.find(state="done")),
            bytes=size,
            bytes_per_page=size // max(pages, 1),
            vector_bytes_per_page=BYTES_PER_NUMBER * numbers,
            model=self.binding.as_dict(),
            format=FORMAT,
        )

    def verify(self, *, repair: bool = False, progress: Callable[[Progress], None] = lambda _: None) -> list[str]:
        """Compare the manifest with the pages that are stored, read them all, and return what is wrong, a line each.

        repair: hide files that lack pages until they are indexed again, and delete damaged pages and those of no file.
        """
        problems = find_problems(self.manifest, self.store, progress)
        lines = problems.lines()
        if repair and lines:
            with self.write():
                problems.repair(self.manifest, self.store)
        return lines


def open_location(place: Name, *, create: bool) -> Location:
    """Return the location of a library, by its folder or its address."""
    if is_address(os.fspath(place)):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say what it would print by itself
        from .stores.server_location import ServerLocation  # the client is an extra

        return ServerLocation(read_address(os.fspath(place)), create=create)
    return FolderLocation(Path(place).expanduser(), create=create)


open_home = open_location  # its name in earlier versions


def _load(model: Name) -> PageReader:
    from ..model.remote_model import open_model  # takes seconds

    return open_model(os.fspath(model))


def _as_reader(model: Any) -> PageReader:
    if hasattr(model, "identity"):
        reader: PageReader = model
        return reader
    from ..model.loading import adopt  # plain sentence-transformers has loaded it

    return adopt(model)


def _make_hits(
    found: list[StoreHit], query: Vectors, pages: Mapping[str, StoredPage], files: Mapping[str, File]
) -> list[Hit]:
    """Return what a store found as hits, best first, and equal ones by name.

    Files that another thread has removed since are left out.
    """
    hits = []
    for one in found:
        file = files.get(one.file)
        if file is not None and file.state == "done" and one.id in pages:
            hits.append(_make_hit(one, file, query, pages[one.id].vectors))
    return sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page))


def _make_hit(found: StoreHit, file: File, query: Vectors, page: Vectors) -> Hit:
    similarities = query @ page.T
    matches = []
    for i, best in enumerate(similarities.argmax(1)):
        matches.append(Match(i + 1, int(best) + 1, float(similarities[i, best])))
    return Hit(found.id, file.source, found.number, found.score, tuple(matches), file.metadata, file.id)


def delete_library(folder: Path) -> None:
    """Delete a library, if there is one in this folder."""
    if (folder / LIBRARY_FILE).is_file():
        shutil.rmtree(folder)
