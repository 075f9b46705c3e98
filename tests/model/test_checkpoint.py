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
from randslot.errors import RandSlotError, UsageError
from support.models import lively, make, noise

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
def backbone(tmp_path: Path, vision_family: str) -> Path:
    """A backbone in a folder, as it would come from the hub: no file of ours in it."""
    folder = tmp_path / "backbone-from-hub"
    encoder = make(vision_family).encoder
    for part in (encoder.backbone, encoder.tokenizer, encoder.image_processor):
        part.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lora", [False, True])
def test_round_trip_gives_identical_vectors(family, strategy, lora, tmp_path):
    model = stir(make(family, slots=strategy, lora=lora))
    expected = vectors(model)
    model.save_pretrained(str(tmp_path / "model"))
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), expected)
    plain = MultiVectorEncoder(str(tmp_path / "model"), trust_remote_code=True)
    assert torch.equal(vectors(plain), expected)


@pytest.mark.parametrize("slots", ["random", "fixed", "learned"])
def test_with_lora_only_the_adapter_is_saved_beside_a_reference(backbone, slots, tmp_path):
    model = stir(randslot.load(backbone, slots=slots, lora=True, seed=3))
    model.save_pretrained(str(tmp_path / "model"))
    saved = {file.name for file in (tmp_path / "model").rglob("*")}
    ours = {"adapter_config.json", "adapter_model.safetensors", "randslot.json", "modules.json", "README.md"}
    ours |= {"config_sentence_transformers.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert saved == ours | (set() if slots == "random" else {"slots.safetensors"})
    config = json.loads((tmp_path / "model" / "randslot.json").read_text())
    assert config["backbone"]["name"] == str(backbone)
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))


def test_the_revision_of_a_hub_backbone_is_recorded(tmp_path, vision_family):
    """A hub cache laid by hand, read offline: the snapshot's commit is what gets saved, and what is asked for."""
    commit, repository = "a" * 40, tmp_path / "cache" / "models--owner--backbone"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    encoder = make(vision_family).encoder
    for part in (encoder.backbone, encoder.tokenizer, encoder.image_processor):
        part.save_pretrained(repository / "snapshots" / commit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        patch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        model = randslot.load("owner/backbone", lora=True)
        model.save_pretrained(str(tmp_path / "model"))
        reference = json.loads((tmp_path / "model" / "randslot.json").read_text())["backbone"]
        assert (reference["name"], reference["revision"]) == ("owner/backbone", commit)
        assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))


def test_the_recorded_revision_is_what_gets_loaded(tmp_path, vision_family, monkeypatch):
    """The hub's main branch has moved on to other weights since the adapter was trained."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--owner--backbone"
    (repository / "refs").mkdir(parents=True)
    for commit, seed in (("a" * 40, 0), ("b" * 40, 1)):
        (repository / "refs" / "main").write_text(commit)
        encoder = randslot.tiny(vision_family, seed=seed).encoder
        for part in (encoder.backbone, encoder.tokenizer, encoder.image_processor):
            part.save_pretrained(repository / "snapshots" / commit)
        if seed == 0:
            model = randslot.load("owner/backbone", lora=True)
            model.save_pretrained(str(tmp_path / "model"))
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))
    assert not torch.allclose(vectors(randslot.load("owner/backbone")), vectors(model), atol=1e-3)


def test_tokenizer_and_image_settings_are_read_from_the_saved_model(backbone, tmp_path):
    model = randslot.load(backbone, lora=True)
    model.encoder.image_processor.image_mean = [0.1, 0.2, 0.3]
    model.save_pretrained(str(tmp_path / "model"))
    again = randslot.load(tmp_path / "model")
    assert torch.equal(vectors(again), vectors(model))
    assert not torch.allclose(vectors(again), vectors(randslot.load(backbone)), atol=1e-3)
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(RandSlotError, match=r"lacks preprocessor_config\.json"):
        randslot.load(tmp_path / "model")


def test_image_settings_inside_a_whole_processor_are_read(backbone):
    settings = json.loads((backbone / "preprocessor_config.json").read_text())
    expected = vectors(randslot.load(backbone))
    (backbone / "preprocessor_config.json").unlink()
    (backbone / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert torch.equal(vectors(randslot.load(backbone)), expected)


def test_a_small_visual_limit_can_be_raised_again(tmp_path):
    shape = json.loads((Path(randslot.__file__).parent / "model" / "shapes" / "qwen3-vl-tiny.json").read_text())
    shape["image_processor"]["size"]["shortest_edge"] = 65536  # as in the real 4B
    (tmp_path / "shape.json").write_text(json.dumps(shape))
    small = randslot.untrained(str(tmp_path / "shape.json"), visual_tokens=64)
    small.save_pretrained(str(tmp_path / "model"))
    raised = randslot.load(tmp_path / "model", visual_tokens=1536)
    assert torch.equal(vectors(raised), vectors(randslot.untrained(str(tmp_path / "shape.json"))))


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa"),
        LoraConfig(target_modules=["q_proj"], modules_to_save=["merger"]),
        LoraConfig(target_modules=["q_proj"], use_dora=True),
        LoraConfig(target_modules=["embed_tokens", "q_proj"]),
    ],
    ids=["pissa", "modules_to_save", "dora", "embeddings"],
)
def test_other_adapters_on_a_backbone_built_in_memory(config, tmp_path):
    model = stir(randslot.tiny("qwen3-vl", lora=config))
    model.save_pretrained(str(tmp_path / "model"))
    again = randslot.load(tmp_path / "model")
    assert torch.allclose(vectors(again), vectors(model), atol=1e-6)
    again.save_pretrained(str(tmp_path / "copy"))
    assert torch.equal(vectors(randslot.load(tmp_path / "copy")), vectors(again))


def test_an_adapter_under_another_name_is_saved_too(backbone, tmp_path):
    model = randslot.load(backbone)
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]), adapter_name="mine")
    stir(model).save_pretrained(str(tmp_path / "model"))
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))


def test_a_hub_id_that_cannot_be_had_is_one_line():
    with pytest.raises(RandSlotError, match="cannot get model owner/nothing: not in the local cache") as caught:
        randslot.load("owner/nothing")
    assert "\n" not in str(caught.value)


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


def test_without_lora_the_folder_is_also_a_plain_backbone(vision_family, tmp_path):
    """The linear patch embedding leaves keys and shapes as transformers knows them."""
    model = stir(make(vision_family))
    model.save_pretrained(str(tmp_path / "model"))
    theirs, report = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert set(theirs.state_dict()) == set(model.encoder.backbone.state_dict())
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


def test_a_saved_random_model_encodes_with_zeros_and_with_random_slots_when_asked(tmp_path):
    model = make("qwen3-vl", slots="random")
    model.save_pretrained(str(tmp_path / "model"))
    zero, random = randslot.load(tmp_path / "model"), randslot.load(tmp_path / "model", inference="random")
    assert torch.equal(vectors(zero), vectors(model))
    assert torch.equal(vectors(random), vectors(randslot.load(tmp_path / "model", inference="random")))
    assert not torch.allclose(vectors(random), vectors(zero), atol=1e-3)


def test_an_adapter_can_be_added_to_a_saved_full_model(tmp_path):
    stir(make("qwen3-vl")).save_pretrained(str(tmp_path / "full"))
    model = stir(randslot.load(tmp_path / "full", lora=LoraConfig(r=2, target_modules=["q_proj"])))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2 * 2 * (64 + 64)
    with pytest.raises(RandSlotError, match="holds the backbone of this adapter"):
        model.save_pretrained(str(tmp_path / "full"))
    model.save_pretrained(str(tmp_path / "adapted"))
    assert torch.equal(vectors(randslot.load(tmp_path / "adapted")), vectors(model))
    with pytest.raises(RandSlotError, match="has an adapter already"):
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


@pytest.mark.parametrize("lora", [False, True])
def test_a_model_can_be_saved_over_its_own_folder(lora, tmp_path):
    make("qwen3-vl", lora=lora).save_pretrained(str(tmp_path / "model"))
    model = stir(randslot.load(tmp_path / "model"))
    model.save_pretrained(str(tmp_path / "model"))
    assert torch.equal(vectors(randslot.load(tmp_path / "model")), vectors(model))


def test_a_moved_model_folder_still_loads(tmp_path):
    model = stir(make("qwen3-vl", lora=True))
    model.save_pretrained(str(tmp_path / "here"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert torch.equal(vectors(randslot.load(tmp_path / "there")), vectors(model))


def test_a_moved_backbone_is_missed_by_name_and_can_be_named(backbone, tmp_path):
    model = stir(randslot.load(backbone, lora=True))
    model.save_pretrained(str(tmp_path / "model"))
    shutil.move(backbone, tmp_path / "elsewhere")
    with pytest.raises(RandSlotError, match=f"needs its backbone: no model found at '{backbone}'"):
        randslot.load(tmp_path / "model")
    assert torch.equal(vectors(randslot.load(tmp_path / "model", backbone=tmp_path / "elsewhere")), vectors(model))


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


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing adapter key": (
        lambda p: edit_tensors(p / "adapter_model.safetensors", lambda t: t.pop(sorted(t)[0])),
        "adapter of .*: 1 weights are missing, such as language_model.layers.0",
    ),
    "unexpected adapter key": (
        lambda p: edit_tensors(p / "adapter_model.safetensors", lambda t: t.update(extra=torch.zeros(1))),
        "adapter of .*: 1 weights are unknown, such as extra",
    ),
    "adapter shape": (
        lambda p: edit_tensors(p / "adapter_model.safetensors", cut),
        r"adapter of .*: .* has shape \(1, .*but this backbone and budget need",
    ),
    "table shape": (lambda p: edit_tensors(p / "slots.safetensors", cut), "slot tables of .*: tables.weight has shape"),
    "table count": (
        lambda p: edit(p / "randslot.json", lambda c: c["stored"].update(page=5)),
        "slot tables of .*shape",
    ),
    "no tables": (lambda p: (p / "slots.safetensors").unlink(), "lacks slots.safetensors"),
    "no adapter": (lambda p: (p / "adapter_model.safetensors").unlink(), "lacks adapter_model.safetensors"),
    "no adapter config": (lambda p: (p / "adapter_config.json").unlink(), "lacks adapter_config.json"),
    "torn adapter": (lambda p: (p / "adapter_model.safetensors").write_bytes(b"x" * 99), "not a valid safetensors"),
    "torn backbone": (lambda p: (p / "backbone/model.safetensors").write_bytes(b"x" * 99), "cannot load backbone"),
    "no backbone": (lambda p: shutil.rmtree(p / "backbone"), "it has no config.json"),
    "backbone weight": (
        lambda p: edit_tensors(p / "backbone/model.safetensors", lambda t: t.pop(sorted(t)[0])),
        "lacks 1 weights, such as .*: get it again",
    ),
    "family": (
        lambda p: edit(p / "randslot.json", lambda c: c["backbone"].update(family="qwen2.5-vl")),
        "was trained on a qwen2.5-vl backbone, but .* is qwen3-vl",
    ),
    "foreign backbone": (
        lambda p: edit(p / "backbone/config.json", lambda c: c.update(model_type="mistral")),
        "is a 'mistral' model; RandSlot runs on .*qwen2_5_vl.*qwen3_vl",
    ),
    "format": (lambda p: edit(p / "randslot.json", lambda c: c.update(format=99)), "has format 99"),
    "not JSON": (lambda p: (p / "randslot.json").write_text("{"), "randslot.json is not valid JSON"),
    "missing setting": (lambda p: edit(p / "randslot.json", lambda c: c.pop("seed")), "randslot.json of .* lacks seed"),
    "config is a list": (lambda p: (p / "randslot.json").write_text("[]"), "randslot.json does not hold a JSON object"),
    "no reference": (
        lambda p: edit(p / "randslot.json", lambda c: c.update(backbone=None)),
        "randslot.json is damaged",
    ),
    "slots is a list": (lambda p: edit(p / "randslot.json", lambda c: c.update(slots=[])), "slots=.. is not one of"),
    "stored is empty": (
        lambda p: edit(p / "randslot.json", lambda c: c.update(stored={})),
        "randslot.json is damaged",
    ),
    "stored is negative": (
        lambda p: edit(p / "randslot.json", lambda c: c["stored"].update(page=-1)),
        "randslot.json is damaged",
    ),
    "unknown setting": (lambda p: edit(p / "randslot.json", lambda c: c.update(extra=1)), "unknown setting 'extra'"),
    "adapter config": (lambda p: (p / "adapter_config.json").write_text("{"), "has a broken adapter_config.json"),
    "adapter type": (
        lambda p: edit(p / "adapter_config.json", lambda c: c.update(peft_type="FOO")),
        "has a broken adapter_config.json",
    ),
    "tokenizer": (lambda p: (p / "tokenizer.json").write_text("{}"), "cannot load the tokenizer or image processor"),
    "tokenizer settings": (lambda p: (p / "tokenizer_config.json").write_text("[]"), "does not hold a JSON object"),
    "backbone shape": (
        lambda p: edit_tensors(p / "backbone/model.safetensors", cut),
        "cannot load backbone",
    ),
    "foreign backbone weight": (
        lambda p: edit_tensors(p / "backbone/model.safetensors", lambda t: t.update(extra=torch.zeros(1))),
        "has 1 unknown weights, such as extra",
    ),
    "bad setting": (
        lambda p: edit(p / "randslot.json", lambda c: c.update(page_vectors=0)),
        "page_vectors must be a whole number from 1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_is_refused_in_one_line(case, tmp_path):
    break_it, message = BROKEN[case]
    make("qwen3-vl", slots="learned", lora=True).save_pretrained(str(tmp_path / "model"))
    break_it(tmp_path / "model")
    with pytest.raises(RandSlotError, match=message) as caught:
        randslot.load(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_a_backbone_of_another_size_or_family_is_refused(tmp_path):
    make("qwen3-vl", lora=True).save_pretrained(str(tmp_path / "model"))
    shape = json.loads((Path(randslot.__file__).parent / "model" / "shapes" / "qwen3-vl-tiny.json").read_text())
    shape["config"]["text_config"]["num_hidden_layers"] = 3
    (tmp_path / "deeper.json").write_text(json.dumps(shape))
    randslot.untrained(str(tmp_path / "deeper.json")).save_pretrained(str(tmp_path / "deeper"))
    with pytest.raises(RandSlotError, match=r"adapter of .*: 8 weights are missing, such as language_model.layers.2"):
        randslot.load(tmp_path / "model", backbone=tmp_path / "deeper")
    lively(randslot.tiny("qwen2.5-vl")).save_pretrained(str(tmp_path / "other"))
    with pytest.raises(RandSlotError, match=r"was trained on a qwen3-vl backbone, but .*other is qwen2.5-vl"):
        randslot.load(tmp_path / "model", backbone=tmp_path / "other")


def test_wrong_uses_of_load_are_one_line(tmp_path):
    make("qwen3-vl").save_pretrained(str(tmp_path / "model"))
    for options, message in (
        ({"slots": "learned"}, "is trained with slots='random'"),
        ({"revision": "main"}, "revision='main' goes with a hub id"),
        ({"backbone": "owner/backbone"}, "holds all its weights"),
        ({"inference": "fixed"}, "needs stored slots"),
    ):
        with pytest.raises(UsageError, match=message):
            randslot.load(tmp_path / "model", **options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RandSlotError, match=r"it has no config\.json"):
        randslot.load(tmp_path / "empty")
    with pytest.raises(RandSlotError, match="not a folder here, and not a hub id"):
        randslot.load("no-such-thing")
    with pytest.raises(
        UsageError, match=r"unknown backbone shape 'huge'; known ones: llama-tiny, .*qwen2\.5-vl-3b, qwen2\.5-vl-tiny"
    ):
        randslot.untrained("huge")
    with pytest.raises(UsageError, match="unknown family"):
        randslot.tiny("mistral")


def test_the_model_card_names_the_settings(tmp_path, caplog):
    make("qwen3-vl", slots="fixed", lora=True).save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| Slots in training | fixed |" in card
    assert "4 vectors and a query into 4, each of 64 dimensions" in card
    assert not caplog.records
