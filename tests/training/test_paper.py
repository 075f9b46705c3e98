"""`randslot paper`: the whole way from pairs to tables, with tiny backbones of the paper's families, and the plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.commands import paper
from randslot.commands.paper import BENCHMARKS, STRATEGIES, Step, list_steps
from randslot.errors import RandSlotError
from randslot.evaluation.tasks import find_tasks
from randslot.training.recipe import make_recipe, write_recipe
from support.copies import write_v1, write_v2, write_v3
from support.pairs import small, write_pairs


def run(*words: object):
    return CliRunner().invoke(app, ["paper", *map(str, words)])


@pytest.fixture
def recipes(tmp_path, monkeypatch) -> list[str]:
    """Tiny backbones of both families of the paper, with its adapter."""
    monkeypatch.chdir(tmp_path)
    data = write_pairs(tmp_path / "data")
    words = []
    for family in ("qwen2.5-vl", "qwen3-vl"):
        recipe = make_recipe(small(data, tmp_path / "x", untrained=f"{family}-tiny", lora=True, steps=2))
        write_recipe(recipe, tmp_path / f"{family}.toml")
        words += ["--recipe", f"{family}.toml"]
    return words


def test_the_steps_are_those_of_the_paper():
    steps = list_steps(Path("p"), ["qwen2.5-vl-3b", "qwen3-vl-4b"], ["workers=8"], True, None)
    trained = [step.name for step in steps if step.words[0] == "train"]
    five = [f"train {name}-{slots}" for name in ("qwen2.5-vl-3b", "qwen3-vl-4b") for slots in STRATEGIES]
    seeds = [f"train qwen2.5-vl-3b-{slots}-{seed}" for seed in (123, 2024) for slots in ("random", "zero")]
    assert sorted(trained) == sorted(five + seeds)
    names = [step.words[step.words.index("--name") + 1] for step in steps if step.name.startswith("evaluate")]
    assert not [name for name in names if name.endswith(("-123", "-2024"))]  # `report` averages runs of one name
    assert all("workers=8" in step.words for step in steps if step.words[0] == "train")
    evaluated = [step for step in steps if step.words[0] == "evaluate" and "8" not in step.words]
    assert len(evaluated) == len(trained)
    assert all(name in step.words for step in evaluated for name in BENCHMARKS)
    assert [step.name for step in steps[-2:]] == ["report", "analyse"]


def test_the_plan_has_hours_and_disk(recipes):
    answer = run("plan", *recipes, "--dry-run", "--devices", "2")
    assert answer.exit_code == 0, answer.exception
    assert not Path("plan").exists()
    lines = answer.stdout.splitlines()
    assert "| train qwen3-vl-feedback |" in answer.stdout
    (total,) = [line for line in lines if line.startswith("| total |")]
    assert all(float(cell) >= 0 for cell in total.split("|")[2:5])
    command = "torchrun --standalone --nproc-per-node 2 -m randslot train "
    assert sum(line.startswith(command) for line in lines) == 10
    assert "\nrandslot report plan/results" in answer.stdout
    assert "-b 'ViDoRe(v3)'" in answer.stdout


def test_a_step_that_fails_is_named_and_others_are_not_repeated(recipes, monkeypatch):
    launched: list[str] = []

    def launch(step: Step, devices: int) -> int:
        launched.append(step.name)
        return 3 if len(launched) == 4 else 0

    monkeypatch.setattr(paper, "launch", launch)
    answer = run("out", *recipes)
    assert isinstance(answer.exception, RandSlotError)
    assert str(answer.exception).startswith(f"{launched[3]} failed with exit code 3")
    assert run("out", *recipes).exit_code == 0
    assert launched[4] == launched[3]
    assert len(launched) == len(set(launched)) + 1
    assert len(json.loads(Path("out/steps.json").read_text())) == len(set(launched))
    run("out", *recipes, "--set", "learning_rate=1e-4")
    assert launched[-1] != "analyse" or launched.count("train qwen3-vl-zero") == 2  # other commands are other steps


def write_copies(root: Path) -> Path:
    """Copies of all 22 repositories of ViDoRe, in their layouts."""
    writers = dict(zip(BENCHMARKS, (write_v1, write_v2, write_v3), strict=True))
    for name, write in writers.items():
        first, *others = [task.dataset.rpartition("/")[2] for task in find_tasks([name], [])]
        write(root, first)
        for other in others:
            shutil.copytree(root / first, root / other)
    return root


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 2])
def test_a_rehearsal_from_pairs_to_tables(devices, recipes, tmp_path, monkeypatch):
    """Real processes, under torchrun with two; five strategies, two backbones, 22 tasks."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    copies = write_copies(tmp_path / "copies")
    if devices == 2:  # once is enough for all of them
        monkeypatch.setattr(paper, "STRATEGIES", ("random", "zero"))
    answer = run("out", *recipes, "--data-root", copies, "--devices", devices)
    assert answer.exit_code == 0, answer.exception
    tables = Path("out/tables.md").read_text()
    for family in ("qwen2.5-vl", "qwen3-vl"):
        for slots in paper.STRATEGIES:
            assert f"{family}-{slots}" in tables
            record = json.loads(Path("out/runs", f"{family}-{slots}", "run.json").read_text())
            assert (record["steps"], record["processes"]) == (2, devices)
    for name in BENCHMARKS:
        assert name.replace("(", " ").replace(")", "").lower() in tables.lower() or name in tables
    assert list(Path("out/analysis").iterdir())
    assert "Budgets" in Path("out/analysis.md").read_text()
