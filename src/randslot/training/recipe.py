"""A recipe: everything that decides a training run, in a frozen dataclass whose defaults are the paper's settings.

A recipe file is TOML and holds only differences from them.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..model.settings import Settings

CHOICES = {
    "on_bad_row": ("stop", "skip"),
    "repeated_pages": ("mask", "negatives"),
    "optimizer": ("paged_adamw_8bit", "adamw"),
    "precision": ("bf16", "fp32", "bf16-anywhere"),
    "execution": ("pass", "loop"),
}
LEAST = {
    "epochs": 1,
    "steps": 0,
    "warmup": 0,
    "window": 0,
    "batch": 2,
    "micro_batch": 0,
    "lora_rank": 1,
    "workers": 0,
    "save_every": 0,
    "validate_every": 0,
    "validation_rows": 1,
}
BETWEEN = {  # which excludes infinity and NaN
    "temperature": (1e-6, 1e6),
    "learning_rate": (0.0, 1e6),
    "rate_left": (0.0, 1.0),
    "clip": (1e-9, 1e30),
    "beta1": (0.0, 0.999999),
    "beta2": (0.0, 0.999999999),
    "epsilon": (1e-20, 1.0),
    "weight_decay": (0.0, 1e6),
    "lora_dropout": (0.0, 0.99),
}
ENCODING = ("inference", "reduction")  # settings of a model that training does not depend on
# A run may be resumed with other values of these: what is computed does not depend on them.
FREE = frozenset(
    {
        "output",
        "workers",
        "micro_batch",
        "gradient_cache",
        "gradient_checkpointing",
        "save_every",
        "on_bad_row",
        "validation",
        "validation_split",
        "validation_rows",
        "validate_every",
    }
)


@dataclass(frozen=True)
class Recipe(Settings):
    """How to train a model: its settings, and all else that decides a run.

    One of `backbone` and `untrained` must be given; all else has the paper's value. How the trained model encodes
    (`inference`, `reduction`) changes nothing in training, and is left to whoever loads it.
    """

    # The model, beside its settings.
    backbone: str = ""  # a hub id or folder
    untrained: str = ""  # or the shape of a backbone to build with random weights
    lora: bool = True
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    still_vision: bool = False  # freeze the vision tower, read each page once and keep it in memory: for small sets

    # The pairs.
    data: str = "vidore/colpali_train_set"  # a hub id, a folder, or a .jsonl or .parquet file
    split: str = "train"
    query_column: str = "query"
    page_column: str = "image"
    page_texts: bool = False  # the page column holds texts, not images or paths: for a model that reads text
    shuffle: bool = True  # false: in the order of the data, for a curriculum
    window: int = 0  # shuffle only within this many rows: a curriculum in another order
    on_bad_row: str = "stop"

    # The objective. `batch` is global: all processes together. Pages that are equal to a query's own page are masked
    # out of its negatives; "negatives" keeps them, as the paper's plain InfoNCE does.
    batch: int = 128
    temperature: float = 0.07
    repeated_pages: str = "mask"
    prefixes: tuple[int, ...] = ()  # the mean loss over the first 1, 2, ... vectors of both sides; (): over all of them

    # The optimisation.
    epochs: int = 1
    steps: int = 0  # end after this many, if the epochs have more; 0: whole epochs
    optimizer: str = "paged_adamw_8bit"
    learning_rate: float = 2e-4
    rate_left: float = 0.5  # the share of the rate that is left at the end; it falls as a cosine
    warmup: int = 0  # steps in which the rate rises to its full height
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0

    # The execution: what is computed does not depend on it, but for dropout under "loop".
    micro_batch: int = 1  # pages that a device encodes at once; 0: its whole share of the batch
    gradient_cache: bool = True  # hold one micro-batch at a time, for a second forward; false: all of them
    gradient_checkpointing: bool = True
    execution: str = "pass"  # all readouts in one pass; "loop": every prefix anew as in the paper, K times the work
    precision: str = "bf16"  # on a GPU; a CPU computes in float32, unless it is "bf16-anywhere"
    workers: int = 4  # processes that open page images, on each device

    # The output.
    output: str = ""  # by default runs/RECIPE-SLOTS-SEED
    save_every: int = 100  # steps between checkpoints; 0: only the final model

    # Held-out pairs that are searched during training.
    validation: str = ""
    validation_split: str = "train"
    validation_rows: int = 500
    validate_every: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), type(field.default))
        super().__post_init__()
        if bool(self.backbone) == bool(self.untrained):
            raise UsageError("a recipe needs either backbone (a hub id or folder) or untrained (a shape)")
        if not self.data:
            raise UsageError("a recipe needs data: a hub id, a folder, or a .jsonl or .parquet file of pairs")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name, (low, high) in BETWEEN.items():
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be between {low:g} and {high:g}, not {getattr(self, name)}")
        if self.still_vision and self.lora:
            raise UsageError("still_vision goes with lora = false: with an adapter the tower is frozen anyway")
        if self.still_vision and self.workers:
            raise UsageError("still_vision reads each page once, where the model is: set workers = 0")
        if self.window and not self.shuffle:
            raise UsageError("window says how far rows are shuffled: it goes with shuffle = true")
        self._check_prefixes()
        if self.validate_every and not self.validation:
            raise UsageError("validate_every needs validation: the held-out pairs to search")

    def _check_prefixes(self) -> None:
        rising = all(least < num for least, num in zip((0, *self.prefixes), self.prefixes, strict=False))
        if not rising or max(self.prefixes, default=0) > min(self.query_vectors, self.page_vectors):
            raise UsageError(
                f"prefixes must rise, from 1 or more to at most the vectors of a side, not {list(self.prefixes)}"
            )
        if self.prefixes and not self.strategy.prefix_stable:
            raise UsageError("prefixes go with slots: there must be a first vector")

    def settings(self) -> Settings:
        """Return the part that says how the model makes its vectors."""
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})


def read_recipe(name: str | Path, changes: list[str] | None = None) -> Recipe:
    """Read a recipe file, or one that ships with the package by its name, and apply `key=value` changes.

    Errors: UsageError in one line for a missing file, broken TOML, an unknown key or a wrong value.
    """
    file = _find(str(name))
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    values |= dict(_read_change(change) for change in changes or [])
    try:
        recipe = make_recipe(values)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    stem = Path(file.name).stem
    return recipe if recipe.output else replace(recipe, output=f"runs/{stem}-{recipe.slots}-{recipe.seed}")


def make_recipe(values: dict[str, Any]) -> Recipe:
    """Make a recipe from a dictionary.

    Errors: UsageError that names the nearest known key for an unknown one.
    """
    known = {field.name: field for field in fields(Recipe) if field.name not in ENCODING}
    check_keys(values, known)
    floats = {name for name, field in known.items() if isinstance(field.default, float)}
    # 1 is a fine way to write 1.0
    typed: dict[str, Any] = {k: float(v) if k in floats and type(v) is int else v for k, v in values.items()}
    typed = {k: tuple(v) if isinstance(v, list) else v for k, v in typed.items()}
    return Recipe(**typed)


def check_keys(values: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an unknown key of a file.

    Errors: UsageError that names the nearest known one.
    """
    names = list(known)
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            raise UsageError(f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def list_values(recipe: Recipe) -> dict[str, Any]:
    """Return every value of a recipe, as `make_recipe` takes them."""
    return {key: value for key, value in asdict(recipe).items() if key not in ENCODING}


def write_recipe(recipe: Recipe, file: Path) -> None:
    """Write a recipe with every value spelled out, as TOML."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in list_values(recipe).items()]
    file.write_text("".join(lines).replace("\x7f", "\\u007f"), encoding="utf-8")


def _find(name: str) -> Path | Traversable:
    if Path(name).is_file():
        return Path(name)
    shipped = resources.files("randslot") / "recipes"
    if (shipped / f"{name}.toml").is_file():
        return shipped / f"{name}.toml"
    names = ", ".join(sorted(Path(file.name).stem for file in shipped.iterdir() if file.name.endswith(".toml")))
    raise UsageError(f"no recipe {name}: not a file here, and not one that ships with randslot ({names})")


def _read_change(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UsageError(f"--set takes key=value, not {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # words need no quotes
    return key.strip(), value


def _check_type(name: str, value: Any, expected: type) -> None:
    if type(value) is not expected or (isinstance(value, tuple) and any(type(part) is not int for part in value)):
        names = {
            str: "text",
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            tuple: "a list of whole numbers",
        }
        raise UsageError(f"{name} must be {names[expected]}, not {value!r}")
