"""The command line: which commands there are, and what becomes of errors. The commands are in `commands/`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, cast

import typer

from . import __version__
from .commands.analysis import analyse, compare, profile
from .commands.evaluation import evaluate, report
from .commands.help import PlainCommand, PlainGroup
from .commands.index import IndexCommand, index
from .commands.library import library_app
from .commands.models import distill, export, pairs, train
from .commands.search import SearchCommand, search
from .commands.service import demo, doctor, mcp, serve
from .errors import RandSlotError, UsageError
from .extras import describe_missing

SEARCH = "Search"
# Of all errors in what was typed: typer has no public name for it.
WRONG_USAGE = cast(type[Exception], typer.BadParameter.__bases__[0])
PLAIN = {
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Value error, ": "",
}
OTHERS = {
    "Models": (train, distill, pairs, export),
    "Research": (evaluate, report, analyse, compare, profile),
}

app = typer.Typer(
    cls=PlainGroup,
    help="Search PDFs, slides and scans: by words, and by four vectors a page.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command(cls=IndexCommand, rich_help_panel=SEARCH)(index)
app.command(cls=SearchCommand, rich_help_panel=SEARCH)(search)
app.command(cls=PlainCommand, rich_help_panel=SEARCH)(serve)
app.command(cls=PlainCommand, rich_help_panel=SEARCH)(mcp)
app.add_typer(library_app, name="library", rich_help_panel=SEARCH)
app.command(cls=PlainCommand, rich_help_panel=SEARCH)(doctor)
app.command(cls=PlainCommand, rich_help_panel=SEARCH)(demo)
for panel, commands in OTHERS.items():
    for command in commands:
        app.command(cls=PlainCommand, rich_help_panel=panel)(command)


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


def _describe_wrong(error: Any) -> str:
    """Return what is wrong with the words of a command, in one line; nothing where its help was printed instead."""
    reason = " ".join(error.format_message().split()).rstrip(".")
    if not reason:
        return ""
    for stock, plain in PLAIN.items():
        reason = reason.replace(stock, plain)
    command = error.ctx.command_path if error.ctx else " ".join(["randslot", *sys.argv[1:2]])
    value = _find_value(error)
    given = f", not {value!r}" if value is not None and repr(value) not in reason else ""
    return f"randslot: {reason[0].lower()}{reason[1:]}{given} (see {command} --help)\n"


def _find_value(error: Any) -> str | None:
    """Return what was typed after an option whose value is wrong, if that can be told: errors do not say."""
    words = sys.argv[1:]
    for name in getattr(error.param, "opts", ()) if isinstance(error, typer.BadParameter) else ():
        for word, following in zip(words, [*words[1:], None], strict=True):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.removeprefix(f"{name}=")
    return None


def main() -> None:
    """Run the command line; an error of ours is one line, exit code 2 for wrong usage and 1 for failure."""
    try:
        code = app(prog_name="randslot", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except WRONG_USAGE as error:
        print(_describe_wrong(error), end="", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        print("randslot: stopped", file=sys.stderr)
        sys.exit(1)
    except RandSlotError as error:
        if os.environ.get("RANDSLOT_DEBUG"):
            raise
        if os.environ.get("RANK", "0") == "0":
            print(f"randslot: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except ModuleNotFoundError as error:
        line = describe_missing(error)
        if not line or os.environ.get("RANDSLOT_DEBUG"):
            raise
        print(f"randslot: {line}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("randslot: stopped", file=sys.stderr)
        sys.exit(130)
