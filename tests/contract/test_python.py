"""The Python names that the documentation shows."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from PIL import Image

import randslot
from contract.conftest import make_environment
from contract.pdf import write_pdf

HEAVY = ("torch", "transformers", "sentence_transformers", "peft", "datasets", "mteb", "sklearn", "matplotlib")


def run_python(home, code: str) -> str:
    """Run Python in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=make_environment(home), cwd=home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names():
    names = "Library RandSlotError Recipe Settings SlotEncoder UsageError __version__ load open_model remote tiny train"
    assert {*names.split(), "untrained"} <= set(randslot.__all__)
    for name in randslot.__all__:
        assert getattr(randslot, name) is not None
    assert issubclass(randslot.UsageError, randslot.RandSlotError)
    assert issubclass(randslot.RandSlotError, ValueError)
    with pytest.raises(AttributeError, match="lode"):
        _ = randslot.lode


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("load", "name lora device dtype attn_implementation revision backbone"),
        ("remote", "url folder query_vectors page_vectors timeout token"),
        ("untrained", "shape lora device dtype"),
        ("train", "recipe resume"),
        ("Library", "folder model query_model create repair trust_remote_code"),
        ("Settings", "slots inference query_vectors page_vectors visual_tokens seed reduction template text_tokens"),
        ("Recipe", "slots seed backbone untrained lora lora_rank lora_alpha lora_dropout still_vision data split"),
        ("Recipe", "query_column page_column page_texts shuffle window on_bad_row batch temperature repeated_pages"),
        ("Recipe", "prefixes epochs steps optimizer learning_rate rate_left warmup beta1 beta2 epsilon weight_decay"),
        ("Recipe", "clip micro_batch gradient_cache gradient_checkpointing execution precision workers output"),
        ("Recipe", "save_every validation validation_split validation_rows validate_every"),
    ],
)
def test_options_have_their_names(name, options):
    assert set(options.split()) <= set(inspect.signature(getattr(randslot, name)).parameters)


def test_defaults_are_those_of_the_paper():
    recipe = randslot.Recipe(backbone="Qwen/Qwen2.5-VL-3B-Instruct")
    assert (recipe.slots, recipe.query_vectors, recipe.page_vectors, recipe.seed) == ("random", 4, 4, 42)
    assert (recipe.lora, recipe.lora_rank, recipe.lora_alpha, recipe.lora_dropout) == (True, 16, 32, 0.05)
    assert (recipe.batch, recipe.epochs, recipe.temperature, recipe.clip) == (128, 1, 0.07, 1.0)
    assert (recipe.learning_rate, recipe.rate_left, recipe.weight_decay) == (2e-4, 0.5, 0.01)
    assert (recipe.beta1, recipe.beta2, recipe.epsilon, recipe.visual_tokens) == (0.9, 0.999, 1e-8, 1536)
    settings = randslot.Settings()
    assert (settings.slots, settings.inference, settings.visual_tokens) == ("random", "zero", 1536)
    assert (settings.reduction, settings.template, settings.text_tokens) == ("none", "paper", 1536)
    assert [randslot.Settings(slots=slots).inference for slots in ("zero", "fixed", "learned", "feedback")] == [
        "zero",
        "fixed",
        "learned",
        "feedback",
    ]


def test_importing_loads_nothing_heavy(home):
    loaded = f"print([name for name in {HEAVY} if name in __import__('sys').modules])"
    assert run_python(home, f"import randslot; randslot.__version__; {loaded}") == "[]"


def test_a_library_of_words_loads_nothing_heavy(home):
    write_pdf(home / "report.pdf", [["Wool and cotton"], ["Deferred tax is twelve million"]])
    code = f"""
import randslot, sys
with randslot.Library("lib") as library:
    summary = library.add("report.pdf")
    hits = library.search("deferred tax", k=1)
    assert library.status().pages == summary.pages == 2 and summary.encoded == 0
    print(hits[0].page, hits[0].by, [name for name in {HEAVY} if name in sys.modules])
"""
    assert run_python(home, code) == "2 words []"


def test_a_model_knows_about_itself(tmp_path):
    model = randslot.tiny("qwen3-vl", seed=0)
    assert (model.family.name, model.dimension, model.reads) == ("qwen3-vl", 64, "image")
    assert randslot.tiny("llama").reads == "text"
    assert model.teacher is None
    assert (model.identity.dtype, model.identity.dimension, model.identity.name) == ("float32", 64, None)
    assert model.identity.weights == model.weights_key == randslot.tiny("qwen3-vl", seed=0).weights_key
    assert model.weights_key != randslot.tiny("qwen3-vl", seed=1).weights_key
    assert isinstance(model.encoder, randslot.SlotEncoder)
    model.use(page_vectors=8, inference="random")
    assert (model.settings.page_vectors, model.settings.inference) == (8, "random")
    model.save_pretrained(str(tmp_path / "model"))
    assert str(tmp_path / "model") in str(randslot.load(tmp_path / "model").identity)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"slots": "rnd"}, "rnd"),
        ({"inference": "learned"}, "learned"),
        ({"query_vectors": 0}, "0"),
        ({"page_vectors": 2.5}, "2.5"),
        ({"dtype": "int8"}, "int8"),
        ({"lora": "yes"}, "yes"),
        ({"reduction": "magic"}, "magic"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_option_is_one_line_with_its_value(options, value):
    with pytest.raises(randslot.UsageError, match=value) as caught:
        randslot.tiny("qwen3-vl", **options)
    assert "\n" not in str(caught.value)


def test_settings_that_training_fixed_cannot_change():
    model = randslot.tiny("qwen3-vl")
    for change in ({"slots": "zero"}, {"template": "embedding"}, {"vectors": 3}, {"seed": "x"}):
        with pytest.raises(randslot.UsageError, match=next(iter(change))):
            model.use(**change)
    assert model.settings == randslot.tiny("qwen3-vl").settings


def test_what_cannot_be_read_is_one_line(tmp_path):
    model = randslot.tiny("qwen3-vl")
    (tmp_path / "torn.png").write_bytes(b"not an image")
    write_pdf(tmp_path / "report.pdf", [["One page"]])
    for page in ("missing.png", tmp_path / "torn.png", f"{tmp_path}/report.pdf#page=9"):
        with pytest.raises(randslot.RandSlotError, match=str(page).split("#")[0].rpartition("/")[2]) as caught:
            model.encode_document(str(page))
        assert "\n" not in str(caught.value)
    for query in ("", "  ", Image.new("RGB", (8, 8))):
        with pytest.raises(randslot.RandSlotError):
            model.encode_query([query])
    for name in ("nowhere-at-all", tmp_path):
        with pytest.raises(randslot.RandSlotError, match=str(name)) as caught:
            randslot.load(name)
        assert "\n" not in str(caught.value)


def test_pages_have_images_and_text(tmp_path):
    from randslot.pages import Page, num_pages

    file = write_pdf(tmp_path / "report.pdf", [["First"], ["Deferred tax", "in Oslo"]])
    assert num_pages(file) == 2
    page = Page.find(f"{file}#page=2")
    assert (page.number, page.name) == (2, Page(file, 2).name)
    text = page.text()
    assert text.text.split() == ["Deferred", "tax", "in", "Oslo"]
    assert (text.has_layer, text.truncated) == (True, False)
    word = text.words[2]
    assert word.text == "in"
    assert 0 < word.left < word.right < 0.5
    assert 0 < word.top < word.bottom < 0.2
    image = page.image(pixels=60_000)
    assert image.mode == "RGB"
    assert image.width * image.height == pytest.approx(60_000, rel=0.05)
    assert not Page(Image.new("RGB", (9, 9))).text().has_layer
