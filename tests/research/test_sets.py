"""Sample reports on disk: PDFs that hold what the content says, within the page, the same bytes for the same seed."""

from __future__ import annotations

import json
import re
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pypdfium2 as pdfium
import pytest

from randslot.errors import UsageError
from randslot.pages import open_page
from research.samples.drawing import CELL, HEIGHT, WIDTH, draw_report
from research.samples.reports import arrange, make_reports
from research.samples.sets import EARLY, EASY, LATE, LINES, LINES_LATER, write_set


def rows(file) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_pdf_holds_the_words_of_its_pages():
    for report in make_reports(10, split="test"):
        with pdfium.PdfDocument(draw_report(report)) as pdf:
            for page, drawn in zip(report.pages, pdf, strict=True):
                found = drawn.get_textpage().get_text_bounded().split()
                assert sorted(found) == sorted(page.text.split())


def test_the_same_report_gives_the_same_bytes():
    report = next(make_reports(1))
    assert draw_report(report) == draw_report(report)


def test_nothing_leaves_the_page_or_runs_into_its_neighbour():
    for report in make_reports(40):
        with pdfium.PdfDocument(draw_report(report)) as pdf:
            for page in pdf:
                text = page.get_textpage()
                boxes = np.array([text.get_rect(i) for i in range(text.count_rects())])
                assert (boxes[:, :2] >= 0).all()
                assert (boxes[:, 2] <= 2 * WIDTH).all()
                assert (boxes[:, 3] <= 2 * HEIGHT).all()
                for i, (left, bottom, right, top) in enumerate(boxes):
                    others = np.delete(boxes, i, axis=0)
                    beside = (others[:, 0] < right) & (others[:, 2] > left)
                    assert not (beside & (others[:, 1] < top - 2) & (others[:, 3] > bottom + 2)).any()


def test_a_page_is_read_at_its_own_size(tmp_path):
    """At 54 visual tokens a page is rendered pixel by pixel as it was laid out, so text meets the model's grid."""
    write_set(tmp_path / "set", 1, split="test", seed=0)
    (file,) = (tmp_path / "set" / "pages").iterdir()
    image = open_page(f"{file}#page=2", pixels=54 * CELL**2)
    assert image.size == (WIDTH, HEIGHT)
    assert 0.02 < (np.asarray(image.convert("L")) < 128).mean() < 0.4


def test_a_set_has_pages_questions_grades_and_what_training_needs(tmp_path):
    assert write_set(tmp_path / "set", 4, split="validation", seed=2) == (12, 60)
    queries, qrels = rows(tmp_path / "set" / "queries.jsonl"), rows(tmp_path / "set" / "qrels.jsonl")
    assert {row["query"] for row in qrels} == {row["id"] for row in queries}
    assert {row["kind"] for row in queries} == {"cell", "chart", "number", "text", "mixed"}
    pairs, texts = rows(tmp_path / "set" / "pairs.jsonl"), rows(tmp_path / "set" / "texts.jsonl")
    assert len(texts) == 12
    assert len(pairs) == sum(row["grade"] == 2 for row in qrels)
    for row in (*pairs, *texts):
        open_page(f"{tmp_path}/set/{row['image']}", pixels=4096)


def test_a_layout_is_the_order_of_blocks_on_every_page(tmp_path):
    """The facts and questions stay; only where things stand changes."""
    write_set(tmp_path / "any", 3, split="test", seed=0)
    write_set(tmp_path / "one", 3, split="test", seed=0, layout="chart-text-table")
    any_page, one = ([row["text"] for row in rows(tmp_path / name / "texts.jsonl")] for name in ("any", "one"))
    assert [sorted(text.splitlines()) for text in any_page] == [sorted(text.splitlines()) for text in one]
    arranged = [arrange(report, "chart-text-table") for report in make_reports(3, split="test", seed=0)]
    assert one == [page.text for report in arranged for page in report.pages] != any_page
    assert {page.blocks for report in arranged for page in report.pages} == {("title", "chart", "text", "table")}
    assert rows(tmp_path / "any" / "queries.jsonl") == rows(tmp_path / "one" / "queries.jsonl")
    with pytest.raises(UsageError, match="layout 'chart-text' is not an order of text, table, chart"):
        write_set(tmp_path / "two", 3, split="test", seed=0, layout="chart-text")


def test_a_set_writes_over_nothing(tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        write_set(tmp_path, 1, split="train", seed=0)
    with pytest.raises(UsageError, match="at least 1 report, not 0"):
        write_set(tmp_path / "new", 0, split="train", seed=0)
    with pytest.raises(UsageError, match="cannot write into"):
        write_set(tmp_path / "kept.txt" / "below", 1, split="train", seed=0)


def test_a_curriculum_goes_from_words_to_blocks_to_pages(tmp_path):
    write_set(tmp_path / "set", 2, split="train", seed=0, curriculum=True)
    table = pq.read_table(tmp_path / "set" / "reading.parquet")
    texts = table["text"].to_pylist()
    sizes = [open_page(image).size for image in table["image"].to_pylist()]
    assert len(texts) == 30 + 6 + 6 + 6
    assert all(" " not in text for text in texts[:30])
    assert {text.count("\n") for text in texts[30:36]} <= {0, 1, 2}
    assert set(sizes[:30]) == {(CELL, CELL)}
    assert set(sizes[30:36]) <= {(WIDTH, rows * CELL) for rows in (1, 2, 3)}
    assert set(sizes[36:]) == {(WIDTH, HEIGHT)}
    assert set(texts[:30]) <= {word for text in texts[36:] for word in text.split()}


def test_a_part_of_a_page_keeps_its_place():
    page = next(make_reports(1)).pages[0]
    part = page.keep(2, Random(0))
    assert part.blocks == page.blocks
    assert len(part.shown) == 2
    assert set(part.text.splitlines()) < set(page.text.splitlines())
    assert page.keep(4, Random(0)) == page


@pytest.mark.slow
def test_lessons_go_from_parts_with_lines_to_pages_with_questions(tmp_path, monkeypatch):
    monkeypatch.setattr("research.samples.sets.FEW", 10)
    monkeypatch.setattr("research.samples.sets.MANY", 20)
    write_set(tmp_path / "set", 24, split="train", seed=0, curriculum=True)
    lessons = rows(tmp_path / "set" / "lessons.jsonl")
    texts = {row["image"]: row["text"].replace(".", "").split() for row in rows(tmp_path / "set" / "texts.jsonl")}
    few, many = list(texts)[:30], list(texts)[:60]
    assert len(lessons) == (EASY + EARLY) * len(few) + LATE * len(many)
    assert {len(row["query"]) for row in lessons} == {len(LINES)}
    easy = lessons[: EASY * len(few)]
    for row in easy[: len(few)]:
        file, _, number = row["image"].partition("#page=")
        with pdfium.PdfDocument(tmp_path / "set" / file) as pdf:
            written = pdf[int(number) - 1].get_textpage().get_text_bounded().replace(".", "").split()
        assert {word for query in row["query"] for word in query.split()} <= set(written)
    assert 0.6 < np.mean([row["image"].startswith("parts/") for row in easy]) < 0.9
    early = lessons[len(easy) : len(easy) + EARLY * len(few)]
    late = lessons[len(easy) + len(early) :]
    for pages, part in ((few, early), (many, late)):
        for start in range(0, len(part), len(pages)):
            assert {row["image"] for row in part[start : start + len(pages)]} == set(pages)
    with_lines = []
    for row in early + late:
        with_lines.append(all(set(query.split()) <= set(texts[row["image"]]) for query in row["query"]))
        if not with_lines[-1]:
            on_page = {word.lower() for word in texts[row["image"]]}
            assert all(len(on_page & set(re.findall(r"\w+", query.lower()))) >= 3 for query in row["query"])
    assert np.mean(with_lines) == pytest.approx(LINES_LATER, abs=0.05)
