"""What is saved is what is loaded: the same vectors, and one clear line for anything that does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from transformers import AutoModel, AutoModelForImageTextToText

import randslot
from randslot.errors import RandSlotError
from support.models import make, noise

PAGE = noise(90, 120)


def vectors(model: MultiVectorEncoder) -> torch.Tensor:
    page = PAGE if model[0].family.reads == "image" else "the text of a page"
    return torch.cat([model.encode_query("revenue by region"), model.encode_document(page)])


def stir(model: MultiVectorEncoder) -> MultiVectorEncoder:
    """Stand in for training: move everything that trains, so that a part that is not saved shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)) * 0.1)
    return model


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A backbone in a folder, as it would come from the hub: no file of ours in it."""
    return save_backbone(make("qwen3-vl"), tmp_path / "backbone-from-hub")


def save_backbone(model: MultiVectorEncoder, folder: Path) -> Path:
    for part in (model.encoder.backbone, model.encoder.tokenizer, model.encoder.image_processor):
        part.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("slots", "lora"), [("random", False), ("learned", True)])
def test_round_trip_gives_identical_vectors(slots, lora, tmp_path):
    model = stir(make("qwen3-vl", slots=slots, lora=lora))
    expected = vectors(model)
    model.save_pretrained(str(tmp_path / "model"))
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), expected)
    plain = MultiVectorEncoder(str(tmp_path / "model"), trust_remote_code=True)
    assert torch.equal(vectors(plain), expected)


def test_the_revision_of_a_hub_backbone_is_recorded_and_loaded(tmp_path, monkeypatch):
    """The hub's main branch has moved on to other weights since the adapter was trained."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--owner--backbone"
    (repository / "refs").mkdir(parents=True)
    for commit, seed in (("a" * 40, 0), ("b" * 40, 1)):
        (repository / "refs" / "main").write_text(commit)
        save_backbone(randslot.tiny("qwen3-vl", seed=seed), repository / "snapshots" / commit)
        if seed == 0:
            model = randslot.load("owner/backbone", lora=True)
            model.save_pretrained(str(tmp_path / "model"))
    reference = json.loads((tmp_path / "model" / "randslot.json").read_text())["backbone"]
    assert (reference["name"], reference["revision"]) == ("owner/backbone", "a" * 40)
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))
    assert not torch.allclose(vectors(randslot.load("owner/backbone")), vectors(model), atol=1e-3)


def test_with_lora_only_the_adapter_is_saved_beside_a_reference(backbone, tmp_path):
    model = stir(randslot.load(backbone, slots="learned", lora=True, seed=3))
    model.save_pretrained(str(tmp_path / "model"))
    saved = {file.name for file in (tmp_path / "model").rglob("*")}
    ours = {"adapter_config.json", "adapter_model.safetensors", "randslot.json", "modules.json", "README.md"}
    ours |= {"config_sentence_transformers.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert saved == ours | {"slots.safetensors"}
    config = json.loads((tmp_path / "model" / "randslot.json").read_text())
    assert config["backbone"]["name"] == str(backbone)
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))


def test_tokenizer_and_image_settings_are_read_from_the_saved_model(backbone, tmp_path):
    model = randslot.load(backbone, lora=True)
    model.encoder.image_processor.image_mean = [0.1, 0.2, 0.3]
    model.save_pretrained(str(tmp_path / "model"))
    again = randslot.load(tmp_path / "model")
    assert torch.equal(vectors(again), vectors(model))
    assert not torch.allclose(vectors(again), vectors(randslot.load(backbone)), atol=1e-3)
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(RandSlotError, match=r"cannot read .*preprocessor_config\.json"):
        randslot.load(tmp_path / "model")


def test_image_settings_inside_a_whole_processor_are_read(backbone):
    settings = json.loads((backbone / "preprocessor_config.json").read_text())
    expected = vectors(randslot.load(backbone))
    (backbone / "preprocessor_config.json").unlink()
    (backbone / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert torch.equal(vectors(randslot.load(backbone)), expected)


def test_another_adapter_on_a_backbone_built_in_memory(tmp_path):
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa", modules_to_save=["merger"])
    model = stir(randslot.tiny("qwen3-vl", lora=config))
    model.save_pretrained(str(tmp_path / "model"))
    again = randslot.load(tmp_path / "model")
    assert torch.allclose(vectors(again), vectors(model), atol=1e-6)
    again.save_pretrained(str(tmp_path / "copy"))
    assert torch.equal(vectors(randslot.load(tmp_path / "copy")), vectors(again))


def test_peft_alone_loads_the_adapter_onto_the_backbone(backbone, tmp_path):
    model = stir(randslot.load(backbone, lora=True))
    model.save_pretrained(str(tmp_path / "model"))
    theirs = PeftModel.from_pretrained(AutoModel.from_pretrained(backbone), tmp_path / "model")
    text = model.tokenizer("revenue by region", return_tensors="pt")
    hidden = theirs(**text).last_hidden_state[0, -1]
    expected = model.encode_query("revenue by region")[0]
    assert torch.allclose(torch.nn.functional.normalize(hidden, dim=-1), expected, atol=1e-5)
    bare = AutoModel.from_pretrained(backbone)(**text).last_hidden_state[0, -1]
    assert not torch.allclose(torch.nn.functional.normalize(bare, dim=-1), expected, atol=1e-3)


def test_without_lora_the_folder_is_also_a_plain_backbone(tmp_path):
    """The linear patch embedding leaves keys and shapes as transformers knows them."""
    model = stir(make("qwen3-vl"))
    model.save_pretrained(str(tmp_path / "model"))
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    expected = model.encoder.backbone.state_dict()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_options_override_what_was_saved(tmp_path):
    make("qwen3-vl", slots="fixed").save_pretrained(str(tmp_path / "model"))
    more = randslot.load(tmp_path / "model", query_vectors=2, page_vectors=8, inference="zero", visual_tokens=64)
    assert (more.encode_query("tax").shape, more.encode_document(PAGE).shape) == ((2, 64), (8, 64))
    more.save_pretrained(str(tmp_path / "again"))
    again = randslot.load(tmp_path / "again", inference="fixed")
    assert again.settings == randslot.Settings("fixed", "fixed", 2, 8, 64, 0)
    assert again.encoder.slots.page.shape == (3, 64)  # the stored table does not grow with the budget


def test_an_adapter_can_be_added_to_a_saved_full_model(tmp_path):
    stir(make("qwen3-vl")).save_pretrained(str(tmp_path / "full"))
    model = stir(randslot.load(tmp_path / "full", lora=LoraConfig(r=2, target_modules=["q_proj"])))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2 * 2 * (64 + 64)
    with pytest.raises(RandSlotError, match="holds the backbone of this adapter"):
        model.save_pretrained(str(tmp_path / "full"))
    model.save_pretrained(str(tmp_path / "adapted"))
    assert torch.equal(vectors(randslot.load(tmp_path / "adapted")), vectors(model))
    with pytest.raises(RandSlotError, match=r"cannot add adapter .* already exists"):
        randslot.load(tmp_path / "adapted", lora=True)


def test_an_adapter_keeps_training_after_loading(tmp_path):
    make("qwen3-vl", lora=True).save_pretrained(str(tmp_path / "model"))
    edit(tmp_path / "model" / "adapter_config.json", lambda c: c.update(inference_mode=True))  # as PEFT saves it
    trainable = [name for name, p in randslot.load(tmp_path / "model").named_parameters() if p.requires_grad]
    assert len(trainable) == 2 * 4 * 2
    assert all("lora_" in name for name in trainable)


def test_saving_over_another_model_leaves_nothing_of_it(tmp_path):
    make("qwen3-vl", slots="learned", lora=True).save_pretrained(str(tmp_path / "model"))
    model = make("qwen3-vl", slots="zero")
    model.save_pretrained(str(tmp_path / "model"))
    names = {file.name for file in (tmp_path / "model").iterdir()}
    assert not names & {"slots.safetensors", "adapter_model.safetensors", "adapter_config.json", "backbone"}
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))
    make("qwen3-vl", lora=True).save_pretrained(str(tmp_path / "model"))
    assert not {file.name for file in (tmp_path / "model").iterdir()} & {"model.safetensors", "config.json"}


def test_a_model_can_be_saved_over_its_own_folder(tmp_path):
    make("qwen3-vl", lora=True).save_pretrained(str(tmp_path / "model"))
    model = stir(randslot.load(tmp_path / "model"))
    model.save_pretrained(str(tmp_path / "model"))
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))


def test_no_code_in_a_model_folder_runs(tmp_path, monkeypatch):
    """Neither through modules.json nor through auto_map, and pickled weights are not read."""
    make("qwen3-vl").save_pretrained(str(tmp_path / "model"))
    trap = tmp_path / "model" / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Trap: pass\n")
    edit(tmp_path / "model" / "modules.json", lambda modules: modules[0].update(type="trap.Trap"))
    edit(tmp_path / "model" / "config.json", lambda c: c.update(auto_map={"AutoModel": "trap.Trap"}))
    edit(
        tmp_path / "model" / "tokenizer_config.json", lambda c: c.update(auto_map={"AutoTokenizer": ["trap.Trap"] * 2})
    )
    monkeypatch.chdir(tmp_path / "model")
    randslot.load(tmp_path / "model")
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(RandSlotError, match="cannot load backbone"):
        randslot.load(tmp_path / "model")


def edit(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_tensors(file: Path, change: Callable[[dict], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def cut(tensors: dict[str, torch.Tensor]) -> None:
    key = sorted(tensors)[0]
    tensors[key] = tensors[key][:1].clone()


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[sorted(tensors)[0]]


def grow(tensors: dict[str, torch.Tensor]) -> None:
    tensors["extra"] = torch.zeros(1)


ADAPTER, TABLES, BACKBONE = "adapter_model.safetensors", "slots.safetensors", "backbone/model.safetensors"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (
            ADAPTER,
            drop,
            "adapter of .*: language_model.layers.0.* has no weight, but this backbone and budget need shape",
        ),
        (ADAPTER, grow, r"adapter of .*: extra has shape \(1,\), but .* need no weight"),
        (ADAPTER, cut, r"adapter of .*: .* has shape \(1, .*but this backbone and budget need"),
        (ADAPTER, None, "adapter of .* has no weight"),
        (ADAPTER, b"x" * 99, "cannot read .*adapter_model.safetensors"),
        ("adapter_config.json", b"{", "cannot read adapter_config.json"),
        (TABLES, cut, "slot tables of .*: tables.weight has shape"),
        (TABLES, None, "slot tables of .*: tables.weight has no weight"),
        (BACKBONE, drop, r"has 1 missing and .* weights, such as .*\. Download it again\."),
        (BACKBONE, grow, "and 1 unexpected weights, such as extra"),
        (BACKBONE, b"x" * 99, "cannot load backbone"),
        ("backbone/config.json", {"model_type": "mistral"}, "is a 'mistral' model; RandSlot runs on .*qwen3_vl"),
        ("tokenizer.json", b"{}", "cannot load the tokenizer or image processor"),
        ("randslot.json", b"{", "cannot read .*randslot.json: "),
        ("randslot.json", {"format": 99}, "has format 99"),
        ("randslot.json", {"extra": 1}, "has missing or unknown settings: extra"),
        ("randslot.json", {"page_vectors": 0}, "page_vectors must be a whole number from 1"),
        ("randslot.json", {"stored": {"query": 3}}, "cannot read .*randslot.json: 'page'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(file, damage, message, saved, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    path = tmp_path / "model" / file
    if damage is None:
        path.unlink()
    elif isinstance(damage, bytes):
        path.write_bytes(damage)
    elif isinstance(damage, dict):
        edit(path, lambda content: content.update(damage))
    else:
        edit_tensors(path, damage)
    with pytest.raises(RandSlotError, match=message) as caught:
        randslot.load(tmp_path / "model")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    make("qwen3-vl", slots="learned", lora=True).save_pretrained(str(folder))
    return folder


def test_a_backbone_of_another_size_or_family_is_refused(saved, tmp_path):
    shape = json.loads((Path(randslot.__file__).parent / "model" / "shapes" / "qwen3-vl-tiny.json").read_text())
    shape["config"]["text_config"]["num_hidden_layers"] = 3
    (tmp_path / "deeper.json").write_text(json.dumps(shape))
    randslot.untrained(str(tmp_path / "deeper.json")).save_pretrained(str(tmp_path / "deeper"))
    with pytest.raises(RandSlotError, match=r"adapter of .*: language_model.layers.2.* has no weight"):
        randslot.load(saved, backbone=tmp_path / "deeper")
    randslot.tiny("qwen2.5-vl").save_pretrained(str(tmp_path / "other"))
    with pytest.raises(RandSlotError, match=r"was trained on a qwen3-vl backbone, but .*other is qwen2.5-vl"):
        randslot.load(saved, backbone=tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "zero"}, "was trained with 'learned'"),
        ({"revision": "main"}, "revision='main' requires a hub id"),
        ({"inference": "fixed"}, "needs stored slots"),
        ({"name": "no-such-thing"}, "not a folder, and not a hub ID"),
        ({"name": "owner/nothing"}, "cannot download model owner/nothing: not in the local cache"),
    ],
)
def test_wrong_uses_of_load_are_one_line(options, message, saved):
    options = {"name": saved, **options}
    with pytest.raises(RandSlotError, match=message) as caught:
        randslot.load(options.pop("name"), **options)
    assert "\n" not in str(caught.value)


def test_the_model_card_names_the_settings(tmp_path, caplog):
    make("qwen3-vl", slots="fixed", lora=True).save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| Slots in training | fixed |" in card
    assert "4 vectors and a query into 4, each of 64 dimensions" in card
    assert not caplog.records
