"""Pages of files and images: opened at the size that is asked for, or refused in one line that names the file."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from randslot.errors import RandSlotError
from randslot.pages import HEAD, KINDS, Page, num_pages, open_page
from support.libraries import write_tiff
from support.models import noise
from support.pdf import write_lines, write_pdf


@pytest.mark.parametrize("suffix", [".pdf", ".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".avif"])
def test_a_file_begins_as_its_kind_says_and_as_no_other(suffix, tmp_path):
    file = tmp_path / f"x{suffix}"
    if suffix == ".pdf":
        write_pdf(file, 1, [])
    else:
        noise(30, 20).save(file)
    head = file.read_bytes()[:HEAD]
    assert {kind.media_type for kind in KINDS.values() if kind.matches(head) and not kind.is_converted} == {
        KINDS[suffix].media_type
    }


def test_a_pdf_may_begin_after_other_bytes_but_within_the_first_1024():
    assert KINDS[".pdf"].matches(b"\n" * 1019 + b"%PDF-")
    assert not KINDS[".pdf"].matches(b"\n" * 1020 + b"%PDF-")


def test_a_page_opens_as_its_path_does(tmp_path):
    write_pdf(tmp_path / "x.pdf", 2, [])
    write_tiff(tmp_path / "x.tif", [1, 2, 3])
    noise(30, 20).save(tmp_path / "x.png")
    for name, page in {
        "x.pdf#page=2": Page(tmp_path / "x.pdf", 2),
        "x.tif#page=3": Page(str(tmp_path / "x.tif"), 3),
        "x.png": Page(tmp_path / "x.png"),
    }.items():
        expected = open_page(f"{tmp_path}/{name}", 20_000)
        assert page.image(20_000).tobytes() == expected.tobytes()
        assert open_page(page, 20_000).tobytes() == expected.tobytes()
        assert page.name == f"{tmp_path}/{name}"
        assert page.file == tmp_path / name.split("#")[0]
        assert Page.find(f"{tmp_path}/{name}").name == page.name


def test_a_page_from_memory(tmp_path):
    noise(30, 20).save(tmp_path / "x.png")
    for page in (Page(noise(30, 20)), Page((tmp_path / "x.png").read_bytes())):
        assert page.image().tobytes() == noise(30, 20).tobytes()
        assert page.file is None
        assert len(repr(page)) < 50
    assert Page.find(noise(30, 20)) == Page(noise(30, 20))


def test_a_page_may_be_made_before_its_file_and_sent_to_another_process(tmp_path):
    page = pickle.loads(pickle.dumps(Page(tmp_path / "x.png")))
    assert {page, Page(tmp_path / "x.png")} == {page}
    with pytest.raises(RandSlotError, match="page image not found"):
        page.image()
    noise(30, 20).save(tmp_path / "x.png")
    assert page.image().size == (30, 20)
    noise(20, 30).save(tmp_path / "x.png")
    assert page.image().size == (20, 30)


def test_a_page_of_a_pdf_is_rendered_at_the_size_asked_for(tmp_path):
    write_pdf(tmp_path / "größer.pdf", 3, [])
    page = open_page(f"{tmp_path / 'größer.pdf'}#page=2", pixels=56_000)
    assert page.size == (200, 280)
    assert page.mode == "RGB"
    assert np.asarray(page).min() < 50 < 250 < np.asarray(page).max()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("ok.pdf#page=4", "has 3 pages, so there is no page 4"),
        ("ok.pdf#page=0", "there is no page 0"),
        ("ok.pdf", r"is a document: choose a page, such as ok\.pdf#page=1"),
        ("gone.pdf#page=1", "PDF not found"),
        ("torn.pdf#page=1", "cannot read page 1 of"),
    ],
)
def test_wrong_pdf_pages_are_one_line(page, message, tmp_path):
    write_pdf(tmp_path / "ok.pdf", 3, [])
    (tmp_path / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    with pytest.raises(RandSlotError, match=message) as caught:
        open_page(tmp_path / page)
    assert "\n" not in str(caught.value)


def test_a_pdf_without_pages_says_so(tmp_path):
    write_pdf(tmp_path / "x.pdf", 0, [])
    for read in (Page(tmp_path / "x.pdf").image, Page(tmp_path / "x.pdf").text, lambda: num_pages(tmp_path / "x.pdf")):
        with pytest.raises(RandSlotError, match=r"^cannot .*x\.pdf: it has no pages$"):
            read()


def test_a_page_of_which_nothing_is_seen_is_one_line(tmp_path):
    write_lines(tmp_path / "x.pdf", ["words"], "/MediaBox [0 0 400 600] /CropBox [1000 1000 1200 1200]")
    for read in (Page(tmp_path / "x.pdf").image, Page(tmp_path / "x.pdf").text):
        with pytest.raises(RandSlotError, match=r"page 1 of .*x\.pdf has no area: its crop box is outside of it"):
            read()


def test_threads_may_read_text_and_render_at_once(tmp_path):
    """pdfium itself would crash."""
    write_pdf(tmp_path / "x.pdf", 8, [])

    def read(i: int) -> bool:
        page = Page(tmp_path / "x.pdf", i % 8 + 1)
        page.image(64 * 64)
        return page.text().text == f"Page {i % 8 + 1}"

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(100)))
