"""The command line: parse, call one function, print. Heavy imports wait inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .errors import RandSlotError, UsageError
from .help import ADVANCED, PlainCommand, PlainGroup
from .library.commands import IndexCommand, ModelPlace, Place, SearchBy, SearchCommand, index, library_app, search
from .options import Inference, PageVectors, QueryVectors, Reduction, Seed, TrustRemoteCode

AddFrom = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FOLDER", rich_help_panel=ADVANCED, help="Agents may add documents below this folder; may repeat."
    ),
]
EXTRAS = {
    "datasets": "train",
    "matplotlib": "evaluate",
    "pyarrow": "train",
    "tensorboard": "train",
    "mteb": "evaluate",
    "pydantic": "evaluate",
    "fastapi": "serve",
    "uvicorn": "serve",
    "grpc": "qdrant",
    "qdrant_client": "qdrant",
    "ray": "ray",
    "mcp": "mcp",
    "mcp_types": "mcp",
}

app = typer.Typer(
    cls=PlainGroup,
    help="Search PDFs, slides and scans: by words, and by four vectors a page.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
SEARCH, MODELS, RESEARCH = "Search", "Models", "Research"
app.command(cls=IndexCommand, rich_help_panel=SEARCH)(index)
app.command(cls=SearchCommand, rich_help_panel=SEARCH)(search)


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
    """Search PDFs, slides and scans: by words, and by four vectors a page."""
    if debug:
        os.environ["RANDSLOT_DEBUG"] = "1"


@app.command(cls=PlainCommand, rich_help_panel=SEARCH)
def serve(
    library: Place,
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any free one.")] = 8000,
    new: Annotated[bool, typer.Option("--new", help="Make the library if there is none; add documents there.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="No documents can be added.")] = False,
    host: Annotated[
        str,
        typer.Option(rich_help_panel=ADVANCED, help="The address to listen on; others than this machine need --token."),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=ADVANCED,
            envvar="RANDSLOT_TOKEN",
            help="What visitors must know; better in the environment.",
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=ADVANCED, help="Let pages of https://example.org use the API; may repeat."),
    ] = None,
    model: ModelPlace = None,
    trust_remote_code: TrustRemoteCode = False,
    add_from: AddFrom = None,
) -> None:
    """Search a library in a browser: a page, an API with its description at /docs, and /mcp for agents.

    randslot serve -l mylib

    randslot serve -l newlib --new

    RANDSLOT_TOKEN=$(openssl rand -hex 16) randslot serve -l mylib --host 0.0.0.0 --read-only
    """
    from .serve.listen import Visitors, serve

    visitors = Visitors(host, port, token, tuple(origin or ()))
    serve(
        library,
        visitors,
        new=new,
        read_only=read_only,
        model=model,
        add_from=add_from or (),
        trust_remote_code=trust_remote_code,
    )


@app.command(cls=PlainCommand, rich_help_panel=SEARCH)
def mcp(
    library: Place,
    add_from: AddFrom = None,
    model: Annotated[str | None, typer.Option(help="Where the library's model is, if it has moved.")] = None,
) -> None:
    """Let an agent search and read a library, by the Model Context Protocol on standard input and output.

    randslot mcp -l mylib

    randslot mcp -l mylib --add-from ~/papers
    """
    from .agents.stdio import serve_stdio

    serve_stdio(library, add_from or (), model)


app.add_typer(library_app, name="library", rich_help_panel=SEARCH)


@app.command(cls=PlainCommand, rich_help_panel=SEARCH)
def doctor(
    with_torch: Annotated[bool, typer.Option("--torch", help="Import torch, and ask what it computes on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at what is installed here, and say what to do about what is missing.

    randslot doctor

    randslot doctor --torch --json
    """
    import json

    from .doctor import as_json as write_json
    from .doctor import examine, is_working, show

    findings = examine(with_torch=with_torch)
    print(json.dumps(write_json(findings), indent=2) if as_json else show(findings))
    if not is_working(findings):
        raise typer.Exit(1)


@app.command(cls=PlainCommand, rich_help_panel=SEARCH)
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the PDFs and demo.html.")] = Path(
        "randslot-demo"
    ),
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="Ask this; may repeat.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the result in a browser.")] = False,
) -> None:
    """Search a real document by words, and sample reports by four vectors a page: nothing to download.

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


@app.command(cls=PlainCommand, rich_help_panel=MODELS)
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
    from .training.recipe import read_recipe

    chosen = read_recipe(recipe, [*(changes or []), *([f"output={output}"] if output else [])])
    if dry_run:
        from .training.dry_run import describe_run

        print(describe_run(chosen, devices))
        return
    if devices:
        raise UsageError("--devices goes with --dry-run: torchrun --nproc-per-node starts a process for each device")
    from .training.train import train

    train(chosen, resume=resume)


@app.command(cls=PlainCommand, rich_help_panel=MODELS)
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


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
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


@app.command(cls=PlainCommand, rich_help_panel=MODELS)
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
    from .model.export import GUIDE, export_model

    serving = export_model(model, output, slots=slots, dtype=dtype)
    settings = serving["settings"]
    print(
        f"{settings['query_vectors']} vectors a query, {settings['page_vectors']} a page, {settings['inference']} slots"
    )
    print(f"see {output / GUIDE}")


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
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
    inference: Inference = None,
    query_vectors: QueryVectors = None,
    page_vectors: PageVectors = None,
    reduction: Reduction = None,
    seed: Seed = None,
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
    """
    from .lab.evaluation.report import list_means
    from .lab.evaluation.tasks import choose_tasks

    chosen = choose_tasks(benchmark or [], [task for task in tasks.split(",") if task], data, data_root)
    settings = {
        "inference": inference,
        "query_vectors": query_vectors,
        "page_vectors": page_vectors,
        "reduction": reduction,
        "seed": seed,
        "trust_remote_code": trust_remote_code or None,
    }
    if by is SearchBy.vectors:
        from .lab.evaluation.evaluate import evaluate_model

        if model is None:
            raise UsageError("name a model to evaluate, or --by words")
        results = evaluate_model(
            model, chosen, output, settings=settings, name=name, cache=cache, batch=batch, as_published=True
        )
    else:
        from .lab.evaluation.search import evaluate_search

        if any(value is not None for value in settings.values()):
            raise UsageError(f"--by {by.value} takes the model as it is saved: no settings of it")
        how: Any = by.value
        results = []
        for task in chosen:
            results.append(evaluate_search(task, output, by=how, model=model, name=name, tell=_tell))
    for line in list_means(results):
        print(line)
    print(f"kept in {output}; randslot report {output} makes tables", file=sys.stderr)


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
def manuals(
    output: Annotated[Path, typer.Argument(help="A folder; what it has already is not fetched again.")],
) -> None:
    """Fetch real manuals with questions about them, to evaluate on: dev to choose by, test to report.

    randslot manuals data/manuals

    randslot evaluate runs/my-model --data data/manuals/test
    """
    from .lab.evaluation.manuals import SPLITS, fetch_manuals

    problems = fetch_manuals(output)
    for line in problems:
        print(line, file=sys.stderr)
    for split in SPLITS:
        num = len((output / split / "queries.jsonl").read_text(encoding="utf-8").splitlines())
        print(f"{num} questions in {output / split}")
    if problems:
        raise typer.Exit(1)


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
def analyse(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="One part (budgets, winners, readouts, cost) if not all; then results or models."),
    ] = None,
    benchmark: Annotated[list[str] | None, typer.Option("--benchmark", "-b", help="To evaluate models on.")] = None,
    data: Annotated[Path | None, typer.Option(help="A set of your own to evaluate models on.")] = None,
    vectors: Annotated[int, typer.Option(min=1, help="Vectors a side, but for the budget sweep.")] = 4,
    dim: Annotated[int | None, typer.Option(help="For cost: the dimension of vectors.")] = None,
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for tables and figures.")] = None,
) -> None:
    """Show why a model works, from the vectors that evaluate left: budgets, winners, readouts, cost.

    randslot analyse results -o report

    randslot analyse winners results/first results/second

    randslot analyse embedded --data data/test -o report

    randslot analyse cost mylib

    randslot analyse cost --vectors 8 --dim 1024
    """
    from .lab.analysis.analyse import analyse
    from .lab.analysis.report import write_report
    from .tables import check_style, write_table

    check_style(style)
    sections = analyse(
        sources or [],
        benchmarks=benchmark or [],
        data=data,
        num_vectors=vectors,
        dim=dim,
        results=(output or Path("report")) / "results",
        tell=lambda line: print(line, file=sys.stderr),
    )
    for section in sections:
        for table in section.tables.values():
            print(write_table(table, style))
    if output:
        print(f"see {write_report(sections, output)}", file=sys.stderr)


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
def compare(
    searches: Annotated[
        list[str], typer.Argument(help="Folders of results; with --data, models by folder or hub id, and words.")
    ],
    data: Annotated[Path | None, typer.Option(help="A set of your own, whose pages models are compared on.")] = None,
    both: Annotated[bool, typer.Option("--both", help="With --data: also words and vectors of each together.")] = False,
    base: Annotated[
        str | None, typer.Option(help="The run to compare with, by its name or a part of it; else the first found.")
    ] = None,
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
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
    from .tables import check_style, write_table

    check_style(style)
    if data is None:
        from .lab.analysis.compare import compare_runs

        print(write_table(compare_runs([Path(one) for one in searches], base=base, seed=seed), style))
        return
    from .figures import draw_frontier
    from .lab.analysis.contest import compare_models, find_frontier, make_table
    from .lab.evaluation.tasks import own_task

    if base is not None:
        raise UsageError("--base is for folders of results: with --data others are compared with the first one named")
    task = own_task(data)
    standings = compare_models(searches, task, output, both=both, trust_remote_code=trust_remote_code, tell=_tell)
    print(write_table(make_table(standings), style))
    points = {one.search: (float(max(one.bytes, 1)), one.ndcg) for one in standings}
    draw_frontier(points, [one.search for one in find_frontier(standings)], output / "compare.svg")
    print(f"see {output / 'compare.svg'}", file=sys.stderr)


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
def study(
    file: Annotated[Path, typer.Argument(help="A TOML file such as studies/small.toml.")],
    choose: Annotated[
        bool, typer.Option("--choose", help="Only choose length and pages, on Zero-Feedback and validation pages.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Only write the report anew, from the rows.")] = False,
) -> None:
    """Train every strategy with several seeds, compare them, and write a report beside the paper's numbers.

    randslot study studies/small.toml

    randslot study studies/small.toml --report

    Stopped or killed, the same command goes on.
    """
    from rich.console import Console

    from .lab.study.conduct import conduct

    if choose and report:
        raise UsageError("--choose comes before all runs and --report after them: name one")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if written := conduct(file, console, choose_only=choose, report_only=report):
        print(f"see {written}")


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
def profile(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or embedded.")],
    page: Annotated[str, typer.Option(help="Merged visual tokens of a page, rows x columns.")] = "48x32",
    vectors: Annotated[str, typer.Option(help="Budgets to time.")] = "1,4,6",
    samples: Annotated[int, typer.Option(help="Measured samples, after three to warm up.")] = 32,
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
) -> None:
    """Time encoding by the paper's protocol: every strategy and budget, in one pass and step by step.

    randslot profile embedded --page 10x9
    """
    from rich.console import Console
    from rich.progress import Progress

    from .lab.analysis.profile import Protocol, measure_waiting, profile
    from .machine import describe_machine
    from .model import load
    from .tables import write_table

    try:
        rows, columns = map(int, page.lower().split("x"))
    except ValueError as error:
        raise UsageError(f"--page is like 48x32, not {page!r}") from error
    try:
        budgets = tuple(map(int, vectors.split(",")))
    except ValueError as error:
        raise UsageError(f"--vectors is like 1,4,6, not {vectors!r}") from error
    protocol = Protocol(rows=rows, columns=columns, budgets=budgets, samples=samples)
    loaded, console = load(model), Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        table = profile(loaded, protocol, progress)
    print(write_table(table, style))
    print(write_table(measure_waiting(loaded, protocol), style))
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items() if value), file=sys.stderr)


@app.command(cls=PlainCommand, rich_help_panel=RESEARCH)
def report(
    results: Annotated[Path, typer.Argument(help="The folder that evaluate wrote.")],
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
) -> None:
    """Print the paper's tables with your rows among the published ones.

    randslot report results --format latex
    """
    from .lab.evaluation.report import make_report

    print(make_report(results, style))


@app.command(cls=PlainCommand, rich_help_panel=MODELS)
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


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


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
