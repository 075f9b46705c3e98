"""What a library answers, as JSON and back: between a service that has it open and a command that asks it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..words.snippets import Snippet
from .manifest import File
from .results import Copy, Hit, Match, Progress, Status, Summary


def write_file(file: File) -> dict[str, Any]:
    """Return a file as JSON has it: its path need not be valid text."""
    return asdict(file) | {"source": _write_path(file.source)}


def read_file(values: Mapping[str, Any]) -> File:
    """Read what `write_file` wrote."""
    return File(**{**values, "source": _read_path(values["source"])})


def write_hit(hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON has it."""
    copies = [asdict(copy) | {"source": _write_path(copy.source)} for copy in hit.copies]
    return hit.as_dict() | {"source": _write_path(hit.source), "copies": copies}


def read_hit(values: Mapping[str, Any]) -> Hit:
    """Read what `write_hit` wrote."""
    snippet = values["snippet"]
    if snippet is not None:
        snippet = Snippet(snippet["text"], tuple((start, end) for start, end in snippet["marks"]))
    matches = tuple(Match(**match) for match in values["matches"])
    boxes = tuple((left, top, right, bottom) for left, top, right, bottom in values["boxes"])
    copies = tuple(Copy(**{**copy, "source": _read_path(copy["source"])}) for copy in values["copies"])
    read = {"snippet": snippet, "matches": matches, "boxes": boxes, "copies": copies}
    return Hit(**{**values, "source": _read_path(values["source"]), **read})


def write_summary(summary: Summary) -> dict[str, Any]:
    """Return a summary as JSON has it."""
    values = summary.as_dict()
    for name in ("added", "changed", "moved", "removed", "others"):
        values[name] = [_write_path(source) for source in values[name]]
    values["failed"] = [[_write_path(source), reason] for source, reason in summary.failed.items()]
    return values


def read_summary(values: Mapping[str, Any]) -> Summary:
    """Read what `write_summary` wrote."""
    read = dict(values)
    for name in ("added", "changed", "moved", "removed", "others"):
        read[name] = [_read_path(source) for source in values[name]]
    read["failed"] = {_read_path(source): reason for source, reason in values["failed"]}
    return Summary(**read)


def write_status(status: Status) -> dict[str, Any]:
    """Return a status as JSON has it."""
    return status.as_dict()


def read_status(values: Mapping[str, Any]) -> Status:
    """Read what `write_status` wrote."""
    return Status(**{**values, "notes": tuple(values["notes"]), "languages": tuple(values.get("languages", ()))})


def write_progress(now: Progress) -> dict[str, Any]:
    """Return progress as JSON has it; files that were finished are counted by whoever asks."""
    return asdict(now) | {"finished": [_write_path(source) for source in now.finished]}


def read_progress(values: Mapping[str, Any]) -> Progress:
    """Read what `write_progress` wrote."""
    return Progress(**{**values, "finished": tuple(_read_path(source) for source in values["finished"])})


def write_paths(paths: list[str]) -> list[str]:
    """Return paths as JSON has them."""
    return [_write_path(path) for path in paths]


def read_paths(paths: list[str]) -> list[str]:
    """Read what `write_paths` wrote."""
    return [_read_path(path) for path in paths]


def _write_path(path: str) -> str:
    """Return a path as text: bytes that are no text are kept as surrogates, which JSON escapes."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _read_path(text: str) -> str:
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))
