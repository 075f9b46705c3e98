"""The commands `serve`, `watch`, `mcp`, `doctor` and `demo`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .options import (
    ADVANCED,
    AsJson,
    FollowLinks,
    ModelPlace,
    Password,
    PasswordFile,
    Place,
    QueryModel,
    Rerank,
    TrustRemoteCode,
    flag,
    make_app,
    option,
    read_passwords,
)

app = make_app()

Poll = Annotated[bool, flag("--poll", panel=ADVANCED, help="Poll files every second (for network drives).")]


@app.command()
def serve(
    library: Place,
    port: Annotated[int, option("N", "Port; 0: any free one.")] = 8000,
    new: Annotated[bool, flag("--new", help="Create the library if it does not exist.")] = False,
    read_only: Annotated[bool, flag("--read-only", help="Refuse to add or remove documents.")] = False,
    host: Annotated[str, option("HOST", "Listen address; needs --token unless local.", panel=ADVANCED)] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            rich_help_panel=ADVANCED,
            envvar="RANDSLOT_TOKEN",
            help="Access token (prefer RANDSLOT_TOKEN).",
        ),
    ] = None,
    tokens: Annotated[str | None, option("FILE", "Named tokens with rights and expiry (TOML).", panel=ADVANCED)] = None,
    origin: Annotated[
        list[str] | None, option("URL", "Allow cross-origin requests from here; repeatable.", panel=ADVANCED)
    ] = None,
    model: ModelPlace = None,
    query_model: QueryModel = None,
    rerank: Rerank = None,
    trust_remote_code: TrustRemoteCode = False,
    watch: Annotated[list[str] | None, option("FOLDER", "Keep in sync with this folder; repeatable.")] = None,
    poll: Poll = False,
    password: Password = None,
    password_file: PasswordFile = None,
) -> None:
    """Serve a library: web page, HTTP API (/docs), and MCP (/mcp).

    randslot serve -l mylib
    randslot serve -l newlib --new
    randslot serve -l mylib --watch ~/papers
    randslot serve -l mylib --query-model light
    RANDSLOT_TOKEN=$(openssl rand -hex 16) randslot serve -l mylib --host 0.0.0.0 --read-only
    """
    from ..serve.run import Settings, serve

    read_passwords(password, password_file)
    settings = Settings(
        host,
        port,
        token,
        tokens,
        tuple(origin or ()),
        new=new,
        read_only=read_only,
        model=model,
        query_model=query_model,
        rerank=rerank,
        watch=tuple(_list_folders(watch or [])),
        poll=poll,
        trust_remote_code=trust_remote_code,
    )
    serve(library, settings)


@app.command()
def watch(
    folders: Annotated[list[str], typer.Argument(help="Folders to watch.")],
    library: Place,
    poll: Poll = False,
    follow_links: FollowLinks = False,
    password: Password = None,
    password_file: PasswordFile = None,
) -> None:
    """Index folders and keep the library in sync.

    Other commands work while it runs. Deleted files are removed from the library. Ctrl-C stops it.

    randslot watch ~/papers
    randslot watch ~/papers /mnt/share/reports -l mylib --poll
    """
    from ..library.sharing import SharedLibrary, open_library
    from ..library.watch import Watch

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    places = _list_folders(folders)
    read_passwords(password, password_file)
    with open_library(library):  # creates it if missing
        pass
    shared = SharedLibrary(library)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"watching {', '.join(folders)} (Ctrl-C stops)", flush=True)
    try:
        Watch(shared, places, say, poll, follow_links).run()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        shared.close()


def _list_folders(folders: list[str]) -> list[str]:
    """Return the absolute paths of folders to watch."""
    from ..library.sources import expand

    found = [path for folder in folders for path in expand(folder)]
    for path in found:
        if not os.path.isdir(path):
            raise UsageError(f"only folders can be watched, not {path}")
    return found


@app.command()
def mcp(library: Place, model: ModelPlace = None, query_model: QueryModel = None) -> None:
    """Let an agent use a library (MCP on stdin/stdout).

    randslot mcp -l mylib
    """
    from ..serve.mcp_server import serve_stdio

    serve_stdio(library, model, query_model)


@app.command()
def doctor(
    with_torch: Annotated[bool, flag("--torch", help="Also import torch and show its device.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the installation.

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


@app.command()
def demo(
    output: Annotated[Path, option("FOLDER", "Folder for the PDFs and demo.html.", "--output", "-o")] = Path(
        "randslot-demo"
    ),
    query: Annotated[list[str] | None, option("TEXT", "Query; repeatable.", "--query", "-q")] = None,
    show: Annotated[bool, flag("--open", help="Open the result in a browser.")] = False,
) -> None:
    """Search sample documents; downloads nothing.

    randslot demo
    randslot demo --open -q "sales of wool"
    """
    import webbrowser

    from ..demo import run_demo

    file = run_demo(output, query or [])
    print(f"see the pages in {file}")
    if show and not webbrowser.open(file.resolve().as_uri()):
        print("could not open a browser: open the file yourself")
