"""What an adapter says when its framework is missing or broken: one line. Nothing else of the package is affected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import first_line


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """A block of imports from a framework.

    Errors: ImportError in one line if the package is missing, or fails in whatever way when it is imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = f'this needs {package}: pip install "randslot[{extra}]" ({first_line(error)})'
        raise ImportError(line, name=error.name) from error
    except Exception as error:
        raise ImportError(f"{package} does not work here: {type(error).__name__}: {first_line(error)}") from error
