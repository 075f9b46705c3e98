"""What vectors cost: bytes of a page, and products of a query with a page. Loads no model code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..tables import Cell, Table

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
    return Table("Cost of the vectors only; products are those of one query with one page", heads, rows, digits=2)
