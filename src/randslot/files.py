"""Atomic writes, JSON and text files, and the user's data folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from .errors import DiskFullError, RandSlotError, UsageError, in_one_line


def data_folder() -> Path:
    """Return the user's data folder (XDG)."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "randslot"


def check_space(folder: Path, needed: int, reserve: int = 64 * 2**20) -> None:
    """Raise DiskFullError if a folder's disk has less than needed + reserve bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed + reserve:
        raise DiskFullError(
            f"the disk of {folder} is full: {free / 1e6:.0f} MB free, {(needed + reserve) / 1e6:.0f} MB needed. "
            "Free some space, then retry"
        )


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    part = file.with_name(f"{file.name}.part")
    if isinstance(content, str):
        part.write_text(content, encoding="utf-8")
    else:
        part.write_bytes(content)
    os.replace(part, file)


def write_json(file: Path, content: Any) -> None:
    """Write indented JSON atomically; create the folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(content, indent=2) + "\n")


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Errors: RandSlotError if it holds something else.
    """
    with in_one_line(f"read {file}"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise RandSlotError(f"{file} does not hold a JSON object")
    return content


def read_lines(file: Path) -> list[str]:
    """Read the non-empty lines of a text file."""
    with in_one_line(f"read {file}", UsageError):
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]
