"""The command `index`: add files and folders to a library."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import UsageError
from .options import (
    ADVANCED,
    AsJson,
    FollowLinks,
    Inference,
    Language,
    NoOcr,
    Ocr,
    OnceCommand,
    OwnStrategy,
    PageVectors,
    Password,
    PasswordFile,
    Place,
    Reduction,
    TrustRemoteCode,
    Width,
    Workers,
    Yes,
    confirm,
    flag,
    make_app,
    option,
    read_pairs,
    read_passwords,
    report_interrupt,
    use_own_code,
)

if TYPE_CHECKING:
    from ..library.library import Library
    from ..library.results import Summary
    from ..library.sharing import LibraryClient

app = make_app()

RAY_ADDRESS = re.compile(r"local|auto|ray://\S+|[\w.-]+:\d+")


class IndexCommand(OnceCommand):
    """Allows `--ray` without an address, which Typer does not support."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        args = list(args)
        if "--ray" in args:
            place = args.index("--ray") + 1
            if place == len(args) or not RAY_ADDRESS.fullmatch(args[place]):
                args.insert(place, "")
        rest: list[str] = super().parse_args(context, args)
        return rest


@app.command(cls=IndexCommand)
def index(
    paths: Annotated[list[str], typer.Argument(help="Files, folders, or quoted patterns.")],
    library: Place,
    model: Annotated[str | None, option("MODEL", "Also store vectors: folder, hub ID, or use-multilingual.")] = None,
    language: Language = None,
    ocr: Ocr = "auto",
    no_ocr: NoOcr = False,
    meta: Annotated[list[str] | None, option("KEY=VALUE", "Metadata to filter by; repeatable.")] = None,
    prune: Annotated[bool, flag("--prune", help="Remove deleted files from the library.")] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, flag("--dry-run", help="With --prune: only list the files.")] = False,
    strict: Annotated[bool, flag("--strict", help="Report known failures again; exit with 1.")] = False,
    quiet: Annotated[bool, flag("--quiet", "-q", help="Print only new failures.")] = False,
    as_json: AsJson = False,
    page_vectors: PageVectors = None,
    width: Width = None,
    reduction: Reduction = None,
    inference: Inference = None,
    strategy: OwnStrategy = None,
    trust_remote_code: TrustRemoteCode = False,
    batch: Annotated[int, option("N", "Pages per encoding batch.", panel=ADVANCED)] = 8,
    workers: Workers = 0,
    follow_links: FollowLinks = False,
    password: Password = None,
    password_file: PasswordFile = None,
    ray: Annotated[str | None, option("[ADDRESS]", "Read files on a Ray cluster (host:6379).", panel=ADVANCED)] = None,
) -> None:
    """Add files and folders to a library; unchanged files are skipped.

    randslot index ~/papers
    randslot index ~/papers -l mylib --model runs/my-model
    randslot index ~/papers -l mylib --model vidore/colqwen2.5-v0.2 --reduction kmeans --page-vectors 32
    randslot index ~/papers -l mylib --prune --yes --quiet
    randslot index ~/contracts --password-file passwords.txt
    randslot index 2023/*.pdf -l mylib --meta year=2023
    randslot index /shared/papers -l qdrant://host:6334/papers --ray
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a search
    from ..library.facets import check_metadata
    from ..library.sharing import LibraryClient, open_library, share
    from ..library.sources import expand
    from ..library.terminal import (
        print_end,
        print_files,
        print_summary,
        show_languages,
        show_progress,
        show_spinner,
        update_size,
    )
    from ..pages.ocr import find_engine
    from ..words.language import find_language

    # Validate options before creating a library.
    if dry_run and not prune:
        raise UsageError("--dry-run needs --prune")
    if ray and not RAY_ADDRESS.fullmatch(ray):
        raise UsageError(f"--ray takes a cluster address such as host:6379, or no value, not {ray!r}")
    for option_name, value, least in (("--batch", batch, 1), ("--workers", workers, 0)):
        if value < least:
            raise UsageError(f"{option_name} must be at least {least}, not {value}")
    for path in paths:
        expand(path)
    metadata = read_pairs(meta, "--meta") if meta else None
    check_metadata(metadata)
    if language is not None:
        find_language(language)
    if not no_ocr:
        find_engine()
    has_passwords = read_passwords(password, password_file)
    strict = strict or (len(paths) == 1 and os.path.isfile(paths[0]))  # the user asks for this file
    if quiet:
        logging.getLogger("randslot").setLevel(logging.ERROR)
    silent = quiet or as_json
    with show_spinner("opening the library" if model is None else "loading the model", silent):
        settings: dict[str, Any] = {"page_vectors": page_vectors, "width": width}
        settings |= {"reduction": reduction, "inference": inference}
        settings["slots"] = use_own_code(strategy)
        chosen = _open_model(model, settings, trust_remote_code)
        opened = open_library(library, chosen, trust_remote_code=trust_remote_code)
    with opened, share(opened):
        if has_passwords and isinstance(opened, LibraryClient):
            raise UsageError("another process has the library open and reads the files: pass the password to it")
        if dry_run:
            print_files("would be removed", opened.list_gone(paths))
            return
        if language is not None:
            with show_progress(silent) as progress, report_interrupt(progress):
                opened.read_words(language=language, progress=progress)
            status = opened.status()
            if status.languages and not silent:
                print(f"language: {show_languages(status)}")
        if model is None:
            gc.set_threshold(100_000, 50, 50)  # with the default, collections take a fifth of the indexing time
        with show_progress(silent) as progress, report_interrupt(progress):
            summary = opened.add(
                paths,
                metadata=metadata,
                follow_links=follow_links,
                batch=batch,
                workers=workers,
                ray=ray,
                progress=progress,
            )
        gone = opened.list_gone(paths)  # only now: moved files have new paths
        if gone and not prune and not silent:
            what = "1 file is" if len(gone) == 1 else f"{len(gone):,} files are"
            print(f"{what} no longer on disk: remove {'it' if len(gone) == 1 else 'them'} with --prune")
        refused = bool(gone) and prune and not (yes or confirm("would be removed", gone))
        if gone and prune and not refused:
            summary.removed = opened.forget(gone)
            if yes and not silent:
                print_files("removed", gone)
        if not as_json:
            print_summary(summary, opened.status(), quiet, strict)
        if not no_ocr:
            read_scans(opened, ocr, summary, workers, silent)
        status = opened.status()
    status = update_size(status)
    if as_json:
        totals = {"library_pages": status.pages, "library_bytes": status.bytes}
        print(json.dumps(asdict(summary) | totals, indent=2))
    else:
        print_end(summary, status, quiet)
    new_failures = summary.failed if strict else summary.failed.keys() - summary.known_failures
    if new_failures or refused:
        raise typer.Exit(1)


def _open_model(model: str | None, settings: dict[str, Any], trust_remote_code: bool) -> Any:
    """Return the name of a model, or the model itself if its settings change."""
    given = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is not None]
    if not given:
        return model
    if model is None:
        raise UsageError(f"{given[0]} needs --model")
    from ..model import open_model

    return open_model(model, **settings, trust_remote_code=trust_remote_code or None)


def read_scans(opened: Library | LibraryClient, ocr: str, summary: Summary, workers: int, silent: bool) -> None:
    """Run OCR on pages without text; with `auto`, only if an engine is installed."""
    from ..library.terminal import show_progress
    from ..pages.ocr import find_engine

    if ocr == "auto" and (find_engine() is None or not summary.without_text):
        return
    which: Literal["missing", "all"] = "all" if ocr == "all" else "missing"
    with show_progress(silent) as progress, report_interrupt(progress):
        start = time.monotonic()
        summary.by_ocr = opened.read_words(ocr=which, workers=workers, progress=progress)
        summary.ocr_seconds = round(time.monotonic() - start, 3)
    summary.without_text = opened.count_without_text()
