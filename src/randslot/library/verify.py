"""Verify a library: compare its manifest with the stored pages, and check all vectors."""

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
    """Return the problems of a library, one per line.

    repair: hide incomplete files until they are reindexed; delete damaged and orphaned pages.
    """
    library.manifest.check()
    counts = library.store.counts()
    files = {file.id: file for file in library.manifest.find()}
    pages = []
    for file in files.values():
        if file.id in counts:
            pages += [(file.id, number) for number in range(1, file.num_pages + 1)]
    unit = library.binding is None or bool(library.binding.settings.get("unit", True))
    damaged: Counter[str] = Counter()
    step = pages_at_once(library.store, 256)
    for start in range(0, len(pages), step):
        batch = {page_id(file, number): file for file, number in pages[start : start + step]}
        damaged.update(batch[id] for id in _find_damaged(library.store, list(batch), unit))
        report(Progress(0, 0, start + len(batch), len(pages)))
    lines, hidden = [], set(damaged)
    for file in files.values():
        num = counts.get(file.id, 0)
        if file.state == "done" and num != file.num_pages:
            lines.append(f"{file.source}: {num} of {file.num_pages} pages are stored")
            hidden.add(file.id)
    for id, num in damaged.items():
        lines.append(f"{files[id].source}: {num} of {files[id].num_pages} pages are damaged")
    orphans = sorted(counts.keys() - files.keys())
    for id in orphans:
        lines.append(f"{counts[id]} pages belong to no file ({id})")
    if repair and lines:
        with library.write():
            library.manifest.put(*(replace(files[id], state="pending") for id in hidden))
            for id in [*orphans, *damaged]:
                library.store.delete(id)
    return lines


def _find_damaged(store: Store, pages: list[str], unit: bool) -> list[str]:
    """Return the pages with damaged vectors; if a batch cannot be read, check its pages one by one."""
    try:
        found = store.read(pages)
    except DamagedError:
        if len(pages) == 1:
            return pages
        damaged = []
        for id in pages:
            damaged += _find_damaged(store, [id], unit)
        return damaged
    damaged = []
    for id, page in found.items():
        if page.vectors is not None:
            lengths = np.linalg.norm(page.vectors, axis=1)
            is_sound = lengths.any() and np.isfinite(lengths).all()  # any() of no lengths is false
            if not is_sound or (unit and not np.allclose(lengths, 1, atol=0.05)):  # half precision
                damaged.append(id)
    return damaged
