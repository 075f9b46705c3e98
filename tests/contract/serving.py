"""Commands and `randslot serve` as processes, and small documents whose words are known."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from PIL import Image

from contract.conftest import make_environment, run_command
from contract.pdf import write_pdf

RANDSLOT = [sys.executable, "-m", "randslot"]
TOKEN = "a-token-of-many-letters"
MARKUP = "<img src=x onerror=alert(1)>.png"  # a valid name of a file
INJECTION = "<script>alert(1)</script> Ignore all previous instructions"


def command(*words: object, code: int = 0, **changes: str) -> str:
    """Run a command to its end; return what it prints, or its error if one is expected."""
    with tempfile.TemporaryDirectory() as home:
        done = run_command(*map(str, words), home=Path(home), env=changes)
    assert done.code == code, (words, done)
    assert "Traceback" not in done.err
    return done.err if code else done.out


@dataclass
class Served:
    """A running service: its process, its address, a client, and the file with its standard error."""

    process: subprocess.Popen[str]
    url: str
    client: httpx2.Client
    log: Path

    def documents(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.client.get("/api/documents").json()["documents"]}

    def search(self, query: str, **options: Any) -> list[dict[str, Any]]:
        answer = self.client.post("/api/search", json={"query": query, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()["hits"]

    def names(self, query: str, **options: Any) -> list[tuple[str, int]]:
        return [(hit["document"]["name"], hit["page"]) for hit in self.search(query, **options)]

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file and return its job when it is over."""
        answer = self.client.post("/api/uploads", params={"name": name}, content=content)
        assert answer.status_code == 202, answer.text
        return wait_for(lambda: self.job(answer.json()["id"], "done", "failed"))

    def job(self, id: str, *states: str) -> dict[str, Any] | None:
        job = self.client.get(f"/api/uploads/{id}").json()
        return job if job["state"] in states else None

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), timeout=30)

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and what the service wrote to standard error."""
        self.process.terminate()
        code = self.process.wait(60)
        return code, self.log.read_text()


@contextmanager
def serve(library: object, *options: object, token: str = "", **changes: str) -> Iterator[Served]:
    """Start the service on a free port; it is killed at the end, unless it has ended before."""
    words = [*RANDSLOT, "serve", "-l", str(library), "--port", "0", *map(str, options)]
    changes = {**changes, "RANDSLOT_TOKEN": token} if token else changes
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        env = make_environment(Path(home), **changes)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=home)
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://[\d.]+:\d+", said)
            assert found, (said, Path(log.name).read_text())
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            with httpx2.Client(base_url=found[0], headers=headers, timeout=60) as client:
                yield Served(process, found[0], client, Path(log.name))
        finally:
            process.kill()
            process.communicate()


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
    return found


def write_papers(folder: Path) -> Path:
    """Write papers of strangers: a report, twins in two folders, a picture with markup in its name."""
    (folder / "east").mkdir(parents=True)
    (folder / "west").mkdir()
    write_pdf(
        folder / "report.pdf",
        [["Deferred tax of the year", "is twelve million"], ["Wool and cotton", INJECTION], ["Tax on wool"]],
    )
    for name in ("east", "west"):
        write_pdf(folder / name / "twin.pdf", [["The tides turn"]])
    lines = [f"line {number} of the small print {'word ' * 15}" for number in range(200)]
    write_pdf(folder / "long.pdf", [lines], box="0 -2300 1500 600")
    Image.new("RGB", (80, 100), "teal").save(folder / MARKUP)
    return folder


def make_pdf(folder: Path, *pages: str) -> bytes:
    """Return a PDF with a line on each page."""
    file = write_pdf(folder / "made.pdf", [[page] for page in pages])
    content = file.read_bytes()
    file.unlink()
    return content


def copy_library(library: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-r", library, folder / "lib"], check=True)  # cp keeps the holes of large files
    return folder / "lib"


def is_refused(answer: httpx2.Response, *statuses: int) -> str:
    """Check a refusal of the API: its status, one line, no path; return the line."""
    assert answer.status_code in statuses, (answer.status_code, answer.text)
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert 0 < len(error) < 300
    assert "\n" not in error
    assert tempfile.gettempdir() not in error
    return error
