"""Run a study: python -m research.study research/studies/small.toml"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from research.command import run

from .plan import read_study
from .report import write_report
from .run import run_study


def study(
    file: Annotated[Path, typer.Argument(help="TOML file, such as research/studies/small.toml.")],
    report: Annotated[bool, typer.Option("--report", help="Only write the report, from existing rows.")] = False,
) -> None:
    """Train every strategy with several seeds, and compare them with the paper's claims.

    Run the command again to resume a stopped study.
    """
    found = read_study(file)
    if not report:
        try:
            run_study(found, Console(stderr=True, highlight=False, soft_wrap=True))
        except KeyboardInterrupt:
            sys.exit(130)
    print(f"see {write_report(found)}")


if __name__ == "__main__":
    run(study)
