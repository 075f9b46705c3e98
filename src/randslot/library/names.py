"""Names of documents as text that can be shown, and what tells documents of one name apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from .manifest import File


def show_name(file: File) -> str:
    """Return the name of a document as text that can be shown: bytes that are not text are replaced."""
    return _readable(os.path.basename(file.source))


def show_folder(file: File) -> str:
    """Return the name of the folder that a document is in, and not the path to it."""
    return _readable(os.path.basename(os.path.dirname(file.source)))


def tell_apart(files: Iterable[File]) -> dict[str, str]:
    """Return by their ids where documents are whose name others have too: as little of the folders as tells them apart.

    As in "2023", or "2023/…" if the folders below that are called the same.
    """
    named: dict[str, list[File]] = {}
    for file in files:
        named.setdefault(show_name(file), []).append(file)
    places = {}
    for same in named.values():
        if len(same) > 1:
            places.update(_name_folders(same))
    return places


def _name_folders(files: list[File]) -> dict[str, str]:
    folders = {file.id: _readable(os.path.dirname(file.source)).strip(os.sep).split(os.sep) for file in files}
    ends: dict[str, tuple[str, ...]] = {}
    for depth in range(1, max(map(len, folders.values())) + 1):
        cut = {id: tuple(folder[-depth:]) for id, folder in folders.items()}
        counts = Counter(cut.values())
        for id, end in cut.items():
            if counts[end] == 1 or depth >= len(folders[id]):
                ends.setdefault(id, end)
        if len(ends) == len(files):
            break
    short = {id: end[0] + ("/…" if len(end) > 1 else "") for id, end in ends.items()}
    clear = [name for name, num in Counter(short.values()).items() if num == 1]
    return {id: name if name in clear else "/".join(ends[id]) for id, name in short.items()}


def _readable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
