"""Is every page of every file stored, and can its vectors be read? If not, hide the file until it is indexed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .manifest import File, Manifest
from .results import Progress
from .stores.store import DamagedError, Store, Vectors, page_id

PAGES = 256  # that are read at once


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


def find_problems(manifest: Manifest, store: Store, report: Callable[[Progress], None]) -> Problems:
    """Compare the manifest with the pages that are stored, and read them all."""
    counts = store.counts()
    files = {file.id: file for file in manifest.find()}
    incomplete = []
    for file in files.values():
        if file.state == "done" and counts.get(file.id, 0) != file.num_pages:
            incomplete.append(file)
    stored = [file for file in files.values() if file.id in counts]
    damaged = _count_damaged(store, stored, report)
    return Problems(files, counts, incomplete, damaged, sorted(counts.keys() - files.keys()))


def _count_damaged(store: Store, files: list[File], report: Callable[[Progress], None]) -> Counter[str]:
    """Read the vectors of all pages, and return how many of each file are not what was stored."""
    file_of: dict[str, str] = {}
    for file in files:
        for number in range(1, file.num_pages + 1):
            file_of[page_id(file.id, number)] = file.id
    pages = list(file_of)
    damaged: Counter[str] = Counter()
    for start in range(0, len(pages), PAGES):
        some = pages[start : start + PAGES]
        damaged.update(file_of[page] for page in _find_damaged(store, some))
        report(Progress(0, 0, start + len(some), len(pages)))
    return damaged


def _find_damaged(store: Store, pages: list[str]) -> list[str]:
    """Return those of some pages that are there, and whose vectors cannot be read or have lost their length."""
    try:
        found = store.read(pages)
    except DamagedError:
        if len(pages) == 1:
            return pages
        damaged = []
        for page in pages:
            damaged += _find_damaged(store, [page])
        return damaged
    return [id for id, page in found.items() if not _are_units(page.vectors)]


def _are_units(vectors: Vectors | None) -> bool:
    """Whether vectors have the length of one; a page without any has nothing that could be damaged."""
    if vectors is None:
        return True
    return bool(len(vectors) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.05))  # half precision
