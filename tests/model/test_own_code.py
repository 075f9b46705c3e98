"""A strategy from a user's file goes all the way, and code of a model runs only when it is trusted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.model import own_code
from randslot.model.slots import STRATEGIES
from randslot.training.recipe import make_recipe, write_recipe
from research.samples.sets import write_set
from support.pairs import small, write_pairs

ROOT = Path(__file__).parent.parent.parent


def read_guide() -> str:
    """The file of the guide "a new strategy in ten lines"."""
    guide = (ROOT / "docs" / "models.md").read_text()
    (code,) = re.findall(r"```python\n(# my_slots\.py\n.*?)```", guide, flags=re.S)
    return code


def forget(monkeypatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(own_code, "SOURCES", {})
    for name in [name for name in STRATEGIES if ":" in name]:
        monkeypatch.delitem(STRATEGIES, name)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the file of the guide, and a user who has trusted nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    forget(monkeypatch)
    monkeypatch.setattr(own_code, "STRATEGIES", STRATEGIES)
    Path("my_slots.py").write_text(read_guide())
    yield tmp_path
    for name in [name for name in STRATEGIES if ":" in name]:
        del STRATEGIES[name]


def run(*words: object) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, (answer.output, answer.exception)
    return answer.output


def train(*words: object) -> None:
    write_pairs(Path("data"))
    write_recipe(make_recipe(small(Path("data/pairs.jsonl"), Path("noisy"), steps=1)), Path("small.toml"))
    run("train", "small.toml", *words)


def test_the_guide_is_ten_lines_and_trains_evaluates_indexes_and_is_refused_by_export(place, monkeypatch):
    lines = read_guide().partition("class Noisy")[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= 10
    train("--strategy", "my_slots.py:Noisy")
    assert Path("noisy/my_slots.py").read_text() == read_guide()
    assert json.loads(Path("noisy/randslot.json").read_text())["slots"] == "my_slots:Noisy"
    forget(monkeypatch)
    write_set(place / "set", 1, split="test", seed=0)
    run("evaluate", "noisy", "--data", "set", "-o", "results")
    forget(monkeypatch)
    assert "| noisy, my_slots:Noisy |" in run("analyse", "results")  # it need not be known for that
    Path("home/randslot/trusted.json").unlink()  # as on the machine of somebody else
    run("evaluate", "noisy", "--strategy", "my_slots.py:Noisy", "--data", "set", "-o", "results")
    forget(monkeypatch)
    run("index", "data", "-l", "library", "--model", "noisy", "--trust-remote-code", "--quiet")
    forget(monkeypatch)
    run("search", "tax", "-l", "library", "--by", "vectors")
    refused = CliRunner().invoke(app, ["export", "noisy", "exported"])
    assert isinstance(refused.exception, UsageError)
    assert "my_slots:Noisy" in str(refused.exception)


def test_it_is_loaded_only_when_it_is_trusted(place, monkeypatch):
    model = randslot.tiny("qwen3-vl", slots="my_slots.py:Noisy", visual_tokens=16)
    model.save_pretrained("noisy")
    Path("noisy/my_slots.py").write_text(read_guide() + "\nopen('ran', 'w').close()\n")
    forget(monkeypatch)
    for load in (randslot.load, randslot.open_model):
        with pytest.raises(UsageError, match=r"contains Python code \(my_slots\.py\)\. Review it.*--trust-remote-code"):
            load("noisy")
    with pytest.raises((UsageError, ValueError), match="trust"):
        MultiVectorEncoder("noisy")
    assert not Path("ran").exists()
    again = randslot.load("noisy", trust_remote_code=True)
    assert Path("ran").exists()
    assert torch.equal(again.encode_query("tax"), model.encode_query("tax"))
    forget(monkeypatch)
    randslot.load("noisy")  # trusted once, as long as it stays the same
    Path("noisy/my_slots.py").write_text(read_guide() + "\nx = 1\n")
    forget(monkeypatch)
    with pytest.raises(UsageError, match="contains Python code"):
        randslot.load("noisy")
    own_code.use_strategy("my_slots.py:Noisy")  # the file of the user stands in for that of the model
    randslot.load("noisy")


@pytest.mark.parametrize("slots", ["/tmp/evil.py:Noisy", "../evil:Noisy", "evil:Noisy"])
def test_a_saved_model_cannot_name_a_file_outside_of_its_folder(slots, place):
    Path("evil.py").write_text("open('ran', 'w').close()")
    randslot.tiny("qwen3-vl", slots="zero").save_pretrained("model")
    config = json.loads(Path("model/randslot.json").read_text())
    Path("model/randslot.json").write_text(json.dumps(config | {"slots": slots, "inference": slots}))
    with pytest.raises(RandSlotError):
        randslot.load("model", trust_remote_code=True)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:Noisy", r"cannot read nowhere\.py"),
        ("my_slots.py:Quiet", r"my_slots\.py has no class Quiet that is a Strategy"),
        ("broken.py:Noisy", r"cannot run broken\.py: no such luck"),
        ("unknown", "slots='unknown' is not one of"),
    ],
)
def test_what_is_wrong_with_a_strategy_is_one_line(name, message):
    Path("broken.py").write_text("raise ValueError('no such luck')")
    with pytest.raises(UsageError, match=message) as caught:
        make_recipe({"untrained": "qwen3-vl-tiny", "slots": name})
    assert "\n" not in str(caught.value)


def test_slots_of_a_wrong_shape_are_refused():
    text = "import torch\nfrom randslot.model.slots import Strategy\nclass Flat(Strategy):\n"
    text += "    def forward(self, side, num, keys):\n        return torch.zeros(num, self.dim)\n"
    Path("flat.py").write_text(text)
    model = randslot.tiny("qwen3-vl", slots="flat.py:Flat", visual_tokens=16)
    with pytest.raises(AssertionError, match=r"slots have shape \(3, 64\)"):
        model.encode_query("tax")


@pytest.mark.slow
def test_two_processes_train_with_a_strategy_of_a_file():
    write_pairs(Path("data"))
    write_recipe(make_recipe(small(Path("data/pairs.jsonl"), Path("noisy"), steps=1)), Path("small.toml"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "randslot", "train", "small.toml", "--strategy", "my_slots.py:Noisy"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    answer = subprocess.run([*torchrun, *words], env=environment, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert Path("noisy/my_slots.py").is_file()
    assert json.loads(Path("noisy/run.json").read_text())["processes"] == 2
