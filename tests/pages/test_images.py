"""Images as people have them: each is read right, or refused in one line that names it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from randslot.errors import RandSlotError
from randslot.pages import images, limit_aspect, open_page, render_file_page
from support.models import make, noise


def gradient(width: int = 40, height: int = 30) -> np.ndarray:
    return np.tile(np.linspace(0, 255, width).round().astype(np.uint8), (height, 1))


def assert_gray(image: Image.Image, tolerance: int = 2) -> None:
    """The image shows the gradient: black on the left, white on the right."""
    assert image.mode == "RGB"
    values = np.asarray(image).astype(int)
    assert np.abs(values - gradient()[..., None]).max() <= tolerance


def test_modes_show_the_same_picture():
    for mode in ("L", "RGB", "CMYK", "P", "I", "F", "YCbCr", "HSV"):
        image = Image.fromarray(gradient())
        if mode in ("HSV", "YCbCr", "CMYK"):
            image = image.convert("RGB")
        assert_gray(open_page(image.convert(mode)))


@pytest.mark.parametrize("most", [65_535, 4095])  # scanners store 12 bits in 16
def test_deep_gray_is_scaled_not_clipped(most, tmp_path):
    Image.fromarray((gradient().astype(np.int64) * most // 255).astype(np.uint16)).save(tmp_path / "scan.tiff")
    assert_gray(open_page(tmp_path / "scan.tiff"))
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


@pytest.mark.parametrize("size", [(1, 1), (1, 3000)])
def test_tiny_and_extreme_pages_encode(vision_family, size):
    assert make(vision_family, visual_tokens=256).encode_document(Image.new("RGB", size, "white")).shape == (4, 64)


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
        ("notes.xyz", b"only words", "not an image that can be read"),
        ("Bericht 2023 (größer).png", b"\x89PNG\r\n\x1a\n" + b"junk" * 9, "cannot read page image|not an image"),
    ],
)
def test_unreadable_files_are_named_in_one_line(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RandSlotError, match=message) as caught:
        open_page(str(tmp_path / name))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
def test_torn_files_are_named_in_one_line(suffix, tmp_path, monkeypatch):
    file = tmp_path / f"torn.{suffix}"
    noise(200, 200).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for large in (images.LARGE, 1000):
        monkeypatch.setattr(images, "LARGE", large)
        with pytest.raises(RandSlotError, match=f"torn.{suffix}") as caught:
            render_file_page(file, 1, 1000)
        assert "\n" not in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    noise(200, 200).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(RandSlotError, match=r"image too large to open safely: .*bomb\.png"):
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


def smooth(width: int, height: int) -> Image.Image:
    """A colourful picture without fine details."""
    return noise(12, 9).resize((width, height), Image.Resampling.BICUBIC)


def save_as(kind: str, file: Path) -> Path:
    """Save a picture of 1200 x 900 pixels as people have them; the suffix is of the kind."""
    image, options = smooth(1200, 900), {}
    if kind == "alpha.png":
        image.putalpha(image.convert("L"))
    elif kind == "palette.png":
        image = image.quantize(16)
        options = {"transparency": 3}
    elif kind == "deep.png":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 16)
    elif kind in ("turned.jpg", "turned.tif"):
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"exif": exif}
    elif kind == "cmyk.jpg":
        image = image.convert("CMYK")
    elif kind == "bits.png":
        image = image.convert("1")
    file = file.with_name(kind)
    image.save(file, **options)
    return file


KINDS = ["rgb.webp", "alpha.png", "palette.png", "deep.png", "turned.jpg", "turned.tif", "cmyk.jpg", "bits.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_image_shows_the_same_when_it_is_shrunk_as_it_is_read(kind, tmp_path, monkeypatch):
    file = save_as(kind, tmp_path / "page")
    whole = {pixels: images.shrink(open_page(file), pixels) for pixels in (3000, 10**7)}
    for pixels, expected in whole.items():
        assert render_file_page(file, 1, pixels).tobytes() == expected.tobytes()
    assert whole[3000].size == ((47, 63) if "turned" in kind else (63, 47))
    monkeypatch.setattr(images, "LARGE", 1000)
    monkeypatch.setattr(images, "ROWS", 40)  # so that there are many parts, the last one not whole
    for pixels, expected in whole.items():
        small = render_file_page(file, 1, pixels)
        assert small.size == expected.size
        difference = np.abs(np.asarray(small).astype(int) - np.asarray(expected))
        assert difference.max() <= (0 if pixels == 10**7 else 8)
        assert difference.mean() <= 1.0


def test_a_large_jpeg_is_decoded_at_a_reduced_size(tmp_path, monkeypatch):
    file = save_as("rgb.jpg", tmp_path / "page")
    monkeypatch.setattr(images, "LARGE", 1000)
    converted = []
    monkeypatch.setattr(images, "_to_rgb", lambda image: converted.append(image.width) or image)
    render_file_page(file, 1, 3000)
    assert set(converted) == {300}  # a quarter; an eighth is less than three times of what is wanted


def test_a_jpeg_has_a_size_in_bytes_whatever_it_shows():
    content = images.to_jpeg(noise(1200, 1500), 100_000)
    assert len(content) <= 100_000
    with Image.open(BytesIO(content)) as small:
        assert 100 < small.width < 1200
    assert len(images.to_jpeg(noise(20, 20), 10)) > 10, "there is a smallest one"
