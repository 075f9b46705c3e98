"""Text and names from documents of strangers, made safe for an agent: bounded, and without what cannot be seen."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"  # scripts of Iran and India are misspelled without them
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format (invisible, right-to-left, tags), halves, private, unassigned


def clean(text: str) -> str:
    """Return text without characters that cannot be seen: they may hold words for an agent that no person sees."""
    kept = []
    for character in text:
        if character in "\n\t" or character in JOINERS or unicodedata.category(character) not in HIDDEN:
            kept.append(character)
    return "".join(kept)


def clean_line(text: str, most: int) -> str:
    """Return text in one line of at most so many characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
