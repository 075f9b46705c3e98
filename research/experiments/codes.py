"""Compare the default search, which uses codes, with the exact one: pages scored in full, recall and time.

python -m research.experiments.codes --folder FOLDER --likes uniform clusters reports manuals

FOLDER has fits from research.mixture; their vectors are rotated into 2,048 dimensions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import keep, print_table
from scale import draw_pages

from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import Filter
from randslot.library.stores.store import StoreHit, StoreQuery, Where
from research.mixture import CHUNK, Floats, Source, make_source

QUERIES, HITS = 50, 5


class CountingStore(EdgeStore):
    """Counts the pages that are scored in full."""

    num_scored = 0

    def _query(self, requests: list[Any]) -> list[list[StoreHit]]:
        for request in requests:
            self.num_scored += self.count(Filter()) if request.filter is None else len(request.filter.must[0].point_ids)
        return super()._query(requests)


def measure(source: Source, folder: Path, pages: int) -> dict[str, Any]:
    place = folder / f"codes-{uuid.uuid4()}"
    store = CountingStore(place, source.dim)
    try:
        for first in range(0, pages, CHUNK):
            store.add(draw_pages(first, source.chunk(first // CHUNK)[: pages - first]))
        store.optimize()
        queries = source.queries()[:QUERIES]
        exact, exact_ms = search(store, queries, exact=True)
        store.num_scored = 0
        found, default_ms = search(store, queries, exact=False)
        num_scored = store.num_scored
    finally:
        store.close()
        shutil.rmtree(place, ignore_errors=True)
    return {
        "vectors": f"{source.like.stem}, 4 x {source.dim}",
        "pages": f"{pages:,}",
        "pages scored in full, mean": round(num_scored / len(queries)),
        "recall@5 of the default": recall(found, exact),
        "CPU ms of the default": default_ms,
        "CPU ms exact": exact_ms,
        "times faster": exact_ms / default_ms,
        "load of the machine": os.getloadavg()[0],
    }


def search(store: EdgeStore, queries: Floats, *, exact: bool, k: int = HITS) -> tuple[list[list[StoreHit]], float]:
    """Return hits, and the median CPU time of a search."""
    found, seconds = [], []
    for query in queries:
        start = time.process_time()
        found += store.search([StoreQuery(query)], k, Where(), exact)
        seconds.append(time.process_time() - start)
    return found, 1000 * statistics.median(seconds)


def recall(found: Sequence[Sequence[StoreHit]], truth: Sequence[Sequence[StoreHit]]) -> float:
    shared = []
    for some, wanted in zip(found, truth, strict=True):
        shared.append(len({hit.id for hit in some[:HITS]} & {hit.id for hit in wanted}) / HITS)
    return statistics.mean(shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--likes", nargs="+", default=["uniform", "clusters"])
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=2048)
    arguments = parser.parse_args()
    rows = []
    for like in arguments.likes:
        rows.append(measure(make_source(arguments.folder, like, arguments.dim), arguments.folder, arguments.pages))
        print_table(rows[-1:])
    keep("codes", rows)


if __name__ == "__main__":
    main()
