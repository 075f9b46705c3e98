"""The commands that let others search a library, and show what is here: `serve`, `mcp`, `doctor`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .help import ADVANCED
from .options import ModelPlace, Place, QueryModel, TrustRemoteCode

AddFrom = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FOLDER", rich_help_panel=ADVANCED, help="Agents may add documents below this folder; may repeat."
    ),
]


def serve(
    library: Place,
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any free one.")] = 8000,
    new: Annotated[bool, typer.Option("--new", help="Make the library if there is none; add documents there.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Visitors cannot add or remove documents.")] = False,
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
    query_model: QueryModel = None,
    trust_remote_code: TrustRemoteCode = False,
    add_from: AddFrom = None,
) -> None:
    """Search a library in a browser: a page, an API with its description at /docs, and /mcp for agents.

    randslot serve -l mylib

    randslot serve -l newlib --new

    randslot serve -l mylib --query-model light

    RANDSLOT_TOKEN=of-16-characters-or-more randslot serve -l mylib --host 0.0.0.0 --read-only
    """
    from ..serve.run import Visitors, serve

    visitors = Visitors(host, port, token, tuple(origin or ()))
    serve(
        library,
        visitors,
        new=new,
        read_only=read_only,
        model=model,
        query_model=query_model,
        add_from=add_from or (),
        trust_remote_code=trust_remote_code,
    )


def mcp(
    library: Place,
    add_from: AddFrom = None,
    model: Annotated[str | None, typer.Option(help="Where the library's model is, if it has moved.")] = None,
    query_model: QueryModel = None,
) -> None:
    """Let an agent search and read a library, by the Model Context Protocol on standard input and output.

    randslot mcp -l mylib

    randslot mcp -l mylib --add-from ~/papers
    """
    from ..serve.mcp_server import serve_stdio

    serve_stdio(library, add_from or (), model, query_model)


def doctor(
    with_torch: Annotated[bool, typer.Option("--torch", help="Import torch, and ask what it computes on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at what is installed here, and say what to do about what is missing.

    randslot doctor

    randslot doctor --torch --json
    """
    import json
    from dataclasses import asdict

    from ..doctor import examine, show

    findings = examine(with_torch=with_torch)
    print(json.dumps([asdict(finding) for finding in findings], indent=2) if as_json else show(findings))
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


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

    from ..demo import run_demo

    file = run_demo(output, query or [], Console(highlight=False, soft_wrap=True))
    print(f"see the pages in {file}")
    if show and not webbrowser.open(file.resolve().as_uri()):
        print("no browser could be opened here: open that file yourself")
