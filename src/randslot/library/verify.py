"""Verify a library: compare its manifest with the stored pages, and read all vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .results import Progress
from .stores.points import page_id
from .stores.store import DamagedError, Store, pages_at_once

if TYPE_CHECKING:
    from .library import Library


def verify_library(library: Library, report: Callable[[Progress], None], *, repair: bool) -> list[str]:
    """Return what is wrong with a library, a line each.

    repair: hide files that lack pages until they are indexed again; delete damaged pages and those of no file.
    """
    library.manifest.check()
    counts = library.store.counts()
    files = {file.id: file for file in library.manifest.find()}
    damaged = _count_damaged(library, counts, report)
    lines, hidden = [], set(damaged)
    for file in files.values():
        if file.state == "done" and counts.get(file.id, 0) != file.num_pages:
            lines.append(f"{file.source}: {counts.get(file.id, 0)} of {file.num_pages} pages are stored")
            hidden.add(file.id)
    for id, num in damaged.items():
        lines.append(f"{files[id].source}: {num} of {files[id].num_pages} pages are damaged")
    stray = sorted(counts.keys() - files.keys())
    for id in stray:
        lines.append(f"{counts[id]} pages belong to no file ({id})")
    if repair and lines:
        with library.write():
            library.manifest.put(*(replace(files[id], state="pending") for id in hidden))
            for id in [*stray, *damaged]:
                library.store.delete(id)
    return lines


def _count_damaged(library: Library, counts: dict[str, int], report: Callable[[Progress], None]) -> Counter[str]:
    """Read the vectors of all pages; return how many of each file are damaged, by its id."""
    file_of: dict[str, str] = {}
    for file in library.manifest.find():
        for number in range(1, file.num_pages + 1 if file.id in counts else 1):
            file_of[page_id(file.id, number)] = file.id
    pages = list(file_of)
    damaged: Counter[str] = Counter()
    unit = library.binding is None or bool(library.binding.settings.get("unit", True))
    step = pages_at_once(library.store, 256)
    for start in range(0, len(pages), step):
        some = pages[start : start + step]
        damaged.update(file_of[page] for page in _find_damaged(library.store, some, unit))
        report(Progress(0, 0, start + len(some), len(pages)))
    return damaged


def _find_damaged(store: Store, pages: list[str], unit: bool) -> list[str]:
    """Return the stored pages whose vectors cannot be read, are not numbers or all zero, or not of unit length."""
    damaged = []
    try:
        found = store.read(pages)
    except DamagedError:
        if len(pages) == 1:
            return pages
        for id in pages:
            damaged += _find_damaged(store, [id], unit)
        return damaged
    for id, page in found.items():
        if page.vectors is None:  # nothing that could be damaged
            continue
        lengths = np.linalg.norm(page.vectors, axis=1)
        is_good = bool(len(lengths) and np.isfinite(lengths).all() and lengths.any())
        if is_good and unit:
            is_good = np.allclose(lengths, 1, atol=0.05)  # half precision
        if not is_good:
            damaged.append(id)
    return damaged
