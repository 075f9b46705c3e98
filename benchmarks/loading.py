"""Load very many pages into a folder and onto a server, as a library does: pages a second, memory, and searches.

Memory is looked at after each tenth: that of this process should not grow with the pages.

python benchmarks/loading.py --folder FOLDER --like reports --to folder --pages 1000000
python benchmarks/loading.py --folder FOLDER --like reports --to server --pages 1000000

FOLDER has the fit that benchmarks/growth.py makes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from growth import CHUNK, FILE_PAGES, Source, make_source
from qdrant_nodes import running
from record import RESULTS, keep, print_table
from scale import cpu_of

from randslot.library.address import read_address
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import StoredPage
from randslot.library.stores.qdrant import ServerStore
from randslot.library.stores.qdrant_connection import connect
from randslot.library.stores.store import Store, StoreQuery, Where

BATCH = 1000  # pages that the store is given at once
SEARCHES = 20
HITS = 5
EVERYWHERE = Where()


@dataclass(frozen=True)
class Target:
    """A store, and the process that it is in, if that is another one."""

    store: Store
    pid: int | None


@contextmanager
def open_target(to: str, folder: Path, dim: int) -> Iterator[Target]:
    place = folder / f"loading-{uuid.uuid4()}"
    try:
        if to == "folder":
            store = EdgeStore(place, dim)
            yield Target(store, None)
            store.close()
            return
        with running(folder=place) as (node,):
            assert node.process is not None
            connection = connect(read_address(f"{node.url}/pages"))
            yield Target(ServerStore(connection, dim), node.process.pid)
            connection.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def make_pages(source: Source, first: int, values: Any) -> list[StoredPage]:
    pages = []
    for number, vectors in enumerate(values, start=first):
        file = str(uuid.UUID(int=number // FILE_PAGES + 1))
        pages.append(StoredPage(file, number % FILE_PAGES + 1, "", vectors))
    return pages


def memory_of(pid: int | str) -> float:
    """Return the MB of memory that are a process's own: files that it maps are not."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def load(source: Source, target: Target, num: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Store pages; what it takes to draw them is not counted."""
    wall = cpu = 0.0
    server_cpu = cpu_of(target.pid) if target.pid else 0.0
    memory, server_memory = [], []
    for first in range(0, num, CHUNK):
        values = source.chunk(first // CHUNK)[: num - first]
        for offset in range(0, len(values), BATCH):
            pages = make_pages(source, first + offset, values[offset : offset + BATCH])
            start, begun = time.perf_counter(), time.process_time()
            target.store.add(pages)
            wall += time.perf_counter() - start
            cpu += time.process_time() - begun
        target.store.flush()
        done = first + len(values)
        if done % max(num // 10, 1) == 0:
            memory.append(round(memory_of("self")))
            server_memory.append(round(memory_of(target.pid)) if target.pid else 0)
            note(f"{done:,} pages, {done / wall:,.0f} pages/s, {memory[-1]} MB here, {server_memory[-1]} MB there")
    row: dict[str, Any] = {
        "pages/s": num / wall,
        "CPU ms a page": 1000 * cpu / num,
        "CPU ms a page on the server": "",
        "MB after a tenth": memory[0],
        "MB at the end": memory[-1],
        "MB on the server": server_memory[-1] or "",
    }
    if target.pid:
        row["CPU ms a page on the server"] = 1000 * (cpu_of(target.pid) - server_cpu) / num
    return row


def settle(target: Target) -> float:
    """Have the engine do what it does after many changes; return the seconds of the processor that it took."""
    if target.pid is None:
        begun = time.process_time()
        target.store.optimize()
        return time.process_time() - begun
    before = last = cpu_of(target.pid)
    while True:
        time.sleep(10)
        now = cpu_of(target.pid)
        if now - last < 0.5:  # it is idle
            return now - before
        last = now


def search(source: Source, target: Target) -> dict[str, Any]:
    seconds, cpu = [], []
    queries = source.queries()[: SEARCHES + 1]
    for query in queries:
        start, begun = time.perf_counter(), _cpu(target)
        target.store.search([StoreQuery(np.asarray(query))], HITS, EVERYWHERE, False)
        seconds.append(time.perf_counter() - start)
        cpu.append(_cpu(target) - begun)
    # The first one reads from the disk. A server's clock has ticks of ten milliseconds, so the mean says more.
    return {"search, ms": 1000 * statistics.median(seconds[1:]), "search, CPU ms": 1000 * statistics.mean(cpu[1:])}


def _cpu(target: Target) -> float:
    return cpu_of(target.pid) if target.pid else time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--like", default="reports")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--to", choices=("folder", "server"), required=True)
    arguments = parser.parse_args()
    source = make_source(arguments)
    with open_target(arguments.to, arguments.folder.resolve(), arguments.dim) as target:
        row: dict[str, Any] = {
            "to": f"a {arguments.to}",
            "size": f"4 x {arguments.dim}",
            "pages": f"{arguments.pages:,}",
            **load(source, target, arguments.pages, lambda line: print(line, flush=True)),
            "CPU s of the engine afterwards": settle(target),
            **search(source, target),
            "load of the machine": os.getloadavg()[0],
        }
    print_table([row])
    keep("loading", [*(other for other in read_rows() if key_of(other) != key_of(row)), row])


def read_rows() -> list[dict[str, Any]]:
    file = RESULTS / "loading.json"
    return list(json.loads(file.read_text())["rows"]) if file.exists() else []


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["to"], row["size"], row["pages"]


if __name__ == "__main__":
    main()
