"""The command `index`: files and folders into a library."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import UsageError
from .help import ADVANCED, PlainCommand
from .options import (
    AsJson,
    Inference,
    Language,
    NoOcr,
    Ocr,
    OcrChoice,
    PageVectors,
    Place,
    Reduction,
    TrustRemoteCode,
    Workers,
    Yes,
    agree,
    read_pairs,
    say_stopped,
)

if TYPE_CHECKING:
    from ..library.library import Library
    from ..library.results import Summary
    from ..library.sharing import LibraryClient

RAY_ADDRESS = re.compile(r"local|auto|ray://\S+|[\w.-]+:\d+")


class IndexCommand(PlainCommand):
    """`--ray` alone is the cluster of this machine; what follows is its address only if it looks like one.

    Typer has no options whose value may be left out.
    """

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        args = list(args)
        if "--ray" in args:
            place = args.index("--ray") + 1
            if place == len(args) or not RAY_ADDRESS.fullmatch(args[place]):
                args.insert(place, "")
        rest: list[str] = super().parse_args(context, args)
        return rest


def index(
    paths: Annotated[list[str], typer.Argument(help="PDFs, images, folders, or patterns in quotes.")],
    library: Place,
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder, a hub id, or use-multilingual: pages get its vectors too. Without it, words alone."
        ),
    ] = None,
    language: Language = None,
    ocr: Ocr = OcrChoice.auto,
    no_ocr: NoOcr = False,
    page_vectors: PageVectors = None,
    reduction: Reduction = None,
    inference: Inference = None,
    meta: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="What searches can filter by; may repeat.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    prune: Annotated[bool, typer.Option("--prune", help="Forget files that are gone from the folders.")] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --prune: only show what would go.")] = False,
    batch: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Pages that are encoded at once.")
    ] = 8,
    workers: Workers = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            rich_help_panel=ADVANCED,
            help="Read on a Ray cluster: of this machine, or as in host:6379.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what failed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a library up to date with files and folders: only what is new or changed is read.

    Without a model, pages are found by their words.

    randslot index ~/papers

    randslot index ~/papers -l mylib

    randslot index ~/papers -l mylib --model runs/my-model

    randslot index ~/papers -l mylib --model vidore/colqwen2.5-v0.2 --reduction kmeans --page-vectors 32

    randslot index ~/papers -l mylib --prune --yes --quiet

    randslot index 2023/*.pdf -l mylib --meta year=2023

    randslot index /shared/papers -l qdrant://host:6334/papers --ray
    """
    from ..library.sharing import open_library, share
    from ..library.sources import expand
    from ..library.terminal import (
        measure_again,
        print_end,
        print_files,
        print_languages,
        print_summary,
        show_progress,
        show_waiting,
    )
    from ..pages.ocr import find_engine

    if dry_run and not prune:
        raise UsageError("--dry-run shows what --prune would forget: name both")
    if ray and not RAY_ADDRESS.fullmatch(ray):
        raise UsageError(f"--ray takes the address of a cluster, as in host:6379, or nothing, not {ray!r}")
    metadata = read_pairs(meta or [], "--meta") if meta else None
    try:
        for path in paths:
            expand(path)  # a wrong one leaves no library behind
    except UsageError as error:
        if ray == "":
            raise UsageError(f"{error}; an address after --ray is as in host:6379") from error
        raise
    if not no_ocr:
        find_engine()  # a wrong choice is told before anything is done
    if quiet:
        logging.getLogger("randslot").setLevel(logging.ERROR)
    silent = quiet or as_json
    with show_waiting("opening the library" if model is None else "loading the model", silent):
        settings = {"page_vectors": page_vectors, "reduction": reduction, "inference": inference}
        chosen = _choose_model(model, settings, trust_remote_code)
        opened = open_library(library, chosen, trust_remote_code=trust_remote_code)
    with opened, share(opened):
        gone = opened.list_gone(paths) if prune else []
        if dry_run:
            print_files("would be forgotten", gone)
            return
        if language is not None:
            with show_progress(silent) as progress, say_stopped(progress):
                opened.read_words(language=language, progress=progress)
            print_languages(opened.status(), silent)
        with show_progress(silent) as progress, say_stopped(progress):
            summary = opened.add(paths, metadata=metadata, batch=batch, workers=workers, ray=ray, progress=progress)
        gone = opened.list_gone(paths) if prune else []  # a file that was moved is not gone
        kept = bool(gone) and not (yes or agree("gone, and would be forgotten", gone))
        if gone and not kept:
            summary.removed = opened.forget(gone)
            if yes and not (quiet or as_json):
                print_files("gone, and forgotten", gone)
        if not as_json:
            print_summary(summary, opened.status(), quiet)
        if not no_ocr:
            read_scans(opened, ocr, summary, workers, silent)
        status = opened.status()
    status = measure_again(status)
    if as_json:
        totals = {"library_pages": status.pages, "library_bytes": status.bytes}
        print(json.dumps(summary.as_dict() | totals, indent=2))
    else:
        print_end(summary, status, quiet)
    if summary.failed or kept:
        raise typer.Exit(1)


def read_scans(opened: Library | LibraryClient, ocr: OcrChoice, summary: Summary, workers: int, silent: bool) -> None:
    """Read pages without text by OCR, if there is an engine for it; they can be found by then."""
    from ..library.terminal import show_progress
    from ..pages.ocr import find_engine

    if ocr is OcrChoice.auto and (find_engine() is None or not summary.without_text):
        return
    with show_progress(silent) as progress, say_stopped(progress):
        which: Literal["missing", "all"] = "all" if ocr is OcrChoice.all else "missing"
        start = time.monotonic()
        summary.by_ocr = opened.read_words(ocr=which, workers=workers, progress=progress)
        summary.ocr_seconds = round(time.monotonic() - start, 3)
    summary.without_text = opened.count_without_text()


def _choose_model(model: str | None, settings: dict[str, Any], trust_remote_code: bool) -> Any:
    """Return the name of a model, or the model itself if it is to be set in another way than it is saved."""
    if all(value is None for value in settings.values()):
        return model
    if model is None:
        given = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is not None]
        raise UsageError(f"{given[0]} sets a model up: name it by --model")
    from ..model.opening import open_model

    return open_model(model, **settings, trust_remote_code=trust_remote_code or None)
