"""The model commands: `train`, `distill`, `pairs`, `mine`, `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import RandSlotError, UsageError
from ..extras import needs_extra
from .options import ADVANCED, OwnStrategy, Place, TrustRemoteCode, flag, make_app, option, use_own_code

app = make_app()


@app.command()
@needs_extra("train")
def train(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or name of a shipped recipe.")],
    changes: Annotated[list[str] | None, option("KEY=VALUE", "Change a recipe value; repeatable.", "--set")] = None,
    output: Annotated[
        str | None, option("FOLDER", "Folder for model, checkpoints and run.json.", "--output", "-o")
    ] = None,
    resume: Annotated[bool, flag("--resume", help="Resume from the last checkpoint.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", help="Estimate steps, memory, disk and time.")] = False,
    devices: Annotated[int | None, option("N", "With --dry-run: number of devices.", min=1)] = None,
    strategy: OwnStrategy = None,
) -> None:
    """Train a model on pairs of query and page.

    randslot train qwen2.5-vl-3b --dry-run --devices 8
    randslot train qwen2.5-vl-3b --set slots=zero
    randslot train tiny --set data=pairs.jsonl -o runs/first
    randslot train tiny --set data=pairs.jsonl --strategy my_slots.py:Noisy
    torchrun --nproc-per-node 8 -m randslot train qwen3-vl-4b --resume
    """
    from ..training.recipe import read_recipe

    changes = [*(changes or []), *([f"output={output}"] if output else [])]
    if slots := use_own_code(strategy):
        changes.append(f"slots={slots}")
    chosen = read_recipe(recipe, changes)
    if dry_run:
        from ..training.plan import describe_run

        print(describe_run(chosen, devices))
        return
    if devices:
        raise UsageError("--devices needs --dry-run. To train on several devices, use torchrun --nproc-per-node.")
    from torch import distributed

    from ..training.train import train

    train(chosen, resume=resume)
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()  # else its threads may abort the process at exit


@app.command()
@needs_extra("train")
def distill(
    model: Annotated[str, typer.Argument(help="Teacher: folder, hub ID, embedded, or server URL.")],
    output: Annotated[str, option("FOLDER", "Folder for the student.", "--output", "-o")],
    student: Annotated[str, option("MODEL", "Text model (folder, hub ID), tiny, or shape.json.")],
    queries: Annotated[list[str], option("FILE", "Queries, one per line, or pairs.jsonl; repeatable.")],
    epochs: Annotated[int, option("N", "Number of epochs.", min=1)] = 10,
    batch: Annotated[int, option("N", "Queries per batch.", min=1)] = 32,
    rate: Annotated[float, option("X", "Learning rate.", min=0, max=1)] = 3e-4,
    layers: Annotated[int, option("N", "Keep the student's first N layers; 0: all.", min=0)] = 0,
    freeze_embeddings: Annotated[bool, flag("--freeze-embeddings", help="Freeze token embeddings.")] = False,
    resume: Annotated[bool, flag("--resume", help="Resume a stopped run.")] = False,
    validation: Annotated[float, option("X", "Share of held-out queries.", panel=ADVANCED, min=0, max=0.5)] = 0.05,
    seed: Annotated[int, option("N", "Seed for query order and new weights.", panel=ADVANCED, min=0)] = 42,
    save_every: Annotated[int, option("N", "Steps between checkpoints; 0: none.", panel=ADVANCED, min=0)] = 500,
    precision: Annotated[
        Literal["bf16", "fp32", "bf16-anywhere"],
        option("NAME", "bf16 (GPU only), fp32, or bf16-anywhere.", panel=ADVANCED),
    ] = "bf16",
    cache: Annotated[str, option("FOLDER", "Folder for teacher vectors.", panel=ADVANCED, shown="in the output")] = "",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Train a small model that encodes queries for a large one.

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
        layers=layers,
        freeze_embeddings=freeze_embeddings,
        epochs=epochs,
        batch=batch,
        learning_rate=rate,
        precision=precision,
        validation=validation,
        seed=seed,
        save_every=save_every,
        cache=cache,
        trust_remote_code=trust_remote_code,
    )
    distill(options, resume=resume)


@app.command()
def pairs(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of PDFs, searched recursively.")],
    output: Annotated[Path, option("FILE", "JSON Lines file to write.", "--output", "-o")],
    spans: Annotated[int, option("N", "Also add N text spans per page.", min=0)] = 0,
) -> None:
    """Make training pairs (title -> page) from PDF outlines.

    randslot pairs ~/manuals -o pairs.jsonl
    randslot pairs ~/manuals -o queries.jsonl --spans 20
    """
    from ..training.pairs import find_pairs, write_pairs

    found = find_pairs(folder, spans)
    for line in found.failed:
        print(f"could not read {line}", file=sys.stderr)
    if not found.pairs:
        what = "text" if spans else "an outline with useful titles"
        raise RandSlotError(f"no PDF below {folder} has {what}")
    write_pairs(found.pairs, folder, output)
    print(f"{len(found.pairs)} pairs in {output}")
    what = "titles or words" if spans else "titles"
    print(f"dropped: {found.generic} generic {what}, {found.repeated} that name several pages", file=sys.stderr)
    if found.without_outline:
        print(f"without outline: {len(found.without_outline)} PDFs", file=sys.stderr)
    if found.failed:
        raise typer.Exit(1)


@app.command()
@needs_extra("train")
def mine(
    pairs: Annotated[str, typer.Argument(help="Training pairs: .jsonl, .parquet or folder.")],
    output: Annotated[Path, option("FILE", "JSON Lines file to write.", "--output", "-o")],
    library: Place,
    by: Annotated[
        Literal["words", "vectors", "both"] | None,
        option("words|vectors|both", "Search that ranks the pages.", shown="the library's default"),
    ] = None,
    num: Annotated[int, option("N", "Negatives per query.", min=1)] = 4,
    ranks: Annotated[tuple[int, int], option("FIRST LAST", "Ranks to take them from.", shown="1 100")] = (1, 100),
    margin: Annotated[float, option("X", "Relative margin below the positive's score; 0: off.", min=0, max=1)] = 0.05,
) -> None:
    """Mine hard negatives for training pairs.

    Negatives are pages that a search ranks high for the query.

    randslot index ~/manuals -l mylib --model runs/my-model
    randslot mine pairs.jsonl -o hard.jsonl -l mylib
    randslot mine pairs.jsonl -o hard.jsonl -l mylib --by words --ranks 5 50
    randslot train tiny --set data=hard.jsonl --set negatives=4
    """
    from ..library.library import Library
    from ..training.data import load_pairs
    from ..training.mine import Mining, mine
    from ..training.pairs import write_pairs

    first, last = ranks
    if not 1 <= first <= last <= 1000:
        raise UsageError(f"--ranks {first} {last}: pass two ranks from 1 to 1000, the lower first")
    loaded = load_pairs(pairs, "train", "query", "image")
    with Library(library, create=False) as opened:
        rows = mine(loaded, opened, Mining(num, first, last, margin), by)
    if not rows:
        raise RandSlotError(f"no query of {pairs} has {num} negatives: widen --ranks or lower --margin")
    write_pairs(rows, Path(), output)
    print(f"{len(rows)} queries with {num} negatives each in {output}; pairs: {len(loaded)}")


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="Folder, hub ID, or embedded.")],
    output: Annotated[Path, typer.Argument(help="New or empty folder.")],
    slots: Annotated[str | None, option("SLOTS", "zero, fixed or learned.", shown="the model's own")] = None,
    dtype: Annotated[str, option("TYPE", "float32, bfloat16 or float16.")] = "float32",
    strategy: OwnStrategy = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Export a model for vLLM or plain transformers.

    randslot export runs/my-model exported --slots zero --dtype bfloat16
    """
    from ..model.export import GUIDE, export_model

    use_own_code(strategy)
    serving = export_model(model, output, slots=slots, dtype=dtype, trust_remote_code=trust_remote_code)
    settings = serving["settings"]
    budgets = f"{settings['query_vectors']} vectors per query, {settings['page_vectors']} per page"
    print(f"{budgets}, {settings['inference']} slots")
    print(f"see {output / GUIDE}")
