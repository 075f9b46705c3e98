"""What a study is: a TOML file that names a recipe, seeds, page layouts that act as tasks, and how long to train.

Every run differs from the recipe in its strategy, its seed and its length only, and the length is the same for all.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...errors import RandSlotError, UsageError
from ...model import slots
from ...samples.sets import write_set
from ...training.recipe import FREE, Recipe, check_keys, list_values, make_recipe, read_recipe
from ..evaluation.published import published_tables
from ..evaluation.tasks import Task, own_task

BASE, METHOD = "zero", "random"
PAPER_METHODS = {row.method for row in published_tables()["table3"].rows}
# Those that the paper compares, under its names.
STRATEGIES = {name: strategy.title for name, strategy in slots.STRATEGIES.items() if strategy.title in PAPER_METHODS}
BUDGET, MOST = 4, 8  # vectors a side: trained and judged with, and swept up to
CHOICE = "choice.json"
CONTENTS = ("backbone", "data")  # settings that are kept by their content if they are local, wherever they are
MADE = "made.json"  # in a set of pages: what it was made with
STRICT = {"extra": "forbid", "strict": True}  # for pydantic: no other keys, and no text for a number


@dataclass(frozen=True)
class Extra:
    """One more arm beside the five, with its hypothesis: at which budgets it is better than an arm, and no worse."""

    __pydantic_config__ = STRICT

    name: str
    title: str
    hypothesis: str
    against: str
    better: list[int]
    no_worse: list[int]
    set: dict[str, Any]

    def __post_init__(self) -> None:
        if self.name in STRATEGIES or not re.fullmatch(r"\w+", self.name, re.ASCII):
            raise UsageError(
                f"extra {self.name!r} needs a name of its own, of letters, digits and _: files are called by it"
            )
        if self.against not in STRATEGIES:
            raise UsageError(f"extra {self.name!r}: against is one of {', '.join(STRATEGIES)}, not {self.against!r}")
        if not (self.better or self.no_worse):
            raise UsageError(f"extra {self.name!r} says nothing to judge: name budgets in better or no_worse")
        if not all(1 <= num <= MOST for num in (*self.better, *self.no_worse)):
            raise UsageError(f"extra {self.name!r}: budgets go from 1 to {MOST}")

    def promise(self) -> dict[str, Any]:
        """Return what must be written down before its runs."""
        return {key: getattr(self, key) for key in ("hypothesis", "against", "better", "no_worse")}


@dataclass(frozen=True)
class Job:
    """One model to train and look at: on the test pages, or only its score on the validation pages."""

    arm: str
    seed: int
    steps: int
    reports: int = 0  # 0: on the validation pages, for every candidate

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"


@dataclass(frozen=True)
class Study:
    """A study as its file says; all paths count from where the command is run."""

    __pydantic_config__ = STRICT

    title: str
    recipe: str  # a file, or the name of one that ships with the package
    folder: str  # for models, pages and vectors
    results: str  # for rows
    report: str  # the file; its figures go into images/ beside it
    seeds: list[int]
    layouts: list[str]  # of pages, as in "table-chart-text": each is a task
    lengths: list[int]  # steps: candidates, shortest first
    reports: list[int]  # of each layout: candidates, best liked first; more of them are harder
    range: list[int]  # where Zero-Feedback shall be on validation pages, nDCG@5 in percent
    side_by_side: int = 2
    train_reports: int = 0  # how many reports training pages are made from; 0: the recipe's data
    set: dict[str, Any] = field(default_factory=dict)  # other values for the recipe, the same for all runs
    extra: list[Extra] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("seeds", "layouts", "lengths", "reports"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise UsageError(f"{name} must be a list of different values, not {values}")
        if len(self.seeds) < 2 or len(self.layouts) < 2:
            raise UsageError("a study needs two seeds and two layouts or more: there is no deviation of one")
        if self.lengths != sorted(self.lengths) or min(*self.lengths, *self.reports) < 1:
            raise UsageError("lengths go from the shortest to the longest, and no length or number of reports is 0")
        if len(self.range) != 2 or not 0 <= self.range[0] < self.range[1] <= 100:
            raise UsageError(f"range is two scores in percent, as in [50, 80], not {self.range}")
        if self.side_by_side < 1:
            raise UsageError(f"side_by_side must be 1 or more, not {self.side_by_side}")
        if len(self.arms) < len(STRATEGIES) + len(self.extra):
            raise UsageError("two extras have one name")

    @property
    def arms(self) -> dict[str, str]:
        """The title of every arm by its name: the five strategies, then extras."""
        return STRATEGIES | {extra.name: extra.title for extra in self.extra}

    def path(self, *parts: str) -> Path:
        return Path(self.folder, *parts)

    def inferences(self, arm: str) -> list[str]:
        """Return what is appended at inference: random slots may be replaced by zeros."""
        slots = str(self._changes(arm)["slots"])
        return [METHOD, BASE] if slots == METHOD else [slots]

    def jobs(self, steps: int, reports: int) -> list[Job]:
        """Return all runs, seed by seed: those of the strategies, then those of extras."""
        jobs = []
        for arms in ([*STRATEGIES], [extra.name for extra in self.extra]):
            for seed in self.seeds:
                jobs += [Job(arm, seed, steps, reports) for arm in arms]
        return jobs

    def make_recipe(self, job: Job) -> Recipe:
        """Return the recipe of a run.

        Errors: UsageError for one under which seeds would not differ, or that trains another budget.
        """
        # Its own validation would cost time, and looking at it is not part of a study.
        fixed = {"seed": job.seed, "steps": job.steps, "validation": "", "validate_every": 0}
        if self.train_reports:
            fixed["data"] = str(self.path("pages", "train", "lessons.jsonl"))
        fixed["output"] = str(self.path("runs", f"{job.name}-{job.steps}"))
        recipe = make_recipe(list_values(read_recipe(self.recipe)) | self._changes(job.arm) | fixed)
        if not recipe.shuffle:
            raise UsageError(
                f"recipe {self.recipe} keeps the order of its data, so that seeds would hardly differ: "
                "set shuffle = true, and window for a curriculum"
            )
        if (recipe.query_vectors, recipe.page_vectors) != (BUDGET, BUDGET):
            raise UsageError(f"a study is about {BUDGET} vectors a side: leave query_vectors and page_vectors alone")
        return recipe

    def _changes(self, arm: str) -> dict[str, Any]:
        own = {extra.name: extra.set for extra in self.extra}
        return self.set | own.get(arm, {"slots": arm})

    def settings(self, job: Job) -> dict[str, Any]:
        """Return everything that decides the rows of a run: it is done when there are rows with the same."""
        values = self.values(job)
        for name in CONTENTS:
            if values[name] and Path(values[name]).exists():
                values[name] = hash_files(Path(values[name]))
        return values

    def values(self, job: Job) -> dict[str, Any]:
        """Return the settings of a run as far as the study's file says them."""
        recipe = self.make_recipe(job)
        values = {name: value for name, value in list_values(recipe).items() if name not in FREE}
        return values | {"prefixes": list(recipe.prefixes), "layouts": self.layouts, "reports": job.reports}

    def tasks(self, split: str, reports: int) -> list[Task]:
        """Return the tasks of one split, made before."""
        return [own_task(self.path("pages", f"{split}-{reports}", layout)) for layout in self.layouts]

    def make_pages(self, split: str, reports: int) -> None:
        """Make the pages of every task of one split; no two tasks have the same reports."""
        for seed, layout in enumerate(self.layouts):
            folder = self.path("pages", f"{split}-{reports}", layout)
            make_set(folder, "order of layouts", num_reports=reports, split=split, seed=seed, layout=layout)

    def make_training_pages(self) -> None:
        if self.train_reports:
            folder, reports = self.path("pages", "train"), self.train_reports
            make_set(folder, "train_reports", num_reports=reports, split="train", seed=0, curriculum=True)


def make_set(folder: Path, setting: str, **options: Any) -> None:
    """Write a set of pages, all of it or nothing, if it is not there yet.

    Errors: UsageError if it was made with other options, naming the study's setting that decides them.
    """
    made, content = folder / MADE, json.dumps(options) + "\n"
    if folder.is_dir():
        if not made.is_file() or made.read_text(encoding="utf-8") != content:
            raise UsageError(
                f"{folder} was made with another {setting}: put that back in the study's file, or remove {folder}"
            )
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    write_set(part, **options)
    (part / MADE).write_text(content, encoding="utf-8")
    part.rename(folder)


def hash_files(place: Path) -> str:
    """Return a hash of a file, or of the weights and other files of a model's folder but not of its checkpoints."""
    files = [place] if place.is_file() else sorted(file for file in place.iterdir() if _is_of_model(file))
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(hashlib.blake2b(file.read_bytes(), digest_size=16).digest())
    return digest.hexdigest()


def _is_of_model(file: Path) -> bool:
    return file.suffix == ".safetensors" or file.name in ("config.json", "tokenizer.json", "preprocessor_config.json")


def read_study(file: Path) -> Study:
    """Read a study.

    Errors: UsageError in one line for a missing file, broken TOML, an unknown key or a wrong value.
    """
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no study {file}: name a TOML file such as studies/small.toml") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}; name a TOML file such as studies/small.toml"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    try:
        study = make_study(values)
        for arm in study.arms:
            study.make_recipe(Job(arm, study.seeds[0], study.lengths[0]))
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return study


def make_study(values: dict[str, Any]) -> Study:
    """Make a study from the values of its file.

    Errors: UsageError in one line for an unknown key, a missing one, or a wrong value.
    """
    try:
        # As JSON, since in Python pydantic's strict mode takes no table for a dataclass.
        return TypeAdapter(Study).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        for problem in error.errors():
            if problem["type"] == "unexpected_keyword_argument":
                *place, key = problem["loc"]
                check_keys([str(key)], [part.name for part in fields(Extra if place else Study)])
        raise UsageError(explain(error)) from error


def explain(error: ValidationError) -> str:
    """Return in one line what is wrong in a file, and where: seeds[0]: input should be a valid integer."""
    lines = []
    for problem in error.errors():
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{place.lstrip('.')}: {message[0].lower()}{message[1:]}" if place else message)
    return "; ".join(lines)


def read_choice(study: Study) -> dict[str, Any]:
    """Return what was chosen, with "steps" and "reports"; without them if nothing was in range, empty if none is there.

    Errors: UsageError if it was chosen by another rule, or if a hypothesis was another then.
    """
    file = Path(study.results, CHOICE)
    try:
        choice: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RandSlotError(f"{file} is broken ({error}): remove it, and choose again") from error
    if "steps" in choice and choice["rule"] != make_rule(study):
        raise UsageError(f"{file} was chosen by another rule than the study's: remove it and choose again")
    for extra in study.extra:
        before = choice.get("hypotheses", {}).get(extra.name, {})
        for key, value in extra.promise().items():
            if before and before[key] != value:
                raise UsageError(
                    f"{file} has another {key} of extra {extra.name!r} ({before[key]!r}, not {value!r}), written down "
                    "before its runs: put it back, or make another extra of it"
                )
    return choice


def make_rule(study: Study) -> dict[str, Any]:
    """Return what the length and the number of pages are chosen by."""
    return {
        "strategy": BASE,
        "seed": study.seeds[0],
        "lengths": study.lengths,
        "reports": study.reports,
        "range": study.range,
        "layouts": study.layouts,
    }
