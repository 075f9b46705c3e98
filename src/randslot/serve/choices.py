"""Which documents are meant: by a part of the name, the folder, the date, and metadata; and what there is to choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal

from ..library.filters import has_metadata
from ..library.manifest import File
from ..library.names import show_folder, show_name
from ..library.sources import is_match
from .limits import CHOICES

Sort = Literal["name", "folder", "pages", "size", "modified"]
MOST_YEAR = 9999


@dataclass(frozen=True)
class Choice:
    """What a document must be, as far as it is given.

    name: a part of the name in any case, or wildcards. folder: its name. first, last: days of its last change, in UTC.
    source: as in the library's filters.
    """

    name: str = ""
    folder: str | None = None
    first: date | None = None
    last: date | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether it says no more than the library's own filter by source can."""
        return self == Choice(source=self.source)

    def allows(self, file: File) -> bool:
        """Whether a document is meant."""
        day = show_modified(file).date()
        return (
            has_name(file, self.name)
            and (self.folder is None or show_folder(file) == self.folder)
            and (self.first is None or day >= self.first)
            and (self.last is None or day <= self.last)
            and has_metadata(file, self.metadata)
            and (self.source is None or is_match(self.source, file.source))
        )


@dataclass(frozen=True)
class Choices:
    """What documents can be chosen by, each with how many there are: the most frequent first, years by time."""

    folders: dict[str, int] = field(metadata={"description": "how many documents are in each"})
    years: dict[int, int] = field(metadata={"description": "how many documents were last changed in each"})
    metadata: dict[str, dict[str, int]] = field(metadata={"description": "by key, how many documents have each value"})


def list_choices(files: Iterable[File]) -> Choices:
    """Return what there is to choose from."""
    folders: Counter[str] = Counter()
    years: Counter[int] = Counter()
    metadata: dict[str, Counter[str]] = {}
    for file in files:
        folders[show_folder(file)] += 1
        years[show_modified(file).year] += 1
        for key, value in file.metadata.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            metadata.setdefault(key, Counter())[text] += 1
    return Choices(
        dict(folders.most_common(CHOICES)),
        dict(sorted(years.items(), reverse=True)[:CHOICES]),
        {key: dict(values.most_common(CHOICES)) for key, values in sorted(metadata.items())[:CHOICES]},
    )


def sort_files(files: list[File], by: Sort, descending: bool) -> list[File]:
    """Return documents in an order; equal ones by name."""
    keys: dict[Sort, Callable[[File], Any]] = {
        "name": lambda file: 0,
        "folder": lambda file: show_folder(file).lower(),
        "pages": lambda file: file.num_pages,
        "size": lambda file: file.size,
        "modified": lambda file: file.modified,
    }
    by_name = sorted(
        files, key=lambda file: (show_name(file).lower(), file.source), reverse=descending and by == "name"
    )
    return sorted(by_name, key=keys[by], reverse=descending)


def has_name(file: File, part: str) -> bool:
    """Whether a document has a text in its name, or a name that fits these wildcards."""
    name, part = show_name(file).lower(), part.lower()
    return part in name or fnmatchcase(name, part)


def show_modified(file: File) -> datetime:
    """Return when a file was last changed; what no calendar has becomes the first or the last moment that it has."""
    try:
        return datetime.fromtimestamp(file.modified // 10**9, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime(MOST_YEAR if file.modified > 0 else 1, 1, 1, tzinfo=UTC)
