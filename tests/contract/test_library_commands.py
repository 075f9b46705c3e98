"""randslot library: status, list, remove, words, verify, copy, sketch; and libraries that are damaged."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contract.conftest import make_environment

STATUS = {
    "folder", "files", "pages", "pending", "missing", "bytes", "bytes_per_page", "vector_bytes_per_page", "model",
    "format", "language", "languages", "with_vectors", "origins", "notes", "sketches", "reads",
}  # fmt: skip
FILE = {"source", "hash", "size", "modified", "num_pages", "metadata", "state", "id", "properties"}


def list_names(run, library: Path) -> list[str]:
    return sorted(Path(file["source"]).name for file in run("library", "list", "-l", library, "--json").json)


def test_status(run, library_once):
    answer = run("library", "status", "-l", library_once)
    assert (answer.code, answer.err) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in answer.out.splitlines())
    assert (rows["files"].strip(), rows["pages"].strip()) == ("4", "9")
    assert "english" in rows["words"]
    assert "german" in rows["words"]


def test_status_in_json(run, library_once):
    status = run("library", "status", "-l", library_once, "--json").json
    assert status.keys() == STATUS
    assert (status["files"], status["pages"], status["pending"], status["missing"]) == (4, 9, 0, 0)
    assert (status["language"], set(status["languages"])) == ("english", {"english", "german"})
    assert (status["model"], status["with_vectors"], status["vector_bytes_per_page"]) == (None, 0, 0)
    assert (status["origins"], status["notes"]) == ({"layer": 9}, [])
    assert status["bytes_per_page"] == status["bytes"] // 9 > 0


def test_files_are_listed(run, library_once, papers_once):
    answer = run("library", "list", "-l", library_once, cwd=papers_once.parent)
    assert answer.code == 0
    names = [line.split()[0] for line in answer.out.splitlines()]
    assert names == [f"papers/{name}" for name in ("below/manual.pdf", "brief.pdf", "fleet.pdf", "report.pdf")]
    assert "3 pages" in answer.out.splitlines()[0]
    files = run("library", "list", "-l", library_once, "--json").json
    assert all(file.keys() == FILE for file in files)
    assert [file["num_pages"] for file in files] == [3, 1, 2, 3]
    assert {file["state"] for file in files} == {"done"}
    assert files[3]["source"] == str(papers_once / "report.pdf")
    assert files[3]["size"] == (papers_once / "report.pdf").stat().st_size


def test_files_are_removed_only_with_yes(run, library, papers_once):
    for options, code in ((["--dry-run"], 0), ([], 1)):
        answer = run("library", "remove", "f*.pdf", "brief.pdf", "-l", library, *options)
        assert (answer.code, "fleet.pdf" in answer.out, "brief.pdf" in answer.out) == (code, True, True)
        assert "report.pdf" not in answer.out
        assert len(list_names(run, library)) == 4
    answer = run("library", "remove", "f*.pdf", "brief.pdf", "-l", library, "--yes")
    assert (answer.code, "fleet.pdf" in answer.out) == (0, True)
    assert list_names(run, library) == ["manual.pdf", "report.pdf"]
    assert run("library", "remove", papers_once / "below", "-l", library, "--yes").code == 0
    assert list_names(run, library) == ["report.pdf"]
    assert (papers_once / "fleet.pdf").exists()  # the file itself stays
    assert run("search", "seven ships", "-l", library, "--json").json == []
    assert run("library", "verify", "-l", library).code == 0


@pytest.mark.parametrize(("typed", "left"), [("y", 3), ("n", 4)])
def test_in_a_terminal_it_asks(run, library, home, typed, left):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "randslot", "library", "remove", "fleet.pdf", "-l", str(library)]
    process = subprocess.Popen(words, env=make_environment(home), stdin=theirs, stdout=theirs, stderr=theirs)
    os.write(ours, f"{typed}\n".encode())
    assert process.wait(timeout=60) == (0 if typed == "y" else 1)
    os.close(theirs)
    os.close(ours)
    assert len(list_names(run, library)) == left


def test_words_are_counted_anew_in_another_language(run, library):
    answer = run("library", "words", "-l", library, "--language", "german", "--no-ocr")
    assert (answer.code, "german" in answer.out) == (0, True)
    assert run("library", "status", "-l", library, "--json").json["languages"] == ["german"]
    assert "brief.pdf" in run("search", "Rechnung", "-l", library).out
    assert run("library", "words", "-l", library, "--language", "auto").code == 0
    assert len(run("library", "status", "-l", library, "--json").json["languages"]) == 2
    assert "report.pdf" in run("search", "volume", "-l", library).out


def test_a_library_is_copied_and_compared(run, library):
    first = run("library", "copy", library, "copied")
    assert first.code == 0
    assert "4 files" in first.out
    assert "9 pages" in first.out
    again = run("library", "copy", library, "copied", "--json")
    assert again.json.keys() == {"files", "pages", "known", "compared", "sampled", "problems", "notes"}
    assert (again.json["files"], again.json["known"], again.json["problems"]) == (0, 4, [])
    one = run("search", "battery life", "-l", library, "--json").json
    two = run("search", "battery life", "-l", "copied", "--json").json
    assert [(hit["id"], hit["source"], hit["page"]) for hit in one] == [
        (hit["id"], hit["source"], hit["page"]) for hit in two
    ]
    assert run("library", "verify", "-l", "copied").code == 0


def test_a_library_may_move_as_a_folder(run, library, papers, tmp_path):
    shutil.move(library, tmp_path / "elsewhere")
    assert "report.pdf" in run("search", "wool", "-l", "elsewhere").out
    assert run("index", papers / "fleet.pdf", "-l", "elsewhere", "-q").code == 0
    verified = run("library", "verify", "-l", "elsewhere")
    assert (verified.code, "9 pages" in verified.out or "11 pages" in verified.out) == (0, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["status", "-l", "nolib"], "nolib"),
        (["verify", "-l", "nolib"], "nolib"),
        (["copy", "nolib", "lib"], "nolib"),
        (["copy", "lib", "lib"], ""),
        (["remove", "x.pdf", "-l", "lib"], "x.pdf"),
        (["remove", "", "-l", "lib", "--yes"], ""),
        (["words", "-l", "lib", "--language", "klingon"], "klingon"),
        (["sketch", "-l", "lib"], "vectors"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_one_line_with_code_2(run, library, words, named):
    answer = run("library", *words)
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert named in answer.err
    assert not (library.parent / "nolib").exists()


def test_a_damaged_library_is_told_in_one_line(run, library):
    def check(named: str) -> None:
        for words in (["search", "wool"], ["library", "verify"]):
            answer = run(*words, "-l", library)
            assert (answer.code, answer.out, len(answer.err.splitlines())) == (1, "", 1), answer.err
            assert named in answer.err

    good = (library / "library.json").read_text()
    (library / "library.json").write_text(good[: len(good) // 2])
    check("library.json")
    (library / "library.json").write_text(json.dumps(json.loads(good) | {"format": 99}))
    check("99")
    (library / "library.json").write_text(good)
    (library / "files.sqlite").write_bytes(b"not a database " * 100)
    check("files.sqlite")


def test_lost_pages_are_repaired(run, papers):
    assert run("index", papers, "-l", "own", "-q").code == 0
    shutil.rmtree(papers.parent / "own" / "pages")
    answer = run("search", "wool", "-l", "own")
    assert (answer.code, len(answer.err.splitlines()), "--repair" in answer.err) == (1, 1, True)
    answer = run("library", "verify", "-l", "own", "--repair")
    assert answer.code == 0
    assert "report.pdf" in answer.err
    assert run("library", "status", "-l", "own", "--json").json["pending"] == 4
    assert run("index", papers, "-l", "own", "-q").code == 0
    assert run("library", "verify", "-l", "own").code == 0
    assert "report.pdf" in run("search", "wool", "-l", "own").out


def test_a_folder_without_the_right_to_write_is_told(library, home, papers):
    """Root may write anywhere: it has to give up that right for this test."""
    subprocess.run(["chmod", "-R", "a-w", library], check=True)
    weak = [] if os.getuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if weak and not shutil.which("setpriv"):
        pytest.skip("root, and no setpriv")
    for words in (["search", "wool"], ["index", str(papers)]):
        command = [*weak, sys.executable, "-m", "randslot", *words, "-l", str(library)]
        done = subprocess.run(command, env=make_environment(home), capture_output=True, text=True)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert str(library) in done.stderr
    subprocess.run(["chmod", "-R", "u+w", library], check=True)


@pytest.mark.parametrize("place", ["/proc/library", "papers/brief.pdf"])
def test_a_place_that_cannot_be_a_library_is_told(run, papers, place):
    answer = run("index", "papers", "-l", place)
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert place in answer.err
