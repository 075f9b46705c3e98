"""Measure how merging an adapter and rounding to bfloat16 change vectors and scores.

    python benchmarks/export.py            # about a minute on one core

The embedded model with a random adapter of the paper's size, which changes each weight matrix by 5 % of its norm, on
24 sample pages and their 120 questions. The baseline of every row is the unmerged adapter in float32.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from record import keep, print_table
from sentence_transformers import MultiVectorEncoder
from torch import Tensor

import randslot
from randslot.evaluation.tasks import own_task
from randslot.model.export import export_model
from randslot.model.hub import SERVING
from research.samples.sets import write_set

CHANGE = 0.05


def adapt(folder: Path) -> None:
    """Save the embedded model with an adapter that changes each weight by `CHANGE` of its norm."""
    model = randslot.load("embedded", lora=True, device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, BaseTunerLayer):
                (b,) = module.lora_B.values()
                b.weight.normal_()
                change = module.get_delta_weight("default").norm() / module.get_base_layer().weight.norm()
                b.weight.mul_(CHANGE / change)
    model.save_pretrained(str(folder))


def encode(model: MultiVectorEncoder, pages: list[Any], queries: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the vectors of pages and of queries, and the scores."""
    with torch.backends.mkldnn.flags(enabled=False):  # its bfloat16 kernels do not support every CPU
        found, asked = model.encode_document(pages, batch_size=8), model.encode_query(queries)
    return torch.stack(found), torch.stack(asked), model.similarity(asked, found)


def compare(way: str, mine: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return a row: the changes of vectors and scores, and the number of questions with another first page."""
    turned = torch.cat([(1 - (a * b).sum(-1)).flatten() for a, b in zip(mine[:2], exact[:2], strict=True)])
    moved = (mine[2] - exact[2]).abs()
    return {
        "way": way,
        "1 - cosine, mean": f"{turned.mean().item():.1e}",
        "1 - cosine, most": f"{turned.max().item():.1e}",
        "score, most": f"{moved.max().item():.1e}",
        "other first page": f"{int((mine[2].argmax(1) != exact[2].argmax(1)).sum())} of {len(moved)}",
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_set(root / "set", 8, split="test", seed=0)
        (subset,) = own_task(root / "set").subsets()
        pages = [subset.pages.open(i) for i in range(len(subset.pages.ids))]
        queries = list(subset.queries.values())
        adapt(root / "model")
        for dtype in ("float32", "bfloat16"):
            export_model(root / "model", root / dtype, dtype=dtype)
            (root / dtype / SERVING).unlink()  # without it, a backbone like any other
        apart = randslot.load(root / "model", device="cpu")
        exact = encode(apart, pages, queries)
        ways = {
            "merged in float32": ("float32", "float32"),
            "merged, weights in bfloat16, run in float32": ("bfloat16", "float32"),
            "merged, run in bfloat16": ("bfloat16", "bfloat16"),
            "adapter apart, run in bfloat16": ("model", "bfloat16"),
        }
        rows = []
        for way, (folder, dtype) in ways.items():
            visual_tokens = apart[0].settings.visual_tokens
            model = randslot.load(root / folder, device="cpu", dtype=dtype, visual_tokens=visual_tokens)
            rows.append(compare(way, encode(model, pages, queries), exact))
    print_table(rows)
    keep("export", rows)


if __name__ == "__main__":
    main()
