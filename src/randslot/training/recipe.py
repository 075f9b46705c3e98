"""A recipe: every setting of a training run. A TOML file holds only differences from the defaults."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from ..errors import UsageError, in_one_line
from ..model.own_code import use_strategy
from ..model.settings import Settings

CHOICES = {
    "on_bad_row": ("stop", "skip"),
    "repeated_pages": ("mask", "negatives"),
    "optimizer": ("paged_adamw_8bit", "adamw"),
    "precision": ("bf16", "fp32", "bf16-anywhere"),
    "execution": ("pass", "loop"),
}
LIMITS = {  # of numbers that must be positive, or have a maximum; others are finite and not negative
    "epochs": (1, 1e9),
    "batch": (2, 1e9),
    "lora_rank": (1, 1e6),
    "validation_rows": (1, 1e9),
    "temperature": (1e-6, 1e6),
    "rate_left": (0, 1),
    "clip": (1e-9, 1e30),
    "beta1": (0, 0.999999),
    "beta2": (0, 0.999999999),
    "epsilon": (1e-20, 1),
    "lora_dropout": (0, 0.99),
}
TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of numbers"}
ENCODING = ("inference", "reduction", "width")  # model settings that do not affect training
# Keys that do not affect the result: a resumed run may change them.
RUNTIME_KEYS = (
    *("output", "workers", "micro_batch", "gradient_cache", "gradient_checkpointing", "save_every", "on_bad_row"),
    *("validation", "validation_split", "validation_rows", "validate_every"),
)


@dataclass(frozen=True)
class Recipe(Settings):
    """Every setting of a training run; the defaults are the paper's, except where noted.

    Set either `backbone` or `untrained`. `inference`, `reduction` and `width` do not affect training: set them when
    you load the trained model.
    """

    # The model; its settings are inherited.
    backbone: str = ""  # a hub id or folder
    untrained: str = ""  # or the shape of a backbone to build with random weights
    lora: bool = True  # train an adapter; false: all weights
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    still_vision: bool = False  # freeze the vision tower and cache its output in memory: for small datasets

    # The pairs.
    data: str = "vidore/colpali_train_set"  # a hub id, a folder, or a .jsonl or .parquet file
    split: str = "train"  # of a dataset on the hub
    query_column: str = "query"
    page_column: str = "image"
    negatives: int = 0  # hard negatives of each row: in its column "negatives", or in negative_1, negative_2, ...
    page_texts: bool = False  # the page column holds texts, not images or paths: for a text model
    shuffle: bool = True  # false: keep the order of the data, for a curriculum
    window: int = 0  # shuffle only within windows of this many rows
    on_bad_row: str = "stop"  # at a row without query or page; "skip": train without it
    keep_empty_queries: bool = False  # encode an empty query as a padding token, as the paper does

    # The objective.
    batch: int = 128  # global batch size, in pairs
    temperature: float = 0.07
    repeated_pages: str = "mask"  # mask copies of the positive page; "negatives": keep them, as in the paper
    prefixes: tuple[int, ...] = ()  # average the loss over the first 1, 2, ... vectors of both sides; (): all vectors
    width_weights: tuple[float, ...] = ()  # of the losses at `widths`, beside 1 at the full width; (): 1 for each

    # Optimization.
    epochs: int = 1
    steps: int = 0  # stop after this many steps; 0: after the epochs
    optimizer: str = "paged_adamw_8bit"  # on a GPU; or "adamw"
    learning_rate: float = 2e-4
    rate_left: float = 0.5  # final share of the learning rate, after a cosine decay
    warmup: int = 0  # steps of linear warmup
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0  # maximum gradient norm

    # Execution: does not change the result, except for dropout masks: "loop" samples them per prefix, and micro-batches
    # in another order. Slots are sampled per example.
    micro_batch: int = 1  # pages a device encodes at once; 0: its whole share of the batch
    gradient_cache: bool = True  # GradCache: keep activations of one micro-batch only, for one extra forward pass
    gradient_checkpointing: bool = True  # recompute activations in the backward pass
    execution: str = "pass"  # one pass; "loop": re-encode every prefix as in the paper, K times the work
    precision: str = "bf16"  # on a GPU; a CPU uses float32 unless this is "bf16-anywhere"
    workers: int = 4  # processes per device that open pages

    # The output.
    output: str = ""  # by default runs/RECIPE-SLOTS-SEED
    save_every: int = 100  # steps between checkpoints; 0: only the final model

    # Validation during training.
    validation: str = ""  # held-out pairs: a file, folder or hub id
    validation_split: str = "train"
    validation_rows: int = 500  # use at most this many
    validate_every: int = 0  # steps; 0: never

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            name, value, expected = field.name, getattr(self, field.name), type(field.default)
            numbers = (int, float) if name == "width_weights" else (int,)
            has_other_parts = isinstance(value, tuple) and any(type(part) not in numbers for part in value)
            if type(value) is not expected or has_other_parts:
                raise UsageError(f"{name} must be {TYPES[expected]}, not {value!r}")
            low, high = LIMITS.get(name, (0, 1e10))
            if isinstance(value, int | float) and not low <= value <= high:  # NaN fails too
                raise UsageError(f"{name} must be between {low:g} and {high:g}, not {value}")
            if value not in CHOICES.get(name, (value,)):
                raise UsageError(f"{name} = {value!r} is not one of {', '.join(CHOICES[name])}")
        num_vectors = min(self.query_vectors, self.page_vectors)
        is_rising = list(self.prefixes) == sorted(set(self.prefixes) & set(range(1, num_vectors + 1)))
        for is_wrong, message in (
            (bool(self.backbone) == bool(self.untrained), "set either backbone (a hub id or folder) or untrained"),
            (not self.data, "set data: a hub id, a folder, or a .jsonl or .parquet file of pairs"),
            (self.still_vision and self.lora, "still_vision needs lora = false: an adapter freezes the tower anyway"),
            (self.still_vision and self.workers, "still_vision needs workers = 0: the main process reads each page"),
            (self.window and not self.shuffle, "window needs shuffle = true"),
            (not is_rising, f"prefixes must increase from 1 to at most {num_vectors}, not {list(self.prefixes)}"),
            (self.prefixes and not self.strategy.prefix_stable, f"prefixes do not work with slots = {self.slots!r}"),
            (list(self.widths) != sorted(set(self.widths)) or 0 in self.widths, "widths must increase, from 1"),
            (len(self.width_weights) not in (0, len(self.widths)), "width_weights needs a number for each of widths"),
            (min(self.width_weights, default=1) <= 0, f"width_weights must be positive: {list(self.width_weights)}"),
            (self.validate_every and not self.validation, "validate_every needs validation: the held-out pairs"),
        ):
            if is_wrong:
                raise UsageError(message)

    @property
    def pages_per_row(self) -> int:
        """The number of pages per row: its own and its hard negatives."""
        return 1 + self.negatives

    @property
    def adapter(self) -> dict[str, Any] | Literal[False]:
        """The adapter, as `load` takes it."""
        return self.lora and {"rank": self.lora_rank, "alpha": self.lora_alpha, "dropout": self.lora_dropout}

    def settings(self) -> Settings:
        """Return the settings of the model."""
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})


def read_recipe(name: str | Path, changes: list[str] | None = None) -> Recipe:
    """Read a recipe file, or a shipped recipe by its name, and apply `key=value` changes."""
    file: Path | Traversable = Path(name)
    if not file.is_file():
        shipped = resources.files("randslot") / "recipes"
        file = shipped / f"{name}.toml"
        if not file.is_file():
            names = sorted(Path(one.name).stem for one in shipped.iterdir() if one.name.endswith(".toml"))
            raise UsageError(f"no recipe {name}: neither a file nor a shipped recipe ({', '.join(names)})")
    with in_one_line(f"read {file}", UsageError):
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    for change in changes or []:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise UsageError(f"--set takes key=value, not {change!r}")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text  # text needs no quotes
    recipe = make_recipe(values)
    stem = Path(file.name).stem
    return recipe if recipe.output else replace(recipe, output=f"runs/{stem}-{recipe.slots}-{recipe.seed}")


def make_recipe(values: dict[str, Any]) -> Recipe:
    """Build a recipe from a dictionary of its values."""
    defaults = {field.name: field.default for field in fields(Recipe) if field.name not in ENCODING}
    typed = dict(values)
    for key, value in values.items():
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, n=1, cutoff=0.5)
            raise UsageError(f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if isinstance(defaults[key], float) and type(value) is int:
            typed[key] = float(value)
        elif isinstance(value, list):
            typed[key] = tuple(value)
    if isinstance(values.get("slots"), str):
        typed["slots"] = use_strategy(values["slots"])
    return Recipe(**typed)


def list_values(recipe: Recipe) -> dict[str, Any]:
    """Return every value of a recipe, as `make_recipe` takes them."""
    return {key: value for key, value in asdict(recipe).items() if key not in ENCODING}


def write_recipe(recipe: Recipe, file: Path) -> None:
    """Write every value of a recipe as TOML."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in list_values(recipe).items()]
    file.write_text("".join(lines).replace("\x7f", "\\u007f"), encoding="utf-8")
