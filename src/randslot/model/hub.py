"""Where model files are: a folder, or a hub repository that is downloaded into the local cache once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..errors import RandSlotError, UsageError, first_line

SERVING = "serving.json"  # what only an exported model has
EMBEDDED = "embedded"  # the model that ships with the package, in a folder of that name
# What a model is made of. Pickles in a repository are never even fetched, and Python files only if it is trusted.
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.md", "*.model", "*.metadata")
WITH_CODE = (*MODEL_FILES, "*.py")


@dataclass(frozen=True)
class Source:
    """Where a model came from: the name and revision to record, the folder to read. All empty: made in memory."""

    name: str | None = None
    revision: str | None = None
    folder: Path | None = None


def find(
    name: str | Path,
    revision: str | None = None,
    *,
    cache_folder: str | None = None,
    token: bool | str | None = None,
    local_files_only: bool = False,
    files: Sequence[str] = MODEL_FILES,
) -> Source:
    """Find a model by folder or hub id, or the one that ships with the package by its name, "embedded".

    A hub repository is downloaded unless it is in the cache. files: patterns of what is needed of it.

    Errors: RandSlotError in one line if there is no such folder (a UsageError) or repository, or no network to get it.
    """
    if name == EMBEDDED:
        return Source(EMBEDDED, None, Path(str(resources.files("randslot") / EMBEDDED)))
    folder = Path(name).expanduser()
    if str(name) and folder.is_dir():
        if revision is not None:
            raise UsageError(f"revision={revision!r} goes with a hub id, and {name} is a folder")
        return Source(str(folder.resolve()), None, folder.resolve())
    if folder.is_file():
        raise UsageError(f"{name} is a file: name the folder of a model, or a hub id like owner/name")
    if isinstance(name, Path) or not is_hub_id(name):
        raise UsageError(f"no model found at {str(name)!r}: not a folder here, and not a hub id like owner/name")
    commit, offline = (None, "only local files") if local_files_only else ask_hub(name, revision, token)
    try:
        snapshot = snapshot_download(
            name,
            revision=commit or revision,
            cache_dir=cache_folder,
            token=token,
            allow_patterns=list(files),
            local_files_only=offline is not None,
        )
    except (OSError, HfHubHTTPError) as error:
        reason = f"not in the local cache, and the hub gave no answer ({offline})" if offline else first_line(error)
        raise RandSlotError(
            f"cannot get model {name}: {reason}; check the name and the network, or pass a folder"
        ) from error
    return Source(name, Path(snapshot).name, Path(snapshot))


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) is not None and not name.startswith(".")


def ask_hub(
    name: str, revision: str | None, token: bool | str | None = None, kind: str = "model"
) -> tuple[str | None, str | None]:
    """Return the commit that a revision of a model or dataset stands for, or why the hub cannot be asked.

    Errors: RandSlotError in one line if the hub answers that there is none, or that it is gated.
    """
    try:
        return HfApi(token=token).repo_info(name, revision=revision, repo_type=kind, timeout=10).sha, None
    except GatedRepoError as error:
        raise RandSlotError(
            f"{kind} {name} is gated: accept its terms on the hub and log in with 'hf auth login'"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        where = f"at revision {revision}" if revision else "(or it is private: log in with 'hf auth login')"
        raise RandSlotError(f"no {kind} {name} {where} on the hub, and no folder of that name here") from error
    except Exception as error:  # no network, offline mode, a proxy: the cache may still have it
        return None, first_line(error)
