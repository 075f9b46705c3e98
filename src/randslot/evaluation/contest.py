"""Models side by side on the same pages: how well each finds them, what it keeps of a page, and how long it takes.

Every model gets a library of its own, so what is compared is what somebody who searches gets. Words are one of the
searches, and so are words and vectors together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..files import write_json
from ..library.library import Library
from ..library.results import By
from ..library.stores.base import BYTES_PER_NUMBER
from ..model.reader import PageReader
from ..pages import NoTextError, open_page, read_page_text
from ..tables import Cell, Table
from .compare import DRAWS, LEVEL, judge_tasks
from .result import LIBRARIES
from .search import WORDS, ask_library, fill_library
from .tasks import FolderSource, Subset, Task

SAMPLE = 8  # pages that encoding is timed on
QUERIES = 15  # that searching is timed on
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Contestant:
    """A search that is compared: by words, by the vectors of a model, or by both."""

    name: str
    by: By
    library: Library

    @property
    def label(self) -> str:
        return f"{self.name} and words" if self.by == "both" else self.name


@dataclass(frozen=True)
class Standing:
    """How a search did.

    ndcg: nDCG@5 in percent. difference, low, high, verdict: to the first search, over queries. vectors, bytes: of a
    page, on average; words take what a library of them takes on disk. encode_seconds: of a page, None for words.
    search_ms: of a query, with its encoding.
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_models(
    models: Sequence[str],
    task: Task,
    output: Path,
    *,
    both: bool = False,
    trust_remote_code: bool = False,
    tell: Tell = lambda _: None,
    draws: int = DRAWS,
) -> list[Standing]:
    """Compare searches of the pages of a set: by "words", or by the vectors of a model named by folder or hub id.

    both: also by the words and the vectors of each model together. Libraries stay in the folder of results, so that a
    stopped run goes on. Times are measured now, in turns, so that a busy moment hits all of them.

    Errors: UsageError for a task that is not a folder of one's own, or fewer than two searches.
    """
    if not isinstance(task.source, FolderSource):
        raise UsageError("models are compared on a set of your own: name its folder by --data")
    if len(models) + both < 2:
        raise UsageError("name two or more to compare: models, or words")
    subsets = list(task.subsets())
    pages = task.source.folder.resolve() / "pages"
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        for name in dict.fromkeys(models):
            place = output / LIBRARIES / name_library(task, pages, name)
            model = None if name == WORDS else name
            library = stack.enter_context(Library(place, model, trust_remote_code=trust_remote_code))
            fill_library(library, pages, tell)
            contestants += list_searches(name, library, both)
        found = [_ask(one, subsets, pages, tell) for one in contestants]
        encode = _time_encoding(contestants, subsets[0])
        search = _time_searches(contestants, [text for subset in subsets for text in subset.queries.values()])
        standings = [
            _stand(one, scores, found[0], encode.get(one.name), search[one.label], draws)
            for one, scores in zip(contestants, found, strict=True)
        ]
    write_json(output / "compare.json", [one.as_dict() for one in standings])
    return standings


def name_library(task: Task, pages: Path, model: str) -> str:
    """Return the folder of the library that the pages of a set are in, for a model."""
    own = None if model == WORDS else model
    return f"{task.name}-{blake2b(f'{pages} {own}'.encode(), digest_size=8).hexdigest()}"


def list_searches(name: str, library: Library, both: bool) -> Iterator[Contestant]:
    """Yield the searches of one library that are compared."""
    if name == WORDS:
        yield Contestant(WORDS, "words", library)
        return
    short = Path(name).name or name
    yield Contestant(short, "vectors", library)
    if both:
        yield Contestant(short, "both", library)


Scores = list[NDArray[np.float64]]  # nDCG@5 of each query in percent, by subset


def _ask(one: Contestant, subsets: Sequence[Subset], pages: Path, tell: Tell) -> Scores:
    tell(f"searching by {one.label}")
    found = [ask_library(one.library, subset, one.by, pages) for subset in subsets]
    return [100 * np.array(result.each) for result in found]


def _stand(one: Contestant, scores: Scores, first: Scores, encode: float | None, search: float, draws: int) -> Standing:
    differences = [own - other for own, other in zip(scores, first, strict=True)]
    difference, low, high, verdict = judge_tasks({"set": differences}, np.random.default_rng(42), draws)["set"]
    status, binding = one.library.status(), one.library.binding
    words = status.bytes_per_page - status.vector_bytes_per_page
    size = {"words": words, "vectors": status.vector_bytes_per_page, "both": status.bytes_per_page}[one.by]
    standing = Standing(
        search=one.label,
        ndcg=float(np.mean([part.mean() for part in scores])),
        difference=difference,
        low=low,
        high=high,
        verdict="base" if scores is first else verdict,
        vectors=0.0,
        dimension=0,
        bytes=max(size, 0),
        encode_seconds=encode,
        search_ms=1000 * search,
    )
    if one.by == "words" or binding is None:
        return standing
    numbers = status.vector_bytes_per_page / BYTES_PER_NUMBER
    return replace(standing, vectors=numbers / binding.dimension, dimension=binding.dimension)


def _time_encoding(contestants: Sequence[Contestant], subset: Subset) -> dict[str, float]:
    """Return the seconds that each model takes to encode a page that is open, by the name of the model."""
    seconds: dict[str, float] = {}
    for one in contestants:
        if one.by == "words" or one.name in seconds:
            continue
        model = one.library.model
        pages = _open_some(model, subset)
        model.embed_pages(pages[:1])  # warms up
        start = time.perf_counter()
        model.embed_pages(pages)
        seconds[one.name] = (time.perf_counter() - start) / len(pages)
    return seconds


def _open_some(model: PageReader, subset: Subset) -> list[Any]:
    """Open pages from all over a set, as a model reads them."""
    found: list[Any] = []
    num = len(subset.pages.ids)
    for i in range(0, num, max(num // (4 * SAMPLE), 1)):
        page = subset.pages.open(i)
        try:
            found.append(read_page_text(page) if model.reads == "text" else open_page(page, model.page_pixels))
        except NoTextError:
            continue
        if len(found) == SAMPLE:
            break
    return found


def _time_searches(contestants: Sequence[Contestant], queries: Sequence[str]) -> dict[str, float]:
    """Return the seconds of a search, the median over some queries, each asked of all in turn."""
    seconds: dict[str, list[float]] = {one.label: [] for one in contestants}
    for query in queries[:: max(len(queries) // QUERIES, 1)]:
        for one in contestants:
            start = time.perf_counter()
            one.library.search(query, by=one.by)
            seconds[one.label].append(time.perf_counter() - start)
    return {name: median(values[1:] or values) for name, values in seconds.items()}  # the first warms up


# -- what is shown


def make_table(standings: Sequence[Standing]) -> Table:
    """Return the comparison as a table."""
    heads = ["search", "nDCG@5", "difference", "from", "to", "verdict"]
    heads += ["vectors a page", "dimension", "bytes a page", "encode s/page", "search ms"]
    rows: list[list[Cell]] = []
    for one in standings:
        base = one.verdict == "base"
        gain: list[Cell] = [None, None, None] if base else [one.difference, one.low, one.high]
        many: list[Cell] = [round(one.vectors), one.dimension] if one.vectors else [None, None]
        encode = None if one.encode_seconds is None else f"{one.encode_seconds:.3g}"
        rows.append([one.search, one.ndcg, *gain, one.verdict, *many, one.bytes, encode, f"{one.search_ms:.3g}"])
    title = f"nDCG@5 on the same pages, minus that of {standings[0].search} with {LEVEL} % intervals, and what it costs"
    return Table(title, heads, rows, digits=1)


def find_frontier(standings: Sequence[Standing]) -> list[Standing]:
    """Return the searches that no other beats at the same bytes or fewer, from the smallest on."""
    best: list[Standing] = []
    for one in sorted(standings, key=lambda one: (one.bytes, -one.ndcg)):
        if not best or one.ndcg > best[-1].ndcg:
            best.append(one)
    return best
