"""Evaluate a search: index your own set as a library, and ask its questions by words or by both."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from ..errors import RandSlotError, UsageError
from ..library.library import Library
from ..library.rerank import Reranker, open_reranker
from ..library.results import By
from ..pages.ocr import find_engine
from .metrics import ndcg
from .result_files import CUTS, LIBRARIES, Result, SubsetResult, average_queries, average_subsets, name_file
from .tasks import FolderTask, Subset, Task

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
    """Index the pages of a set, ask its questions, and write nDCG to a file.

    The library stays in the folder of results: the next run reads only what changed. rerank: a reranker of the first
    hits. group: see `ask_library`. name: the search in tables.
    """
    if (model is None) != (by == "words"):
        raise UsageError("name a model for --by both, and none for --by words")
    pages = find_pages(task)
    reranker = open_reranker(rerank, seconds=math.inf) if rerank else None
    with Library(place_library(task, output, model), model) as library:
        fill_library(library, pages, tell)
        status, binding = library.status(), library.binding
        subsets = {subset.name: ask_library(library, subset, by, pages, reranker, group) for subset in task.subsets()}
    shown, label = name or model or WORDS, f"by {by}" + (f", reranked by {Path(rerank).name}" if rerank else "")
    label += ", documents" if group == "document" else ""
    result = Result(
        file=name_file(output, shown, label, f"{task.benchmark}-{task.name}"),
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


def find_pages(task: Task) -> Path:
    """Return the folder of pages of a local set."""
    if not isinstance(task, FolderTask):
        raise UsageError("searches are evaluated on a local set: name its folder by --data")
    return Path(task.dataset).resolve() / "pages"


def place_library(task: Task, output: Path, model: str | None) -> Path:
    """Return where the library of a set is kept, for a model."""
    key = blake2b(f"{find_pages(task)} {model}".encode(), digest_size=8).hexdigest()
    return output / LIBRARIES / f"{task.name}-{key}"


def fill_library(library: Library, pages: Path, tell: Tell) -> None:
    """Update a library with the pages of a set; read scans if there is an OCR engine."""
    tell(f"indexing {pages}")
    summary = library.add(pages)
    if summary.without_text and find_engine():
        tell(f"reading {summary.without_text} pages by OCR")
        library.read_words(ocr="missing")
    for source, reason in summary.failed.items():
        logging.getLogger("randslot").warning("note: %s is not searched: %s", source, reason)


def ask_library(
    library: Library, subset: Subset, by: By, pages: Path, reranker: Reranker | None = None, group: Group = "page"
) -> SubsetResult:
    """Search for the queries of a subset, and return nDCG of the found pages.

    group: or of the documents among ten times as many pages, each by its best page, with its highest grade.
    """
    num_hits = max(CUTS) if group == "page" else 10 * max(CUTS)
    results = library.search_results(list(subset.queries.values()), num_hits, by=by, rerank=reranker or False)
    for result in results:
        if result.rerank_note:
            raise RandSlotError(result.rerank_note)
    found = [result.hits for result in results]
    each: dict[int, list[float]] = {cut: [] for cut in CUTS}
    for id, hits in zip(subset.queries, found, strict=True):
        ranked, grades = [], subset.grades[id]
        for hit in hits:  # as sets name pages: "report.pdf#page=3", or the name of an image
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
