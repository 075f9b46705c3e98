"""Evaluate the embedded model on held-out sample pages, compared with chance and with its backbone before training.

python -m research.experiments.embedded            # the shipped model
python -m research.experiments.embedded --ship     # first copy runs/embedded into the package, with its card
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import RESULTS, keep, print_table
from sentence_transformers import MultiVectorEncoder

import randslot
from randslot.evaluation.metrics import ndcg_of_each
from randslot.machine import describe_machine
from randslot.training.recipe import read_recipe
from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from research.samples.sets import Asked, ask_all, page_ids
from research.samples.words import WORDS

HOME = RESULTS.parent / "src" / "randslot" / "embedded"
NUM_REPORTS, SUBSET = 100, 20  # of the test split; CI evaluates the first ones
LIMIT = 12e6  # bytes
STAGES = [Path("runs/embedded-reading"), Path("runs/embedded")]


class HeldOut:
    """Held-out sample pages and the questions about them."""

    def __init__(self, num_reports: int, folder: Path, split: str = "test") -> None:
        self.reports = list(make_reports(num_reports, split=split, seed=0))
        for report in self.reports:
            (folder / f"{report.name}.pdf").write_bytes(draw_report(report))
        self.page_ids = [id for report in self.reports for id in page_ids(report)]
        self.pages = [str(folder / id) for id in self.page_ids]
        self.asked: list[Asked] = ask_all(self.reports)

    def score(self, model: MultiVectorEncoder) -> dict[str, float]:
        """Return nDCG@5 over all questions and over each kind of them."""
        queries = model.encode_query([one.question.text for one in self.asked])
        pages = model.encode_document(self.pages, batch_size=10)
        return self.average(model.similarity(queries, pages).numpy())

    def average(self, scores: Any) -> dict[str, float]:
        """Average nDCG@5 from the scores of all questions (rows) and pages (columns)."""
        found: dict[str, list[float]] = defaultdict(list)
        values = ndcg_of_each(scores, self.page_ids, [one.grades for one in self.asked], 5)
        for one, value in zip(self.asked, values, strict=True):
            found["nDCG@5"].append(value)
            found[one.question.kind].append(value)
        return {name: float(np.mean(values)) for name, values in found.items()}

    def chance(self, repeats: int = 20) -> dict[str, float]:
        """Return the mean nDCG@5 of random scores."""
        random = np.random.default_rng(0)
        draws = [self.average(random.random((len(self.asked), len(self.pages)))) for _ in range(repeats)]
        return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def ship(run: Path) -> None:
    """Copy a trained model into the package, in half precision."""
    model = randslot.load(run, device="cpu").half()
    shutil.rmtree(HOME, ignore_errors=True)
    model.save_pretrained(str(HOME))
    size = sum(file.stat().st_size for file in HOME.glob("*.safetensors"))
    if size > LIMIT:
        raise SystemExit(f"{size / 1e6:.1f} MB of weights are more than {LIMIT / 1e6:.0f} MB")
    shutil.copy(run / "recipe.toml", HOME / "recipe.toml")
    print(f"{size / 1e6:.1f} MB of weights in {HOME}")


CARD = """\
In two stages from random weights, on sample reports of `research.samples` (2,000 reports, 6,000 pages): reading
(next-token training, recipe `embedded-reading`), and retrieval with random slots (recipe `embedded`: {steps} steps of
{batch} pages with five queries each, from lines to questions, with a frozen vision tower). About {minutes} minutes
in all on {machine}.

## Quality

nDCG@5 on {pages} held-out pages with {queries} questions, whose facts are in no training page: **{score:.3f}**
(chance {chance:.3f}; the same backbone when it could read only {before:.3f}). `results/embedded.json` has the rows.

## Limits

It reads only the sample pages, one word per visual token, and knows their {words} words. It cannot read ordinary
documents, other words or other languages. Use it to try and to test RandSlot without a download.
"""


def write_card(model: MultiVectorEncoder, rows: list[dict[str, Any]], minutes: int | None) -> None:
    """Save the shipped model with a card on its training and quality."""
    by_name = {row["model"]: row for row in rows}
    runs = [json.loads((folder / "run.json").read_text(encoding="utf-8")) for folder in STAGES]
    whole = by_name["embedded, zero slots"]
    model.model_card_data.model_id = "embedded"
    model.model_card_data.trained_on = CARD.format(
        minutes=minutes or round(sum(run["seconds_of_this_process"] for run in runs) / 60),
        steps=runs[-1]["steps"],
        batch=read_recipe(STAGES[-1] / "recipe.toml").batch,
        machine=f"two cores of {describe_machine()['processor']}",
        pages=whole["pages"],
        queries=whole["queries"],
        score=whole["nDCG@5"],
        chance=by_name["chance"]["nDCG@5"],
        before=by_name["before retrieval"]["nDCG@5"],
        words=len(WORDS),
    )
    model.half().save_pretrained(str(HOME))
    for file in HOME.iterdir():
        file.chmod(0o644)  # safetensors writes files readable by the owner only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--minutes", type=int, help="total training time, if it was interrupted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.ship:
        ship(STAGES[-1])
    with tempfile.TemporaryDirectory() as name:
        whole, part = HeldOut(NUM_REPORTS, Path(name)), HeldOut(SUBSET, Path(name))
        size = {"pages": len(whole.pages), "queries": len(whole.asked)}
        rows = [{"model": "chance", **size, **whole.chance()}]
        if STAGES[0].is_dir():
            read_only = randslot.load(STAGES[0], visual_tokens=54, device="cpu")
            rows.append({"model": "before retrieval", **size, **whole.score(read_only)})
        model = randslot.load("embedded", device="cpu")
        rows.append({"model": "embedded, zero slots", **size, **whole.score(model)})
        model.use(inference="random")
        rows.append({"model": "embedded, random slots", **size, **whole.score(model)})
        model.use(inference="zero")
        fewer = {"pages": len(part.pages), "queries": len(part.asked)}
        rows.append({"model": "embedded, CI's subset", **fewer, **part.score(model)})
    print_table(rows)
    if STAGES[0].is_dir():
        keep("embedded", rows)
    else:
        print(f"\nnot kept: no {STAGES[0]} here to compare with; make embedded makes it")
    if options.ship:
        write_card(model, rows, options.minutes)


if __name__ == "__main__":
    main()
