"""A folder as people have it: notes, mail, web pages and Office files beside PDFs."""

from __future__ import annotations

import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

from reportlab.pdfgen.canvas import Canvas

from .pdf import write_pdf
from .serving import serve


def test_a_mixed_folder_is_indexed_and_found(run, tmp_path):
    folder = tmp_path / "in"
    write_pdf(folder / "plan.pdf", [["The harbour plan of the city."]])
    (folder / "notes.md").write_text("# Harbour notes\n\nThe crane is broken.\n")
    (folder / "page.html").write_text("<title>Harbour</title><h1>Ferry</h1><p>Leaves at nine.<script>x()</script>")
    (folder / "mail.eml").write_text("Subject: Harbour fees\nFrom: a@example.com\n\nPlease pay 40 crowns.\n")
    (folder / "table.csv").write_text("ship,berth\nOrion,7\n")
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 torn")
    (folder / "notes.xyz").write_text("no document")
    (folder / "noise.txt").write_bytes(bytes(range(256)))
    answer = run("index", "in", "-l", "lib")
    assert answer.code == 1
    assert "broken.docx" in answer.err
    assert "noise.txt: the content is not that of a .txt file" in answer.err
    assert "Traceback" not in answer.err
    expected = {
        "crane": "notes.md",
        "ferry": "page.html",
        "crowns": "mail.eml",
        "orion": "table.csv",
        "city": "plan.pdf",
    }
    for query, name in expected.items():
        (hit,) = run("search", query, "-l", "lib", "--json").json
        assert hit["source"].endswith(f"/{name}"), query
        assert hit["boxes"]
    for name, words in {
        "mail.eml": ["--type", "mail"],
        "plan.pdf": ["--in", "PLAN"],
        "page.html": ["--type", "html"],
    }.items():
        (hit,) = run("search", "harbour", "-l", "lib", "--json", *words).json
        assert hit["source"].endswith(f"/{name}")
    answer = run("search", "harbour", "-l", "lib", "--year", "1999-2001")
    assert "note: no file matches year=1999-2001: the library has 20" in answer.err
    answer = run("search", "table.csv", "-l", "lib", "--json")
    assert (len(answer.json), answer.err) == (1, "")  # also by its whole name
    (folder / "notes.md").write_text("# Harbour notes\n\nThe crane works.\n")
    run("index", "in", "-l", "lib", "-q")
    assert run("search", '"crane is broken"', "-l", "lib", "--json").json == []
    assert len(run("search", '"crane works"', "-l", "lib", "--json").json) == 1
    (folder / "mail.eml").unlink()
    assert "the file is no longer on disk" in run("search", "crowns", "-l", "lib").out
    assert "1 file is no longer on disk: remove it with --prune" in run("index", "in", "-l", "lib").out


def write_locked(file: Path, password: str) -> None:
    canvas = Canvas(str(file), encrypt=password)
    canvas.drawString(72, 700, "The vault has a walrus")
    canvas.bookmarkPage("vault")
    canvas.addOutlineEntry("The vault", "vault")
    canvas.save()


def test_a_password_is_asked_for(run, start, tmp_path):
    write_locked(tmp_path / "locked.pdf", "s3cret of many letters")
    terminal, end = pty.openpty()  # what is hidden is read from the terminal
    process = start(
        "index", "locked.pdf", "-l", "lib", "--quiet", "--password", "-", stdin=end, stderr=end, start_new_session=True
    )
    asked = b""
    while b"Password of PDFs" not in asked:
        asked += os.read(terminal, 1000)
    for _ in range(120):  # what is typed before echoing ends is lost
        os.write(terminal, b"s3cret of many letters\n")
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
            break
    assert process.returncode == 0
    os.close(terminal)
    os.close(end)
    assert run("search", "walrus", "-l", "lib", "--json").json


def test_a_pdf_with_a_password_is_told_of_once_and_read_with_it(run, tmp_path):
    (tmp_path / "in").mkdir()
    write_locked(tmp_path / "in" / "locked.pdf", "s3cret of many letters")
    write_pdf(tmp_path / "in" / "open.pdf", [["A heron"]])
    first = run("index", "in", "-l", "lib")
    assert (first.code, first.err.count("locked.pdf")) == (1, 1)
    assert "needs a password (--password)" in first.err
    again = run("index", "in", "-l", "lib")
    assert again.code == 0
    assert "1 file still cannot be read: --strict lists them" in again.err
    assert run("index", "in", "-l", "lib", "--quiet", "--strict").code == 1
    named = run("index", "in/locked.pdf", "-l", "lib")
    assert (named.code, "needs a password (--password)" in named.err) == (1, True)
    wrong = run("index", "in", "-l", "lib", "--password", "wrong")
    assert (wrong.code, "none of the given passwords fits" in wrong.err) == (1, True)
    (tmp_path / "passwords").write_text("another\ns3cret of many letters\n")
    assert run("index", "in", "-l", "lib", "--password-file", "passwords").code == 0
    (hit,) = run("search", "walrus", "-l", "lib", "--json").json
    assert hit["source"].endswith("locked.pdf")
    assert run("index", "in", "-l", "lib", "--strict").code == 0  # unchanged, and needs no password
    for file in (tmp_path / "lib").rglob("*"):
        assert not file.is_file() or b"s3cret" not in file.read_bytes(), file
    with serve(tmp_path / "lib") as one:
        (hit,) = one.search("walrus")
        assert "needs a password" in one.client.get(hit["image"]).json()["error"]
    with serve(tmp_path / "lib", RANDSLOT_PASSWORD="s3cret of many letters") as one:
        (hit,) = one.search("walrus")
        assert one.client.get(hit["image"]).status_code == 200
        (entry,) = one.client.get(f"{hit['image'].rpartition('/pages/')[0]}/outline").json()["entries"]
        assert entry["title"] == "The vault"
