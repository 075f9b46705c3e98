"""Vectors as an evaluation leaves them in its cache."""

from __future__ import annotations

from pathlib import Path

import torch

from randslot.evaluation.analysis import CachedSubset
from randslot.evaluation.cache import Judged, VectorCache


def make_subset(folder: Path, queries: torch.Tensor, pages: torch.Tensor, grades: list[dict[str, int]]) -> CachedSubset:
    """Keep vectors as an evaluation does."""
    folders = {"query": folder / f"query-zero-k{queries.shape[1]}", "page": folder / f"page-zero-k{pages.shape[1]}"}
    keys = {"query": [f"q{i}" for i in range(len(queries))], "page": [f"p{i}" for i in range(len(pages))]}
    for side, vectors in (("query", queries), ("page", pages)):
        cache = VectorCache(folders[side])
        cache.add(keys[side], list(vectors))
        cache.flush()
    return CachedSubset(Judged(keys["page"], keys["page"], keys["query"], keys["query"], grades), folders)
