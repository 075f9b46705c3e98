"""Measure a student's quality relative to its teacher, and the query latency of both.

    python benchmarks/distill.py --students      # first train the students, in data/distill: minutes on one core
    python benchmarks/distill.py                 # measure them, best on an idle machine
    python benchmarks/distill.py --shapes        # time a query in real sizes, on an idle machine
    python benchmarks/distill.py --study MODEL --students         # the same for a model of the study smollm2
    python benchmarks/distill.py --study MODEL --validation       # for tuning: writes no results
    python benchmarks/distill.py --study MODEL

The first teacher is the embedded miniature; its student is a text model of two layers and 96 dimensions (light.json),
from random weights. It learns from questions about sample reports of the training split, and is tested on those of the
test split, whose pages have the teacher's vectors. The second is a model of the study smollm2: its student is
initialised from its first layers, with the adapter merged, learns from titles and words of the study's training manuals
(make them with `python -m research.studies.manual_pages data/study-manuals --spans 8`), and is tested on its test
manuals.

Times of real sizes use random weights: a query of 16 tokens in the shape of Qwen2.5-VL-3B, whose language model is
timed with 2 and with 8 of its 36 layers and scaled by the difference (all would take 13 GB), and in the shape of
SmolLM2-135M with a projection.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import keep, print_table, time_ways

import randslot
from randslot.evaluation.metrics import ndcg_of_each
from randslot.evaluation.tasks import own_task
from randslot.model.model import RandSlotModel, make_student
from randslot.pages import read_page_text
from randslot.training.distill import Distillation, distill
from research.experiments.embedded import NUM_REPORTS, HeldOut
from research.samples.reports import make_reports
from research.samples.sets import ask_all

HERE = Path(__file__).parent
WORK = Path("data/distill")
REPORTS = 2000  # of the training split, that questions are about
MANUALS = Path("data/study-manuals")
NUM_QUERIES, NUM_MORE, MOST_CHARACTERS = 24_000, 36_000, 50  # that the student of the study learns from
TIMED, WARMING = 40, 5  # queries
LARGE, SMALL = "qwen2.5-vl-3b", "smollm2-135m"
LAYERS = (2, 8)  # of the large shape, that are timed


@dataclass(frozen=True)
class Test:
    """Queries, pages, and relevance grades."""

    pages: list[str]
    ids: list[str]
    queries: list[str]
    grades: list[dict[str, int]]


def plan_embedded() -> dict[str, Distillation]:
    """Return the plan for the miniature's student, and write its training questions."""
    file = WORK / "questions.txt"
    if not file.is_file():
        WORK.mkdir(parents=True, exist_ok=True)
        asked = ask_all(make_reports(REPORTS, split="train", seed=1))
        file.write_text("\n".join(one.question.text for one in asked), encoding="utf-8")
    shape, output = str(HERE / "light.json"), str(WORK / "light")
    return {"its student": Distillation("embedded", shape, (str(file),), output, epochs=2, learning_rate=1e-3)}


def plan_study(teacher: str, layers: int) -> dict[str, Distillation]:
    """Return the plan for the student of a model of the study, and write its training queries."""
    file, others = WORK / "queries.txt", WORK / "more-queries.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    queries = choose_queries(NUM_QUERIES + NUM_MORE)
    file.write_text("\n".join(queries[:NUM_QUERIES]), encoding="utf-8")
    others.write_text("\n".join(queries[NUM_QUERIES:]), encoding="utf-8")
    first = Distillation(
        teacher,
        teacher,
        (str(file),),
        str(WORK / f"light-study-{layers}"),
        layers=layers,
        freeze_embeddings=True,
        precision="bf16-anywhere",
        epochs=1,
        learning_rate=1e-3,
        cache=str(WORK / "light-study-teacher"),
    )
    second = replace(
        first,
        student=first.output,
        layers=0,
        queries=(str(others),),
        output=f"{first.output}-more",
        cache=str(WORK / "light-study-teacher-more"),
    )
    return {f"its student, {layers} layers": first, f"the same, after {NUM_MORE:,} other queries": second}


def choose_queries(num: int) -> list[str]:
    """Return `num` queries: the teacher's training titles, and spans of words of all training manuals."""
    titles = [json.loads(line)["query"] for line in (MANUALS / "pairs.jsonl").open(encoding="utf-8")]
    others = [json.loads(line)["query"] for line in (MANUALS / "queries.jsonl").open(encoding="utf-8")]
    random.Random(0).shuffle(others)
    chosen = dict.fromkeys([*titles, *(query for query in others if len(query) <= MOST_CHARACTERS)])
    return list(chosen)[:num]


def test_embedded(folder: Path) -> list[Test]:
    """Return the test split of the sample reports."""
    held_out = HeldOut(NUM_REPORTS, folder)
    texts = [one.question.text for one in held_out.asked]
    return [Test(held_out.pages, held_out.page_ids, texts, [one.grades for one in held_out.asked])]


def test_study(split: str) -> Iterator[Test]:
    """Yield the held-out manuals of the study, with their titles, and the questions about them."""
    for folder in sorted((MANUALS / "tasks" / split).iterdir()):
        for subset in own_task(folder).subsets():
            pages = [read_page_text(subset.pages.open(i)) for i in range(len(subset.pages.ids))]
            grades = [subset.grades[id] for id in subset.queries]
            yield Test(pages, list(subset.pages.ids), list(subset.queries.values()), grades)


def count_weights(model: RandSlotModel) -> float:
    """Return the weights of a model in millions."""
    return float(sum(weight.numel() for weight in model.parameters())) / 1e6


def measure(name: str, plan: dict[str, Distillation], tests: list[Test]) -> list[dict[str, Any]]:
    """Return a row per teacher and student: quality, the mean over tests, and query latency."""
    teacher = randslot.load(next(iter(plan.values())).teacher, device="cpu")
    models = {name: teacher} | {what: randslot.load(made.output, device="cpu") for what, made in plan.items()}
    scores: dict[str, list[float]] = {what: [] for what in models}
    cosines: dict[str, list[float]] = {what: [] for what in models}
    for test in tests:
        pages = teacher.encode_document(test.pages, batch_size=10)
        wanted = np.stack(teacher.embed_queries(test.queries))
        for what, model in models.items():
            found = np.stack(model.embed_queries(test.queries))
            similarities = teacher.similarity([torch.from_numpy(one) for one in found], pages).numpy()
            scores[what].append(float(np.mean(ndcg_of_each(similarities, test.ids, test.grades, 5))))
            cosines[what].append(float((found * wanted).sum(-1).mean()))
    seconds = time_queries(models, tests[0].queries)
    whole = statistics.mean(scores[name])
    rows = []
    for what, model in models.items():
        score = statistics.mean(scores[what])
        rows.append(
            {
                "queries by": what,
                "million weights": count_weights(model),
                "queries": sum(len(test.queries) for test in tests),
                "cosine": statistics.mean(cosines[what]),
                "nDCG@5": score,
                "% kept": 100 * score / whole,
                "CPU ms a query": 1000 * seconds[what],
            }
        )
    return rows


def time_queries(models: dict[str, RandSlotModel], queries: list[str]) -> dict[str, float]:
    """Return the median CPU seconds per query, one at a time, interleaving models."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for query in queries[: WARMING + TIMED]:
        for name, model in models.items():
            start = time.process_time()
            model.embed_queries([query])
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values[WARMING:]) for name, values in times.items()}


def build_large(layers: int, folder: Path) -> RandSlotModel:
    """Build the large shape with few layers and a minimal vision tower, which queries do not use."""
    shape = read_shape(LARGE)
    shape["config"]["text_config"]["num_hidden_layers"] = layers
    shape["config"]["vision_config"] |= {"depth": 1, "fullatt_block_indexes": [0]}
    file = folder / f"large-{layers}.json"
    file.write_text(json.dumps(shape))
    return randslot.untrained(str(file), device="cpu", dtype="float32")


def read_shape(name: str) -> dict[str, Any]:
    file = resources.files("randslot.model") / "shapes" / f"{name}.json"
    shape: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return shape


def measure_shapes(repeats: int) -> list[dict[str, Any]]:
    """Return the query time of a large shape and of a small one with a projection to its dimension."""
    depth = read_shape(LARGE)["config"]["text_config"]["num_hidden_layers"]
    few, some = LAYERS
    with tempfile.TemporaryDirectory() as name:
        first, second = build_large(few, Path(name)), build_large(some, Path(name))
    student = make_student(SMALL, replace(first.identity, name=LARGE))
    query = ["sixteen letters!"]  # a token each
    seconds = time_ways(
        {
            "first": lambda: first.embed_queries(query),
            "second": lambda: second.embed_queries(query),
            "student": lambda: student.embed_queries(query),
        },
        repeats,
    )
    times = (depth - few) / (some - few)
    whole = seconds["first"] + times * (seconds["second"] - seconds["first"])
    vision = list(first.backbone.vision_parts.parameters())
    weights = count_weights(first) + times * (count_weights(second) - count_weights(first))
    weights -= sum(weight.numel() for weight in vision) / 1e6
    rows = []
    for what, size, value in (
        (f"{LARGE}, its language model", weights, whole),
        (f"{SMALL} with a projection", count_weights(student), seconds["student"]),
    ):
        times_student = value / seconds["student"]
        rows.append(
            {
                "random weights": what,
                "million weights": size,
                "ms a query": 1000 * value,
                "times the student": times_student,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", action="store_true")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--study", default="", help="a model of the study, the teacher in place of the miniature")
    parser.add_argument("--layers", type=int, default=2, help="of the student of that")
    parser.add_argument("--validation", action="store_true", help="ask about its validation manuals, and keep nothing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.shapes:
        shapes = measure_shapes(options.repeats)
        print_table(shapes)
        keep("distill-shapes", shapes)
        return
    plan = plan_study(options.study, options.layers) if options.study else plan_embedded()
    if options.students:
        for made in plan.values():
            distill(made, resume=(Path(made.output) / "distill.json").is_file())
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.study:
            tests = list(test_study("validation" if options.validation else "test"))
        else:
            tests = test_embedded(Path(folder))
        rows = measure("a model of the study" if options.study else "embedded", plan, tests)
    print_table(rows)
    if not options.validation:
        keep("distill-study" if options.study else "distill", rows)


if __name__ == "__main__":
    main()
