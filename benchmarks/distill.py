"""What a student keeps of its teacher, and how long a query takes with each.

    python benchmarks/distill.py --students      # first make the students, in data/distill: minutes on one core
    python benchmarks/distill.py                 # measure them, best on a machine without other work

The teacher is the embedded miniature, the student a text model of two layers and 96 dimensions (light.json), from
random weights. It learns from questions about sample reports of the training split, and is asked those of the test
split, whose pages have the teacher's vectors. Times of real sizes are of random weights: a query of 16 tokens in the
shape of Qwen2.5-VL-3B, whose language model is timed with 2 and with 8 of its 36 layers and the difference scaled
(all would take 13 GB), and in that of SmolLM2-135M with a projection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedded import NUM_REPORTS, HeldOut
from record import keep, print_table, time_ways

import randslot
from randslot.model.model import RandSlotModel
from randslot.model.reader import Identity
from randslot.model.student import make_student
from randslot.samples.reports import make_reports
from randslot.samples.sets import ask_all
from randslot.training.distill import Distillation, distill

HERE = Path(__file__).parent
WORK = Path("data/distill")
REPORTS = {"500 reports": 500, "2,000 reports": 2000}  # of the training split, that questions are about
TIMED = 40  # queries
LARGE, SMALL = "qwen2.5-vl-3b", "smollm2-135m"
LAYERS = (2, 8)  # of the large shape, that are timed


def make_students() -> None:
    """Make the students, or go on with them."""
    for name, num in REPORTS.items():
        file = WORK / f"questions-{num}.txt"
        if not file.is_file():
            WORK.mkdir(parents=True, exist_ok=True)
            asked = ask_all(make_reports(num, split="train", seed=1))
            file.write_text("\n".join(one.question.text for one in asked), encoding="utf-8")
        print(f"questions about {name}", flush=True)
        output = WORK / f"light-{num}"
        options = Distillation(
            "embedded",
            str(HERE / "light.json"),
            (str(file),),
            str(output),
            epochs=4 * max(REPORTS.values()) // num,  # as many steps for all
            learning_rate=1e-3,
        )
        distill(options, resume=(output / "distill.json").is_file())


def count_weights(model: RandSlotModel) -> float:
    """Return the weights of a model in millions."""
    return sum(weight.numel() for weight in model.parameters()) / 1e6


def measure_students() -> list[dict[str, Any]]:
    """Return a row for the teacher and for each student: quality on the test split, and the time of a query."""
    teacher = randslot.load("embedded", device="cpu")
    students = {name: randslot.load(WORK / f"light-{num}", device="cpu") for name, num in REPORTS.items()}
    with tempfile.TemporaryDirectory() as name:
        held_out = HeldOut(NUM_REPORTS, Path(name))
        pages = teacher.encode_document(held_out.pages, batch_size=10)
    texts = [one.question.text for one in held_out.asked]
    known = np.stack(teacher.embed_queries(texts))
    models = {"embedded": teacher} | {f"student, {name}": one for name, one in students.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for text in texts[: TIMED + 5]:
        for name, model in models.items():
            start = time.perf_counter()
            model.embed_queries([text])
            times[name].append(time.perf_counter() - start)
    rows = []
    whole = 0.0
    for name, model in models.items():
        found = model.embed_queries(texts)
        score = held_out.average(teacher.similarity([torch.from_numpy(one) for one in found], pages).numpy())["nDCG@5"]
        whole = whole or score
        rows.append(
            {
                "queries by": name,
                "million weights": count_weights(model),
                "questions": len(texts),
                "cosine": float((np.stack(found) * known).sum(-1).mean()),
                "nDCG@5": score,
                "% kept": 100 * score / whole,
                "ms a query": 1000 * statistics.median(times[name][5:]),
            }
        )
    return rows


def build_large(layers: int, folder: Path) -> RandSlotModel:
    """Build the large shape with a few of its layers; the vision tower, which no query sees, is as small as can be."""
    shape = json.loads((resources.files("randslot.model") / "shapes" / f"{LARGE}.json").read_text())
    shape["config"]["text_config"]["num_hidden_layers"] = layers
    shape["config"]["vision_config"] |= {"depth": 1, "fullatt_block_indexes": [0]}
    file = folder / f"large-{layers}.json"
    file.write_text(json.dumps(shape))
    return randslot.untrained(str(file), device="cpu", dtype="float32").eval()


def measure_shapes(repeats: int) -> list[dict[str, Any]]:
    """Return the time of a query in a large shape and in a small one that projects to its dimension."""
    few, some = LAYERS
    depth = json.loads((resources.files("randslot.model") / "shapes" / f"{LARGE}.json").read_text())["config"][
        "text_config"
    ]["num_hidden_layers"]
    with tempfile.TemporaryDirectory() as name:
        large = {layers: build_large(layers, Path(name)) for layers in LAYERS}
    known: Identity = replace(large[few].identity, name=LARGE)
    student = make_student(SMALL, known).eval()
    query = ["sixteen letters!"]  # a token each
    ways: dict[str, Any] = {
        f"{layers} layers": lambda model=model: model.embed_queries(query) for layers, model in large.items()
    }
    seconds = time_ways(ways | {"student": lambda: student.embed_queries(query)}, repeats)
    first, second = seconds[f"{few} layers"], seconds[f"{some} layers"]
    a_layer = (second - first) / (some - few)
    whole = first + (depth - few) * a_layer
    a_layer_weights = (count_weights(large[some]) - count_weights(large[few])) / (some - few)
    vision = sum(
        weight.numel()
        for part in large[few].family.vision_parts(large[few].encoder.backbone)
        for weight in part.parameters()
    )
    weights = count_weights(large[few]) - vision / 1e6 + (depth - few) * a_layer_weights
    rows = [
        {"shape, random weights": f"{LARGE}, language model", "million weights": weights, "ms a query": 1000 * whole},
        {
            "shape, random weights": f"{SMALL}, projected",
            "million weights": count_weights(student),
            "ms a query": 1000 * seconds["student"],
        },
    ]
    return [row | {"times the student": row["ms a query"] / rows[1]["ms a query"]} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.students:
        make_students()
        return
    rows = measure_students()
    shapes = measure_shapes(options.repeats)
    print_table(rows)
    print()
    print_table(shapes)
    keep("distill", rows + shapes)


if __name__ == "__main__":
    main()
