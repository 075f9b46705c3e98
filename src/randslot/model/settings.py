"""How a model makes its vectors: the one place where these settings are spelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import RandSlotError, UsageError
from .reader import Reads, Side
from .reductions import REDUCTIONS, SEEDED_REDUCTIONS, plain_name
from .slots import STRATEGIES, Strategy

LIMITS = {
    "query_vectors": (1, 4096),
    "page_vectors": (1, 4096),
    "visual_tokens": (4, 2**20),
    "text_tokens": (1, 2**20),
    "seed": (0, 2**32 - 1),
}
NO_REDUCTION = "none"


@dataclass(frozen=True)
class Settings:
    """How a model makes its vectors.

    slots: the strategy it is trained with. inference: what is appended when encoding; by default the same, but zeros
    after random training, which gives a page the same vectors every time at almost no loss (the paper's RS-Z).
    query_vectors, page_vectors: the budgets. visual_tokens: the most merged visual tokens a page may take. text_tokens:
    the same for a model that reads the text of a page; what is behind them is cut. seed: for adapters, tables and
    random slots. template: the name of what stands around queries and pages, of those that the family has; like
    `slots`, a model is trained with it.

    With slots="tokens" every token has a vector and the budgets do not count, but for `reduction`: it brings each page
    to at most `page_vectors` when encoding. Queries and training keep all.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "reduction", plain_name(self.reduction))
        allowed = {"slots": tuple(STRATEGIES), "reduction": (NO_REDUCTION, *REDUCTIONS)}
        for name, values in allowed.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in values:
                raise UsageError(f"{name}={getattr(self, name)!r} is not one of {', '.join(values)}")
        if not self.inference:
            object.__setattr__(self, "inference", self.usual_inference)
        if not isinstance(self.inference, str) or self.inference not in STRATEGIES:
            raise UsageError(f"inference={self.inference!r} is not one of {', '.join(STRATEGIES)}")
        if self.strategy.every_token != self.inference_strategy.every_token:
            raise UsageError(
                f"inference={self.inference!r} does not go with slots={self.slots!r}: a model reads slots or tokens, "
                "as it was trained"
            )
        if self.reduction != NO_REDUCTION and not self.strategy.every_token:
            raise UsageError(f"reduction={self.reduction!r} needs a model with slots='tokens', not {self.slots!r}")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")

    @property
    def strategy(self) -> type[Strategy]:
        """What the model is trained with."""
        return STRATEGIES[self.slots]

    @property
    def inference_strategy(self) -> type[Strategy]:
        """What is appended when encoding."""
        return STRATEGIES[self.inference]

    @property
    def usual_inference(self) -> str:
        """What a model trained like this appends when encoding by default."""
        return self.strategy.inference or self.slots

    @property
    def is_reduced(self) -> bool:
        """Whether pages have fewer vectors than tokens by a reduction."""
        return self.reduction != NO_REDUCTION

    @property
    def label(self) -> str:
        """What tells runs of one model apart in tables: "random", or "tokens by kmeans"."""
        return f"{self.inference} by {self.reduction}" if self.is_reduced else self.inference

    @property
    def note(self) -> str:
        """What should be said before an evaluation; nothing if it encodes as it was trained to."""
        if self.inference in (self.slots, self.usual_inference):
            return ""
        return f"was trained with {self.slots} slots, and gets {self.inference} ones here"

    def num_vectors(self, side: Side) -> int | None:
        """Return how many vectors a query or a page has; None if every token has its own."""
        if self.strategy.every_token and not (side == "page" and self.is_reduced):
            return None
        return self.vectors(side)

    def vectors(self, side: Side) -> int:
        """Return the budget of one side."""
        return self.query_vectors if side == "query" else self.page_vectors

    def page_tokens(self, reads: Reads) -> int:
        """Return the most tokens that a page may take in a model that reads images, or text."""
        return self.text_tokens if reads == "text" else self.visual_tokens

    def vectors_name(self, side: Side) -> str:
        """Return a name for the vectors of one side under these settings, whatever the weights: for caches.

        The budget is not in it: of most strategies a smaller one is the beginning of a larger.
        """
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
        return "-".join(parts)

    def has_prefixes(self, side: Side) -> bool:
        """Whether the vectors of a smaller budget are the first ones of a larger."""
        return self.inference_strategy.prefix_stable and not (side == "page" and self.is_reduced)

    @property
    def draws(self) -> bool:
        """Whether encoding draws from the seed: if not, another seed gives the same vectors."""
        strategy = self.inference_strategy
        return (strategy.seeded and not strategy.constant) or self.reduction in SEEDED_REDUCTIONS

    def change(self, **changes: Any) -> Settings:
        """Return these settings with some changed.

        Errors: UsageError for a setting that does not exist, or a wrong value.
        """
        _check_names(changes)
        return replace(self, **changes)


def read_settings(values: Mapping[str, Any], name: str | None) -> Settings:
    """Make settings from the values of a saved model, which must be complete.

    Errors: RandSlotError for unknown or missing ones.
    """
    _check_names(values)
    known = {field.name for field in fields(Settings)}
    if missing := sorted(known - values.keys()):
        raise RandSlotError(f"randslot.json of {name} lacks {', '.join(missing)}")
    return Settings(**values)


def _check_names(values: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(values.keys() - known):
        raise UsageError(f"unknown setting {unknown[0]!r}; known ones: {', '.join(sorted(known))}")


def draws_from_seed(values: Mapping[str, Any]) -> bool:
    """Whether encoding under the settings of a result draws from the seed; a strategy that is not known here might."""
    if values.get("inference") not in STRATEGIES:
        return True
    return Settings(**values).draws
