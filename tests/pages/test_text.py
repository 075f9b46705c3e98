"""The text of pages: the words that are seen, where they are seen, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pypdfium2 as pdfium
import pypdfium2.raw as pdf_api
import pytest

from randslot.errors import RandSlotError
from randslot.pages import NO_TEXT, OpenPdf, Page, read_file_text
from randslot.pages import pdf as pdf_text
from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from support.models import noise
from support.pdf import GLYPH_NUMBERS, write_drawing, write_drawings, write_lines, write_pdf

COLOURS = {"Alpha": (1, 0, 0), "jumping": (0, 1, 0), "Ring": (0, 0, 1)}
THREE_WORDS = (
    "BT /F1 24 Tf 1 0 0 rg 120 480 Td (Alpha) Tj ET "
    "BT /F1 12 Tf 0 1 0 rg 210 330 Td (jumping) Tj ET "
    "BT /F1 18 Tf 0 0 1 rg 0.8 0.6 -0.6 0.8 150 210 Tm (Ring) Tj ET"
)
BOXES = [
    "/MediaBox [0 0 400 600]",
    "/MediaBox [-70 -30 380 590]",
    "/MediaBox [0 0 400 600] /CropBox [90 150 330 540]",
    "/MediaBox [0 0 400 600] /CropBox [-500 150 330 5400]",
    "/MediaBox [0 0 400 600] /UserUnit 2",
]


def find_ink(page: Page, colour: tuple[int, int, int]) -> tuple[float, float, float, float]:
    """Return the box of what is drawn in a colour, in fractions of the page's image."""
    pixels = np.asarray(page.image(2_000_000)).astype(int)
    others = pixels[..., [i for i in range(3) if not colour[i]]]
    ink = (others < 128).all(axis=2) & (pixels[..., colour.index(1)] > 128)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    height, width = ink.shape
    return columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height


@pytest.mark.parametrize(("boxes", "rotation"), list(zip(BOXES, [0, 90, 180, 270, 0], strict=True)))
def test_boxes_are_where_the_image_has_the_words(boxes, rotation, tmp_path):
    write_drawing(tmp_path / "x.pdf", THREE_WORDS, f"{boxes} /Rotate {rotation}")
    page = Page(tmp_path / "x.pdf")
    words = {word.text: word for word in page.text().words}
    assert set(words) == set(COLOURS)
    for text, colour in COLOURS.items():
        word = words[text]
        # The letters of "Ring" are slanted: the box around their upright boxes is a little larger than the ink.
        tolerance = 0.012 if text == "Ring" else 0.004
        assert (word.left, word.top, word.right, word.bottom) == pytest.approx(find_ink(page, colour), abs=tolerance)


def read_slowly(file, number: int = 1) -> list[tuple[str, list[float]]]:
    """Words and their boxes in points, character by character, for a page without hyphens and other special cases."""
    words: list[tuple[str, list[float]]] = []
    with pdfium.PdfDocument(file) as pdf:
        text_page = pdf[number - 1].get_textpage()
        inside = False
        for i in range(text_page.count_chars()):
            character = chr(pdf_api.FPDFText_GetUnicode(text_page, i))
            if character.isspace():
                inside = False
                continue
            left, bottom, right, top = text_page.get_charbox(i)
            if not inside:
                words.append(("", [left, bottom, right, top]))
                inside = True
            text, box = words[-1]
            wider = [min(box[0], left), min(box[1], bottom), max(box[2], right), max(box[3], top)]
            words[-1] = (text + character, wider)
    return words


def test_words_are_those_of_a_slow_reading(tmp_path):
    (tmp_path / "report.pdf").write_bytes(draw_report(next(make_reports(1))))
    write_lines(tmp_path / "lines.pdf", [f"Line {i} of a page, with (some) words: {i * i}" for i in range(30)])
    for file in (tmp_path / "report.pdf", tmp_path / "lines.pdf"):
        with pdfium.PdfDocument(file) as pdf:
            width, height = pdf[0].get_size()
        expected = read_slowly(file)
        words = Page(file).text().words
        assert len(words) > 10
        assert [word.text for word in words] == [text for text, _ in expected]
        for word, (_, (left, bottom, right, top)) in zip(words, expected, strict=True):
            box = (word.left * width, height - word.bottom * height, word.right * width, height - word.top * height)
            assert box == pytest.approx((left, bottom, right, top), abs=0.01)


def test_lines_stay_lines(tmp_path):
    write_lines(tmp_path / "x.pdf", ["  Two   words", "and \\(three\\) more", "", "end"])
    text = Page(tmp_path / "x.pdf").text()
    assert text.text == "Two words\nand (three) more\nend"
    assert [word.text for word in text.words] == text.text.split()
    assert text.has_layer
    assert not text.truncated


def test_words_broken_at_the_end_of_a_line_are_joined(tmp_path):
    write_lines(tmp_path / "x.pdf", ["an exam-", "ple of a well-known soft\\255", "ware", "a - b"])
    text = Page(tmp_path / "x.pdf").text()
    assert text.text == "an example\nof a well-known software\na - b"
    example = text.words[1]
    assert (example.left, example.right) == pytest.approx((50 / 400, 121.5 / 400), abs=0.06)
    assert example.bottom - example.top == pytest.approx(23 / 600, abs=0.006)  # two lines


def test_ligatures_are_written_out_and_controls_dropped(tmp_path):
    ligatures = "<61> <FB01> <62> <FB00> <63> <FB04>"
    others = "<64> <0000> <65> <0002> <66> <FFFE> <67> <D83DDE00> <68> <D83D> <69> <FEFF>"
    write_lines(tmp_path / "x.pdf", ["ax bcy xdefihx xgx", "dd"], codes=f"{ligatures} {others}")
    text = Page(tmp_path / "x.pdf").text()
    assert text.text == "fix ffffly xx x😀x"
    assert [word.text for word in text.words] == text.text.split()


def test_words_outside_of_what_is_seen_are_left_out(tmp_path):
    """As in scans of double pages, which were cut by cropping and have the text of both halves."""
    drawing = "BT /F1 12 Tf 50 300 Td (left) Tj 200 0 Td (right) Tj ET BT /F1 12 Tf 195 200 Td (between) Tj ET"
    for name, box in (("l.pdf", "0 0 200 600"), ("r.pdf", "200 0 400 600")):
        write_drawing(tmp_path / name, drawing, f"/MediaBox [0 0 400 600] /CropBox [{box}]")
    left, right = Page(tmp_path / "l.pdf").text(), Page(tmp_path / "r.pdf").text()
    assert left.text.split() == ["left", "between"]
    assert right.text.split() == ["right", "between"]
    assert left.words[1].right == 1.0
    assert right.words[1].left == 0.0


def test_images_and_scans_have_no_text_layer(tmp_path):
    noise(30, 20).save(tmp_path / "x.png")
    write_drawing(tmp_path / "scan.pdf", "0 0 0 rg 50 50 100 100 re f")
    pages = [
        Page(tmp_path / "x.png"),
        Page((tmp_path / "x.png").read_bytes()),
        Page(noise(30, 20)),
        Page(tmp_path / "scan.pdf"),
    ]
    for page in pages:
        assert page.text() == NO_TEXT
    assert (NO_TEXT.text, NO_TEXT.words, NO_TEXT.has_layer) == ("", (), False)


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("gone.pdf", 1, "PDF not found"),
        ("torn.pdf", 1, "cannot read page 1 of"),
        ("torn.png", 1, "not an image that can be read"),
        ("ok.png", 2, "has 1 page, so there is no page 2"),
    ],
)
def test_text_that_cannot_be_read_is_one_line(name, number, message, tmp_path):
    noise(30, 20).save(tmp_path / "ok.png")
    for torn in ("torn.pdf", "torn.png"):
        (tmp_path / torn).write_bytes(b"%PDF-1.4 torn")
    with pytest.raises(RandSlotError, match=message) as caught:
        Page(tmp_path / name, number).text()
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_page_of_many_objects_is_read_in_parts(tmp_path, monkeypatch):
    boxes = "/MediaBox [-70 -30 380 590] /Rotate 270"
    write_lines(tmp_path / "x.pdf", [f"line {i} of many" for i in range(35)], boxes)
    expected = Page(tmp_path / "x.pdf").text()
    assert len(expected.words) == 4 * 35
    monkeypatch.setattr(pdf_text, "MAX_OBJECTS", 10)
    assert Page(tmp_path / "x.pdf").text() == expected


@pytest.mark.parametrize("objects", [10, 10_000])
def test_the_characters_of_a_page_are_limited(objects, tmp_path, monkeypatch):
    write_lines(tmp_path / "x.pdf", [f"line {i:02} of many" for i in range(35)])
    expected = Page(tmp_path / "x.pdf").text()
    assert not expected.truncated
    monkeypatch.setattr(pdf_text, "MAX_OBJECTS", objects)
    monkeypatch.setattr(pdf_text, "MAX_CHARACTERS", 300)
    text = Page(tmp_path / "x.pdf").text()
    assert text.truncated
    assert 250 < len(text.text) <= 300
    assert expected.text.startswith(text.text)


def test_text_and_image_are_read_without_each_other(tmp_path, monkeypatch):
    write_pdf(tmp_path / "x.pdf", 1, [])
    with monkeypatch.context() as patch:
        patch.setattr(pdfium.PdfPage, "render", lambda *_, **__: pytest.fail("rendered"))
        assert Page(tmp_path / "x.pdf").text().text == "Page 1"
    monkeypatch.setattr(pdfium.PdfPage, "get_textpage", lambda *_: pytest.fail("text was read"))
    assert Page(tmp_path / "x.pdf").image(10_000).mode == "RGB"


# Text layers that nobody would write: they take little time and memory, and give words or nothing.


def test_a_word_of_100_000_characters_is_one_word(tmp_path):
    drawing = "BT /F1 12 Tf 50 300 Td [" + f"({'a' * 20_000})" * 5 + "] TJ ET"
    write_drawing(tmp_path / "x.pdf", drawing)
    start = time.perf_counter()
    text = Page(tmp_path / "x.pdf").text()
    assert time.perf_counter() - start < 5
    assert [len(word.text) for word in text.words] == [100_000]
    assert text.words[0].right == 1.0


@pytest.mark.nightly
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
    with pytest.raises(RandSlotError, match="PDF not found"):
        read(file, kept)


def test_a_pdf_that_was_changed_in_memory_or_fails_is_not_kept(tmp_path, monkeypatch):
    write_lines(tmp_path / "x.pdf", [f"line {i}" for i in range(30)])
    kept = OpenPdf()
    expected = read(tmp_path / "x.pdf", kept)
    monkeypatch.setattr(pdf_text, "MAX_OBJECTS", 10)  # it is read in parts, which takes its objects away
    for _ in range(2):
        assert read(tmp_path / "x.pdf", kept) == expected
        assert kept.pdf is None
    with pytest.raises(RandSlotError, match="no page 2"):
        read(tmp_path / "x.pdf", kept, 2)
    assert kept.pdf is None


def test_a_pdf_is_not_kept_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf_text, "MAX_USES", 2)
    write_pdf(tmp_path / "x.pdf", 1, [])
    kept = OpenPdf()
    opened = []
    for _ in range(4):
        assert read(tmp_path / "x.pdf", kept) == "Page 1"
        opened.append(kept.pdf)
    assert opened[0] is opened[1]
    assert opened[1] is not opened[2]
    assert opened[2] is opened[3]
