"""OCR of page images: the words that are drawn, where they are drawn, whichever engine reads them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from PIL import Image, ImageDraw, ImageFont

from randslot.errors import RandSlotError
from randslot.pages import NO_TEXT, Page, Word, ocr
from randslot.pages.ocr import find_engine, read_image_text
from support.pdf import write_lines

PLACES = {  # where words are drawn, in pixels from the upper left corner of an image of 800 x 600
    "Revenue": (60, 50),
    "Region": (420, 50),
    "Warehouse": (60, 200),
    "Inventory": (330, 420),
    "Shipment": (500, 520),
}


@pytest.fixture(autouse=True)
def _with_ocr(monkeypatch):
    monkeypatch.delenv("RANDSLOT_OCR")


@pytest.fixture(params=["rapidocr", "tesseract"])
def engine(request) -> str:
    if request.param == "rapidocr":
        pytest.importorskip("rapidocr", reason="RapidOCR is not installed: the extra randslot[ocr]")
    elif not shutil.which("tesseract"):
        pytest.skip("Tesseract is not installed")
    return request.param


def draw(places: dict[str, tuple[int, int]], size: tuple[int, int] = (800, 600), height: int = 36):
    """Draw words on white; return the image and the box of each word's ink, in fractions of the image."""
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(height)
    boxes = {}
    for text, place in places.items():
        pen.text(place, text, "black", font)
        left, top, right, bottom = pen.textbbox(place, text, font)
        boxes[text] = (left / size[0], top / size[1], right / size[0], bottom / size[1])
    return image, boxes


def turn(box: tuple[float, float, float, float], quarters: int) -> tuple[float, float, float, float]:
    """Return a box on the image turned counter-clockwise."""
    left, top, right, bottom = box
    for _ in range(quarters):
        left, top, right, bottom = top, 1 - right, bottom, 1 - left
    return left, top, right, bottom


def corners(word: Word) -> tuple[float, float, float, float]:
    return word.left, word.top, word.right, word.bottom


@pytest.mark.parametrize("quarters", [0, 1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_words_are_read_where_they_are_drawn_however_the_page_lies(engine, quarters):
    if engine == "tesseract" and quarters:
        pytest.skip("Tesseract needs more words to find out how a page lies")
    image, boxes = draw(PLACES)
    text = read_image_text(image.rotate(90 * quarters, expand=True), engine)
    assert not text.has_layer
    assert [word.text for word in text.words] == list(PLACES) == text.text.split()
    for word in text.words:
        assert corners(word) == pytest.approx(turn(boxes[word.text], quarters), abs=0.03)


def test_a_line_has_a_box_for_each_word(engine):
    words = ["We", "ship", "illuminated", "million-wide", "WAREHOUSES", "daily."]
    font = ImageFont.load_default(30)
    image = Image.new("RGB", (1000, 200), "white")
    pen = ImageDraw.Draw(image)
    pen.text((40, 80), " ".join(words), "black", font)
    text = read_image_text(image, engine)
    assert text.text == " ".join(words)
    left = 40.0
    for word in text.words:
        right = left + pen.textlength(word.text, font)
        assert word.left * 1000 == pytest.approx(left, abs=12)
        assert word.right * 1000 == pytest.approx(right, abs=12)
        left = right + pen.textlength(" ", font)


@pytest.mark.nightly
def test_a_line_that_stands_on_end_among_others(engine):
    """As the name of an axis does, on a page that is upright."""
    image, _ = draw(PLACES)
    axis, _ = draw({"Temperature": (20, 4)}, (260, 50))
    image.paste(axis.rotate(90, expand=True), (5, 270))
    words = {word.text: word for word in read_image_text(image, engine).words}
    assert set(PLACES) <= set(words)
    if engine == "rapidocr":  # Tesseract reads no such lines
        assert corners(words["Temperature"]) == pytest.approx((0.01, 0.48, 0.06, 0.84), abs=0.04)


@pytest.mark.nightly
def test_umlauts_and_accents(engine, tmp_path):
    if engine == "tesseract":
        listed = subprocess.run(
            ["tesseract", "--list-langs"], capture_output=True, text=True, check=True
        ).stdout.split()
        if not {"deu", "fra", "spa"} <= set(listed):
            pytest.skip("Tesseract has not all of German, French and Spanish here")
    lines = ["Größere Übungen für Äpfel und Öl", "La façade où l'été a déjà brûlé", "El niño comió piñas y maíz"]
    write_lines(tmp_path / "x.pdf", lines)
    text = read_image_text(Page(tmp_path / "x.pdf").image(), engine)
    read, drawn = text.text.replace("\u2019", "'").split(), " ".join(lines).split()
    missed = set(drawn) - set(read)
    assert len(missed) <= (0 if engine == "rapidocr" else 3), missed


def test_lines_are_in_the_order_of_reading_and_words_are_joined_where_they_were_hyphenated(engine, tmp_path):
    lines = ["The first line of this page ends with a hyphen-", "ated word, and the second one does not.", "Third."]
    write_lines(tmp_path / "x.pdf", lines)
    text = read_image_text(Page(tmp_path / "x.pdf").image(), engine)
    assert text.text.splitlines() == [
        "The first line of this page ends with a hyphenated",
        "word, and the second one does not.",
        "Third.",
    ]
    assert [word.text for word in text.words] == text.text.split()
    (joined,) = [word for word in text.words if word.text == "hyphenated"]
    assert joined.left < 0.2 < 0.6 < joined.right


@pytest.mark.parametrize("size", [(1, 1), (1, 4000)])
def test_an_image_without_text_gives_an_empty_text(engine, size):
    assert read_image_text(Image.new("RGB", size, "white"), engine) == NO_TEXT


@pytest.mark.nightly
def test_a_small_image_is_read(engine):
    image, boxes = draw({"Total": (8, 2)}, (110, 44), 30)
    text = read_image_text(image, engine)
    assert text.text == "Total"
    assert corners(text.words[0]) == pytest.approx(boxes["Total"], abs=0.25)  # of 44 pixels


@pytest.mark.parametrize("size", [(8000, 6000), (40, 60_000), (60_000, 40)])
def test_no_large_image_gets_to_the_engine(size, monkeypatch):
    """The detector enlarges images by their short side: a strip would take all memory."""
    sizes = []
    empty = SimpleNamespace(boxes=None)
    monkeypatch.setattr(ocr, "_load_rapidocr", lambda: lambda image, **_: sizes.append(image.size) or empty)
    assert read_image_text(Image.new("RGB", size, "white"), "rapidocr") == NO_TEXT
    ((width, height),) = sizes
    assert width * height == pytest.approx(ocr.FIND_PIXELS, rel=0.05)
    assert max(width, height) <= 4.1 * min(width, height)


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_strip_is_read(turned):
    pytest.importorskip("rapidocr", reason="RapidOCR is not installed: the extra randslot[ocr]")
    image, boxes = draw({"Beginning": (20, 4), "Finished": (2800, 4)}, (3000, 44), 30)
    text = read_image_text(image.rotate(90, expand=True) if turned else image)
    assert text.text.split() == ["Beginning", "Finished"]
    for word in text.words:
        box = turn(boxes[word.text], 1) if turned else boxes[word.text]
        assert (word.left, word.right) == pytest.approx((box[0], box[2]), abs=0.35 if turned else 0.01)


@pytest.mark.nightly
def test_a_huge_image_is_read(engine):
    places = {text: (10 * x, 10 * y) for text, (x, y) in PLACES.items()}
    image, boxes = draw(places, (8000, 6000), 360)
    text = read_image_text(image, engine)
    assert {word.text for word in text.words} == set(PLACES)
    for word in text.words:
        assert corners(word) == pytest.approx(boxes[word.text], abs=0.03)


def test_without_the_extra_tesseract_is_used_and_without_both_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert find_engine() == "tesseract"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find_engine() is None
    with pytest.raises(RandSlotError, match=r'^reading .* needs an OCR engine: pip install "randslot\[ocr\]"$'):
        read_image_text(Image.new("RGB", (100, 100), "white"))


def test_an_engine_that_cannot_be_loaded_is_one_line(monkeypatch):
    """As when a library that OpenCV needs is missing."""
    monkeypatch.setitem(sys.modules, "cv2", None)
    ocr._load_rapidocr.cache_clear()
    with pytest.raises(RandSlotError, match=r"^cannot load RapidOCR: .*cv2"):
        read_image_text(Image.new("RGB", (100, 100), "white"), "rapidocr")


def test_rapidocr_downloads_nothing_and_computes_with_one_thread(monkeypatch):
    pytest.importorskip("rapidocr", reason="RapidOCR is not installed: the extra randslot[ocr]")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the network was used"))
    ocr._load_rapidocr.cache_clear()
    image, _ = draw(PLACES)
    assert len(read_image_text(image, "rapidocr").words) == len(PLACES)
    engine = ocr._load_rapidocr()
    for part in (engine.text_det, engine.text_rec):
        assert part.session.session.get_session_options().intra_op_num_threads == 1


def test_a_failure_of_tesseract_is_one_line(monkeypatch):
    if not shutil.which("tesseract"):
        pytest.skip("Tesseract is not installed")
    monkeypatch.setattr(ocr, "_find_tesseract_options", lambda: ("-l", "nosuch"))
    with pytest.raises(RandSlotError, match=r"^tesseract failed: [^\n]*nosuch[^\n]*$"):
        read_image_text(Image.new("RGB", (100, 100), "white"), "tesseract")
