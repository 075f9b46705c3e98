"""`randslot doctor`: what it finds, what it advises, and that it is quick about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from randslot import doctor
from randslot.cli import app


@pytest.fixture(autouse=True)
def new_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("RANDSLOT_LIBRARY", raising=False)
    monkeypatch.delenv("RANDSLOT_OCR", raising=False)


def pretend(monkeypatch: pytest.MonkeyPatch, package: str, version: str | None) -> None:
    find = doctor.find_version
    monkeypatch.setattr(doctor, "find_version", lambda name: version if name == package else find(name))


def examine(*options: str, code: int = 0) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(app, ["doctor", "--json", *options])
    assert done.exit_code == code, done.output
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_findings_are_ok_or_have_advice():
    found = examine()
    assert found["python"]["state"] == found["packages"]["state"] == found["engine"]["state"] == "ok"
    assert "pypdfium2" in found["packages"]["found"]
    assert "transformers" in found["extra model"]["found"]
    for finding in found.values():
        assert finding["found"]
        assert (finding["state"] == "ok") == (finding["advice"] == ""), finding
    assert {"extra serve", "extra ocr", "ocr", "disk", "gpu", "library"} <= set(found)
    assert "extra dev" not in found


def test_a_missing_extra_is_optional_and_a_missing_package_is_an_error(monkeypatch):
    with monkeypatch.context() as here:
        pretend(here, "fastapi", None)
        found = examine()["extra serve"]
        assert (found["state"], found["found"]) == ("optional", "fastapi is not installed")
        assert 'pip install "randslot[serve]"' in found["advice"]
    pretend(monkeypatch, "pypdfium2", "1.0")
    found = examine(code=1)["packages"]
    assert found["state"] == "broken"
    assert "pypdfium2 is 1.0" in found["found"]


def test_an_engine_that_does_not_load_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    assert examine(code=1)["engine"]["state"] == "broken"


def test_a_wrong_choice_of_ocr_is_an_error(monkeypatch):
    monkeypatch.setenv("RANDSLOT_OCR", "typewriter")
    assert "typewriter" in examine(code=1)["ocr"]["found"]


@pytest.mark.parametrize(("build", "state"), [("2.13.0+cpu", "optional"), ("2.13.0+cu130", "ok")])
def test_a_gpu_needs_a_build_of_torch_that_uses_it(monkeypatch, tmp_path, build, state):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    pretend(monkeypatch, "torch", build)
    found = examine()["gpu"]
    assert found["state"] == state
    assert "NVIDIA H100" in found["found"]


def test_nothing_heavy_is_imported():
    code = (
        "import sys; sys.argv = ['randslot', 'doctor']\n"
        "from randslot.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'fastapi', 'ray', 'rapidocr'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
