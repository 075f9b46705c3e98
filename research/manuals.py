"""Questions about real manuals: fourteen PDFs that Debian ships, 252 questions that people could ask, and their pages.

    python -m research.manuals data/manuals
    randslot evaluate --by words --data data/manuals/test

The questions were written by reading the pages. The manuals are not part of this package: they are fetched by the name
of their Debian package and checked by a hash of their content. They come in two halves that share no manual and no
translation of one: "dev" to choose by, "test" to report.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from randslot.errors import RandSlotError, UsageError
from randslot.files import write_whole
from research.command import run

SPLITS = ("dev", "test")
Unpack = Callable[[str, Path], None]


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
    return tuple(Manual(**values) for values in json.loads(_read("manuals.json")))


def list_questions() -> list[dict[str, Any]]:
    """Return all questions: "id", "manual", "query", "kind", and "pages" with the grade of each page that answers.

    kind: what answers, "text", "table", "figure" or "identifier". grade: 2 for a page that answers alone, 1 for a part.
    """
    return [json.loads(line) for line in _read("manual_questions.jsonl").splitlines()]


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def fetch_manuals(folder: Path, unpack: Unpack | None = None) -> list[str]:
    """Fetch the manuals into a folder, and write both halves there as sets that `randslot evaluate --data` takes.

    What is there already is not fetched again. unpack: puts the files of a package into a folder; by default Debian's.
    Returns a line for each manual that could not be had as the questions want it; its questions are left out.

    Errors: UsageError if the folder cannot be written, or this system has no Debian packages.
    """
    missing = [manual for manual in list_manuals() if not _is_right(_place(folder, manual), manual)]
    if missing and unpack is None:
        unpack = _find_unpack()
    problems = []
    try:
        for split in SPLITS:
            (folder / split / "pages").mkdir(parents=True, exist_ok=True)
        for manual in missing:
            assert unpack is not None
            try:
                _fetch(manual, _place(folder, manual), unpack)
            except RandSlotError as error:
                problems.append(f"{manual.key}: {error}")
        for split in SPLITS:
            _write_set(folder, split)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    return problems


def _place(folder: Path, manual: Manual) -> Path:
    return folder / manual.split / "pages" / f"{manual.key}.pdf"


def _is_right(file: Path, manual: Manual) -> bool:
    return file.is_file() and blake2b(file.read_bytes(), digest_size=16).hexdigest() == manual.hash


def _fetch(manual: Manual, file: Path, unpack: Unpack) -> None:
    with tempfile.TemporaryDirectory() as place:
        unpack(manual.package, Path(place))
        found = Path(place, manual.file)
        if not found.is_file():
            raise RandSlotError(f"package {manual.package} has no {manual.file}; version {manual.version} has")
        content = found.read_bytes()
    if manual.file.endswith(".gz"):
        content = gzip.decompress(content)
    if blake2b(content, digest_size=16).hexdigest() != manual.hash:
        raise RandSlotError(
            f"{manual.file} is not the one of {manual.package} {manual.version}, which the questions are about"
        )
    write_whole(file, content)


def _find_unpack() -> Unpack:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise UsageError(f"the manuals come from Debian packages, and this system has no {program}")
    return unpack_debian


def unpack_debian(package: str, folder: Path, options: Sequence[str] = ()) -> None:
    """Download a package of Debian and unpack its files; nothing is installed. options: of apt-get."""
    steps = (["apt-get", "download", "-q", *options, package], ["sh", "-c", 'dpkg-deb -x "$0"_*.deb .', package])
    for step in steps:
        answer = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
        if answer.returncode:
            lines = (answer.stderr or answer.stdout).strip().splitlines() or ["no reason given"]
            raise RandSlotError(f"cannot get package {package}: {lines[-1]} (apt-get update may help)")


def _write_set(folder: Path, split: str) -> None:
    """Write the questions of one half as far as their manuals are there."""
    manuals = {manual.key: manual for manual in list_manuals() if manual.split == split}
    queries: list[dict[str, Any]] = []
    grades: list[dict[str, Any]] = []
    for question in list_questions():
        manual = manuals.get(question["manual"])
        if manual is None or not _place(folder, manual).is_file():
            continue
        kept = {"id": question["id"], "query": question["query"], "kind": question["kind"]}
        queries.append(kept | {"language": manual.language})
        for number, grade in question["pages"].items():
            grades.append({"query": question["id"], "page": f"{manual.key}.pdf#page={number}", "grade": grade})
    for name, rows in (("queries.jsonl", queries), ("qrels.jsonl", grades)):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_whole(folder / split / name, "".join(lines))


def manuals(output: Path) -> None:
    """Fetch real manuals with questions about them, to evaluate on: dev to choose by, test to report."""
    problems = fetch_manuals(output)
    for split in SPLITS:
        num = len((output / split / "queries.jsonl").read_text(encoding="utf-8").splitlines())
        print(f"{num} questions in {output / split}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    run(manuals)
