"""The commands `library ...`: inspect, change, copy or check a library."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .index import read_scans
from .options import (
    AsJson,
    Language,
    NoOcr,
    Ocr,
    PageVectors,
    Place,
    Width,
    Workers,
    Yes,
    confirm,
    flag,
    make_app,
    report_interrupt,
)

app = make_app("Inspect, change, copy or check a library.")


@app.command()
def status(library: Place, as_json: AsJson = False) -> None:
    """Show what a library holds.

    randslot library status -l mylib
    """
    from dataclasses import asdict

    from ..library.sharing import open_library
    from ..library.terminal import print_status, update_size

    with open_library(library, create=False) as opened:
        found = opened.status()
    found = update_size(found)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print_status(found)


@app.command()
def words(
    library: Place,
    language: Language = None,
    ocr: Ocr = "auto",
    no_ocr: NoOcr = False,
    workers: Workers = 0,
) -> None:
    """Read missing text, run OCR, or change the language.

    randslot library words -l mylib
    randslot library words -l mylib --language german --no-ocr
    """
    from ..library.results import Summary
    from ..library.sharing import open_library, share
    from ..library.terminal import plural, print_end, show_languages, show_progress

    with open_library(library, create=False) as opened, share(opened):
        with show_progress(False) as progress, report_interrupt(progress):
            num = opened.read_words(language=language, workers=workers, progress=progress)
        summary = Summary(without_text=opened.count_without_text())
        if not no_ocr:
            read_scans(opened, ocr, summary, workers, False)
        found = opened.status()
    read = f"{plural(num, 'text layer')} read, {plural(summary.by_ocr, 'page')} by OCR"
    print(f"{read}; language: {show_languages(found)}")
    summary.by_ocr = 0
    print_end(summary, found, False)


@app.command()
def sketch(
    library: Place,
    queries: Annotated[
        Path | None, typer.Option("--queries", metavar="FILE", help="Sample queries, one per line.", dir_okay=False)
    ] = None,
    remove: Annotated[bool, flag("--remove", help="Remove the sketches.")] = False,
) -> None:
    """Speed up vector search of 100,000 pages and more.

    Searches use sketches only if their recall is at least 98%.

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
            print("sketches removed: vector search scores all pages")
            return
        with show_progress(False) as progress:
            made = opened.make_sketches(texts, progress=progress)
    print(f"{plural(made.pages, 'page')} with sketches; each vector search rescores {made.candidates:,} candidates")
    print(f"recall@5 on {made.queries} held-out queries: {100 * made.recall:.1f}%")
    if made.pages < 20_000:
        print("with fewer than 20,000 pages, sketches help little: --remove deletes them")


@app.command()
def rerank(
    model: Annotated[str, typer.Argument(help="Cross-encoder (folder, hub ID), server URL, or none.")],
    library: Place,
) -> None:
    """Set a reranker for all searches.

    randslot library rerank cross-encoder/ms-marco-MiniLM-L6-v2 -l mylib
    randslot library rerank http://localhost:8080 -l mylib
    randslot library rerank none -l mylib
    """
    from ..library.library import Library

    with Library(library, create=False) as opened:
        opened.remember_reranker(None if model == "none" else model)
    print("reranking is off" if model == "none" else f"all searches are now reranked by {model}")


@app.command("list")
def list_files(library: Place, as_json: AsJson = False) -> None:
    """List the files of a library.

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
            notes.append("incomplete")
        for key, value in file.metadata.items():
            notes.append(f"{key}={value}")
        print(f"{shorten(file.source)}  ({', '.join(notes)})")


@app.command()
def export(file: Annotated[Path, typer.Argument(help="New Parquet file.")], library: Place) -> None:
    """Write texts and vectors to a Parquet file.

    randslot library export pages.parquet -l mylib
    """
    from ..library.copy import export_library
    from ..library.library import Library
    from ..library.terminal import plural, show_progress

    with Library(library, create=False) as opened, show_progress(False) as progress:
        num = export_library(opened, file, progress)
    print(f"{plural(num, 'page')} in {file}")


@app.command()
def remove(
    patterns: Annotated[list[str], typer.Argument(help="Paths, names, folders, or quoted wildcards.")],
    library: Place,
    yes: Yes = False,
    dry_run: Annotated[bool, flag("--dry-run", help="Only list the files.")] = False,
) -> None:
    """Remove files from a library; they stay on disk.

    randslot library remove report.pdf "2019/*.pdf" -l mylib
    randslot library remove report.pdf --yes
    """
    from ..library.sharing import open_library
    from ..library.terminal import plural, print_files, show_bytes

    with open_library(library, create=False) as opened:
        files = opened.find_files(*patterns)
        sources = [file.source for file in files]
        if dry_run:
            print_files("would be removed", sources)
            return
        if not (yes or confirm("would be removed", sources)):
            raise typer.Exit(1)
        opened.forget(sources)
        print_files("removed", sources)
        size = opened.status().bytes
    pages = sum(file.num_pages for file in files)
    print(f"{plural(pages, 'page')} removed; {show_bytes(size)} on disk until the library is compacted")


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help="Library folder or address.")],
    target: Annotated[str, typer.Argument(help="New library, or one of the same model.")],
    as_json: AsJson = False,
    page_vectors: PageVectors = None,
    width: Width = None,
) -> None:
    """Copy a library between folders and servers, and compare them.

    randslot library copy mylib qdrant://host:6334/papers
    randslot library copy qdrant://host:6334/papers mylib
    randslot library copy mylib smaller --page-vectors 2 --width 256
    """
    from dataclasses import asdict

    from ..library.address import is_address
    from ..library.copy import SAME
    from ..library.sharing import copy_between
    from ..library.terminal import plural, readable, show_progress

    real = [os.path.realpath(os.path.expanduser(place)) for place in (source, target)]
    if real[0] == real[1] and not is_address(source):
        raise UsageError(SAME)
    with show_progress(as_json) as progress, report_interrupt(progress):
        copied = copy_between(source, target, progress, page_vectors, width)
    if as_json:
        print(json.dumps(asdict(copied), indent=2))
    else:
        what = f"{plural(copied.files, 'file')} with {plural(copied.pages, 'page')} copied"
        print(f"{what}, {plural(copied.known, 'file')} already there")
        checked = f"page counts of {plural(copied.compared, 'file')}, content of {plural(copied.sampled, 'page')}"
        print(f"verified: {checked}")
        for note in copied.notes:
            print(f"note: {readable(note)}")
    for line in copied.problems:
        print(readable(line), file=sys.stderr)
    if copied.problems:
        raise typer.Exit(1)


@app.command()
def backup(target: Annotated[str, typer.Argument(help="New folder.")], library: Place) -> None:
    """Back up a library folder, even while in use.

    randslot library backup /mnt/backup/mylib-2026-11-18 -l mylib
    """
    from ..library.copy import backup_library
    from ..library.sharing import LibraryClient, open_library
    from ..library.terminal import show_bytes

    with open_library(library, create=False) as opened:
        size = opened.backup(target) if isinstance(opened, LibraryClient) else backup_library(opened, Path(target))
    print(f"{show_bytes(size)} in {target}; search it with randslot search -l {target}")


@app.command()
def verify(
    library: Place,
    repair: Annotated[bool, flag("--repair", help="Hide damaged files until they are reindexed.")] = False,
) -> None:
    """Check that every page is stored and readable.

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
        print(f"{plural(total, 'page')} checked, no problems found")
    elif repair:
        print("repaired: index the files again to restore them")
    if pending:
        print(f"{plural(pending, 'file')} incomplete: index again to resume")
    if problems and not repair:
        raise typer.Exit(1)
