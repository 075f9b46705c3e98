"""How many neighbours of each query vector must a perfect index of readouts return?

A top page by MaxSim need not be near any single vector of the query. For each number of pages, this computes, without
any index: how many nearest pages per query vector contain 98 % of the top five? This is a lower bound for any method
that finds candidates by single readouts (graphs, cells).

python -m research.experiments.neighbours --folder FOLDER --likes reports manuals --pages 10000 100000 1000000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, print_table

from research.mixture import CHUNK, Floats, Source, make_source

HITS = 5
TARGET = 0.98  # recall that is enough


def score_pages(source: Source, pages: int) -> Floats:
    """Return the similarity of each vector of each query to the nearest readout of each page."""
    queries = source.queries()
    num, vectors, dim = queries.shape
    found = np.empty((num, vectors, pages), np.float32)
    for first in range(0, pages, CHUNK):
        values = source.chunk(first // CHUNK)[: pages - first]
        products = queries.reshape(-1, dim) @ values.reshape(-1, dim).T
        nearest = products.reshape(num, vectors, len(values), -1).max(-1)
        found[:, :, first : first + len(values)] = nearest
    return found


def count_needed(nearest: Floats) -> int:
    """Return the number of neighbours per vector needed for the target recall. nearest: of one number of pages."""
    ranks = []
    for query in nearest:
        best = np.argpartition(-query.sum(0), HITS)[:HITS]
        for page in best:
            ranks.append(min(int((vector > vector[page]).sum()) + 1 for vector in query))
    return sorted(ranks)[int(np.ceil(TARGET * len(ranks))) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--likes", nargs="+", default=["reports", "manuals", "clusters"])
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=256)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for like in arguments.likes:
        nearest = score_pages(make_source(arguments.folder, like, arguments.dim), max(arguments.pages))
        needed = [count_needed(nearest[:, :, :pages]) for pages in arguments.pages]
        exponent = float(np.polyfit(np.log(arguments.pages), np.log(needed), 1)[0])
        row: dict[str, Any] = {"vectors": f"{like}, 4 x {arguments.dim}"}
        row |= {f"{pages:,} pages": number for pages, number in zip(arguments.pages, needed, strict=True)}
        rows.append({**row, "grows by a power of": exponent})
        print_table(rows[-1:])
    keep("neighbours", rows)


if __name__ == "__main__":
    main()
