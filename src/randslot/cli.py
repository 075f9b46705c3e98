"""The command line: its commands, and one handler for errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from . import __version__
from .commands.evaluation import analyse, compare, evaluate, profile, report
from .commands.index import IndexCommand, index
from .commands.library import library_app
from .commands.models import distill, export, mine, pairs, train
from .commands.options import OnceCommand, flag
from .commands.paper import paper
from .commands.search import SearchCommand, search
from .commands.service import demo, doctor, mcp, serve
from .commands.watch import watch
from .errors import RandSlotError, UsageError
from .extras import describe_missing

# The base class of all usage errors, which Typer does not export.
TyperUsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


class Commands(TyperGroup):
    """A group whose help shows --help as other flags, without the type <bool>."""

    def get_help_option(self, context: Any) -> Any:
        option = super().get_help_option(context)
        if option is not None:
            option.metavar = ""
        return option

    def get_command(self, context: Any, name: str) -> Any:
        command = super().get_command(context, name)
        option = command.get_help_option(context) if command else None
        if option is not None:
            option.metavar = ""
        return command


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command(cls=IndexCommand, rich_help_panel="Search")(index)
app.command(cls=SearchCommand, rich_help_panel="Search")(search)
app.add_typer(library_app, name="library", cls=Commands, rich_help_panel="Search")
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Search": (watch, serve, mcp, doctor, demo),
    "Models": (train, distill, pairs, mine, export),
    "Evaluation": (evaluate, report, analyse, compare, profile, paper),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


for registered in (*app.registered_commands, *library_app.registered_commands):
    if not (registered.cls and issubclass(registered.cls, OnceCommand)):
        registered.cls = OnceCommand


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def start(
    debug: Annotated[bool, flag("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Search PDFs, slides and scans by words and by four vectors per page."""
    if debug:
        os.environ["RANDSLOT_DEBUG"] = "1"


def main() -> None:
    """Run the command line; an error is one line, with exit code 2 for wrong usage and 1 for failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal need not know every character of a page
    try:
        code = app(prog_name="randslot", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except TyperUsageError as error:
        if error.format_message():  # else the help was shown
            command = error.ctx.command_path if error.ctx else "randslot"
            _fail(f"{' '.join(error.format_message().split()).rstrip('.')} (see {command} --help)", 2)
        sys.exit(2)
    except typer.Abort:
        _fail("stopped", 1)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except (RandSlotError, ModuleNotFoundError) as error:
        line = str(error) if isinstance(error, RandSlotError) else describe_missing(error)
        if not line:
            raise
        if os.environ.get("RANDSLOT_DEBUG"):
            traceback.print_exc()
        _fail(line, 2 if isinstance(error, UsageError) else 1)


def _fail(line: str, code: int) -> None:
    """Print an error once per distributed run, and exit."""
    if os.environ.get("RANK", "0") == "0":
        print(f"randslot: {line}", file=sys.stderr)
    sys.exit(code)
