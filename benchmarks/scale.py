"""What it takes to hand pages to a server: to one that does nothing, so that what is timed is ours, and to a real one.

Also `make_plan`: what to choose for a number of pages, from the rows of results/search.json and arithmetic.

python benchmarks/scale.py
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from qdrant_client import grpc as q
from qdrant_nodes import find_program, running
from record import keep, print_table

from randslot.evaluation.cost import Budget
from randslot.library.address import Address, read_address
from randslot.library.stores.points import Point, StoredPage, make_payload, make_vectors
from randslot.library.stores.qdrant import ServerStore, make_message, split_pages
from randslot.library.stores.qdrant_connection import connect

SIZES = ((4, 2048), (4, 256))
PLANNED = Budget("RandSlot", 4, 4, 2048)
GB = 1e9


@dataclass(frozen=True)
class Choice:
    """A number of pages, on machines with some cores each."""

    pages: int
    where: str
    nodes: int
    cores: int
    shards: int
    replicas: int


CHOICES = (
    Choice(1_000_000, "one server", 1, 8, 4, 1),
    Choice(100_000_000, "a cluster", 8, 32, 32, 2),
)


def make_plan(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what numbers of pages take: as rows of the search benchmark say, and beyond that by arithmetic.

    Disk and the time of a search grow with the pages; all cores share the time. A code is a bit a number.
    """
    measured = [row for row in rows if row.get("way") == "randslot, default" and row["size"] == "4 x 2048"]
    largest = max(measured, key=lambda row: row["pages"])
    plan = [
        _row(Choice(row["pages"], "in the process", 1, 1, 1, 1), row["MB on disk"] / 1000, row["p50 ms"], "measured")
        for row in measured
    ]
    for choice in CHOICES:
        times = choice.pages / largest["pages"]
        disk = times * choice.replicas * largest["MB on disk"] / 1000
        plan.append(_row(choice, disk, times * largest["p50 ms"] / (choice.nodes * choice.cores), "extrapolated"))
    return plan


def _row(choice: Choice, disk: float, milliseconds: float, known: str) -> dict[str, Any]:
    copies = choice.pages * choice.replicas
    return {
        "pages": f"{choice.pages:,}",
        "where": choice.where,
        "nodes x cores": f"{choice.nodes} x {choice.cores}",
        "shards x copies": f"{choice.shards} x {choice.replicas}",
        "vectors, GB": choice.pages * PLANNED.page_bytes / GB,
        "on disk, GB": disk,
        "codes in memory, GB": copies * replace(PLANNED, dtype="1-bit").page_bytes / GB,
        "a search that compares all codes, ms": milliseconds,
        "time and disk are": known,
    }


class Sink(grpc.GenericRpcHandler):
    """Answers every request without looking into it."""

    def service(self, details: Any) -> Any:
        done = q.PointsOperationResponse(result=q.UpdateResult(status=q.UpdateStatus.Completed))
        healthy = q.HealthCheckReply(version="1.20.0")
        answer = (done if details.method.endswith("Upsert") else healthy).SerializeToString()
        return grpc.unary_unary_rpc_method_handler(lambda *_: answer)


def make_pages(vectors: int, dim: int, num: int) -> list[StoredPage]:
    values = np.random.default_rng(0).standard_normal((num, vectors, dim)).astype(np.float32)
    return [StoredPage(str(uuid.UUID(int=1)), number, "", page) for number, page in enumerate(values, start=1)]


def measure(port: int, vectors: int, dim: int, num: int) -> dict[str, Any]:
    """Send generated pages, and return the processor time that a page takes: the load of others does not change it."""
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


def measure_real(vectors: int, dim: int, num: int) -> dict[str, Any]:
    """Store generated pages on a real server of one process; return what a page takes of both processors."""
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


def cpu_of(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000)
    num = parser.parse_args().pages
    limit = [("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Sink()], options=limit)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    rows = [measure(port, vectors, dim, num) for vectors, dim in SIZES]
    server.stop(None)
    if find_program() is not None:
        rows += [measure_real(vectors, dim, num) for vectors, dim in SIZES]
    heads = list(rows[-1])
    rows = [{head: row.get(head, "") for head in heads} for row in rows]
    print_table(rows)
    keep("scale", rows)


if __name__ == "__main__":
    main()
