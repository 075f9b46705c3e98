"""How long people wait: for everyday commands, for the service to start, for its page, and among 50 others.

    python benchmarks/feel.py                                  # the handbook; about five minutes
    python benchmarks/feel.py --documents data/manuals/dev/pages --queries "restore a backup" "tape drive"

Words are searched in a library of the documents, vectors in one of 20 sample reports with the embedded model. Each time
is the median of five, after one that does not count. A command is a new process each time, but its files are in the
system's cache. "CPU s" is of the command; in rows about the service, of the service. "load" is that of the machine in
the minute before: with more than its cores have to do, "wall s" says more about the others than about the program.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
from playwright.sync_api import Browser, sync_playwright
from record import keep, print_table, time_command

import randslot
from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from research.samples.sets import ask_all
from serve import cpu_seconds, post, serving
from words import check_found, find_heavy, list_imports

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "randslot"
REPEATS = 5
CLIENTS, SEARCHES, SECONDS = 50, 10, 60.0  # of each client, and the longest that all may take
HEAVY = (
    *("torch", "transformers", "sentence_transformers", "sklearn", "scipy", "pandas", "pyarrow", "sympy", "peft"),
    *("datasets", "accelerate", "torchvision", "matplotlib", "onnxruntime", "cv2"),
)


@dataclass(frozen=True)
class Kind:
    """A way to search, a library for it, and what is asked."""

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
    """Time commands from the shell, with nobody else at the library and then with a service that has it open."""
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
    """Time from opening the address of a search in a browser with nothing in its cache to the first hit in sight."""
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
    """Return a row like those of commands; the first time does not count."""
    times = {"wall s": statistics.median(wall[1:]), "best wall s": min(wall[1:]), "CPU s": statistics.median(cpu[1:])}
    return {"what": what} | times | {"load": os.getloadavg()[0]}


def ask(connection: http.client.HTTPConnection, kind: Kind, query: str) -> None:
    """Search through the API, and stop if nothing is found: its time would say nothing."""
    status, answer = post(connection, "/api/search", json.dumps({"query": query, "by": kind.by}))
    if status != 200 or not answer["hits"]:
        raise RuntimeError(f"{query!r}: {status} {answer}")


def measure_clients(kind: Kind) -> dict[str, Any]:
    """Let clients search at once, each some times, and return how long a search took."""
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


def measure_all(words: Kind, vectors: Kind, chromium: str) -> Iterator[dict[str, Any]]:
    """Measure one thing after the other."""
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
        yield {"search from the shell by": kind.by, "heavy packages it imports": find_heavy(kind.search(), HEAVY)}
    for row in list_imports(vectors.search()):
        yield {"by vectors, imports of": row["package"], "own ms": row["own ms of its imports"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=PACKAGE / "handbook.pdf", help="a PDF, or a folder of them")
    parser.add_argument("--queries", nargs="+", help="about them; by default those that come with the handbook")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of commands and services
    asked = json.loads((PACKAGE / "handbook.json").read_text(encoding="utf-8"))
    queries = options.queries or [one["question"] for one in asked]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        words = make_words(options.documents.resolve(), queries, Path(folder))
        for row in measure_all(words, make_vectors(Path(folder)), chromium):
            print(row, flush=True)
            rows.append(row)
    for kind in dict.fromkeys(tuple(row) for row in rows):
        print_table([row for row in rows if tuple(row) == kind])
        print()
    keep("feel", rows)


if __name__ == "__main__":
    main()
