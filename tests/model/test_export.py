"""An exported folder gives the vectors of the model it came from: in plain transformers, by its own instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.model.export import export_model
from randslot.model.families.qwen_vl import QwenVL
from support.exports import adapted, far, follow, save
from support.models import make, noise, safe_half_precision

pytestmark = pytest.mark.slow

# The class that servers know, what a page is limited to at 64 visual tokens, and the video processor.
WANTED = {
    "qwen2.5-vl": ("Qwen2_5_VL", 64 * 28**2, "Qwen2VLVideoProcessor"),
    "qwen3-vl": ("Qwen3VL", 64 * 32**2, "Qwen3VLVideoProcessor"),
    "qwen3.5": ("Qwen3_5", 64 * 32**2, "Qwen3VLVideoProcessor"),
    "smolvlm": ("Idefics3", 3 * 32, ""),
}


def test_plain_transformers_gives_the_same_vectors(family, pages, queries, tmp_path, monkeypatch):
    model = adapted(family, slots="learned", query_vectors=3, page_vectors=5)
    export_model(save(model, tmp_path / "model"), tmp_path / "out")
    plain = follow(tmp_path / "out", monkeypatch)
    vectors = model.encode_document(pages)
    assert vectors[0].shape == (5, 64)
    assert far(plain["encode_pages"](pages), vectors) < 1e-5
    assert far([plain["encode_pages"]([page])[0] for page in pages], vectors) < 1e-5
    vectors = model.encode_query(queries)  # after pages, whose positions a backbone might remember
    assert vectors[0].shape == (3, 64)
    assert far(plain["encode_queries"](queries), vectors) < 1e-5
    assert far([plain["encode_queries"]([query])[0] for query in queries], vectors) < 1e-5


def test_the_embedded_model_by_the_command_line(tmp_path, monkeypatch):
    answer = CliRunner().invoke(app, ["export", "embedded", str(tmp_path / "out"), "--slots", "zero"])
    assert answer.exit_code == 0, answer.exception
    assert "4 vectors per query, 4 per page, zero slots" in answer.stdout
    plain, model = follow(tmp_path / "out", monkeypatch), randslot.load("embedded", device="cpu")
    pages, queries = [noise(256, 352, 1), noise(300, 200, 2)], ["Quebec traffic", "sales of wool, Oslo report"]
    assert far(plain["encode_pages"](pages), model.encode_document(pages)) < 1e-5
    assert far(plain["encode_queries"](queries), model.encode_query(queries)) < 1e-5


def test_a_random_model_goes_out_with_zeros_by_itself(pages, tmp_path, monkeypatch):
    model = make("qwen3-vl", slots="random")
    serving = export_model(save(model, tmp_path / "model"), tmp_path / "out")
    assert serving["settings"]["inference"] == "zero"
    assert far(follow(tmp_path / "out", monkeypatch)["encode_pages"](pages), model.encode_document(pages)) < 1e-5


def load_exported(folder: Path) -> tuple[Any, Any]:
    model, report = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    return model, AutoTokenizer.from_pretrained(folder)


def test_the_zero_token_is_one_row_of_zeros(tmp_path):
    export_model(save(make("qwen3-vl"), tmp_path / "model"), tmp_path / "out")
    model, tokenizer = load_exported(tmp_path / "out")
    ids = tokenizer("tax<|randslot_zero|><|randslot_zero|>")["input_ids"]
    last = len(make("qwen3-vl").tokenizer)
    assert ids[-2:] == [last, last]  # one token, behind those that were there
    assert len(tokenizer) == len(model.get_input_embeddings().weight) == model.config.text_config.vocab_size == last + 1
    assert not model.get_input_embeddings().weight[last].any()
    assert model.lm_head.weight is model.get_input_embeddings().weight


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


def test_merged_in_bfloat16_the_vectors_stay_close(pages, tmp_path):
    """Rounding the merged weights moves a vector no more than running in bfloat16 does anyway."""
    model = adapted("qwen3-vl")
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
        ("feedback", None, "slots='feedback': direct feedback needs a pass per slot"),
        ("tokens", None, "slots='tokens': a full-token model has no slots"),
        ("random", "random", "slots='random': random slots cannot be exported"),
    ],
)
def test_what_no_token_can_stand_for_is_refused(trained, slots, message, tmp_path):
    save(randslot.tiny("qwen3-vl", slots=trained), tmp_path / "model")
    with pytest.raises(UsageError, match=message) as caught:
        export_model(tmp_path / "model", tmp_path / "out", slots=slots)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_export_is_not_taken_for_a_model(tmp_path):
    """As a bare backbone it would load with other settings, and find other pages without a word."""
    export_model(save(make("qwen3-vl"), tmp_path / "model"), tmp_path / "out")
    message = "out is an export for servers"
    with pytest.raises(RandSlotError, match=message):
        randslot.load(tmp_path / "out")
    with pytest.raises(RandSlotError, match=message):
        randslot.Library(tmp_path / "mylib", tmp_path / "out")


def test_places_that_cannot_take_it(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="full is not empty"):
        export_model("embedded", tmp_path / "full")
    with pytest.raises(UsageError, match="dtype='int8' is not one of float32"):
        export_model("embedded", tmp_path / "out", dtype="int8")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


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
