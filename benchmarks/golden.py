"""Record what the package computes, bit for bit, to compare a code change with the version before.

    python benchmarks/golden.py before.json        # on the old code
    python benchmarks/golden.py after.json         # on the new code, on the same machine
    python benchmarks/golden.py before.json after.json

Vectors of every strategy of both families and of the embedded model, losses of ten training steps, evaluation rows, the
files of saved and exported models, and hits of a library. It uses the public API only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # research/ is not installed

import numpy as np
import torch
from PIL import Image

import randslot
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.tasks import own_task
from randslot.model.export import export_model
from randslot.training.recipe import make_recipe
from research.pretrain import Pretraining
from research.samples.sets import write_set

FAMILIES = ("qwen2.5-vl", "qwen3-vl")
STRATEGIES = ("random", "zero", "fixed", "learned", "feedback", "tokens")
QUERIES = ["tax", "revenue by region in 2023", "Größe der Flotte?"]
STEPS = 10


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def noise(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


PAGES = [noise(100, 140, 1), noise(260, 90, 2), noise(64, 64, 3)]


def hash_vectors(vectors: list[torch.Tensor]) -> str:
    return digest(b"".join(item.float().cpu().numpy().tobytes() for item in vectors))


def hash_folder(folder: Path) -> dict[str, str]:
    """Hash every file except those with times or paths of this run."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not name.startswith("tensorboard/"):
            found[name] = digest(file.read_bytes())
    return found


def vectors(golden: dict[str, Any]) -> None:
    for family in FAMILIES:
        for strategy in STRATEGIES:
            inferences = [None, "random"] if strategy == "random" else [None]
            for inference in inferences:
                options: dict[str, Any] = {} if inference is None else {"inference": inference}
                model = randslot.tiny(family, slots=strategy, seed=0, device="cpu", **options)
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter.ndim >= 2:
                            parameter.mul_(5)
                name = f"vectors {family} {strategy} {inference}"
                golden[f"{name} queries"] = hash_vectors(model.encode_query(QUERIES))
                golden[f"{name} pages"] = hash_vectors(model.encode_document(PAGES))
                golden[f"{name} alone"] = hash_vectors([model.encode_document(PAGES[1])])
    for reduction in ("random", "cluster", "kmeans", "pooling"):
        model = randslot.tiny("qwen3-vl", slots="tokens", seed=0, device="cpu", reduction=reduction, page_vectors=4)
        golden[f"vectors reduction {reduction}"] = hash_vectors(model.encode_document(PAGES))


def saved(golden: dict[str, Any], folder: Path) -> None:
    for family in FAMILIES:
        for strategy in STRATEGIES:
            for lora in (False, True):
                model = randslot.tiny(family, slots=strategy, seed=0, device="cpu", lora=lora)
                place = folder / f"{family}-{strategy}-{lora}"
                model.save_pretrained(str(place))
                golden[f"saved {family} {strategy} lora={lora}"] = hash_folder(place)
                again = randslot.load(place, device="cpu")
                golden[f"loaded {family} {strategy} lora={lora}"] = hash_vectors(again.encode_query(QUERIES))
    for family, strategy in (("qwen2.5-vl", "learned"), ("qwen3-vl", "random"), ("qwen3-vl", "fixed")):
        place = folder / f"export-{family}-{strategy}"
        export_model(folder / f"{family}-{strategy}-True", place)
        golden[f"exported {family} {strategy}"] = hash_folder(place)


def losses(golden: dict[str, Any], folder: Path) -> None:
    folder.mkdir()
    rows = []
    for number in range(8):
        noise(70 + 10 * number, 120 - 5 * number, number % 6).save(folder / f"{number}.png")
        rows.append({"query": f"about the page {'x' * number} {number}", "image": f"{number}.png"})
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    base = {
        "visual_tokens": 16,
        "data": str(folder / "pairs.jsonl"),
        "batch": 4,
        "micro_batch": 0,
        "steps": STEPS,
        "epochs": 999,
        "optimizer": "adamw",
        "precision": "fp32",
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
        "workers": 0,
        "save_every": 0,
        "lora": False,
    }
    runs: dict[str, dict[str, Any]] = {
        f"{family} {strategy}": {"untrained": f"{family}-tiny", "slots": strategy}
        for family in FAMILIES
        for strategy in STRATEGIES
    }
    tiny = {"untrained": "qwen3-vl-tiny"}
    runs |= {
        "lora": {**tiny, "lora": True},
        "lora cache": {"untrained": "qwen2.5-vl-tiny", "lora": True, "micro_batch": 1, "gradient_checkpointing": True},
        "feedback cache": {**tiny, "slots": "feedback", "micro_batch": 2, "gradient_checkpointing": True},
        "still": {**tiny, "still_vision": True},
        "still cache": {**tiny, "still_vision": True, "micro_batch": 2},
        "still 2.5": {"untrained": "qwen2.5-vl-tiny", "still_vision": True},
        "prefixes": {**tiny, "prefixes": (1, 2, 4)},
        "negatives": {**tiny, "repeated_pages": "negatives"},
        "reading": tiny,
        "workers": {**tiny, "workers": 1},
        "learned budgets": {**tiny, "slots": "learned", "query_vectors": 2, "page_vectors": 6},
        "validation": {**tiny, "validation": str(folder / "pairs.jsonl"), "validate_every": 5},
    }
    for name, changes in runs.items():
        output = folder / name.replace(" ", "-")
        recipe = base | changes | {"output": str(output)}
        if name == "reading":
            Pretraining(make_recipe(recipe), resume=False).run()
        else:
            randslot.train(recipe)
        lines = (output / "losses.csv").read_text().splitlines()
        golden[f"losses {name}"] = [line.rpartition(",")[0] for line in lines]
        weights = {file.name: digest(file.read_bytes()) for file in sorted(output.glob("*.safetensors"))}
        golden[f"trained {name}"] = weights


def evaluation(golden: dict[str, Any], folder: Path) -> None:
    write_set(folder / "set", 4, split="test", seed=0)
    golden["samples"] = hash_folder(folder / "set")
    task = own_task(folder / "set")
    models = {
        "embedded": randslot.load("embedded", device="cpu"),
        "embedded random": randslot.load("embedded", device="cpu", inference="random", query_vectors=8, page_vectors=8),
        "embedded random 4": randslot.load("embedded", device="cpu", inference="random"),
        "tokens": randslot.tiny("qwen3-vl", slots="tokens", device="cpu", visual_tokens=54),
        "kmeans": randslot.tiny(
            "qwen3-vl", slots="tokens", device="cpu", visual_tokens=54, reduction="kmeans", page_vectors=3
        ),
        "fixed": randslot.tiny("qwen2.5-vl", slots="fixed", device="cpu", visual_tokens=54),
        "feedback": randslot.tiny("qwen2.5-vl", slots="feedback", device="cpu", visual_tokens=54),
    }
    for name, model in models.items():
        golden[f"embedded vectors {name}"] = hash_vectors(model.encode_query(QUERIES))
        Evaluation(model, name, folder / "results", folder / "results" / "vectors").run([task])
    for file in sorted((folder / "results").rglob("*.json")):
        name = file.relative_to(folder).as_posix()
        text = file.read_text()
        content = json.loads(text)
        if "judged" not in name:
            content.pop("date")
            content["dataset"] = ""
            text = json.dumps(content)
        golden[f"row {name}"] = text
    meta = models["embedded"].mteb_model_meta
    golden["mteb"] = [meta.name, meta.revision]


def library(golden: dict[str, Any], folder: Path) -> None:
    write_set(folder / "set", 3, split="test", seed=1)
    with randslot.Library(folder / "library", "embedded") as opened:
        opened.add(folder / "set" / "pages", workers=1)
        for query in ("sales of wool", "costs in the north"):
            hits = [hit.as_dict() for hit in opened.search(query, 4)]
            golden[f"hits {query}"] = [
                [Path(hit["source"]).name, hit["page"], hit["score"], hit["matches"], hit["metadata"]] for hit in hits
            ]
        golden["status"] = {key: value for key, value in asdict(opened.status()).items() if "bytes" not in key}
        golden["status"]["folder"] = ""
    content = json.loads((folder / "library" / "library.json").read_text())
    content["folder"] = content["words"]["root"] = ""
    golden["library.json"] = json.dumps(content)


def main() -> None:
    if len(sys.argv) == 3:
        before, after = (json.loads(Path(file).read_text()) for file in sys.argv[1:])
        different = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        for key in different:
            print(f"{key}\n  before {before.get(key)}\n  after  {after.get(key)}")
        print(f"{len(before)} facts, {len(different)} differ")
        sys.exit(bool(different))
    torch.set_num_threads(1)
    golden: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        vectors(golden)
        saved(golden, Path(place, "saved"))
        losses(golden, Path(place, "losses"))
        evaluation(golden, Path(place, "evaluation"))
        library(golden, Path(place, "library"))
    Path(sys.argv[1]).write_text(json.dumps(golden, indent=1, default=list) + "\n")
    print(f"{len(golden)} facts in {sys.argv[1]}")


if __name__ == "__main__":
    main()
