"""The command line as users meet it: real processes, real PDFs, folders of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import randslot
from contract.pdf import write_pdf

# source -> its pages -> their lines
PAPERS = {
    "report.pdf": [
        ["Annual report 2023", "Deferred tax assets rose to 1,234.56 million in the year."],
        ["Invoice INV-20931 was paid in March.", "The income tax of this draft is deferred."],
        ["The volumes of wool grew in every region.", "See section 4.2.1 for the sales of wool."],
    ],
    "fleet.pdf": [
        ["The fleet has seven ships.", "Battery life is eleven hours at sea."],
        ["Terms and conditions apply to every copy of this page."],
    ],
    "below/manual.pdf": [
        ["Press the red button to restart the printer.", "Battery life is two days; the light is green."],
        ["Terms and conditions apply to every copy of this page."],
        ["Readonly mode: write an email to the owner."],
    ],
    "brief.pdf": [
        [
            "Sehr geehrte Damen und Herren, wir haben das Schreiben",
            "von Ihnen erhalten und danken daf\u00fcr. Die Rechnungen liegen",
            "bei und sind noch nicht bezahlt. Wir bitten Sie, dass",
            "der Betrag auf das Konto der Firma \u00fcberwiesen wird.",
            "Mit freundlichen Gr\u00fc\u00dfen, die Verwaltung der H\u00e4user.",
        ],
    ],
}


@dataclass
class Answer:
    """What a command printed, and its exit code."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def make_environment(home: Path, **more: str) -> dict[str, str]:
    """Make the environment of a command: a home of its own, no hub, no OCR, no colours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANDSLOT_", "XDG_", "HF_"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(Path(randslot.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "HF_HUB_OFFLINE": "1",
        "RANDSLOT_OCR": "none",
        "RANDSLOT_OFFICE": "none",
        "NO_COLOR": "1",
        "COLUMNS": "240",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def run_command(
    *words: str | Path, home: Path, stdin: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Answer:
    """Run `randslot words...` in a process, without a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "randslot", *map(str, words)],
        input=stdin or "",
        env=make_environment(home, **(env or {})),
        cwd=cwd or home,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Answer(done.stdout, done.stderr, done.returncode)


def write_papers(folder: Path) -> Path:
    """Write a folder of small PDFs: PAPERS."""
    for name, pages in PAPERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_pdf(folder / name, pages)
    return folder


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder of this test's own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def run(tmp_path: Path, home: Path) -> Callable[..., Answer]:
    """Run a command in tmp_path: run("search", "tax", "-l", lib, stdin=..., env={...}, cwd=...)."""

    def call(*words: str | Path, stdin: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None):
        return run_command(*words, home=home, stdin=stdin, env=env, cwd=cwd or tmp_path)

    return call


@pytest.fixture
def start(tmp_path: Path, home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command that goes on, such as serve; killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def call(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, **options: Any):
        command = [sys.executable, "-m", "randslot", *map(str, words)]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        environment = make_environment(home, **(env or {}))
        started.append(subprocess.Popen(command, env=environment, cwd=cwd or tmp_path, text=True, **options))
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def papers_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small PDFs; read it, never change it."""
    return write_papers(tmp_path_factory.mktemp("shared") / "papers")


@pytest.fixture(scope="session")
def library_once(papers_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of papers_once by words; read it, never change it."""
    place = papers_once.parent / "lib"
    answer = run_command("index", papers_once, "-l", place, "--quiet", home=tmp_path_factory.mktemp("home"))
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    return place


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """A folder of small PDFs that a test may change, below its working folder."""
    return write_papers(tmp_path / "papers")


@pytest.fixture
def library(library_once: Path, tmp_path: Path) -> Path:
    """A copy of the library of papers_once that a test may change: lib, below its working folder."""
    subprocess.run(["cp", "-r", library_once, tmp_path / "lib"], check=True)  # cp keeps the holes of large files
    return tmp_path / "lib"
