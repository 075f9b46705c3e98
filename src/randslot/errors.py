"""Errors for users: one line with the file or value, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager


class RandSlotError(ValueError):
    """Something went wrong with a file, a model or an input."""


class UsageError(RandSlotError):
    """A wrong option or value was given."""


class BusyError(RandSlotError):
    """A resource is in use or temporarily unreachable: a retry may succeed."""


class DiskFullError(RandSlotError):
    """The disk is too full for a write. Nothing was written; searches still work."""


class MissingError(ImportError, RandSlotError):
    """A package of an extra is not installed."""


@contextmanager
def in_one_line(doing: str, kind: type[RandSlotError] = RandSlotError, hint: str = "") -> Iterator[None]:
    """Convert third-party exceptions to "cannot DOING: reason"; RandSlotError passes unchanged."""
    try:
        yield
    except RandSlotError:
        raise
    except Exception as error:
        raise kind(f"cannot {doing}: {first_line(error)}{hint}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
