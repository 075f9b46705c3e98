"""Questions about real manuals: fourteen PDFs that Debian ships, 252 questions that people could ask, and their pages.

    python -m research.manuals data/manuals
    randslot evaluate --by words --data data/manuals/test

The questions were written by reading the pages. The manuals are not part of this package: they are fetched by the name
of their Debian package and checked by a hash of their content. They come in two halves that share no manual and no
translation of one: "dev" to choose by, "test" to report.
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
    """One manual: where it is, what it must be, and which half it belongs to.

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

    kind: what answers, "text", "table", "figure" or "identifier". grade: 2 for a page that answers alone, 1 for a part.
    """
    return read_rows("manual_questions.jsonl")


def fetch_manuals(folder: Path, unpack: Callable[[str, Path], None] = unpack_debian) -> list[str]:
    """Fetch the manuals into a folder, and write both halves there as sets.

    What is there already is not fetched again. unpack: puts the files of a package into a folder. Returns a line for
    each manual that could not be had as the questions want it; its questions are left out.
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
    """Write the questions of one half as far as their manuals are there."""
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
    """Fetch real manuals with questions about them, to evaluate on: dev to choose by, test to report."""
    tell(output, fetch_manuals(output))


if __name__ == "__main__":
    run(manuals)
