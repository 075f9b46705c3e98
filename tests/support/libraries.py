"""Files of known pages, and what a library finds of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from randslot.library.library import Library
from support.models import noise

REAL = os.environ.get("RANDSLOT_QDRANT_URL")


def write_tiff(file: Path, seeds: Sequence[int]) -> None:
    """Write a TIFF whose pages are noise of these seeds."""
    first, *rest = [noise(64, 96, seed) for seed in seeds]
    first.save(file, save_all=True, append_images=rest)


def visible(library: Library) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for hit in library.search("x", 1000, exact=True):
        found.setdefault(Path(hit.source).name, set()).add(hit.page)
    return found


def scores(library: Library) -> dict[tuple[str, int], float]:
    return {(Path(hit.source).name, hit.page): hit.score for hit in library.search("x", 1000, exact=True)}


def same(one: Library, two: Library) -> bool:
    a, b = scores(one), scores(two)
    return a.keys() == b.keys() and np.allclose([a[key] for key in a], [b[key] for key in a], atol=1e-3)
