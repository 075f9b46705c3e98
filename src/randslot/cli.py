"""The command line: parse, call one function, print. Heavy imports wait inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .errors import RandSlotError, UsageError
from .library.commands import Place, index, library_app, search

EXTRAS = {
    "datasets": "train",
    "matplotlib": "train",
    "pyarrow": "train",
    "tensorboard": "train",
    "mteb": "evaluate",
    "fastapi": "serve",
    "uvicorn": "serve",
}

app = typer.Typer(
    help="Compact visual document retrieval: four vectors a page.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(index)
app.command()(search)
app.add_typer(library_app, name="library")


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


@app.command()
def samples(
    output: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    reports: Annotated[int, typer.Option("--reports", "-n", help="How many reports, of three pages each.")] = 20,
    split: Annotated[str, typer.Option(help="train, validation or test: they share no fact.")] = "train",
    seed: Annotated[int, typer.Option(help="Another seed, other reports.")] = 0,
    curriculum: Annotated[
        bool, typer.Option("--curriculum", help="Single words and blocks too, for learning to read.")
    ] = False,
) -> None:
    """Make sample reports as PDFs, with questions about them and the pages that answer.

    randslot samples data/train -n 2000 --curriculum

    randslot samples data/test -n 100 --split test
    """
    from .samples.sets import write_set

    num_pages, num_queries = write_set(output, reports, split=split, seed=seed, curriculum=curriculum)
    print(f"{reports} reports, {num_pages} pages and {num_queries} questions in {output}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the PDFs and demo.html.")] = Path(
        "randslot-demo"
    ),
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="Ask this; may repeat.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the result in a browser.")] = False,
) -> None:
    """Search sample reports with the embedded model: nothing to download.

    randslot demo

    randslot demo --open -q "sales of wool"
    """
    import webbrowser

    from rich.console import Console

    from .demo import run_demo

    file = run_demo(output, query or [], Console(highlight=False, soft_wrap=True))
    print(f"see the pages in {file}")
    if show and not webbrowser.open(file.resolve().as_uri()):
        print("no browser could be opened here: open that file yourself")


@app.command()
def serve(
    library: Place,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; others than this machine need --token.")] = (
        "127.0.0.1"
    ),
    token: Annotated[
        str | None, typer.Option(envvar="RANDSLOT_TOKEN", help="What visitors must know; better in the environment.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="No documents can be added.")] = False,
    origin: Annotated[
        list[str] | None, typer.Option(help="Let pages of https://example.org use the API; may repeat.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Where the library's model is, if it has moved.")] = None,
) -> None:
    """Search a library in a browser: a page, and an API with its description at /docs.

    randslot serve -l mylib

    RANDSLOT_TOKEN=$(openssl rand -hex 16) randslot serve -l mylib --host 0.0.0.0 --read-only
    """
    from .serve.run import Visitors, serve

    serve(library, Visitors(host, port, token, tuple(origin or ())), read_only=read_only, model=model)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or embedded.")],
    benchmark: Annotated[list[str] | None, typer.Option("--benchmark", "-b", help='"ViDoRe(v3)"; may repeat.')] = None,
    tasks: Annotated[str, typer.Option(help="Only these, as in hr,finance_en.")] = "",
    data: Annotated[Path | None, typer.Option(help="A set of your own: pages/, queries.jsonl, qrels.jsonl.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Copies of the ViDoRe repositories: no network.")] = None,
    inference: Annotated[str | None, typer.Option(help="random, zero, ...: what is appended.")] = None,
    query_vectors: Annotated[int | None, typer.Option(help="Vectors of a query.")] = None,
    page_vectors: Annotated[int | None, typer.Option(help="Vectors of a page.")] = None,
    reduction: Annotated[
        str | None, typer.Option(help="Of full-token pages: random, cluster, kmeans, pooling.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For random slots.")] = None,
    name: Annotated[str | None, typer.Option(help="What the model is called in tables.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Pages that are encoded at once.")] = 8,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")] = Path("results"),
    cache: Annotated[Path | None, typer.Option(help="Folder for vectors; by default OUTPUT/vectors.")] = None,
) -> None:
    """Measure how well a model finds pages: nDCG@5 and nDCG@10.

    randslot evaluate embedded --data data/test

    randslot evaluate runs/my-model -b "ViDoRe(v3)" --tasks hr,finance_en -o results
    """
    from .evaluation.run import Evaluation
    from .evaluation.tasks import find_tasks, own_task
    from .model import load

    if (data is None) == (not benchmark and not tasks) or (data and data_root):
        raise UsageError("name either a benchmark (or tasks of it), or a set of your own by --data")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write into {output}: {error.strerror or error}") from error
    found = [own_task(data)] if data else find_tasks(benchmark or [], [t for t in tasks.split(",") if t], data_root)
    loaded = load(
        model,
        inference=inference,
        query_vectors=query_vectors,
        page_vectors=page_vectors,
        reduction=reduction,
        seed=seed,
    )
    results = Evaluation(loaded, name or model, output, cache or output / "vectors", batch).run(found)
    for result in results:
        for subset, scores in result["subsets"].items() if len(result["subsets"]) > 1 else ():
            print(f"  {subset}: nDCG@5 {100 * scores['ndcg@5']:.2f}  nDCG@10 {100 * scores['ndcg@10']:.2f}")
        print(f"{result['task']}: nDCG@5 {100 * result['ndcg@5']:.2f}  nDCG@10 {100 * result['ndcg@10']:.2f}")
    if len(results) > 1:
        means = [100 * sum(result[f"ndcg@{k}"] for result in results) / len(results) for k in (5, 10)]
        print(f"mean of {len(results)} tasks: nDCG@5 {means[0]:.2f}  nDCG@10 {means[1]:.2f}")
    print(f"kept in {output}; randslot report {output} makes tables", file=sys.stderr)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="The folder that evaluate wrote.")],
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
) -> None:
    """Print the paper's tables with your rows among the published ones.

    randslot report results --format latex
    """
    from .evaluation.report import make_report

    print(make_report(results, style))


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
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None or os.environ.get("RANDSLOT_DEBUG"):
            raise
        print(f'randslot: this needs {error.name}: pip install "randslot[{extra}]"', file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("randslot: stopped", file=sys.stderr)
        sys.exit(130)
