"""While a process has a library open, other processes of the same user ask it."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.library.library import Library
from randslot.library.sharing import (
    LibraryClient,
    LibraryServer,
    SharedLibrary,
    name_socket,
    open_library,
    share,
)
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
        with LibraryServer(library):
            yield library


def run(*words: object, code: int = 0) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == code, (answer.output, answer.exception)
    return answer.stdout


def test_a_client_answers_as_the_library_does(served, tmp_path, papers):
    with open_library(tmp_path / "lib") as client:
        assert isinstance(client, LibraryClient)
        assert client.search_all(["battery", "tax"], 3, collapse=True) == served.search_all(["battery", "tax"], 3)
        assert client.search_results(["battery zqx"])[0].unknown == ["zqx"]
        assert client.read_text(served.search("tax")[0].id).text == TEXTS[0][0]
        assert (client.status(), client.notes(), len(client)) == (served.status(), served.notes(), 3)
        assert client.files() == served.files()
        (scan,) = [file.source for file in client.files() if not file.source.endswith("report.pdf")]
        os.unlink(scan)
        write_pages(papers / "second.pdf", [["Solar panels on the roof"]])
        seen = []
        assert client.add([str(papers)], workers=1, progress=seen.append).added == [str(papers / "second.pdf")]
        assert seen[-1].finished == (str(papers / "second.pdf"),)
        assert client.forget(client.list_gone([str(papers)])) == [scan]
        assert client.read_words() == client.count_without_text() == 0


def test_other_commands_can_search_while_one_changes_a_library(tmp_path, papers):
    with open_library(tmp_path / "lib") as opened, share(opened):
        opened.add([str(papers)], workers=1)
        assert "report.pdf" in run("search", "battery", "-l", tmp_path / "lib")
        with open_library(tmp_path / "lib") as client:
            for change in (lambda: client.add(["x"]), lambda: client.forget(["x"]), lambda: client.verify(repair=True)):
                with pytest.raises(RandSlotError, match=f"process {os.getpid()} is changing"):
                    change()
            assert client.verify() == []


def test_a_library_is_released_when_nobody_uses_it(tmp_path, papers):
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
    shared = SharedLibrary(tmp_path / "lib")
    shared.release_seconds = 0.05
    with shared.use() as used, open_library(tmp_path / "lib") as client:
        assert not client.ask_to_release()
        assert len(used.search("battery")) == 1
    with open_library(tmp_path / "lib") as client:
        assert client.ask_to_release()
        with Library(tmp_path / "lib") as library, LibraryServer(library), shared.use() as used:
            assert isinstance(used, LibraryClient)
            assert len(used.search_all(["battery"])[0]) == 1
            with pytest.raises(RandSlotError, match="took over"):
                client.search_all(["battery"])
    shared.close()


def test_a_socket_of_a_process_that_died_is_not_asked(tmp_path, papers):
    """Its lock is gone with it."""
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
    (tmp_path / "lib" / "owner").write_text(json.dumps({"pid": 1, "socket": str(tmp_path / "nowhere")}))
    assert "report.pdf" in run("search", "battery", "-l", tmp_path / "lib")


def test_nonsense_on_the_socket_is_answered(served, tmp_path):
    with open_library(tmp_path / "lib") as client:
        with pytest.raises(UsageError, match="dance"):
            client._ask("dance")
        for nonsense in (b"nonsense\n", b"[]\n", b'"x"\n', b"{}\n"):
            client.file.write(nonsense)
            client.file.flush()
            assert "invalid request" in json.loads(client.file.readline())["error"]
        assert client.status().pages == 3


def test_a_service_elsewhere_tells_its_folder_whole(tmp_path, papers, monkeypatch):
    """Also what the library takes is measured there, and not in a folder of the same name here."""
    monkeypatch.chdir(tmp_path)
    with Library("lib") as library, LibraryServer(library):
        library.add(papers, workers=1)
        words = [sys.executable, "-m", "randslot", "library", "status", "-l", "../lib"]
        said = subprocess.run(words, cwd=papers, capture_output=True, text=True, check=True).stdout
        remove = [*words[:4], "remove", "./report.pdf", "-l", "../lib", "--yes"]
        subprocess.run(remove, cwd=papers, capture_output=True, check=True)
        assert not [file for file in library.files() if file.source == str(papers / "report.pdf")]
    assert str(tmp_path / "lib") in "".join(said.split())  # a long one takes two lines
    assert "size     0 bytes" not in said


def test_nobody_else_can_connect_and_nothing_is_left_behind(tmp_path):
    with Library(tmp_path / "lib") as library:
        with LibraryServer(library) as service:
            assert stat.S_IMODE(os.stat(os.path.dirname(service.path)).st_mode) == 0o700
            owner = json.loads((tmp_path / "lib" / "owner").read_text())
            assert owner == {"pid": os.getpid(), "socket": service.path}
        assert not os.path.exists(service.path)
        with pytest.raises(RandSlotError, match="is open in process"):
            open_library(tmp_path / "lib")


def test_verify_goes_through_the_service(served, tmp_path):
    lib = tmp_path / "lib"
    assert run("library", "verify", "-l", lib) == "3 pages checked, no problems found\n"
    (file,) = served.find_files("report.pdf")
    served.store.delete(file.id)
    assert CliRunner().invoke(app, ["library", "verify", "-l", str(lib)]).exit_code == 1
    assert "repaired: index the files again" in run("library", "verify", "--repair", "-l", lib)
    assert [one.state for one in served.files() if one.source == file.source] == ["pending"]


def test_copies_are_made_by_the_service_that_has_one_of_the_two_open(served, tmp_path, papers, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "2 files with 3 pages copied" in run("library", "copy", "lib", "copied")
    write_pages(papers / "second.pdf", [["Solar panels on the roof"]])
    run("index", papers, "-l", "copied")
    assert "1 file with 1 page copied, 2 files already there" in run("library", "copy", "copied", "lib")
    assert [hit.page for hit in served.search("solar")] == [1]


def test_a_stale_socket(tmp_path, monkeypatch):  # a short name: the path of a socket has at most 108 bytes
    """It is replaced; in a folder of another user it is refused."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Library(tmp_path / "lib") as library:
        left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        left.bind(name_socket(library.name))
        left.close()
        with LibraryServer(library) as server, LibraryClient("lib", server.path) as client:
            assert client.status().pages == 0
        assert not os.path.exists(server.path)
        (tmp_path / f"randslot-{os.getuid()}").chmod(0o777)
        with pytest.raises(RandSlotError, match="not private to this user"):
            LibraryServer(library)
