"""The evaluation commands: `evaluate`, `report`, `analyse`, `compare`, `profile`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import UsageError
from ..extras import needs_extra
from ..tables import Style, write_table
from .options import (
    ADVANCED,
    Inference,
    OwnStrategy,
    PageVectors,
    QueryVectors,
    Reduction,
    Rerank,
    Seed,
    TrustRemoteCode,
    Width,
    flag,
    make_app,
    option,
    tell,
    use_own_code,
)

app = make_app()

Benchmarks = Annotated[list[str] | None, option("NAME", '"ViDoRe(v3)"; repeatable.', "--benchmark", "-b")]
Data = Annotated[Path | None, option("FOLDER", "Your own set: pages/, queries.jsonl, qrels.jsonl.")]
DataRoot = Annotated[Path | None, option("FOLDER", "Copies of the ViDoRe repositories: no network.")]
Frontier = Annotated[bool, flag("--frontier", help="Also evaluate truncated and quantised vectors.")]
Format = Annotated[Style, typer.Option("--format", help="Format of the tables.")]


@app.command()
@needs_extra("evaluate")
def evaluate(
    model: Annotated[str | None, typer.Argument(help="Folder, hub ID, embedded, or server URL.")] = None,
    benchmark: Benchmarks = None,
    tasks: Annotated[str, option("NAMES", "Only these tasks: hr,finance_en.")] = "",
    data: Data = None,
    data_root: DataRoot = None,
    by: Annotated[
        Literal["words", "vectors", "both"],
        option("words|vectors|both", "Plain vectors, or a library's keyword/hybrid search."),
    ] = "vectors",
    rerank: Rerank = None,
    group: Annotated[Literal["page", "document"], typer.Option(help="Rank pages or documents.")] = "page",
    inference: Inference = None,
    query_vectors: QueryVectors = None,
    page_vectors: PageVectors = None,
    width: Width = None,
    reduction: Reduction = None,
    seed: Seed = None,
    strategy: OwnStrategy = None,
    trust_remote_code: TrustRemoteCode = False,
    name: Annotated[str | None, option("NAME", "Model name in tables.")] = None,
    batch: Annotated[int, option("N", "Pages per batch.", min=1)] = 8,
    output: Annotated[Path, option("FOLDER", "Folder for results.", "--output", "-o")] = Path("results"),
    cache: Annotated[Path | None, option("FOLDER", "Folder for vectors.", shown="OUTPUT/vectors")] = None,
    windows: Annotated[int, option("N", "Cut each page into N parts; encode each.", panel=ADVANCED, min=1)] = 1,
    frontier: Frontier = False,
) -> None:
    """Measure how well a model finds pages: nDCG@5 and nDCG@10.

    randslot evaluate embedded --data data/test
    randslot evaluate runs/my-model -b "ViDoRe(v3)" --tasks hr,finance_en -o results
    randslot evaluate runs/my-model -b "ViDoRe(v3)" --frontier
    randslot evaluate http://localhost:8000 --data data/test
    randslot evaluate --by words --data data/manuals/test
    torchrun --nproc-per-node 8 -m randslot evaluate runs/my-model -b "ViDoRe(v3)"
    """
    from ..evaluation.report import list_means
    from ..evaluation.tasks import choose_tasks

    chosen = choose_tasks(benchmark or [], [task for task in tasks.split(",") if task], data, data_root)
    settings = {
        "slots": use_own_code(strategy),
        "inference": inference,
        "query_vectors": query_vectors,
        "page_vectors": page_vectors,
        "width": width,
        "reduction": reduction,
        "seed": seed,
        "trust_remote_code": trust_remote_code or None,
    }
    if by == "vectors":
        from torch import distributed

        from ..evaluation.evaluate import evaluate_model

        if rerank is not None or group != "page":
            raise UsageError("--rerank and --group document require --by words or --by both")
        if model is None:
            raise UsageError("missing MODEL: pass a folder, a hub ID, embedded, or a server URL")
        results = evaluate_model(
            model, chosen, output, settings=settings, name=name, cache=cache, batch=batch, windows=windows
        )
        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # else its threads may abort the process at exit
        intervals = []
    else:
        from ..evaluation.compare import describe_interval
        from ..evaluation.evaluate_search import evaluate_search

        if any(value is not None for value in settings.values()) or os.environ.get("WORLD_SIZE", "1") != "1":
            raise UsageError(
                f"--by {by} uses the model's saved settings in one process. Drop other options and torchrun."
            )
        if frontier:
            raise UsageError("--frontier needs --by vectors")
        results = []
        for task in chosen:
            results.append(
                evaluate_search(task, output, by=by, model=model, rerank=rerank, group=group, name=name, tell=tell)
            )
        intervals = [describe_interval(result) for result in results]
    if results:  # only in the first process of torchrun
        print("\n".join([*list_means(results), *intervals]))
        print(f"see {output}; for tables: randslot report {output}", file=sys.stderr)
        if frontier:
            _show_frontier(sorted({result.file.parent for result in results}), output / "frontier", "md")


def _show_frontier(folders: list[Path], output: Path, style: Style) -> None:
    """Print the size-quality frontier of each run, and write all results with a figure."""
    from ..evaluation.analysis_report import write_report
    from ..evaluation.frontier import compare_bytes

    sections = compare_bytes(folders, tell)
    for section in sections:
        print(write_table(section.tables["frontier"], style))
    print(f"see {write_report(sections, output)}", file=sys.stderr)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder of results.")],
    style: Format = "md",
    base: Annotated[
        str | None, option("NAME", "Baseline row for differences.", shown="zero slots, as in the paper")
    ] = None,
) -> None:
    """Print the paper's tables with your rows among the published ones.

    randslot report results --format latex
    randslot report results --base "my-model, zero"
    """
    from ..evaluation.report import make_report

    print(make_report(results, style, base))


@app.command()
@needs_extra("evaluate")
def analyse(
    sources: Annotated[
        list[str] | None, typer.Argument(help="Part (budgets, winners, readouts, cost), then results or models.")
    ] = None,
    benchmark: Benchmarks = None,
    data: Data = None,
    data_root: DataRoot = None,
    vectors: Annotated[int, option("N", "Vectors per side.", min=1)] = 4,
    dim: Annotated[int | None, option("N", "Vector dimension, for cost.", min=1)] = None,
    style: Format = "md",
    output: Annotated[Path | None, option("FOLDER", "Folder for tables and figures.", "--output", "-o")] = None,
) -> None:
    """Analyse cached vectors: budgets, winners, readouts, cost.

    `randslot evaluate` caches the vectors.

    randslot analyse results -o report
    randslot analyse winners results/first results/second
    randslot analyse embedded --data data/test -o report
    randslot analyse cost --vectors 8 --dim 1024
    """
    from ..evaluation.analysis_report import analyse, write_report

    sections = analyse(
        sources or [],
        benchmarks=benchmark or [],
        data=data,
        data_root=data_root,
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


@app.command()
@needs_extra("evaluate")
def compare(
    searches: Annotated[
        list[str], typer.Argument(help="Folders of results; with --data: words, models (MODEL,width=256).")
    ],
    data: Data = None,
    both: Annotated[bool, flag("--both", help="With --data: also words and vectors together.")] = False,
    frontier: Frontier = False,
    rerank: Rerank = None,
    base: Annotated[str | None, option("NAME", "Baseline run, or part of its name.", shown="the first found")] = None,
    style: Format = "md",
    seed: Annotated[int, option("N", "Bootstrap seed.")] = 42,
    trust_remote_code: TrustRemoteCode = False,
    output: Annotated[Path, option("FOLDER", "Folder for libraries and figure.", "--output", "-o")] = Path(
        "comparison"
    ),
) -> None:
    """Compare runs, or models on your pages: quality, size, time.

    randslot compare results/zero results/random
    randslot compare results --base "my-model, zero"
    randslot compare results/one-vector results/four-vectors --frontier
    randslot compare runs/a runs/tokens,reduction=semcluster,page_vectors=4,width=256 --data data/manuals/test
    randslot compare words embedded sentence-transformers/all-MiniLM-L6-v2 --data data/manuals/test --both
    """
    from ..evaluation.compare import compare_runs, find_frontier
    from ..evaluation.evaluate_search import compare_models, evaluate_named, list_compared
    from ..evaluation.tasks import own_task

    folders = [Path(one) for one in searches]
    if frontier:
        if data is not None:
            folders = evaluate_named(searches, own_task(data), output / "results", trust_remote_code)
        _show_frontier(folders, output, style)
        return
    if data is None:
        print(write_table(compare_runs(folders, base=base, seed=seed), style))
        return
    from ..plots import draw_frontier

    if base is not None:
        raise UsageError("--base needs folders of results. With --data, the first search is the baseline.")
    task = own_task(data)
    compared = compare_models(
        searches, task, output, both=both, rerank=rerank, trust_remote_code=trust_remote_code, tell=tell
    )
    print(write_table(list_compared(compared), style))
    points = {one.search: [(float(max(one.bytes, 1)), one.ndcg)] for one in compared}
    best = [(float(max(one.bytes, 1)), one.ndcg) for one in find_frontier(compared)]
    draw_frontier(points, [best], output / "compare.svg")
    print(f"see {output / 'compare.svg'}", file=sys.stderr)


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="Folder, hub ID, or embedded.")],
    page: Annotated[str, option("RxC", "Visual tokens per page, rows x columns.")] = "48x32",
    vectors: Annotated[str, option("N,N", "Budgets to time.")] = "1,4,6",
    samples: Annotated[int, option("N", "Measured samples (after three warm-ups).")] = 32,
    width: Width = None,
    style: Format = "md",
) -> None:
    """Time encoding by the paper's protocol.

    Every strategy and budget is timed in one pass and step by step.

    randslot profile embedded --page 10x9
    """
    from ..evaluation.profile import Protocol, profile
    from ..machine import describe_machine
    from ..model import load

    try:
        rows, columns = map(int, page.lower().split("x"))
        budgets = tuple(map(int, vectors.split(",")))
    except ValueError as error:
        raise UsageError(f"--page {page} --vectors {vectors}: write them as 48x32 and 1,4,6") from error
    protocol = Protocol(rows=rows, columns=columns, budgets=budgets, samples=samples)
    print(write_table(profile(load(model, width=width), protocol), style))
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items() if value), file=sys.stderr)
