"""What vectors cost: bytes of a page, and products of a query with a page. Loads no model code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError
from ..library.library import Library
from ..tables import Cell, Table

if TYPE_CHECKING:
    from .analysis import CachedRun

BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "1-bit": 0.125}  # of one number


class Budget(NamedTuple):
    """The vectors of a query and a page, their dimension and type of number."""

    name: str
    query_vectors: int
    page_vectors: int
    dim: int = 2048
    dtype: str = "fp16"


# The budgets that the paper compares.
PAPER = (Budget("CausalEmbed", 16, 32), Budget("RandSlot", 4, 4), Budget("RandSlot", 6, 6))


def list_costs(budgets: Sequence[Budget], pages: int = 100_000) -> Table:
    """Return the cost of each budget: of one page, of many, and of comparing a query with a page."""
    rows: list[list[Cell]] = []
    for one in budgets:
        products = one.query_vectors * one.page_vectors
        size = one.page_vectors * one.dim * BYTES[one.dtype]
        rows.append([*one, size / 1024, pages * size / 1024**3, products, products * one.dim])
    pages_head = f"GiB for {pages:,} pages"
    heads = ["method", "Kq", "Kd", "dimensions", "type", "KiB a page", pages_head, "dot products", "multiply-adds"]
    return Table("Cost of the vectors alone; products are those of one query with one page", heads, rows, digits=2)


def measure_libraries(folders: Sequence[Path]) -> Table:
    """Return the bytes per page of some libraries: vectors in half precision, and all files on disk."""
    rows: list[list[Cell]] = []
    for folder in folders:
        with Library(folder, create=False) as library:
            status, model = library.status(), library.binding
        if not status.pages:
            raise UsageError(f"library {folder} has no pages. Index some first.")
        num, dim = (model.num_vectors("page"), model.dimension) if model else (0, 0)
        vectors, on_disk = float(status.vector_bytes_per_page), status.bytes / status.pages
        rows.append([folder.name, num, dim, status.pages, vectors, on_disk])
    heads = ["library", "Kd", "dimensions", "pages", "bytes a page, vectors alone", "bytes a page, on disk"]
    return Table("Libraries: float16 vectors with their codes, payload and the list of files", heads, rows, digits=0)


def measure_files(runs: Sequence[CachedRun]) -> Table:
    """Return the bytes per page of each run: by its budget in float32, and its files on disk."""
    rows: list[list[Cell]] = []
    for run in runs:
        folders: set[Path] = set()
        keys: set[str] = set()
        for subsets in run.tasks.values():
            for subset in subsets:
                folders.add(subset.folders["page"])
                keys.update(subset.judged.page_keys)
        size = 0
        for folder in folders:
            size += sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        num, dim = run.page_shape()
        rows.append([run.name, num, dim, len(keys), 4.0 * num * dim, size / len(keys)])
    heads = ["run", "Kd", "dimensions", "pages", "bytes a page, vectors alone", "bytes a page, files"]
    return Table("Files of vectors that the evaluation left, float32", heads, rows, digits=0)
