"""Which files an agent may add: documents below folders that the user has allowed, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import RandSlotError, UsageError
from ..library.library import Library
from ..library.results import Summary
from ..library.served_library import ServedLibrary
from ..pages import DOCUMENT_SUFFIXES, short
from ..pages.ocr import find_engine

WHERE = "only documents below folders that were allowed can be added"


def check_folders(folders: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return folders by their real paths.

    Errors: UsageError for one that does not exist, or that is the root of all.
    """
    found = []
    for folder in folders:
        if not os.fspath(folder):
            raise UsageError("--add-from takes a folder, and this is an empty path")
        real = Path(os.path.realpath(os.path.expanduser(folder)))
        if not real.is_dir():
            raise UsageError(f"--add-from takes a folder, and {folder} is none")
        if real == Path(real.anchor):
            raise UsageError("--add-from / would allow every file of this machine: name a folder of documents")
        found.append(real)
    return tuple(found)


def find_allowed(path: str, folders: Sequence[Path]) -> Path:
    """Return the real path of a document that may be added; relative paths are below one of the folders.

    Links are followed before it is decided. What is outside is answered the same way whether it exists or not.

    Errors: RandSlotError if it may not be added, or is not there.
    """
    if "\0" in path:
        raise RandSlotError(WHERE)
    given = Path(path)
    candidates = [given] if given.is_absolute() else [folder / given for folder in folders]
    for candidate in candidates:
        real = Path(os.path.realpath(candidate))
        if any(_is_allowed(real, folder) for folder in folders) and real.is_file():
            return real
    raise RandSlotError(
        f"{WHERE}, not {short(path)}: name a file that is there by its whole path, or relative to such a folder, which "
        f"is not hidden and ends in {', '.join(DOCUMENT_SUFFIXES)}"
    )


def _is_allowed(file: Path, folder: Path) -> bool:
    if not file.is_relative_to(folder) or file.suffix.lower() not in DOCUMENT_SUFFIXES:
        return False
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def add_one(library: Library | ServedLibrary, file: Path) -> Summary:
    """Index one file; pages without text are read by OCR if there is an engine, as the command does."""
    summary = library.add([str(file)])
    if summary.without_text and find_engine() is not None:
        summary.by_ocr = library.read_words(ocr="missing")
    return summary
