"""Conduct a study: python -m research.study research/studies/small.toml"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from randslot.errors import UsageError
from research.command import run

from .conduct import conduct


def study(
    file: Annotated[Path, typer.Argument(help="A TOML file such as research/studies/small.toml.")],
    choose: Annotated[
        bool, typer.Option("--choose", help="Only choose length and pages, on Zero-Feedback and validation pages.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Only write the report anew, from the rows.")] = False,
) -> None:
    """Train every strategy with several seeds, compare them, and write a report beside the paper's numbers.

    Stopped or killed, the same command goes on.
    """
    if choose and report:
        raise UsageError("--choose comes before all runs and --report after them: name one")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        written = conduct(file, console, choose_only=choose, report_only=report)
    except KeyboardInterrupt:
        sys.exit(130)
    if written:
        print(f"see {written}")


if __name__ == "__main__":
    run(study)
