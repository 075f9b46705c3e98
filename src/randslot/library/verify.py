"""Is every page of every file stored, and can its vectors be read? If not, hide the file until it is indexed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .manifest import File, Manifest
from .results import Progress
from .stores.store import DamagedError, Store, Vectors, page_id, pages_at_once

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
