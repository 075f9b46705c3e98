"""The command `paper`: reproduce the paper's tables, step by step; it can resume."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import RandSlotError
from ..extras import needs_extra
from ..files import read_json, write_json
from ..tables import Cell, Table, write_table
from .options import flag, make_app, option

app = make_app()

BENCHMARKS = ("ViDoRe(v1)", "ViDoRe(v2)", "ViDoRe(v3)")
STRATEGIES = ("random", "zero", "fixed", "learned", "feedback")


@dataclass(frozen=True)
class Step:
    """One command of the reproduction. text: the file for its output, if it writes none itself."""

    name: str
    words: list[str]
    is_parallel: bool = True
    text: Path | None = None


@app.command()
@needs_extra("paper")
def paper(
    folder: Annotated[Path, typer.Argument(help="Folder for models, results and tables.")] = Path("reproduction"),
    recipes: Annotated[
        list[str] | None, option("RECIPE", "Recipe; repeatable.", "--recipe", shown="the paper's two")
    ] = None,
    changes: Annotated[
        list[str] | None, option("KEY=VALUE", "Change a value of all recipes; repeatable.", "--set")
    ] = None,
    seeds: Annotated[bool, flag("--seeds", help="Also train seeds 123 and 2024.")] = False,
    data_root: Annotated[Path | None, option("FOLDER", "Local copies of the ViDoRe repositories.")] = None,
    devices: Annotated[
        int | None, option("N", "Processes to train and evaluate with.", shown="all GPUs", min=1)
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Print the plan with hours and disk.")] = False,
) -> None:
    """Reproduce the paper: train, evaluate, report, analyse.

    randslot paper --dry-run --devices 8
    randslot paper reproduction
    randslot paper reproduction --seeds
    """
    import torch

    steps = list_steps(folder, recipes or ["qwen2.5-vl-3b", "qwen3-vl-4b"], changes or [], seeds, data_root)
    devices = devices or max(torch.cuda.device_count(), 1)
    if dry_run:
        print(describe(steps, devices))
        return
    file = folder / "steps.json"
    done = read_json(file) if file.is_file() else {}
    for number, step in enumerate(steps, start=1):
        if done.get(step.name, {}).get("command") == step.words:
            print(f"{number}/{len(steps)}  {step.name}: already done", file=sys.stderr)
            continue
        print(f"{number}/{len(steps)}  {step.name}: {shlex.join(list_words(step, devices))}", file=sys.stderr)
        started = time.perf_counter()
        if code := launch(step, devices):
            raise RandSlotError(f"{step.name} failed with exit code {code}. Run the command again to resume.")
        done[step.name] = {"command": step.words, "seconds": round(time.perf_counter() - started, 1)}
        write_json(file, done)
    print(f"see {folder / 'tables.md'} and {folder / 'analysis'}")


def list_steps(folder: Path, recipes: list[str], changes: list[str], seeds: bool, data_root: Path | None) -> list[Step]:
    """Return the steps in order: each backbone, then the tables.

    As in the paper, only the first backbone has budget sweeps, readout analysis, and more seeds of random and zero.
    """
    copies = ["--data-root", str(data_root)] if data_root else []
    benchmarks = [word for name in BENCHMARKS for word in ("-b", name)]
    shared = ["--cache", str(folder / "vectors")]
    steps = []
    for recipe in recipes:
        is_first = recipe == recipes[0]
        runs = [(slots, 42) for slots in STRATEGIES]
        if seeds and is_first:
            runs += [(slots, seed) for seed in (123, 2024) for slots in ("random", "zero")]
        for slots, seed in runs:
            model = f"{Path(recipe).name.removesuffix('.toml')}-{slots}"  # tables average runs of one name over seeds
            name = model if seed == 42 else f"{model}-{seed}"
            run = str(folder / "runs" / name)
            values = [*changes, f"slots={slots}", f"seed={seed}"]
            sets = [word for value in values for word in ("--set", value)]
            steps.append(Step(f"train {name}", ["train", recipe, "--resume", *sets, "-o", run]))
            if is_first and seed == 42:  # first, so that smaller budgets reuse its vectors
                eight = ["--query-vectors", "8", "--page-vectors", "8", "--name", name, "-o", str(folder / "budgets")]
                words = ["evaluate", run, "-b", BENCHMARKS[2], *eight, *shared, *copies]
                steps.append(Step(f"evaluate {name} with 8 vectors", words))
            words = ["evaluate", run, *benchmarks, "--name", model, "-o", str(folder / "results"), *shared, *copies]
            steps.append(Step(f"evaluate {name}", words))
    steps.append(Step("report", ["report", str(folder / "results")], False, folder / "tables.md"))
    words = ["analyse", str(folder / "budgets"), "-o", str(folder / "analysis")]
    steps.append(Step("analyse", words, False, folder / "analysis.md"))
    return steps


def list_words(step: Step, devices: int) -> list[str]:
    """Return the command line of a step."""
    if step.is_parallel and devices > 1:
        return ["torchrun", "--standalone", "--nproc-per-node", str(devices), "-m", "randslot", *step.words]
    return ["randslot", *step.words]


def launch(step: Step, devices: int) -> int:
    """Run a step in subprocesses; return its exit code."""
    command = list_words(step, devices)
    if command[0] == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", *command[1:]]
    else:
        command = [sys.executable, "-m", *command]
    if step.text is None:
        return subprocess.run(command, check=False).returncode
    step.text.parent.mkdir(parents=True, exist_ok=True)
    with step.text.open("w", encoding="utf-8") as output:
        return subprocess.run(command, check=False, stdout=output).returncode


def describe(steps: list[Step], devices: int) -> str:
    """Return the plan: estimated hours and disk space of each step, without downloading anything."""
    import torch

    from ..evaluation.tasks import count_pages
    from ..training.plan import (
        GB,
        GPUS,
        count_rows,
        count_steps,
        make_model_on_meta,
        measure_page,
        run_bytes,
        share,
        step_multiply_adds,
    )
    from ..training.recipe import Recipe, read_recipe

    num_pages = {name: count_pages(name) for name in BENCHMARKS}
    costs: dict[str, Any] = {}  # by recipe: of a page, steps, bytes of a run
    trained: dict[str, tuple[Recipe, Any]] = {}  # by the folder of a run
    encoded: set[tuple[str, str]] = set()  # runs and benchmarks
    rows: list[list[Cell]] = []
    for step in steps:
        operations = num_bytes = 0
        if step.words[0] == "train":
            name, sets = step.words[1], [word for before, word in pairwise(step.words) if before == "--set"]
            recipe = read_recipe(name, sets)
            if name not in costs:
                model = make_model_on_meta(recipe, torch.bfloat16 if recipe.lora else torch.float32)
                num = count_steps(recipe, count_rows(recipe)[0])
                costs[name] = measure_page(model), num, run_bytes(recipe, model)
            cost, num_steps, num_bytes = costs[name]
            trained[step.words[-1]] = recipe, cost
            operations = 2 * num_steps * step_multiply_adds(recipe, cost, share(recipe.batch, devices))
        elif step.words[0] == "evaluate":
            recipe, cost = trained[step.words[1]]
            num = 0
            for word in step.words:
                if word in num_pages and (step.words[1], word) not in encoded:
                    num += num_pages[word]
                    encoded.add((step.words[1], word))
            num *= 2 if recipe.slots == "random" else 1  # RS-R and RS-Z
            operations = 2 * num * (cost.vision + cost.forward) // devices
            num_bytes = num * 4 * (8 if "--page-vectors" in step.words else recipe.page_vectors) * cost.dimension
        hours = [operations / (0.4 * GPUS[gpu][1] * 1e12) / 3600 for gpu in ("A100", "H100")]
        rows.append([step.name, *hours, num_bytes / GB])
    rows.append(["total", *(sum(float(row[place] or 0) for row in rows) for place in (1, 2, 3))])
    title = f"{devices} devices at 40% HFU in bfloat16 (assumed), pages of the largest size"
    table = Table(title, ["step", "hours, A100", "hours, H100", "GB on disk"], rows, digits=2)
    commands = [shlex.join(list_words(step, devices)) for step in steps]
    return "\n".join([write_table(table, "md"), "Downloads are not included.", "", *commands])
