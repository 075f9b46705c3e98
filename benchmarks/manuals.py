"""Searches of real manuals: words, vectors and both, on the test half of what `research.manuals` fetches.

python benchmarks/manuals.py data/manuals results-of-manuals

The second folder keeps libraries and vectors, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from record import keep, print_table

from randslot.evaluation.evaluate import evaluate_model
from randslot.evaluation.evaluate_search import evaluate_search
from randslot.evaluation.result_files import Result
from randslot.evaluation.tasks import own_task

MODEL = "embedded"


def make_row(search: str, result: Result) -> dict[str, Any]:
    """Return a row: the mean over languages, and each of them."""
    row: dict[str, Any] = {"search": search, "nDCG@5": 100 * result.ndcg[5], "nDCG@10": 100 * result.ndcg[10]}
    for language, subset in result.subsets.items():
        row[f"{language} ({subset.queries} questions)"] = 100 * subset.ndcg[5]
    return row


def main() -> None:
    """Evaluate, print a table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manuals", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    task = own_task(arguments.manuals / "test")
    words = evaluate_search(task, arguments.output, by="words", tell=print)
    both = evaluate_search(task, arguments.output, by="both", model=MODEL, tell=print)
    (vectors,) = evaluate_model(MODEL, [task], arguments.output, settings={})
    rows = [
        make_row("words", words),
        make_row(f"vectors of the {MODEL} model", vectors),
        make_row("both, if one insists", both),
    ]
    print_table(rows)
    keep("manuals", rows)


if __name__ == "__main__":
    main()
