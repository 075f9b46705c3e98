"""A hit is opened at its page by a viewer that can do that, or by a browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from randslot.library import terminal as opening
from randslot.library.results import Hit


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A screen, and a folder of programs that is all that can be run; `install` adds one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setattr("sys.platform", "linux")

    def install(name: str, says: str = "") -> str:
        file = folder / name
        file.write_text(f"#!/bin/sh\necho {says}\n")
        file.chmod(0o755)
        return str(file)

    return install


def test_the_usual_viewer_gets_the_page(programs):
    programs("xdg-mime", "org.kde.okular.desktop")
    programs("evince")
    okular = programs("okular")
    assert opening.choose_command("/x.pdf", 3, "link") == [okular, "--page", "3", "/x.pdf"]


def test_another_viewer_is_taken_if_the_usual_one_knows_no_pages(programs):
    programs("xdg-mime", "acroread.desktop")
    zathura = programs("zathura")
    assert opening.choose_command("/x.pdf", 3, "link") == [zathura, "--page=3", "/x.pdf"]


def test_a_browser_is_given_the_link(programs):
    programs("xdg-mime", "firefox.desktop")
    programs("evince")
    firefox = programs("firefox")
    assert opening.choose_command("/x.pdf", 3, "file:///x.pdf#page=3") == [firefox, "file:///x.pdf#page=3"]


def test_without_a_screen_or_with_a_browser_of_ones_choice_no_viewer_is_run(programs, monkeypatch):
    programs("evince")
    monkeypatch.setenv("BROWSER", "lynx")
    assert opening.choose_command("/x.pdf", 3, "link") is None
    monkeypatch.delenv("BROWSER")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert opening.choose_command("/x.pdf", 3, "link") is None


def test_where_nothing_takes_a_page_its_number_is_told(programs, tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda link: opened.append(link) or True)
    file = Path(tmp_path / "x.pdf")
    file.write_bytes(b"%PDF-")
    assert opening.open_hit(Hit("id", os.fspath(file), 3, 1.0, (), {}))
    assert opened == [f"{file.as_uri()}#page=3"]
    assert "go to page 3" in capsys.readouterr().err
