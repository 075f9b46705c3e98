"""Outlines become pairs; generic and repeated titles do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from randslot.errors import UsageError
from randslot.pages import open_page
from randslot.training.data import drop_bad_rows, load_pairs
from randslot.training.pairs import clean_title, find_pairs, is_useful, write_pairs
from support.pdf import write_pdf


@pytest.fixture
def manuals(tmp_path: Path) -> Path:
    folder = tmp_path / "manuals"
    (folder / "deep").mkdir(parents=True)
    outline = [("1 Introduction", 0), ("1.1 Setting the clock", 1), ("Cleaning", 1), ("Ordering parts", 2)]
    write_pdf(folder / "washer.pdf", 3, outline)
    write_pdf(folder / "deep" / "dryer größer.pdf", 2, [("Cleaning", 0), ("2 Drum and belt", 1)])
    write_pdf(folder / "plain.pdf", 1, [])
    (folder / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    (folder / "notes.txt").write_text("no PDF")
    return folder


def test_useful_titles_become_pairs_that_training_can_open(manuals, tmp_path):
    found = find_pairs(manuals)
    assert {pair["query"] for pair in found.pairs} == {"Setting the clock", "Ordering parts", "Drum and belt"}
    assert (found.generic, found.repeated) == (1, 2)
    assert [Path(line.split(":")[0]).name for line in found.failed] == ["torn.pdf"]
    assert [Path(name).name for name in found.without_outline] == ["plain.pdf"]
    output = tmp_path / "elsewhere" / "pairs.jsonl"
    write_pairs(found, manuals, output)
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {row["query"]: row["image"] for row in rows}["Setting the clock"] == "../manuals/washer.pdf#page=2"
    pairs, bad = drop_bad_rows(load_pairs(str(output), "train", "query", "image"), "stop")
    assert not bad
    assert all(open_page(pairs.locate(row["page"])).mode == "RGB" for row in pairs.dataset)


@pytest.mark.parametrize(
    ("title", "clean"),
    [
        ("1.2.3 Setting  the clock", "Setting the clock"),
        ("Chapter 4: Taxes", "Taxes"),
        ("Appendix A  Tables of steam", "Tables of steam"),
        ("2023 results", "2023 results"),
        ("A tale of two cities", "A tale of two cities"),
        ("A.2 Boundary layers", "Boundary layers"),
        ("B. Units", "Units"),
        ("3D plots", "3D plots"),
        ("IP addresses", "IP addresses"),
        ("My account", "My account"),
        ("Überblick über Größen", "Überblick über Größen"),
    ],
)
def test_numbers_before_titles_go(title, clean):
    assert clean_title(title) == clean


@pytest.mark.parametrize("title", ["Index", "Table of contents", "a", "12.4", "References.", "***"])
def test_generic_titles_are_dropped(title):
    assert not is_useful(title)


def test_no_folder_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        find_pairs(tmp_path / "nowhere")
