"""The commands that make models: `train`, `distill`, `pairs`, `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RandSlotError, UsageError
from ..extras import needs_extra
from .help import ADVANCED
from .options import TrustRemoteCode


@needs_extra("train")
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
        from ..training.plan import describe_run

        print(describe_run(chosen, devices))
        return
    if devices:
        raise UsageError("--devices goes with --dry-run: torchrun --nproc-per-node starts a process for each device")
    from ..training.train import train

    train(chosen, resume=resume)


@needs_extra("train")
def distill(
    model: Annotated[str, typer.Argument(help="The teacher: a folder, a hub id, embedded, or the URL of a server.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the student and its run.")],
    student: Annotated[
        str,
        typer.Option(
            help="A text model to begin with, by folder or hub id, or a shape to build: tiny, or a JSON file."
        ),
    ],
    queries: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="A query on each line, or training pairs as in pairs.jsonl; may repeat."),
    ],
    epochs: Annotated[int, typer.Option(metavar="N", help="How often each query is learned.")] = 10,
    batch: Annotated[int, typer.Option(metavar="N", help="Queries that are learned at once.")] = 32,
    rate: Annotated[float, typer.Option(metavar="X", help="The learning rate.")] = 3e-4,
    layers: Annotated[int, typer.Option(metavar="N", help="Only the first ones of the student; 0: all.")] = 0,
    still_embeddings: Annotated[
        bool,
        typer.Option("--still-embeddings", help="Do not train those of tokens: for a student of its teacher's layers."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run in the output folder was stopped.")] = (
        False
    ),
    validation: Annotated[
        float, typer.Option(metavar="X", rich_help_panel=ADVANCED, help="The share of queries that is held out.")
    ] = 0.05,
    warmup: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Steps in which the rate rises.")
    ] = 50,
    seed: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="For the order of queries, and new weights.")
    ] = 42,
    save_every: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Steps between checkpoints; 0: none.")
    ] = 500,
    precision: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=ADVANCED, help="bf16 (on a GPU), fp32 or bf16-anywhere.")
    ] = "bf16",
    column: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=ADVANCED, help="Where rows have their query.")
    ] = "query",
    cache: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=ADVANCED,
            show_default=False,
            help="For the teacher's vectors, which several students may share; else in the output.",
        ),
    ] = "",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Make a small model that reads queries in place of a large one; pages keep the vectors of the large one.

    randslot distill runs/my-model -o light --student HuggingFaceTB/SmolLM2-135M --queries pairs.jsonl

    randslot distill runs/my-model -o light --student tiny --queries questions.txt --epochs 20 --rate 1e-3

    randslot distill runs/my-text-model -o light --student runs/my-text-model --layers 2 --queries pairs.jsonl

    randslot search "deferred tax" -l mylib --query-model light
    """
    from ..training.distill import Distillation, distill

    options = Distillation(
        model,
        student,
        tuple(queries),
        output,
        query_column=column,
        layers=layers,
        still_embeddings=still_embeddings,
        epochs=epochs,
        batch=batch,
        learning_rate=rate,
        warmup=warmup,
        precision=precision,
        validation=validation,
        seed=seed,
        save_every=save_every,
        cache=cache,
        trust_remote_code=trust_remote_code,
    )
    distill(options, resume=resume)


def pairs(
    folder: Annotated[Path, typer.Argument(help="A folder of PDFs; folders below it count too.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, JSON lines.")],
    spans: Annotated[
        int, typer.Option(metavar="N", min=0, help="Also so many times a few words in a row of every page's text.")
    ] = 0,
) -> None:
    """Make training pairs (section title -> page) from the outlines of PDFs.

    randslot pairs ~/manuals -o pairs.jsonl

    randslot pairs ~/manuals -o queries.jsonl --spans 20
    """
    from ..training.data import add_spans, find_pairs, write_pairs

    found = find_pairs(folder)
    if spans:
        add_spans(found, folder, spans)
    for line in found.failed:
        print(f"could not read {line}", file=sys.stderr)
    if not found.pairs:
        what = "text" if spans else "an outline with useful titles"
        raise RandSlotError(f"no PDF below {folder} has {what}")
    try:
        write_pairs(found, folder, output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    print(f"{len(found.pairs)} pairs in {output}")
    what = "titles or words" if spans else "titles"
    print(f"dropped: {found.generic} generic {what}, {found.repeated} that name several pages", file=sys.stderr)
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
