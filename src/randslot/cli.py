"""The command line: parse, call one function, print. Heavy imports wait inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .errors import RandSlotError, UsageError

app = typer.Typer(
    help="Compact visual document retrieval: four vectors a page.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def start(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Compact visual document retrieval: four vectors a page."""
    if debug:
        os.environ["RANDSLOT_DEBUG"] = "1"


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with randslot.")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="key=value: change one value; may repeat.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder for the model and its run.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the output folder.")
    ] = False,
) -> None:
    """Train a model on pairs of query and page.

    randslot train qwen2.5-vl-3b --set slots=zero

    randslot train tiny --set data=pairs.jsonl -o runs/first

    torchrun --nproc-per-node 8 -m randslot train qwen3-vl-4b --resume
    """
    from .training.recipe import read_recipe
    from .training.run import train

    changes = [*(changes or []), *([f"output={output}"] if output else [])]
    train(read_recipe(recipe, changes), resume=resume)


@app.command()
def pairs(
    folder: Annotated[Path, typer.Argument(help="A folder of PDFs; folders below it count too.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, JSON lines.")],
) -> None:
    """Make training pairs (section title -> page) from the outlines of PDFs.

    randslot pairs ~/manuals -o pairs.jsonl
    """
    from .training.outlines import find_pairs, write_pairs

    found = find_pairs(folder)
    for line in found.failed:
        print(f"could not read {line}", file=sys.stderr)
    if not found.pairs:
        raise RandSlotError(f"no PDF below {folder} has an outline with useful titles")
    try:
        write_pairs(found, folder, output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    print(f"{len(found.pairs)} pairs in {output}")
    print(f"dropped: {found.generic} generic titles, {found.repeated} that name several pages", file=sys.stderr)
    if found.without_outline:
        print(f"without outline: {len(found.without_outline)} PDFs", file=sys.stderr)
    if found.failed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; an error of ours is one line, exit code 2 for wrong usage and 1 for failure."""
    try:
        app()
    except RandSlotError as error:
        if os.environ.get("RANDSLOT_DEBUG"):
            raise
        if os.environ.get("RANK", "0") == "0":
            print(f"randslot: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        print("randslot: stopped", file=sys.stderr)
        sys.exit(130)
