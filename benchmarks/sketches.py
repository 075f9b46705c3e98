"""Searching by sketches beside comparing all pages, as a library does both: in a folder and on a server.

python benchmarks/sketches.py --folder FOLDER --to folder --pages 10000 100000 1000000
python benchmarks/sketches.py --folder FOLDER --to server --pages 10000 100000 1000000

FOLDER has the fit that benchmarks/growth.py makes: pages are drawn from it, sketches are fitted to lines of real pages,
and recall is measured on other, real questions, against an exact search of the same store. Times are those of the
processor, one thread. What is in results/sketches.json already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from growth import FILE_PAGES, FILTERS, Floats, make_source
from loading import HITS, Target, load, memory_of, open_target, settle
from record import RESULTS, keep, print_table
from scale import cpu_of

from randslot.library.results import Progress
from randslot.library.sketches import LibrarySketches
from randslot.library.stores.store import StoreQuery, Where

SEARCHES = 100
SHOWN = (
    "where",
    "vectors",
    "pages",
    "candidates",
    "recall@5",
    "CPU ms",
    "CPU ms of all pages",
    "recall@5, a tenth of the files",
    "CPU ms, a tenth of the files",
    "CPU ms of all pages, a tenth of the files",
    "CPU ms a page to sketch",
    "MB on disk",
)


def run_one(arguments: argparse.Namespace) -> dict[str, Any]:
    """Load pages, give them sketches, and search in both ways."""
    source = make_source(arguments)
    (pages,) = arguments.pages
    queries = source.queries()[:SEARCHES]
    with open_target(arguments.to, arguments.folder.resolve(), arguments.dim) as target:
        load(source, target, pages, say)
        settle(target)
        scan = search_all(target, queries, pages, exact=False)
        exact = scan if not has_codes(arguments.dim) else search_all(target, queries, pages, exact=True)
        begun, there = time.process_time(), cpu_of(target.pid) if target.pid else 0.0
        made = make_sketches(target, source.lines())
        cpu = time.process_time() - begun + (cpu_of(target.pid) - there if target.pid else 0.0)
        found = search_all(target, queries, pages, exact=False)
        row: dict[str, Any] = {
            "where": f"a {arguments.to}",
            "vectors": f"{arguments.like}, 4 x {arguments.dim}",
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
        row["MB on disk"] = disk_of(arguments.folder)
        row["MB in memory"] = memory_of(target.pid or "self")
        row["load of the machine"] = os.getloadavg()[0]
        return row


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def has_codes(dim: int) -> bool:
    from randslot.library.stores.store import DEFAULT_TUNING

    return DEFAULT_TUNING.has_codes(dim)


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
    """Return what is found with each filter, and the mean time of the processor of a search."""
    answers = {}
    for name, every in FILTERS.items():
        where = Where()
        if every > 1:
            files = range(0, pages // FILE_PAGES, every)
            where = Where(files=frozenset(str(uuid.UUID(int=number + 1)) for number in files))
        found, seconds = [], []
        for query in [queries[0], *queries]:  # the first one reads from the disk
            begun = cpu_of(target.pid) if target.pid else time.process_time()
            (hits,) = target.store.search([StoreQuery(np.asarray(query))], HITS, where, exact)
            seconds.append((cpu_of(target.pid) if target.pid else time.process_time()) - begun)
            found.append({hit.id for hit in hits})
        answers[name] = found[1:], 1000 * statistics.mean(seconds[1:])
    return answers


def recall(found: list[set[str]], right: list[set[str]]) -> float:
    return sum(len(a & b) for a, b in zip(found, right, strict=True)) / sum(len(b) for b in right)


def disk_of(folder: Path) -> float:
    """Return the MB of what is being loaded, without logs."""
    size = 0
    for place in folder.glob("loading-*"):
        for file in place.rglob("*"):
            if file.is_file() and "wal" not in file.parts:
                size += file.stat().st_blocks * 512
    return size / 1e6


def shorten(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the docs show of the rows."""
    return [{name: row[name] for name in SHOWN} for row in rows]


def fit_exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return by which power of the pages the times of both ways grow."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["where"], row["vectors"]), []).append(row)
    fitted = []
    for (where, vectors), group in groups.items():
        if len(group) > 1:
            sizes = [np.log(int(row["pages"].replace(",", ""))) for row in group]
            made: dict[str, Any] = {"where": where, "vectors": vectors}
            for name, what in (("CPU ms", "sketches"), ("CPU ms of all pages", "all pages")):
                times = [np.log(row[name]) for row in group]
                made[f"{what}: time grows by a power of"] = float(np.polyfit(sizes, times, 1)[0])
            fitted.append(made)
    return fitted


def read_rows() -> list[dict[str, Any]]:
    file = RESULTS / "sketches.json"
    return list(json.loads(file.read_text())["rows"]) if file.exists() else []


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["where"], row["vectors"], row["pages"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--like", default="reports")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--to", choices=("folder", "server"), required=True)
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--one", action="store_true", help="one number of pages, in this process; prints its row")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_one(arguments)))
        return
    for pages in arguments.pages:
        key = (f"a {arguments.to}", f"{arguments.like}, 4 x {arguments.dim}", f"{pages:,}")
        if key in map(key_of, read_rows()):
            continue
        for left in arguments.folder.glob("loading-*"):  # of a run that was killed
            shutil.rmtree(left)
        words = ["--folder", str(arguments.folder), "--like", arguments.like, "--dim", str(arguments.dim)]
        command = [sys.executable, __file__, *words, "--to", arguments.to, "--pages", str(pages), "--one"]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(answer.stdout)
        print_table([row])
        keep("sketches", sorted([*read_rows(), row], key=lambda one: (one["where"], one["vectors"], len(one["pages"]))))


if __name__ == "__main__":
    main()
