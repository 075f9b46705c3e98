"""Code of a model folder runs only if its user says so, and pickles never do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from randslot.errors import RandSlotError, UsageError
from randslot.model import EmbeddingModel, open_model
from randslot.model.hub import Source
from randslot.model.sentence_loading import hash_code, is_code_trusted, list_code, staged
from support import others

CODE = """
from pathlib import Path
from sentence_transformers.base.modules import Normalize
Path({marker!r}).write_text("ran")
class Unit(Normalize):
    pass
"""


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def with_code(tmp_path: Path) -> Path:
    """A model one of whose modules is a class in a Python file of its own."""
    folder = others.save_minilm(tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1]["type"] = "custom.Unit"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "custom.py").write_text(CODE.format(marker=str(tmp_path / "marker")))
    return folder


def test_code_does_not_run_unless_it_is_trusted(with_code: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"runs code of its own \(custom.py\): .* --trust-remote-code"):
        open_model(str(with_code))
    assert not (tmp_path / "marker").exists()
    model = open_model(str(with_code), trust_remote_code=True)
    assert (tmp_path / "marker").exists()
    assert model.identity.settings["trust_remote_code"] is True
    assert is_code_trusted(model.identity.settings["code"])


def test_code_in_a_configuration_does_not_run_either(tmp_path: Path) -> None:
    folder = others.save_minilm(tmp_path / "model")
    others.change(folder, "config.json", model_type="strange", auto_map={"AutoConfig": "custom.C", "AutoModel": "m.M"})
    (folder / "custom.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    with pytest.raises(UsageError, match="runs code of its own"):
        open_model(str(folder))
    assert not (tmp_path / "marker").exists()


def test_only_the_code_that_was_trusted_is_known(with_code: Path, tmp_path: Path) -> None:
    code = hash_code(list_code(Source(None, None, with_code)))
    assert isinstance(open_model(str(with_code), known_code=code), EmbeddingModel)
    (with_code / "custom.py").write_text(CODE.format(marker=str(tmp_path / "second")))
    with pytest.raises(UsageError, match="runs code of its own"):
        open_model(str(with_code), known_code=code)
    assert not (tmp_path / "second").exists()


def test_a_model_without_code_needs_no_trust_and_keeps_none(tmp_path: Path) -> None:
    model = open_model(str(others.save_minilm(tmp_path / "model")), trust_remote_code=True)
    assert model.identity.settings["trust_remote_code"] is False


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = others.save_minilm(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(RandSlotError, match=r"has its weights in pytorch_model.bin, a pickle, which can run code"):
        open_model(str(folder))


def test_a_pickle_beside_other_weights_is_not_seen(tmp_path: Path) -> None:
    inner = tmp_path / "model-inner"
    folder = others.save_colbert(tmp_path / "model")
    shutil.rmtree(inner)
    (folder / "1_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": torch.zeros(16, 32)}, folder / "1_Dense" / "pytorch_model.bin")
    with pytest.raises(RandSlotError, match=r"cannot load .*model: [^\n]+$"):
        open_model(str(folder))


def test_a_loader_sees_only_what_a_model_is_made_of(with_code: Path) -> None:
    (with_code / "weights.bin").write_bytes(b"x")
    (with_code / ".git").mkdir()
    (with_code / ".git" / "config.json").write_text("{}")
    for code in (False, True):
        with staged(Source("model", None, with_code), None, code=code) as folder:
            names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert {"config.json", "modules.json", "model.safetensors"} <= names
        assert not any(name.endswith(".bin") or name.startswith(".git") for name in names)
        assert ("custom.py" in names) is code


def test_code_on_the_hub_is_not_even_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[list[str]] = []

    def fetch(name: str, *, allow_patterns: list[str], **options: object) -> str:
        fetched.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("randslot.model.hub.ask_hub", lambda *args: ("a" * 40, None))
    monkeypatch.setattr("randslot.model.hub.snapshot_download", fetch)
    for options in ({}, {"trust_remote_code": True}):
        with pytest.raises(RandSlotError, match="no model in owner/model"):
            open_model("owner/model", **options)
    assert "*.py" not in fetched[0]
    assert "*.py" in fetched[1]
    assert not any(pattern in some for some in fetched for pattern in ("*.bin", "*.pt", "*"))
