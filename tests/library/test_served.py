"""While a service has a library open, commands of the same user go through it, with the same output."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.library.library import Library
from randslot.library.sharing import LocalService, ServedLibrary, SharedLibrary, clear_stale, open_library, share
from support.models import noise
from support.pdf import write_pages

TEXTS = [["The deferred tax assets of the year"], ["Battery life and charging of the device"]]


@pytest.fixture
def papers(tmp_path) -> Path:
    folder = tmp_path / "papers"
    folder.mkdir()
    write_pages(folder / "report.pdf", TEXTS)
    noise(64, 96, 1).save(folder / os.fsdecode(b"sc\xe4n.png"))  # a name that is not valid text
    return folder


@pytest.fixture
def served(tmp_path, papers):
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
        with LocalService(library):
            yield library


def run(*words: object, code: int = 0) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == code, (answer.output, answer.exception)
    return answer.stdout


def test_commands_print_the_same_with_and_without_a_service(tmp_path, papers):
    lib = tmp_path / "lib"
    run("index", papers, "-l", lib)
    commands = [
        ("search", "battery", "-l", lib),
        ("search", "tax", "-l", lib, "--json", "--explain"),
        ("search", "tax", "-l", lib, "--filter", "page=1"),
        ("library", "list", "-l", lib),
        ("library", "list", "-l", lib, "--json"),
    ]
    without = [run(*command) for command in commands]
    with Library(lib) as library, LocalService(library):
        assert [run(*command) for command in commands] == without
        status = run("library", "status", "-l", lib)
        assert "of 2 pages, english" in status


def test_files_are_added_and_forgotten_through_the_service(served, tmp_path, papers):
    lib = tmp_path / "lib"
    write_pages(papers / "second.pdf", [["Solar panels on the roof"]])
    assert "1 added, 2 unchanged" in run("index", papers, "-l", lib)
    assert "second.pdf" in run("search", "solar", "-l", lib)
    assert [hit.page for hit in served.search("solar")] == [1]
    (papers / "second.pdf").unlink()
    assert "1 removed" in run("index", papers, "-l", lib, "--prune", "--yes")
    assert served.search("solar") == []
    assert "1 file forgotten" in run("library", "remove", "report.pdf", "-l", lib, "--yes")
    assert "no pages found" in run("search", "battery", "-l", lib)
    assert "0 text layers read" in run("library", "words", "-l", lib)


def test_errors_are_those_of_the_library(served, tmp_path):
    lib = tmp_path / "lib"
    for words, message in (
        (["search", "x", "-l", lib, "--by", "vectors"], "has no vectors"),
        (["library", "remove", "gone.pdf", "-l", lib, "--yes"], "matches 'gone.pdf'"),
        (["index", tmp_path, "-l", lib, "--model", "embedded"], "wait for its end, or stop it, to give it a model"),
    ):
        answer = CliRunner().invoke(app, [str(word) for word in words])
        assert isinstance(answer.exception, UsageError)
        assert answer.exception.args
        with pytest.raises(UsageError, match=message):
            raise answer.exception


def test_a_service_that_is_read_only_changes_nothing(tmp_path, papers):
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
        with LocalService(library, refusal="it is served read-only"), open_library(tmp_path / "lib") as asked:
            assert isinstance(asked, ServedLibrary)
            assert len(asked.search_all(["battery"])[0]) == 1
            with pytest.raises(RandSlotError, match="is served read-only"):
                asked.add([str(papers)])
            with pytest.raises(RandSlotError, match="is served read-only"):
                asked.forget(["x"])


def test_a_service_elsewhere_tells_its_folder_whole(tmp_path, papers, monkeypatch):
    """Also what the library takes is measured there, and not in a folder of the same name here."""
    monkeypatch.chdir(tmp_path)
    with Library("lib") as library, LocalService(library):
        library.add(papers, workers=1)
        words = [sys.executable, "-m", "randslot", "library", "status", "-l", "../lib"]
        said = subprocess.run(words, cwd=papers, capture_output=True, text=True, check=True).stdout
        remove = [*words[:4], "remove", "./report.pdf", "-l", "../lib", "--yes"]
        subprocess.run(remove, cwd=papers, capture_output=True, check=True)
        assert not [file for file in library.files() if file.source == str(papers / "report.pdf")]
    assert str(tmp_path / "lib") in "".join(said.split())  # a long one takes two lines
    assert "size     0 bytes" not in said


def test_who_uses_a_library_is_waited_for_before_it_is_let_go(tmp_path, papers, monkeypatch):
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
    shared = SharedLibrary(tmp_path / "lib")
    with shared.use() as used:
        with open_library(tmp_path / "lib") as asked:
            monkeypatch.setattr("randslot.library.sharing.LET_GO_SECONDS", 0.05)
            assert not asked.ask_to_let_go()
        assert len(used.search("battery")) == 1
    with open_library(tmp_path / "lib") as asked:
        assert asked.ask_to_let_go()
        with Library(tmp_path / "lib") as library, LocalService(library), shared.use() as used:
            assert isinstance(used, ServedLibrary)
            assert len(used.search_all(["battery"])[0]) == 1
            with pytest.raises(RandSlotError, match=r"has taken library .* over: ask again"):
                asked.search_all(["battery"])
    shared.close()


def test_others_can_search_while_a_command_reads(tmp_path, papers):
    with open_library(tmp_path / "lib") as opened, share(opened):
        opened.add([str(papers)], workers=1)
        assert "report.pdf" in run("search", "battery", "-l", tmp_path / "lib")
        answer = CliRunner().invoke(app, ["index", str(papers), "-l", str(tmp_path / "lib")])
        with pytest.raises(RandSlotError, match=f"is being changed by process {os.getpid()}: wait for it"):
            raise answer.exception


def test_nobody_else_can_connect_and_nothing_is_left_behind(tmp_path):
    with Library(tmp_path / "lib") as library:
        with LocalService(library) as service:
            assert stat.S_IMODE(os.stat(service.folder).st_mode) == 0o700
            owner = json.loads((tmp_path / "lib" / "owner").read_text())
            assert owner == {"pid": os.getpid(), "socket": service.path}
        assert not os.path.exists(service.folder)
        with pytest.raises(RandSlotError, match="is in use by another process"):
            open_library(tmp_path / "lib")


def test_a_service_that_died_is_not_asked(tmp_path, papers):
    """Its lock is gone with it, whatever it announced."""
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
    (tmp_path / "lib" / "owner").write_text(json.dumps({"pid": 1, "socket": str(tmp_path / "nowhere")}))
    assert "report.pdf" in run("search", "battery", "-l", tmp_path / "lib")


def test_nonsense_on_the_socket_is_answered(served):
    with ServedLibrary("lib", json.loads((served.folder / "owner").read_text())["socket"]) as asked:
        with pytest.raises(UsageError, match="a service does not know 'dance'"):
            asked._ask("dance")
        asked.file.write(b"nonsense\n")
        asked.file.flush()
        assert "not a request" in json.loads(asked.file.readline())["error"]
        assert asked.status().pages == 3


@pytest.mark.slow
def test_the_real_service_and_the_real_command(tmp_path, papers):
    lib = str(tmp_path / "lib")
    command = [sys.executable, "-m", "randslot"]
    subprocess.run([*command, "index", str(papers), "-l", lib], check=True, capture_output=True)
    with subprocess.Popen([*command, "serve", "-l", lib, "--port", "0"], stdout=subprocess.PIPE, text=True) as service:
        try:
            assert "serving" in service.stdout.readline()
            answer = subprocess.run([*command, "search", "battery", "-l", lib], capture_output=True, text=True)
            assert answer.returncode == 0, answer.stderr
            assert "report.pdf  page 2" in answer.stdout
        finally:
            service.terminate()


def test_verify_goes_through_the_service(served, tmp_path):
    lib = tmp_path / "lib"
    assert run("library", "verify", "-l", lib) == "3 pages, all as they should be\n"
    (file,) = served.find_files("report.pdf")
    served.store.delete(file.id)
    assert CliRunner().invoke(app, ["library", "verify", "-l", str(lib)]).exit_code == 1
    assert "repaired: index the files again" in run("library", "verify", "--repair", "-l", lib)
    assert [one.state for one in served.files() if one.source == file.source] == ["pending"]


def test_a_read_only_service_verifies_and_does_not_repair(tmp_path):
    with Library(tmp_path / "lib") as library, LocalService(library, refusal="it is served read-only"):
        assert run("library", "verify", "-l", tmp_path / "lib") == "0 pages, all as they should be\n"
        answer = CliRunner().invoke(app, ["library", "verify", "--repair", "-l", str(tmp_path / "lib")])
        with pytest.raises(RandSlotError, match="read-only"):
            raise answer.exception


def test_copies_are_made_by_the_service_that_has_one_of_the_two_open(served, tmp_path, papers, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "2 files with 3 pages copied" in run("library", "copy", "lib", "copied")
    write_pages(papers / "second.pdf", [["Solar panels on the roof"]])
    run("index", papers, "-l", "copied")
    assert "1 file with 1 page copied, 2 files there already" in run("library", "copy", "copied", "lib")
    assert [hit.page for hit in served.search("solar")] == [1]


def test_two_services_cannot_copy_and_it_is_said_what_to_do(served, tmp_path):
    with Library(tmp_path / "other") as other, LocalService(other):
        answer = CliRunner().invoke(app, ["library", "copy", str(tmp_path / "lib"), str(tmp_path / "other")])
        with pytest.raises(RandSlotError, match=r"other is in use by another process .* or stop it"):
            raise answer.exception


def test_sockets_of_crashed_processes_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def leave(name: str, *, listen: bool = False, age: int = 3600) -> socket.socket:
        folder = tmp_path / name
        folder.mkdir()
        left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        left.bind(str(folder / "library"))
        if listen:
            left.listen()
        then = time.time() - age
        os.utime(folder / "library", (then, then))
        return left

    opened = [leave("randslot-dead"), leave("randslot-alive", listen=True), leave("randslot-young", age=5)]
    opened.append(leave("randslot-full"))
    (tmp_path / "randslot-full" / "notes.txt").write_text("mine")
    (tmp_path / "randslot-other").mkdir()
    (tmp_path / "randslot-other" / "library").write_text("a file, and no socket")
    opened[0].close()
    opened[3].close()
    clear_stale()
    left = {folder.name for folder in tmp_path.iterdir()}
    assert left == {"randslot-alive", "randslot-young", "randslot-full", "randslot-other"}
    assert (tmp_path / "randslot-full" / "notes.txt").exists()
    for one in opened:
        one.close()
