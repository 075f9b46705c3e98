"""Measure the effect of nested widths and hard negatives on the miniature, in short retrainings of the shipped model.

    python -m research.experiments.widths              # plain, nested, with a hard negative for each page; three seeds
    python -m research.experiments.widths --students   # students of the shipped and of a nested model, at each budget

Finished runs in runs/widths are reused. All freeze the vision tower, so they share its output. Scores are nDCG@5 on
validation pages, whose facts are in no training page. A student (benchmarks/light.json) learns from questions about
training reports; one student of the nested model learns full vectors only, to isolate the effect of widths.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from record import keep, print_table
from rich.console import Console

import randslot
from randslot import Library
from randslot.evaluation.metrics import ndcg_of_each
from randslot.files import write_json
from randslot.model.reader import narrow
from randslot.training.data import load_pairs
from randslot.training.distill import OPTIONS, Distillation, StudentTraining, encode_targets, read_queries
from randslot.training.mine import Mining, mine
from randslot.training.recipe import make_recipe
from randslot.training.train import RUN, TrainingRun
from research.experiments.embedded import HeldOut
from research.samples.reports import make_reports
from research.samples.sets import ask_all, write_set

HOME = Path("runs/widths")
LIGHT = "benchmarks/light.json"
NUM_REPORTS, HELD_OUT, STUDENT_REPORTS = 250, 60, 2000
SEEDS = (42, 123, 2024)
COUNTS, WIDTHS = (1, 2, 4), (32, 64, 128)
RECIPE: dict[str, Any] = {
    "backbone": "embedded",
    "lora": False,
    "still_vision": True,
    "visual_tokens": 54,
    "batch": 32,
    "micro_batch": 0,
    "optimizer": "adamw",
    "learning_rate": 3e-4,
    "rate_left": 0.0,
    "warmup": 10,
    "epochs": 99,
    "precision": "fp32",
    "gradient_checkpointing": False,
    "workers": 0,
    "save_every": 0,
}


class SharedVision(TrainingRun):
    """A training run that reuses the frozen tower's output from earlier runs in this process."""

    pages: ClassVar[dict[Any, Any]] = {}
    outputs: ClassVar[list[Any]] = []

    def make_trainer(self, *args: Any, **options: Any) -> Any:
        trainer = super().make_trainer(*args, **options)
        assert self.frozen is not None
        self.frozen.pages, self.frozen.outputs = self.pages, self.outputs
        return trainer


def train(name: str, changes: dict[str, Any], steps: int) -> randslot.RandSlotModel:
    """Train a run, or load it if it is finished."""
    folder = HOME / f"{name}-{steps}"
    if not (folder / RUN).is_file():
        recipe = RECIPE | {"steps": steps, "output": str(folder), **changes}
        SharedVision(make_recipe(recipe), resume=True).run()
    return randslot.load(folder, device="cpu")


def write_pages(source: Path, target: Path) -> None:
    """Write one row per page with five of its queries, so that the page is encoded once for all."""
    queries: dict[str, list[str]] = defaultdict(list)
    for line in source.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        queries[row["image"]].append(row["query"])
    rows = [json.dumps({"query": some[:5], "image": page}) + "\n" for page, some in queries.items()]
    target.write_text("".join(rows), encoding="utf-8")


def write_negatives(source: Path, target: Path) -> None:
    """Write the same rows with one hard negative each: the shipped model's best wrong page for any query."""
    with Library(HOME / "library", "embedded") as library:
        library.add(source.parent)
        mined = mine(load_pairs(str(source), "train", "query", "image"), library, Mining(num=1), "vectors")
    negatives = {row["image"]: row["negatives"] for row in reversed(mined)}
    rows = []
    for line in source.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        page = str((source.parent / row["image"]).resolve())
        if page in negatives:
            rows.append(json.dumps(row | {"negatives": negatives[page]}) + "\n")
    target.write_text("".join(rows), encoding="utf-8")


def score_budgets(
    model: randslot.RandSlotModel, held_out: HeldOut, student: randslot.RandSlotModel | None = None
) -> dict[str, float]:
    """Return nDCG@5 per number of vectors and width, from one encoding; a student may encode the queries."""
    pages = model.embed_pages(held_out.pages)
    queries = (student or model).embed_queries([one.question.text for one in held_out.asked])
    grades = [one.grades for one in held_out.asked]
    found = {}
    for num in COUNTS:
        for width in WIDTHS:
            cut = [np.stack([narrow(one, width, num) for one in side]) for side in (queries, pages)]
            scores = np.einsum("qkd,pld->qpkl", *cut).max(-1).sum(-1)
            found[f"{num} x {width}"] = float(np.mean(ndcg_of_each(scores, held_out.page_ids, grades, 5)))
    return found


def average(name: str, rows: list[dict[str, float]]) -> dict[str, Any]:
    """Return the mean over seeds, and the standard deviation at the full budget."""
    full = f"{COUNTS[-1]} x {WIDTHS[-1]}"
    row: dict[str, Any] = {"training": name, "seeds": len(rows)}
    row |= {budget: float(np.mean([one[budget] for one in rows])) for budget in rows[0]}
    return row | {"deviation of the last": float(np.std([one[full] for one in rows]))}


def train_student(teacher: str, name: str, *, only_full: bool = False) -> randslot.RandSlotModel:
    """Train a student, or load it if it is finished; only_full: without the nested widths of its teacher."""
    questions, output = HOME / "questions.txt", HOME / f"student-{name}"
    if (output / RUN).is_file():
        return randslot.load(output, device="cpu")
    if not questions.is_file():
        asked = ask_all(make_reports(STUDENT_REPORTS, split="train", seed=1))
        questions.write_text("\n".join(one.question.text for one in asked), encoding="utf-8")
    options = Distillation(teacher, LIGHT, (str(questions),), str(output), epochs=2, learning_rate=1e-3, save_every=0)
    queries, console = read_queries(options.queries), Console(stderr=True)
    write_json(output / OPTIONS, asdict(options))
    identity, vectors = encode_targets(output / "teacher", queries, options, console)
    if only_full:
        identity = replace(identity, settings={**identity.settings, "widths": ()})
    return StudentTraining(options, queries, identity, vectors, console).run()


def measure_students(nested: str, held_out: HeldOut) -> list[dict[str, Any]]:
    """Return nDCG@5 per budget with queries encoded by a teacher and its students, and the share retained."""
    rows = []
    for name, teacher, students in (
        ("shipped", "embedded", {"student": False}),
        ("nested", nested, {"student": False, "student of full vectors": True}),
    ):
        model = randslot.load(teacher, device="cpu")
        own = score_budgets(model, held_out)
        rows.append({"teacher": name, "queries by": "teacher", **own})
        for what, only_full in students.items():
            student = train_student(teacher, f"{name}-{'full' if only_full else 'all'}", only_full=only_full)
            scores = score_budgets(model, held_out, student)
            rows.append({"teacher": name, "queries by": what, **scores})
            kept = {budget: 100 * scores[budget] / own[budget] for budget in own}
            rows.append({"teacher": name, "queries by": f"{what}, % kept", **kept})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--students", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train_set = HOME / "train"
    if not (train_set / "pages.jsonl").is_file():
        write_set(train_set, NUM_REPORTS, split="train", seed=0)
        write_pages(train_set / "pairs.jsonl", train_set / "pages.jsonl")
    if not (options.students or (train_set / "hard.jsonl").is_file()):
        write_negatives(train_set / "pages.jsonl", train_set / "hard.jsonl")
    (HOME / "validation").mkdir(exist_ok=True)
    held_out = HeldOut(HELD_OUT, HOME / "validation", split="validation")
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "nested": {"widths": [32, 64], "prefixes": [1, 2, 4]},
        "hard negatives": {"negatives": 1, "data": str(train_set / "hard.jsonl")},
    }
    pages = str(train_set / "pages.jsonl")
    if options.students:
        train(f"nested-{SEEDS[0]}", {"data": pages, "seed": SEEDS[0]} | kinds["nested"], options.steps)
        students = measure_students(str(HOME / f"nested-{SEEDS[0]}-{options.steps}"), held_out)
        print_table(students)
        keep("widths-students", students)
        return
    shipped = randslot.load("embedded", device="cpu")
    found: dict[str, list[dict[str, float]]] = {"none (shipped)": [score_budgets(shipped, held_out)]}
    for seed in SEEDS[: options.seeds]:
        for name, changes in kinds.items():
            folder = f"{name.replace(' ', '-')}-{seed}"
            model = train(folder, {"data": pages, "seed": seed} | changes, options.steps)
            found.setdefault(name, []).append(score_budgets(model, held_out))
            print(name, seed, found[name][-1], flush=True)
    rows = [{**average(name, scores), "steps": options.steps} for name, scores in found.items()]
    print_table(rows)
    keep("widths", rows)


if __name__ == "__main__":
    main()
