"""Resolve a model name to files: a folder, or a hub repository in the local cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..errors import RandSlotError, UsageError, first_line

SERVING = "serving.json"  # only an exported model has it
# Pickles are never downloaded, and Python files only if the user trusts them.
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.md", "*.model", "*.metadata", "*.toml")
WITH_CODE = (*MODEL_FILES, "*.py")


@dataclass(frozen=True)
class Source:
    """Where a model came from: the name and revision to record, the folder to read. All empty: built in memory."""

    name: str | None = None
    revision: str | None = None
    folder: Path | None = None

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        assert self.folder is not None
        return self.folder / name


def resolve(
    name: str | Path, revision: str | None = None, *, files: Sequence[str] = MODEL_FILES, **options: Any
) -> Source:
    """Resolve a model: a folder, a hub id (downloaded unless cached), or "embedded", which ships with the package.

    files: patterns of the files to download. options: of `snapshot_download`.

    Errors: UsageError if there is no such folder; RandSlotError if the hub has no such model or cannot be reached.
    """
    if name == "embedded":
        return Source(name, None, Path(str(resources.files("randslot") / name)))
    folder = Path(name).expanduser()
    if str(name) and folder.is_dir():
        if revision is not None:
            raise UsageError(f"revision={revision!r} requires a hub id; {name} is a folder")
        return Source(str(folder.resolve()), None, folder.resolve())
    if isinstance(name, Path) or folder.is_file() or not is_hub_id(name):
        raise UsageError(f"no model found at {str(name)!r}: not a folder, and not a hub ID such as owner/name")
    try:
        snapshot = snapshot_download(name, revision=revision, allow_patterns=list(files), **options)
    except GatedRepoError as error:
        terms = "accept its terms on the hub and log in with 'hf auth login'"
        raise RandSlotError(f"model {name} is gated: {terms}") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        where = f"at revision {revision}" if revision else "(or it is private: log in with 'hf auth login')"
        raise RandSlotError(f"no model {name} {where} on the hub, and no folder of that name here") from error
    except Exception as error:  # no network, a proxy, a full disk
        absent = "not in the local cache: " if isinstance(error, LocalEntryNotFoundError) else ""
        line = f"cannot download model {name}: {absent}{first_line(error)}"
        raise RandSlotError(f"{line}. Check the name and the network, or pass a folder.") from error
    return Source(name, Path(snapshot).name, Path(snapshot))


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) is not None and not name.startswith(".")
