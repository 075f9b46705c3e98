"""The command `search`: pages of a library."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from .help import ADVANCED, PlainCommand
from .options import AsJson, ModelPlace, Place, QueryModel, QueryVectors, SearchBy, TrustRemoteCode, read_pairs

if TYPE_CHECKING:
    from ..library.manifest import File

EXCLUDED = re.compile(r"-[^\W\d_]{3}")  # how a word that pages must not have begins; -l and -k10 are options


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
    query_model: QueryModel = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find pages in a library, by words, by vectors, or by both.

    randslot search battery life

    randslot search "deferred tax 2023" -l mylib -k 5 --open

    randslot search '"deferred tax" INV-20931 -draft' -l mylib --by words

    randslot search "deferred tax" -l mylib --filter source=report.pdf --filter page=10-20 --explain

    randslot search - -l mylib --json < questions.txt

    randslot search "deferred tax" -l mylib --query-model light
    """
    from ..library.sharing import open_library
    from ..library.terminal import list_missing, list_unmatched, list_unreadable, open_hit, print_hits, show_waiting

    from_stdin = query == ["-"]
    queries = [" ".join(query)]
    if from_stdin:
        queries = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not queries or any(not one.strip() for one in queries):
        raise UsageError("empty query: ask for something that a page could have")
    chosen = _filters(filters or [])
    how: Any = by.value if by else None
    for_vectors = {"--exact": exact, "--query-vectors": query_vectors, "--query-model": query_model}
    ignored = [name for name, given in for_vectors.items() if given]
    if by is SearchBy.words and ignored:
        raise UsageError(f"{' and '.join(ignored)} can change searches by vectors only, and --by words has none")
    with (
        show_waiting("searching"),
        open_library(
            library, model, query_model=query_model, create=False, trust_remote_code=trust_remote_code
        ) as opened,
    ):
        results = opened.search_all(
            queries, k, by=how, filters=chosen, exact=exact, query_vectors=query_vectors, collapse=not copies
        )
        notes = opened.notes()
        if not all(results):
            notes += _look_at_files(opened.files())
        unmatched = list_unmatched(chosen, opened.files()) if chosen and not all(results) else []
        notes += unmatched
        for one, hits in zip(queries, results, strict=True):
            if not unmatched and not (how == "vectors" or (hits and hits[0].by == "vectors")):
                notes += list_missing(opened.find_unknown(one, filters=chosen), bool(chosen))
                notes += [] if hits else list_unreadable(opened.count_without_text())
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


def _look_at_files(files: list[File]) -> list[str]:
    """Return what may be the reason that nothing is found."""
    if not files:
        return ["the library is empty: randslot index adds files"]
    pending = sum(file.state == "pending" for file in files)
    if not pending:
        return []
    some = "1 file is" if pending == 1 else f"{pending:,} files are"
    return [f"{some} not complete yet, and cannot be found: randslot index goes on, if it is not running"]


def _filters(given: list[str]) -> dict[str, Any]:
    filters = read_pairs(given, "--filter")
    if "page" in filters:
        first, _, last = filters["page"].partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(f"--filter page takes a number or a range as in 3-9, not {filters['page']!r}")
        filters["page"] = (int(first), int(last or first))
    return filters
