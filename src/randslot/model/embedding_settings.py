"""How a model of sentence-transformers makes its vectors: what is its own, and the few things that can be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from ..errors import RandSlotError, UsageError
from .reader import Reads, Side
from .reductions import REDUCTIONS, SEEDED_REDUCTIONS, plain_name
from .settings import LIMITS, NO_REDUCTION

# What sentence-transformers calls a score, and whether a sum of largest products can express it.
SIMILARITIES = ("maxsim", "meanmaxsim", "cosine", "dot")
CHOSEN = ("reduction", "page_vectors", "seed", "prompts", "default_prompt_name")


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a model makes its vectors, in the words of its own configuration.

    kind: of several vectors a text or page, or of one. similarity: how they are compared. unit: whether they have the
    length of one. prompts, default_prompt_name: what stands before queries ("query") and pages ("document").

    reduction, page_vectors, seed: bring each page to at most so many vectors, as `reductions.py` does. A text model of
    one vector reads a page in at most `page_vectors` windows, as `windows.py` cuts them, with a vector for each.
    trust_remote_code, code: whether the model runs code of its own, and a hash of that.
    """

    kind: Literal["multi-vector", "one-vector"]
    similarity: str
    reads: Reads
    unit: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    reduction: str = NO_REDUCTION
    query_vectors: int | None = None
    page_vectors: int | None = None
    seed: int = 42
    trust_remote_code: bool = False
    code: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reduction", plain_name(self.reduction))
        if self.similarity not in SIMILARITIES:
            raise RandSlotError(
                f"this model compares its vectors by {self.similarity!r}, which MaxSim cannot express; known are "
                f"{', '.join(SIMILARITIES)}"
            )
        if self.reduction not in (NO_REDUCTION, *REDUCTIONS):
            raise UsageError(f"reduction={self.reduction!r} is not one of {NO_REDUCTION}, {', '.join(REDUCTIONS)}")
        if self.is_reduced and not self.several:
            raise UsageError(f"reduction={self.reduction!r} is for models of several vectors a page: this has one")
        if self.is_reduced and not self.unit:
            raise UsageError(
                f"reduction={self.reduction!r} is for vectors of unit length, and this model's have others"
            )
        if self.several and (self.page_vectors is not None) != self.is_reduced:
            raise UsageError(
                "reduction and page_vectors go together for a model with a vector for every token, as in "
                "--reduction kmeans --page-vectors 32"
            )
        if not self.several and self.query_vectors != 1:
            raise UsageError("this model has one vector a query, and no others can be asked for")
        if not self.several and self.reads == "image" and self.page_vectors != 1:
            raise UsageError("this model has one vector a page: only a text can be read in several windows")
        if self.several and self.query_vectors is not None:
            raise UsageError("query_vectors is for models with slots: this one has a vector for every token")
        for name in ("page_vectors", "seed"):
            value, (least, most) = getattr(self, name), LIMITS[name]
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")

    @property
    def several(self) -> bool:
        """Whether a page has several vectors."""
        return self.kind == "multi-vector"

    @property
    def is_reduced(self) -> bool:
        """Whether pages have fewer vectors than tokens by a reduction."""
        return self.reduction != NO_REDUCTION

    @property
    def in_windows(self) -> bool:
        """Whether a model of one vector reads the text of a page in several windows."""
        return not self.several and self.page_vectors != 1

    @property
    def label(self) -> str:
        """What tells runs of one model apart in tables: "tokens", "tokens by kmeans", "one vector", or "windows"."""
        if not self.several:
            return "windows" if self.in_windows else "one vector"
        return f"tokens by {self.reduction}" if self.is_reduced else "tokens"

    def num_vectors(self, side: Side) -> int | None:
        """Return how many vectors a query or a page has; None if every token has its own."""
        return self.query_vectors if side == "query" else self.page_vectors

    def vectors_name(self, side: Side) -> str:
        """Return a name for the vectors of one side under these settings, whatever the weights: for caches."""
        parts: list[str] = [side, "text" if side == "query" else self.reads]
        if side == "page" and self.is_reduced:
            parts += [self.reduction, f"seed{self.seed}"]
        return "-".join(parts)

    def has_prefixes(self, side: Side) -> bool:
        """Whether the vectors of a smaller budget are the first ones of a larger: never, here."""
        return False

    @property
    def note(self) -> str:
        """What should be said before an evaluation."""
        return ""

    @property
    def draws(self) -> bool:
        """Whether encoding draws from the seed."""
        return self.reduction in SEEDED_REDUCTIONS

    def change(self, **changes: Any) -> EmbeddingSettings:
        """Return these settings with some changed; what is the model's own must stay as it is.

        Errors: UsageError for a setting that such a model does not have, or that is its own.
        """
        known = {one.name for one in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise UsageError(f"{name}={value!r} is for RandSlot models, and this is one of sentence-transformers")
            if name not in CHOSEN and value != getattr(self, name):
                if name == "query_vectors":
                    raise UsageError(
                        f"query_vectors={value!r}: only RandSlot models have it, this one counts by itself"
                    )
                raise UsageError(f"{name}={value!r} does not go with this model, which has {getattr(self, name)!r}")
        return replace(self, **changes)
