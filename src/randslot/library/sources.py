"""Expand files, folders and patterns to document files, and match patterns against files of a library."""

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
    """The files to index. others: files of unsupported types. links: links to folders, not followed.

    folders: those searched. failed: folders that cannot be read, with the reason.
    """

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def list_files(paths: Iterable[str | os.PathLike[str]], library: Path, follow_links: bool = False) -> Listing:
    """List files by absolute path: named files of any type, and all documents below named folders.

    Hidden files and folders are skipped, and so is the library's own folder. follow_links: also follow links to
    folders, each folder once.
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
    """Whether a folder exists and has a document that `list_files` would list."""
    files = _walk(folder, library, Listing(), follow_links)
    return any(file.lower().endswith(DOCUMENT_SUFFIXES) for file in files)


def expand(path: str | os.PathLike[str]) -> list[str]:
    """Return the absolute paths that a path or pattern matches; UsageError if there are none."""
    path = os.fspath(path)
    if not path:
        raise UsageError("empty path: pass a file or a folder (. is the current one)")
    full = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(full):
        return [full]
    found = glob(full, recursive=True) if has_magic(full) else []
    if not found:
        raise UsageError(f"no such file or folder: {short(path)}")
    # A link to a parent folder yields the same file many times: keep the shortest path.
    real = {os.path.realpath(one): one for one in sorted(found, key=len, reverse=True)}
    return sorted(real.values())


def _walk(folder: str, library: Path, listing: Listing, follow_links: bool) -> Iterator[str]:
    def fail(error: OSError) -> None:
        listing.failed[str(error.filename)] = f"cannot be listed: {error.strerror}"

    own = os.path.abspath(library)
    seen: set[str] = set()  # a link to a parent folder would loop
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
    """Whether a pattern matches a source: its path, the end of its path, a parent folder, or wildcards."""
    full = os.path.abspath(os.path.expanduser(pattern))
    if source == full or source.endswith(f"/{pattern}") or is_below(source, full):
        return True
    if f"/{pattern.strip('/')}/" in source:  # the name of a parent folder
        return True
    return has_magic(pattern) and (fnmatchcase(source, full) or fnmatchcase(source, f"*/{pattern}"))


def is_gone(source: str) -> bool:
    """Whether a file no longer exists; an unreadable one does."""
    try:
        os.lstat(source)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


def is_below(source: str, folder: str) -> bool:
    """Whether a file is below a folder."""
    return source.startswith(os.path.join(folder, ""))
