"""Words in a row of pages become queries, each with its page; what says nothing or names several pages does not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.pages import read_page_text
from randslot.training.data import LEAST, MOST, FoundPairs, add_spans, cut_spans, find_pairs
from randslot.training.distill import read_queries
from support.pdf import write_drawings, write_pdf

TEXT = "the drum of a washer turns by a belt that may slip when it is wet or old"
WORDS = TEXT.split()


def show(text: str) -> str:
    return f"BT /F1 12 Tf 20 500 Td ({text}) Tj ET"


@pytest.fixture
def manuals(tmp_path: Path) -> Path:
    folder = tmp_path / "manuals"
    folder.mkdir()
    pages = [TEXT, "how to order new parts by mail from our store in the city", "", "12 34 56 78"]
    write_drawings(folder / "washer.pdf", [show(page) for page in pages])
    write_pdf(folder / "dryer.pdf", 2, [("Drum and belt", 0)])  # its pages say "Page 1" and "Page 2"
    return folder


def test_spans_are_words_in_a_row_of_their_page(manuals):
    found = FoundPairs()
    add_spans(found, manuals, 10)
    assert {pair["image"] for pair in found.pairs} == {
        "washer.pdf#page=1",
        "washer.pdf#page=2",
        "dryer.pdf#page=1",
        "dryer.pdf#page=2",
    }
    for pair in found.pairs:
        words = pair["query"].split()
        assert LEAST <= len(words) <= MOST
        assert pair["query"] in " ".join(read_page_text(str(manuals / pair["image"])).split())
    assert len({pair["query"] for pair in found.pairs}) == len(found.pairs) > 12
    assert found.generic  # of numbers alone
    again, other = FoundPairs(), FoundPairs()
    add_spans(again, manuals, 10)
    add_spans(other, manuals, 10, seed=1)
    assert again.pairs == found.pairs != other.pairs


def test_spans_that_name_several_pages_are_dropped(manuals):
    write_drawings(manuals / "copy.pdf", [show(" ".join(WORDS[:2]))])
    write_drawings(manuals / "same.pdf", [show(" ".join(WORDS[:2]).upper())])
    found = FoundPairs()
    add_spans(found, manuals, 3)
    assert "the drum" not in {pair["query"].casefold() for pair in found.pairs}
    assert found.repeated >= 2


def test_lengths_and_places_vary_and_no_words_give_no_span():
    spans = cut_spans(TEXT, 300, random.Random(0))
    assert {len(span.split()) for span in spans} == set(range(LEAST, MOST + 1))
    assert {span.split()[0] for span in spans} | {span.split()[-1] for span in spans} == set(WORDS)
    assert cut_spans("one", 2, random.Random(0)) == ["one", "one"]
    assert cut_spans(" \n", 2, random.Random(0)) == []


def test_the_command_writes_titles_and_spans_that_a_student_can_learn_from(manuals, tmp_path):
    (manuals / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    output = tmp_path / "queries.jsonl"
    answer = CliRunner().invoke(app, ["pairs", str(manuals), "-o", str(output), "--spans", "5"])
    assert answer.exit_code == 1  # one file could not be read
    assert answer.stderr.count("could not read") == 1
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    titles = find_pairs(manuals).pairs
    assert rows[0]["query"] == titles[0]["query"] == "Drum and belt"
    assert len(rows) > len(titles)
    assert read_queries([str(output)]) == [row["query"] for row in rows]


def test_no_text_at_all_is_one_line(tmp_path):
    answer = CliRunner().invoke(app, ["pairs", str(tmp_path), "-o", str(tmp_path / "x.jsonl"), "--spans", "5"])
    assert "has text" in str(answer.exception)
    answer = CliRunner().invoke(app, ["pairs", str(tmp_path), "-o", str(tmp_path / "x.jsonl"), "--spans", "-1"])
    assert answer.exit_code == 2
