"""The command: where it listens, what it refuses, and how it stops."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request

import pytest

from randslot.cli import main
from randslot.errors import UsageError
from randslot.serve.run import Settings, is_local, listen, serve, show_address
from support.pdf import write_pages
from support.services import TOKEN

pytestmark = [pytest.mark.xdist_group("listen"), pytest.mark.slow]


@pytest.mark.parametrize(
    ("settings", "offending"),
    [
        (Settings("0.0.0.0"), "0.0.0.0"),
        (Settings("::"), "::"),
        (Settings("library.example"), "library.example"),
        (Settings(token="short"), "--token"),
        (Settings(token="ä" * 20), "--token"),
        (Settings(origins=("example.org",)), "example.org"),
        (Settings(origins=("https://example.org/page",)), "https://example.org/page"),
        (Settings("no such host", token=TOKEN), "no such host"),
        (Settings(port=99999), "99999"),
    ],
)
def test_wrong_usage_is_refused_and_makes_no_library(tmp_path, settings, offending):
    with pytest.raises(UsageError, match=re.escape(offending)):
        serve(str(tmp_path / "lib"), settings)
    assert not (tmp_path / "lib").exists()


def test_a_library_is_made_only_if_that_is_asked_for(monkeypatch, capsys, tmp_path):
    library = tmp_path / "lib"
    monkeypatch.setattr(sys, "argv", ["randslot", "serve", "-l", str(library), "--port", "0"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"randslot: no library at {library}: randslot index creates one\n"
    assert not library.exists()
    monkeypatch.setattr("randslot.serve.run._run", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--new"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    assert (library / "library.json").is_file()


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("0.0.0.0", "http://localhost:80, and from other machines by this machine's name or address"),
        ("::", "http://localhost:80, and from other machines by this machine's name or address"),
    ],
)
def test_the_address_can_be_opened(host, shown):
    assert show_address(host, 80) == shown


def test_answers_are_sent_at_once():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        visitor, _ = listener.accept()
        with visitor:
            assert visitor.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_this_machine_is_the_default_and_needs_no_token():
    assert is_local(Settings().host)
    assert all(map(is_local, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
    Settings().check()
    Settings("0.0.0.0", token=TOKEN).check()


def test_the_owner_may_change_what_is_served_read_only(tmp_path):
    """As the nightly job of docs/serve.md does."""
    write_pages(tmp_path / "new.pdf", [["Wool and cotton"]])
    library, randslot = str(tmp_path / "lib"), [sys.executable, "-m", "randslot"]
    serving = [*randslot, "serve", "-l", library, "--new", "--read-only", "--port", "0"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split(" at ")[1].split()[0]
        subprocess.run([*randslot, "index", str(tmp_path / "new.pdf"), "-l", library, "--no-ocr"], check=True)
        with urllib.request.urlopen(f"{address}/api/status", timeout=60) as answer:
            status = json.loads(answer.read())
        process.terminate()
    assert (status["pages"], status["read_only"]) == (1, True)
