"""What a study is: a TOML file that names a recipe, seeds, tasks, and how long to train.

Tasks are page layouts of the sample reports, or sets of one's own.

Every run differs from the recipe in its strategy, its seed and its length only, and the length is the same for all.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.published import published_tables
from randslot.evaluation.tasks import Task, own_task
from randslot.model import slots
from randslot.training.recipe import RUNTIME_KEYS, Recipe, check_keys, list_values, make_recipe, read_recipe
from research.samples.sets import write_set

BASE, METHOD = "zero", "random"
PAPER_METHODS = {row.method for row in published_tables()["table3"].rows}
# Those that the paper compares, under its names.
STRATEGIES = {name: strategy.title for name, strategy in slots.STRATEGIES.items() if strategy.title in PAPER_METHODS}
BUDGET, MOST = 4, 8  # vectors a side: trained and judged with, and swept up to
CHOICE = "choice.json"
CONTENTS = ("backbone", "data", "sets")  # settings that are kept by their content if they are local, wherever they are
MADE = "made.json"  # in a set of pages: what it was made with
STRICT = {"extra": "forbid", "strict": True}  # for pydantic: no other keys, and no text for a number


@dataclass(frozen=True)
class Extra:
    """One more arm beside the five, with its hypothesis: at which budgets it is better than an arm, and no worse.

    against: that arm, a strategy or an extra that is named before. below: at which budgets it is behind the arm with
    all its vectors. budget: of each side, which it is trained with.
    """

    __pydantic_config__ = STRICT

    name: str
    title: str
    hypothesis: str
    against: str
    set: dict[str, Any]
    better: list[int] = field(default_factory=list)
    no_worse: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    budget: int = BUDGET

    def __post_init__(self) -> None:
        if self.name in STRATEGIES or not re.fullmatch(r"\w+", self.name, re.ASCII):
            raise UsageError(
                f"extra {self.name!r} needs a name of its own, of letters, digits and _: files are called by it"
            )
        if not (self.better or self.no_worse or self.below):
            raise UsageError(f"extra {self.name!r} says nothing to judge: name budgets in better, no_worse or below")
        if not all(1 <= num <= MOST for num in (*self.better, *self.no_worse, *self.below, self.budget)):
            raise UsageError(f"extra {self.name!r}: budgets go from 1 to {MOST}")

    def promise(self) -> dict[str, Any]:
        """Return what must be written down before its runs."""
        promise = {key: getattr(self, key) for key in ("hypothesis", "against", "better", "no_worse")}
        return promise | ({"below": self.below} if self.below else {})


@dataclass(frozen=True)
class Candidate:
    """Values for the recipe that the choice may take, the same for all runs then."""

    __pydantic_config__ = STRICT

    name: str
    set: dict[str, Any]


@dataclass(frozen=True)
class Beside:
    """Another study, whose figures stand in the report too: its file, and what tables call it."""

    __pydantic_config__ = STRICT

    study: str
    name: str


@dataclass(frozen=True)
class Job:
    """One model to train and look at: on the test pages, or only its score on the validation pages.

    reports: how many of each layout; 0 for validation, which takes all numbers that may be chosen, and for sets of
    one's own. candidate: the name of the one it is trained with, if there are any.
    """

    arm: str
    seed: int
    steps: int
    reports: int = 0
    candidate: str = ""
    split: Literal["validation", "test"] = "validation"

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"

    @property
    def folder(self) -> str:
        """A name for its files that no other job of the study has."""
        return "-".join([self.name, *([self.candidate] if self.candidate else []), str(self.steps)])


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
    lengths: list[int]  # steps: candidates, shortest first
    range: list[int]  # where Zero-Feedback shall be on validation pages, nDCG@5 in percent
    layouts: list[str] = field(default_factory=list)  # of sample pages, as in "table-chart-text": each is a task
    reports: list[int] = field(default_factory=list)  # of each layout: candidates, best liked first; more are harder
    sets: str = ""  # instead of layouts: a folder with validation/ and test/, and in each a set for every task
    candidates: list[Candidate] = field(default_factory=list)  # best liked first
    most_rise: float = 0.0  # points above the length before, which the chosen one must exceed too; 0: not looked at
    side_by_side: int = 2
    train_reports: int = 0  # how many reports training pages are made from; 0: the recipe's data
    set: dict[str, Any] = field(default_factory=dict)  # other values for the recipe, the same for all runs
    extra: list[Extra] = field(default_factory=list)
    beside: Beside | None = None  # in the report
    note: str = ""  # in the report too: what else its readers should know

    def __post_init__(self) -> None:
        if bool(self.sets) == bool(self.layouts):
            raise UsageError("a study needs either layouts of sample pages, or sets: a folder with validation and test")
        if self.sets and (self.reports or self.train_reports):
            raise UsageError("reports and train_reports go with layouts of sample pages, and this study has sets")
        for name in ("seeds", "lengths", *(() if self.sets else ("layouts", "reports"))):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise UsageError(f"{name} must be a list of different values, not {values}")
        if len(self.seeds) < 2 or (self.layouts and len(self.layouts) < 2):
            raise UsageError("a study needs two seeds and two layouts or more: there is no deviation of one")
        if self.lengths != sorted(self.lengths) or min([*self.lengths, *self.reports]) < 1:
            raise UsageError("lengths go from the shortest to the longest, and no length or number of reports is 0")
        if len(self.range) != 2 or not 0 <= self.range[0] < self.range[1] <= 100:
            raise UsageError(f"range is two scores in percent, as in [50, 80], not {self.range}")
        if self.side_by_side < 1:
            raise UsageError(f"side_by_side must be 1 or more, not {self.side_by_side}")
        if len(self.arms) < len(STRATEGIES) + len(self.extra):
            raise UsageError("two extras have one name")
        known = [*STRATEGIES]
        for extra in self.extra:
            if extra.against not in known:
                raise UsageError(f"extra {extra.name!r}: against is one of {', '.join(known)}, not {extra.against!r}")
            known.append(extra.name)
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) < len(names) or not all(re.fullmatch(r"[\w.]+", name, re.ASCII) for name in names):
            raise UsageError(f"candidates need names of their own, of letters, digits, _ and dots, not {names}")
        if self.most_rise and len(self.lengths) < 2:
            raise UsageError("most_rise compares a length with the one before it: name two lengths or more")

    @property
    def arms(self) -> dict[str, str]:
        """The title of every arm by its name: the five strategies, then extras."""
        return STRATEGIES | {extra.name: extra.title for extra in self.extra}

    @property
    def candidate_names(self) -> list[str]:
        """The names of the candidates, or an empty one if there are none."""
        return [candidate.name for candidate in self.candidates] or [""]

    def path(self, *parts: str) -> Path:
        return Path(self.folder, *parts)

    def inferences(self, arm: str) -> list[str]:
        """Return what is appended at inference: random slots may be replaced by zeros."""
        slots = str(self._changes(arm)["slots"])
        return [METHOD, BASE] if slots == METHOD else [slots]

    @property
    def sizes(self) -> list[int]:
        """The numbers of reports that may be chosen; sets of one's own are as they are."""
        return self.reports or [0]

    def jobs(self, steps: int, reports: int, candidate: str = "") -> list[Job]:
        """Return all runs, seed by seed: those of the strategies, then those of extras."""
        jobs = []
        for arms in ([*STRATEGIES], [extra.name for extra in self.extra]):
            for seed in self.seeds:
                jobs += [Job(arm, seed, steps, reports, candidate, "test") for arm in arms]
        return jobs

    def make_recipe(self, job: Job) -> Recipe:
        """Return the recipe of a run.

        Errors: UsageError for one under which seeds would not differ, or that trains another budget.
        """
        # Its own validation would cost time, and looking at it is not part of a study.
        fixed = {"seed": job.seed, "steps": job.steps, "validation": "", "validate_every": 0}
        if self.train_reports:
            fixed["data"] = str(self.path("pages", "train", "lessons.jsonl"))
        fixed["output"] = str(self.path("runs", job.folder))
        values = list_values(read_recipe(self.recipe)) | self._changes(job.arm, job.candidate)
        recipe = make_recipe(values | fixed)
        if not recipe.shuffle:
            raise UsageError(
                f"recipe {self.recipe} keeps the order of its data, so that seeds would hardly differ: "
                "set shuffle = true, and window for a curriculum"
            )
        if (recipe.query_vectors, recipe.page_vectors) != (BUDGET, BUDGET):
            raise UsageError(f"a study is about {BUDGET} vectors a side: leave query_vectors and page_vectors alone")
        budget = {extra.name: extra.budget for extra in self.extra}.get(job.arm, BUDGET)
        return replace(recipe, query_vectors=budget, page_vectors=budget)

    def _changes(self, arm: str, candidate: str = "") -> dict[str, Any]:
        own = {extra.name: extra.set for extra in self.extra}
        chosen = {one.name: one.set for one in self.candidates}
        return self.set | chosen.get(candidate, {}) | own.get(arm, {"slots": arm})

    def settings(self, job: Job) -> dict[str, Any]:
        """Return everything that decides the rows of a run: it is done when there are rows with the same."""
        values = self.values(job)
        for name in CONTENTS:
            if values.get(name) and Path(values[name]).exists():
                values[name] = hash_files(Path(values[name]))
        return values

    def values(self, job: Job) -> dict[str, Any]:
        """Return the settings of a run as far as the study's file says them."""
        recipe = self.make_recipe(job)
        values = {name: value for name, value in list_values(recipe).items() if name not in RUNTIME_KEYS}
        values |= {"prefixes": list(recipe.prefixes)}
        return values | ({"sets": self.sets} if self.sets else {"layouts": self.layouts, "reports": job.reports})

    def tasks(self, split: str, reports: int) -> list[Task]:
        """Return the tasks of one split: sets of one's own, or sample pages that were made before."""
        if self.sets:
            return [own_task(folder) for folder in list_sets(Path(self.sets, split))]
        return [own_task(self.path("pages", f"{split}-{reports}", layout)) for layout in self.layouts]

    def make_pages(self, split: str, reports: int) -> None:
        """Make the sample pages of every task of one split; no two tasks have the same reports."""
        for seed, layout in enumerate(self.layouts):
            folder = self.path("pages", f"{split}-{reports}", layout)
            make_set(folder, "order of layouts", num_reports=reports, split=split, seed=seed, layout=layout)

    def make_training_pages(self) -> None:
        if self.train_reports:
            folder, reports = self.path("pages", "train"), self.train_reports
            make_set(folder, "train_reports", num_reports=reports, split="train", seed=0, curriculum=True)


def list_sets(folder: Path) -> list[Path]:
    """Return the sets in a folder, by name.

    Errors: UsageError if there are fewer than two.
    """
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if len(found) < 2:
        raise UsageError(f"{folder} has {len(found)} sets, and a study needs two tasks or more: each is a folder there")
    return found


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
    """Return a hash of a file, of the sets in a folder, or of a model's folder without its checkpoints."""
    files = [place] if place.is_file() else sorted(file for file in place.iterdir() if _is_of_model(file))
    files = files or sorted(file for file in place.glob("*/*/**/*") if file.is_file())
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
        raise UsageError(f"no study {file}: name a TOML file such as research/studies/small.toml") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}; name a TOML file such as research/studies/small.toml"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    try:
        study = make_study(values)
        for candidate in study.candidate_names:
            for arm in study.arms:
                study.make_recipe(Job(arm, study.seeds[0], study.lengths[0], candidate=candidate))
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
                kinds = {"extra": Extra, "candidates": Candidate, "beside": Beside}
                check_keys([str(key)], [part.name for part in fields(kinds[str(place[0])] if place else Study)])
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
    rule: dict[str, Any] = {"strategy": BASE, "seed": study.seeds[0], "lengths": study.lengths}
    if study.layouts:
        rule["reports"] = study.reports
    rule["range"] = study.range
    if study.layouts:
        rule["layouts"] = study.layouts
    if study.candidates:
        rule["candidates"] = {candidate.name: candidate.set for candidate in study.candidates}
    if study.most_rise:
        rule["most_rise"] = study.most_rise
    return rule
