"""Filters of files: by path, year, type, language, author, title, and the user's metadata."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..pages import KINDS
from .manifest import File, show_folder
from .sources import is_match

YEAR = re.compile(r"(?<!\d)((?:19[5-9]|20[0-4])\d)(?:[01]\d[0-3]\d)?(?!\d)")  # FY2018, 2018-03-31, 20180331
OWN = ("source", "page", "in", "year", "type", "language", "author", "title")


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Raise UsageError for metadata that cannot be a filter."""
    for key, value in (metadata or {}).items():
        if key in ("source", "page", "in") or not isinstance(key, str):
            raise UsageError(f"metadata key {key!r} is reserved: choose another name")
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(f"metadata {key!r} must be text, a number, or true or false, not {type(value).__name__}")


def show_modified(file: File) -> datetime:
    """Return when a file was last modified, clamped to years 1 to 9999."""
    try:
        return datetime.fromtimestamp(file.modified // 10**9, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime(9999 if file.modified > 0 else 1, 1, 1, tzinfo=UTC)


def get_value(file: File, key: str) -> str:
    """Return a file's value for a filter: the user's metadata, else the file's own; "" if there is none.

    The year is taken from its name or the three folders above it, else its own date, else its last change.
    """
    if key in file.metadata:
        value = file.metadata[key]
        return str(value).lower() if isinstance(value, bool) else str(value)
    if key == "type":
        kind = KINDS.get(Path(file.source).suffix.lower())
        return kind.type if kind else ""
    if key == "year":
        name, *folders = reversed(Path(file.source).parts[-4:])
        for part in (Path(name).stem, *folders):
            if year := YEAR.search(part):
                return year[1]
        return file.properties.get("date", "")[:4] or str(show_modified(file).year)
    return file.properties.get(key, "")


def has_value(file: File, key: str, wanted: Any, root: str = "") -> bool:
    """Whether a file passes one filter.

    source: a pattern, or a set of paths. in: a substring of its name or of folders below the root. year: one, or first
    and last. type: also a suffix. author, title: a substring. Patterns and the user's metadata are case-sensitive.
    """
    if key == "source":
        return file.source in wanted if isinstance(wanted, frozenset) else is_match(str(wanted), file.source)
    if key == "in":
        path = Path(file.source)  # relative to the parent of the root, else folder and name
        start = Path(root).parent if root and path.is_relative_to(root) else path.parent.parent
        return str(wanted).casefold().strip("/") in os.fspath(path.relative_to(start)).casefold()
    value = get_value(file, key)
    if key == "year" and isinstance(wanted, (tuple, list)):
        return value.isdecimal() and wanted[0] <= int(value) <= wanted[1]
    text = str(wanted).lower() if isinstance(wanted, bool) else str(wanted)
    if key in file.metadata:
        return value == text
    if key in ("author", "title"):
        return bool(value) and text.casefold() in value.casefold()
    is_suffix = key == "type" and file.source.lower().endswith(f".{text.lower().lstrip('.')}")
    return is_suffix or value.casefold() == text.casefold()


def is_meant(file: File, filters: Mapping[str, Any], root: str = "") -> bool:
    """Whether a file passes all filters."""
    return all(has_value(file, key, wanted, root) for key, wanted in filters.items())


def count_values(files: Iterable[File], key: str) -> Counter[str]:
    """Count files by their value of a filter; for "in", by folder."""
    counts = Counter(show_folder(file) if key == "in" else get_value(file, key) for file in files)
    del counts[""]
    return counts


def explain_none(files: list[File], filters: Mapping[str, Any], root: str) -> str:
    """Return why no file passes the filters, with the values that exist."""
    for key, wanted in filters.items():
        if key == "source" or any(has_value(file, key, wanted, root) for file in files):
            continue
        values = count_values(files, key)
        first = [f"{value} ({num:,})" for value, num in values.most_common(8)]
        more = f" and {len(values) - 8:,} more" if len(values) > 8 else ""
        has = f"the library has {', '.join(first)}{more}" if first else "no file has one"
        return f"no file matches {key}={show_wanted(wanted)}: {has}"
    named = " and ".join(f"{key}={show_wanted(wanted)}" for key, wanted in filters.items())
    return f"no file of the library matches {named or 'these filters'}"


def show_wanted(wanted: Any) -> str:
    return "-".join(dict.fromkeys(map(str, wanted))) if isinstance(wanted, (tuple, list)) else str(wanted)
