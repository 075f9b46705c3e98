"""The commands `index`, `search` and `library`: parse, call one function, print. Heavy imports wait inside."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import UsageError
from ..help import ADVANCED, PlainCommand, PlainGroup
from ..options import Inference, PageVectors, QueryVectors, Reduction, TrustRemoteCode
from .address import default_library

if TYPE_CHECKING:
    from .library import Library
    from .results import Summary
    from .served_library import ServedLibrary
    from .show import Progressing

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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")]
RAY_ADDRESS = re.compile(r"local|auto|ray://\S+|[\w.-]+:\d+")
EXCLUDED = re.compile(r"-[^\W\d_]{3}")  # how a word that pages must not have begins; -l and -k10 are options
Language = Annotated[str | None, typer.Option(help="Of the words, as in german or de; else that of most pages.")]
Workers = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Processes that open files; 0: by the cores.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


ModelPlace = Annotated[
    str | None, typer.Option(rich_help_panel=ADVANCED, help="Where the library's model is, if it has moved.")
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

library_app = typer.Typer(
    cls=PlainGroup, help="Look into a library, remove files from it, copy it.", no_args_is_help=True
)


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
        str | None, typer.Option(help="A folder or hub id: pages get its vectors too. Without it, words alone.")
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
    from ..pages.ocr import find_engine
    from .served_library import open_library, share
    from .show import measure_again, print_end, print_files, print_summary, show_progress, show_waiting
    from .sources import expand

    if dry_run and not prune:
        raise UsageError("--dry-run shows what --prune would forget: name both")
    if ray and not RAY_ADDRESS.fullmatch(ray):
        raise UsageError(f"--ray takes the address of a cluster, as in host:6379, or nothing, not {ray!r}")
    metadata = _pairs(meta or [], "--meta") if meta else None
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
            opened.read_words(language=language)
        with show_progress(silent) as progress, _say_stopped(progress):
            summary = opened.add(paths, metadata=metadata, batch=batch, workers=workers, ray=ray, progress=progress)
        gone = opened.list_gone(paths) if prune else []  # a file that was moved is not gone
        kept = bool(gone) and not (yes or _agree("gone, and would be forgotten", gone))
        if gone and not kept:
            summary.removed = opened.forget(gone)
            if yes and not (quiet or as_json):
                print_files("gone, and forgotten", gone)
        if not as_json:
            print_summary(summary, opened.status(), quiet)
        if not no_ocr:
            _read_scans(opened, ocr, summary, workers, silent)
        status = opened.status()
    status = measure_again(status)
    if as_json:
        totals = {"library_pages": status.pages, "library_bytes": status.bytes}
        print(json.dumps(summary.as_dict() | totals, indent=2))
    else:
        print_end(summary, status, quiet)
    if summary.failed or kept:
        raise typer.Exit(1)


def _read_scans(opened: Library | ServedLibrary, ocr: OcrChoice, summary: Summary, workers: int, silent: bool) -> None:
    """Read pages without text by OCR, if there is an engine for it; they can be found by then."""
    from ..pages.ocr import find_engine
    from .show import show_progress

    if ocr is OcrChoice.auto and (find_engine() is None or not summary.without_text):
        return
    with show_progress(silent) as progress, _say_stopped(progress):
        which: Literal["missing", "all"] = "all" if ocr is OcrChoice.all else "missing"
        summary.by_ocr = opened.read_words(ocr=which, workers=workers, progress=progress)
    summary.without_text = opened.count_without_text()


class SearchCommand(PlainCommand):
    """Words after a minus belong to the query, also where the shell has taken the quotes around it: `tax -income`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        excluded = [arg for arg in args[:end] if self._is_excluded(arg)]
        if excluded:
            options = [arg for arg in args[:end] if arg not in excluded]
            args = [*options, "--", *args[end + 1 :], *map(_quote_phrase, excluded)]
        rest: list[str] = super().parse_args(context, args)
        return rest

    def _is_excluded(self, arg: str) -> bool:
        if not EXCLUDED.match(arg):
            return False
        if any(f"-{arg}" in param.opts for param in self.params) or arg == "-help":
            raise UsageError(f"-{arg} is the option; to leave out pages with the word, put the query into quotes")
        return not (arg.startswith("-l") and os.path.exists(arg[2:]))  # -lmylib: an option and its value in one


def _quote_phrase(excluded: str) -> str:
    """Return an excluded phrase with the quotes that the shell has taken: -"income tax"."""
    return f'-"{excluded[1:]}"' if " " in excluded else excluded


def search(
    query: Annotated[list[str], typer.Argument(help="What to look for; - reads queries from stdin, one a line.")],
    library: Place,
    k: Annotated[int, typer.Option("-k", metavar="N", help="How many pages.")] = 5,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="KEY=VALUE", help="source=report.pdf, page=3-9, or metadata; may repeat."),
    ] = None,
    by: Annotated[
        SearchBy | None,
        typer.Option(metavar="words|vectors|both", help="Else what the library has and its model can read."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the first page that is found.")] = False,
    as_json: AsJson = False,
    copies: Annotated[
        bool, typer.Option("--copies", rich_help_panel=ADVANCED, help="List identical pages one by one.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", rich_help_panel=ADVANCED, help="Show scores, and which readouts matched.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", rich_help_panel=ADVANCED, help="By vectors: score every page in full.")
    ] = False,
    query_vectors: QueryVectors = None,
    model: ModelPlace = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find pages in a library, by words, by vectors, or by both.

    randslot search battery life

    randslot search "deferred tax 2023" -l mylib -k 5 --open

    randslot search '"deferred tax" INV-20931 -draft' -l mylib --by words

    randslot search "deferred tax" -l mylib --filter source=report.pdf --filter page=10-20 --explain

    randslot search - -l mylib --json < questions.txt
    """
    from .opening import open_hit
    from .served_library import open_library
    from .show import list_missing, print_hits, show_waiting

    from_stdin = query == ["-"]
    queries = [" ".join(query)]
    if from_stdin:
        queries = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not queries or any(not one.strip() for one in queries):
        raise UsageError("empty query: ask for something that a page could have")
    chosen = _filters(filters or [])
    how: Any = by.value if by else None
    ignored = [name for name, given in (("--exact", exact), ("--query-vectors", query_vectors)) if given]
    if by is SearchBy.words and ignored:
        raise UsageError(f"{' and '.join(ignored)} can change searches by vectors only, and --by words has none")
    with (
        show_waiting("searching"),
        open_library(library, model, create=False, trust_remote_code=trust_remote_code) as opened,
    ):
        results = opened.search_all(
            queries, k, by=how, filters=chosen, exact=exact, query_vectors=query_vectors, collapse=not copies
        )
        notes = opened.notes()
        for one, hits in zip(queries, results, strict=True):
            if not (how == "vectors" or (hits and hits[0].by == "vectors")):
                notes += list_missing(opened.find_unknown(one, filters=chosen), bool(chosen))
    if ignored and all(hit.by == "words" for hits in results for hit in hits):
        notes.append(f"this search is by words, which {' and '.join(ignored)} cannot change")
    for note in dict.fromkeys(notes):
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        answers = []
        for one, hits in zip(queries, results, strict=True):
            answers.append({"query": one, "hits": [hit.as_dict() for hit in hits]})
        print(json.dumps(answers if from_stdin else answers[0]["hits"], indent=2))
        return
    for one, hits in zip(queries, results, strict=True):
        if len(queries) > 1:
            print(f"? {one}")
        print_hits(hits, explain)
        if show and not (hits and open_hit(hits[0])):
            raise typer.Exit(1)


@library_app.command(cls=PlainCommand)
def status(library: Place, as_json: AsJson = False) -> None:
    """Show what a library holds and which model it belongs to.

    randslot library status -l mylib
    """
    from .served_library import open_library
    from .show import measure_again, print_status

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

    For libraries of earlier versions, scans, and another language.

    randslot library words -l mylib

    randslot library words -l mylib --language german --no-ocr
    """
    from .results import Summary
    from .served_library import open_library, share
    from .show import plural, print_end, show_progress

    with open_library(library, create=False) as opened, share(opened):
        with show_progress(False) as progress, _say_stopped(progress):
            num = opened.read_words(language=language, workers=workers, progress=progress)
        summary = Summary(without_text=opened.count_without_text())
        if not no_ocr:
            _read_scans(opened, ocr, summary, workers, False)
        found = opened.status()
    print(f"{plural(num, 'text layer')} read, {plural(summary.by_ocr, 'page')} by OCR; the words are {found.language}")
    summary.by_ocr = 0
    print_end(summary, found, False)


@library_app.command("list", cls=PlainCommand)
def list_files(library: Place, as_json: AsJson = False) -> None:
    """List the files of a library with their numbers of pages.

    randslot library list -l mylib
    """
    from dataclasses import asdict

    from .served_library import open_library
    from .show import plural, shorten

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
    from .served_library import open_library
    from .show import plural, print_files, show_bytes

    with open_library(library, create=False) as opened:
        files = opened.find_files(*patterns)
        sources = [file.source for file in files]
        if dry_run:
            print_files("would be forgotten", sources)
            return
        if not (yes or _agree("would be forgotten", sources)):
            raise typer.Exit(1)
        opened.forget(sources)
        print_files("forgotten", sources)
        size = opened.status().bytes
    pages = sum(file.num_pages for file in files)
    print(
        f"{plural(pages, 'page')} less; the library takes {show_bytes(size)}, and less once a fifth of it is forgotten"
    )


def _agree(what: str, sources: list[str]) -> bool:
    """Show files and ask whether to go on; without a terminal nobody can be asked, and the answer is no."""
    from .show import print_files

    print_files(what, sources)
    if not sys.stdin.isatty():
        print("nothing was forgotten: --yes does it without asking", file=sys.stderr)
        return False
    return typer.confirm("Forget them? The files themselves stay.")


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

    from .address import is_address
    from .copy import SAME
    from .served_library import copy_between
    from .show import plural, readable, show_progress

    if not (is_address(source) or is_address(target)) and _real(source) == _real(target):
        raise UsageError(SAME)
    with show_progress(as_json) as progress, _say_stopped(progress):
        copied = copy_between(source, target, progress)
    if as_json:
        print(json.dumps(asdict(copied), indent=2))
    else:
        what = f"{plural(copied.files, 'file')} with {plural(copied.pages, 'page')} copied"
        print(f"{what}, {plural(copied.known, 'file')} there already")
        print(f"compared: all pages of {plural(copied.compared, 'file')}; searches that agree: {copied.searches}")
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
    from .served_library import open_library
    from .show import plural, readable, show_progress

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


@contextmanager
def _say_stopped(progress: Progressing) -> Iterator[None]:
    """When it is stopped, say how far it got."""
    from .show import plural

    try:
        yield
    except KeyboardInterrupt:
        progress.bar.stop()
        done = f"{plural(progress.pages, 'page')} stored, {plural(progress.files, 'file')} complete"
        if progress.stage == "scans":
            done = f"all files are stored, and {plural(progress.pages, 'page')} read by OCR"
        print(f"randslot: stopped: {done}; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None


def _real(folder: str) -> str:
    return os.path.realpath(os.path.expanduser(folder))


def _choose_model(model: str | None, settings: dict[str, Any], trust_remote_code: bool) -> Any:
    """Return the name of a model, or the model itself if it is to be set in another way than it is saved."""
    if all(value is None for value in settings.values()):
        return model
    from ..model.hub import EMBEDDED
    from ..model.remote_model import open_model

    return open_model(model or EMBEDDED, **settings, trust_remote_code=trust_remote_code or None)


def _pairs(given: list[str], option: str) -> dict[str, Any]:
    pairs = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not key or not sign:
            raise UsageError(f"{option} takes key=value, not {one!r}")
        if key in pairs:
            raise UsageError(f"{option} names {key!r} twice")
        pairs[key] = value
    return pairs


def _filters(given: list[str]) -> dict[str, Any]:
    filters = _pairs(given, "--filter")
    if "page" in filters:
        first, _, last = filters["page"].partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(f"--filter page takes a number or a range as in 3-9, not {filters['page']!r}")
        filters["page"] = (int(first), int(last or first))
    return filters
