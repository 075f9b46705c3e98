"""What the record of a run says about the code that made it."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import randslot
from randslot.machine import describe_checkout
from support.pairs import small


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that holds a package."""
    package = tmp_path / "checkout" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(tmp_path / "checkout", "init", "-q")
    git(tmp_path / "checkout", "add", ".")
    git(tmp_path / "checkout", "commit", "-qm", "first")
    return package


def test_a_checkout_is_recorded_with_its_commit_and_whether_it_is_changed(checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commit = git(checkout, "rev-parse", "HEAD")
    assert describe_checkout(checkout) == {"commit": commit, "changed": False}
    (checkout.parent.parent / "notes.txt").write_text("not of the package")
    assert describe_checkout(checkout) == {"commit": commit, "changed": False}
    (checkout / "slots.py").write_text("x = 1")
    assert describe_checkout(checkout) == {"commit": commit, "changed": True}


def test_an_installed_package_has_no_commit_wherever_it_lies(checkout, tmp_path):
    inside = checkout / ".venv" / "package"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    outside = tmp_path / "installed"
    outside.mkdir()
    for package in (inside, outside):
        assert describe_checkout(package) == {"commit": None, "changed": None}


def test_a_run_records_the_package_and_not_the_current_directory(data, checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(checkout)
    randslot.train(small(data, tmp_path / "run", steps=1))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["versions"]["randslot"] == metadata.version("randslot")
    assert record["commit"] != git(checkout, "rev-parse", "HEAD")
    assert {name: record[name] for name in ("commit", "changed")} == describe_checkout()
