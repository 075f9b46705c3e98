"""Options and helpers shared by commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand

from ..errors import UsageError
from ..extras import needs_extra
from ..library.address import default_library

if TYPE_CHECKING:
    from ..library.terminal import ProgressReporter

ADVANCED = "Advanced"  # help panel of rarely used options
DEFAULT = "your default library"


def make_app(help: str | None = None) -> typer.Typer:
    """Create an app for the commands of a module. Its help is plain text: Rich takes 0.25 s."""
    return typer.Typer(help=help, no_args_is_help=bool(help), add_completion=False, rich_markup_mode=None)


def flag(*names: str, help: str, panel: str | None = None) -> Any:
    """Return an on/off option."""
    return typer.Option(*names, rich_help_panel=panel, help=help)


def option(
    metavar: str,
    help: str,
    *names: str,
    panel: str | None = None,
    shown: str | bool = True,
    min: float | None = None,
    max: float | None = None,
) -> Any:
    """Return an option with a value. shown: its default in the help text."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, show_default=shown, min=min, max=max)


class QuickValue:
    """Converts strings and numbers without pydantic, which Typer would import (0.1 s)."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind: Any = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if kind == list[str]:
            return list(value)
        if isinstance(kind, type) and isinstance(value, kind):  # a string, or a default
            return value
        if value in get_args(kind):  # a Literal
            return value
        if kind is int and value.isdecimal() and param.min is None and param.max is None:
            return int(value)
        param._runtime_param = None  # fall back to Typer, which also has the error messages
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def use_quick_values(params: list[Any]) -> list[Any]:
    """Convert the parameters of a command with `QuickValue`."""
    for param in params:
        param._runtime_param = QuickValue()
    return params


class OnceCommand(TyperCommand):
    """A command with plain help in sections. It refuses duplicate options, of which Typer keeps the last."""

    def get_params(self, context: Any) -> list[Any]:
        return use_quick_values(super().get_params(context))

    def format_help_text(self, context: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        with formatter.indentation():  # \b: do not rewrap examples
            formatter.write_text((self.help or "").replace("\n\nrandslot", "\n\n\b\nrandslot"))

    def format_options(self, context: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(context):
            record = param.get_help_record(context)
            if record and param.param_type_name == "argument":
                sections.setdefault("Arguments", []).append((param.name, record[1]))
            elif record:
                sections.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        write_sections(formatter, sections)

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(context).parse_args(args=list(args))
        for param in order:
            is_single = not (getattr(param, "multiple", True) or getattr(param, "is_flag", True))
            if is_single and order.count(param) > 1:
                raise UsageError(f"{param.opts[0]} was given twice: pass it once")
        rest: list[str] = super().parse_args(context, args)
        return rest


def write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write the sections of a help text: titles, and rows of names with descriptions."""
    for title, rows in sections.items():
        with formatter.section(title):
            formatter.write_dl(rows)


Place = Annotated[
    str,
    typer.Option(
        "--library",
        "-l",
        envvar="RANDSLOT_LIBRARY",
        default_factory=lambda: str(default_library()),
        show_default=DEFAULT,
        metavar="PLACE",
        help="Library folder, or qdrant://host:6334/name.",
    ),
]
Places = Annotated[
    list[str] | None,
    option(
        "PLACE",
        "Library folder or address; several are searched together.",
        "--library",
        "-l",
        shown=DEFAULT,
    ),
]
ModelPlace = Annotated[str | None, option("MODEL", "The library's model, if it has moved.", panel=ADVANCED)]
QueryModel = Annotated[str | None, option("MODEL", "Distilled model that encodes queries.", panel=ADVANCED)]
Rerank = Annotated[str | None, option("MODEL", "Rerank hits: cross-encoder, server URL, or none.")]
Inference = Annotated[str | None, option("SLOTS", "Slots when encoding: random, zero, ...", panel=ADVANCED)]
QueryVectors = Annotated[int | None, option("N", "Vectors per query.", panel=ADVANCED)]
PageVectors = Annotated[int | None, option("N", "Vectors per page.", panel=ADVANCED)]
Width = Annotated[int | None, option("N", "Keep the first N dimensions of each vector.", panel=ADVANCED)]
Reduction = Annotated[
    str | None, option("NAME", "Pool token vectors: kmeans, semcluster, pool1d, random.", panel=ADVANCED)
]
Seed = Annotated[int | None, option("N", "Seed of random slots.", panel=ADVANCED)]
TrustRemoteCode = Annotated[
    bool, flag("--trust-remote-code", panel=ADVANCED, help="Run the model's own Python code (review it first).")
]
OwnStrategy = Annotated[str | None, option("FILE.py:CLASS", "Custom slot strategy.", "--strategy", panel=ADVANCED)]
Workers = Annotated[int, option("N", "Processes that read files; 0: automatic.", panel=ADVANCED)]
Language = Annotated[str | None, option("NAME", "Text language (german, de); auto: per page.")]
Ocr = Annotated[
    Literal["auto", "missing", "all"], option("auto|missing|all", "Pages to OCR; auto: missing, if installed.", "--ocr")
]
NoOcr = Annotated[bool, flag("--no-ocr", help="Skip OCR.")]
Yes = Annotated[bool, flag("--yes", "-y", help="Do not ask for confirmation.")]
FollowLinks = Annotated[bool, flag("--follow-links", panel=ADVANCED, help="Also read folders behind links.")]
Password = Annotated[
    list[str] | None, option("TEXT", "PDF password; repeatable; - prompts for it.", "--password", panel=ADVANCED)
]
PasswordFile = Annotated[
    Path | None, option("FILE", "Passwords of PDFs, one per line.", "--password-file", panel=ADVANCED)
]
AsJson = Annotated[bool, flag("--json", help="Print JSON.")]


def use_own_code(strategy: str | None) -> str | None:
    """Register a custom strategy; return its name."""
    if not strategy:
        return None
    with needs_extra():
        from ..model.own_code import use_strategy
    return use_strategy(strategy)


def read_passwords(given: list[str] | None, file: Path | None) -> bool:
    """Set the PDF passwords of this process and its workers, without storing them; return whether there are any."""
    from ..files import read_lines
    from ..pages.pdf import use_passwords

    passwords = read_lines(file) if file else []
    for one in given or []:
        passwords.append(typer.prompt("Password of PDFs", hide_input=True, err=True) if one == "-" else one)
    if passwords:
        use_passwords(passwords)
    return bool(passwords)


def read_pairs(given: list[str], option: str) -> dict[str, Any]:
    """Read key=value pairs."""
    pairs = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not key or not sign:
            raise UsageError(f"{option} takes key=value, not {one!r}")
        if key in pairs:
            raise UsageError(f"{option} names {key!r} twice")
        pairs[key] = value
    return pairs


def confirm(what: str, sources: list[str]) -> bool:
    """List files and ask whether to remove them; without a terminal, the answer is no."""
    from ..library.terminal import print_files

    print_files(what, sources)
    if not sys.stdin.isatty():
        print("nothing was removed: pass --yes to confirm", file=sys.stderr)
        return False
    return typer.confirm("Remove them from the library? The files themselves stay.")


@contextmanager
def report_interrupt(progress: ProgressReporter) -> Iterator[None]:
    """Report progress on Ctrl-C."""
    from ..library.terminal import plural

    try:
        yield
    except KeyboardInterrupt:
        progress.bar.stop()
        done = f"{plural(progress.pages, 'page')} stored, {plural(progress.files, 'file')} complete"
        if progress.stage == "scans":
            done = f"all files stored, {plural(progress.pages, 'page')} read by OCR"
        print(f"randslot: stopped: {done}; run the command again to resume", file=sys.stderr)
        raise typer.Exit(130) from None


def tell(line: str) -> None:
    """Print a progress line on stderr."""
    print(line, file=sys.stderr)
