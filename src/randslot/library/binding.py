"""Which model a library belongs to: vectors of two models cannot be compared, so another one is refused."""

from __future__ import annotations

from typing import Any

from ..errors import MissingError, RandSlotError, UsageError
from ..model.reader import Identity, PageReader, find_teacher, is_url, read_identity

EMBEDDED = "embedded"  # the name of the model that ships with the package

# May differ: where the same model is now, and how long queries are. The template is part of
# the weights.
FREE = ("name", "revision", "query_vectors", "template")
# May differ, too, between the pages of a library and the teacher of a student, who is asked for queries alone.
OF_PAGES = ("page_vectors", "visual_tokens", "text_tokens", "reduction", "reads")


def check_model(bound: Identity, other: Identity, library: str, advice: str = "") -> None:
    """Refuse a model that is not the one a library belongs to; advice: what to do about it.

    Errors: UsageError in one line that says what differs.
    """
    if bound.weights != other.weights:
        advice = advice or "open it with its own model, or make another library"
        raise UsageError(f"library {library} belongs to {bound}, and this is {other}: {advice}")
    if differences := _compare(bound, other, FREE):
        advice = advice or "load the model so, or make another library"
        raise UsageError(f"library {library} was made with {', '.join(differences)}: {advice}")


def _compare(bound: Identity, other: Identity, free: tuple[str, ...]) -> list[str]:
    """Return in what two sets of settings differ, but for some that may."""
    ours, theirs = bound.as_dict(), other.as_dict()
    differences = []
    for name in {**ours, **theirs}:
        if name not in free and ours.get(name) != theirs.get(name):
            differences.append(f"{name}={ours.get(name)!r} and not {theirs.get(name)!r}")
    return differences


def check_query_model(bound: Identity, model: PageReader, library: str) -> None:
    """Refuse a model for queries that is neither a student of the one a library belongs to, nor that itself.

    Errors: UsageError in one line that says what differs.
    """
    teacher = find_teacher(model)
    spoken = teacher or model.identity
    if bound.weights != spoken.weights:
        what = f"a student of {teacher}" if teacher else "neither that nor a student of it"
        raise UsageError(f"library {library} belongs to {bound}, and {model.identity} is {what}")
    if differences := _compare(bound, spoken, (*FREE, *OF_PAGES)):
        raise UsageError(f"library {library} was made with {', '.join(differences)}: distill its model as it is there")


def refuse_student(model: PageReader) -> None:
    """Refuse a student as the model of a library.

    Errors: UsageError in one line.
    """
    if teacher := find_teacher(model):
        raise UsageError(
            f"{model.identity} is a student, which makes vectors of queries alone: index with {teacher}, and name the "
            "student by --query-model when searching"
        )


def read_binding(values: Any, library: str) -> Identity:
    """Read which model a library belongs to, as `Identity.as_dict` wrote it.

    Errors: RandSlotError if something is missing.
    """
    try:
        return read_identity(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise RandSlotError(f"library.json of {library} does not say which model it belongs to: {error}") from error


def load_bound(bound: Identity, name: str | None, library: str, *, trust_remote_code: bool = False) -> PageReader:
    """Load the model that a library belongs to, from where it came from or from `name`, with the library's settings.

    trust_remote_code: let it run code of its own, if it has any that this user has not trusted before.

    Errors: RandSlotError if that is another model, or cannot be found; MissingError without the extra that models need.
    UsageError for code that is not trusted.
    """
    from ..model.opening import open_model  # takes seconds for most models, and few uses of a library need one

    place = name or bound.name
    if place is None:
        raise RandSlotError(f"library {library} was made with a model in memory: pass that model")
    options: dict[str, Any] = {}
    if not is_url(place):
        options = {"revision": bound.revision if name is None else None, "dtype": bound.dtype}
        options["template"] = bound.settings.get("template")
        options |= _trust(bound, library, trust_remote_code)
    try:
        reader: PageReader = open_model(place, **options)
    except MissingError as error:
        line = f"library {library} belongs to {bound}, and {error}; --by words searches without a model"
        raise MissingError(line, name=error.name) from error
    refuse_student(reader)
    if reader.identity.weights == bound.weights:
        reader.use(**bound.settings)
    check_model(bound, reader.identity, library)
    return reader


def _trust(bound: Identity, library: str, trust_remote_code: bool) -> dict[str, Any]:
    """Return what lets a model run code of its own: the word of the user, now or earlier on this machine.

    Errors: UsageError that says which option to give.
    """
    if not bound.settings.get("trust_remote_code") or trust_remote_code:
        return {"trust_remote_code": trust_remote_code or None}
    from ..model.staging import is_code_trusted

    code = str(bound.settings.get("code"))
    if not is_code_trusted(code):
        raise UsageError(
            f"library {library} was made with {bound.name}, which runs code of its own: read that code, and if you "
            "trust it give --trust-remote-code (in Python Library(..., trust_remote_code=True))"
        )
    return {"known_code": code}
