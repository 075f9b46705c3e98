"""Measure millions of pages: send them to a server, load them into a folder or server, and search by sketches.

    python benchmarks/scale.py hand                  # to a no-op server, and to a real one
    python benchmarks/scale.py load --folder FOLDER --to folder --pages 1000000
    python benchmarks/scale.py sketches --folder FOLDER --to server --pages 10000 100000 1000000

FOLDER has a mixture fitted by research.mixture: pages are sampled from it.

hand: our own CPU time of sending pages, without the server's.
load: as a library does it. Memory is sampled after each tenth: this process should not grow with the pages.
sketches: compare a search by sketches with one that scans all pages. Sketches are fitted to lines of real pages, and
recall is measured on held-out real questions, against an exact search of the same store. Times are CPU times of one
thread. Rows already in results/sketches.json are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
from qdrant_client import grpc as q
from record import keep, print_table, read_rows

from randslot.library.address import Address, read_address
from randslot.library.results import Progress
from randslot.library.sketches import LibrarySketches
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import Point, StoredPage, make_payload, make_vectors
from randslot.library.stores.qdrant import ServerStore, make_message, split_pages
from randslot.library.stores.qdrant_connection import connect
from randslot.library.stores.store import DEFAULT_TUNING, Store, StoreQuery, Where
from research.mixture import CHUNK, Floats, Source, make_source
from support.qdrant_nodes import find_program, running

FILE_PAGES = 100  # of a file
HITS = 5
FILTERS = {"": 1, "a tenth": 10, "a hundredth": 100}  # filters: every n-th file


def cpu_of(pid: int | None) -> float:
    """Return the CPU time of a process, by default this one."""
    if pid is None:
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- hand


class Sink(grpc.GenericRpcHandler):
    """Answers every request without reading it."""

    def service(self, details: Any) -> Any:
        done = q.PointsOperationResponse(result=q.UpdateResult(status=q.UpdateStatus.Completed))
        healthy = q.HealthCheckReply(version="1.20.0")
        answer = (done if details.method.endswith("Upsert") else healthy).SerializeToString()
        return grpc.unary_unary_rpc_method_handler(lambda *_: answer)


def make_pages(vectors: int, dim: int, num: int) -> list[StoredPage]:
    values = np.random.default_rng(0).standard_normal((num, vectors, dim)).astype(np.float32)
    return [StoredPage(str(uuid.UUID(int=1)), number, "", page) for number, page in enumerate(values, start=1)]


def measure_sink(port: int, vectors: int, dim: int, num: int) -> dict[str, Any]:
    """Send generated pages, and return the CPU time per page, which does not depend on other load."""
    pages = make_pages(vectors, dim, num)
    connection = connect(Address("127.0.0.1", "pages", port))
    start = time.process_time()
    requests = 0
    for some in split_pages(pages):
        points = [make_message(Point(page.id, make_vectors(page), make_payload(page))) for page in some]
        connection.upsert(q.UpsertPoints(collection_name="pages", wait=True, points=points))
        requests += 1
    seconds = time.process_time() - start
    connection.close()
    return {
        "to": "nothing",
        "size": f"{vectors} x {dim}",
        "pages": num,
        "requests": requests,
        "CPU ms a page": 1000 * seconds / num,
    }


def measure_server(vectors: int, dim: int, num: int) -> dict[str, Any]:
    """Store generated pages on a real single-process server; return the CPU time per page of client and server."""
    pages = make_pages(vectors, dim, num)
    with running() as (node,):
        connection = connect(read_address(f"{node.url}/pages"))
        store = ServerStore(connection, dim)
        assert node.process is not None
        begun, start, other = time.perf_counter(), time.process_time(), cpu_of(node.process.pid)
        store.add(pages)
        seconds, own = time.perf_counter() - begun, time.process_time() - start
        server = cpu_of(node.process.pid) - other
        connection.close()
    return {
        "to": "a server",
        "size": f"{vectors} x {dim}",
        "pages": num,
        "requests": len(list(split_pages(pages))),
        "CPU ms a page": 1000 * own / num,
        "CPU ms a page on the server": 1000 * server / num,
        "pages/s": num / seconds,
        "load of the machine": os.getloadavg()[0],
    }


def measure_handing(num: int) -> list[dict[str, Any]]:
    """Send pages of two sizes to a no-op server, and to a real one if it is installed."""
    sizes = ((4, 2048), (4, 256))
    limit = [("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Sink()], options=limit)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    rows = [measure_sink(port, vectors, dim, num) for vectors, dim in sizes]
    server.stop(None)
    if find_program() is not None:
        rows += [measure_server(vectors, dim, num) for vectors, dim in sizes]
    heads = list(rows[-1])
    return [{head: row.get(head, "") for head in heads} for row in rows]


# -- load


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Target:
    """A store, and its server process, if any."""

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


def draw_pages(first: int, values: Floats) -> list[StoredPage]:
    pages = []
    for number, vectors in enumerate(values, start=first):
        file = str(uuid.UUID(int=number // FILE_PAGES + 1))
        pages.append(StoredPage(file, number % FILE_PAGES + 1, "", vectors))
    return pages


def memory_of(pid: int | str) -> float:
    """Return the private memory of a process in MB, without mapped files."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def load(source: Source, target: Target, num: int) -> dict[str, Any]:
    """Store pages; the time to sample them is not counted."""
    wall = cpu = 0.0
    server_cpu = cpu_of(target.pid)
    memory, server_memory = [], []
    for first in range(0, num, CHUNK):
        values = source.chunk(first // CHUNK)[: num - first]
        for offset in range(0, len(values), 1000):
            pages = draw_pages(first + offset, values[offset : offset + 1000])
            start, begun = time.perf_counter(), time.process_time()
            target.store.add(pages)
            wall += time.perf_counter() - start
            cpu += time.process_time() - begun
        target.store.flush()
        done = first + len(values)
        if done % max(num // 10, 1) == 0:
            memory.append(round(memory_of("self")))
            server_memory.append(round(memory_of(target.pid)) if target.pid else 0)
            say(f"{done:,} pages, {done / wall:,.0f} pages/s, {memory[-1]} MB here, {server_memory[-1]} MB there")
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
    """Let the engine optimise after many changes; return the CPU seconds it took."""
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


def time_searches(source: Source, target: Target) -> dict[str, Any]:
    seconds, cpu = [], []
    queries = source.queries()[:21]
    for query in queries:
        start, begun = time.perf_counter(), cpu_of(target.pid)
        target.store.search([StoreQuery(np.asarray(query))], HITS, Where(), False)
        seconds.append(time.perf_counter() - start)
        cpu.append(cpu_of(target.pid) - begun)
    # The first one reads from disk. A server's CPU clock ticks every ten milliseconds, so use the mean.
    return {"search, ms": 1000 * statistics.median(seconds[1:]), "search, CPU ms": 1000 * statistics.mean(cpu[1:])}


def measure_loading(source: Source, to: str, folder: Path, pages: int) -> dict[str, Any]:
    """Load pages and time searches of them."""
    with open_target(to, folder, source.dim) as target:
        return {
            "to": f"a {to}",
            "size": f"4 x {source.dim}",
            "pages": f"{pages:,}",
            **load(source, target, pages),
            "CPU s of the engine afterwards": settle(target),
            **time_searches(source, target),
            "load of the machine": os.getloadavg()[0],
        }


# -- sketches


def measure_sketches(source: Source, to: str, folder: Path, pages: int) -> dict[str, Any]:
    """Load pages, compute sketches, and search with and without them."""
    queries = source.queries()
    with open_target(to, folder, source.dim) as target:
        load(source, target, pages)
        settle(target)
        scan = search_all(target, queries, pages, exact=False)
        exact = scan if not DEFAULT_TUNING.has_codes(source.dim) else search_all(target, queries, pages, exact=True)
        begun, there = time.process_time(), cpu_of(target.pid) if target.pid else 0.0
        made = make_sketches(target, source.lines())
        cpu = time.process_time() - begun + (cpu_of(target.pid) - there if target.pid else 0.0)
        found = search_all(target, queries, pages, exact=False)
        row: dict[str, Any] = {
            "where": f"a {to}",
            "vectors": f"{source.like.stem}, 4 x {source.dim}",
            "pages": f"{pages:,}",
            "candidates": made.candidates,
            "recall on lines": made.recall,
        }
        for name in FILTERS:
            last = f", {name} of the files" if name else ""
            row[f"recall@5{last}"] = recall(found[name][0], exact[name][0])
            row[f"CPU ms{last}"] = found[name][1]
            row[f"CPU ms of all pages{last}"] = scan[name][1]
        row["CPU ms a page to sketch"] = 1000 * cpu / pages
        row["MB on disk"] = disk_of(folder)
        row["MB in memory"] = memory_of(target.pid or "self")
        row["load of the machine"] = os.getloadavg()[0]
        return row


def make_sketches(target: Target, lines: Floats) -> Any:
    def show(now: Progress) -> None:
        if now.stage == "sketches" and now.pages_done % 100_000 == 0:
            say(f"{now.pages_done:,} sketches")

    location: Any = SimpleNamespace(
        name="benchmark",
        shared=False,
        store=target.store,
        manifest=SimpleNamespace(find=lambda **_: [], hidden=frozenset),
        read=dict,
        write=lambda _: None,
        write_blob=lambda *_: None,
    )
    texts = [str(number) for number in range(len(lines))]
    return LibrarySketches(location).make(texts, lambda some: [lines[int(text)] for text in some], show)


def search_all(target: Target, queries: Floats, pages: int, *, exact: bool) -> dict[str, tuple[list[set[str]], float]]:
    """Return the hits with each filter, and the mean CPU time of a search."""
    answers = {}
    for name, every in FILTERS.items():
        where = Where()
        if every > 1:
            files = range(0, pages // FILE_PAGES, every)
            where = Where(files=frozenset(str(uuid.UUID(int=number + 1)) for number in files))
        found, seconds = [], []
        for query in [queries[0], *queries]:  # the first one reads from disk
            begun = cpu_of(target.pid)
            (hits,) = target.store.search([StoreQuery(np.asarray(query))], HITS, where, exact)
            seconds.append(cpu_of(target.pid) - begun)
            found.append({hit.id for hit in hits})
        answers[name] = found[1:], 1000 * statistics.mean(seconds[1:])
    return answers


def recall(found: list[set[str]], right: list[set[str]]) -> float:
    return sum(len(a & b) for a, b in zip(found, right, strict=True)) / sum(len(b) for b in right)


def disk_of(folder: Path) -> float:
    """Return the disk use of the store in MB, without logs."""
    size = 0
    for place in folder.glob("loading-*"):
        for file in place.rglob("*"):
            if file.is_file() and "wal" not in file.parts:
                size += file.stat().st_blocks * 512
    return size / 1e6


def sketch_all(options: argparse.Namespace) -> None:
    """Measure each number of pages in a separate process, and write its row."""
    for pages in options.pages:
        key = (f"a {options.to}", f"{options.like}, 4 x {options.dim}", f"{pages:,}")
        if key in ((row["where"], row["vectors"], row["pages"]) for row in read_rows("sketches")):
            continue
        for left in options.folder.glob("loading-*"):  # of a run that was killed
            shutil.rmtree(left)
        words = ["--folder", str(options.folder), "--like", options.like, "--dim", str(options.dim)]
        command = [sys.executable, __file__, "sketches", *words, "--to", options.to, "--pages", str(pages), "--one"]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(answer.stdout)
        print_table([row])
        rows = [*read_rows("sketches"), row]
        keep("sketches", sorted(rows, key=lambda one: (one["where"], one["vectors"], len(one["pages"]))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["hand", "load", "sketches"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--like", default="reports", help="the name of a fit")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--to", choices=("folder", "server"), default="folder")
    parser.add_argument("--pages", type=int, nargs="+", default=[2000])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "hand":
        rows = measure_handing(options.pages[0])
        print_table(rows)
        keep("scale", rows)
        return
    if options.folder is None:
        parser.error("pass --folder with a fit from research.mixture")
    options.folder = options.folder.resolve()
    source = make_source(options.folder, options.like, options.dim)
    if options.one:
        print(json.dumps(measure_sketches(source, options.to, options.folder, options.pages[0])))
    elif options.part == "sketches":
        sketch_all(options)
    else:
        row = measure_loading(source, options.to, options.folder, options.pages[0])
        print_table([row])
        heads = ("to", "size", "pages")
        others = [other for other in read_rows("loading") if any(other[head] != row[head] for head in heads)]
        keep("loading", [*others, row])


if __name__ == "__main__":
    main()
