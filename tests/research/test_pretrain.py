"""Reading: the loss is transformers' own next-token loss, padding changes nothing, and a run leaves a backbone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import randslot
import research
from randslot.errors import UsageError
from randslot.training.data import in_windows
from randslot.training.recipe import make_recipe
from randslot.training.train import read_losses
from research.pretrain import Pretraining, ReadingEvaluator, ReadingLoss, write_down
from research.samples.words import VOCABULARY
from support.models import make, own_inputs
from support.pairs import WORDS, draw_page, small

TEXTS = ["tax 12", "Größe\nder Flotte", "a"]


def slow_loss(model, text, page) -> tuple[torch.Tensor, int]:
    """One page, one sequence of ids through the plain backbone, the next token of each position of the text."""
    encoder = model.encoder
    features = encoder.preprocess([page], task="document")
    ids = encoder.tokenizer(text, add_special_tokens=False)["input_ids"] + [encoder.tokenizer.eos_token_id]
    whole = torch.cat([features["input_ids"], torch.tensor([ids])], dim=1)
    output = encoder.backbone(**own_inputs(model, features, whole))
    logits = output.last_hidden_state[0, -len(ids) - 1 : -1] @ encoder.backbone.get_input_embeddings().weight.T
    return F.cross_entropy(logits, torch.tensor(ids), reduction="sum"), len(ids)


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_the_loss_is_the_next_token_loss_of_the_plain_backbone(family, pages):
    model = make(family)
    features = [model.encoder.preprocess(TEXTS, task="query"), model.encoder.preprocess(pages, task="document")]
    found = ReadingLoss(model)(features)
    slow = [slow_loss(model, text, page) for text, page in zip(TEXTS, pages, strict=True)]
    expected = sum(loss for loss, _ in slow) / sum(num for _, num in slow)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_texts_are_ended_and_padding_has_no_label(pages):
    model = make("qwen3-vl")
    features = [model.encoder.preprocess(TEXTS, task="query"), model.encoder.preprocess(pages, task="document")]
    _, labels = write_down(model, *features)
    end = model.encoder.tokenizer.eos_token_id
    for text, row in zip(TEXTS, labels.tolist(), strict=True):
        kept = [label for label in row if label != -100]
        assert kept[-1] == end
        assert row[: len(kept)] == kept
        assert model.encoder.tokenizer.decode(kept[:-1]) == text


def test_the_share_read_right_is_counted_over_all_pages(pages):
    model = make("qwen3-vl")
    right = total = 0
    for text, page in zip(TEXTS, pages, strict=True):
        logits, labels = write_down(model, model.encoder.preprocess([text]), model.encoder.preprocess([page]))
        right, total = right + int((logits.argmax(-1) == labels).sum()), total + labels.numel()
    assert ReadingEvaluator(TEXTS, pages, batch=2)(model) == {"read": right / total}


def write_texts(folder) -> object:
    folder.mkdir()
    rows = []
    for word in WORDS.split()[:4]:
        draw_page(word).save(folder / f"{word}.png")
        rows.append(json.dumps({"text": word, "image": f"{word}.png"}))
    (folder / "texts.jsonl").write_text("\n".join(rows))
    return folder / "texts.jsonl"


@pytest.mark.nightly
def test_a_run_learns_to_read_and_leaves_a_backbone_for_any_strategy(tmp_path):
    data = write_texts(tmp_path / "data")
    recipe = small(data, tmp_path / "run", steps=120, learning_rate=3e-3, query_column="text", warmup=10)
    recipe |= {"validation": str(data), "validate_every": 60}
    model = Pretraining(make_recipe(recipe), resume=False).run()
    rows = read_losses(tmp_path / "run" / "losses.csv")
    assert float(rows[-1]["loss"]) < 0.3 < 3 < float(rows[0]["loss"])
    assert float(rows[0]["learning_rate"]) < 1e-3
    words, files = WORDS.split()[:4], [str(data.parent / f"{word}.png") for word in WORDS.split()[:4]]
    assert ReadingEvaluator(words, files)(model)["read"] > 0.9
    other = randslot.load(tmp_path / "run", slots="zero", visual_tokens=16)
    assert ReadingEvaluator(words, files)(other) == ReadingEvaluator(words, files)(model)


def test_reading_trains_all_weights_in_one_process(tmp_path, monkeypatch):
    recipe = small(write_texts(tmp_path / "data"), tmp_path / "run", query_column="text")
    with pytest.raises(UsageError, match="all weights"):
        Pretraining(make_recipe(recipe | {"lora": True}), resume=False).make_model()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one process"):
        Pretraining(make_recipe(recipe), resume=False).make_model()


@pytest.mark.parametrize("file", ["research/embedded.json", "benchmarks/light.json"])
def test_the_shapes_of_the_miniature_and_its_student_have_the_words_of_the_samples(file):
    shape = json.loads((Path(research.__file__).parents[1] / file).read_text())
    assert tuple(shape["words"].split()) == VOCABULARY


def test_a_curriculum_keeps_the_order_of_its_data():
    assert list(in_windows(1, 0, range(10), batch_size=4, drop_last=True, generator=None, seed=1)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
