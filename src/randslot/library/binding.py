"""Which model a library belongs to: vectors of two models cannot be compared, so another one is refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import RandSlotError, UsageError

if TYPE_CHECKING:  # takes seconds, and a library that is only looked into needs no model
    from sentence_transformers import MultiVectorEncoder

FREE = ("name", "revision", "query_vectors")  # may differ: where the same model is now, and how long queries are


@dataclass(frozen=True)
class Binding:
    """A model as a library remembers it: where it came from, a hash of its weights, and how it makes vectors.

    name is None for a model that was made in memory.
    """

    name: str | None
    revision: str | None
    weights: str
    dtype: str
    slots: str
    inference: str
    query_vectors: int
    page_vectors: int
    visual_tokens: int
    seed: int
    reduction: str
    dimension: int

    def __str__(self) -> str:
        revision = f" at revision {self.revision}" if self.revision else ""
        return f"{self.name or 'a model in memory'}{revision} (weights {self.weights[:8]})"

    def check(self, other: Binding, library: str, advice: str = "") -> None:
        """Refuse another model; advice is what to do where none can be loaded.

        Errors: UsageError in one line that says what differs.
        """
        names = [field.name for field in fields(self) if field.name not in FREE]
        differ = [name for name in names if getattr(self, name) != getattr(other, name)]
        if "weights" in differ:
            raise UsageError(
                f"library {library} belongs to {self}, and this is {other}: "
                + (advice or "open it with its own model, or make another library")
            )
        if differ:
            what = ", ".join(f"{name}={getattr(self, name)!r} and not {getattr(other, name)!r}" for name in differ)
            advice = advice or "load the model so, or make another library"
            raise UsageError(f"library {library} was made with {what}: {advice}")


def describe(model: MultiVectorEncoder) -> Binding:
    """Return what a library remembers of a model."""
    from ..model.model import weights_key

    encoder = model[0]
    return Binding(
        name=encoder.home.name,
        revision=encoder.home.revision,
        weights=weights_key(model),
        dtype=encoder.dtype,
        dimension=encoder.get_embedding_dimension(),
        **asdict(encoder.settings),
    )


def read_binding(values: Any, library: str) -> Binding:
    """Read a binding as `asdict` wrote it.

    Errors: RandSlotError if something is missing or unknown.
    """
    try:
        return Binding(**values)
    except TypeError as error:
        raise RandSlotError(f"library.json of {library} does not say which model it belongs to: {error}") from error


def load_bound(bound: Binding, name: str | None, library: str) -> MultiVectorEncoder:
    """Load the model that a library belongs to, from where it came from or from `name`, set as it was.

    Errors: RandSlotError if that is another model, or cannot be found.
    """
    from ..model.model import weights_key
    from ..model.remote_model import is_url, open_model

    if name is None and bound.name is None:
        raise RandSlotError(f"library {library} was made with a model in memory: pass that model")
    place = name or bound.name or ""
    at_home = {"revision": bound.revision if name is None else None, "dtype": bound.dtype}
    model = open_model(place, **({} if is_url(place) else at_home))
    if weights_key(model) == bound.weights:
        budgets = ("query_vectors", "page_vectors")
        settings = budgets if is_url(place) else (*budgets, "inference", "visual_tokens", "seed", "reduction")
        model[0].use(**{setting: getattr(bound, setting) for setting in settings})
    bound.check(describe(model), library)
    return model
