"""The commands that measure how well pages are found: `evaluate`, `report`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError
from ..extras import needs_extra
from ..tables import Style
from .options import (
    Inference,
    OwnFamily,
    OwnStrategy,
    PageVectors,
    QueryVectors,
    Reduction,
    Rerank,
    SearchBy,
    Seed,
    TrustRemoteCode,
    tell,
    use_own_code,
)


@needs_extra("evaluate")
def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub id, embedded, or the URL of a server; none for --by words.")
    ] = None,
    benchmark: Annotated[list[str] | None, typer.Option("--benchmark", "-b", help='"ViDoRe(v3)"; may repeat.')] = None,
    tasks: Annotated[str, typer.Option(help="Only these, as in hr,finance_en.")] = "",
    data: Annotated[Path | None, typer.Option(help="A set of your own: pages/, queries.jsonl, qrels.jsonl.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Copies of the ViDoRe repositories: no network.")] = None,
    by: Annotated[
        SearchBy,
        typer.Option(metavar="words|vectors|both", help="Compare vectors, or search a library by words or by both."),
    ] = SearchBy.vectors,
    rerank: Rerank = None,
    group: Annotated[Literal["page", "document"], typer.Option(help="What --by words or both ranks.")] = "page",
    inference: Inference = None,
    query_vectors: QueryVectors = None,
    page_vectors: PageVectors = None,
    reduction: Reduction = None,
    seed: Seed = None,
    strategy: OwnStrategy = None,
    family: OwnFamily = None,
    trust_remote_code: TrustRemoteCode = False,
    name: Annotated[str | None, typer.Option(help="What the model is called in tables.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Pages that are encoded at once.")] = 8,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")] = Path("results"),
    cache: Annotated[Path | None, typer.Option(help="Folder for vectors; by default OUTPUT/vectors.")] = None,
) -> None:
    """Measure how well a model finds pages: nDCG@5 and nDCG@10.

    randslot evaluate embedded --data data/test

    randslot evaluate runs/my-model -b "ViDoRe(v3)" --tasks hr,finance_en -o results

    randslot evaluate http://localhost:8000 --data data/test

    randslot evaluate --by words --data data/manuals/test

    torchrun --nproc-per-node 8 -m randslot evaluate runs/my-model -b "ViDoRe(v3)"
    """
    from ..evaluation.report import list_means
    from ..evaluation.tasks import choose_tasks

    chosen = choose_tasks(benchmark or [], [task for task in tasks.split(",") if task], data, data_root)
    settings = {
        "slots": use_own_code(strategy, family),
        "inference": inference,
        "query_vectors": query_vectors,
        "page_vectors": page_vectors,
        "reduction": reduction,
        "seed": seed,
        "trust_remote_code": trust_remote_code or None,
    }
    if by is SearchBy.vectors:
        from torch import distributed

        from ..evaluation.evaluate import evaluate_model

        if model is None or rerank is not None or group != "page":
            raise UsageError("name a model to evaluate; --rerank and --group document need --by words or both")
        results = evaluate_model(model, chosen, output, settings=settings, name=name, cache=cache, batch=batch)
        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # else its threads may abort the process at exit
    else:
        from ..evaluation.evaluate_search import evaluate_search

        if any(value is not None for value in settings.values()) or os.environ.get("WORLD_SIZE", "1") != "1":
            raise UsageError(f"--by {by.value} takes the model as saved, without other settings, in one process")
        how: Any = by.value
        results = []
        for task in chosen:
            options: dict[str, Any] = {"model": model, "rerank": rerank, "group": group, "name": name}
            results.append(evaluate_search(task, output, by=how, tell=tell, **options))
    for line in list_means(results):
        print(line)
    if by is not SearchBy.vectors:
        from ..evaluation.compare import describe_interval

        for result in results:
            print(describe_interval(result))
    if results:  # only the first process of torchrun has them
        print(f"kept in {output}; randslot report {output} makes tables", file=sys.stderr)


def report(
    results: Annotated[Path, typer.Argument(help="The folder that evaluate wrote.")],
    style: Annotated[Style, typer.Option("--format", help="Format of the tables.")] = "md",
    base: Annotated[
        str | None,
        typer.Option(help="Row that differences between seeds subtract.", show_default="as in the paper: zero slots"),
    ] = None,
) -> None:
    """Print the paper's tables with your rows among the published ones.

    randslot report results --format latex

    randslot report results --base "my-model, zero"
    """
    from ..evaluation.report import make_report

    print(make_report(results, style, base))
