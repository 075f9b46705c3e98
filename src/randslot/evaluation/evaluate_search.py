"""Evaluate and compare searches: index a local set as a library, and run its queries by words, vectors or both."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ..errors import RandSlotError, UsageError
from ..files import write_json
from ..library.library import Library
from ..library.rerank import Reranker, open_reranker
from ..library.results import By
from ..library.stores.points import BYTES_PER_NUMBER
from ..model import open_model
from ..model.reader import PageReader
from ..pages import NoTextError, open_page, read_page_text
from ..pages.ocr import find_engine
from ..tables import Cell, Table
from .compare import LEVEL, Scores, judge_tasks
from .metrics import ndcg
from .result_files import CUTS, LIBRARIES, Result, SubsetResult, average_queries, average_subsets, result_path
from .tasks import FolderTask, Pages, Subset, Task

WORDS = "words"  # a search without a model, in tables
Tell = Callable[[str], None]
Group = Literal["page", "document"]  # what is ranked


def evaluate_search(
    task: Task,
    output: Path,
    *,
    by: By,
    model: str | None = None,
    rerank: str | None = None,
    group: Group = "page",
    name: str | None = None,
    tell: Tell = lambda _: None,
) -> Result:
    """Index the pages of a set, run its queries, and write nDCG to a file.

    The library stays in the results folder: the next run indexes only what changed. rerank: a reranker of the top
    hits. group: see `search_library`. name: the label in tables.
    """
    if (model is None) != (by == "words"):
        raise UsageError("--by both needs a model, and --by words takes none")
    pages = find_pages(task)
    reranker = open_reranker(rerank, seconds=math.inf) if rerank else None
    with Library(library_path(task, output, model), model) as library:
        index_set(library, pages, tell)
        status, binding = library.status(), library.binding
        subsets = {
            subset.name: search_library(library, subset, by, pages, reranker, group) for subset in task.subsets()
        }
    shown, label = name or model or WORDS, f"by {by}" + (f", reranked by {Path(rerank).name}" if rerank else "")
    label += ", documents" if group == "document" else ""
    result = Result(
        file=result_path(output, shown, label, f"{task.benchmark}-{task.name}"),
        model=shown,
        weights=binding.weights if binding else WORDS,
        settings={"seed": 0, "by": by, "rerank": rerank, "language": status.language, "origins": dict(status.origins)},
        how=label,
        counts={side: binding.num_vectors(side) if binding else 0 for side in ("query", "page")},
        benchmark=task.benchmark,
        task=task.name,
        is_drawn=False,
        has_prefixes=False,
        ndcg=average_subsets(subsets),
        subsets=subsets,
        dataset=task.dataset,
        revision=task.revision,
    )
    result.write()
    return result


# -- the library of a set


def find_pages(task: Task) -> Path:
    """Return the folder of pages of a local set."""
    if not isinstance(task, FolderTask):
        raise UsageError("--by words and --by both need a local set. Pass --data.")
    return Path(task.dataset).resolve() / "pages"


def library_path(task: Task, output: Path, model: str | None) -> Path:
    """Return the path of the library of a set and model."""
    key = blake2b(f"{find_pages(task)} {model}".encode(), digest_size=8).hexdigest()
    return output / LIBRARIES / f"{task.name}-{key}"


def index_set(library: Library, pages: Path, tell: Tell) -> None:
    """Update a library with the pages of a set; run OCR on scans if an engine is installed."""
    tell(f"indexing {pages}")
    summary = library.add(pages)
    if summary.without_text and find_engine():
        tell(f"reading {summary.without_text} pages by OCR")
        library.read_words(ocr="missing")
    for source, reason in summary.failed.items():
        logging.getLogger("randslot").warning("note: %s is not indexed: %s", source, reason)


def search_library(
    library: Library, subset: Subset, by: By, pages: Path, reranker: Reranker | None = None, group: Group = "page"
) -> SubsetResult:
    """Search for the queries of a subset, and return nDCG of the pages.

    group: rank documents instead, each by its best page among ten times as many, with its highest grade.
    """
    num_hits = max(CUTS) if group == "page" else 10 * max(CUTS)
    results = library.search_results(list(subset.queries.values()), num_hits, by=by, rerank=reranker or False)
    each: dict[int, list[float]] = {cut: [] for cut in CUTS}
    for id, result in zip(subset.queries, results, strict=True):
        if result.rerank_note:
            raise RandSlotError(result.rerank_note)
        ranked, grades = [], subset.grades[id]
        for hit in result.hits:  # as sets name pages: "report.pdf#page=3", or the name of an image
            name = Path(hit.source).relative_to(pages).as_posix()
            ranked.append(f"{name}#page={hit.page}" if name.lower().endswith(".pdf") else name)
        if group == "document":
            ranked = list(dict.fromkeys(page.partition("#page=")[0] for page in ranked))
            by_document: dict[str, int] = {}
            for page, grade in grades.items():
                document = page.partition("#page=")[0]
                by_document[document] = max(grade, by_document.get(document, 0))
            grades = by_document
        for cut in CUTS:
            each[cut].append(ndcg(ranked, grades, cut))
    asked = subset.key() if group == "page" else f"{subset.key()}-documents"
    return average_queries(each, len(subset.pages.ids), "", asked)


# -- several searches


Candidate = tuple[str, By, Library, Reranker | None]  # a search to compare and its label


@dataclass(frozen=True)
class ComparedSearch:
    """Quality and cost of a search.

    ndcg: nDCG@5 in percent. difference, low, high, verdict: against the first search. vectors, bytes: per page, on
    average; for words, bytes on disk. encode_seconds: per page, None for words. search_ms: per query, with encoding.
    """

    search: str
    ndcg: float
    difference: float
    low: float
    high: float
    verdict: str
    vectors: float
    dimension: int
    bytes: int
    encode_seconds: float | None
    search_ms: float


def compare_models(
    models: Sequence[str],
    task: Task,
    output: Path,
    *,
    both: bool = False,
    rerank: str | None = None,
    trust_remote_code: bool = False,
    tell: Tell = lambda _: None,
) -> list[ComparedSearch]:
    """Compare searches of the pages of a set: by "words", or by the vectors of models (see `read_named`).

    Every model gets a library in `output`, so that a stopped run can resume. both: also search by words and vectors of
    each model together. rerank: also rerank the top hits of each search with this model. Timings interleave searches,
    so that load on the machine affects all of them.
    """
    pages = find_pages(task)
    if len(models) + both + (rerank is not None) < 2:
        raise UsageError("pass at least two to compare: models, or words")
    subsets = list(task.subsets())
    with ExitStack() as stack:
        candidates: list[Candidate] = []
        encode_seconds: dict[Library, float] = {}
        for name in dict.fromkeys(models):
            library = stack.enter_context(_open_library(name, task, output, trust_remote_code))
            index_set(library, pages, tell)
            label = Path(name).name or name
            candidates.append((label, "words" if name == WORDS else "vectors", library, None))
            if name != WORDS:
                encode_seconds[library] = _time_encoding(library.models.model, subsets[0].pages)
            if name != WORDS and both:
                candidates.append((f"{label} and words", "both", library, None))
        if rerank is not None:
            reranker = open_reranker(rerank, seconds=math.inf, trust_remote_code=trust_remote_code)
            for label, by, library, _ in list(candidates):
                candidates.append((f"{label}, reranked", by, library, reranker))
        scores: list[list[Scores]] = []
        for label, by, library, own_reranker in candidates:
            tell(f"searching by {label}")
            found = [search_library(library, subset, by, pages, own_reranker) for subset in subsets]
            scores.append([100 * np.array(result.each) for result in found])
        seconds = _time_searches(candidates, [query for subset in subsets for query in subset.queries.values()])
        compared = []
        for i, (label, by, library, _) in enumerate(candidates):
            differences = [after - before for after, before in zip(scores[i], scores[0], strict=True)]
            verdict = judge_tasks({"set": differences})["set"]
            mean = float(np.mean([subset.mean() for subset in scores[i]]))
            times = encode_seconds.get(library), 1000 * seconds[i]
            compared.append(ComparedSearch(label, mean, *verdict, *_measure_size(library, by), *times))
    compared[0] = replace(compared[0], verdict="base")
    write_json(output / "compare.json", [asdict(one) for one in compared])
    return compared


def read_named(name: str) -> tuple[str, dict[str, Any]]:
    """Parse MODEL or MODEL,key=value,...: a model with settings such as reduction=cluster or width=256."""
    model, *pairs = name.split(",")
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise UsageError(f"{name!r}: model settings have the form key=value, not {pair!r}")
        settings[key] = int(value) if value.isdigit() else value
    return model, settings


def evaluate_named(names: Sequence[str], task: Task, output: Path, trust_remote_code: bool = False) -> list[Path]:
    """Evaluate models with their settings, and return their result folders."""
    from .evaluate import evaluate_model

    folders = set()
    for name in names:
        model, settings = read_named(name)
        settings["trust_remote_code"] = trust_remote_code or None
        windows, name = settings.pop("windows", 1), Path(name).name
        for result in evaluate_model(model, [task], output, settings=settings, name=name, windows=windows):
            folders.add(result.file.parent)
    return sorted(folders)


def _open_library(name: str, task: Task, output: Path, trust_remote_code: bool) -> Library:
    """Open the library of a set for "words" or a model."""
    if name == WORDS:
        return Library(library_path(task, output, None))
    model, settings = read_named(name)
    opened = open_model(model, **settings, trust_remote_code=trust_remote_code or None) if settings else model
    return Library(library_path(task, output, name), opened, trust_remote_code=trust_remote_code)


def _measure_size(library: Library, by: By) -> tuple[float, int, int]:
    """Return the vectors per page, their dimension, and the bytes per page that a search uses."""
    status, binding = library.status(), library.binding
    vectors, everything = status.vector_bytes_per_page, status.bytes_per_page
    size = {"words": everything - vectors, "vectors": vectors, "both": everything}[by]
    dimension = 0 if by == "words" or binding is None else binding.dimension
    return vectors / BYTES_PER_NUMBER / dimension if dimension else 0.0, dimension, max(size, 0)


def _time_encoding(model: PageReader, pages: Pages) -> float:
    """Return the mean seconds to encode an opened page, over a sample of a set."""
    opened: list[Any] = []
    num = len(pages.ids)
    for i in range(0, num, max(num // 32, 1)):
        page = pages.open(i)
        try:
            opened.append(read_page_text(page) if model.reads == "text" else open_page(page, model.page_pixels))
        except NoTextError:
            continue
        if len(opened) == 8:
            break
    model.embed_pages(opened[:1])  # warm up
    start = time.perf_counter()
    model.embed_pages(opened)
    return (time.perf_counter() - start) / len(opened)


def _time_searches(candidates: Sequence[Candidate], queries: Sequence[str]) -> list[float]:
    """Return the median latency of each search in seconds, over about 15 queries, interleaving searches."""
    seconds: list[list[float]] = [[] for _ in candidates]
    for query in queries[:: max(len(queries) // 15, 1)]:
        for (_, by, library, reranker), times in zip(candidates, seconds, strict=True):
            start = time.perf_counter()
            library.search(query, by=by, rerank=reranker or False)
            times.append(time.perf_counter() - start)
    return [median(times[1:] or times) for times in seconds]  # the first warms up


def list_compared(compared: Sequence[ComparedSearch]) -> Table:
    """Return the comparison as a table."""
    heads = ["search", "nDCG@5", "difference", "from", "to", "verdict"]
    heads += ["vectors per page", "dimension", "bytes per page", "encode s/page", "search ms"]
    rows: list[list[Cell]] = []
    for one in compared:
        gain: list[Cell] = [None] * 3 if one.verdict == "base" else [one.difference, one.low, one.high]
        shape: list[Cell] = [round(one.vectors), one.dimension] if one.vectors else [None, None]
        encode = None if one.encode_seconds is None else f"{one.encode_seconds:.3g}"
        rows.append([one.search, one.ndcg, *gain, one.verdict, *shape, one.bytes, encode, f"{one.search_ms:.3g}"])
    title = f"nDCG@5 on the same pages, minus that of {compared[0].search} with {LEVEL}% intervals, and the costs"
    return Table(title, heads, rows, digits=1)
