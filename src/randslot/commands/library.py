"""The commands `library ...`: look into a library, remove files from it, copy it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .help import PlainCommand, PlainGroup
from .index import read_scans
from .options import AsJson, DryRun, Language, NoOcr, Ocr, OcrChoice, Place, Workers, Yes, agree, say_stopped

FEW_PAGES = 20_000  # for which sketches save little

library_app = typer.Typer(
    cls=PlainGroup, help="Look into a library, remove files from it, copy it.", no_args_is_help=True
)


@library_app.command(cls=PlainCommand)
def status(library: Place, as_json: AsJson = False) -> None:
    """Show what a library holds and which model it belongs to.

    randslot library status -l mylib
    """
    from ..library.sharing import open_library
    from ..library.terminal import measure_again, print_status

    with open_library(library, create=False) as opened:
        found = opened.status()
    found = measure_again(found)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print_status(found)


@library_app.command(cls=PlainCommand)
def words(
    library: Place,
    language: Language = None,
    ocr: Ocr = OcrChoice.auto,
    no_ocr: NoOcr = False,
    workers: Workers = 0,
) -> None:
    """Read the words of pages that have none yet; nothing is encoded.

    For scans, and another language.

    randslot library words -l mylib

    randslot library words -l mylib --language german --no-ocr
    """
    from ..library.results import Summary
    from ..library.sharing import open_library, share
    from ..library.terminal import plural, print_end, show_languages, show_progress

    with open_library(library, create=False) as opened, share(opened):
        with show_progress(False) as progress, say_stopped(progress):
            num = opened.read_words(language=language, workers=workers, progress=progress)
        summary = Summary(without_text=opened.count_without_text())
        if not no_ocr:
            read_scans(opened, ocr, summary, workers, False)
        found = opened.status()
    read = f"{plural(num, 'text layer')} read, {plural(summary.by_ocr, 'page')} by OCR"
    print(f"{read}; the words are {show_languages(found)}")
    summary.by_ocr = 0
    print_end(summary, found, False)


@library_app.command(cls=PlainCommand)
def sketch(
    library: Place,
    queries: Annotated[
        Path | None, typer.Option("--queries", help="Queries as people ask them, one on each line.", dir_okay=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget them: searches look at all pages again.")] = False,
) -> None:
    """Give pages sketches, so that searches by vectors do not score all of them: for 100,000 pages and more.

    Used only if they find what an exact search finds, which is measured. Later pages get theirs when they are added.

    randslot library sketch -l mylib

    randslot library sketch -l mylib --queries questions.txt

    randslot library sketch -l mylib --remove
    """
    from ..files import read_lines
    from ..library.library import Library
    from ..library.terminal import plural, show_progress

    texts = read_lines(queries) if queries else None
    with Library(library, create=False) as opened:
        if remove:
            opened.remove_sketches()
            print("the library has no sketches: searches by vectors look at all pages")
            return
        with show_progress(False) as progress:
            made = opened.make_sketches(texts, progress=progress)
    print(f"{plural(made.pages, 'page')} with sketches; a search by vectors scores {made.candidates:,} of them in full")
    print(f"of the best pages for {made.queries} queries, {100 * made.recall:.1f} % are found so")
    if made.pages < FEW_PAGES:
        print(f"with fewer than {FEW_PAGES:,} pages a search was fast before: --remove forgets the sketches")


@library_app.command("list", cls=PlainCommand)
def list_files(library: Place, as_json: AsJson = False) -> None:
    """List the files of a library with their numbers of pages.

    randslot library list -l mylib
    """
    from dataclasses import asdict

    from ..library.sharing import open_library
    from ..library.terminal import plural, shorten

    with open_library(library, create=False) as opened:
        files = opened.files()
    if as_json:
        print(json.dumps([asdict(file) for file in files], indent=2))
        return
    for file in files:
        notes = [plural(file.num_pages, "page")]
        if file.state != "done":
            notes.append("not complete yet")
        notes += [f"{key}={value}" for key, value in file.metadata.items()]
        print(f"{shorten(file.source)}  ({', '.join(notes)})")


@library_app.command(cls=PlainCommand)
def remove(
    patterns: Annotated[list[str], typer.Argument(help="Paths, names, folders, or wildcards in quotes.")],
    library: Place,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Forget files; the files themselves stay where they are. Shows them and asks first.

    randslot library remove report.pdf "2019/*.pdf" -l mylib

    randslot library remove report.pdf --yes
    """
    from ..library.sharing import open_library
    from ..library.terminal import plural, print_files, show_bytes

    with open_library(library, create=False) as opened:
        files = opened.find_files(*patterns)
        sources = [file.source for file in files]
        if dry_run:
            print_files("would be forgotten", sources)
            return
        if not (yes or agree("would be forgotten", sources)):
            raise typer.Exit(1)
        opened.forget(sources)
        print_files("forgotten", sources)
        size = opened.status().bytes
    pages = sum(file.num_pages for file in files)
    print(
        f"{plural(pages, 'page')} less; the library takes {show_bytes(size)}, and less once a fifth of it is forgotten"
    )


@library_app.command(cls=PlainCommand)
def copy(
    source: Annotated[str, typer.Argument(help="A library: a folder or an address.")],
    target: Annotated[str, typer.Argument(help="Another place, with a library of the same model or none.")],
    as_json: AsJson = False,
) -> None:
    """Copy a library between folders and servers, and compare the two; run again after a stop, it goes on.

    randslot library copy mylib qdrant://host:6334/papers

    randslot library copy qdrant://host:6334/papers mylib
    """
    from dataclasses import asdict

    from ..library.address import is_address
    from ..library.copy import SAME
    from ..library.sharing import copy_between
    from ..library.terminal import plural, readable, show_progress

    if not (is_address(source) or is_address(target)) and _real(source) == _real(target):
        raise UsageError(SAME)
    with show_progress(as_json) as progress, say_stopped(progress):
        copied = copy_between(source, target, progress)
    if as_json:
        print(json.dumps(asdict(copied), indent=2))
    else:
        what = f"{plural(copied.files, 'file')} with {plural(copied.pages, 'page')} copied"
        print(f"{what}, {plural(copied.known, 'file')} there already")
        print(f"compared: all pages of {plural(copied.compared, 'file')}; searches that agree: {copied.searches}")
        for note in copied.notes:
            print(f"note: {readable(note)}")
    for line in copied.problems:
        print(readable(line), file=sys.stderr)
    if copied.problems:
        raise typer.Exit(1)


@library_app.command(cls=PlainCommand)
def verify(
    library: Place,
    repair: Annotated[bool, typer.Option("--repair", help="Hide damaged files until they are indexed again.")] = False,
) -> None:
    """Check that every page of every file is stored, and that its vectors can be read.

    randslot library verify -l mylib
    """
    from ..library.sharing import open_library
    from ..library.terminal import plural, readable, show_progress

    with open_library(library, create=False, repair=repair) as opened, show_progress(False) as progress:
        problems = opened.verify(repair=repair, progress=progress)
        states = Counter(file.state for file in opened.files())
        total, pending = len(opened), states["pending"]
    for line in problems:
        print(readable(line), file=sys.stderr)
    if not problems:
        print(f"{plural(total, 'page')}, all as they should be")
    elif repair:
        print("repaired: index the files again to have them back")
    if pending:
        print(f"{plural(pending, 'file')} not complete yet: index again to go on")
    if problems and not repair:
        raise typer.Exit(1)


def _real(folder: str) -> str:
    return os.path.realpath(os.path.expanduser(folder))
