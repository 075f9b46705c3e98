"""An exported folder gives the vectors of the model it came from: in plain transformers, by its own instructions."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

import randslot
from randslot.cli import main
from randslot.errors import RandSlotError, UsageError
from randslot.model.export import export_model
from randslot.model.families.qwen_vl import QwenVL
from support.exports import adapted, far, follow, save
from support.models import make, noise, safe_half_precision

pytestmark = pytest.mark.slow

SERVED = ("zero", "fixed", "learned")
# The class that servers know, what a page is limited to at 64 visual tokens, and the video processor.
WANTED = {
    "qwen2.5-vl": ("Qwen2_5_VL", 64 * 28**2, "Qwen2VLVideoProcessor"),
    "qwen3-vl": ("Qwen3VL", 64 * 32**2, "Qwen3VLVideoProcessor"),
    "qwen3.5": ("Qwen3_5", 64 * 32**2, "Qwen3VLVideoProcessor"),
    "smolvlm": ("Idefics3", 3 * 32, ""),
}


@pytest.mark.parametrize("slots", SERVED)
def test_plain_transformers_gives_the_same_vectors(family, slots, pages, queries, tmp_path, monkeypatch):
    model = adapted(family, slots=slots, query_vectors=3, page_vectors=5)
    export_model(save(model, tmp_path / "model"), tmp_path / "out", slots=slots)
    plain = follow(tmp_path / "out", monkeypatch)
    vectors = model.encode_document(pages)
    assert vectors[0].shape == (5, 64)
    assert far(plain["encode_pages"](pages), vectors) < 1e-5
    assert far([plain["encode_pages"]([page])[0] for page in pages], vectors) < 1e-5
    vectors = model.encode_query(queries)  # after pages, whose positions a backbone might remember
    assert vectors[0].shape == (3, 64)
    assert far(plain["encode_queries"](queries), vectors) < 1e-5
    assert far([plain["encode_queries"]([query])[0] for query in queries], vectors) < 1e-5


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["randslot", "export", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


EMBEDDED_PAGES = [noise(256, 352, 1), noise(300, 200, 2)]
EMBEDDED_QUERIES = ["Quebec traffic", "sales of wool, Oslo report"]


def check_embedded(plain: dict[str, Any], model: Any) -> None:
    for encode, inputs, expected in (
        (plain["encode_pages"], EMBEDDED_PAGES, model.encode_document(EMBEDDED_PAGES)),
        (plain["encode_queries"], EMBEDDED_QUERIES, model.encode_query(EMBEDDED_QUERIES)),
    ):
        assert far(encode(inputs), expected) < 1e-5
        assert far([encode([one])[0] for one in inputs], expected) < 1e-5


def test_the_embedded_model_by_the_command_line(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "embedded", str(tmp_path / "out"), "--slots", "zero") == 0
    said = capsys.readouterr()
    assert "4 vectors a query, 4 a page, zero slots" in said.out
    assert not said.err  # no bar of transformers
    check_embedded(follow(tmp_path / "out", monkeypatch), randslot.load("embedded", device="cpu"))


@pytest.mark.parametrize("slots", ["fixed", "learned"])
def test_the_embedded_backbone_with_tables(slots, tmp_path, monkeypatch):
    home = Path(randslot.__file__).parent / "embedded"
    shutil.copytree(home, tmp_path / "bare", ignore=shutil.ignore_patterns("randslot.json", "modules.json"))
    model = randslot.load(tmp_path / "bare", slots=slots, visual_tokens=88, device="cpu")
    export_model(save(model, tmp_path / "model"), tmp_path / "out", slots=slots)
    check_embedded(follow(tmp_path / "out", monkeypatch), model)


def test_errors_of_the_command_are_one_line_with_the_right_code(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("mine")
    for words, code in (
        (("embedded", str(tmp_path)), 2),
        (("embedded", str(tmp_path / "out"), "--slots", "feedback"), 2),
        (("nowhere at all", str(tmp_path / "out")), 2),
    ):
        assert run(monkeypatch, *words) == code
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_random_model_goes_out_with_zeros_by_itself(pages, tmp_path, monkeypatch):
    model = make("qwen3-vl", slots="random")
    serving = export_model(save(model, tmp_path / "model"), tmp_path / "out")
    assert serving["settings"]["inference"] == "zero"
    assert far(follow(tmp_path / "out", monkeypatch)["encode_pages"](pages), model.encode_document(pages)) < 1e-5


def load_exported(folder: Path) -> tuple[Any, Any]:
    model, report = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    return model, AutoTokenizer.from_pretrained(folder)


def test_the_zero_token_is_one_row_of_zeros(vision_family, tmp_path):
    export_model(save(make(vision_family), tmp_path / "model"), tmp_path / "out")
    model, tokenizer = load_exported(tmp_path / "out")
    ids = tokenizer("tax<|randslot_zero|><|randslot_zero|>")["input_ids"]
    last = len(make(vision_family).tokenizer)
    assert ids[-2:] == [last, last]  # one token, behind those that were there
    assert len(tokenizer) == len(model.get_input_embeddings().weight) == model.config.text_config.vocab_size == last + 1
    assert not model.get_input_embeddings().weight[last].any()
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("slots", ["fixed", "learned"])
def test_tables_become_a_token_a_position_and_side(vision_family, slots, tmp_path):
    model = make(vision_family, slots=slots, query_vectors=2, page_vectors=4)
    encoder = model.encoder
    export_model(save(model, tmp_path / "model"), tmp_path / "out", slots=slots)
    exported, tokenizer = load_exported(tmp_path / "out")
    names = ["<|randslot_query_1|>", *(f"<|randslot_page_{i}|>" for i in (1, 2, 3))]
    rows = exported.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids(names)]
    assert torch.equal(rows[:1], encoder.slots.table("query"))
    assert torch.equal(rows[1:], encoder.slots.table("page"))


def test_an_embedding_with_room_keeps_its_size(tmp_path):
    shape = json.loads((Path(randslot.__file__).parent / "model" / "shapes" / "qwen3-vl-tiny.json").read_text())
    shape["config"]["text_config"]["vocab_size"] = 300
    (tmp_path / "roomy.json").write_text(json.dumps(shape))
    model = randslot.untrained(str(tmp_path / "roomy.json"), device="cpu")
    export_model(save(model, tmp_path / "model"), tmp_path / "out")
    exported, tokenizer = load_exported(tmp_path / "out")
    assert exported.config.text_config.vocab_size == len(exported.get_input_embeddings().weight) == 300
    assert not exported.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids("<|randslot_zero|>")].any()


def test_a_head_that_was_not_tied_is_tied(queries, tmp_path, monkeypatch):
    shape = json.loads((Path(randslot.__file__).parent / "model" / "shapes" / "qwen2.5-vl-tiny.json").read_text())
    shape["config"]["tie_word_embeddings"] = False
    (tmp_path / "untied.json").write_text(json.dumps(shape))
    model = randslot.untrained(str(tmp_path / "untied.json"), device="cpu")
    export_model(save(model, tmp_path / "model"), tmp_path / "out")
    load_exported(tmp_path / "out")
    assert far(follow(tmp_path / "out", monkeypatch)["encode_queries"](queries), model.encode_query(queries)) < 1e-5


def test_the_chat_template_holds_prompt_and_slots(tmp_path):
    export_model(save(make("qwen3-vl", query_vectors=2), tmp_path / "model"), tmp_path / "out")
    _, tokenizer = load_exported(tmp_path / "out")

    def render(content: Any) -> str:
        return str(tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False))

    assert render([{"type": "image"}]) == QwenVL.page_prompt + "<|randslot_zero|>" * 3
    assert render("tax") == render([{"type": "text", "text": "tax"}]) == "tax<|randslot_zero|>"
    with pytest.raises(Exception, match="one text or one image"):
        render([{"type": "image"}, {"type": "text", "text": "Describe the image."}])


def test_one_vector_a_side_needs_no_token(tmp_path, queries, monkeypatch):
    model = make("qwen3-vl", query_vectors=1, page_vectors=1)
    serving = export_model(save(model, tmp_path / "model"), tmp_path / "out")
    assert (serving["query_slots"], serving["page_prompt"]) == ("", QwenVL.page_prompt)
    assert far(follow(tmp_path / "out", monkeypatch)["encode_queries"](queries), model.encode_query(queries)) < 1e-5


def test_a_server_finds_the_files_it_wants(vision_family, tmp_path):
    export_model(save(make(vision_family, visual_tokens=64), tmp_path / "model"), tmp_path / "out")

    def read(name: str) -> dict[str, Any]:
        return json.loads((tmp_path / "out" / f"{name}.json").read_text())

    name, edge, video = WANTED[vision_family]
    assert read("config")["architectures"] == [f"{name}ForConditionalGeneration"]
    assert "auto_map" not in read("config")
    assert read("preprocessor_config")["size"]["longest_edge"] == edge
    if video:
        assert read("video_preprocessor_config")["video_processor_type"] == video
    else:
        assert read("processor_config") == {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    guide = (tmp_path / "out" / "SERVING.md").read_text()
    assert "__" not in guide
    assert "--pooler-config.task token_embed" in guide
    assert not any(line.startswith("|") for line in guide.splitlines())  # a "|" of a token would end a table's cell
    assert not (tmp_path / "out" / "modules.json").exists()  # vLLM would take it for another kind of model


def test_merged_in_bfloat16_the_vectors_stay_close(vision_family, pages, tmp_path):
    """Rounding the merged weights moves a vector no more than running in bfloat16 does anyway."""
    model = adapted(vision_family)
    export_model(save(model, tmp_path / "model"), tmp_path / "out", dtype="bfloat16")
    exact = torch.stack(model.encode_document(pages))
    exported, _ = load_exported(tmp_path / "out")
    assert exported.dtype == exported.config.text_config.dtype == torch.bfloat16
    (tmp_path / "out" / "serving.json").unlink()  # without it, a backbone like any other
    merged = randslot.load(tmp_path / "out", slots="zero", device="cpu", dtype="float32")
    half = randslot.load(tmp_path / "model", device="cpu", dtype="bfloat16")
    with safe_half_precision():
        usual = torch.stack(half.encode_document(pages))
    rounded = torch.stack(merged.encode_document(pages))
    error = 1 - (rounded * exact).sum(-1).min().item()
    assert 0 < error < 2 * (1 - (usual * exact).sum(-1).min().item())


@pytest.mark.parametrize(
    ("trained", "slots", "message"),
    [
        ("feedback", None, "slots='feedback': direct feedback makes each slot from the output before it"),
        ("feedback", "zero", "slots='feedback': direct feedback"),
        ("zero", "feedback", "'feedback' is not one of zero, fixed, learned: direct feedback"),
        ("tokens", None, "slots='tokens': a full-token model has no slots"),
        ("random", "random", "'random' is not one of zero, fixed, learned: random slots change"),
        ("random", "learned", "inference='learned' needs stored slots"),
        ("zero", "zeros", "slots 'zeros' is not one of zero, fixed, learned"),
    ],
)
def test_what_no_token_can_stand_for_is_refused(trained, slots, message, tmp_path):
    save(randslot.tiny("qwen3-vl", slots=trained), tmp_path / "model")
    with pytest.raises(UsageError, match=message) as caught:
        export_model(tmp_path / "model", tmp_path / "out", slots=slots)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_export_is_not_taken_for_a_model(tmp_path, monkeypatch, capsys):
    """As a bare backbone it would load with other settings, and find other pages without a word."""
    export_model(save(make("qwen3-vl"), tmp_path / "model"), tmp_path / "out")
    message = "out is an export for servers"
    with pytest.raises(RandSlotError, match=message):
        randslot.load(tmp_path / "out")
    with pytest.raises(RandSlotError, match=message):
        randslot.Library(tmp_path / "mylib", tmp_path / "out")
    assert run(monkeypatch, str(tmp_path / "out"), str(tmp_path / "again")) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_others_may_read_the_weights_as_far_as_the_other_files(tmp_path):
    """A server often runs as another user."""
    save(make("qwen3-vl", slots="learned"), tmp_path / "model")
    save(make("qwen3-vl", lora=True), tmp_path / "adapter")
    export_model(tmp_path / "model", tmp_path / "out")
    for folder, num in (("model", 2), ("adapter", 2), ("out", 1)):
        weights = list((tmp_path / folder).rglob("*.safetensors"))
        assert len(weights) == num
        config = next((tmp_path / folder).glob("*config.json"))
        assert {file.stat().st_mode for file in weights} == {config.stat().st_mode}


def test_random_at_inference_is_refused_and_says_what_to_do(tmp_path):
    save(randslot.tiny("qwen3-vl", inference="random"), tmp_path / "model")
    with pytest.raises(UsageError, match="export a model trained with them with slots zero"):
        export_model(tmp_path / "model", tmp_path / "out")
    export_model(tmp_path / "model", tmp_path / "out", slots="zero")


def test_places_that_cannot_take_it(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="full is not empty"):
        export_model("embedded", tmp_path / "full")
    with pytest.raises(UsageError, match=r"thesis.txt is a file: name a new folder"):
        export_model("embedded", tmp_path / "full" / "thesis.txt")
    with pytest.raises(UsageError, match="dtype 'int8' is not one of float32"):
        export_model("embedded", tmp_path / "out", dtype="int8")
    with pytest.raises(RandSlotError, match="no model found at"):
        export_model("nowhere at all", tmp_path / "out")
    with pytest.raises(UsageError, match="cannot write into"):
        export_model("embedded", tmp_path / "full" / "thesis.txt" / "out")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
