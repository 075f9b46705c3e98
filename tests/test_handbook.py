"""The handbook that ships: it opens, its words can be read, and it has a chapter for every page of the site."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pypdfium2
import pytest
from handbook import HANDBOOK, LEFT_OUT, MAX_BYTES, QUESTIONS, find_files

from randslot.pages import Page, num_pages

ROOT = Path(__file__).parent.parent
AGAIN = "run make handbook"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [Page(HANDBOOK, number).text().text for number in range(1, num_pages(HANDBOOK) + 1)]


def test_it_ships_and_is_small():
    shipped = Path(str(resources.files("randslot") / "handbook.pdf"))
    assert shipped.samefile(HANDBOOK)
    assert HANDBOOK.stat().st_size <= MAX_BYTES


def test_every_page_has_words(texts):
    assert len(texts) > 30
    for number, text in enumerate(texts[1:], start=2):
        assert len(text.split()) >= 8, f"page {number}"
        assert str(number) in text.split(), f"page {number} does not show its number"


def test_words_are_read_as_they_are_written(texts):
    """No ligatures, no hyphens at the ends of lines, no broken characters: each would hide a word from a search."""
    whole = " ".join(texts)
    assert not re.search("[\ufb00-\ufb06\u00ad\ufffd\x02]", whole)
    words = set(re.findall(r"[a-z]{4,}", whole.lower()))
    guide = re.sub(r"\]\([^)]*\)", "", (ROOT / "docs" / "guide.md").read_text(encoding="utf-8"))
    missing = set(re.findall(r"[a-z]{4,}", guide.lower())) - words
    assert len(missing) < 20, f"{AGAIN}: {sorted(missing)[:20]}"  # some may be newer than the handbook


def test_every_page_of_the_site_is_a_chapter(texts):
    document = pypdfium2.PdfDocument(HANDBOOK)
    chapters = {
        mark.get_title(): mark.get_dest().get_index() for mark in document.get_toc(max_depth=15) if not mark.level
    }
    for file in find_files():
        title = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert title in chapters, f"{file.name} is not in the handbook: {AGAIN}"
        assert title in texts[1] + texts[2], f"{title} is not in the contents"
        assert title in texts[chapters[title]]


def test_questions_name_the_page_that_answers_them(texts):
    questions = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    assert {question["kind"] for question in questions} == {"text", "table", "figure"}
    for question in questions:
        assert question["answer"] in " ".join(texts[question["page"] - 1].split()), f"{question['question']}: {AGAIN}"


def test_nothing_of_the_machine_is_in_it():
    about = pypdfium2.PdfDocument(HANDBOOK).get_metadata_dict()
    assert about["Title"] == "RandSlot handbook"
    assert about["Creator"] == "RandSlot"
    assert about["CreationDate"].startswith("D:20261117000000")
    assert b"file://" not in HANDBOOK.read_bytes()


def test_chapters_are_all_pages_but_the_reference():
    names = [file.name for file in find_files()]
    assert names[:3] == ["index.md", "choose.md", "method.md"]
    assert sorted([*names, *LEFT_OUT]) == sorted(file.name for file in (ROOT / "docs").glob("*.md"))
