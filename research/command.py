"""Run a function as a command, with one-line errors."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from randslot.errors import RandSlotError


def run(function: Callable[..., None]) -> None:
    """Run a function as a command: its parameters become arguments and options."""
    try:
        typer.run(function)
    except RandSlotError as error:
        sys.exit(f"{error}")
