"""Questions to whoever runs a command, and what is said when it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..library.show import Progressing


def agree(what: str, sources: list[str]) -> bool:
    """Show files and ask whether to go on; without a terminal nobody can be asked, and the answer is no."""
    from ..library.show import print_files

    print_files(what, sources)
    if not sys.stdin.isatty():
        print("nothing was forgotten: --yes does it without asking", file=sys.stderr)
        return False
    return typer.confirm("Forget them? The files themselves stay.")


@contextmanager
def say_stopped(progress: Progressing) -> Iterator[None]:
    """When it is stopped, say how far it got."""
    from ..library.show import plural

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
