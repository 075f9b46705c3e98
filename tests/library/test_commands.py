"""The commands: what they print, their exit codes, and errors of one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from randslot.cli import main
from randslot.library.library import Library
from support.libraries import write_tiff


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("logging.Logger.setLevel", lambda *_: None)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["randslot", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_commands_of_a_library_with_vectors(run, papers, saved):
    code, out, err = run("index", "papers", "-l", "lib", "--model", str(saved))
    assert (code, err) == (0, "")
    assert "files: 3 added\n7 pages, 7 of them encoded, in" in out
    (told,) = re.findall(r"the library has 7 pages, ([\d.]+ KB on disk, [\d.]+ KB per page, 512)", out)
    assert told in " ".join(run("library", "status", "-l", "lib")[1].split())  # both tell the same size
    write_tiff(papers / "a.tif", [1, 2, 30])
    os.remove(papers / "b.tif")
    code, out, _ = run("index", "papers", "-l", "lib", "--prune", "--yes")
    assert "  papers/b.tif\n1 file removed" in out
    assert (code, "files: 1 changed, 1 removed, 1 unchanged\n3 pages, 1 of them encoded" in out) == (0, True)
    code, out, _ = run("index", "papers", "-l", "lib")
    assert (code, out.startswith("files: 2 unchanged\nthe library has")) == (0, True)
    check_explained(run)
    check_errors(run)
    check_status_is_light()


def check_explained(run):
    _, out, _ = run("search", "tax", "-l", "lib", "-k", "1", "--explain", "--query-vectors", "2")
    label, score, *matches = out.splitlines()[1].split()
    assert (label, float(score) > 0, len(matches)) == ("MaxSim", True, 4)
    hit = json.loads(run("search", "tax", "-l", "lib", "-k", "1", "--json", "--query-vectors", "2")[1])[0]
    assert matches[0] == f"1>{hit['matches'][0]['page']}"
    assert matches[1] == f"{hit['matches'][0]['similarity']:.3f}"


def check_errors(run):
    for words, message in (
        (["index", "papers", "-l", "lib", "--model", "embedded", "--page-vectors", "6"], "was indexed with"),
        (["index", "papers", "-l", "lib", "--ray=foo"], "--ray takes a cluster address"),
        (["search", "x", "-l", "lib", "--model", "embedded"], "was indexed with"),
        (["search", "x", "-l", "lib", "--query-vectors", "0"], "query_vectors must be a whole number"),
        (["search", "x", "-l", "lib", "--filter", "page=9-3"], "page must be a number from 1"),
        (["search", "x", "-l", ""], "empty library path"),
        (["search", "tax", "-k2", "-5", "-l", "lib"], ""),
    ):
        code, out, err = run(*words)
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
        assert message in err


def check_status_is_light():
    """Commands that need no model load no torch."""
    for words in (["library", "status", "-l", "lib"], ["analyse", "cost"]):
        code = (
            f"import sys; sys.argv = ['randslot', *{words}]\n"
            "from randslot.cli import main\n"
            "try: main()\n"
            "except SystemExit as end: assert not end.code\n"
            "print(sorted({'torch', 'transformers', 'sentence_transformers', 'matplotlib'} & set(sys.modules)))"
        )
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert answer.stdout.splitlines()[-1] == "[]"


def test_a_search_that_finds_nothing_tells_of_files_that_are_not_complete(run, papers, tmp_path):
    with Library(tmp_path / "lib") as library:
        library.add(papers)
        library.manifest.put(*(replace(file, state="pending") for file in library.files()))
    code, out, err = run("search", "tax", "-l", "lib")
    assert (code, out) == (0, "no pages found\n")
    assert "3 files incomplete: run randslot index to resume" in err


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path, saved, model):
    """In a real process, while it reads pages."""
    for number in range(60):
        write_tiff(tmp_path / f"{number}.tif", range(10 * number, 10 * number + 10))
    words = [sys.executable, "-m", "randslot", "index", str(tmp_path), "-l", str(tmp_path / "lib")]
    process = subprocess.Popen(
        [*words, "--model", str(saved), "--batch", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (tmp_path / "lib" / "pages" / "segments").exists():
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "run the command again to resume" in err
    assert "Traceback" not in out + err
    with Library(tmp_path / "lib", model) as library:
        assert library.verify() == []
        assert library.status().files < 60
