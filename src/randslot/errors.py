"""Errors that a user can meet: one line that names the file or value and says what to do."""


class RandSlotError(ValueError):
    """Something went wrong with a file, a model or an input."""


class UsageError(RandSlotError):
    """A wrong option or value was given."""


class BusyError(RandSlotError):
    """Something that is needed is in use or out of reach for now: the same may work later."""


class MissingError(ImportError, RandSlotError):
    """A package of an extra is not installed."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
