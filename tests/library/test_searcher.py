"""The order of hits, copies of a page, words that are left out in any form, and words that no page has."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import UsageError
from randslot.library.library import Library
from support.libraries import ToyReader
from support.pdf import write_pages

NAMES = "abcdefgh"


@pytest.fixture
def library(tmp_path):
    with Library(tmp_path / "lib") as opened:
        yield opened


def write(folder: Path, name: str, *pages: list[str]) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    write_pages(file, list(pages))
    return file


def places(hits) -> list[tuple[str, int]]:
    return [(Path(hit.source).stem, hit.page) for hit in hits]


def run(*words: object, code: int = 0):
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == code, (answer.output, answer.exception)
    return answer


@pytest.mark.parametrize("by", ["words", "vectors"])
def test_equal_pages_come_by_name_and_number_whatever_k_is(tmp_path, by):
    """The engine has an order of its own, and cuts it before names are known."""
    same = ["The harbour at noon"]
    with Library(tmp_path / "lib", ToyReader() if by == "vectors" else None) as library:
        for name in reversed(NAMES):
            library.add(write(tmp_path, f"{name}.pdf", same, same), workers=1)
        wanted = [(name, page) for name in NAMES for page in (1, 2)]
        for k in range(1, len(wanted) + 2):
            assert places(library.search("harbour", k, by=by)) == wanted[:k]


def test_copies_are_one_hit_that_names_them(tmp_path, library):
    for name in ("b/x.pdf", "a/x.pdf", "c/x.pdf"):
        library.add(write(tmp_path, name, ["The harbour at noon"]), workers=1)
    library.add(write(tmp_path, "z.pdf", ["A harbour by night, long after the last of the ships"]), workers=1)
    first, second = library.search("harbour", 2, collapse=True)
    assert [Path(first.source).parent.name, *(Path(copy.source).parent.name for copy in first.copies)] == list("abc")
    assert (Path(second.source).name, second.copies) == ("z.pdf", ())
    assert len(library.search("harbour", 9)) == 4


def test_the_terminal_shows_copies_below_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("papers/a/x.pdf", "papers/b/x.pdf"):
        write(tmp_path, name, ["The harbour at noon"])
    run("index", "papers", "-l", "lib")
    shown = run("search", "harbour", "-l", "lib").stdout
    assert shown.count("The harbour at noon") == 1
    assert "identical: papers/b/x.pdf page 1" in shown
    assert "papers/b/x.pdf  page 1" in run("search", "harbour", "-l", "lib", "--copies").stdout


def test_words_are_left_out_in_any_form(tmp_path, library):
    texts = ["no such thing", "a tax", "many taxes", "it was taxed", "taxing work", "syntax"]
    for i, text in enumerate(texts):
        library.add(write(tmp_path, f"{i}.pdf", ["Report", text]), workers=1)
    assert {name for name, _ in places(library.search("report -taxes", 9))} == {"0", "5"}
    assert {name for name, _ in places(library.search('report -"taxes"', 9))} == {"0", "1", "3", "4", "5"}
    assert len(library.search("report -taxes", 1)) == 1


def test_words_that_no_page_has_are_known(tmp_path, library):
    file = write(tmp_path, "x.pdf", ["Batteries of the device", "INV-20931"])
    library.add(file, workers=1)
    library.add(write(tmp_path, "y.pdf", ["Solar panels"]), workers=1)
    assert library.find_unknown("the battery of a xyzzy") == ["xyzzy"]
    assert library.find_unknown("INV-20931") == []
    assert library.find_unknown("INV-20932 devices") == ["INV-20932"]
    assert library.find_unknown("solar", filters={"source": "x.pdf"}) == ["solar"]
    assert library.find_unknown("battery -xyzzy") == []


def test_the_terminal_says_which_words_no_page_has(tmp_path):
    write(tmp_path, "papers/x.pdf", ["Batteries of the device"])
    run("index", tmp_path / "papers", "-l", tmp_path / "lib")
    answer = run("search", "battery", "xyzzy", "-l", tmp_path / "lib")
    assert 'note: no page has "xyzzy"' in answer.stderr
    assert "x.pdf" in answer.stdout
    assert len(run("search", "x" * 5000, "-l", tmp_path / "lib").stderr) < 100, (
        "what was typed is not repeated at length"
    )
    assert "note" not in run("search", "battery", "-l", tmp_path / "lib").stderr
    write(tmp_path, "papers/y.pdf", ["Solar panels"])
    run("index", tmp_path / "papers", "-l", tmp_path / "lib")
    answer = run("search", "battery", "solar", "-l", tmp_path / "lib", "--filter", "source=x.pdf")
    assert 'note: no page with this filter has "solar"' in answer.stderr


def test_options_that_words_do_not_have_are_not_ignored_silently(tmp_path):
    write(tmp_path, "papers/x.pdf", ["Batteries of the device"])
    run("index", tmp_path / "papers", "-l", tmp_path / "lib")
    noted = run("search", "battery", "-l", tmp_path / "lib", "--exact").stderr
    assert "note: --exact ignored (keyword search)" in noted
    refused = run("search", "battery", "-l", tmp_path / "lib", "--by", "words", "--query-vectors", "2", code=1)
    with pytest.raises(UsageError, match="--query-vectors only affect vector search"):
        raise refused.exception
