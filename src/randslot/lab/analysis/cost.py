"""What vectors cost to keep and to compare, in theory, and what the files of a run really take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...library.folder import LIBRARY_FILE
from ...library.library import Library
from ...tables import Cell, Table

if TYPE_CHECKING:
    from .runs import Run

BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "1-bit": 0.125}  # of one number
PAGES = 100_000
KIB, GIB = 1024, 1024**3


@dataclass(frozen=True)
class Budget:
    """How many vectors a query and a page have, of how many numbers, of which type."""

    name: str
    query_vectors: int
    page_vectors: int
    dim: int = 2048
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise UsageError(f"type {self.dtype!r} is not one of {', '.join(BYTES)}")
        if min(self.query_vectors, self.page_vectors, self.dim) < 1:
            raise UsageError("vectors and dimensions must be 1 or more")

    @property
    def page_bytes(self) -> float:
        return self.page_vectors * self.dim * BYTES[self.dtype]

    @property
    def dot_products(self) -> int:
        """Of one query and one page."""
        return self.query_vectors * self.page_vectors

    @property
    def multiply_adds(self) -> int:
        """Of one query and one page."""
        return self.dot_products * self.dim


# The budgets that the paper compares.
PAPER = (Budget("CausalEmbed", 16, 32), Budget("RandSlot", 4, 4), Budget("RandSlot", 6, 6))


def own_budgets(num_vectors: int, dim: int) -> list[Budget]:
    """Return a budget of `num_vectors` a side in every type of number."""
    return [Budget("yours", num_vectors, num_vectors, dim, dtype) for dtype in BYTES]


def list_costs(budgets: Sequence[Budget], pages: int = PAGES) -> Table:
    """Return what each budget costs: one page, a number of pages, and the comparison of a query with a page."""
    rows: list[list[Cell]] = []
    for budget in budgets:
        what: list[Cell] = [budget.name, budget.query_vectors, budget.page_vectors, budget.dim, budget.dtype]
        size = [budget.page_bytes / KIB, pages * budget.page_bytes / GIB]
        rows.append([*what, *size, budget.dot_products, budget.multiply_adds])
    pages_head = f"GiB for {pages:,} pages"
    heads = ["method", "Kq", "Kd", "dimensions", "type", "KiB a page", pages_head, "dot products", "multiply-adds"]
    return Table("Cost of the vectors alone; products are those of one query with one page", heads, rows, digits=2)


def measure_libraries(folders: Sequence[Path]) -> Table:
    """Return what the pages of some libraries take: their vectors in half precision, and all files on disk.

    Errors: UsageError for a folder that is not a library, or an empty one.
    """
    rows: list[list[Cell]] = []
    for folder in folders:
        with Library(folder, create=False) as library:
            status, model = library.status(), library.binding
        if not status.pages:
            raise UsageError(f"library {folder} has no pages: index some first")
        num, dim = (model.num_vectors("page"), model.dimension) if model else (0, 0)
        vectors, on_disk = float(status.vector_bytes_per_page), status.bytes / status.pages
        rows.append([folder.name, num, dim, status.pages, vectors, on_disk])
    heads = ["library", "Kd", "dimensions", "pages", "bytes a page, vectors alone", "bytes a page, on disk"]
    return Table("Libraries: float16 vectors with their codes, payload and the list of files", heads, rows, digits=0)


def is_library(folder: Path) -> bool:
    """Whether a folder is a library."""
    return (folder / LIBRARY_FILE).is_file()


def measure_files(runs: Sequence[Run]) -> Table:
    """Return what the vectors of each run take: by its budget in float32, and the files on disk."""
    rows: list[list[Cell]] = []
    for run in runs:
        folders: set[Path] = set()
        keys: set[str] = set()
        for part in run.parts():
            folders.add(part.folders["page"])
            keys.update(part.judged.page_keys)
        size = 0
        for folder in folders:
            size += sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        num, dim = run.page_shape()
        vectors = Budget(run.name, run.num_vectors, num, dim, "fp32").page_bytes
        rows.append([run.name, num, dim, len(keys), vectors, size / len(keys)])
    heads = ["run", "Kd", "dimensions", "pages", "bytes a page, vectors alone", "bytes a page, files"]
    return Table("Files of vectors that the evaluation left, float32", heads, rows, digits=0)
