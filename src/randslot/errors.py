"""Errors that a user can meet: one line that names the file or value and says what to do."""


class RandSlotError(ValueError):
    """Something went wrong with a file, a model or an input."""


class UsageError(RandSlotError):
    """A wrong option or value was given."""
