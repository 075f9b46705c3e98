"""train, pairs, distill and export: what they write, that they can be killed, and that exports need no randslot."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

import randslot
from contract.conftest import make_environment
from contract.pdf import write_pdf
from contract.session import Session, open_session
from support.pooling_server import TokenStates, serve

WORDS = ("tax", "fleet", "staff", "sales", "water", "steel", "paper", "crops")
QUERIES = [f"{word} in {year}" for word in WORDS[:4] for year in (2021, 2023)]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with open_session(tmp_path_factory.mktemp("home")) as opened:
        yield opened


def draw(word: str) -> Image.Image:
    page = Image.new("RGB", (96, 96), "white")
    ImageDraw.Draw(page).text((8, 30), word, fill="black", font_size=26)
    return page


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pairs of a word and a page that shows it."""
    rows = []
    for word in WORDS:
        draw(word).save(tmp_path / f"{word}.png")
        rows.append(json.dumps({"query": f"about {word}", "image": f"{word}.png"}))
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path / "pairs.jsonl"


@pytest.fixture
def manuals(tmp_path: Path) -> Path:
    folder = tmp_path / "manuals"
    (folder / "deep").mkdir(parents=True)
    outline = [("1 Introduction", 1), ("1.1 Setting the clock", 2), ("Cleaning", 2), ("Ordering parts", 3)]
    pages = [["The washer stands on four feet"], ["Turn the knob to set the clock"], ["Order parts by their numbers"]]
    write_pdf(folder / "washer.pdf", pages, outline)
    write_pdf(folder / "deep" / "dryer größer.pdf", [["A drum"], ["A belt"]], [("Cleaning", 1), ("2 Drum and belt", 2)])
    return folder


def small(data: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """A recipe that trains in a second."""
    return {
        "untrained": "qwen3-vl-tiny",
        "lora": False,
        "visual_tokens": 16,
        "data": str(data),
        "output": str(output),
        "batch": 4,
        "micro_batch": 0,
        "steps": 3,
        "epochs": 999,
        "optimizer": "adamw",
        "precision": "fp32",
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
        "workers": 0,
        "save_every": 0,
    } | changes


def write_recipe(recipe: dict[str, Any], file: Path) -> Path:
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in recipe.items()))
    return file


def read_losses(folder: Path) -> list[float]:
    with (folder / "losses.csv").open() as rows:
        return [float(row["loss"]) for row in csv.DictReader(rows)]


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# -- pairs


def test_pairs_from_outlines(run, manuals, tmp_path):
    answer = run("pairs", "manuals", "-o", "pairs.jsonl")
    assert answer.code == 0
    rows = {row["query"]: row["image"] for row in read_rows(tmp_path / "pairs.jsonl")}
    assert rows == {
        "Setting the clock": "manuals/washer.pdf#page=2",
        "Ordering parts": "manuals/washer.pdf#page=3",
        "Drum and belt": "manuals/deep/dryer größer.pdf#page=2",
    }
    assert run("pairs", "manuals", "-o", "below/queries.jsonl", "--spans", "3").code == 0
    spans = read_rows(tmp_path / "below" / "queries.jsonl")
    assert set(rows) < {row["query"] for row in spans}
    assert all((tmp_path / "below" / row["image"].partition("#")[0]).is_file() for row in spans)
    texts = (
        "The washer stands on four feet\nTurn the knob to set the clock\nOrder parts by their numbers\nA drum\nA belt"
    )
    assert all(row["query"] in texts for row in spans if row["query"] not in rows)
    for words, value in ((("nowhere", "-o", "x.jsonl"), "nowhere"), (("manuals", "-o", "below"), "below")):
        refused = run("pairs", *words)
        assert (refused.code, refused.out) == (2, "")
        assert value in refused.err.splitlines()[-1]
        assert "Traceback" not in refused.err
    (manuals / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    torn = run("pairs", "manuals", "-o", "again.jsonl")
    assert torn.code == 1
    assert "torn.pdf" in torn.err
    assert len(read_rows(tmp_path / "again.jsonl")) == 3


# -- train


def test_the_train_command(data, session, tmp_path):
    first = ["--set", "data=pairs.jsonl", "--set", "epochs=2", "--set", "visual_tokens=16", "--set", "save_every=1"]
    refused = {
        ("bogus",): (2, "bogus"),
        ("tiny", "--set", "bach=3"): (2, "batch"),  # the nearest key
        ("tiny", "--set", "batch=x"): (2, "'x'"),
        ("tiny", "--set", "batch"): (2, "batch"),
        ("tiny", "--set", "slots=rnd"): (2, "rnd"),
        ("tiny", "--set", "data=no.jsonl"): (2, "no.jsonl"),
        ("tiny", "--set", "data=pairs.jsonl", "--set", "batch=9"): (2, "9"),
        ("tiny", "--set", "data=torn.jsonl"): (1, "torn.jsonl"),
        ("tiny", "--set", "data=gone.jsonl", "-o", "runs/gone"): (1, "row 1"),
        ("wrong.toml",): (2, "learning_rat"),
        ("tiny", *first, "-o", "pairs.jsonl"): (2, "pairs.jsonl"),
        ("qwen2.5-vl-3b",): (1, "vidore/colpali_train_set"),
        ("qwen2.5-vl-3b", "--set", "slots=zero"): (1, "vidore/colpali_train_set"),
    }
    (tmp_path / "torn.jsonl").write_text("{")
    (tmp_path / "gone.jsonl").write_text(json.dumps({"query": "x", "image": "gone.png"}) + "\n")
    (tmp_path / "wrong.toml").write_text('untrained = "qwen3-vl-tiny"\nlearning_rat = 1\n')
    trained, again, resumed, dry, large, *others = session.run(
        [
            ["train", "tiny", *first, "-o", "runs/first"],
            ["train", "tiny", *first, "-o", "runs/first"],
            ["train", "tiny", *first, "-o", "runs/first", "--resume"],
            ["train", "tiny", *first, "--dry-run"],
            ["train", "qwen2.5-vl-3b", "--dry-run", "--devices", "8"],
            *[["train", *words] for words in refused],
        ],
        tmp_path,
    )
    assert trained.code == 0, trained.err
    folder = tmp_path / "runs" / "first"
    wanted = "recipe.toml run.json losses.csv losses.png README.md randslot.json modules.json model.safetensors"
    assert {*wanted.split(), "tensorboard", "checkpoints"} <= {file.name for file in folder.iterdir()}
    with (folder / "losses.csv").open() as rows:
        table = list(csv.DictReader(rows))
    assert [row["step"] for row in table] == ["1", "2"]
    assert {"step", "loss", "learning_rate"} <= table[0].keys()
    assert float(table[0]["learning_rate"]) == pytest.approx(2e-3)
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    assert (recipe["untrained"], recipe["epochs"], recipe["visual_tokens"]) == ("qwen3-vl-tiny", 2, 16)
    assert recipe["temperature"] == 0.07  # all values, not only those that differ
    record = json.loads((folder / "run.json").read_text())
    assert (record["steps"], record["seed"], record["processes"], record["device"]) == (2, 42, 1, "cpu")
    assert {"torch", "transformers", "randslot"} <= record["versions"].keys()
    model = randslot.load(folder)
    assert (model.settings.slots, model.encode_query("tax").shape) == ("random", (4, 64))
    again.assert_one_line(2, "runs/first")
    assert (resumed.code, json.loads((folder / "run.json").read_text())) == (0, record)
    assert dry.code == 0
    assert re.search(r"^steps\s+2\b", dry.out, re.MULTILINE)
    assert large.code == 0
    assert "118,195" in large.out
    assert re.search(r"^steps\s+923\b", large.out, re.MULTILINE)
    assert [float(value) for value in re.findall(r"\| weights \| ([\d.]+) \|", large.out)] == [pytest.approx(7.54)]
    for answer, (code, value) in zip(others, refused.values(), strict=True):
        answer.assert_one_line(code, value)
    assert sorted(file.name for file in (tmp_path / "runs").iterdir() if (file / "run.json").exists()) == ["first"]


def test_a_killed_run_resumes_with_the_losses_of_an_uninterrupted_one(data, run, start, tmp_path):
    recipe = small(data, tmp_path / "whole", lora=True, batch=3, steps=30, save_every=4)
    whole = randslot.train(recipe)
    killed = tmp_path / "killed"
    write_recipe(recipe | {"output": str(killed)}, tmp_path / "killed.toml")
    process = start("train", "killed.toml", stderr=subprocess.DEVNULL)
    while not (killed / "losses.csv").exists() or len(read_losses(killed)) < 10:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "run.json").exists()
    before = (killed / "losses.csv").read_text().splitlines()[:9]
    torn = killed / "checkpoints" / "checkpoint-9999"
    torn.mkdir()
    (torn / "trainer_state.json").write_text('{"epoch": ')
    assert run("train", "killed.toml", "--resume").code == 0
    assert read_losses(killed) == pytest.approx(read_losses(tmp_path / "whole"), abs=1e-6)
    assert len(read_losses(killed)) == 30
    assert (killed / "losses.csv").read_text().splitlines()[:9] == before  # with their speeds: not trained again
    assert (randslot.load(killed).encode_query("tax") - whole.encode_query("tax")).abs().max() < 1e-5


def test_torchrun_with_two_processes_gives_the_losses_of_one(data, home, tmp_path):
    """Zero slots and no dropout leave nothing random."""
    recipe = small(data, tmp_path / "one", slots="zero", lora=True, lora_dropout=0.0, micro_batch=1)
    randslot.train(recipe)
    write_recipe(recipe | {"output": str(tmp_path / "two")}, tmp_path / "two.toml")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "randslot", "train", "two.toml"],
        env=make_environment(home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_losses(tmp_path / "two") == pytest.approx(read_losses(tmp_path / "one"), abs=1e-5)
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == 2


@pytest.mark.parametrize("slots", ["random", pytest.param("learned", marks=pytest.mark.nightly)])
def test_training_learns(slots, data, tmp_path):
    """Four pairs, until each query finds its own page first."""
    rows = read_rows(data)[:4]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = randslot.train(small(data, tmp_path / "run", slots=slots, steps=150, learning_rate=5e-4, seed=1))
    queries = model.encode_query([row["query"] for row in rows])
    pages = model.encode_document([str(tmp_path / row["image"]) for row in rows])
    assert model.similarity(queries, pages).argmax(dim=1).tolist() == [0, 1, 2, 3]
    losses = read_losses(tmp_path / "run")
    assert losses[-1] < 0.1 < 1.0 < losses[0]
    assert torch.equal(randslot.load(tmp_path / "run").encode_query("tax"), model.encode_query("tax"))


@pytest.mark.parametrize("slots", ["random", "feedback"])
def test_ways_to_compute_a_step_give_the_same_losses(slots, data, tmp_path):
    """Micro-batches with and without a cache, checkpointed layers, and the paper's loop."""
    recipe = small(data, tmp_path / "whole", slots=slots, lora=True, lora_dropout=0.0)
    randslot.train(recipe)
    ways = [{"micro_batch": 1}, {"micro_batch": 2, "gradient_cache": False}, {"gradient_checkpointing": True}]
    if slots == "random":
        ways += [{"execution": "loop"}, {"workers": 1}]
    for number, way in enumerate(ways):
        randslot.train(recipe | way | {"output": str(tmp_path / str(number))})
        assert read_losses(tmp_path / str(number)) == pytest.approx(read_losses(tmp_path / "whole"), abs=2e-5), way


def test_strategies_and_seeds_change_losses_and_order_does_what_it_says(data, tmp_path):
    losses = {}
    changes = {
        "random": {"slots": "random"},
        "again": {"slots": "random"},
        "fixed": {"slots": "fixed"},
        "tokens": {"slots": "tokens"},
        "seed": {"slots": "random", "seed": 7},
        "nested": {"slots": "random", "prefixes": [1, 2, 4]},
        "still": {"slots": "random", "still_vision": True},
        "ordered": {"slots": "random", "shuffle": False},
        "window": {"slots": "random", "window": 4},
        "warmup": {"slots": "random", "warmup": 2},
    }
    for name, change in changes.items():
        randslot.train(small(data, tmp_path / name, **change))
        losses[name] = read_losses(tmp_path / name)
    assert losses["random"] == losses["again"]
    assert len({tuple(values) for values in losses.values()}) == len(changes) - 1
    assert losses["still"][0] == pytest.approx(losses["random"][0], abs=1e-4)


def test_texts_several_queries_and_bad_rows(data, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"query": word, "text": f"All about {word}."}) + "\n" for word in WORDS))
    reads = {"untrained": "llama-tiny", "page_column": "text", "page_texts": True}
    model = randslot.train(small(texts, tmp_path / "text", **reads))
    assert model.reads == "text"
    rows = [{"query": [row["query"], row["query"][6:]], "image": row["image"]} for row in read_rows(data)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    randslot.train(small(data, tmp_path / "several"))
    assert len(read_losses(tmp_path / "several")) == 3
    (tmp_path / "staff.png").write_bytes(b"not an image")
    with pytest.raises(randslot.RandSlotError, match=r"row 3|staff\.png") as caught:
        randslot.train(small(data, tmp_path / "bad", batch=8))
    assert "\n" not in str(caught.value)
    randslot.train(small(data, tmp_path / "skipped", batch=4, on_bad_row="skip"))
    validated = small(data, tmp_path / "validated", on_bad_row="skip", validate_every=2, validation=str(data))
    with pytest.raises(randslot.RandSlotError, match="gone"):
        randslot.train(validated | {"validation": "gone.jsonl"})
    with pytest.raises(randslot.UsageError, match="slots"):
        randslot.train(small(data, tmp_path / "skipped", slots="zero", on_bad_row="skip"), resume=True)


# -- distill


def test_the_distill_command(session, manuals, tmp_path):
    (tmp_path / "questions.txt").write_text("\n\n".join(QUERIES))
    shape = {"model_type": "llama", "tie_word_embeddings": True, "hidden_size": 32, "intermediate_size": 64}
    shape |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    (tmp_path / "narrow.json").write_text(json.dumps({"config": shape}))
    randslot.tiny("qwen3-vl", seed=0, visual_tokens=16).save_pretrained(str(tmp_path / "model"))
    randslot.tiny("llama", seed=0, lora=True).save_pretrained(str(tmp_path / "text-model"))
    randslot.tiny("llama", slots="tokens").save_pretrained(str(tmp_path / "tokens"))
    narrow = ["model", "-o", "light", "--student", "narrow.json", "--queries", "questions.txt", "--epochs", "60"]
    narrow += ["--rate", "1e-2", "--batch", "8", "--validation", "0"]
    own = ["text-model", "-o", "own", "--student", "text-model", "--layers", "1", "--freeze-embeddings"]
    own += ["--queries", "queries.jsonl", "--epochs", "1", "--batch", "4"]
    refused = {
        ("model", "-o", "x1", "--student", "HuggingFaceTB/SmolLM2-135M", "--queries", "questions.txt"): (1, "SmolLM2"),
        ("nowhere", "-o", "x2", "--student", "tiny", "--queries", "questions.txt"): (2, "nowhere"),
        ("model", "-o", "x3", "--student", "tiny", "--queries", "no.txt"): (2, "no.txt"),
        ("model", "-o", "x4", "--student", "model", "--queries", "questions.txt"): (2, "model"),
        ("tokens", "-o", "x5", "--student", "tiny", "--queries", "questions.txt"): (2, "tokens"),
        ("model", "-o", "x6", "--student", "tiny", "--queries", "questions.txt", "--epochs", "0"): (2, "--epochs"),
    }
    pairs, wide, learned, owned, again, resumed, index, search, wrong, *others = session.run(
        [
            ["pairs", "manuals", "-o", "queries.jsonl", "--spans", "8"],
            ["distill", "model", "-o", "wide", "--student", "tiny", "--queries", "questions.txt", "--epochs", "2"],
            ["distill", *narrow],
            ["distill", *own],
            ["distill", *own],
            ["distill", *own, "--resume"],
            ["index", "manuals", "-l", "mylib", "--model", "model", "--quiet"],
            ["search", "drum", "-l", "mylib", "--query-model", "light", "--by", "vectors", "--json"],
            ["search", "drum", "-l", "mylib", "--query-model", "own", "--by", "vectors"],
            *[["distill", *words] for words in refused],
        ],
        tmp_path,
    )
    assert [one.code for one in (pairs, wide, learned, owned, resumed, index)] == [0] * 6, learned.err + owned.err
    again.assert_one_line(2, "own")
    teacher, student = randslot.load(tmp_path / "model"), randslot.load(tmp_path / "light")
    wanted, found = (torch.stack(model.encode_query(QUERIES)) for model in (teacher, student))
    assert found.shape == wanted.shape == (8, 4, 64)
    assert (found * wanted).sum(dim=-1).mean() > 0.9
    assert student.teacher.weights == teacher.weights_key
    record = json.loads((tmp_path / "light" / "run.json").read_text())
    assert record["teacher"]["weights"] == teacher.weights_key
    assert len(json.loads((tmp_path / "wide" / "run.json").read_text())["cosines"]) == 2
    assert {Path(hit["source"]).name for hit in search.json} == {"washer.pdf", "dryer größer.pdf"}
    wrong.assert_one_line(2, "own")
    for answer, (code, value) in zip(others, refused.values(), strict=True):
        answer.assert_one_line(code, value)


@pytest.mark.nightly
def test_a_killed_distillation_resumes_to_the_same_student(session, start, tmp_path):
    (tmp_path / "questions.txt").write_text("\n".join(QUERIES))
    randslot.tiny("llama", seed=0).save_pretrained(str(tmp_path / "model"))
    words = ["distill", "model", "--student", "tiny", "--queries", "questions.txt", "--epochs", "150"]
    words += ["--batch", "4", "--save-every", "20", "-o"]
    process = start(*words, "light", stderr=subprocess.DEVNULL)
    before = set()
    while len(before) < 2:  # what it keeps to go on with, beside the vectors of the teacher
        assert process.poll() is None, "the run ended before it could be killed"
        before = {file.name for file in (tmp_path / "light").glob("*")} - {"teacher"}
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "light" / "run.json").exists()
    resumed, whole = session.run([[*words, "light", "--resume"], [*words, "whole"]], tmp_path)
    assert (resumed.code, whole.code) == (0, 0), resumed.err
    assert 0 < resumed.passes < whole.passes
    one, two = (torch.stack(randslot.load(tmp_path / name).encode_query(QUERIES)) for name in ("light", "whole"))
    assert (one - two).abs().max() < 1e-5


# -- export


def make_adapted(family: str, folder: Path, **options: Any) -> Any:
    """Save a model whose adapter does something."""
    model = randslot.tiny(family, seed=0, lora=True, visual_tokens=64, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(str(folder))
    return model


def follow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the code for plain transformers in SERVING.md; return what it defines."""
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", Path("SERVING.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = [block for block in blocks if "from transformers import" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def far(a: Any, b: Any) -> float:
    return float((torch.stack(list(a)) - torch.stack(list(b))).abs().max())


def test_exports_run_in_plain_transformers_and_on_a_server(session, tmp_path, monkeypatch):
    pages = [draw("tax"), draw("fleet").resize((160, 96))]
    texts = ["Deferred tax is 12 in 2023.", "The fleet has seven ships."]
    models = {
        "zero": make_adapted("qwen3-vl", tmp_path / "zero"),
        "learned": make_adapted("qwen2.5-vl", tmp_path / "learned", slots="learned", query_vectors=3, page_vectors=5),
        "fixed": make_adapted("qwen3.5", tmp_path / "fixed", slots="fixed"),
        "tiles": make_adapted("smolvlm", tmp_path / "tiles", slots="zero"),
        "text": make_adapted("llama", tmp_path / "text", slots="fixed"),
    }
    make_adapted("qwen3-vl", tmp_path / "feedback", slots="feedback")
    make_adapted("qwen3-vl", tmp_path / "tokens", slots="tokens")
    refused = {
        ("zero", "out-zero"): (2, "out-zero"),  # not empty
        ("zero", "out", "--slots", "fixed"): (2, "fixed"),
        ("zero", "out", "--dtype", "int4"): (2, "int4"),
        ("feedback", "out"): (2, "feedback"),
        ("tokens", "out"): (2, "tokens"),
        ("nowhere", "out"): (2, "nowhere"),
    }
    done = session.run(
        [
            *[["export", name, f"out-{name}"] for name in models],
            ["export", "zero", "exported", "--slots", "zero", "--dtype", "bfloat16"],
            *[["export", *words] for words in refused],
            ["export", "embedded", "out-embedded"],
        ],
        tmp_path,
    )
    assert [answer.code for answer in done[:6]] == [0] * 6, done
    for answer, (code, value) in zip(done[6:-1], refused.values(), strict=True):
        answer.assert_one_line(code, value)
    assert not (tmp_path / "out").exists()
    models["embedded"] = randslot.load("embedded", device="cpu")
    for name, model in models.items():
        folder = tmp_path / f"out-{name}"
        plain = follow(folder, monkeypatch)
        for found, expected in (
            (
                plain["encode_pages"](texts if name == "text" else pages),
                model.encode_document(texts if name == "text" else pages),
            ),
            (plain["encode_queries"](QUERIES), model.encode_query(QUERIES)),
        ):
            assert far(found, expected) < 1e-5, name
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(randslot.RandSlotError, match="out-zero"):
        randslot.load(tmp_path / "out-zero")

    folder = tmp_path / "out-learned"
    with serve(TokenStates(folder).answer, folder, wanted="secret") as url:
        remote = randslot.remote(url, token="secret")
        assert far(remote.encode_document(pages), models["learned"].encode_document(pages)) < 1e-5
        assert far(remote.encode_query(QUERIES), models["learned"].encode_query(QUERIES)) < 1e-5
        fewer = randslot.remote(url, folder / "serving.json", query_vectors=2, token="secret")
        assert fewer.encode_query("tax").shape == (2, 64)
        for options in ({}, {"folder": tmp_path / "out-zero", "token": "secret"}):
            with pytest.raises(randslot.RandSlotError) as caught:
                randslot.remote(url, **options).encode_query("tax")
            assert "\n" not in str(caught.value)
