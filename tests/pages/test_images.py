"""Images as people have them: each is read right, or refused in one line that names it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from randslot.errors import RandSlotError
from randslot.pages import limit_aspect, open_page
from support.models import make, noise


def gradient(width: int = 40, height: int = 30) -> np.ndarray:
    return np.tile(np.linspace(0, 255, width).round().astype(np.uint8), (height, 1))


def assert_gray(image: Image.Image, tolerance: int = 2) -> None:
    """The image shows the gradient: black on the left, white on the right."""
    assert image.mode == "RGB"
    values = np.asarray(image).astype(int)
    assert np.abs(values - gradient()[..., None]).max() <= tolerance


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "P", "I", "F", "YCbCr", "LAB", "HSV"])
def test_modes_show_the_same_picture(mode):
    image = Image.fromarray(gradient())
    if mode in ("LAB", "HSV", "YCbCr", "CMYK"):
        image = image.convert("RGB")
    if mode == "LAB":
        from PIL import ImageCms

        lab = ImageCms.createProfile("LAB")
        image = ImageCms.profileToProfile(image, ImageCms.createProfile("sRGB"), lab, outputMode="LAB")
    else:
        image = image.convert(mode)
    if mode == "LAB":
        assert open_page(image).mode == "RGB"  # Pillow has no exact way back; a page in LAB is not refused
    else:
        assert_gray(open_page(image))


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bit_gray_is_scaled_not_clipped(suffix, tmp_path):
    Image.fromarray(gradient().astype(np.uint16) * 257).save(tmp_path / f"page.{suffix}")
    assert_gray(open_page(tmp_path / f"page.{suffix}"))


def test_twelve_bits_in_a_sixteen_bit_file(tmp_path):
    Image.fromarray((gradient().astype(np.int32) * 4095 // 255).astype(np.uint16)).save(tmp_path / "scan.tiff")
    assert_gray(open_page(tmp_path / "scan.tiff"))


def test_float_gray_between_zero_and_one():
    assert_gray(open_page(Image.fromarray((gradient() / 255).astype(np.float32))))


def test_transparent_parts_are_white_paper():
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    half = Image.new("LA", (4, 4), (0, 128))
    palette = Image.new("P", (4, 4), 0)
    palette.info["transparency"] = 0
    assert open_page(clear).getpixel((0, 0)) == (255, 255, 255)
    assert open_page(palette).getpixel((0, 0)) == (255, 255, 255)
    assert open_page(half).getpixel((0, 0)) == (127, 127, 127)


def test_exif_rotation_is_followed(tmp_path):
    image = Image.new("RGB", (40, 20), "white")
    image.paste("black", (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    image.save(tmp_path / "photo.jpg", exif=exif)
    upright = open_page(tmp_path / "photo.jpg")
    assert upright.size == (20, 40)
    assert upright.getpixel((15, 2))[0] < 60
    assert upright.getpixel((2, 37))[0] > 200


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (7, 1), (2, 900)])
def test_tiny_and_extreme_pages_encode(family, size):
    assert make(family, visual_tokens=256).encode_document(Image.new("RGB", size, "white")).shape == (4, 64)


def test_padding_keeps_the_picture():
    image = limit_aspect(Image.new("RGB", (1000, 1), "black"), 200)
    assert image.size == (1000, 5)
    assert np.asarray(image)[:, 0, 0].tolist() == [255, 255, 0, 255, 255]
    ordinary = noise(30, 20)
    assert limit_aspect(ordinary, 200) is ordinary


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.png", None, "page image not found"),
        ("empty.png", b"", "not an image that can be read"),
        ("notes.txt", b"only words", "not an image that can be read"),
        ("Bericht 2023 (größer).png", b"\x89PNG\r\n\x1a\n" + b"junk" * 9, "cannot read page image|not an image"),
    ],
)
def test_unreadable_files_are_named_in_one_line(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RandSlotError, match=message) as caught:
        make("qwen3-vl").encode_document([str(tmp_path / name)])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
def test_torn_files_are_named_in_one_line(suffix, tmp_path):
    file = tmp_path / f"torn.{suffix}"
    noise(200, 200).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(RandSlotError, match=f"torn.{suffix}") as caught:
        open_page(file)
    assert "\n" not in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    noise(200, 200).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(RandSlotError, match=r"image too large to open safely, more than 2,000 pixels: .*bomb\.png"):
        open_page(tmp_path / "bomb.png")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "page image not found: ''"),
        ("x" * 5000, "page image not found: 'xxx"),
        ("line one\nline two", r"page image not found: 'line one\\nline two'"),
        ("http://example.com/a.png", "page image not found: http://example.com/a.png"),
        (Image.new("RGB", (0, 0)), "empty page image, 0x0 pixels"),
    ],
)
def test_things_that_are_not_pages_are_one_line(page, message):
    with pytest.raises(RandSlotError, match=message) as caught:
        open_page(page)
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_number_are_not_pages(tmp_path):
    with pytest.raises(RandSlotError, match="page image not found"):
        open_page(tmp_path)
    with pytest.raises(RandSlotError, match="must be an image or the path of one, not int"):
        open_page(7)


def test_a_page_as_bytes(tmp_path):
    noise(30, 20).save(tmp_path / "page.png")
    assert open_page((tmp_path / "page.png").read_bytes()).tobytes() == noise(30, 20).tobytes()
    with pytest.raises(RandSlotError, match="not an image that can be read: of 4 bytes"):
        open_page(b"junk")
