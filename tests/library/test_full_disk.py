"""A full disk refuses writes in one line. Searches still work, and indexing resumes once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from randslot.errors import DiskFullError
from randslot.library.library import Library
from randslot.library.manifest import File, FileManifest
from support.libraries import ToyReader, visible
from support.pdf import write_pages

MB = 2**20
FILL = """
import sys, uuid
from pathlib import Path
import numpy as np
from randslot.errors import DiskFullError
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import Filter, StoredPage
from randslot.library.stores.store import StoreQuery, Where

store = EdgeStore(Path(sys.argv[1]), 1024)
vectors = np.full((4, 1024), 1 / 32, np.float32)
file, num = str(uuid.UUID(int=1)), 0
try:
    while True:
        num += 1
        store.add([StoredPage(file, num, "", vectors)])
except DiskFullError as error:
    print(error)
Path(sys.argv[2]).write_bytes(bytes(10**6))  # somebody else writes on
assert store.count(Filter()) == num - 1
assert len(store.search([StoreQuery(vectors)], 5, Where(), exact=True)[0]) == 5
store.delete(file)
assert store.count(Filter()) == 0
store.close()
"""


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of 256 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def leave(disk: Path, free: int) -> Path:
    """Fill a disk up to some bytes, and return the file that fills it."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - free)
    return ballast


def test_a_store_stops_before_the_disk_is_full(disk, tmp_path):
    """In a process of its own: the engine would end it by SIGBUS."""
    words = [sys.executable, "-c", FILL, str(disk / "pages"), str(disk / "other")]
    answer = subprocess.run(words, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"the disk of {disk / 'pages'} is full: ")
    assert answer.stdout.count("\n") == 1


def test_indexing_resumes_once_there_is_room(disk, tmp_path):
    papers, library = tmp_path / "papers", str(disk / "lib")
    papers.mkdir()
    command = [sys.executable, "-m", "randslot"]
    index = [*command, "index", str(papers), "-l", library, "-q"]
    write_pages(papers / "first.pdf", [["Solar panels on the roof"]])
    subprocess.run(index, check=True)
    write_pages(papers / "second.pdf", [["Battery life"]])
    ballast = leave(disk, 40 * MB)
    refused = subprocess.run(index, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "MB free, " in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    found = subprocess.run([*command, "search", "solar", "-l", library], capture_output=True, text=True, check=True)
    assert "first.pdf" in found.stdout
    ballast.unlink()
    leave(disk, MB)
    refused = subprocess.run([*command, "search", "solar", "-l", library], capture_output=True, text=True)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)  # to open the engine takes some room
    ballast.unlink()
    subprocess.run(index, check=True)
    with Library(library) as opened:
        assert [hit.page for word in ("solar", "battery") for hit in opened.search(word)] == [1, 1]
        assert opened.verify() == []


def test_whichever_write_is_refused_nothing_is_lost(tmp_path, monkeypatch):
    """As SQLite's own tests do: the first write fails, then the second, until none does."""
    papers = tmp_path / "papers"
    papers.mkdir()
    write_pages(papers / "a.pdf", [["Solar panels"], ["on the roof"]])
    write_pages(papers / "b.pdf", [["Battery life"]])
    usage, calls, failing = namedtuple("usage", "total used free"), [], [0]

    def measure(_: object) -> tuple[int, int, int]:
        calls.append(1)
        return usage(10**12, 0, 0 if len(calls) == failing[0] else 10**12)

    monkeypatch.setattr(shutil, "disk_usage", measure)
    refused = []
    for number in count(1):
        calls.clear()
        failing[0] = number
        place = tmp_path / str(number)
        try:
            with Library(place, ToyReader()) as library:
                library.add(papers, workers=1)
        except DiskFullError:
            refused.append(number)
        if len(calls) < number:
            break
        failing[0] = 0
        with Library(place, ToyReader()) as library:
            library.add(papers, workers=1)
            assert visible(library) == {"a.pdf": {1, 2}, "b.pdf": {1}}
            assert library.verify() == []
    assert len(refused) >= 4


def test_a_manifest_on_a_full_disk_says_so(disk):
    manifest = FileManifest(disk / "files.sqlite")
    leave(disk, 0)
    with pytest.raises(DiskFullError, match=r"files.sqlite: the disk is full"):
        manifest.put(*(File(f"/{number}", "h", 1, 1, 1, {"text": "x" * 1000}) for number in range(1000)))
    assert manifest.find() == []
    manifest.close()
