"""The commands that make models: `train`, `pretrain`, `pairs`, `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RandSlotError, UsageError


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with randslot.")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="key=value: change one value; may repeat.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder for the model and its run.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the output folder.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what it would take: steps, memory, disk, time.")
    ] = False,
    devices: Annotated[
        int | None, typer.Option(min=1, help="For --dry-run: how many, if not those of this machine.")
    ] = None,
) -> None:
    """Train a model on pairs of query and page.

    randslot train qwen2.5-vl-3b --dry-run --devices 8

    randslot train qwen2.5-vl-3b --set slots=zero

    randslot train tiny --set data=pairs.jsonl -o runs/first

    torchrun --nproc-per-node 8 -m randslot train qwen3-vl-4b --resume
    """
    from ..training.recipe import read_recipe

    chosen = read_recipe(recipe, [*(changes or []), *([f"output={output}"] if output else [])])
    if dry_run:
        from ..training.dry_run import describe_run

        print(describe_run(chosen, devices))
        return
    if devices:
        raise UsageError("--devices goes with --dry-run: torchrun --nproc-per-node starts a process for each device")
    from ..training.train import train

    train(chosen, resume=resume)


def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with randslot.")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="key=value: change one value; may repeat.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder for the backbone and its run.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the output folder.")
    ] = False,
) -> None:
    """Teach a small backbone to read: to write down what is on a page.

    randslot pretrain embedded-reading --set data=data/train/texts.jsonl -o runs/reading
    """
    train(recipe, [*(changes or []), "objective=reading"], output, resume)


def pairs(
    folder: Annotated[Path, typer.Argument(help="A folder of PDFs; folders below it count too.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, JSON lines.")],
) -> None:
    """Make training pairs (section title -> page) from the outlines of PDFs.

    randslot pairs ~/manuals -o pairs.jsonl
    """
    from ..training.outlines import find_pairs, write_pairs

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


def export(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or embedded.")],
    output: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    slots: Annotated[
        str | None, typer.Option(help="zero, fixed or learned; by default what the model appends when encoding.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Write a model for serving in vLLM or plain transformers: slots become tokens, no custom code.

    randslot export runs/my-model exported --slots zero --dtype bfloat16
    """
    from ..model.export import GUIDE, export_model

    serving = export_model(model, output, slots=slots, dtype=dtype)
    settings = serving["settings"]
    print(
        f"{settings['query_vectors']} vectors a query, {settings['page_vectors']} a page, {settings['inference']} slots"
    )
    print(f"see {output / GUIDE}")
