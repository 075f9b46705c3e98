"""Soak-test the service: random uploads, searches, removals, kills and restarts, then a consistency check.

    python -m research.experiments.soak --minutes 60
    python -m research.experiments.soak --minutes 1 --seed 3

Every page of every upload has a unique word. Once the queue is empty, an acknowledged upload must be found by its words
exactly once, with all its pages; a removed one must not be found. During the run, any status but 200, 202, 204, 404 and
429 is an error, and so is a page found by a wrong word. Connections cut by a kill are counted and retried. The command
fails if anything was lost, duplicated or wrong.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
from record import keep, print_table
from reportlab.pdfgen.canvas import Canvas

FINE = (200, 202, 204, 404, 429)


def draw(name: str, num_pages: int) -> bytes:
    """Return a PDF whose pages have a unique word each, and shared words."""
    content = BytesIO()
    canvas = Canvas(content)
    for page in range(1, num_pages + 1):
        canvas.drawString(72, 700, f"{name}x{page} is the word of this page of a report on wool and water")
        canvas.showPage()
    canvas.save()
    return content.getvalue()


class Soak:
    """A service to use, kill and restart. kept: uploads by name, with their pages; None: removed."""

    def __init__(self, folder: Path, seed: int, until: float) -> None:
        self.folder, self.until, self.dice = folder, until, random.Random(seed)
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.kept: dict[str, int | None] = {}
        self.seconds: list[float] = []
        self.memory: list[int] = []  # memory of the service in bytes, at the end of each run
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "randslot", "serve", "-l", str(self.folder), "--new", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = re.search(r"http://(\S+)", self.process.stdout.readline())
        assert said is not None, "the service did not start"
        self.address = said[1]

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Send a request; status 0 if a kill cut it off."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            kind = "application/pdf" if "uploads" in path else "application/json"
            connection.request(method, path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self.counts["cut off"] += 1
            return 0, None
        finally:
            connection.close()
        if answer.status not in FINE:
            self.errors.append(f"{method} {path}: {answer.status} {content[:200]!r}")
        return answer.status, json.loads(content) if content else None

    def find(self, word: str) -> list[tuple[str, int]]:
        """Return names and pages that a word finds."""
        start = time.perf_counter()
        status, answer = self.ask("POST", "/api/search", json.dumps({"query": f'"{word}"'}).encode())
        if status != 200:
            return []
        self.counts["searches"] += 1
        self.seconds.append(time.perf_counter() - start)
        return [(hit["document"]["name"], hit["page"]) for hit in answer["hits"]]

    def upload(self) -> None:
        """Upload documents, and remove one now and then."""
        dice = random.Random(self.dice.random())
        number = 0
        while time.monotonic() < self.until:
            number += 1
            name, num_pages = f"report{number}", dice.choice([1, 2, 3, 30])
            content, status = draw(name, num_pages), 429
            while status in (0, 429) and time.monotonic() < self.until:  # the same file again is the same document
                status, _ = self.ask("POST", f"/api/uploads?name={name}.pdf", content)
                time.sleep(0.5)
            if status == 202:
                self.kept[name] = num_pages
                self.counts["uploads"] += 1
            if dice.random() < 0.1:
                self.remove(dice)
            time.sleep(dice.uniform(0, 2))

    def remove(self, dice: random.Random) -> None:
        status, answer = self.ask("GET", "/api/documents?limit=1000")
        if status != 200 or not answer["documents"]:
            return
        chosen = dice.choice(answer["documents"])
        status, _ = self.ask("DELETE", f"/api/documents/{chosen['id']}")
        if status == 0:  # unknown whether it was removed
            self.kept.pop(Path(chosen["name"]).stem, None)
        if status == 204:
            self.kept[Path(chosen["name"]).stem] = None
            self.counts["removals"] += 1

    def search(self, seed: float) -> None:
        """Search for words of pages, and check the hits."""
        dice = random.Random(seed)
        while time.monotonic() < self.until:
            names = [name for name, pages in list(self.kept.items()) if pages]
            if names:
                name = dice.choice(names)
                page = dice.randint(1, self.kept.get(name) or 1)
                found = self.find(f"{name}x{page}")
                if found and found != [(f"{name}.pdf", page)]:
                    self.errors.append(f"{name}x{page} finds {found}")
            time.sleep(dice.uniform(0, 0.3))

    def kill(self) -> None:
        """Kill or stop the service at random times, and restart it."""
        dice = random.Random(self.dice.random())
        while time.monotonic() < self.until:
            time.sleep(min(dice.uniform(5, 60), max(self.until - time.monotonic(), 0)))
            how = dice.choice([signal.SIGKILL, signal.SIGTERM])
            self.memory.append(psutil.Process(self.process.pid).memory_info().rss)
            start = time.monotonic()
            self.process.send_signal(how)
            self.process.wait(30)
            if how == signal.SIGTERM and time.monotonic() - start > 10:
                self.errors.append(f"the service took {time.monotonic() - start:.0f} s to end")
            self.counts[how.name] += 1
            self.start()

    def run(self) -> None:
        """Run everything concurrently, until the deadline."""

        def work(do: Callable[[], None]) -> None:
            try:
                do()
            except Exception:  # else a thread could fail silently, and the check would be empty
                self.errors.append(traceback.format_exc())

        works = [self.upload, self.kill, *[lambda: self.search(self.dice.random())] * 3]
        threads = [threading.Thread(target=work, args=[do]) for do in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def check(self) -> list[str]:
        """Wait until the queue is empty, and return what is lost, duplicated or wrong."""
        if self.process.poll() is not None:
            return [*self.errors, f"the service exited unexpectedly: {self.process.returncode}"]
        num_waiting, deadline = 1, time.monotonic() + 600
        while num_waiting and time.monotonic() < deadline:
            status, answer = self.ask("GET", "/api/status")
            num_waiting = answer["uploads_waiting"] if status == 200 else 1
            print(f"{num_waiting} uploads are waiting", file=sys.stderr, flush=True)
            time.sleep(1)
        problems = list(self.errors)
        for number, (name, pages) in enumerate(self.kept.items()):
            if number % 50 == 0:
                print(f"checked {number} of {len(self.kept)} uploads", file=sys.stderr, flush=True)
            for page in range(1, (pages or 1) + 1):
                wanted = [(f"{name}.pdf", page)] if pages else []
                if (found := self.find(f"{name}x{page}")) != wanted:
                    problems.append(f"{name}x{page} finds {found} instead of {wanted}")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        verify = [sys.executable, "-m", "randslot", "library", "verify", "-l", str(self.folder)]
        done = subprocess.run(verify, capture_output=True, text=True)
        return problems if done.returncode == 0 else [*problems, done.stdout + done.stderr]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "library", options.seed, time.monotonic() + 60 * options.minutes)
        soak.run()
        asked = sorted(soak.seconds)
        problems = soak.check()
    row = {
        "minutes": options.minutes,
        "seed": options.seed,
        **{name: soak.counts[name] for name in ("uploads", "removals", "searches", "SIGKILL", "SIGTERM", "cut off")},
        "search p50 ms": 1000 * asked[len(asked) // 2],
        "search p95 ms": 1000 * asked[int(0.95 * len(asked))],
        "most MB of the service": max(soak.memory, default=0) / 1e6,
        "lost, doubled or wrong": len(problems),
    }
    print_table([row])
    if problems:
        sys.exit("\n".join(problems[:20]))
    keep("soak", [row])


if __name__ == "__main__":
    main()
