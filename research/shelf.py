"""Fetch a shelf of similar documents, with realistic questions: which release, language or simulator?

    python -m research.shelf data/shelf
    randslot evaluate --by words --data data/shelf/dev

Guides to the installation of Debian by release and machine, manuals of Berkeley DB by programming language, vignettes
of R packages in several versions, and so on: 153 PDFs, mostly with near-twins. The questions were written by reading
the pages: short, with names and versions, misspelled, with identifiers. The documents are not part of this package:
they are fetched from three releases of Debian and verified by hash. They are split into two halves that share no group
of near-twins: "dev" for tuning, "test" held out.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from randslot.errors import RandSlotError
from research.command import run
from research.debian import SPLITS, Rows, has_hash, read_rows, take_file, tell, unpack_debian, write_set

STYLES = ("short", "question", "twin", "typo", "identifier", "name")
Unpack = Callable[[str, str, Path], None]


@dataclass(frozen=True)
class Document:
    """One PDF of the shelf.

    source: in its package, where it may be compressed. file: on the shelf. group: its near-twins. hash: of the PDF.
    release: of Debian. version: of the package that the questions were written for.
    """

    package: str
    release: str
    version: str
    source: str
    file: str
    group: str
    split: str
    hash: str
    pages: int


@cache
def list_documents() -> tuple[Document, ...]:
    """Return all documents, those of one package together."""
    documents = []
    for entry in json.loads(Path(__file__).with_name("shelf.json").read_text(encoding="utf-8")):
        files = entry.pop("files")
        documents += [Document(**entry, **file) for file in files]
    return tuple(documents)


def list_questions() -> Rows:
    """Return all questions: "id", "split", "style", "query", "language", and "pages" with the grade of each page.

    style: one of STYLES; "twin" names what distinguishes near-twins. grade: 2 for a page that answers, 1 for a partial
    answer or a translation. If a question names no twin, the pages of all twins are relevant.
    """
    return read_rows("shelf_questions.jsonl")


def fetch_shelf(folder: Path, unpack: Unpack) -> list[str]:
    """Fetch the documents into a folder, and write both halves there as sets.

    Existing files are not fetched again. unpack: unpacks a package of a release into a folder. Returns a line per
    document that is unavailable in the right version.
    """
    problems = []
    missing = [one for one in list_documents() if not has_hash(_place(folder, one), one.hash)]
    for (package, release), documents in groupby(missing, key=lambda one: (one.package, one.release)):
        with tempfile.TemporaryDirectory() as place:
            try:
                unpack(package, release, Path(place))
            except RandSlotError as error:
                problems.append(f"{package} of {release}: {error}")
                continue
            for one in documents:
                try:
                    take_file(Path(place, one.source), _place(folder, one), one.hash)
                except RandSlotError as error:
                    problems.append(f"{package} {one.version} of {release}: {error}")
    for split in SPLITS:
        _write_half(folder, split)
    return problems


def _place(folder: Path, document: Document) -> Path:
    return folder / document.split / "pages" / document.file


def _write_half(folder: Path, split: str) -> None:
    """Write the questions of one half with the existing pages; all languages in one set, as on a shelf."""
    there = {one.file for one in list_documents() if one.split == split and _place(folder, one).is_file()}
    queries: Rows = []
    grades: Rows = []
    for question in list_questions():
        pages = {page: grade for page, grade in question["pages"].items() if page.partition("#")[0] in there}
        if question["split"] == split and pages:
            queries.append({key: question[key] for key in ("id", "query", "style")})
            grades += [{"query": question["id"], "page": page, "grade": grade} for page, grade in pages.items()]
    write_set(folder / split, queries, grades)


@cache
def _load_lists(release: str, folder: Path) -> tuple[str, ...]:
    """Load the package lists of a release from this system's mirror; returns apt-get's options to read them."""
    ask = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    known = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    mirror = next(address for address in known if "security" not in address)
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / release / part).mkdir(parents=True)
    sources = folder / release / "sources.list"
    sources.write_text(f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {release} main\n")
    settings = (
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={folder / release / 'lists'}",
        f"Dir::Cache={folder / release / 'cache'}",
        "APT::Sandbox::User=root",
    )
    options = tuple(f"-o{setting}" for setting in settings)
    update = subprocess.run(["apt-get", "update", "-q", *options], capture_output=True, text=True, check=False)
    if update.returncode:
        raise RandSlotError(f"cannot load the packages of {release}: {update.stderr.strip().splitlines()[-1]}")
    return options


def shelf(output: Path) -> None:
    """Fetch a shelf of similar documents with questions about them: dev for tuning, test held out."""
    with tempfile.TemporaryDirectory() as lists:

        def unpack(package: str, release: str, folder: Path) -> None:
            unpack_debian(package, folder, _load_lists(release, Path(lists)))

        problems = fetch_shelf(output, unpack)
    tell(output, problems)


if __name__ == "__main__":
    run(shelf)
