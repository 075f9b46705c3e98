"""Measure latency: searches of the service under load, everyday commands, the service's start and page.

    python benchmarks/serve.py visitors     # one client, 50 for a minute, 50 during uploads: two minutes
    python benchmarks/serve.py questions    # the same by words on real PDFs, with SQLite FTS5: five minutes
    python benchmarks/serve.py waits        # commands, service and page with the handbook; about five minutes
    python benchmarks/serve.py waits --documents data/manuals/dev/pages --queries "restore a backup" "tape drive"

visitors: a separate process serves a library of sample pages with the embedded model. The clients are threads here, on
the same machine; each sends its next query after the last response. Any status but 200 fails the run. "CPU ms" is the
service's CPU time per search, including uploaded pages. Unlike the wall times, it does not depend on other load.

questions: natural questions about the manuals (data/manuals/dev), by words, ten hits with snippets. FTS5 has the same
texts, its own snippet() and bm25(), behind the same FastAPI and uvicorn; it searches for any word of a question, and
has no language detection, names, headings or typo correction.

waits: by words in a library of the documents, by vectors in one of 20 sample reports with the embedded model. Each time
is the median of five, after a warmup. A command is a new process each time, with a warm page cache. "CPU s" is of the
command, or of the service in rows about it. "load" is the machine's one-minute load average: above the number of cores,
"wall s" mostly measures other processes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import psutil
import torch
from fastapi import Body, FastAPI
from playwright.sync_api import Browser, sync_playwright
from record import ROOT, check_found, keep, list_heavy, list_imports, print_table, time_command

import randslot
from randslot.library.stores.points import page_id
from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from research.samples.sets import ask_all

PACKAGE = ROOT / "src" / "randslot"
REPEATS = 5
CLIENTS, SEARCHES, SECONDS = 50, 10, 60.0  # per client, and the timeout of all


def post(connection: http.client.HTTPConnection, path: str, body: str | bytes) -> tuple[int, Any]:
    """Send a request; return the status and body."""
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def serving(library: Path) -> AbstractContextManager[tuple[str, int]]:
    """Serve a library in a process."""
    return running([sys.executable, "-m", "randslot", "serve", "-l", str(library), "--port", "0"])


@contextmanager
def running(command: list[str]) -> Iterator[tuple[str, int]]:
    """Run a service, yield its address and process ID, and stop it at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = re.search(r"http://(\S+)", process.stdout.readline())
            if said is None:
                sys.exit("the service did not start")
            yield said[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
    if process.returncode not in (0, -signal.SIGTERM):
        sys.exit(f"the service ended with {process.returncode}")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


# -- visitors


class Visitor(threading.Thread):
    """Sends one query after the other until a deadline, and records latencies."""

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
    """Uploads 25 sample reports as fast as the service accepts them, and counts pages indexed until a deadline."""

    def __init__(self, address: str, until: float) -> None:
        super().__init__()
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.until = until
        self.pages = 0

    def run(self) -> None:
        for report in islice(make_reports(10_000, split="validation", seed=2), 25):
            content, status, job = draw_report(report), 429, None
            while status == 429 and time.perf_counter() < self.until:  # the queue is full
                status, job = post(self.connection, f"/api/uploads?name={report.name}.pdf", content)
                time.sleep(0.1)
            if status not in (202, 429):
                sys.exit(f"an upload was refused: {status} {job}")
        while time.perf_counter() < self.until:
            time.sleep(0.1)
        self.connection.close()  # idle for too long
        self.connection.request("GET", "/api/uploads")
        for job in json.load(self.connection.getresponse())["uploads"]:
            self.pages += job["pages_done"]


def measure_visitors(
    what: str, service: tuple[str, int], questions: list[str], clients: int, seconds: float
) -> dict[str, Any]:
    """Run clients for some seconds, and return a row."""
    address, pid = service
    start, computed = time.perf_counter(), cpu_seconds(pid)
    until = start + seconds
    visitors = [Visitor(address, islice(cycle(questions), number, None), until) for number in range(clients)]
    uploader = Uploader(address, until) if "uploads" in what else None
    for thread in (*visitors, *([uploader] if uploader else [])):
        thread.start()
    for visitor in visitors:
        visitor.join()
    passed = time.perf_counter() - start
    if uploader:
        uploader.join()
    errors: list[str] = []
    took: list[float] = []  # milliseconds per search
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
        "load": os.getloadavg()[0],
    }


def measure_service(clients: int, seconds: float, num_reports: int) -> list[dict[str, Any]]:
    """Measure the service with sample reports: one client, many, and many during uploads."""
    reports = list(make_reports(num_reports, split="test", seed=2))
    questions = [asked.question.text for asked in ask_all(reports)]
    with tempfile.TemporaryDirectory() as folder:
        for report in reports:
            (Path(folder) / f"{report.name}.pdf").write_bytes(draw_report(report))
        with randslot.Library(Path(folder) / "library", "embedded") as library:
            library.add(folder)
            print(f"{len(library)} pages, {len(questions)} questions")
        with serving(Path(folder) / "library") as service:
            return [
                measure_visitors("one client", service, questions, 1, seconds / 6),
                measure_visitors("searches", service, questions, clients, seconds),
                measure_visitors("searches during uploads", service, questions, clients, seconds / 2),
            ]


# -- questions, and the same pages in SQLite FTS5


def make_fts5(library: randslot.Library, file: Path) -> None:
    """Write the texts of a library into a table of FTS5."""
    with sqlite3.connect(file) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE pages USING fts5(name UNINDEXED, page UNINDEXED, text, tokenize=porter)"
        )
        for one in library.files():
            for number in range(1, one.num_pages + 1):
                text = library.read_text(page_id(one.id, number)).text
                connection.execute("INSERT INTO pages VALUES (?, ?, ?)", (Path(one.source).name, number, text))


def serve_fts5(file: str) -> None:
    """Serve an FTS5 table as a minimal service."""
    import uvicorn

    app, local = FastAPI(), threading.local()

    @app.post("/api/search")
    def search(query: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        if not hasattr(local, "connection"):
            local.connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        sql = (
            "SELECT name, page, bm25(pages), snippet(pages, 2, '<b>', '</b>', '...', 40) FROM pages WHERE pages MATCH ?"
        )
        rows = local.connection.execute(f"{sql} ORDER BY rank LIMIT 10", [words]).fetchall()
        keys = ("name", "page", "score", "snippet")
        return {"hits": [dict(zip(keys, row, strict=True)) for row in rows]}

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio would not set it on this socket
    print(f"serving at http://127.0.0.1:{listener.getsockname()[1]} ", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def measure_questions(folder: Path, clients: int, seconds: float) -> list[dict[str, Any]]:
    """Send natural questions about PDFs to our service, and to FTS5 behind the same server."""
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["query"] for line in lines]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        place, table = Path(temporary) / "library", Path(temporary) / "fts5.sqlite"
        with randslot.Library(place) as library:
            library.add(folder / "pages")
            print(f"{len(library)} pages, {len(questions)} questions")
            make_fts5(library, table)
        ours = [sys.executable, "-m", "randslot", "serve", "-l", str(place), "--port", "0"]
        theirs = [sys.executable, __file__, "fts5", "--table", str(table)]
        for name, command in (("randslot", ours), ("FTS5", theirs)):
            with running(command) as service:
                measure_visitors("", service, questions, 1, 2)  # warms up
                rows.append(measure_visitors(f"{name}, one client", service, questions, 1, seconds / 4))
                rows.append(measure_visitors(f"{name}, many", service, questions, clients, seconds))
                if name == "randslot":
                    what = f"{name}, many during 25 uploads"
                    rows.append(measure_visitors(what, service, questions, clients, seconds))
    return rows


# -- waits


@dataclass(frozen=True)
class Kind:
    """A way to search, its library and its queries."""

    by: str
    library: Path
    documents: Path
    queries: list[str]

    def search(self) -> list[str]:
        """Return the arguments of Python for a search from the shell."""
        return ["-m", "randslot", "search", self.queries[0], "-l", str(self.library), "--by", self.by]


def make_words(documents: Path, queries: list[str], folder: Path) -> Kind:
    """Index documents by their words."""
    with randslot.Library(folder / "words") as library:
        library.add(documents)
        print(f"words: {len(library)} pages")
    return Kind("words", folder / "words", documents, queries)


def make_vectors(folder: Path) -> Kind:
    """Index sample reports with the embedded model."""
    reports = list(make_reports(20, split="test", seed=2))
    documents = folder / "reports"
    documents.mkdir()
    for report in reports:
        (documents / f"{report.name}.pdf").write_bytes(draw_report(report))
    with randslot.Library(folder / "vectors", "embedded") as library:
        library.add(documents)
        print(f"vectors: {len(library)} pages")
    return Kind("vectors", folder / "vectors", documents, [asked.question.text for asked in ask_all(reports)])


def measure_commands(words: Kind, vectors: Kind) -> Iterator[dict[str, Any]]:
    """Time commands from the shell, without and then with a service that has the library open."""
    place = ["-l", str(words.library)]
    commands = {
        "--help": ["--help"],
        "library status": ["library", "status", *place],
        "library list": ["library", "list", *place],
        "index, nothing changed": ["index", str(words.documents), *place],
    }
    for what, command in commands.items():
        yield {"what": what} | time_command(["-m", "randslot", *command], REPEATS)
    for kind in (words, vectors):
        check_found(kind.search())
        yield {"what": f"search by {kind.by}"} | time_command(kind.search(), REPEATS)
    for kind in (words, vectors):
        with serving(kind.library):
            check_found(kind.search())
            yield {"what": f"search by {kind.by}, while it is served"} | time_command(kind.search(), REPEATS)


def measure_start(kind: Kind) -> dict[str, Any]:
    """Time from the start of the service to its first hit."""
    wall, cpu = [], []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        with serving(kind.library) as (address, pid):
            ask(http.client.HTTPConnection(address, timeout=SECONDS), kind, kind.queries[0])
            wall.append(time.perf_counter() - start)
            cpu.append(cpu_seconds(pid))
    return _describe(f"serve, until its first hit by {kind.by}", wall, cpu)


def measure_page(kind: Kind, browser: Browser) -> dict[str, Any]:
    """Time from opening the URL of a search in a browser with a cold cache to the first visible hit."""
    wall, cpu = [], []
    with serving(kind.library) as (address, pid):
        for query in islice(cycle(kind.queries), REPEATS + 1):
            with _new_page(browser) as page:
                before, start = cpu_seconds(pid), time.perf_counter()
                page.goto(f"http://{address}/?{urlencode({'q': query, 'by': kind.by})}", wait_until="commit")
                page.locator("#hits.found li").first.wait_for()
                wall.append(time.perf_counter() - start)
                cpu.append(cpu_seconds(pid) - before)
    return _describe(f"page, until the first hit by {kind.by}", wall, cpu)


@contextmanager
def _new_page(browser: Browser) -> Iterator[Any]:
    context = browser.new_context()
    try:
        yield context.new_page()
    finally:
        context.close()


def _describe(what: str, wall: list[float], cpu: list[float]) -> dict[str, Any]:
    """Return a row like those of commands, without the warmup."""
    times = {"wall s": statistics.median(wall[1:]), "best wall s": min(wall[1:]), "CPU s": statistics.median(cpu[1:])}
    return {"what": what} | times | {"load": os.getloadavg()[0]}


def ask(connection: http.client.HTTPConnection, kind: Kind, query: str) -> None:
    """Search through the API; exit if nothing is found, as its time would be meaningless."""
    status, answer = post(connection, "/api/search", json.dumps({"query": query, "by": kind.by}))
    if status != 200 or not answer["hits"]:
        raise RuntimeError(f"{query!r}: {status} {answer}")


def measure_clients(kind: Kind) -> dict[str, Any]:
    """Run concurrent clients, each with several searches; return the latency."""
    with serving(kind.library) as (address, pid):
        ask(http.client.HTTPConnection(address, timeout=SECONDS), kind, kind.queries[0])  # loads the model
        before, until = cpu_seconds(pid), time.perf_counter() + SECONDS

        def search_often(first: int) -> list[float]:
            connection = http.client.HTTPConnection(address, timeout=SECONDS)
            took: list[float] = []
            for query in islice(cycle(kind.queries), first, first + SEARCHES):
                start = time.perf_counter()
                if start > until:
                    break
                ask(connection, kind, query)
                took.append(1000 * (time.perf_counter() - start))
            connection.close()
            return took

        with ThreadPoolExecutor(CLIENTS) as threads:
            all_took = [one for took in threads.map(search_often, range(CLIENTS)) for one in took]
        computed = cpu_seconds(pid) - before
    return {
        f"{CLIENTS} clients at once, by": kind.by,
        "searches": len(all_took),
        "p50 ms": statistics.median(all_took),
        "p95 ms": statistics.quantiles(all_took, n=20)[-1],
        "CPU ms a search": 1000 * computed / len(all_took),
        "load": os.getloadavg()[0],
    }


def measure_waits(words: Kind, vectors: Kind, chromium: str) -> Iterator[dict[str, Any]]:
    """Measure commands, start, page and clients in turn."""
    yield from measure_commands(words, vectors)
    steps: list[Callable[[Kind], dict[str, Any]]] = [measure_start]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        steps += [lambda kind: measure_page(kind, browser), measure_clients]
        for step in steps:
            for kind in (words, vectors):
                yield step(kind)
        browser.close()
    for kind in (words, vectors):
        yield {"search from the shell by": kind.by, "heavy packages it imports": list_heavy(kind.search())}
    for row in list_imports(vectors.search()):
        yield {"by vectors, imports of": row["package"], "own ms": row["own ms of its imports"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["visitors", "questions", "waits", "fts5"])
    parser.add_argument("--manuals", type=Path, default=ROOT / "data" / "manuals" / "dev", help="pages and questions")
    parser.add_argument("--table", help="for fts5, which `questions` runs")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--reports", type=int, default=40, help="of three pages, in the library")
    parser.add_argument("--documents", type=Path, default=PACKAGE / "handbook.pdf", help="a PDF, or a folder of them")
    parser.add_argument("--queries", nargs="+", help="about them; default: the handbook's")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of commands and services
    if options.part == "fts5":
        serve_fts5(options.table)
        return
    if options.part == "questions":
        rows = measure_questions(options.manuals, options.clients, options.seconds / 2)
        print_table(rows)
        keep("serve-questions", rows)
        return
    if options.part == "visitors":
        rows = measure_service(options.clients, options.seconds, options.reports)
        print_table(rows)
        keep("serve", rows)
        return
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed. Run apt-get install chromium")
    asked = json.loads((PACKAGE / "handbook.json").read_text(encoding="utf-8"))
    queries = options.queries or [one["question"] for one in asked]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        words = make_words(options.documents.resolve(), queries, Path(folder))
        for row in measure_waits(words, make_vectors(Path(folder)), chromium):
            print(row, flush=True)
            rows.append(row)
    print_table(rows)
    keep("feel", rows)


if __name__ == "__main__":
    main()
