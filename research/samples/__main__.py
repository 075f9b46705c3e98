"""Make sample reports as PDFs, with questions about them and the pages that answer.

python -m research.samples data/train -n 2000 --curriculum
python -m research.samples data/test -n 100 --split test
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from research.command import run

from .sets import write_set


def samples(
    output: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    reports: Annotated[int, typer.Option("--reports", "-n", help="Number of reports, of three pages each.")] = 20,
    split: Annotated[str, typer.Option(help="train, validation or test: they share no fact.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of the reports.")] = 0,
    curriculum: Annotated[
        bool, typer.Option("--curriculum", help="Add single words and blocks, for learning to read.")
    ] = False,
) -> None:
    """Make sample reports as PDFs, with questions about them and the pages that answer."""
    num_pages, num_queries = write_set(output, reports, split=split, seed=seed, curriculum=curriculum)
    print(f"{reports} reports, {num_pages} pages and {num_queries} questions in {output}")


if __name__ == "__main__":
    run(samples)
