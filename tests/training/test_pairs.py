"""Outlines and spans of PDFs become pairs; generic queries and those that name several pages do not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.pages import open_page, read_page_text
from randslot.training.data import drop_bad_rows, load_pairs
from randslot.training.distill import read_queries
from randslot.training.pairs import clean_title, cut_spans, find_pairs, write_pairs
from support.pdf import write_drawings, write_pdf


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
    write_pairs(found.pairs, manuals, output)
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
        ("2023 results", "2023 results"),
        ("A.2 Boundary layers", "Boundary layers"),
        ("3D plots", "3D plots"),
    ],
)
def test_numbers_before_titles_go(title, clean):
    assert clean_title(title) == clean


# -- spans

TEXT = "the drum of a washer turns by a belt that may slip when it is wet or old"
WORDS = TEXT.split()


def show(text: str) -> str:
    return f"BT /F1 12 Tf 20 500 Td ({text}) Tj ET"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    pages = [TEXT, "how to order new parts by mail from our store in the city", "", "12 34 56 78"]
    write_drawings(folder / "washer.pdf", [show(page) for page in pages])
    write_pdf(folder / "dryer.pdf", 2, [("Drum and belt", 0)])  # its pages say "Page 1" and "Page 2"
    return folder


def test_spans_are_words_in_a_row_of_their_page(texts):
    found = find_pairs(texts, 10)
    title, *spans = found.pairs
    assert title == {"query": "Drum and belt", "image": "dryer.pdf#page=1"}
    pages = {f"{file}.pdf#page={number}" for file in ("washer", "dryer") for number in (1, 2)}
    assert {pair["image"] for pair in spans} == pages
    for pair in spans:
        assert 2 <= len(pair["query"].split()) <= 8
        assert pair["query"] in " ".join(read_page_text(str(texts / pair["image"])).split())
    assert len({pair["query"] for pair in spans}) == len(spans) > 12
    assert found.generic  # spans of numbers
    assert find_pairs(texts, 10).pairs == found.pairs != find_pairs(texts, 10, seed=1).pairs


def test_spans_that_name_several_pages_are_dropped(texts):
    write_drawings(texts / "copy.pdf", [show(" ".join(WORDS[:2]))])
    write_drawings(texts / "same.pdf", [show(" ".join(WORDS[:2]).upper())])
    found = find_pairs(texts, 3)
    assert "the drum" not in {pair["query"].casefold() for pair in found.pairs}
    assert found.repeated >= 2


def test_lengths_and_places_vary_and_no_words_give_no_span():
    spans = cut_spans(TEXT, 300, random.Random(0))
    assert {len(span.split()) for span in spans} == set(range(2, 9))
    assert {span.split()[0] for span in spans} | {span.split()[-1] for span in spans} == set(WORDS)
    assert cut_spans("one", 2, random.Random(0)) == ["one", "one"]
    assert cut_spans(" \n", 2, random.Random(0)) == []


def test_the_command_writes_titles_and_spans_that_a_student_can_learn_from(texts, tmp_path):
    (texts / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    output = tmp_path / "queries.jsonl"
    answer = CliRunner().invoke(app, ["pairs", str(texts), "-o", str(output), "--spans", "5"])
    assert answer.exit_code == 1  # one file could not be read
    assert answer.stderr.count("could not read") == 1
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    titles = find_pairs(texts).pairs
    assert rows[0]["query"] == titles[0]["query"] == "Drum and belt"
    assert len(rows) > len(titles)
    assert read_queries([str(output)]) == [row["query"] for row in rows]
