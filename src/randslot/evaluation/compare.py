"""Compare runs, or searches of your pages, by a paired bootstrap over queries."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..files import write_json
from ..library.library import Library
from ..library.rerank import Reranker, open_reranker
from ..library.results import By
from ..library.stores.points import BYTES_PER_NUMBER
from ..model import open_model
from ..model.reader import PageReader
from ..pages import NoTextError, open_page, read_page_text
from ..tables import Cell, Table
from .evaluate_search import WORDS, Tell, ask_library, fill_library, find_pages, place_library
from .result_files import Result, choose_base, name_runs, read_results
from .tasks import Pages, Task

DRAWS = 10_000
LEVEL = 95  # of intervals, in percent
ALL = "all tasks"
Scores = NDArray[np.float64]  # of each query, in percent
Verdict = tuple[float, float, float, str]  # a difference, its interval, and "better", "worse" or "within noise"


# -- bootstrap


def judge_tasks(
    differences: dict[str, list[Scores]], random: np.random.Generator, draws: int = DRAWS
) -> dict[str, Verdict]:
    """Return the verdict on each task, and on all tasks, each counted alike.

    differences: in points, by task; of each subset an array over queries.
    """
    means: dict[str, float] = {}
    samples: dict[str, Scores] = {}
    for task, subsets in differences.items():
        means[task] = float(np.mean([subset.mean() for subset in subsets]))
        drawn = []
        for subset in subsets:
            num, blocks = len(subset), []
            for start in range(0, draws, 500):  # some at a time, to save memory
                blocks.append(subset[random.integers(0, num, (min(500, draws - start), num))].mean(1))
            drawn.append(np.concatenate(blocks))
        samples[task] = np.mean(drawn, axis=0)
    means[ALL] = float(np.mean(list(means.values())))
    samples[ALL] = np.mean(list(samples.values()), axis=0)
    return {task: judge(means[task], samples[task]) for task in means}


def judge(difference: float, samples: Scores) -> Verdict:
    """Return a difference with its interval over the samples and a verdict."""
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(samples, [tail, 100 - tail]).tolist()
    return difference, low, high, "better" if low > 0 else "worse" if high < 0 else "within noise"


def describe_interval(result: Result) -> str:
    """Return a line with the interval of a task's nDCG@5 over its queries, by bootstrap."""
    scores = [100 * np.array(subset.each) for subset in result.subsets.values()]
    _, low, high, _ = judge_tasks({result.task: scores}, np.random.default_rng(42))[result.task]
    num = sum(map(len, scores))
    return f"{result.task}: nDCG@5 from {low:.2f} to {high:.2f} ({LEVEL} % interval, {num} queries)"


# -- runs


def compare_runs(folders: Sequence[Path], *, base: str | None = None, draws: int = DRAWS, seed: int = 42) -> Table:
    """Compare every run below some folders with one, task by task and over all tasks, each counted alike.

    base: the name of that run or a unique part of it; by default the first found.
    """
    runs = _read_runs(folders)
    if len(runs) < 2:
        raise UsageError(f"only one run found: {next(iter(runs))}. Name the folders of two or more.")
    base = choose_base(base, list(runs))
    first = runs.pop(base)
    rows: list[list[Cell]] = [[base, task, score, None, None, None, "base"] for task, score in _scores(first).items()]
    for name, results in runs.items():
        if first.keys() != results.keys():
            raise UsageError(f"{base} has {', '.join(first)}, and {name} has {', '.join(results)}: not the same tasks")
        differences: dict[str, list[Scores]] = {}
        for task, result in results.items():
            before, after = first[task].subsets, result.subsets
            differences[task] = []
            for subset in {**before, **after}:
                if subset not in before or subset not in after or before[subset].asked != after[subset].asked:
                    raise UsageError(f"{base} and {name} differ in queries or pages of {task}. Evaluate both again.")
                differences[task].append(100 * (np.array(after[subset].each) - np.array(before[subset].each)))
        verdicts = judge_tasks(differences, np.random.default_rng(seed), draws)
        rows += [[name, task, score, *verdicts[task]] for task, score in _scores(results).items()]
    title = f"nDCG@5 minus that of {base}, in points, with {LEVEL} % intervals (paired bootstrap over queries)"
    return Table(title, ["run", "task", "score", "difference", "from", "to", "verdict"], rows, digits=2)


def _read_runs(folders: Sequence[Path]) -> dict[str, dict[str, Result]]:
    """Return results by run and task; budgets tell runs apart here."""
    found = read_results(*folders)
    has_benchmarks = len({result.benchmark for result in found}) > 1
    has_budgets = len({result.counts_text for result in found}) > 1
    names = name_runs(list(dict.fromkeys(result.run_key for result in found)))
    runs: dict[str, dict[str, Result]] = {}
    for result in found:
        name = names[result.run_key] + (f", {result.counts_text}" if has_budgets else "")
        task = f"{result.benchmark} {result.task}" if has_benchmarks else result.task
        runs.setdefault(name, {})[task] = result
    return runs


def _scores(results: dict[str, Result]) -> dict[str, float]:
    """Return nDCG@5 in percent by task, and over all tasks if there are several."""
    scores = {task: 100 * result.ndcg[5] for task, result in results.items()}
    if len(scores) > 1:
        scores[ALL] = float(np.mean(list(scores.values())))
    return scores


# -- models on your pages


def read_named(name: str) -> tuple[str, dict[str, Any]]:
    """Read MODEL or MODEL,key=value,...: a model with changed settings, such as reduction=cluster or width=256."""
    model, *pairs = name.split(",")
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise UsageError(f"{name!r}: settings of a model are key=value, not {pair!r}")
        settings[key] = int(value) if value.isdigit() else value
    return model, settings


def evaluate_named(names: Sequence[str], task: Task, output: Path, trust_remote_code: bool = False) -> list[Path]:
    """Evaluate models, some with changed settings, and return the folders of their results."""
    from .evaluate import evaluate_model

    folders = set()
    for name in names:
        model, settings = read_named(name)
        settings["trust_remote_code"] = trust_remote_code or None
        windows, name = settings.pop("windows", 1), Path(name).name
        for result in evaluate_model(model, [task], output, settings=settings, name=name, windows=windows):
            folders.add(result.file.parent)
    return sorted(folders)


Candidate = tuple[str, By, Library, Reranker | None]  # a search to compare, with its label


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
    draws: int = DRAWS,
) -> list[ComparedSearch]:
    """Compare searches of the pages of a set: by "words", or by the vectors of models (see `read_named`).

    Every model gets a library, kept in `output`, so that a stopped run can resume. both: also search by words and
    vectors of each model together. rerank: also each search with its first hits reranked by this model. Times are
    measured in turns, so that a busy moment hits all searches.
    """
    pages = find_pages(task)
    if len(models) + both + (rerank is not None) < 2:
        raise UsageError("name two or more to compare: models, or words")
    subsets = list(task.subsets())
    with ExitStack() as stack:
        candidates: list[Candidate] = []
        encode_seconds: dict[Library, float] = {}
        for name in dict.fromkeys(models):
            library = stack.enter_context(_open_library(name, task, output, trust_remote_code))
            fill_library(library, pages, tell)
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
            found = [ask_library(library, subset, by, pages, own_reranker) for subset in subsets]
            scores.append([100 * np.array(result.each) for result in found])
        seconds = _time_searches(candidates, [query for subset in subsets for query in subset.queries.values()])
        compared = []
        for i, candidate in enumerate(candidates):
            differences = [after - before for after, before in zip(scores[i], scores[0], strict=True)]
            verdict = judge_tasks({"set": differences}, np.random.default_rng(42), draws)["set"]
            one = _weigh(candidate, scores[i], verdict, encode_seconds.get(candidate[2]), seconds[i])
            compared.append(one if i else replace(one, verdict="base"))
    write_json(output / "compare.json", [asdict(one) for one in compared])
    return compared


def _open_library(name: str, task: Task, output: Path, trust_remote_code: bool) -> Library:
    """Open the library of a set for "words" or a model."""
    if name == WORDS:
        return Library(place_library(task, output, None))
    model, settings = read_named(name)
    opened = open_model(model, **settings, trust_remote_code=trust_remote_code or None) if settings else model
    return Library(place_library(task, output, name), opened, trust_remote_code=trust_remote_code)


def _weigh(
    candidate: Candidate, scores: list[Scores], verdict: Verdict, encode_seconds: float | None, seconds: float
) -> ComparedSearch:
    """Return the quality of a search with what its library costs."""
    label, by, library, _ = candidate
    status, binding = library.status(), library.binding
    vectors, everything = status.vector_bytes_per_page, status.bytes_per_page
    size = {"words": everything - vectors, "vectors": vectors, "both": everything}[by]
    dimension = 0 if by == "words" or binding is None else binding.dimension
    num = vectors / BYTES_PER_NUMBER / dimension if dimension else 0.0
    ndcg = float(np.mean([subset.mean() for subset in scores]))
    return ComparedSearch(label, ndcg, *verdict, num, dimension, max(size, 0), encode_seconds, 1000 * seconds)


def _time_encoding(model: PageReader, pages: Pages, size: int = 8) -> float:
    """Return the seconds that a model takes to encode an opened page, over some from all over a set."""
    opened: list[Any] = []
    num = len(pages.ids)
    for i in range(0, num, max(num // (4 * size), 1)):
        page = pages.open(i)
        try:
            opened.append(read_page_text(page) if model.reads == "text" else open_page(page, model.page_pixels))
        except NoTextError:
            continue
        if len(opened) == size:
            break
    model.embed_pages(opened[:1])  # warm up
    start = time.perf_counter()
    model.embed_pages(opened)
    return (time.perf_counter() - start) / len(opened)


def _time_searches(candidates: Sequence[Candidate], queries: Sequence[str]) -> list[float]:
    """Return the median seconds of each search over about 15 queries, each asked of all searches in turn."""
    seconds: list[list[float]] = [[] for _ in candidates]
    for query in queries[:: max(len(queries) // 15, 1)]:
        for (_, by, library, reranker), times in zip(candidates, seconds, strict=True):
            start = time.perf_counter()
            library.search(query, by=by, rerank=reranker or False)
            times.append(time.perf_counter() - start)
    return [median(times[1:] or times) for times in seconds]  # the first warms up


def list_compared(compared: Sequence[ComparedSearch]) -> Table:
    """Return the table of a comparison."""
    heads = ["search", "nDCG@5", "difference", "from", "to", "verdict"]
    heads += ["vectors a page", "dimension", "bytes a page", "encode s/page", "search ms"]
    rows: list[list[Cell]] = []
    for one in compared:
        gain: list[Cell] = [None] * 3 if one.verdict == "base" else [one.difference, one.low, one.high]
        shape: list[Cell] = [round(one.vectors), one.dimension] if one.vectors else [None, None]
        encode = None if one.encode_seconds is None else f"{one.encode_seconds:.3g}"
        rows.append([one.search, one.ndcg, *gain, one.verdict, *shape, one.bytes, encode, f"{one.search_ms:.3g}"])
    title = f"nDCG@5 on the same pages, minus that of {compared[0].search} with {LEVEL} % intervals, and what it costs"
    return Table(title, heads, rows, digits=1)


class Weighed(Protocol):
    """Something with bytes of a page and nDCG@5."""

    @property
    def bytes(self) -> float: ...
    @property
    def ndcg(self) -> float: ...


W = TypeVar("W", bound=Weighed)


def find_frontier(compared: Iterable[W]) -> list[W]:
    """Return those that no other beats at the same bytes or fewer, smallest first."""
    best: list[W] = []
    for one in sorted(compared, key=lambda one: (one.bytes, -one.ndcg)):
        if not best or one.ndcg > best[-1].ndcg:
            best.append(one)
    return best
