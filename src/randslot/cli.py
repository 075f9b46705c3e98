"""The command line: its commands, and one error handler."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from . import __version__
from .commands.options import OnceCommand, use_quick_values, write_sections
from .errors import RandSlotError, UsageError, first_line
from .extras import describe_missing

# The base class of usage errors, which Typer does not export.
TyperUsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])
# Commands with their modules and summaries, by help section.
SECTIONS = {
    "Search": {
        "index": ("index", "Add files and folders to a library; unchanged files are skipped."),
        "search": ("search", "Find pages by keyword, vector or hybrid search."),
        "watch": ("service", "Index folders and keep the library in sync."),
        "serve": ("service", "Serve a library: web page, HTTP API (/docs), and MCP (/mcp)."),
        "mcp": ("service", "Let an agent use a library (MCP on stdin/stdout)."),
        "doctor": ("service", "Check the installation."),
        "demo": ("service", "Search sample documents; downloads nothing."),
        "library": ("library", "Inspect, change, copy or check a library."),
    },
    "Models": {
        "train": ("models", "Train a model on pairs of query and page."),
        "distill": ("models", "Train a small model that encodes queries for a large one."),
        "pairs": ("models", "Make training pairs (title -> page) from PDF outlines."),
        "mine": ("models", "Mine hard negatives for training pairs."),
        "export": ("models", "Export a model for vLLM or plain transformers."),
    },
    "Evaluation": {
        "evaluate": ("evaluation", "Measure how well a model finds pages: nDCG@5 and nDCG@10."),
        "report": ("evaluation", "Print the paper's tables with your rows among the published ones."),
        "analyse": ("evaluation", "Analyse cached vectors: budgets, winners, readouts, cost."),
        "compare": ("evaluation", "Compare runs, or models on your pages: quality, size, time."),
        "profile": ("evaluation", "Time encoding by the paper's protocol."),
        "paper": ("paper", "Reproduce the paper: train, evaluate, report, analyse."),
    },
}
MODULES = {name: module for section in SECTIONS.values() for name, (module, _) in section.items()}


class Commands(TyperGroup):
    """The group of all commands; it imports a command's module lazily."""

    def get_params(self, context: Any) -> list[Any]:
        return use_quick_values(super().get_params(context))

    def get_command(self, context: Any, name: str) -> Any:
        if name not in MODULES:
            return None
        module = import_module(f".commands.{MODULES[name]}", __package__)
        for one in module.app.registered_commands:
            if one.cls is None or not issubclass(one.cls, OnceCommand):
                one.cls = OnceCommand
        command = get_command(module.app)
        return getattr(command, "commands", {}).get(name, command)  # a module may have several commands

    def format_commands(self, context: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            write_sections(formatter, {title: [(name, help) for name, (_, help) in commands.items()]})


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # Rich takes 0.25 s to show help
)
for commands in SECTIONS.values():
    for name in commands:
        app.command(name)(lambda: None)  # `Commands` imports the real one


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def start(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Search PDFs, slides and scans: keyword, vector and hybrid search."""
    if debug:
        os.environ["RANDSLOT_DEBUG"] = "1"


def main() -> None:
    """Run the command line; an error is one line, with exit code 2 for wrong usage and 1 for failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not support every character of a page
    try:
        code = app(prog_name="randslot", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except TyperUsageError as error:
        context = error.ctx
        if context and error.message == context.get_help():  # no arguments were given
            print(error.message)
        else:
            command = context.command_path if context else "randslot"
            _fail(f"{' '.join(error.format_message().split()).rstrip('.')} (see {command} --help)", 2)
        sys.exit(2)
    except typer.Abort:
        _fail("stopped", 1)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except Exception as error:
        if os.environ.get("RANDSLOT_DEBUG"):
            traceback.print_exc()
        line = describe_missing(error) if isinstance(error, ModuleNotFoundError) else ""
        if isinstance(error, RandSlotError):
            line = str(error)
        elif isinstance(error, OSError) and error.filename:
            line = f"{error.filename}: {first_line(error)}"
        _fail(
            line or f"{type(error).__name__}: {first_line(error)} (--debug shows the traceback)",
            2 if isinstance(error, UsageError) else 1,
        )


def _fail(line: str, code: int) -> None:
    """Print an error once per distributed run, and exit."""
    if os.environ.get("RANK", "0") == "0":
        print(f"randslot: {line}", file=sys.stderr)
    sys.exit(code)
