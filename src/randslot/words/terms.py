"""What a page and a query are compared by when words are searched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """Terms by their numbers (32 bits of a hash), and the weight of each."""

    numbers: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
