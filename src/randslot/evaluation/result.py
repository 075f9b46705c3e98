"""The result of a model on one task, and the file that keeps it. Imports nothing heavy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from ..errors import RandSlotError, UsageError
from ..files import write_json
from ..model.reader import Side

CUTS = (5, 10)  # nDCG@5 and nDCG@10
LIBRARIES = "libraries"  # the folder of libraries that searches were evaluated on, beside the results
NUMBER = (int, float)
WORDS: dict[Any, str] = {str: "text", int: "a whole number", NUMBER: "a number", dict: "a table", list: "a list"}
# What marks a file as a result, and what it must have then; the rest is for people.
MARKS = ("model", "task", "benchmark")
KINDS: dict[str, Any] = {
    "model": str,
    "weights": str,
    "settings": dict,
    "how": str,
    "counts": dict,
    "benchmark": str,
    "task": str,
    **{f"ndcg@{cut}": NUMBER for cut in CUTS},
    "subsets": dict,
    "vectors": dict,
    "cache": str,
}
SUBSET_KINDS: dict[str, Any] = {
    **{f"ndcg@{cut}": NUMBER for cut in CUTS},
    "queries": int,
    "pages": int,
    "judged": str,
    "each": list,
}


class RunKey(NamedTuple):
    """What tells runs apart."""

    model: str
    label: str
    seed: int
    weights: str


@dataclass(frozen=True)
class SubsetResult:
    """The scores of one subset of a task.

    ndcg: the mean over queries, by cut. judged: the name of what was judged. each: nDCG@5 of each query. asked: a hash
    of the queries, pages and grades of the subset, also of pages that a model could not read.
    """

    ndcg: dict[int, float]
    queries: int
    pages: int
    judged: str
    each: list[float]
    asked: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as the file of a result has it."""
        own = {"queries": self.queries, "pages": self.pages, "judged": self.judged, "each": self.each}
        return _ndcg_keys(self.ndcg) | own | ({"asked": self.asked} if self.asked else {})


def average_queries(each: Mapping[int, list[float]], num_pages: int, judged: str = "", asked: str = "") -> SubsetResult:
    """Return the scores of a subset from nDCG of each query, by cut."""
    ndcg = {cut: mean(values) for cut, values in each.items()}
    return SubsetResult(ndcg, len(each[5]), num_pages, judged, [round(value, 6) for value in each[5]], asked)


@dataclass(frozen=True)
class Result:
    """The scores of one model, under its settings, on one task.

    label: what tells settings apart in tables, as in "random" or "tokens by kmeans". counts: vectors by side, None
    where every token has its own. ndcg: the mean over subsets, by cut. vectors: the folder of each side in the cache,
    and nothing if a search was evaluated. cache: where that is, seen from the folder of the result, since both may move
    together.
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
    vectors: dict[Side, str]
    version: str
    date: str
    cache: str

    @property
    def seed(self) -> int:
        seed: int = self.settings["seed"]
        return seed

    @property
    def counts_text(self) -> str:
        """The vectors of both sides, as in "4/4" or "all/4"."""
        return "/".join("all" if num is None else str(num) for num in self.counts.values())

    @property
    def run_key(self) -> RunKey:
        return RunKey(self.model, self.label, self.seed, self.weights)

    @property
    def cache_folder(self) -> Path:
        """Where its vectors are."""
        return Path(os.path.normpath(self.file.parent / self.cache))

    def as_dict(self) -> dict[str, Any]:
        """Return it as its file has it."""
        return {
            "model": self.model,
            "weights": self.weights,
            "settings": self.settings,
            "how": self.label,
            "counts": self.counts,
            "benchmark": self.benchmark,
            "task": self.task,
            "dataset": self.dataset,
            "revision": self.revision,
            **_ndcg_keys(self.ndcg),
            "subsets": {name: subset.as_dict() for name, subset in self.subsets.items()},
            "vectors": self.vectors,
            "randslot": self.version,
            "date": self.date,
            "cache": self.cache,
        }

    def write(self) -> None:
        """Write its file.

        Errors: UsageError if it cannot be written.
        """
        try:
            write_json(self.file, self.as_dict())
        except OSError as error:
            raise UsageError(f"cannot write {self.file}: {error.strerror or error}") from error


def name_file(output: Path, model: str, setting: str, task: str) -> Path:
    """Return the file of a result: in a folder of the model, in one of the setting."""
    return output.joinpath(_safe(model), _safe(setting), _safe(f"{task}.json"))


def _safe(name: str) -> str:
    """Return a name that can be part of a path."""
    kept = "".join(letter if letter.isalnum() or letter in "._-()" else "-" for letter in name)
    return kept.strip(".") or "model"


# -- reading


def read_results(*folders: Path) -> list[Result]:
    """Read every result below some folders; other files are passed over.

    Where encoding does not draw from the seed, another seed gives the same vectors: that is one run, under the first
    seed found.

    Errors: UsageError if there is none below one of them, RandSlotError for a broken one.
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
        raise RandSlotError(f"{result.file} has settings that are not known here ({error}): evaluate again") from error


def _read_folder(folder: Path) -> list[Result]:
    found = []
    for file in sorted(folder.rglob("*.json")):
        if LIBRARIES in file.relative_to(folder).parts:
            continue
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RandSlotError(f"{file} is not valid JSON: {error}") from error
        if isinstance(values, dict) and all(mark in values for mark in MARKS):
            found.append(read_result(file, values))
    if not found:
        raise UsageError(f"no results in {folder}: make some by randslot evaluate ... -o {folder}")
    return found


def read_result(file: Path, values: dict[str, Any]) -> Result:
    """Make a result from what its file has.

    Errors: RandSlotError in one line that names what is missing or of a wrong kind.
    """
    _check(str(file), values, KINDS)
    _check(f"{file}, settings", values["settings"], {"seed": int})
    subsets = {}
    for name, subset in values["subsets"].items():
        _check(f"{file}, subset {name}", subset, SUBSET_KINDS)
        ndcg = _read_ndcg(subset)
        subsets[name] = SubsetResult(
            ndcg, subset["queries"], subset["pages"], subset["judged"], subset["each"], str(subset.get("asked", ""))
        )
    return Result(
        file=file,
        model=values["model"],
        weights=values["weights"],
        settings=values["settings"],
        label=values["how"],
        counts=values["counts"],
        benchmark=values["benchmark"],
        task=values["task"],
        dataset=values.get("dataset", ""),
        revision=values.get("revision"),
        ndcg=_read_ndcg(values),
        subsets=subsets,
        vectors=values["vectors"],
        version=values.get("randslot", ""),
        date=values.get("date", ""),
        cache=values["cache"],
    )


def _check(place: str, values: Any, kinds: Mapping[str, Any]) -> None:
    if not isinstance(values, dict):
        raise RandSlotError(f"{place} is not a table: evaluate again")
    if missing := sorted(kinds.keys() - values.keys()):
        raise RandSlotError(f"{place} lacks {', '.join(missing)}: evaluate again")
    for key, kind in kinds.items():
        if not isinstance(values[key], kind):
            raise RandSlotError(f"{place}: {key} must be {WORDS[kind]}, not {values[key]!r}: evaluate again")


def _read_ndcg(values: Mapping[str, Any]) -> dict[int, float]:
    return {cut: values[f"ndcg@{cut}"] for cut in CUTS}


def _ndcg_keys(ndcg: Mapping[int, float]) -> dict[str, Any]:
    return {f"ndcg@{cut}": value for cut, value in ndcg.items()}
