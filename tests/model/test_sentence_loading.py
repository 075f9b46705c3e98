"""What a folder of model files is, one line for what cannot run; code runs only if trusted, and pickles never do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model import EmbeddingModel, RandSlotModel, open_model
from randslot.model.hub import Source
from randslot.model.own_code import is_code_trusted
from randslot.model.sentence_model import find_kind
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


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return others.save_minilm(tmp_path_factory.mktemp("kinds") / "minilm")


@pytest.fixture
def copied(minilm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(minilm, tmp_path / "model"))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that exists if foreign code ran."""
    return tmp_path / "marker"


@pytest.fixture
def with_code(copied: Path, marker: Path) -> Path:
    """A model one of whose modules is a class in a Python file of its own."""
    modules = json.loads((copied / "modules.json").read_text())
    modules[-1]["type"] = "custom.Unit"
    (copied / "modules.json").write_text(json.dumps(modules))
    (copied / "custom.py").write_text(CODE.format(marker=str(marker)))
    return copied


def kind_of(folder: Path) -> str:
    return find_kind(Source(str(folder), None, folder))


def write_config(folder: Path, **values: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


# -- kinds


def test_folders_are_known_by_their_files(minilm: Path, tmp_path: Path) -> None:
    assert kind_of(minilm) == "one-vector"
    assert kind_of(others.save_colbert(tmp_path / "colbert")) == "multi-vector"
    assert kind_of(write_config(tmp_path / "col", architectures=["ColPaliForRetrieval"])) == "multi-vector"
    assert kind_of(write_config(tmp_path / "stanford", architectures=["HF_ColBERT"])) == "multi-vector"
    assert kind_of(write_config(tmp_path / "backbone", model_type="qwen3_vl")) == "backbone"
    randslot.tiny("qwen3-vl").save_pretrained(str(tmp_path / "ours"))
    assert kind_of(tmp_path / "ours") == "randslot"
    assert isinstance(open_model(str(tmp_path / "ours")), RandSlotModel)


def test_the_type_of_a_sentence_transformers_folder(copied: Path) -> None:
    config = copied / "config_sentence_transformers.json"
    config.write_text('{"query_prefix": "[Q] ", "query_length": 32}')  # as PyLate writes it
    assert kind_of(copied) == "multi-vector"
    config.write_text('{"model_type": "CrossEncoder"}')
    with pytest.raises(RandSlotError, match="is a CrossEncoder, which makes no vectors"):
        open_model(str(copied))


def test_an_adapter_needs_a_retriever(tmp_path: Path) -> None:
    base = write_config(tmp_path / "base", model_type="qwen2_5_vl")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    with pytest.raises(RandSlotError, match=r"adapter for .*base without a modules.json, as colpali-engine saves"):
        open_model(str(adapter))
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(RandSlotError, match="no model found at 'None'"):
        open_model(str(adapter))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (None, "no model in .*: it has no config.json"),
        ({"model_type": "bert"}, "is a 'bert' model"),
    ],
)
def test_a_folder_without_a_model_for_search_is_refused(tmp_path: Path, config: Any, line: str) -> None:
    if config is not None:
        write_config(tmp_path, **config)
    with pytest.raises(RandSlotError, match=line):
        open_model(str(tmp_path))


def test_a_missing_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/weights.safetensors").write_bytes(b"x")  # of the form of a hub id
    for name in ("/nowhere/at/all", "models/weights.safetensors"):
        with pytest.raises(UsageError, match=f"no model found at '{name}'"):
            open_model(name)


def test_a_gated_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GatedRepoError("403", response=httpx.Response(403, request=httpx.Request("GET", "https://example.org")))

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", refuse)
    with pytest.raises(RandSlotError, match=r"^model owner/name is gated: accept its terms on the hub and log in with"):
        open_model("owner/name")


# -- damaged files


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def point_to_lfs(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")


def lose_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def lose_a_shard(folder: Path) -> None:
    lose_weights(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')


def lose_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def lose_tokenizer(folder: Path) -> None:
    for file in folder.glob("token*"):
        file.unlink()


def break_modules(folder: Path) -> None:
    (folder / "modules.json").write_text('[{"idx": 0}]')


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (cut_weights, "cannot load .* is the download complete"),
        (point_to_lfs, "git lfs pull"),
        (lose_weights, "cannot load"),
        (lose_a_shard, "cannot load"),
        (lose_a_tensor, r"has missing weights, such as encoder.layer.1.output.dense.weight"),
        (lose_tokenizer, "has no tokenizer"),
        (break_modules, "cannot load"),
    ],
)
def test_damage_is_one_line(copied: Path, damage: Callable[[Path], None], line: str) -> None:
    damage(copied)
    with pytest.raises(RandSlotError, match=line) as caught:
        open_model(str(copied))
    assert "\n" not in str(caught.value)
    assert str(copied) in str(caught.value)


def test_a_pooler_that_nobody_reads_may_be_missing(copied: Path) -> None:
    weights = {key: value for key, value in load_file(copied / "model.safetensors").items() if "pooler" not in key}
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    open_model(str(copied))


# -- code


def test_code_runs_only_if_trusted_and_is_remembered_by_its_hash(with_code: Path, marker: Path) -> None:
    with pytest.raises(UsageError, match=r"contains Python code.* --trust-remote-code"):
        open_model(str(with_code))
    with pytest.raises(UsageError, match="contains Python code"):
        open_model(str(with_code), known_code="of other files")
    assert not marker.exists()
    model = open_model(str(with_code), trust_remote_code=True)
    assert marker.exists()
    settings = model.identity.settings
    assert settings["trust_remote_code"] is True
    assert is_code_trusted(settings["code"])
    assert isinstance(open_model(str(with_code), known_code=settings["code"]), EmbeddingModel)
    (with_code / "custom.py").write_text(CODE.format(marker=str(marker) + "2"))
    with pytest.raises(UsageError, match="contains Python code"):
        open_model(str(with_code), known_code=settings["code"])
    assert not Path(str(marker) + "2").exists()


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"model_type": "strange", "auto_map": {"AutoConfig": "custom.C", "AutoModel": "custom.M"}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["custom.T", "custom.T"]}, "tokenizer_class": "T"}),
        ("tokenizer_config.json", {"auto_map": {"AutoProcessor": "custom.P"}, "processor_class": "P"}),
        ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}),
    ],
)
def test_code_in_a_configuration_does_not_run_either(
    copied: Path, marker: Path, file: str, values: dict[str, Any]
) -> None:
    others.change(copied, file, **values)
    if file == "sentence_bert_config.json":
        others.change(copied, "config.json", model_type="strange", auto_map={"AutoConfig": "custom.C"})
    (copied / "custom.py").write_text(f"open({str(marker)!r}, 'w')")
    with suppress(UsageError):  # refused, or loaded without it
        open_model(str(copied))
    assert not marker.exists()


def test_a_class_of_an_installed_package_is_code_too(copied: Path) -> None:
    modules = json.loads((copied / "modules.json").read_text())
    modules[-1]["type"] = "subprocess.Popen"
    (copied / "modules.json").write_text(json.dumps(modules))
    for options in ({}, {"trust_remote_code": True}):  # without files to read, there is nothing to trust
        with pytest.raises(UsageError, match="contains Python code"):
            open_model(str(copied), **options)


def test_a_model_without_code_needs_no_trust_and_keeps_none(minilm: Path) -> None:
    model = open_model(str(minilm), trust_remote_code=True)
    assert model.identity.settings["trust_remote_code"] is False


# -- pickles


class Attack:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def replace_weights(folder: Path, safe: str, pickle: str, marker: Path) -> None:
    (folder / safe).unlink()
    torch.save(Attack(marker), folder / pickle)


def test_pickles_are_refused(copied: Path, marker: Path, tmp_path: Path) -> None:
    replace_weights(copied, "model.safetensors", "pytorch_model.bin", marker)
    dense = others.save_colbert(tmp_path / "colbert")
    replace_weights(dense / "1_Dense", "model.safetensors", "pytorch_model.bin", marker)
    adapter = others.save_colqwen_adapter(tmp_path / "adapter")
    base = Path(shutil.copytree(adapter, tmp_path / "second"))
    replace_weights(adapter, "adapter_model.safetensors", "adapter_model.bin", marker)
    for folder in (copied, dense, adapter):
        with pytest.raises(RandSlotError, match=r"_model.bin is a pickle, which can run code"):
            open_model(str(folder))
    replace_weights(tmp_path / "adapter-base", "model.safetensors", "pytorch_model.bin", marker)
    with pytest.raises(RandSlotError, match=r"adapter-base/pytorch_model.bin is a pickle"):
        open_model(str(base))
    assert not marker.exists()


def test_sharded_pickles_are_not_loaded(copied: Path, marker: Path) -> None:
    replace_weights(copied, "model.safetensors", "pytorch_model-00001-of-00001.bin", marker)
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "pytorch_model-00001-of-00001.bin"}}
    (copied / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(RandSlotError, match="cannot load"):
        open_model(str(copied))
    assert not marker.exists()


def test_a_pickle_beside_safe_weights_is_not_read(copied: Path, marker: Path) -> None:
    torch.save(Attack(marker), copied / "pytorch_model.bin")
    open_model(str(copied))
    assert not marker.exists()


def test_neither_code_nor_pickles_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[list[str]] = []

    def fetch(name: str, *, allow_patterns: list[str], **options: object) -> str:
        fetched.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("randslot.model.hub.snapshot_download", fetch)
    for options in ({}, {"trust_remote_code": True}):
        with pytest.raises(RandSlotError, match="no model in owner/model"):
            open_model("owner/model", **options)
    assert "*.py" not in fetched[0]
    assert "*.py" in fetched[1]
    assert not any(pattern in some for some in fetched for pattern in ("*.bin", "*.pt", "*"))
