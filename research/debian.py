"""Fetch real documents from Debian packages, verify their hashes, and write sets for `randslot evaluate --data`."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from randslot.errors import RandSlotError
from randslot.files import write_whole

SPLITS = ("dev", "test")
Rows = list[dict[str, Any]]


def read_rows(name: str) -> Rows:
    """Return the rows of a file in this folder."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def unpack_debian(package: str, folder: Path, options: Sequence[str] = ()) -> None:
    """Download a Debian package and unpack it without installing. options: of apt-get."""
    steps = (["apt-get", "download", "-q", *options, package], ["sh", "-c", 'dpkg-deb -x "$0"_*.deb .', package])
    for step in steps:
        try:
            answer = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise RandSlotError(f"cannot get package {package}: this system has no {step[0]}") from error
        if answer.returncode:
            lines = (answer.stderr or answer.stdout).strip().splitlines() or ["no reason given"]
            raise RandSlotError(f"cannot get package {package}: {lines[-1]} (apt-get update may help)")


def has_hash(file: Path, hash: str) -> bool:
    """Whether a file exists and has this hash."""
    return file.is_file() and blake2b(file.read_bytes(), digest_size=16).hexdigest() == hash


def take_file(source: Path, target: Path, hash: str) -> None:
    """Copy a file out of its package, decompressing it if needed.

    Errors: RandSlotError if the package lacks it or has a different version.
    """
    if not source.is_file():
        raise RandSlotError(f"the package has no {source.name}")
    content = source.read_bytes()
    if source.suffix == ".gz":
        content = gzip.decompress(content)
    if blake2b(content, digest_size=16).hexdigest() != hash:
        raise RandSlotError(f"the package has a different {source.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)


def write_set(folder: Path, queries: Rows, grades: Rows) -> None:
    """Write questions and the grades of pages."""
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    for name, rows in (("queries.jsonl", queries), ("qrels.jsonl", grades)):
        write_whole(folder / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def tell(output: Path, problems: list[str]) -> None:
    """Print the number of questions of each half; exit with an error if there are problems."""
    for split in SPLITS:
        num = len((output / split / "queries.jsonl").read_text(encoding="utf-8").splitlines())
        print(f"{num} questions in {output / split}")
    if problems:
        sys.exit("\n".join(problems))
