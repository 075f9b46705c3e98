"""What a search may be limited to: files by name, page numbers, and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .manifest import File, Manifest
from .sources import is_match
from .stores.store import Where


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Refuse metadata that no search could filter by.

    Errors: UsageError.
    """
    for key, value in (metadata or {}).items():
        if key in ("source", "page") or not isinstance(key, str):
            raise UsageError(f"metadata cannot be called {key!r}: searches filter by source and page already")
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(f"metadata {key!r} must be text, a number, or true or false, not {type(value).__name__}")


def make_where(filters: Mapping[str, Any], manifest: Manifest, library: str) -> Where | None:
    """Return which pages a search looks at, or None if there are none.

    Errors: UsageError for a wrong range of pages, or a key that no file has.
    """
    hidden = manifest.hidden()
    first, last = _page_range(filters.get("page"))
    metadata = {key: value for key, value in filters.items() if key != "page"}
    if not metadata:
        return Where(None, hidden, first, last)
    done = manifest.find(state="done")
    _check_keys(metadata, done, library)
    files = frozenset(file.id for file in done if is_meant(file, metadata))
    return Where(files, hidden, first, last) if files else None


def is_meant(file: File, filters: Mapping[str, Any]) -> bool:
    """Whether a file is one of those that filters by source and metadata let through."""
    metadata = {key: value for key, value in filters.items() if key not in ("page", "source")}
    return _is_source(filters.get("source"), file) and has_metadata(file, metadata)


def _check_keys(metadata: Mapping[str, Any], files: list[File], library: str) -> None:
    known = {"source", "page"}
    for file in files:
        known.update(file.metadata)
    for key in metadata:
        if key not in known:
            names = ", ".join(sorted(known))
            raise UsageError(f"no page in library {library} has {key!r} to filter by, only {names}")


def _is_source(source: Any, file: File) -> bool:
    """Whether a file is meant by a pattern, or is one of a set of paths."""
    if source is None or isinstance(source, frozenset):
        return source is None or file.source in source
    return is_match(str(source), file.source)


def has_metadata(file: File, wanted: Mapping[str, Any]) -> bool:
    """Whether a file has these metadata."""
    for key, value in wanted.items():
        if key not in file.metadata or _text(file.metadata[key]) != _text(value):
            return False
    return True


def _text(value: Any) -> str:
    """Return a value of metadata as text: 2023 and "2023" are the same to a filter."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _page_range(page: Any) -> tuple[int, int | None]:
    if page is None:
        return 1, None
    match page if isinstance(page, (tuple, list)) else (page, page):
        case (int(first), int(last)) if 1 <= first <= last:
            return first, last
    shown = "-".join(map(str, page)) if isinstance(page, (tuple, list)) else repr(page)
    raise UsageError(f"page must be a number from 1, or the first and the last of a range as in 3-9, not {shown}")
