"""The commands that look into results: `analyse`, `compare`, `profile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..extras import needs_extra
from ..tables import Style, write_table
from .options import Rerank, TrustRemoteCode, tell


@needs_extra("evaluate")
def analyse(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="One part (budgets, winners, readouts, cost) if not all; then results or models."),
    ] = None,
    benchmark: Annotated[list[str] | None, typer.Option("--benchmark", "-b", help="To evaluate models on.")] = None,
    data: Annotated[Path | None, typer.Option(help="A set of your own to evaluate models on.")] = None,
    vectors: Annotated[int, typer.Option(min=1, help="Vectors a side, but for the budget sweep.")] = 4,
    dim: Annotated[int | None, typer.Option(min=1, help="For cost: the dimension of vectors.")] = None,
    style: Annotated[Style, typer.Option("--format", help="Format of the tables.")] = "md",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for tables and figures.")] = None,
) -> None:
    """Show why a model works, from the vectors that evaluate left: budgets, winners, readouts, cost.

    randslot analyse results -o report

    randslot analyse winners results/first results/second

    randslot analyse embedded --data data/test -o report

    randslot analyse cost mylib

    randslot analyse cost --vectors 8 --dim 1024
    """
    from ..evaluation.analysis_report import analyse, write_report

    sections = analyse(
        sources or [],
        benchmarks=benchmark or [],
        data=data,
        num_vectors=vectors,
        dim=dim,
        results=(output or Path("report")) / "results",
        tell=tell,
    )
    for section in sections:
        for table in section.tables.values():
            print(write_table(table, style))
    if output:
        print(f"see {write_report(sections, output)}", file=sys.stderr)


@needs_extra("evaluate")
def compare(
    searches: Annotated[
        list[str], typer.Argument(help="Folders of results; with --data, models by folder or hub id, and words.")
    ],
    data: Annotated[Path | None, typer.Option(help="A set of your own, whose pages models are compared on.")] = None,
    both: Annotated[bool, typer.Option("--both", help="With --data: also words and vectors of each together.")] = False,
    rerank: Rerank = None,
    base: Annotated[
        str | None, typer.Option(help="The run to compare with, by its name or a part of it; else the first found.")
    ] = None,
    style: Annotated[Style, typer.Option("--format", help="Format of the tables.")] = "md",
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 42,
    trust_remote_code: TrustRemoteCode = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="With --data: folder for libraries and figure.")] = (
        Path("comparison")
    ),
) -> None:
    """Compare runs task by task, or models on your pages: quality with intervals, bytes a page, and time.

    randslot compare results/zero results/random

    randslot compare results --base "my-model, zero"

    randslot compare words embedded sentence-transformers/all-MiniLM-L6-v2 --data data/manuals/test --both
    """
    from ..evaluation.compare import compare_models, compare_runs, find_frontier, list_compared

    if data is None:
        print(write_table(compare_runs([Path(one) for one in searches], base=base, seed=seed), style))
        return
    from ..evaluation.tasks import own_task
    from ..plots import draw_frontier

    if base is not None:
        raise UsageError("--base is for folders of results. With --data, the first search is the base.")
    task = own_task(data)
    compared = compare_models(
        searches, task, output, both=both, rerank=rerank, trust_remote_code=trust_remote_code, tell=tell
    )
    print(write_table(list_compared(compared), style))
    points = {one.search: (float(max(one.bytes, 1)), one.ndcg) for one in compared}
    draw_frontier(points, [one.search for one in find_frontier(compared)], output / "compare.svg")
    print(f"see {output / 'compare.svg'}", file=sys.stderr)


def profile(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or embedded.")],
    page: Annotated[str, typer.Option(help="Tokens of a page: merged visual ones, rows x columns.")] = "48x32",
    vectors: Annotated[str, typer.Option(help="Budgets to time.")] = "1,4,6",
    samples: Annotated[int, typer.Option(help="Measured samples, after three to warm up.")] = 32,
    style: Annotated[Style, typer.Option("--format", help="Format of the tables.")] = "md",
) -> None:
    """Time encoding by the paper's protocol: every strategy and budget, in one pass and step by step.

    randslot profile embedded --page 10x9
    """
    from rich.console import Console
    from rich.progress import Progress

    from ..evaluation.profile import Protocol, measure_waiting, profile
    from ..machine import describe_machine
    from ..model import load

    try:
        rows, columns = map(int, page.lower().split("x"))
        budgets = tuple(map(int, vectors.split(",")))
    except ValueError as error:
        raise UsageError(f"--page is like 48x32 and --vectors like 1,4,6, not {page!r} and {vectors!r}") from error
    protocol = Protocol(rows=rows, columns=columns, budgets=budgets, samples=samples)
    loaded, console = load(model), Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        table = profile(loaded, protocol, progress)
    print(write_table(table, style))
    if loaded.reads == "image":  # preparing a text takes no time
        print(write_table(measure_waiting(loaded, protocol), style))
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items() if value), file=sys.stderr)
