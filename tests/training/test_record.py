"""What the record of a run says about the code that made it."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

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


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A folder in place of the hub: what was sent to it."""
    place = tmp_path / "hub"

    class Hub:
        def __init__(self, **options: object) -> None:
            pass

        def create_repo(self, repo_id: str, **options: object) -> SimpleNamespace:
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, folder_path: str, **options: object) -> SimpleNamespace:
            shutil.copytree(folder_path, place, dirs_exist_ok=True)
            return SimpleNamespace(commit_url="sent")

    monkeypatch.setattr("sentence_transformers.base.model.HfApi", Hub)
    monkeypatch.setattr("sentence_transformers.base.model.load_file_path", lambda *args, **options: None)
    return place


@pytest.mark.parametrize("loaded", [False, True], ids=["trained", "loaded"])
def test_a_pushed_model_has_its_recipe_its_record_and_its_line_on_training(loaded, data, hub, tmp_path):
    model = randslot.train(small(data, tmp_path / "run", steps=1))
    if loaded:
        model = randslot.load(tmp_path / "run")
    assert model.push_to_hub("me/mine") == "sent"
    for name in ("recipe.toml", "run.json"):
        assert (hub / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    line = json.loads((hub / "run.json").read_text())["trained_on"]
    assert line.startswith("1 steps of 4 pairs out of 8 from ")
    assert line in (hub / "README.md").read_text()
    again = randslot.load(hub)
    again.save_pretrained(str(tmp_path / "copy"))
    assert line in (tmp_path / "copy" / "README.md").read_text()


def test_a_run_that_starts_from_a_trained_model_has_its_own_record(data, tmp_path):
    randslot.train(small(data, tmp_path / "first", steps=1))
    second = small(data, tmp_path / "second", untrained="", backbone=str(tmp_path / "first"), steps=2, save_every=1)
    randslot.train(second)
    assert json.loads((tmp_path / "second" / "run.json").read_text())["steps"] == 2
    assert "steps = 2" in (tmp_path / "second" / "recipe.toml").read_text()
    (checkpoint,) = (tmp_path / "second" / "checkpoints").iterdir()
    assert not (checkpoint / "run.json").exists()
