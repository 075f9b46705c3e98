"""Options that several commands have, and how values of the form key=value are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..library.address import default_library
from .help import ADVANCED

if TYPE_CHECKING:
    from ..library.terminal import Progressing


def agree(what: str, sources: list[str]) -> bool:
    """Show files and ask whether to go on; without a terminal nobody can be asked, and the answer is no."""
    from ..library.terminal import print_files

    print_files(what, sources)
    if not sys.stdin.isatty():
        print("nothing was forgotten: --yes does it without asking", file=sys.stderr)
        return False
    return typer.confirm("Forget them? The files themselves stay.")


@contextmanager
def say_stopped(progress: Progressing) -> Iterator[None]:
    """When it is stopped, say how far it got."""
    from ..library.terminal import plural

    try:
        yield
    except KeyboardInterrupt:
        progress.bar.stop()
        done = f"{plural(progress.pages, 'page')} stored, {plural(progress.files, 'file')} complete"
        if progress.stage == "scans":
            done = f"all files are stored, and {plural(progress.pages, 'page')} read by OCR"
        print(f"randslot: stopped: {done}; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None


def tell(line: str) -> None:
    """Say what is being done, beside what the command prints."""
    print(line, file=sys.stderr)


Inference = Annotated[
    str | None, typer.Option(rich_help_panel=ADVANCED, help="What is appended when encoding: random, zero, ...")
]
QueryVectors = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Vectors of a query.")]
PageVectors = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Vectors of a page.")]
Reduction = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ADVANCED,
        help="Of pages with a vector for every token, to --page-vectors: kmeans, semcluster, pool1d, random.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        rich_help_panel=ADVANCED,
        help="Let the model run Python files of its own, which you have read.",
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="For random slots.")]
Place = Annotated[
    str,
    typer.Option(
        "--library",
        "-l",
        envvar="RANDSLOT_LIBRARY",
        default_factory=lambda: str(default_library()),
        show_default="one of your own",
        metavar="PLACE",
        help="The library: a folder, or an address such as qdrant://host:6334/papers.",
    ),
]
ModelPlace = Annotated[
    str | None, typer.Option(rich_help_panel=ADVANCED, help="Where the library's model is, if it has moved.")
]
QueryModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", rich_help_panel=ADVANCED, help="A student of the library's model, which reads queries for it."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Language = Annotated[str | None, typer.Option(help="Of all words, as in german or de; auto: of each page.")]
Workers = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Processes that open files; 0: by the cores.")
]


class OcrChoice(StrEnum):
    """Which pages OCR reads: those without text if there is an engine, those in any case, or all."""

    auto = "auto"
    missing = "missing"
    all = "all"


class SearchBy(StrEnum):
    """What a search compares."""

    words = "words"
    vectors = "vectors"
    both = "both"


Ocr = Annotated[
    OcrChoice,
    typer.Option(
        "--ocr",
        metavar="auto|missing|all",
        help="Pages to read by OCR: those without text, or all; auto: those without, if there is an engine.",
    ),
]
NoOcr = Annotated[bool, typer.Option("--no-ocr", help="Leave pages without a text layer unread.")]


def read_pairs(given: list[str], option: str) -> dict[str, Any]:
    """Return what was given as key=value.

    Errors: UsageError for anything else, and for a key that is named twice.
    """
    pairs = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not key or not sign:
            raise UsageError(f"{option} takes key=value, not {one!r}")
        if key in pairs:
            raise UsageError(f"{option} names {key!r} twice")
        pairs[key] = value
    return pairs
