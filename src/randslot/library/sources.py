"""From what a user names (files, folders, patterns) to document files, and from a pattern to files of a library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path

from ..errors import UsageError
from ..pages import DOCUMENT_SUFFIXES, short


@dataclass
class Listing:
    """The files to index, the folders they were looked for in, other files there, and folders that do not open.

    links: to folders, which were not followed.
    """

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def list_files(paths: Iterable[str | os.PathLike[str]], library: Path, follow_links: bool = False) -> Listing:
    """List files by absolute path: named files of any type, and all documents below named folders.

    Hidden files and folders are passed over, and so is the library's own folder. follow_links: also into folders behind
    links, each folder once.
    """
    listing = Listing()
    for path in paths:
        for found in expand(path):
            if not os.path.isdir(found):
                listing.files.append(found)
                continue
            listing.folders.append(found)
            for file in _walk(found, library, listing, follow_links):
                is_document = file.lower().endswith(DOCUMENT_SUFFIXES)
                (listing.files if is_document else listing.others).append(file)
    listing.files = list(dict.fromkeys(listing.files))
    return listing


def has_documents(folder: str, library: Path, follow_links: bool = False) -> bool:
    """Whether a folder is there and has a document that `list_files` lists."""
    files = _walk(folder, library, Listing(), follow_links)
    return any(file.lower().endswith(DOCUMENT_SUFFIXES) for file in files)


def expand(path: str | os.PathLike[str]) -> list[str]:
    """Return the absolute paths that a path or pattern matches; UsageError if there are none."""
    path = os.fspath(path)
    if not path:
        raise UsageError("empty path: pass a file or a folder, or . for this one")
    full = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(full):
        return [full]
    found = glob(full, recursive=True) if has_magic(full) else []
    if not found:
        raise UsageError(f"no such file or folder: {short(path)}")
    # A link to a folder above gives the same file many times: the shortest path counts.
    real = {os.path.realpath(one): one for one in sorted(found, key=len, reverse=True)}
    return sorted(real.values())


def _walk(folder: str, library: Path, listing: Listing, follow_links: bool) -> Iterator[str]:
    def fail(error: OSError) -> None:
        listing.failed[str(error.filename)] = f"cannot be listed: {error.strerror}"

    own = os.path.abspath(library)
    seen: set[str] = set()  # a link to a folder above would go round for ever
    for place, folders, files in os.walk(folder, onerror=fail, followlinks=follow_links):
        if follow_links and os.path.realpath(place) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(place))
        visible = [name for name in sorted(folders) if not name.startswith(".")]
        folders[:] = [name for name in visible if os.path.join(place, name) != own]
        if not follow_links:
            listing.links += [path for name in folders if os.path.islink(path := os.path.join(place, name))]
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.join(place, name)


def is_match(pattern: str, source: str) -> bool:
    """Whether a source is meant by a pattern: its path, its last parts, a folder above it, or wildcards for either."""
    full = os.path.abspath(os.path.expanduser(pattern))
    if source == full or source.endswith(f"/{pattern}") or is_below(source, full):
        return True
    if f"/{pattern.strip('/')}/" in source:  # the name of a folder above it
        return True
    return has_magic(pattern) and (fnmatchcase(source, full) or fnmatchcase(source, f"*/{pattern}"))


def is_gone(source: str) -> bool:
    """Whether a file is no longer there; one that may not be looked at is not gone."""
    try:
        os.lstat(source)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


def is_below(source: str, folder: str) -> bool:
    """Whether a file is in a folder or further down."""
    return source.startswith(os.path.join(folder, ""))
