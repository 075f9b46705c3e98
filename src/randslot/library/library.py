"""A library: files in, ranked pages out. It opens or makes one in a folder or on a server, and remembers its model."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image

from ..errors import RandSlotError, UsageError
from ..model.hub import EMBEDDED
from ..model.reader import Identity, PageReader
from ..pages import open_page, short
from .address import is_address, read_address
from .binding import check_model, load_bound, read_binding
from .folder import HOME, IMAGES, Folder, is_kept
from .ingest import Ingest
from .location import FORMAT, Home, clear
from .manifest import File
from .reading.local import Here, Reader
from .reading.workers import Renderers
from .results import Hit, Match, Progress, Status, Summary
from .sources import is_below, is_gone, is_match, list_files
from .stores.store import DamagedError, Found, Vectors, Where, page_id

NOTES = logging.getLogger("randslot")
VERIFIED = 256  # pages that are read at once to be verified


class Library:
    """Files that can be searched. Close it, or use it in a `with` block."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: str | os.PathLike[str] | PageReader | Identity | None = None,
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
        self.home = open_home(folder, create=create)
        self.name, self.folder = self.home.name, self.home.folder
        try:
            about = self.home.read()
            self.binding = self._create(model) if about is None else self._open(about, model)
            self.home.open(self.binding.dimension, repair=repair)
            self.manifest, self.store = self.home.manifest, self.home.store
        except BaseException:
            self.home.abandon()
            raise

    def _create(self, model: str | os.PathLike[str] | PageReader | Identity | None) -> Identity:
        if model is None:
            NOTES.warning("note: %s is made with the embedded model, which can read sample pages only", self.name)
        if isinstance(model, Identity):
            binding = model
        else:
            self._model = _load(model or EMBEDDED) if isinstance(model, str | os.PathLike | None) else model
            binding = self._model.identity
        self.home.write({"format": FORMAT, "model": binding.as_dict()})
        return binding

    def _open(self, about: dict[str, Any], model: str | os.PathLike[str] | PageReader | Identity | None) -> Identity:
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
            check_model(binding, model.identity, self.name)
            self._model = model
        return binding

    @property
    def model(self) -> PageReader:
        """The model that the library belongs to, loaded when it is first needed."""
        with self._encoding:
            if self._model is None:
                self._model = load_bound(self.binding, None, self.name)
            return self._model

    def close(self) -> None:
        """Let go of the library; another process can open it then."""
        self.home.close()

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
        inputs: Iterable[str | os.PathLike[str] | Image.Image] | str | os.PathLike[str],
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
        _check_metadata(metadata)
        inputs = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        images = [self._keep_image(one) for one in inputs if isinstance(one, Image.Image)]
        listing = list_files([one for one in inputs if not isinstance(one, Image.Image)], self.folder)
        summary = Summary(others=listing.others, failed=listing.failed)
        try:
            with self.write(), Renderers(workers or max((os.cpu_count() or 2) - 1, 1)) as renderers:
                reader = Here(renderers, lambda: self.model, batch) if ray is None else self._on_ray(ray, batch)
                ingest = Ingest(self.manifest, self.store, renderers, reader, metadata, progress, summary)
                ingest.run([*listing.files, *images])
            if prune:
                summary.removed = self._prune(listing.folders)
        finally:
            summary.seconds = round(time.monotonic() - start, 3)
        return summary

    def _on_ray(self, address: str, batch: int) -> Reader:
        from .reading.ray import OnRay

        return OnRay(address, self.binding, self.name, lambda: self.model, batch)

    @contextmanager
    def write(self) -> Iterator[None]:
        """A block in which nobody else writes; what an earlier process left to delete is deleted first."""
        with self._writing, self.home.turn():
            clear(self.manifest, self.store, self.manifest.find(state="gone"))
            yield

    def _keep_image(self, image: Image.Image) -> str:
        """Keep an image that has no file of its own in the library, and return its path there."""
        image = open_page(image)
        name = blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()
        file = self.folder.absolute() / IMAGES / f"{name}.png"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            image.save(part, "PNG")
            os.replace(part, file)
        return str(file)

    def _prune(self, folders: list[str]) -> list[str]:
        files = self.manifest.find(state="done") + self.manifest.find(state="pending")
        return self._drop(
            file for file in files if any(is_below(file.source, folder) for folder in folders) and is_gone(file.source)
        )

    def remove(self, *patterns: str) -> list[str]:
        """Forget files by path, name, folder or wildcards, and return what they were; the files themselves stay.

        Errors: UsageError if nothing in the library matches one of them.
        """
        files = self.manifest.find()
        for pattern in patterns:
            if not any(is_match(pattern, file.source) for file in files):
                raise UsageError(f"nothing in library {self.name} matches {pattern!r}: randslot library list shows all")
        return self._drop(file for file in files if any(is_match(pattern, file.source) for pattern in patterns))

    def _drop(self, files: Iterable[File]) -> list[str]:
        files = list(files)
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
        where = self._where(filters or {})
        vectors = self._encode(list(queries), query_vectors)
        if where is None or not vectors:
            return [[] for _ in queries]
        found = self.store.search(vectors, k, where, exact)
        pages = self.store.read(list({one.id for hits in found for one in hits}))
        files = self.manifest.get({one.file for hits in found for one in hits})
        # Another thread may have begun with a file, or removed one, since `where` was made.
        seen = {id for id, file in files.items() if file.state == "done"}
        made = (
            [
                _hit(one, files[one.file], query, pages[one.id].vectors)
                for one in hits
                if one.file in seen and one.id in pages
            ]
            for query, hits in zip(vectors, found, strict=True)
        )
        return [sorted(hits, key=lambda hit: (-hit.score, hit.source, hit.page)) for hits in made]  # copies in order

    def compare(self, query: str, page: str) -> Vectors:
        """Return how near each readout of a query is to each of a page, which is given by its id.

        Shape: vectors of the query x vectors of the page. The largest in each row add up to the page's score.

        Errors: RandSlotError if there is no such page.
        """
        found = self.store.read([page])
        if page not in found:
            raise RandSlotError(f"no page {short(page)} in library {self.name}")
        similarities: Vectors = self._encode([query], None)[0] @ found[page].vectors.astype(np.float32).T
        return similarities

    def _encode(self, queries: list[str], num: int | None) -> list[Vectors]:
        model = self.model
        with self._encoding:
            return model.embed_queries(queries, num_vectors=num)

    def _where(self, filters: Mapping[str, Any]) -> Where | None:
        """Return which pages to look at, or None if there are none."""
        hidden = self.manifest.hidden()
        first, last = _page_range(filters.get("page"))
        rest = {key: value for key, value in filters.items() if key != "page"}
        if not rest:
            return Where(None, hidden, first, last)
        source = rest.pop("source", None)
        done = self.manifest.find(state="done")
        for key in rest:
            if not any(key in file.metadata for file in done):
                known = sorted({"source", "page", *(name for file in done for name in file.metadata)})
                raise UsageError(f"no page in library {self.name} has {key!r} to filter by, only {', '.join(known)}")
        files = frozenset(
            file.id
            for file in done
            if (source is None or is_match(str(source), file.source))
            and all(key in file.metadata and _text(file.metadata[key]) == _text(value) for key, value in rest.items())
        )
        return Where(files, frozenset(), first, last) if files else None

    # -- what is in it

    def files(self) -> list[File]:
        """Return the files of the library, also those that are not whole yet, by their paths."""
        return self.manifest.find()

    def status(self) -> Status:
        """Return what the library holds; the model is not loaded for it."""
        files, pages = self.manifest.totals()
        size = self.home.size()
        return Status(
            folder=self.name,
            files=files,
            pages=pages,
            pending=len(self.manifest.find(state="pending")),
            missing=sum(is_gone(file.source) for file in self.manifest.find(state="done")),
            bytes=size,
            bytes_per_page=size // max(pages, 1),
            vector_bytes_per_page=2 * (self.binding.num_vectors("page") or 0) * self.binding.dimension,
            model=self.binding.as_dict(),
            format=FORMAT,
        )

    def verify(self, *, repair: bool = False, progress: Callable[[Progress], None] = lambda _: None) -> list[str]:
        """Compare the manifest with the pages that are stored, read them all, and return what is wrong, a line each.

        repair: hide files that lack pages until they are indexed again, and delete damaged pages and those of no file.
        """
        counts = self.store.counts()
        files = {file.id: file for file in self.manifest.find()}
        torn = [file for file in files.values() if file.state == "done" and counts.get(file.id, 0) != file.num_pages]
        stray = sorted(counts.keys() - files.keys())
        damaged = self._find_damaged([file for id, file in files.items() if id in counts], progress)
        if repair and (torn or stray or damaged):
            with self.write():
                self.manifest.put(
                    *(replace(files[id], state="pending") for id in {*damaged, *(one.id for one in torn)})
                )
                for id in [*stray, *damaged]:
                    self.store.delete(id)
        problems = [f"{file.source}: {counts.get(file.id, 0)} of {file.num_pages} pages are stored" for file in torn]
        problems += [
            f"{files[id].source}: {num} of {files[id].num_pages} pages are damaged" for id, num in damaged.items()
        ]
        return problems + [f"{counts[id]} pages belong to no file ({id})" for id in stray]

    def _find_damaged(self, files: list[File], progress: Callable[[Progress], None]) -> Counter[str]:
        """Read the vectors of all pages, and return how many of each file are not what was stored."""
        ids = {page_id(file.id, number): file.id for file in files for number in range(1, file.num_pages + 1)}
        pages = list(ids)
        damaged: Counter[str] = Counter()
        for start in range(0, len(pages), VERIFIED):
            some = pages[start : start + VERIFIED]
            damaged.update(ids[page] for page in self._read_damaged(some))
            progress(Progress(0, 0, start + len(some), len(pages)))
        return damaged

    def _read_damaged(self, pages: list[str]) -> list[str]:
        """Return those of some pages that are there, and whose vectors cannot be read or have lost their length."""
        try:
            found = self.store.read(pages)
        except DamagedError:
            return pages if len(pages) == 1 else [bad for page in pages for bad in self._read_damaged([page])]
        return [id for id, page in found.items() if not _are_units(page.vectors)]


def open_home(place: str | os.PathLike[str], *, create: bool) -> Home:
    """Return the home of a library, by its folder or its address."""
    if is_address(os.fspath(place)):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it prints by itself is said by our errors
        from .stores.server import Server  # the client is an extra

        return Server(read_address(os.fspath(place)), create=create)
    return Folder(Path(place).expanduser(), create=create)


def _load(model: str | os.PathLike[str]) -> PageReader:
    from ..model.remote_model import open_model

    return open_model(os.fspath(model))


def _hit(found: Found, file: File, query: Vectors, page: Vectors) -> Hit:
    similarities = query @ page.T
    best = similarities.argmax(1)
    matches = tuple(Match(i + 1, int(j) + 1, float(similarities[i, j])) for i, j in enumerate(best))
    return Hit(found.id, file.source, found.number, found.score, matches, file.metadata, file.id)


def _are_units(vectors: Vectors) -> bool:
    return bool(len(vectors) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.05))  # half precision


def _check_metadata(metadata: Mapping[str, Any] | None) -> None:
    for key, value in (metadata or {}).items():
        if key in ("source", "page") or not isinstance(key, str):
            raise UsageError(f"metadata cannot be called {key!r}: searches filter by source and page already")
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(f"metadata {key!r} must be text, a number, or true or false, not {type(value).__name__}")


def _text(value: Any) -> str:
    """Return a value of metadata as text: 2023 and "2023" are the same to a filter."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _page_range(page: Any) -> tuple[int, int | None]:
    if page is None:
        return 1, None
    match page if isinstance(page, (tuple, list)) else (page, page):
        case (int(first), int(last)) if 1 <= first <= last:
            return first, last
    raise UsageError(f"page must be a number from 1, or the first and the last of a range, not {page!r}")


def delete_library(folder: Path) -> None:
    """Delete a library, if there is one in this folder."""
    if (folder / HOME).is_file():
        shutil.rmtree(folder)
