"""Copy a library page by page and verify the copy, export it, or back up its folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..errors import RandSlotError, UsageError
from ..extras import needs_extra
from ..files import check_space
from ..model.reader import Identity, narrow
from .facets import get_value
from .ingest import SAFE_SECONDS
from .library import Library
from .location import clear, folder_size, is_kept
from .manifest import File, FileManifest
from .models import check_model
from .results import Progress
from .stores.points import StoredPage, page_id
from .stores.store import pages_at_once

PAGES = 256  # at most, to read and write at once
OWN_FILES = ("lock", "owner", "files.sqlite", "files.sqlite-wal", "files.sqlite-shm")  # not copied byte by byte
SAME = "source and target are the same library: choose another target"


@dataclass
class Copied:
    """What a copy did. known: files that the target had. compared: files; sampled: pages compared in full."""

    files: int = 0
    pages: int = 0
    known: int = 0
    compared: int = 0
    sampled: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def copy_library(source: Library, target: Library, report: Callable[[Progress], None] = lambda _: None) -> Copied:
    """Copy the visible files of a library into another library of the same model; other files of the target stay.

    If the target stores fewer or narrower vectors per page, vectors are truncated, not encoded again.

    Stopped or killed, the same call resumes.

    Errors: UsageError if both are the same library; RandSlotError if a source file changes during the copy.
    """
    copied = Copied()
    files = source.manifest.find(state="done")
    with target.write():
        if source.location.is_same(target.location):
            raise UsageError(SAME)
        if source.binding and target.binding:
            counts = [binding.num_vectors("page") or 0 for binding in (source.binding, target.binding)]
            fewer = counts[1] if counts[1] < counts[0] else None
            narrower = target.binding.dimension if target.binding.dimension < source.binding.dimension else None
            cut = source.binding.narrowed(fewer, narrower)
            check_model(cut, target.binding, source.name, "choose another target")
        elif source.binding or target.binding:
            one, other = (source, target) if source.binding else (target, source)
            raise UsageError(f"library {one.name} has vectors and {other.name} has none: choose another target")
        _join_languages(source, target)
        _copy_files(source, target, [_copy_own_file(file, source, target) for file in files], copied, report)
        target.store.optimize()
    _compare(source, target, files, copied)
    if source.sketches.settings and not target.sketches.settings:
        copied.notes.append(f"sketches are not copied: run randslot library sketch -l {target.name}")
    return copied


def narrow_binding(library: Library, page_vectors: int | None, width: int | None) -> Identity | None:
    """Return the model of a copy with fewer or narrower vectors per page; UsageError if that is impossible."""
    if page_vectors is None and width is None:
        return library.binding
    return library.models.need_binding().narrowed(page_vectors, width)


def export_library(library: Library, file: Path, progress: Callable[[Progress], None] = lambda _: None) -> int:
    """Write one Parquet row per page, sorted by file and page; return the number of rows."""
    with needs_extra():
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

    if file.exists():
        raise UsageError(f"cannot write {file}: it already exists")
    columns = {"id": pa.string(), "source": pa.string(), "page": pa.int32(), "text": pa.string()}
    columns |= dict.fromkeys(("title", "author", "year", "type", "language", "metadata"), pa.string())
    schema = pa.schema(columns | {"vectors": pa.list_(pa.list_(pa.float32()))})
    files = library.manifest.find(state="done")
    places = [(one, number) for one in files for number in range(1, one.num_pages + 1)]
    step = pages_at_once(library.store, 256)
    part = file.with_name(f"{file.name}.part")
    try:
        with ParquetWriter(part, schema, compression="zstd") as writer:
            for start in range(0, len(places), step):
                batch = places[start : start + step]
                pages = library.store.read([page_id(one.id, number) for one, number in batch])
                rows = []
                for one, number in batch:
                    page = pages.get(page_id(one.id, number))
                    row = {"id": page_id(one.id, number), "source": one.source, "page": number}
                    row["text"] = page.text.text if page and page.text else ""
                    row |= {name: get_value(one, name) for name in ("title", "author", "year", "type", "language")}
                    row["metadata"] = json.dumps(dict(one.metadata))
                    row["vectors"] = page.vectors.tolist() if page and page.vectors is not None else None
                    rows.append(row)
                writer.write_table(pa.Table.from_pylist(rows, schema))
                progress(Progress(0, 0, start + len(batch), len(places), stage="export"))
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return len(places)


def backup_library(library: Library, target: Path) -> int:
    """Copy the folder of a library; return the bytes on disk. The copy is a library, too.

    Searches still work; writes wait. Sparse files stay sparse.
    """
    if not isinstance(library.manifest, FileManifest):
        raise UsageError(f"library {library.name} is on a server: use randslot library copy {library.name} FOLDER")
    target = target.expanduser().absolute()
    if target.exists():
        raise UsageError(f"{target} already exists: choose a new folder")
    if target.is_relative_to(library.folder.absolute()):
        raise UsageError(f"{target} is inside the library: choose another folder")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with library.write():
        library.store.flush()
        check_space(part, folder_size(library.folder))
        for path in sorted(library.folder.rglob("*")):
            own = part / path.relative_to(library.folder)
            if path.is_dir():
                own.mkdir()
            elif own.parent != part or path.name not in OWN_FILES:
                with suppress(FileNotFoundError):  # an upload in progress
                    _copy_sparse(path, own)
        library.manifest.backup(part / "files.sqlite")
    os.rename(part, target)
    return folder_size(target)


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy a sparse file; holes stay holes."""
    with source.open("rb") as old, target.open("xb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        start = 0
        while start < size:
            try:
                start = os.lseek(old.fileno(), start, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            end = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            old.seek(start)
            new.seek(start)
            while start < end:
                content = old.read(min(end - start, 2**20))
                if not content:  # truncated during the copy
                    return
                new.write(content)
                start += len(content)


def _join_languages(source: Library, target: Library) -> None:
    """Add the languages of the source to the target."""
    ours, theirs = source.words, target.words
    if theirs.begun:
        advice = f"run randslot library words -l {target.name}"
        raise UsageError(f"the keyword index of library {target.name} is incomplete: {advice}")
    if ours.language and not theirs.language:
        theirs.mean_length, theirs.root = ours.mean_length, ours.root
        theirs.counts.update(ours.counts)
        theirs.set(ours.languages, ours.each, begun=False)
    elif ours.language == theirs.language and not set(ours.languages) <= set(theirs.languages):
        theirs.counts.update(ours.counts)
        theirs.set(tuple(dict.fromkeys((*theirs.languages, *ours.languages))), theirs.each or ours.each, begun=False)
    elif ours.language and ours.language != theirs.language and not theirs.each:
        what = f"library {source.name} is indexed as {ours.language} and {target.name} as {theirs.language}"
        raise UsageError(f"{what}. Run randslot library words -l {target.name} --language auto first")


def _copy_own_file(file: File, source: Library, target: Library) -> File:
    """Return the target's record of a file; copy a file that the source keeps in its own folder."""
    if not is_kept(file.source, str(source.folder.absolute())):
        return file
    own = target.folder.absolute() / Path(file.source).relative_to(source.folder.absolute())
    if not own.is_file() and Path(file.source).is_file():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.source, own)
    return replace(file, source=str(own))


def _copy_files(
    source: Library, target: Library, files: list[File], copied: Copied, report: Callable[[Progress], None]
) -> None:
    """Copy files that the target lacks; update the names and metadata of the others."""
    known = {file.id: file for file in target.manifest.find()}
    pages: list[tuple[File, int]] = []
    num_files = 0
    for file in files:
        if file.id not in known or known[file.id].state != "done":
            pages += [(file, number) for number in range(1, file.num_pages + 1)]
            num_files += 1
            continue
        copied.known += 1
        if known[file.id] != file:
            clear(target.manifest, target.store, target.manifest.show(file))
    complete: list[File] = []
    safe_at = time.monotonic()
    step = pages_at_once(source.store, PAGES)
    for start in range(0, len(pages), step):
        batch = pages[start : start + step]
        copied.pages += _copy_pages(source, target, batch, known)
        complete += [file for file, number in batch if number == file.num_pages]
        done = start + len(batch)
        finished: list[File] = []
        if time.monotonic() - safe_at >= SAFE_SECONDS or done == len(pages):
            target.store.flush()
            for file in complete:
                clear(target.manifest, target.store, target.manifest.show(file))
            copied.files += len(complete)
            finished, complete, safe_at = complete, [], time.monotonic()
        names = tuple(file.source for file in finished)
        report(Progress(copied.files, num_files, done, len(pages), names))


def _copy_pages(source: Library, target: Library, pages: list[tuple[File, int]], known: dict[str, File]) -> int:
    """Copy pages that an earlier run did not copy; return how many."""
    files = {file.id: file for file, _ in pages}
    target.manifest.put(*(replace(file, state="pending") for file in files.values()))  # hidden before the first page
    stored = {id: target.store.hashes(id) if id in known else {} for id in files}
    wanted = {page_id(file.id, number): file for file, number in pages if number not in stored[file.id]}
    found = source.store.read(list(wanted))
    new, ours, theirs = target.binding, source.words, target.words
    same_settings = (ours.language, ours.mean_length, ours.root) == (theirs.language, theirs.mean_length, theirs.root)
    same_words = same_settings and not ours.begun
    added: list[StoredPage] = []
    for id, file in wanted.items():
        if id not in found:
            raise RandSlotError(f"{file.source} changed during the copy: run the copy again")
        page = found[id]
        if new and page.vectors is not None:
            is_unit = bool(new.settings.get("unit", True))
            page = replace(page, vectors=narrow(page.vectors, new.dimension, new.num_vectors("page"), unit=is_unit))
        if page.text and page.text.text and not same_words:
            page = replace(page, text=theirs.count(page.text, file.source))
        elif page.text and theirs.vocabulary:
            theirs.vocabulary.add(page.text.words)
        added.append(page)
    target.store.add(added)
    return len(added)


def _compare(source: Library, target: Library, files: list[File], copied: Copied) -> None:
    """Count the pages of every file, and compare 20 pages in full."""
    counts, visible = target.store.counts(), {file.id for file in target.manifest.find(state="done")}
    pages = {}
    for file in files:
        copied.compared += 1
        for number in range(1, file.num_pages + 1):
            pages[page_id(file.id, number)] = f"{file.source}, page {number}"
        if counts.get(file.id, 0) != file.num_pages or file.id not in visible:
            copied.problems.append(f"{file.source}: {counts.get(file.id, 0)} of {file.num_pages} pages are copied")
    sample = random.Random(0).sample(list(pages), min(20, len(pages)))
    wanted, found = source.store.read(sample), target.store.read(sample)
    copied.sampled = len(sample)
    is_narrowed = source.binding != target.binding
    for id in sample:
        if id not in wanted or id not in found or not _are_equal(wanted[id], found[id], is_narrowed):
            copied.problems.append(f"{pages[id]}: its copy differs")


def _are_equal(one: StoredPage, two: StoredPage, is_narrowed: bool) -> bool:
    """Whether two pages have the same text and, unless narrowed, the same vectors; term weights may differ."""
    if (one.vectors is None) != (two.vectors is None) or (one.text is None) != (two.text is None):
        return False
    if not (is_narrowed or one.vectors is None or np.array_equal(one.vectors, two.vectors)):  # type: ignore[arg-type]
        return False
    return one.text is None or two.text is None or (one.text.text, one.text.boxes) == (two.text.text, two.text.boxes)
