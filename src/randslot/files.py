"""Atomic writes, JSON and text files, and the folder for data of this user."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from .errors import DiskFullError, RandSlotError, UsageError, in_one_line


def data_folder() -> Path:
    """Return the data folder of this user (XDG)."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "randslot"


def check_space(folder: Path, needed: int, reserve: int = 64 * 2**20) -> None:
    """Raise DiskFullError if the disk of a folder lacks room for some bytes and a reserve."""
    free = shutil.disk_usage(folder).free
    if free < needed + reserve:
        raise DiskFullError(
            f"the disk of {folder} is full: {free / 1e6:.0f} MB are free, and {(needed + reserve) / 1e6:.0f} MB are "
            "needed. Free some space, then retry"
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
    """Write JSON for people to read, atomically; the folder is made if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(content, indent=2) + "\n")


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Errors: RandSlotError in one line if it does not.
    """
    with in_one_line(f"read {file}"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise RandSlotError(f"{file} does not hold a JSON object")
    return content


def read_lines(file: Path) -> list[str]:
    """Read the lines of a text file that are not empty."""
    with in_one_line(f"read {file}", UsageError):
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]
