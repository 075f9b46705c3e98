"""The demo: PDFs, hits and a page that needs nothing from elsewhere, also where nothing can be shown."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.demo import Part, _make_html, read_questions, run_demo
from randslot.errors import UsageError

pytestmark = [pytest.mark.xdist_group("demo"), pytest.mark.slow]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Run the demo once and return its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    printed = StringIO()
    with redirect_stdout(printed):
        run_demo(folder / "out", [])
    return folder / "out", printed.getvalue()


def test_it_finds_pages_of_a_real_document_by_words(shown):
    folder, printed = shown
    assert (folder / "handbook.pdf").is_file()
    words = printed[: printed.index("The method")]
    assert len(re.findall(r"^\? ", words, re.MULTILINE)) == len(read_questions())
    assert words.count("answers it") >= 4
    assert len(re.findall(r"1\. handbook\.pdf  page \d+  answers it", words)) >= 2


def test_it_shows_the_method_on_sample_pages(shown):
    folder, printed = shown
    assert len(list((folder / "reports").glob("*.pdf"))) == 20
    vectors = printed[printed.index("The method") :]
    assert "reads only these reports" in " ".join(vectors.split())
    assert vectors.count("? ") == 5
    assert len(re.findall(r"\d\. test-1-\S+\.pdf  page \d", vectors)) == 15
    assert len(re.findall(r"1\. test.*answers it", vectors)) >= 4


def test_the_page_holds_everything_itself(shown):
    page = (shown[0] / "demo.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 30
    assert "<mark>" in page
    assert '<i style="left:' in page
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    for link in re.findall(r'href="([^"]+)"', page):
        assert (shown[0] / link.partition("#")[0]).is_file()


@pytest.mark.nightly
def test_own_questions_are_asked_and_shown_as_text(tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    questions = ["-q", "<b>sales</b> of wool", "-q", "[bold]x"]
    answer = CliRunner().invoke(app, ["demo", "--open", "-o", str(tmp_path / "x"), *questions])
    assert answer.exit_code == 0, answer.output
    assert f"see the pages in {tmp_path}/x/demo.html" in answer.output.replace("\n", "")
    assert "could not open a browser" in answer.output
    assert "? <b>sales</b> of wool" in answer.output
    assert "? [bold]x" in answer.output


def test_questions_are_shown_as_text(tmp_path):
    page = _make_html([Part("Title", "Text", {"<b>sales</b> of wool": []})], tmp_path)
    assert "&lt;b&gt;sales&lt;/b&gt; of wool" in page
    assert "<b>sales" not in page


def test_bad_input_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="below"):
        run_demo(tmp_path / "file" / "below", [])
    with pytest.raises(UsageError, match="empty query"):
        run_demo(tmp_path / "new", ["  "])
    assert not (tmp_path / "new").exists()
