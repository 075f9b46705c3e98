"""An evaluation of searching itself: a set of one's own as a library, and its questions asked by words or by both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from ..errors import UsageError
from ..library.library import Library
from ..library.results import By, Hit
from ..pages.ocr import find_engine
from .metrics import ndcg
from .result import CUTS, LIBRARIES, Result, SubsetResult, average_queries, name_file
from .tasks import FolderSource, Subset, Task

WORDS = "words"  # what a search without a model is called in tables


def evaluate_search(
    task: Task,
    output: Path,
    *,
    by: By,
    model: str | None = None,
    name: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    """Index the pages of a set, ask its questions, and keep nDCG in a file.

    The library stays in the folder of results: the next run reads only what changed. Pages without a text layer are
    read by OCR if there is an engine. name: what the search is called in tables.

    Errors: UsageError for a task that is not a folder of one's own, or a model that is missing or not needed.
    """
    if not isinstance(task.source, FolderSource):
        raise UsageError("searches are evaluated on a set of your own: name its folder by --data")
    if (model is None) != (by == "words"):
        raise UsageError("name a model for --by both, and none for --by words")
    pages = task.source.folder.resolve() / "pages"
    key = blake2b(f"{pages} {model}".encode(), digest_size=8).hexdigest()
    with Library(output / LIBRARIES / f"{task.name}-{key}", model) as library:
        fill_library(library, pages, tell)
        status = library.status()
        subsets = {subset.name: ask_library(library, subset, by, pages) for subset in task.subsets()}
        binding = library.binding
    label = f"by {by}"
    file = name_file(output, name or model or WORDS, label, f"{task.benchmark}-{task.name}")
    return task.keep_result(
        file,
        subsets,
        model=name or model or WORDS,
        weights=binding.weights if binding else WORDS,
        settings={"seed": 0, "by": by, "language": status.language, "origins": dict(status.origins)},
        label=label,
        counts={side: binding.num_vectors(side) if binding else 0 for side in ("query", "page")},
    )


def fill_library(library: Library, pages: Path, tell: Callable[[str], None]) -> None:
    """Bring a library up to date with the pages of a set, scans included if there is an OCR engine."""
    tell(f"indexing {pages}")
    summary = library.add(pages)
    if summary.without_text and find_engine():
        tell(f"reading {summary.without_text} pages by OCR")
        library.read_words(ocr="missing")
    for source, reason in summary.failed.items():
        logging.getLogger("randslot").warning("note: %s is not searched: %s", source, reason)


def ask_library(library: Library, subset: Subset, by: By, folder: Path) -> SubsetResult:
    """Ask the queries of a subset, and return how well the pages that count were found."""
    found = library.search_all(list(subset.queries.values()), max(CUTS), by=by)
    each: dict[int, list[float]] = {cut: [] for cut in CUTS}
    for id, hits in zip(subset.queries, found, strict=True):
        ranked = [_page_id(hit, folder) for hit in hits]
        for cut in CUTS:
            each[cut].append(ndcg(ranked, subset.grades[id], cut))
    return average_queries(each, len(subset.pages.ids), asked=subset.key())


def _page_id(hit: Hit, folder: Path) -> str:
    """Return a page as sets name it: "report.pdf#page=3", or the name of an image."""
    file = Path(hit.source)
    name = file.relative_to(folder).as_posix()
    return f"{name}#page={hit.page}" if file.suffix.lower() == ".pdf" else name
