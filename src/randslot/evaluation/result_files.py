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
from ..errors import RandSlotError, UsageError
from ..files import write_json
from ..model.reader import Side

CUTS = (5, 10)  # nDCG@5 and nDCG@10
LIBRARIES = "libraries"  # the folder, beside the results, of libraries that searches were evaluated on
JSON_NAMES = {"label": "how", "version": "randslot"}  # where a field has another name in the file


class RunKey(NamedTuple):
    """What tells runs apart."""

    model: str
    label: str
    seed: int
    weights: str


@dataclass(frozen=True)
class SubsetResult:
    """Scores of one subset of a task.

    ndcg: the mean over queries, by cut. judged: the name of the cached `Judged`, empty for a search. each: nDCG@5 of
    each query. asked: a hash of the queries, pages and grades.
    """

    ndcg: dict[int, float]
    queries: int
    pages: int
    judged: str
    each: list[float]
    asked: str


def average_queries(each: Mapping[int, list[float]], num_pages: int, judged: str, asked: str) -> SubsetResult:
    """Average nDCG of each query, by cut, to the scores of a subset."""
    ndcg = {cut: mean(values) for cut, values in each.items()}
    return SubsetResult(ndcg, len(each[5]), num_pages, judged, [round(value, 6) for value in each[5]], asked)


def average_subsets(subsets: Mapping[str, SubsetResult]) -> dict[int, float]:
    """Return nDCG of a task by cut: the mean over its subsets."""
    return {cut: mean(subset.ndcg[cut] for subset in subsets.values()) for cut in CUTS}


@dataclass(frozen=True)
class Result:
    """Scores of one model, under its settings, on one task.

    label: the settings as tables name them, such as "random" or "tokens by kmeans". counts: vectors by side, None for
    one per token. ndcg: the mean over subsets, by cut. vectors: the folder of each side in the cache, none for a
    search. cache: the path of the cache from the folder of the result, so that both can move together.
    """

    file: Path
    model: str
    weights: str
    settings: dict[str, Any]
    label: str
    counts: dict[Side, int | None]
    benchmark: str
    task: str
    dataset: str
    revision: str | None
    ndcg: dict[int, float]
    subsets: dict[str, SubsetResult]
    vectors: dict[Side, str] = field(default_factory=dict)
    version: str = __version__
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    cache: str = ""

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def counts_text(self) -> str:
        """The vectors of both sides, as in "4/4" or "all/4"."""
        return "/".join("all" if num is None else str(num) for num in self.counts.values())

    @property
    def run_key(self) -> RunKey:
        return RunKey(self.model, self.label, self.seed, self.weights)

    @property
    def cache_folder(self) -> Path:
        return Path(os.path.normpath(self.file.parent / self.cache))

    def write(self) -> None:
        """Write its file."""
        write_json(self.file, _as_json(self))


def _as_json(item: Result | SubsetResult) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in vars(item).items():
        if name == "ndcg":
            values |= {f"ndcg@{cut}": score for cut, score in value.items()}
        elif name == "subsets":
            values[name] = {subset: _as_json(scores) for subset, scores in value.items()}
        elif name != "file":
            values[JSON_NAMES.get(name, name)] = value
    return values


def name_file(output: Path, model: str, setting: str, task: str) -> Path:
    """Return the file of a result: in a folder of the model, in one of the setting."""
    parts = []
    for name in (model, setting, f"{task}.json"):
        safe = "".join(letter if letter.isalnum() or letter in "._-()" else "-" for letter in name)
        parts.append(safe.strip(".") or "model")
    return output.joinpath(*parts)


def read_results(*folders: Path) -> list[Result]:
    """Read all results below some folders; skip other files.

    Where encoding does not draw from the seed, results with another seed belong to one run, under the first seed found.
    """
    results = []
    first: dict[tuple[str, str, str], int] = {}
    for folder in folders:
        for result in _read_folder(folder):
            seed = first.setdefault((result.model, result.label, result.weights), result.seed)
            if seed != result.seed and not _draws_from_seed(result):
                result = replace(result, settings=result.settings | {"seed": seed})
            results.append(result)
    return results


def _draws_from_seed(result: Result) -> bool:
    from ..model.settings import draws_from_seed

    try:
        return draws_from_seed(result.settings)
    except (TypeError, UsageError) as error:
        raise RandSlotError(f"{result.file} has unknown settings ({error}). Evaluate again.") from error


def _read_folder(folder: Path) -> list[Result]:
    found = []
    for file in sorted(folder.rglob("*.json")):
        if LIBRARIES in file.relative_to(folder).parts:
            continue
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RandSlotError(f"{file} is not valid JSON: {error}") from error
        if isinstance(values, dict) and values.keys() >= {"model", "task", "benchmark"}:
            found.append(_read_result(file, values))
    if not found:
        raise UsageError(f"no results in {folder}. Make some: randslot evaluate ... -o {folder}")
    return found


def _read_result(file: Path, values: dict[str, Any]) -> Result:
    texts = ("model", "weights", "benchmark", "task", "cache")
    tables = ("settings", "counts", "vectors")
    _check(file, values, dict.fromkeys((*texts, "how"), str) | dict.fromkeys((*tables, "subsets"), dict))
    _check(file, values["settings"], {"seed": int})
    kinds = {"queries": int, "pages": int, "judged": str, "each": list, "asked": str}
    subsets = {}
    for name, subset in values["subsets"].items():
        _check(file, subset, kinds)
        subsets[name] = SubsetResult(ndcg=_read_ndcg(file, subset), **{key: subset[key] for key in kinds})
    return Result(
        file=file,
        label=values["how"],
        dataset=values.get("dataset", ""),
        revision=values.get("revision"),
        ndcg=_read_ndcg(file, values),
        subsets=subsets,
        version=values.get("randslot", ""),
        date=values.get("date", ""),
        **{key: values[key] for key in (*texts, *tables)},
    )


def _read_ndcg(file: Path, values: dict[str, Any]) -> dict[int, float]:
    _check(file, values, {f"ndcg@{cut}": (int, float) for cut in CUTS})
    return {cut: values[f"ndcg@{cut}"] for cut in CUTS}


def _check(file: Path, values: Any, kinds: Mapping[str, Any]) -> None:
    for key, kind in kinds.items():
        if not isinstance(values, dict) or not isinstance(values.get(key), kind):
            raise RandSlotError(f"{file}: {key!r} is missing or has a wrong value. Evaluate again.")


def name_runs(keys: Sequence[RunKey]) -> dict[RunKey, str]:
    """Return a short name for each run, such that no two are the same."""
    runs = Counter((key.model, key.label) for key in keys)
    seeds = Counter((key.model, key.label, key.seed) for key in keys)
    names = {}
    for key in keys:
        name = f"{key.model}, {key.label}"
        if runs[key.model, key.label] > 1:
            name += f", seed {key.seed}"
        if seeds[key.model, key.label, key.seed] > 1:
            name += f", {key.weights[:8]}"
        names[key] = name
    return names


def choose_base(base: str | None, names: Sequence[str]) -> str:
    """Return the run that others are compared with, by its name or a unique part of it; by default the first."""
    if base is None or base in names:
        return base or names[0]
    found = [name for name in names if base in name]
    if len(found) != 1:
        what = "several runs" if found else "no run"
        raise UsageError(f"--base {base!r} names {what}. The runs: {'; '.join(names)}")
    return found[0]
