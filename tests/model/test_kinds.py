"""What a folder of model files is, and one line for what cannot be run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model import RandSlotModel, open_model
from randslot.model.hub import Source
from randslot.model.sentence_loading import find_kind
from support import others


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return others.save_minilm(tmp_path_factory.mktemp("kinds") / "minilm")


@pytest.fixture
def copied(minilm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(minilm, tmp_path / "model"))


def kind_of(folder: Path) -> str:
    return find_kind(Source(str(folder), None, folder))


def write_config(folder: Path, **values: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_folders_are_known_by_their_files(minilm: Path, tmp_path: Path) -> None:
    assert kind_of(minilm) == "one-vector"
    assert kind_of(others.save_colbert(tmp_path / "colbert")) == "multi-vector"
    assert kind_of(write_config(tmp_path / "col", architectures=["ColPaliForRetrieval"])) == "multi-vector"
    assert kind_of(write_config(tmp_path / "stanford", architectures=["HF_ColBERT"])) == "multi-vector"
    assert kind_of(write_config(tmp_path / "backbone", model_type="qwen3_vl")) == "backbone"
    randslot.tiny("qwen3-vl").save_pretrained(str(tmp_path / "ours"))
    assert kind_of(tmp_path / "ours") == "randslot"
    assert isinstance(open_model(str(tmp_path / "ours")), RandSlotModel)


def test_a_model_of_pylate_has_several_vectors(copied: Path) -> None:
    (copied / "config_sentence_transformers.json").write_text('{"query_prefix": "[Q] ", "query_length": 32}')
    assert kind_of(copied) == "multi-vector"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"model_type": "bert"}, "is a 'bert' model without vectors for search"),
        ({}, "is a None model without vectors for search"),
    ],
)
def test_a_model_of_another_library_is_told(tmp_path: Path, config: dict[str, str], line: str) -> None:
    with pytest.raises(RandSlotError, match=line):
        open_model(str(write_config(tmp_path / "model", **config)))


def test_a_reranker_is_told(copied: Path) -> None:
    (copied / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    with pytest.raises(RandSlotError, match="is a CrossEncoder, which has no vectors of pages"):
        open_model(str(copied))


def test_an_adapter_of_colpali_engine_is_told(tmp_path: Path) -> None:
    base = write_config(tmp_path / "base", model_type="qwen2_5_vl")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    with pytest.raises(RandSlotError, match=r"adapter for .*base without a modules.json, as colpali-engine saves"):
        open_model(str(adapter))
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(RandSlotError, match="is an adapter and needs its base: no model found"):
        open_model(str(adapter))
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(RandSlotError, match="names no base model"):
        open_model(str(adapter))


@pytest.mark.parametrize(("file", "line"), [("x.gguf", "a GGUF file, for llama.cpp"), ("x.onnx", "an ONNX file")])
def test_files_of_other_runtimes_are_told(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).write_bytes(b"x")
    with pytest.raises(RandSlotError, match=line):
        open_model(str(tmp_path))


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(RandSlotError, match=r"no model in .*: it has no config.json and no modules.json"):
        open_model(str(tmp_path))


def test_a_missing_model_is_told() -> None:
    with pytest.raises(UsageError, match="no model found at '/nowhere/at/all'"):
        open_model("/nowhere/at/all")


def test_a_file_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/weights.safetensors").write_bytes(b"x")  # of the form of a hub id
    with pytest.raises(UsageError, match=r"models/weights.safetensors is a file: name the folder of a model"):
        open_model("models/weights.safetensors")


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {"model_type": "qwen3_vl", "text_config": {}}])
def test_a_configuration_without_sizes_is_not_the_default_model(tmp_path: Path, config: dict[str, Any]) -> None:
    """That one has billions of weights."""
    with pytest.raises(RandSlotError, match=r"lacks the sizes of its model \(hidden_size, num_hidden_layers\)"):
        open_model(str(write_config(tmp_path / "model", **config)))


def test_half_a_download_is_told(copied: Path) -> None:
    weights = copied / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(RandSlotError, match=r"model.safetensors of .* is cut off or broken: .*; get it again"):
        open_model(str(copied))
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(RandSlotError, match="is a Git LFS pointer: git lfs pull"):
        open_model(str(copied))
    weights.unlink()
    with pytest.raises(RandSlotError, match="has no weights"):
        open_model(str(copied))
    (copied / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    with pytest.raises(RandSlotError, match=r"lacks model-00001-of-00002.safetensors, one of 1 files of weights"):
        open_model(str(copied))


def test_weights_that_would_be_random_are_told(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RandSlotError, match=r"lacks 1 weights, such as encoder.layer.1.output.dense.weight"):
        open_model(str(copied))


def test_a_pooler_that_nobody_reads_may_be_missing(copied: Path) -> None:
    weights = {key: value for key, value in load_file(copied / "model.safetensors").items() if "pooler" not in key}
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    open_model(str(copied))


def test_broken_files_are_told(copied: Path) -> None:
    (copied / "modules.json").write_text("{}")
    with pytest.raises(RandSlotError, match=r"modules.json does not hold a list"):
        open_model(str(copied))
    (copied / "modules.json").write_text('[{"idx": 0}]')
    with pytest.raises(RandSlotError, match="does not name the type of each module"):
        open_model(str(copied))


def test_a_missing_tokenizer_is_told(copied: Path) -> None:
    for file in copied.glob("token*"):
        file.unlink()
    with pytest.raises(RandSlotError, match=r"lacks its tokenizer, such as a file tokenizer.json"):
        open_model(str(copied))


def test_a_gated_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        request = httpx.Request("GET", "https://example.org")
        raise GatedRepoError("403", response=httpx.Response(403, request=request))

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", refuse)
    with pytest.raises(RandSlotError, match=r"^model owner/name is gated: accept its terms on the hub and log in with"):
        open_model("owner/name")
