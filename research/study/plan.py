"""The plan of a study: a TOML file with a recipe, seeds, steps and tasks. Runs differ in strategy and seed only.

Tasks are page layouts of the sample reports, or your own sets.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from randslot.errors import UsageError
from randslot.evaluation.published import published_tables
from randslot.evaluation.tasks import Task, own_task
from randslot.model import slots
from randslot.training.recipe import RUNTIME_KEYS, Recipe, list_values, make_recipe, read_recipe
from research.samples.sets import write_set

BASE, METHOD = "zero", "random"
PAPER_METHODS = {row.method for row in published_tables()["table3"].rows}
# The paper's strategies, under its names.
STRATEGIES = {name: strategy.title for name, strategy in slots.STRATEGIES.items() if strategy.title in PAPER_METHODS}
BUDGET, MAX_BUDGET = 4, 8  # vectors per side: for training and judging, and the maximum of the sweep
CONTENTS = ("backbone", "data", "sets")  # settings recorded by a content hash if they are local


@dataclass(frozen=True)
class Extra:
    """An additional arm, with its hypothesis: the budgets at which it is better or no worse than another arm.

    against: that arm. below: the budgets at which it is behind that arm with all its vectors. budget: per side, in
    training.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    name: str
    title: str
    hypothesis: str
    against: str
    set: dict[str, Any]
    better: list[int] = field(default_factory=list)
    no_worse: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    budget: int = BUDGET


@dataclass(frozen=True)
class Study:
    """A study as its file describes it; paths are relative to the current directory."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    title: str
    recipe: str  # a file, or the name of a shipped recipe
    folder: str  # for models, pages, vectors and logs
    results: str  # for rows
    report: str  # the file; its figures go into images/ beside it
    seeds: list[int]
    steps: int
    layouts: list[str] = field(default_factory=list)  # of sample pages, as in "table-chart-text": each is a task
    reports: int = 0  # for each layout
    sets: str = ""  # instead of layouts: a folder with test/, which holds a set for every task
    side_by_side: int = 2  # runs at once, with one thread each
    train_reports: int = 0  # generate training pages from this many reports; 0: the recipe's data
    set: dict[str, Any] = field(default_factory=dict)  # overrides of the recipe, for all runs
    extra: list[Extra] = field(default_factory=list)
    note: str = ""  # for readers of the report

    @property
    def arms(self) -> dict[str, str]:
        """The title of every arm by its name: the five strategies, then extras."""
        return STRATEGIES | {extra.name: extra.title for extra in self.extra}

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """Every arm with every seed: the strategies first."""
        jobs = []
        for arms in (list(STRATEGIES), [extra.name for extra in self.extra]):
            for seed in self.seeds:
                jobs += [(arm, seed) for arm in arms]
        return jobs

    def inferences(self, arm: str) -> list[str]:
        """Return the inference strategies of an arm: zeros can replace random slots."""
        chosen = self.make_recipe(arm, self.seeds[0]).slots
        return [METHOD, BASE] if chosen == METHOD else [chosen]

    def make_recipe(self, arm: str, seed: int) -> Recipe:
        """Return the recipe of a run."""
        values = list_values(read_recipe(self.recipe)) | self.set | {"slots": arm}
        for extra in self.extra:
            if extra.name == arm:
                values |= {"query_vectors": extra.budget, "page_vectors": extra.budget, **extra.set}
        if self.train_reports:
            values["data"] = str(Path(self.folder, "pages", "train", "lessons.jsonl"))
        values |= {"seed": seed, "steps": self.steps, "validation": "", "validate_every": 0}
        recipe = make_recipe(values | {"output": str(Path(self.folder, "runs", f"{arm}-{seed}"))})
        if not recipe.shuffle:
            raise UsageError(
                f"{self.recipe} keeps the order of its data, which makes all seeds equal. Set shuffle = true."
            )
        return recipe

    def settings(self, arm: str, seed: int, *, hashed: bool = True) -> dict[str, Any]:
        """Return all settings that determine the rows of a run; hashed: local files by content hash."""
        values: dict[str, Any] = json.loads(json.dumps(list_values(self.make_recipe(arm, seed))))
        for name in RUNTIME_KEYS:
            del values[name]
        values |= {"sets": self.sets} if self.sets else {"layouts": self.layouts, "reports": self.reports}
        for name in CONTENTS if hashed else ():
            if values.get(name) and Path(values[name]).exists():
                values[name] = hash_files(Path(values[name]))
        return values

    def tasks(self) -> list[Task]:
        """Return the tasks, generating sample pages if they are missing."""
        if self.sets:
            return [own_task(folder) for folder in sorted(Path(self.sets, "test").iterdir()) if folder.is_dir()]
        for seed, layout in enumerate(self.layouts):  # no two tasks have the same reports
            make_set(self.pages(layout), num_reports=self.reports, split="test", seed=seed, layout=layout)
        return [own_task(self.pages(layout)) for layout in self.layouts]

    def pages(self, layout: str) -> Path:
        return Path(self.folder, "pages", f"test-{self.reports}", layout)

    def make_training_pages(self) -> None:
        if self.train_reports:
            folder = Path(self.folder, "pages", "train")
            make_set(folder, num_reports=self.train_reports, split="train", seed=0, curriculum=True)


def make_set(folder: Path, **options: Any) -> None:
    """Write a set of sample pages if it is missing; UsageError if it was made with other options."""
    made, content = folder / "made.json", json.dumps(options) + "\n"
    if folder.is_dir():
        if not made.is_file() or made.read_text(encoding="utf-8") != content:
            raise UsageError(f"{folder} was made with other options. Remove it, or revert the study's file.")
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    write_set(part, **options)
    (part / "made.json").write_text(content, encoding="utf-8")
    part.rename(folder)


def hash_files(place: Path) -> str:
    """Return a hash of a file, of the sets in a folder, or of a model's folder without its checkpoints."""
    names = ("config.json", "tokenizer.json", "preprocessor_config.json")
    files = [place]
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if file.suffix == ".safetensors" or file.name in names)
    files = files or sorted(file for file in place.glob("*/*/**/*") if file.is_file())
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(hashlib.blake2b(file.read_bytes(), digest_size=16).digest())
    return digest.hexdigest()


def read_study(file: Path) -> Study:
    """Read a study and check its recipes; UsageError in one line for a wrong value."""
    try:
        study = TypeAdapter(Study).validate_python(tomllib.loads(file.read_text(encoding="utf-8")))
        for arm in study.arms:
            study.make_recipe(arm, study.seeds[0])
    except (OSError, UsageError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if len(study.seeds) < 2 or bool(study.sets) == bool(study.layouts):
        raise UsageError(f"{file}: a study needs two seeds or more, and either layouts or sets")
    return study
