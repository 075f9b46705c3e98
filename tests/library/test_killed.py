"""A process that is killed at random moments loses no page that it told of, and shows no file by halves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from randslot.library.library import Library
from support.libraries import scores, visible, write_tiff
from support.qdrant_server import serving

pytestmark = [pytest.mark.xdist_group("killed"), pytest.mark.slow]

KILLS, FILES = 6, 6


class Indexer:
    """Tells another process to index a folder, and kills it."""

    def __init__(self, process: subprocess.Popen[str], library: Path, model: Path, files: Path) -> None:
        self.process = process
        self.log = library.with_suffix(".log")
        self.order = {"library": str(library), "model": str(model), "files": str(files), "log": str(self.log)}

    def run(self, kill_at: int | None = None, wait: float = 0.0) -> tuple[bool, list[dict[str, object]]]:
        """Index; kill it when it has said so many things, and a moment later. Return if it was killed, and the log."""
        self.log.write_text("")
        self.process.stdin.write(json.dumps(self.order) + "\n")
        self.process.stdin.flush()
        if kill_at is not None:
            said = self._said()
            while len(said) < kill_at or not said:
                time.sleep(0.002)
                said = self._said()
                if said and not Path(f"/proc/{said[0]['pid']}").exists():
                    break
            time.sleep(wait)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(said[0]["pid"]), signal.SIGKILL)
        killed = json.loads(self.process.stdout.readline())
        return killed, self._said()

    def _said(self) -> list[dict[str, object]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    script = str(Path(__file__).parent.parent / "support" / "killable.py")
    started = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield started
    started.communicate()


@pytest.fixture
def indexer(process, tmp_path, saved) -> Indexer:
    (tmp_path / "files").mkdir()
    return Indexer(process, tmp_path / "lib", saved, tmp_path / "files")


def write_files(folder: Path, version: int) -> None:
    """Write all files anew: seven pages each in odd versions, six in even ones, the first page always the same."""
    for number in range(FILES):
        seeds = range(1000 * version + 10 * number, 1000 * version + 10 * number + 5 + version % 2)
        write_tiff(folder / f"{number}.tif", [number, *seeds])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments(indexer, tmp_path, saved, model):
    moments = random.Random(7)
    version, kills, before, caught = 0, 0, 0, 0
    write_files(tmp_path / "files", version)
    while kills < KILLS:
        killed, said = indexer.run(moments.randint(0, 30), moments.uniform(0, 0.05))
        assert not [line for line in said if "error" in line], said
        kills += killed
        told = max((int(line.get("pages", 0)) for line in said), default=0)
        with Library(tmp_path / "lib", model) as library:
            assert library.verify() == []
            for name, pages in visible(library).items():
                assert pages in [set(range(1, 7)), set(range(1, 8))], name
            stored = sum(library.store.counts().values())
            caught += bool(library.status().pending)
            if version == 0:
                assert stored >= before + told
                assert len(visible(library)) * 6 <= stored
            before = stored
        if not killed or kills == KILLS // 2:
            version += 1
            write_files(tmp_path / "files", version)
    assert version > 0
    assert caught >= 1  # it was in the middle of something
    killed, said = indexer.run()
    assert not killed
    with Library(tmp_path / "lib", model) as library, Library(tmp_path / "calm", model) as calm:
        calm.add(tmp_path / "files")
        assert {len(pages) for pages in visible(library).values()} == {6 + version % 2}
        assert library.status().pending == 0
        assert library.verify() == []
        after, wanted = scores(library), scores(calm)
        assert after.keys() == wanted.keys()
        np.testing.assert_allclose([after[key] for key in wanted], list(wanted.values()), atol=1e-4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_it_writes_to_a_server(indexer, tmp_path, model):
    """What it leaves is hidden, the next run goes on at once, and one after that has nothing to do."""
    write_files(tmp_path / "files", 0)
    with serving() as (standin, port):
        url = indexer.order["library"] = f"qdrant://127.0.0.1:{port}/papers"
        Library(url, model).close()
        for number in (3, 4, 6):  # writes: the turn, a file that begins, its first pages, and so on
            standin.lose = kill_after(number, indexer)
            killed, said = indexer.run()
            assert killed, said
            standin.lose = lambda _: False
            with Library(url, model) as library:
                assert set(map(frozenset, visible(library).values())) <= {frozenset(range(1, 7))}
                assert library.status().pending > 0
                assert library.verify() == []
        killed, said = indexer.run()
        assert not killed
        assert not [line for line in said if "error" in line], said
        with Library(url, model) as library:
            assert visible(library) == {f"{number}.tif": set(range(1, 7)) for number in range(FILES)}
            assert (library.status().pending, library.verify()) == (0, [])
            assert library.add(tmp_path / "files").unchanged == FILES


def kill_after(number: int, indexer: Indexer) -> Callable[[str], bool]:
    """Return what kills the indexing process when the server has done so many writes for it."""
    writes: list[str] = []

    def watch(method: str) -> bool:
        writes.extend([method] * (method == "Upsert"))
        if method == "Upsert" and len(writes) == number:
            os.kill(int(indexer._said()[0]["pid"]), signal.SIGKILL)
        return False

    return watch
