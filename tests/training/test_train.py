"""Whole runs through the real trainer: they learn, resume after a kill, and differ only in what is appended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from PIL import Image
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
from sentence_transformers.multi_vector_encoder.losses import (
    CachedMultiVectorMultipleNegativesRankingLoss,
)

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.training.recipe import make_recipe, read_recipe, write_recipe
from randslot.training.train import TrainingRun, read_losses
from research.samples.sets import write_set
from support.models import make
from support.pairs import small, write_pairs
from support.retrieval import embed_as_published, write_checkpoint

pytestmark = pytest.mark.slow

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def losses(folder: Path) -> list[float]:
    return [float(row["loss"]) for row in read_losses(folder / "losses.csv")]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "randslot", *words]


@pytest.mark.nightly
def test_a_retrieval_model_learns_nested_budgets_from_where_it_is(tmp_path):
    """The recipe's settings on a tiny copy: before a step one vector is the copy's own, then every budget learns."""
    data = write_pairs(tmp_path / "few", 4)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    queries, pages = [row["query"] for row in rows], [str(data.parent / row["image"]) for row in rows]
    shipped = read_recipe("qwen3-vl-embedding-2b")
    kept = {name: getattr(shipped, name) for name in ("template", "visual_tokens", "prefixes", "lora")}
    backbone = str(write_checkpoint(tmp_path / "checkpoint"))
    changes = {"steps": 160, "learning_rate": 2e-3, "rate_left": 0.0, "lora_dropout": 0.0, "seed": 3}
    recipe = make_recipe(small(data, tmp_path / "run", untrained="", backbone=backbone, **changes) | kept)

    fresh = TrainingRun(recipe, resume=False).make_model().eval()
    fresh.use(query_vectors=1, page_vectors=1)
    texts = [{"text": query} for query in queries]
    images = [{"image": Image.open(page)} for page in pages]
    for found, inputs in ((fresh.encode_query(queries), texts), (fresh.encode_document(pages), images)):
        assert (torch.cat(found) - embed_as_published(tmp_path / "checkpoint", inputs)).abs().max() < 1e-5
    before = fresh.similarity(fresh.encode_query(queries), fresh.encode_document(pages))
    assert before.argmax(dim=1).tolist() != [0, 1, 2, 3]

    model = randslot.train(recipe)
    assert json.loads((tmp_path / "run" / "randslot.json").read_text())["template"] == "embedding"
    for budget in (1, 2, 4):
        model.use(query_vectors=budget, page_vectors=budget)
        scores = model.similarity(model.encode_query(queries), model.encode_document(pages))
        assert scores.argmax(dim=1).tolist() == [0, 1, 2, 3], budget
    values = losses(tmp_path / "run")
    assert values[-1] < 0.1 < 1.0 < values[0]


@pytest.mark.nightly
def test_118195_rows_make_923_steps(tmp_path):
    """The last partial batch is dropped."""
    data = write_pairs(tmp_path / "data", 1)
    data.write_text(data.read_text() * 118_195)
    run = TrainingRun(make_recipe(small(data, tmp_path / "run", batch=128, steps=0, epochs=1)), resume=False)
    trainer = run.make_trainer(run.make_model(), run.load_pairs())
    assert len(trainer.get_train_dataloader()) == trainer.args.max_steps == 923


def test_a_pdf_is_rendered_as_large_as_the_visual_tokens_allow(tmp_path):
    """Whatever the side of a visual token: 32 pixels in real backbones, 48 in the embedded one."""
    write_set(tmp_path / "set", 2, split="train", seed=0)
    recipe = small(
        tmp_path / "set" / "pairs.jsonl", tmp_path / "run", untrained="research/embedded.json", visual_tokens=54
    )
    (grids,) = (batch for name, batch in first_batches(recipe)[0][0].items() if name.endswith("image_grid_thw"))
    assert grids.tolist() == [[1, 18, 12]] * 4


def first_batches(recipe: dict[str, object]) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    run = TrainingRun(make_recipe(recipe), resume=False)
    model = run.make_model()
    batches = list(run.make_trainer(model, run.load_pairs()).get_train_dataloader())[:2]
    return batches, {name: tensor.clone() for name, tensor in model.encoder.backbone.state_dict().items()}


def test_controls_differ_only_in_the_appended_inputs(data, tmp_path):
    """Same initial weights and adapters, same batches under one seed; another seed changes both."""
    batches, weights = first_batches(small(data, tmp_path / "a", lora=True, slots="random"))
    for number, strategy in enumerate(("learned", "feedback")):
        others, other_weights = first_batches(small(data, tmp_path / str(number), lora=True, slots=strategy))
        for a, b in zip(batches, others, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[key], b[key]) for key in a if isinstance(a[key], torch.Tensor))
        assert weights.keys() == other_weights.keys()
        assert all(torch.equal(weights[key], other_weights[key]) for key in weights)
    shuffled, fresh = first_batches(small(data, tmp_path / "b", lora=True, slots="random", seed=123))
    assert not torch.equal(batches[0]["query_keys"], shuffled[0]["query_keys"])
    assert any(not torch.equal(weights[key], fresh[key]) for key in weights)


def test_a_run_that_was_killed_before_it_was_saved_has_no_step_too_many(data, tmp_path):
    """After the last step and before the final model: what is left is the checkpoint before."""
    recipe = make_recipe(small(data, tmp_path / "run", steps=4, save_every=2))
    randslot.train(recipe)
    losses = (tmp_path / "run" / "losses.csv").read_text().splitlines()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["checkpoint-2"]
    (tmp_path / "run" / "run.json").unlink()
    randslot.train(recipe, resume=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["steps"] == 4
    again = (tmp_path / "run" / "losses.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in again] == [line.split(",")[:2] for line in losses]


def test_a_run_is_not_overwritten_and_not_mixed_with_another(data, tmp_path):
    recipe = small(data, tmp_path / "run")
    randslot.train(recipe)
    with pytest.raises(UsageError, match=r"already holds a run\. Add --resume"):
        randslot.train(recipe)
    with pytest.raises(UsageError, match="holds a run with slots = 'random'"):
        randslot.train(recipe | {"slots": "zero"}, resume=True)
    randslot.train(recipe | {"output": f"{tmp_path}/./run", "micro_batch": 1}, resume=True)  # these may differ


def test_what_would_fail_at_the_end_is_said_at_the_start(data, tmp_path):
    randslot.tiny("qwen3-vl").save_pretrained(str(tmp_path / "backbone"))
    backbone = {"untrained": "", "backbone": str(tmp_path / "backbone"), "lora": True}
    with pytest.raises(UsageError, match="is the backbone's own folder"):
        randslot.train(small(data, tmp_path / "backbone", **backbone))
    with pytest.raises(UsageError, match="no pairs at gone"):
        randslot.train(small(data, tmp_path / "run", validation="gone.jsonl", validate_every=1))
    assert not (tmp_path / "run").exists()


def test_learned_tables_have_the_optimizer_settings_of_the_adapter(data, tmp_path):
    recipe = make_recipe(small(data, tmp_path / "run", slots="learned", lora=True, learning_rate=2e-4))
    run = TrainingRun(recipe, resume=False)
    model = run.make_model()
    optimizer = run.make_trainer(model, run.load_pairs()).create_optimizer()
    (group,) = [group for group in optimizer.param_groups if group["params"]]
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters() if p.requires_grad}
    assert id(model.encoder.slots.tables.weight) in {id(p) for p in group["params"]}
    assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == (2e-4, 0.01, (0.9, 0.999), 1e-8)


def test_validation_searches_held_out_pairs_during_training(data, tmp_path, capsys):
    """And change nothing by looking."""
    held_out = write_pairs(tmp_path / "held", 4)
    randslot.train(small(data, tmp_path / "run", steps=4, validation=str(held_out), validate_every=2))
    lines = [line for line in capsys.readouterr().err.splitlines() if "validation nDCG@5" in line]
    assert [line.split(":")[0] for line in lines] == ["step 2", "step 4"]
    randslot.train(small(data, tmp_path / "blind", steps=4))
    assert losses(tmp_path / "blind") == losses(tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["qwen3.5", "smolvlm"])
def test_other_families_train_with_the_same_losses_in_every_execution(family, data, tmp_path):
    common = {"untrained": f"{family}-tiny", "lora": True, "lora_dropout": 0.0}
    ways = [{"micro_batch": 0}, {"micro_batch": 1, "gradient_checkpointing": True, "workers": 1}]
    for number, way in enumerate(ways):
        model = randslot.train(small(data, tmp_path / f"run{number}", **common, **way))
    plain, cached = losses(tmp_path / "run0"), losses(tmp_path / "run1")
    assert len(set(plain)) == 3
    assert cached == pytest.approx(plain, abs=1e-4)
    again = randslot.load(tmp_path / "run1")
    assert torch.equal(again.encode_query("tax"), model.encode_query("tax"))


def test_a_broken_image_stops_the_run_in_one_line_or_is_counted(data, tmp_path):
    (data.parent / "staff.png").write_bytes(b"not an image")
    with pytest.raises(RandSlotError, match=r"^\S*pairs\.jsonl: row 3: not an image that can be read: \S+$") as caught:
        randslot.train(small(data, tmp_path / "run", batch=8, workers=1))
    assert "\n" not in str(caught.value)
    randslot.train(small(data, tmp_path / "run", batch=8, on_bad_row="skip"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["broken_images_skipped"] == 1
    assert "row 3" in (tmp_path / "run" / "skipped_rows.txt").read_text()


def test_a_loss_that_is_no_number_stops_the_run(data, tmp_path):
    with pytest.raises(RandSlotError, match=r"the loss is nan at step .*lower learning_rate"):
        randslot.train(small(data, tmp_path / "run", steps=5, learning_rate=1e6, clip=1e30))


def test_a_batch_that_processes_cannot_share_is_said(data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(UsageError, match="batch = 4 is not divisible by 8 processes"):
        randslot.train(small(data, tmp_path / "run"))


WATCHED = """
import os, sys, torch, randslot
from randslot.model.slots import Random
from randslot.training.recipe import read_recipe
from randslot.training.train import TrainingRun

drawn, rank, draw = [], os.environ["RANK"], Random.forward
Random.forward = lambda self, *ask: drawn.append(draw(self, *ask)) or drawn[-1]
run = TrainingRun(read_recipe(sys.argv[1]), resume=False)
make_model = run.make_model
def remember():
    model = make_model()
    run.start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    return model
run.make_model = remember
model = run.run()
end = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
torch.save({"drawn": [d.detach() for d in drawn], "start": run.start, "end": end}, f"{sys.argv[2]}/rank{rank}.pt")
"""


def torchrun(*words: str) -> None:
    base = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    answer = subprocess.run([*base, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr[-3000:]


@pytest.mark.nightly
def test_processes_draw_different_slots_while_adapters_start_and_end_equal(data, tmp_path):
    write_recipe(make_recipe(small(data, tmp_path / "run", lora=True, steps=2)), tmp_path / "recipe.toml")
    (tmp_path / "watched.py").write_text(WATCHED)
    torchrun(str(tmp_path / "watched.py"), str(tmp_path / "recipe.toml"), str(tmp_path))
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert len(first["drawn"]) == 4  # two steps, a query and a page side each
    for a, b in zip(first["drawn"], second["drawn"], strict=True):
        assert not torch.isclose(a, b).all(dim=-1).any()
    for part in ("start", "end"):
        assert first[part].keys() == second[part].keys()
        assert all(torch.equal(first[part][name], second[part][name]) for name in first[part])
    assert any(not torch.equal(first["start"][name], first["end"][name]) for name in first["start"])


def test_sentence_transformers_own_trainer_works_as_it_is(data, tmp_path):
    """No recipe, no run of ours: a model, an ordinary dataset, a loss."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    dataset = Dataset.from_dict(
        {"query": [row["query"] for row in rows], "page": [str(data.parent / row["image"]) for row in rows]}
    )
    model = make("qwen3-vl", lora=True, visual_tokens=16)
    loss = CachedMultiVectorMultipleNegativesRankingLoss(model, scale=10.0)
    args = MultiVectorEncoderTrainingArguments(
        str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=4, save_steps=2, report_to=[], use_cpu=True
    )
    trainer = MultiVectorEncoderTrainer(model=model, args=args, train_dataset=dataset, loss=loss)
    trainer.train()
    again = randslot.load(tmp_path / "out" / "checkpoint-2")
    assert torch.equal(again.encode_query("tax"), model.encode_query("tax"))
