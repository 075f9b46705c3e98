"""How many searches the service answers, and how fast, for many visitors at once; also while uploads are indexed.

    python benchmarks/serve.py            # one client, 50 for a minute, 50 during uploads: two minutes

A real process serves a library of sample pages with the embedded model. The clients are threads here, on the same
machine; each sends its next question when it has the answer to the last. Any answer but 200 makes the run fail. "CPU
ms" is what the service computed for a search; with uploads, for their pages too. It does not grow when other work holds
the machine, as the times do.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from record import keep, print_table

import randslot
from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from research.samples.sets import ask_all


class Visitor(threading.Thread):
    """Asks one question after the other until a moment, and keeps how long each took."""

    def __init__(self, address: str, questions: Iterator[str], until: float) -> None:
        super().__init__()
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.questions, self.until = questions, until
        self.seconds: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while time.perf_counter() < self.until and not self.errors:
            start = time.perf_counter()
            try:
                status, answer = post(self.connection, "/api/search", json.dumps({"query": next(self.questions)}))
                if status != 200 or not answer["hits"]:
                    self.errors.append(f"{status} {answer}")
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(repr(error))
            self.seconds.append(time.perf_counter() - start)


class Uploader(threading.Thread):
    """Uploads one sample report after the other until a moment, each when the last is indexed."""

    def __init__(self, address: str, until: float) -> None:
        super().__init__()
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.until = until
        self.pages = 0

    def run(self) -> None:
        for report in make_reports(10_000, split="validation", seed=2):
            if time.perf_counter() > self.until:
                return
            status, job = post(self.connection, f"/api/uploads?name={report.name}.pdf", draw_report(report))
            if status != 202:
                sys.exit(f"an upload was refused: {status} {job}")
            while job["state"] not in ("done", "failed"):
                time.sleep(0.05)
                self.connection.request("GET", f"/api/uploads/{job['id']}")
                job = json.load(self.connection.getresponse())
            self.pages += job["num_pages"]


def post(connection: http.client.HTTPConnection, path: str, body: str | bytes) -> tuple[int, Any]:
    """Send a request and return the status and what came back."""
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.load(answer)


@contextmanager
def serving(library: Path) -> Iterator[tuple[str, int]]:
    """Serve a library in a process, yield its address and id, and tell it to stop in the end."""
    command = [sys.executable, "-m", "randslot", "serve", "-l", str(library), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = re.search(r"http://(\S+)", process.stdout.readline())
            if said is None:
                sys.exit("the service did not start")
            yield said[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
    if process.returncode:
        sys.exit(f"the service ended with {process.returncode}")


def cpu_seconds(pid: int) -> float:
    """Return how long a process has computed."""
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def measure(what: str, service: tuple[str, int], questions: list[str], clients: int, seconds: float) -> dict[str, Any]:
    """Let clients search for some time, and return a row."""
    address, pid = service
    start, computed = time.perf_counter(), cpu_seconds(pid)
    until = start + seconds
    visitors = [
        Visitor(address, itertools.islice(itertools.cycle(questions), number, None), until) for number in range(clients)
    ]
    uploader = Uploader(address, until) if "uploads" in what else None
    for thread in (*visitors, *([uploader] if uploader else [])):
        thread.start()
    for visitor in visitors:
        visitor.join()
    passed = time.perf_counter() - start
    if uploader:
        uploader.join()
    errors: list[str] = []
    took: list[float] = []  # milliseconds of each search
    for visitor in visitors:
        errors += visitor.errors
        took += [1000 * seconds for seconds in visitor.seconds]
    if errors:
        sys.exit(f"{len(errors)} of {clients} clients met an error: {errors[0]}")
    return {
        "what": what,
        "clients": clients,
        "seconds": round(passed),
        "searches": len(took),
        "errors": len(errors),
        "searches a second": len(took) / passed,
        "p50 ms": statistics.median(took),
        "p95 ms": statistics.quantiles(took, n=20)[-1],
        "CPU ms": 1000 * (cpu_seconds(pid) - computed) / len(took),
        "pages indexed": uploader.pages if uploader else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--reports", type=int, default=40, help="of three pages, in the library")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of the service
    reports = list(make_reports(options.reports, split="test", seed=2))
    questions = [asked.question.text for asked in ask_all(reports)]
    with tempfile.TemporaryDirectory() as folder:
        for report in reports:
            (Path(folder) / f"{report.name}.pdf").write_bytes(draw_report(report))
        with randslot.Library(Path(folder) / "library", "embedded") as library:
            library.add(folder)
            print(f"{len(library)} pages, {len(questions)} questions")
        with serving(Path(folder) / "library") as service:
            rows = [
                measure("one client", service, questions, 1, options.seconds / 6),
                measure("searches", service, questions, options.clients, options.seconds),
                measure("searches during uploads", service, questions, options.clients, options.seconds / 2),
            ]
    print_table(rows)
    keep("serve", rows)


if __name__ == "__main__":
    main()
