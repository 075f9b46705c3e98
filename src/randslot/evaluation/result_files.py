"""Files with the scores of one model on one task. Imports nothing heavy."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from .. import __version__
from ..errors import UsageError, in_one_line
from ..files import write_json
from ..model.reader import Side

CUTS = (5, 10)  # nDCG@5 and nDCG@10
LIBRARIES = "libraries"  # the folder, beside the results, of libraries for evaluating searches


class RunKey(NamedTuple):
    """The key that identifies a run."""

    model: str
    how: str
    seed: int
    weights: str


@dataclass(frozen=True)
class SubsetResult:
    """Scores of one subset of a task.

    ndcg: the mean over queries, by cutoff. judged: the name of the cached `Judged`, empty for a search. each: nDCG@5
    per query. asked: a hash of the queries, pages and grades.
    """

    ndcg: dict[int, float]
    queries: int
    pages: int
    judged: str
    each: list[float]
    asked: str


def average_queries(each: Mapping[int, list[float]], num_pages: int, judged: str, asked: str) -> SubsetResult:
    """Average per-query nDCG, by cutoff, into the scores of a subset."""
    ndcg = {cut: mean(values) for cut, values in each.items()}
    return SubsetResult(ndcg, len(each[5]), num_pages, judged, [round(value, 6) for value in each[5]], asked)


def average_subsets(subsets: Mapping[str, SubsetResult]) -> dict[int, float]:
    """Return nDCG of a task by cutoff: the mean over its subsets."""
    return {cut: mean(subset.ndcg[cut] for subset in subsets.values()) for cut in CUTS}


@dataclass(frozen=True)
class Result:
    """Scores of one model, under its settings, on one task. The JSON file has its fields, with "ndcg@5" and "ndcg@10".

    how: the label of the settings in tables, such as "random" or "tokens by kmeans". counts: vectors by side, None for
    one per token. ndcg: the mean over subsets, by cutoff. vectors: the folder of each side in the cache, none for a
    search. cache: the path of the cache relative to the result, so that both can move together. is_drawn: whether
    vectors depend on the seed. has_prefixes: whether the first vectors are those of a smaller budget. randslot: the
    version.
    """

    file: Path
    model: str
    weights: str
    settings: dict[str, Any]
    how: str
    counts: dict[Side, int | None]
    benchmark: str
    task: str
    is_drawn: bool
    has_prefixes: bool
    ndcg: dict[int, float]
    subsets: dict[str, SubsetResult]
    dataset: str = ""
    revision: str | None = None
    vectors: dict[Side, str] = field(default_factory=dict)
    cache: str = ""
    randslot: str = __version__
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def counts_text(self) -> str:
        """The vectors of both sides, as in "4/4" or "all/4"."""
        return "/".join("all" if num is None else str(num) for num in self.counts.values())

    @property
    def run_key(self) -> RunKey:
        return RunKey(self.model, self.how, self.seed, self.weights)

    @property
    def cache_folder(self) -> Path:
        return Path(os.path.normpath(self.file.parent / self.cache))

    def write(self) -> None:
        """Write its file."""
        values = _name_cuts(self)
        del values["file"]
        values["subsets"] = {name: _name_cuts(subset) for name, subset in self.subsets.items()}
        write_json(self.file, values)


def _name_cuts(item: Result | SubsetResult) -> dict[str, Any]:
    """Return the fields, with nDCG by name as in "ndcg@5"."""
    values = dict(vars(item))
    for cut, value in values.pop("ndcg").items():
        values[f"ndcg@{cut}"] = value
    return values


def _read_cuts(values: dict[str, Any]) -> dict[int, float]:
    return {cut: float(values.pop(f"ndcg@{cut}")) for cut in CUTS}


def result_path(output: Path, model: str, setting: str, task: str) -> Path:
    """Return the file of a result: MODEL/SETTING/TASK in the output folder."""
    file = output
    for name in (model, setting, f"{task}.json"):
        safe = "".join(letter if letter.isalnum() or letter in "._-()" else "-" for letter in name)
        file /= safe.strip(".") or "model"
    return file


def read_results(*folders: Path) -> list[Result]:
    """Read all results in folders; skip other files.

    If vectors do not depend on the seed, results with different seeds count as one run, under the first seed found.
    """
    results: list[Result] = []
    first: dict[tuple[str, str, str], int] = {}
    for folder in folders:
        num_before = len(results)
        for file in sorted(folder.rglob("*.json")):
            if LIBRARIES in file.relative_to(folder).parts:
                continue
            with in_one_line(f"read {file} as a result of this version", hint=". Evaluate again."):
                values = json.loads(file.read_text(encoding="utf-8"))
                if not isinstance(values, dict) or not values.keys() >= {"model", "task", "benchmark"}:
                    continue
                subsets = {}
                for name, row in values.pop("subsets").items():
                    subsets[name] = SubsetResult(ndcg=_read_cuts(row), **row)
                result = Result(file=file, ndcg=_read_cuts(values), subsets=subsets, **values)
                seed = first.setdefault((result.model, result.how, result.weights), result.seed)
            if not result.is_drawn:
                result = replace(result, settings=result.settings | {"seed": seed})
            results.append(result)
        if len(results) == num_before:
            raise UsageError(f"no results in {folder}. Make some: randslot evaluate ... -o {folder}")
    return results


def name_runs(keys: Sequence[RunKey]) -> dict[RunKey, str]:
    """Return a short unique name for each run."""
    runs = Counter((key.model, key.how) for key in keys)
    seeds = Counter((key.model, key.how, key.seed) for key in keys)
    names = {}
    for key in keys:
        name = f"{key.model}, {key.how}"
        if runs[key.model, key.how] > 1:
            name += f", seed {key.seed}"
        if seeds[key.model, key.how, key.seed] > 1:
            name += f", {key.weights[:8]}"
        names[key] = name
    return names


def choose_base(base: str | None, names: Sequence[str]) -> str:
    """Return the baseline run, by its name or a unique part of it; by default the first."""
    if base is None or base in names:
        return base or names[0]
    found = [name for name in names if base in name]
    if len(found) != 1:
        what = "several runs" if found else "no run"
        raise UsageError(f"--base {base!r} names {what}. The runs: {'; '.join(names)}")
    return found[0]
