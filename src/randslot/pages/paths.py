"""Paths of pages: "scan.png" is a file that is one page, "report.pdf#page=3" is a page of a file with several."""

from __future__ import annotations

import re
from pathlib import Path

from .kinds import KINDS

_SEVERAL = "|".join(suffix.removeprefix(".") for suffix, kind in KINDS.items() if kind.several_pages)
FILE_PAGE = re.compile(rf"(?P<file>.+\.(?:{_SEVERAL}))#page=(?P<number>\d+)", re.IGNORECASE | re.DOTALL)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have gives False."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def page_file(page: str) -> Path:
    """Return the file that a page's path points into: the path itself, or the PDF before "#page=3"."""
    found = None if is_file(Path(page)) else FILE_PAGE.fullmatch(page)
    return Path(found["file"] if found else page)


def show_pages(num: int) -> str:
    """Return a number of pages in words."""
    return "1 page" if num == 1 else f"{num} pages"


def short(name: str) -> str:
    """Return a name as it may stand in one line of an error: unchanged if it is printable and not too long."""
    return name if name.isprintable() and 0 < len(name) <= 300 else ascii(name[:80])
