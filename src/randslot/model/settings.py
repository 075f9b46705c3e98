"""The encoding settings of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..errors import RandSlotError, UsageError
from .reader import Side
from .reductions import REDUCTIONS, SEEDED_REDUCTIONS, plain_name
from .slots import STRATEGIES, Strategy

LIMITS = {
    "query_vectors": (1, 4096),
    "page_vectors": (1, 4096),
    "visual_tokens": (4, 2**20),
    "text_tokens": (1, 2**20),
    "seed": (0, 2**32 - 1),
    "width": (0, 2**16),
}
NO_REDUCTION = "none"


class VectorSettings:
    """Settings shared by all kinds of models."""

    reduction: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reduction", plain_name(self.reduction))
        check_choice("reduction", self.reduction, (NO_REDUCTION, *REDUCTIONS))
        for name in LIMITS:
            if (value := getattr(self, name, None)) is not None:
                check_limits(name, value)

    @property
    def is_reduced(self) -> bool:
        """Whether pages are reduced to `page_vectors`."""
        return self.reduction != NO_REDUCTION

    @property
    def is_seeded(self) -> bool:
        """Whether vectors depend on the seed."""
        return self.reduction in SEEDED_REDUCTIONS

    def has_prefixes(self, side: Side) -> bool:
        """Whether the vectors of a smaller budget are a prefix of those of a larger one."""
        return False


@dataclass(frozen=True)
class Settings(VectorSettings):
    """How a model encodes queries and pages.

    slots: the training strategy: "random", "zero", "fixed", "learned", "feedback", or your own "my_slots.py:Noisy".
    inference: the inference strategy; by default the same, but zeros after random training (the paper's RS-Z).
    query_vectors, page_vectors: the budgets. visual_tokens, text_tokens: maximum tokens per page, for models that read
    images or text; longer text is truncated. seed: for adapters, tables and random slots. template: the prompts around
    queries and pages: "paper", or "embedding" for a retrieval model such as Qwen3-VL-Embedding.
    width: keep this many dimensions of each vector when encoding; 0: all. widths: the trained Matryoshka dimensions.

    With slots="tokens" every token has a vector. Then `reduction` ("random", "kmeans", "semcluster" or "pool1d") pools
    pages to at most `page_vectors` when encoding; queries and training keep all vectors.
    """

    slots: str = "random"
    inference: str = ""
    query_vectors: int = 4
    page_vectors: int = 4
    visual_tokens: int = 1536
    seed: int = 42
    reduction: str = NO_REDUCTION
    template: str = "paper"
    text_tokens: int = 1536
    width: int = 0
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))  # a list in files
        check_choice("slots", self.slots, STRATEGIES)
        if not self.inference:
            object.__setattr__(self, "inference", self.strategy.inference or self.slots)
        check_choice("inference", self.inference, STRATEGIES)
        super().__post_init__()
        if self.strategy.every_token != self.inference_strategy.every_token:
            raise UsageError(f"inference={self.inference!r} cannot be used with slots={self.slots!r}")
        if self.is_reduced and not self.strategy.every_token:
            raise UsageError(f"reduction={self.reduction!r} needs a model with slots='tokens', not {self.slots!r}")

    @property
    def strategy(self) -> type[Strategy]:
        """The training strategy."""
        return STRATEGIES[self.slots]

    @property
    def inference_strategy(self) -> type[Strategy]:
        """The inference strategy."""
        return STRATEGIES[self.inference]

    @property
    def is_seeded(self) -> bool:
        strategy = self.inference_strategy
        return (strategy.seeded and not strategy.constant) or super().is_seeded

    @property
    def label(self) -> str:
        """The label of these settings in tables: "random", or "tokens by kmeans"."""
        return f"{self.inference} by {self.reduction}" if self.is_reduced else self.inference

    def vectors(self, side: Side) -> int:
        """Return the budget of one side."""
        return self.query_vectors if side == "query" else self.page_vectors

    def num_vectors(self, side: Side) -> int | None:
        """Return the number of vectors of a query or page; None if every token has one."""
        if self.strategy.every_token and not (side == "page" and self.is_reduced):
            return None
        return self.vectors(side)

    def vectors_name(self, side: Side) -> str:
        """Return a cache name for the vectors of one side, without weights and budget."""
        reduced = side == "page" and self.is_reduced
        parts = [side, self.inference]
        if reduced:
            parts.append(self.reduction)
        if self.inference_strategy.seeded or reduced:
            parts.append(f"seed{self.seed}")
        if side == "page":
            parts.append(f"{self.visual_tokens}tokens")
        if side == "page" and self.text_tokens != Settings.text_tokens:
            parts.append(f"{self.text_tokens}text")
        if self.width:
            parts.append(f"width{self.width}")
        return "-".join(parts)

    def has_prefixes(self, side: Side) -> bool:
        return self.inference_strategy.prefix_stable and not (side == "page" and self.is_reduced)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as stored: `width` and `widths` only if set."""
        values = asdict(self) | {"widths": list(self.widths)}
        for name in ("width", "widths"):
            if not values[name]:
                del values[name]
        return values

    def change(self, **changes: Any) -> Settings:
        """Return these settings with some changed; UsageError for an unknown setting or a wrong value."""
        known = {field.name for field in fields(self)}
        if unknown := sorted(changes.keys() - known):
            raise UsageError(f"unknown setting {unknown[0]!r}; known ones: {', '.join(sorted(known))}")
        if changes.get("slots", self.slots) != self.slots:
            changes = {"inference": ""} | changes  # the new strategy's default
        return replace(self, **changes)


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise UsageError for an unknown value of a setting."""
    if value not in list(known):
        raise UsageError(f"{name}={value!r} is not one of {', '.join(known)}")


def check_limits(name: str, value: object) -> None:
    """Raise UsageError for a value that is not a whole number within the limits of its setting."""
    low, high = LIMITS[name]
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def read_settings(values: Mapping[str, Any], name: str | None) -> Settings:
    """Build settings from the stored values of a saved model."""
    known = {field.name for field in fields(Settings)}
    if wrong := sorted(values.keys() ^ known - ({"width", "widths"} - values.keys())):
        raise RandSlotError(f"randslot.json of {name} has missing or unknown settings: {', '.join(wrong)}")
    return Settings(**values)
