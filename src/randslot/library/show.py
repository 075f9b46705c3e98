"""How a library looks in a terminal: progress, a summary, hits, and why each was found."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from ..model.reader import read_identity
from .address import is_address
from .results import Hit, Progress, Status, Summary

NAMES = 10  # of other files that are listed one by one
SHOWN = ("slots", "inference")  # settings of the model, where it has them


class Progressing:
    """Shows how far a run is, with pages a second, files done and the time left; counts also where nothing is shown."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.task = bar.add_task("looking at files", total=None, more="")
        self.pages = self.files = 0

    def __call__(self, now: Progress) -> None:
        if not now.num_pages:
            self.bar.update(self.task, completed=now.files_done, total=now.num_files)
            return
        if not self.pages:
            self.bar.reset(self.task, description="reading pages", total=now.num_pages)
        self.pages = now.pages_done
        self.files += len(now.finished)
        speed = self.bar.tasks[self.task].speed
        rate = f"{speed:.1f} pages/s" if speed else ""
        files = f"{now.files_done} of {now.num_files} files" if now.num_files else ""
        more = ", ".join(filter(None, (rate, files))) if now.pages_done else "loading the model"
        self.bar.update(self.task, completed=now.pages_done, more=more)


@contextmanager
def show_progress(quiet: bool) -> Iterator[Progressing]:
    """Show progress on stderr while files are indexed."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield Progressing(bar)


def show_waiting(what: str, quiet: bool = False) -> AbstractContextManager[Any]:
    """Say on stderr what a terminal is waiting for."""
    console = Console(stderr=True, highlight=False)
    return nullcontext() if quiet or not console.is_terminal else console.status(what)


def print_summary(summary: Summary, total: int, size: str) -> None:
    """Print what a run did, and what it could not do."""
    counts = {
        "added": len(summary.added),
        "changed": len(summary.changed),
        "moved": len(summary.moved),
        "removed": len(summary.removed),
        "unchanged": summary.unchanged,
    }
    what = ", ".join(f"{num} {name}" for name, num in counts.items() if num) or "none"
    failed = f", {len(summary.failed)} failed" if summary.failed else ""
    print(f"files: {what}{failed}")
    if summary.pages:
        speed = summary.encoded / max(summary.seconds, 1e-9)
        print(
            f"{plural(summary.pages, 'page')}, {summary.encoded} of them read, in {summary.seconds:.1f} s "
            f"({speed:.1f} pages/s)"
        )
    print(f"the library has {plural(total, 'page')}, {size}")


def print_problems(summary: Summary) -> None:
    """Print on stderr which files could not be indexed, and which are not documents."""
    for name in summary.others[:NAMES]:
        print(f"left out, not a PDF or an image: {shorten(name)}", file=sys.stderr)
    if len(summary.others) > NAMES:
        print(f"left out, not a PDF or an image: {len(summary.others) - NAMES} more", file=sys.stderr)
    for name, reason in summary.failed.items():
        print(f"could not index {shorten(name)}: {reason}", file=sys.stderr)


def print_hits(hits: Sequence[Hit], explain: bool) -> None:
    """Print ranked pages with their scores, and on demand which readout of the page answered which of the query."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for rank, hit in enumerate(hits, start=1):
        table.add_row(f"{rank}.", f"{hit.score:.3f}", Text(f"{shorten(hit.source)}  page {hit.page}"))
        if explain:
            matches = "  ".join(f"{one.query}>{one.page} {one.similarity:.3f}" for one in hit.matches)
            table.add_row("", "", Text(matches, style="dim"))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table if hits else "no pages found")
    if explain and hits:
        console.print("query readout > page readout that was nearest to it, and their similarity", style="dim")


def print_status(status: Status) -> None:
    """Print what a library holds."""
    model = status.model
    table = Table(show_header=False, box=None, pad_edge=False)
    where = f"{model['name'] or 'made in memory'}, weights {model['weights'][:8]}"
    identity = read_identity(model)
    page, query = identity.num_vectors("page"), identity.num_vectors("query")
    how = f"{page or 'several'} vectors a page, {query or 'several'} a query, {identity.dimension} dimensions"
    shown = [f"{name} {identity.settings[name]}" for name in SHOWN if name in identity.settings]
    rows = {
        "library": status.folder,
        "files": f"{status.files:,}",
        "pages": f"{status.pages:,}",
        "not complete yet": f"{plural(status.pending, 'file')}: index again to go on" if status.pending else "",
        "not on disk now": f"{plural(status.missing, 'file')}: --prune forgets what is gone" if status.missing else "",
        "model": where,
        "vectors": "; ".join(filter(None, [how, ", ".join(shown)])),
        "size": show_size(status),
        "format": str(status.format),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(readable(value)))
    Console(highlight=False, soft_wrap=True).print(table)


def show_size(status: Status) -> str:
    """Return what a library takes: on disk, and the vectors' share of it."""
    if is_address(status.folder):
        return f"{status.bytes:,} bytes of vectors, {status.vector_bytes_per_page:,} a page"
    if not status.pages:
        return f"{status.bytes:,} bytes on disk"
    share = f"{status.vector_bytes_per_page:,} of them vectors"
    return f"{status.bytes:,} bytes on disk, {status.bytes_per_page:,} a page, {share}"


def plural(num: int, word: str) -> str:
    """Return a number of things: 1 page, 2 pages."""
    return f"{num:,} {word}" if num == 1 else f"{num:,} {word}s"


def shorten(source: str) -> str:
    """Return a path as it is seen from here, if it is below, and as text that can be printed."""
    here = os.path.join(os.getcwd(), "")
    return readable(source.removeprefix(here))


def readable(name: str) -> str:
    """Return a name as text that any terminal can print: no control characters, no broken ones."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
