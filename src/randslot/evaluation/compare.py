"""Compare runs, or searches of your pages, by a paired bootstrap over queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..files import write_json
from ..library.library import Library
from ..library.results import By
from ..library.stores.points import BYTES_PER_NUMBER
from ..model.reader import PageReader
from ..pages import NoTextError, open_page, read_page_text
from ..tables import Cell, Table
from .evaluate_search import WORDS, Tell, ask_library, fill_library, find_pages, place_library
from .result_files import Result, RunKey, name_runs, read_results
from .tasks import Subset, Task

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
        samples[task] = np.mean([_bootstrap(subset, random, draws) for subset in subsets], axis=0)
    means[ALL] = float(np.mean(list(means.values())))
    samples[ALL] = np.mean(list(samples.values()), axis=0)
    return {task: judge(means[task], samples[task]) for task in means}


def _bootstrap(differences: Scores, random: np.random.Generator, draws: int) -> Scores:
    """Return the mean difference of `draws` samples of the queries, with replacement."""
    num = len(differences)
    blocks = [min(500, draws - start) for start in range(0, draws, 500)]
    return np.concatenate([differences[random.integers(0, num, (size, num))].mean(1) for size in blocks])


def judge(difference: float, samples: Scores) -> Verdict:
    """Return a difference with its interval over the samples and a verdict."""
    tail = (100 - LEVEL) / 2
    low, high = (float(value) for value in np.percentile(samples, [tail, 100 - tail]))
    return difference, low, high, "better" if low > 0 else "worse" if high < 0 else "within noise"


# -- runs


def compare_runs(folders: Sequence[Path], *, base: str | None = None, draws: int = DRAWS, seed: int = 42) -> Table:
    """Compare every run below some folders with one, task by task and over all tasks, each counted alike.

    base: the name of that run or a unique part of it; by default the first found.
    """
    runs = _read_runs(folders)
    if len(runs) < 2:
        raise UsageError(f"only one run found: {next(iter(runs))}. Name the folders of two or more.")
    base = _choose_base(base, list(runs))
    first = runs.pop(base)
    rows: list[list[Cell]] = [[base, task, score, None, None, None, "base"] for task, score in _scores(first).items()]
    for name, results in runs.items():
        differences = {}
        if first.keys() != results.keys():
            raise UsageError(f"{base} has {', '.join(first)}, and {name} has {', '.join(results)}: not the same tasks")
        for task, result in results.items():
            before, after = first[task].subsets, result.subsets
            if {key: one.asked for key, one in before.items()} != {key: one.asked for key, one in after.items()}:
                raise UsageError(f"{base} and {name} differ in queries or pages of {task}. Evaluate both again.")
            differences[task] = [100 * (np.array(after[key].each) - np.array(before[key].each)) for key in before]
        verdicts = judge_tasks(differences, np.random.default_rng(seed), draws)
        rows += [[name, task, score, *verdicts[task]] for task, score in _scores(results).items()]
    title = f"nDCG@5 minus that of {base}, in points, with {LEVEL} % intervals (paired bootstrap over queries)"
    return Table(title, ["run", "task", "score", "difference", "from", "to", "verdict"], rows, digits=2)


def _read_runs(folders: Sequence[Path]) -> dict[str, dict[str, Result]]:
    """Return results by run and task; budgets tell runs apart here."""
    found = read_results(*folders)
    has_benchmarks = len({result.benchmark for result in found}) > 1
    groups: dict[tuple[RunKey, str], dict[str, Result]] = {}
    for result in found:
        task = f"{result.benchmark} {result.task}" if has_benchmarks else result.task
        groups.setdefault((result.run_key, result.counts_text), {})[task] = result
    has_budgets = len({counts for _, counts in groups}) > 1
    names = name_runs(list(dict.fromkeys(key for key, _ in groups)))
    runs = {}
    for (key, counts), results in groups.items():
        runs[f"{names[key]}, {counts}" if has_budgets else names[key]] = results
    return runs


def _choose_base(base: str | None, names: list[str]) -> str:
    if base is None or base in names:
        return base or names[0]
    found = [name for name in names if base in name]
    if len(found) != 1:
        what = "several runs" if found else "no run"
        raise UsageError(f"--base {base!r} names {what}. The runs: {'; '.join(names)}")
    return found[0]


def _scores(results: dict[str, Result]) -> dict[str, float]:
    """Return nDCG@5 in percent by task, and over all tasks if there are several."""
    scores = {task: 100 * result.ndcg[5] for task, result in results.items()}
    if len(scores) > 1:
        scores[ALL] = float(np.mean(list(scores.values())))
    return scores


# -- models on your pages


@dataclass(frozen=True)
class Candidate:
    """A search to compare: by words, by the vectors of a model, or by both."""

    name: str
    by: By
    library: Library

    @property
    def label(self) -> str:
        return f"{self.name} and words" if self.by == "both" else self.name


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
    trust_remote_code: bool = False,
    tell: Tell = lambda _: None,
    draws: int = DRAWS,
) -> list[ComparedSearch]:
    """Compare searches of the pages of your own set: by "words", or by the vectors of models (folders or hub ids).

    Every model gets a library, kept in `output`, so that a stopped run can resume. both: also search by words and
    vectors of each model together. Times are measured in turns, so that a busy moment hits all searches.
    """
    pages = find_pages(task)
    if len(models) + both < 2:
        raise UsageError("name two or more to compare: models, or words")
    subsets = list(task.subsets())
    with ExitStack() as stack:
        candidates: list[Candidate] = []
        for name in dict.fromkeys(models):
            model = None if name == WORDS else name
            library = Library(place_library(task, output, model), model, trust_remote_code=trust_remote_code)
            fill_library(stack.enter_context(library), pages, tell)
            kinds: list[By] = ["words"] if model is None else ["vectors", "both"] if both else ["vectors"]
            candidates += [Candidate(Path(name).name or name, by, library) for by in kinds]
        scores: list[list[Scores]] = []
        for one in candidates:
            tell(f"searching by {one.label}")
            found = [ask_library(one.library, subset, one.by, pages) for subset in subsets]
            scores.append([100 * np.array(result.each) for result in found])
        encode = _time_encoding(candidates, subsets[0])
        search = _time_searches(candidates, [text for subset in subsets for text in subset.queries.values()])
        compared = []
        for one, own in zip(candidates, scores, strict=True):
            seconds = None if one.by == "words" else encode[one.name]
            compared.append(_measure(one, own, scores[0], seconds, search[one.label], draws))
    write_json(output / "compare.json", [asdict(one) for one in compared])
    return compared


def _measure(
    one: Candidate, scores: list[Scores], first: list[Scores], encode: float | None, search: float, draws: int
) -> ComparedSearch:
    differences = [own - other for own, other in zip(scores, first, strict=True)]
    difference, low, high, verdict = judge_tasks({"set": differences}, np.random.default_rng(42), draws)["set"]
    status, binding = one.library.status(), one.library.binding
    vectors, everything = status.vector_bytes_per_page, status.bytes_per_page
    size = {"words": everything - vectors, "vectors": vectors, "both": everything}[one.by]
    dimension = 0 if one.by == "words" or binding is None else binding.dimension
    return ComparedSearch(
        search=one.label,
        ndcg=float(np.mean([subset.mean() for subset in scores])),
        difference=difference,
        low=low,
        high=high,
        verdict="base" if scores is first else verdict,
        vectors=vectors / BYTES_PER_NUMBER / dimension if dimension else 0.0,
        dimension=dimension,
        bytes=max(size, 0),
        encode_seconds=encode,
        search_ms=1000 * search,
    )


def _time_encoding(candidates: Sequence[Candidate], subset: Subset) -> dict[str, float]:
    """Return the seconds that each model takes to encode an opened page, by the name of the model."""
    seconds: dict[str, float] = {}
    for one in candidates:
        if one.by == "words" or one.name in seconds:
            continue
        model = one.library.models.model
        pages = _open_sample(model, subset)
        model.embed_pages(pages[:1])  # warm up
        start = time.perf_counter()
        model.embed_pages(pages)
        seconds[one.name] = (time.perf_counter() - start) / len(pages)
    return seconds


def _open_sample(model: PageReader, subset: Subset, size: int = 8) -> list[Any]:
    """Open pages from all over a set, as a model reads them."""
    found: list[Any] = []
    num = len(subset.pages.ids)
    for i in range(0, num, max(num // (4 * size), 1)):
        page = subset.pages.open(i)
        try:
            found.append(read_page_text(page) if model.reads == "text" else open_page(page, model.page_pixels))
        except NoTextError:
            continue
        if len(found) == size:
            break
    return found


def _time_searches(candidates: Sequence[Candidate], queries: Sequence[str]) -> dict[str, float]:
    """Return the median seconds of a search over about 15 queries, each asked of all searches in turn."""
    seconds: dict[str, list[float]] = {one.label: [] for one in candidates}
    for query in queries[:: max(len(queries) // 15, 1)]:
        for one in candidates:
            start = time.perf_counter()
            one.library.search(query, by=one.by)
            seconds[one.label].append(time.perf_counter() - start)
    return {name: median(values[1:] or values) for name, values in seconds.items()}  # the first warms up


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


def find_frontier(compared: Sequence[ComparedSearch]) -> list[ComparedSearch]:
    """Return the searches that no other beats at the same bytes or fewer, smallest first."""
    best: list[ComparedSearch] = []
    for one in sorted(compared, key=lambda one: (one.bytes, -one.ndcg)):
        if not best or one.ndcg > best[-1].ndcg:
            best.append(one)
    return best
