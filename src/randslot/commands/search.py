"""The command `search`: find pages in libraries."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import UsageError
from ..library.address import default_library
from .options import (
    ADVANCED,
    AsJson,
    ModelPlace,
    OnceCommand,
    Places,
    QueryModel,
    QueryVectors,
    Rerank,
    TrustRemoteCode,
    flag,
    make_app,
    option,
    read_pairs,
)

if TYPE_CHECKING:
    from ..library.library import Library
    from ..library.results import QueryResult
    from ..library.sharing import LibraryClient

app = make_app()


class SearchCommand(OnceCommand):
    """Reads `tax -income` as a query: an unknown option of three letters or more is an excluded word."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        options, excluded = [], []
        for arg in args[:end]:
            if not self._is_excluded(arg):
                options.append(arg)
            elif " " in arg:  # a phrase without the quotes that the shell removed: -"income tax"
                excluded.append(f'-"{arg[1:]}"')
            else:
                excluded.append(arg)
        if excluded:
            args = [*options, "--", *args[end + 1 :], *excluded]
        rest: list[str] = super().parse_args(context, args)
        return rest

    def _is_excluded(self, arg: str) -> bool:
        if not re.match(r"-[^\W\d_]{3}", arg):  # -l and -k10 are options
            return False
        if any(f"-{arg}" in param.opts for param in self.params) or arg == "-help":
            raise UsageError(f"-{arg} is an option: to exclude the word, quote the whole query")
        return not (arg.startswith("-l") and os.path.exists(arg[2:]))  # -lmylib is an option with its value


@app.command(cls=SearchCommand)
def search(
    query: Annotated[list[str], typer.Argument(help="Query; - reads one per line (stdin).")],
    library: Places = None,
    k: Annotated[int, option("N", "Number of hits.", "-k")] = 5,
    filters: Annotated[
        list[str] | None, option("KEY=VALUE", "source=report.pdf, page=3-9, or metadata; repeatable.", "--filter")
    ] = None,
    inside: Annotated[str | None, option("NAME", "Only files or folders whose name contains this.", "--in")] = None,
    year: Annotated[str | None, option("YEAR", "Only documents of 2018, or of 2015-2018.")] = None,
    type: Annotated[str | None, option("TYPE", "pdf, document, slides, sheet, mail, image, ...")] = None,
    by: Annotated[
        Literal["words", "vectors", "both"] | None,
        option("words|vectors|both", "Default: both if available, else words."),
    ] = None,
    rerank: Rerank = None,
    show: Annotated[bool, flag("--open", help="Open the first result.")] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, flag("--csv", help="Print CSV.")] = False,
    template: Annotated[
        str | None, option("TEXT", "Template for each hit: '{source}:{page} {text}'.", "--format")
    ] = None,
    null: Annotated[bool, flag("--null", "-0", help="Print only paths, for xargs -0.")] = False,
    copies: Annotated[bool, flag("--copies", panel=ADVANCED, help="List identical pages separately.")] = False,
    explain: Annotated[bool, flag("--explain", panel=ADVANCED, help="Show scores and matching vectors.")] = False,
    group: Annotated[
        Literal["document"] | None, option("document", "Rank documents, each by its best page.", panel=ADVANCED)
    ] = None,
    verbatim: Annotated[bool, flag("--verbatim", panel=ADVANCED, help="Do not correct typos.")] = False,
    exact: Annotated[bool, flag("--exact", panel=ADVANCED, help="Exact vector search: score every page.")] = False,
    query_vectors: QueryVectors = None,
    model: ModelPlace = None,
    query_model: QueryModel = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find pages by keyword, vector or hybrid search.

    randslot search battery life
    randslot search "deferred tax 2023" -l mylib -k 5 --open
    randslot search '"deferred tax" INV-20931 -draft' -l mylib --by words
    randslot search "net sales" --in costco --year 2018
    randslot search "net sales" -l papers -l mail --csv > hits.csv
    randslot search invoice -0 | xargs -0 ls -l
    randslot search "deferred tax" --filter source=report.pdf --filter page=10-20 --explain
    randslot search - -l mylib --json < questions.txt
    randslot search "deferred tax" -l mylib --query-model light
    randslot search "deferred tax" -l mylib --rerank cross-encoder/ms-marco-MiniLM-L6-v2
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads take 0.1 s of CPU to start
    from ..library.sharing import open_library
    from ..library.terminal import open_hit, print_csv, print_hits, print_paths, print_template, show_spinner

    if as_json + as_csv + bool(template) + null > 1:
        raise UsageError("use only one of --json, --csv, --format and --null")
    from_stdin = query == ["-"]
    queries = [" ".join(query)]
    if from_stdin:
        queries = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not queries or any(not one.strip() for one in queries):
        raise UsageError("empty query: enter at least one word")
    chosen = _filters(filters or [], {"in": inside, "year": year, "type": type})
    for_vectors = {"--exact": exact, "--query-vectors": query_vectors, "--query-model": query_model}
    ignored = [name for name, given in for_vectors.items() if given]
    if by == "words" and ignored:
        raise UsageError(f"{' and '.join(ignored)} only affect vector search: drop --by words")
    places = list(dict.fromkeys(library or [])) or [os.environ.get("RANDSLOT_LIBRARY") or str(default_library())]
    notes: list[str] = []

    def search_library(place: str, asked: list[str], verbatim: bool) -> list[QueryResult]:
        with (
            show_spinner("searching"),
            open_library(
                place, model, query_model=query_model, create=False, trust_remote_code=trust_remote_code
            ) as opened,
        ):
            results = opened.search_results(
                asked,
                k,
                by=by,
                filters=chosen,
                exact=exact,
                query_vectors=query_vectors,
                collapse=not copies,
                rerank=rerank,
                verbatim=verbatim,
                group=group,
                boxes=as_json,
            )
            notes.extend(_list_library_notes(opened, results))
            return results

    found = [search_library(place, queries, verbatim) for place in places]
    for i, one in enumerate(queries if len(places) > 1 else []):
        if any(has_all_words(results[i]) for results in found):  # then it has no typos
            for place, results in zip(places, found, strict=True):
                if results[i].corrected:
                    (results[i],) = search_library(place, [one], True)
                results[i].unknown = []
    for of_library in found:
        notes += _list_notes(queries, of_library, chosen)
    results = merge_results(found, places, k) if len(places) > 1 else found[0]
    if ignored and all(hit.by == "words" for result in results for hit in result.hits):
        notes.append(f"{' and '.join(ignored)} ignored (keyword search)")
    for note in dict.fromkeys(notes):
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        answers = []
        for one, result in zip(queries, results, strict=True):
            corrected = {"corrected": result.corrected} if result.corrected else {}
            answers.append({"query": one, **corrected, "hits": [hit.as_dict() for hit in result.hits]})
        print(json.dumps(answers if from_stdin else answers[0]["hits"], indent=2))
        return
    hits = {one: result.hits for one, result in zip(queries, results, strict=True)}
    if as_csv:
        print_csv(hits)
    elif template:
        print_template(hits, template)
    elif null:
        print_paths(hits)
    if as_csv or template or null:
        return
    for one, result in zip(queries, results, strict=True):
        if len(queries) > 1:
            print(f"? {one}")
        print_hits(result.hits, explain)
        if show and not (result.hits and open_hit(result.hits[0])):
            raise typer.Exit(1)


def has_all_words(result: QueryResult) -> bool:
    """Whether a library has all words of a query as typed."""
    return bool(result.hits) and result.by != "vectors" and not result.corrected and not result.unknown


def merge_results(found: list[list[QueryResult]], places: list[str], k: int) -> list[QueryResult]:
    """Merge the results of several libraries by rank: their scores are not comparable."""
    merged = []
    for results in zip(*found, strict=True):
        ranked = []
        for order, (place, result) in enumerate(zip(places, results, strict=True)):
            for rank, hit in enumerate(result.hits):
                ranked.append((rank, order, replace(hit, library=place)))
        hits = [hit for _, _, hit in sorted(ranked, key=lambda one: one[:2])]
        merged.append(replace(results[0], hits=hits[:k]))
    return merged


def _list_library_notes(opened: Library | LibraryClient, results: list[QueryResult]) -> list[str]:
    """Return notes on a library."""
    from ..library.terminal import plural

    notes = opened.notes()
    if not all(result.hits for result in results):
        files = opened.files()
        pending = sum(file.state == "pending" for file in files)
        if not files:
            notes.append("the library is empty: add files with randslot index")
        elif pending:
            notes.append(f"{plural(pending, 'file')} incomplete: run randslot index to resume")
    return notes


def _list_notes(queries: list[str], results: list[QueryResult], filters: dict[str, Any]) -> list[str]:
    """Return notes on missing results and corrected queries."""
    from ..library.terminal import plural, readable
    from ..pages.ocr import show_advice

    if results and results[0].filter_note:
        return [readable(results[0].filter_note)]
    notes = []
    pages = "no page with this filter" if filters else "no page"
    for query, result in zip(queries, results, strict=True):
        if result.rerank_note:
            notes.append(result.rerank_note)
        if result.unknown:
            words = [readable(word if len(word) <= 60 else f"{word[:60]}…") for word in result.unknown]
            similar = ": hits are only similar in meaning" if result.by == "vectors" and result.hits else ""
            notes.append(pages + " has " + " or ".join(f'"{word}"' for word in words) + similar)
        if num := result.without_text:
            notes.append(f"keyword search cannot find {plural(num, 'page')} without text: {show_advice()}")
        if result.corrected:
            notes.append(f"Showing results for {result.corrected}; search instead for {query}: --verbatim")
    return notes


def _filters(given: list[str], named: dict[str, str | None]) -> dict[str, Any]:
    filters = read_pairs(given, "--filter")
    for key, value in named.items():
        if value is not None:
            filters[key] = value
    for key in ("page", "year"):
        if key in filters:
            first, _, last = filters[key].partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                raise UsageError(f"{key} must be a number or a range such as 3-9, not {filters[key]!r}")
            filters[key] = (int(first), int(last or first))
    return filters
