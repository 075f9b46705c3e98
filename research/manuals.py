"""Fetch real manuals with questions: fourteen PDFs from Debian, 252 realistic questions, and the pages that answer.

    python -m research.manuals data/manuals
    randslot evaluate --by words --data data/manuals/test

The questions were written by reading the pages. The manuals are not part of this package: they are fetched from their
Debian packages and verified by hash. They are split into two halves that share no manual and no translation of one:
"dev" for tuning, "test" held out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from randslot.errors import RandSlotError
from research.command import run
from research.debian import SPLITS, Rows, has_hash, read_rows, take_file, tell, unpack_debian, write_set


@dataclass(frozen=True)
class Manual:
    """One manual: its source, hash, and half.

    language: of the questions; "fr-on-en" are French questions about English pages. file: in its package, where it may
    be compressed. hash: of the PDF. version: of the package that the questions were written for.
    """

    key: str
    package: str
    version: str
    file: str
    hash: str
    pages: int
    language: str
    split: str


@cache
def list_manuals() -> tuple[Manual, ...]:
    """Return all manuals."""
    text = Path(__file__).with_name("manuals.json").read_text(encoding="utf-8")
    return tuple(Manual(**values) for values in json.loads(text))


def list_questions() -> Rows:
    """Return all questions: "id", "manual", "query", "kind", and "pages" with the grade of each page that answers.

    kind: what answers, "text", "table", "figure" or "identifier". grade: 2 for a complete answer, 1 for a partial one.
    """
    return read_rows("manual_questions.jsonl")


def fetch_manuals(folder: Path, unpack: Callable[[str, Path], None] = unpack_debian) -> list[str]:
    """Fetch the manuals into a folder, and write both halves there as sets.

    Existing files are not fetched again. unpack: unpacks a package into a folder. Returns a line per manual that is
    unavailable in the right version; its questions are skipped.
    """
    problems = []
    for manual in list_manuals():
        target = _place(folder, manual)
        if has_hash(target, manual.hash):
            continue
        with tempfile.TemporaryDirectory() as place:
            try:
                unpack(manual.package, Path(place))
                take_file(Path(place, manual.file), target, manual.hash)
            except RandSlotError as error:
                problems.append(f"{manual.key} of {manual.package} {manual.version}: {error}")
    for split in SPLITS:
        _write_half(folder, split)
    return problems


def _place(folder: Path, manual: Manual) -> Path:
    return folder / manual.split / "pages" / f"{manual.key}.pdf"


def _write_half(folder: Path, split: str) -> None:
    """Write the questions of one half whose manuals exist."""
    manuals = {manual.key: manual for manual in list_manuals() if manual.split == split}
    queries: Rows = []
    grades: Rows = []
    for question in list_questions():
        manual = manuals.get(question["manual"])
        if manual is None or not _place(folder, manual).is_file():
            continue
        kept = {"id": question["id"], "query": question["query"], "kind": question["kind"]}
        queries.append(kept | {"language": manual.language})
        for number, grade in question["pages"].items():
            grades.append({"query": question["id"], "page": f"{manual.key}.pdf#page={number}", "grade": grade})
    write_set(folder / split, queries, grades)


def manuals(output: Path) -> None:
    """Fetch real manuals with questions about them, to evaluate on: dev for tuning, test held out."""
    tell(output, fetch_manuals(output))


if __name__ == "__main__":
    run(manuals)
