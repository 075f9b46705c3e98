"""Text layers that nobody would write: they take little time and memory, and give words or nothing."""

from __future__ import annotations

import time

import pytest

from randslot.pages import NO_TEXT, OpenPdf, Page, read_file_text
from randslot.pages import pdf as pdf_text
from randslot.pages import pdf as pdfs
from support.pdf import GLYPH_NUMBERS, write_drawing, write_drawings, write_lines, write_pdf


def test_a_word_of_100_000_characters_is_one_word(tmp_path):
    drawing = "BT /F1 12 Tf 50 300 Td [" + f"({'a' * 20_000})" * 5 + "] TJ ET"
    write_drawing(tmp_path / "x.pdf", drawing)
    start = time.perf_counter()
    text = Page(tmp_path / "x.pdf").text()
    assert time.perf_counter() - start < 5
    assert [len(word.text) for word in text.words] == [100_000]
    assert text.words[0].right == 1.0


def test_a_long_text_object_is_read_up_to_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf_text, "MOST_CHARACTERS", 10_000)
    drawing = "BT /F1 12 Tf 50 300 Td [" + f"({'a' * 20_000})" * 5 + "] TJ ET"
    write_drawing(tmp_path / "x.pdf", drawing)
    text = Page(tmp_path / "x.pdf").text()
    assert text.truncated
    assert len(text.text) == 10_000


@pytest.mark.slow
def test_a_million_objects_are_read(tmp_path):
    drawing = "0 0 1 1 re f " * 1_000_000 + "BT /F1 12 Tf 50 300 Td (after them) Tj ET"
    write_drawing(tmp_path / "x.pdf", drawing)
    start = time.perf_counter()
    assert Page(tmp_path / "x.pdf").text().text == "after them"
    assert time.perf_counter() - start < 60


def test_null_bytes_controls_and_marks_of_direction_are_dropped(tmp_path):
    codes = "<61> <0000> <62> <200F> <63> <202E> <64> <001B> <65> <FFFD> <66> <200B> <67> <2066>"
    write_lines(tmp_path / "x.pdf", ["WaObRbDc dS gHERE", "aaa bbb eee"], codes=codes)
    text = Page(tmp_path / "x.pdf").text()
    assert text.text.split() == ["WORD", "S", "HERE"]
    assert [word.text for word in text.words] == text.text.split()


def test_fonts_that_do_not_say_what_glyphs_mean_give_no_layer(tmp_path):
    glyphs = "".join(f"{ord(letter) - 29:04x}" for letter in "this is the manual of the small machine for the kitchen")
    write_drawings(tmp_path / "x.pdf", [f"BT /F1 12 Tf 20 300 Td <{glyphs}> Tj ET"] * 2, GLYPH_NUMBERS)
    for number in (1, 2):
        assert Page(tmp_path / "x.pdf", number).text() == NO_TEXT


def test_a_page_with_only_spaces_or_only_an_image_has_no_layer(tmp_path):
    image = "q 300 0 0 300 50 50 cm BI /W 1 /H 1 /CS /G /BPC 8 ID x EI Q"
    write_drawings(tmp_path / "x.pdf", [image, "BT /F1 12 Tf 20 300 Td (   ) Tj ET"])
    for number in (1, 2):
        assert Page(tmp_path / "x.pdf", number).text() == NO_TEXT


def test_a_page_with_all_of_its_text_outside_has_no_layer(tmp_path):
    boxes = "/MediaBox [0 0 400 600] /CropBox [0 0 400 300]"
    write_drawing(tmp_path / "x.pdf", "BT /F1 12 Tf 50 500 Td (cut off) Tj ET", boxes)
    assert Page(tmp_path / "x.pdf").text() == NO_TEXT


def read(file, kept: OpenPdf, number: int = 1) -> str:
    return read_file_text(file, number, kept).text


def test_a_pdf_is_opened_once_for_many_pages(tmp_path):
    write_pdf(tmp_path / "x.pdf", 3, [])
    kept = OpenPdf()
    assert [read(tmp_path / "x.pdf", kept, number) for number in (1, 2)] == ["Page 1", "Page 2"]
    opened = kept.pdf
    assert read(tmp_path / "x.pdf", kept, 3) == "Page 3"
    assert kept.pdf is opened
    kept.close()
    assert kept.pdf is None


def test_another_file_or_a_changed_one_is_opened_again(tmp_path):
    file = tmp_path / "x.pdf"
    kept = OpenPdf()
    write_lines(file, ["first"])
    assert read(file, kept) == "first"
    write_lines(tmp_path / "y.pdf", ["other"])
    assert read(tmp_path / "y.pdf", kept) == "other"
    assert read(file, kept) == "first"
    write_lines(file, ["longer than that"])
    assert read(file, kept) == "longer than that"
    write_lines(tmp_path / "new.pdf", ["shorter than that"[:16]])
    (tmp_path / "new.pdf").replace(file)
    assert read(file, kept) == "shorter than tha"
    file.unlink()
    with pytest.raises(pdfs.RandSlotError, match="PDF not found"):
        read(file, kept)


def test_a_pdf_that_was_changed_in_memory_or_fails_is_not_kept(tmp_path, monkeypatch):
    write_lines(tmp_path / "x.pdf", [f"line {i}" for i in range(30)])
    kept = OpenPdf()
    expected = read(tmp_path / "x.pdf", kept)
    monkeypatch.setattr(pdf_text, "MOST_OBJECTS", 10)  # it is read in parts, which takes its objects away
    for _ in range(2):
        assert read(tmp_path / "x.pdf", kept) == expected
        assert kept.pdf is None
    with pytest.raises(pdfs.RandSlotError, match="no page 2"):
        read(tmp_path / "x.pdf", kept, 2)
    assert kept.pdf is None


def test_a_pdf_is_not_kept_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(pdfs, "MOST_USES", 2)
    write_pdf(tmp_path / "x.pdf", 1, [])
    kept = OpenPdf()
    opened = []
    for _ in range(4):
        assert read(tmp_path / "x.pdf", kept) == "Page 1"
        opened.append(kept.pdf)
    assert opened[0] is opened[1]
    assert opened[1] is not opened[2]
    assert opened[2] is opened[3]
