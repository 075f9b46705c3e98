"""A student learns a teacher's vectors of queries from queries alone, stops and goes on, and says whose they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model.model import RandSlotModel, make_student
from randslot.model.reader import narrow
from randslot.training.distill import Distillation, StudentTraining, distill, read_queries
from support.models import make
from support.others import save_minilm

QUERIES = [f"{word} in {year}" for word in ("tax", "fleet", "staff", "sales") for year in (2021, 2023)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("teachers") / "large"
    make("qwen3-vl", visual_tokens=16).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("queries") / "questions.txt"
    file.write_text("\n\n".join(QUERIES), encoding="utf-8")
    return file


@pytest.fixture
def options(teacher, questions, tmp_path) -> Distillation:
    return Distillation(
        str(teacher), "tiny", (str(questions),), str(tmp_path / "light"), epochs=2, batch=3, learning_rate=1e-3
    )


def shape(folder: Path, **changes: int) -> str:
    """Write the shape of a student that is narrower than its teacher."""
    config = {"model_type": "llama", "tie_word_embeddings": True, "hidden_size": 32, "intermediate_size": 64}
    config |= {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, **changes}
    file = folder / "narrow.json"
    file.write_text(json.dumps({"config": config}))
    return str(file)


def vectors(model: RandSlotModel) -> np.ndarray:
    return np.stack(model.embed_queries(QUERIES))


def test_a_student_learns_its_teachers_vectors_and_is_a_saved_model(options, teacher, tmp_path):
    narrow = replace(options, student=shape(tmp_path), epochs=80, batch=8, learning_rate=1e-2, validation=0.0)
    learned = distill(narrow)
    loaded, large = randslot.load(narrow.output), randslot.load(teacher)
    assert np.array_equal(vectors(loaded), vectors(learned))
    wanted = vectors(large)
    assert vectors(loaded).shape == wanted.shape == (len(QUERIES), 4, 64)
    assert (vectors(loaded) * wanted).sum(-1).mean() > 0.97
    assert np.allclose(np.linalg.norm(vectors(loaded), axis=-1), 1)
    scores = np.einsum("qkd,pkd->qp", vectors(loaded), wanted)
    assert (scores.argmax(1) == np.arange(len(QUERIES))).all()
    assert loaded.teacher == large.identity
    assert loaded.dimension == 64 != loaded.encoder.hidden_size
    assert loaded.weights_key == learned.weights_key != large.weights_key
    assert "A distilled query encoder" in Path(narrow.output, "README.md").read_text()
    for page in (Image.new("RGB", (64, 64)), "the text of a page"):
        with pytest.raises(UsageError, match=r"encodes queries only.*large"):
            loaded.embed_pages([page])
    assert loaded.embed_queries(["tax"], num_vectors=2)[0].shape == (2, 64)
    with pytest.raises(UsageError, match="makes at most 4"):
        loaded.embed_queries(["tax"], num_vectors=5)
    with pytest.raises(UsageError, match="is a student itself"):
        distill(replace(options, teacher=narrow.output, output=str(tmp_path / "b")))
    with pytest.raises(UsageError, match=r"was distilled from .*large.*, not other .*"):
        make_student(narrow.output, replace(large.identity, weights="x", name="other"))


def test_a_student_learns_its_teachers_widths(options, tmp_path, monkeypatch):
    """The loss is the mean over the full width and each nested one, of vectors that are cut and compared by angle."""
    nested = tmp_path / "nested"
    make("qwen3-vl", visual_tokens=16, widths=(8, 32, 64)).save_pretrained(str(nested))
    losses: list[tuple[float, float]] = []
    original = StudentTraining.train_step

    def step(training: StudentTraining, rows: np.ndarray) -> float:
        model = training.student.train()
        found = model(model.preprocess([training.queries[row] for row in rows], task="query"))["token_embeddings"]
        cosines = []
        for width in (64, 8, 32):  # 64 is all
            one, other = (np.asarray(side)[..., :width] for side in (found.detach(), training.vectors[rows]))
            lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other.astype(np.float32), axis=-1)
            cosines.append((one * other).sum(-1) / lengths)
        losses.append((original(training, rows), 1 - float(np.mean(cosines))))
        return losses[-1][0]

    monkeypatch.setattr(StudentTraining, "train_step", step)
    student = distill(replace(options, teacher=str(nested)))
    assert len(losses) == 6
    for found, expected in losses:
        assert found == pytest.approx(expected, abs=1e-5)
    assert student.settings.widths == randslot.load(options.output).settings.widths == (8, 32)
    full = vectors(student)
    student.use(width=8)
    assert np.array_equal(vectors(student), narrow(full, 8))


def test_of_a_model_that_makes_vectors_the_last_layer_is_kept_too(teacher, tmp_path):
    """In a language model the first layers are nearest to vectors; in a trained model the last one makes them."""
    identity = randslot.load(teacher).identity
    randslot.untrained(shape(tmp_path), slots="zero").save_pretrained(str(tmp_path / "trained"))
    all_layers = make_student(str(tmp_path / "trained"), identity).encoder.backbone.layers
    for name, layers, kept in ((str(tmp_path / "trained"), 2, [0, 2]), (str(tmp_path / "trained"), 1, [0])):
        student = make_student(name, identity, layers=layers)
        for layer, place in zip(student.encoder.backbone.layers, kept, strict=True):
            assert torch.equal(layer.mlp.up_proj.weight, all_layers[place].mlp.up_proj.weight)
        assert student.embed_queries(["tax"])[0].shape == (4, 64)
    bare = make_student(shape(tmp_path), identity, layers=2, seed=3).encoder.backbone.layers
    whole = make_student(shape(tmp_path), identity, seed=3).encoder.backbone.layers
    assert torch.equal(bare[1].mlp.up_proj.weight, whole[1].mlp.up_proj.weight)


def test_a_text_model_with_an_adapter_can_be_its_own_student(options, tmp_path):
    """Merged, it makes the vectors of the teacher; with fewer layers it begins near them, and learns all weights."""
    large = randslot.tiny("llama", lora=True)
    torch.manual_seed(0)
    for name, weight in large.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight.data, std=0.1)
    large.save_pretrained(str(tmp_path / "adapter"))
    student = make_student(str(tmp_path / "adapter"), large.identity)
    assert np.abs(vectors(student) - vectors(large)).max() < 1e-5
    assert all(weight.requires_grad for weight in student.parameters())
    made = replace(options, teacher=str(tmp_path / "adapter"), student=str(tmp_path / "adapter"), layers=1)
    learned = distill(made)
    assert np.array_equal(vectors(randslot.load(made.output)), vectors(learned))


def test_a_student_learns_on_from_where_it_is(options, tmp_path):
    first = replace(options, student=shape(tmp_path), validation=0.0)
    before = distill(first)
    start = make_student(first.output, before.teacher)
    assert np.array_equal(vectors(start), vectors(before))  # its projection too
    after = distill(replace(first, student=first.output, output=str(tmp_path / "again")))
    wanted = vectors(randslot.load(options.teacher))
    assert (vectors(after) * wanted).sum(-1).mean() > (vectors(before) * wanted).sum(-1).mean()


def test_a_model_of_one_vector_can_be_a_teacher(options, tmp_path):
    folder = save_minilm(tmp_path / "minilm")
    student = distill(replace(options, teacher=str(folder)))
    assert vectors(student).shape == (len(QUERIES), 1, randslot.open_model(str(folder)).dimension)


# -- stop and go on


class Stopped(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    original = StudentTraining.train_step

    def step(training: StudentTraining, rows: np.ndarray) -> float:
        if training.step == steps:
            raise Stopped
        return original(training, rows)

    monkeypatch.setattr(StudentTraining, "train_step", step)


def test_a_run_that_was_stopped_goes_on_to_the_same_student(options, tmp_path, monkeypatch):
    whole = distill(replace(options, output=str(tmp_path / "whole")))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(Stopped):
            distill(replace(options, save_every=2))
    with pytest.raises(UsageError, match=r"already holds a run\. Add --resume"):
        distill(options)
    with pytest.raises(UsageError, match="a run with learning_rate = "):
        distill(replace(options, learning_rate=1e-4), resume=True)
    monkeypatch.setattr("randslot.training.distill.open_torch_model", None)  # all vectors are on disk
    resumed = distill(options, resume=True)
    assert resumed.weights_key == whole.weights_key
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("whole", "light")]
    assert records[0]["cosines"] == records[1]["cosines"]
    assert not (tmp_path / "light" / "checkpoint.pt").exists()
    assert distill(options, resume=True).weights_key == whole.weights_key  # finished already


def test_a_run_without_its_student_can_start_again(options):
    with pytest.raises(RandSlotError, match="owner/student"):
        distill(replace(options, student="owner/student"))
    distill(options)


def test_a_teacher_that_was_stopped_goes_on_where_it_was(options, monkeypatch):
    monkeypatch.setattr("randslot.training.distill.AT_ONCE", 4)
    asked: list[str] = []
    original = RandSlotModel.embed_queries

    def embed(model, queries, num_vectors=None):
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.extend(queries)
        return original(model, queries, num_vectors)

    with monkeypatch.context() as patch:
        patch.setattr(RandSlotModel, "embed_queries", embed)
        with pytest.raises(KeyboardInterrupt):
            distill(options)
    file = Path(options.output, "teacher", "vectors.f16")
    assert file.stat().st_size == 4 * 4 * 64 * 2
    with file.open("ab") as half:
        half.write(b"123")
    distill(options, resume=True)
    kept = np.fromfile(file, np.float16).reshape(len(QUERIES), 4, 64)
    wanted = np.stack(original(randslot.load(options.teacher), QUERIES))
    assert np.abs(kept - wanted).max() < 1e-3


def test_students_share_what_the_teacher_said(options, tmp_path, monkeypatch):
    shared = replace(options, cache=str(tmp_path / "cache"))
    distill(shared)
    with monkeypatch.context() as patch:
        patch.setattr(RandSlotModel, "embed_queries", None)
        distill(replace(shared, output=str(tmp_path / "second"), seed=1))
    other = tmp_path / "other"
    randslot.tiny("qwen3-vl", seed=1).save_pretrained(str(other))
    with pytest.raises(UsageError, match=r"has vectors of .*large.*not of .*other"):
        distill(replace(shared, teacher=str(other), output=str(tmp_path / "third")))


# -- how it learns


def test_freeze_embeddings_stay_as_they_were(options):
    student = distill(replace(options, freeze_embeddings=True, precision="bf16-anywhere"))
    start = make_student("tiny", student.teacher, seed=options.seed)
    name = "embed_tokens.weight"
    before, after = start.encoder.backbone.state_dict(), student.encoder.backbone.state_dict()
    assert torch.equal(before[name], after[name])
    assert not torch.equal(before["norm.weight"], after["norm.weight"])
    assert distill(replace(options, output=options.output + "2")).weights_key != student.weights_key


# -- queries, and what is refused


def test_queries_come_from_lines_and_from_rows(tmp_path):
    (tmp_path / "a.txt").write_text("tax\n\n  fleet \ntax\n")
    rows = [{"query": ["staff", "sales"], "image": "x.png"}, {"query": ["tax"], "image": "y.png"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_queries([str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]) == ["tax", "fleet", "staff", "sales"]


def test_bad_queries_are_told_in_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"query": "tax"}\n{"query": " "}')
    with pytest.raises(RandSlotError, match="row 2: empty query"):
        read_queries([str(tmp_path / "a.jsonl")])
    with pytest.raises(RandSlotError, match=r"no pairs at .*missing\.txt"):
        read_queries([str(tmp_path / "missing.txt")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student": "qwen3-vl-tiny"}, "is a qwen3-vl model. Pass a text model"),
        ({"layers": 9}, "layers=9: this llama model has 2"),
    ],
)
def test_wrong_options_are_told_in_one_line(options, changes, message):
    with pytest.raises(UsageError, match=message):
        distill(replace(options, **changes))
