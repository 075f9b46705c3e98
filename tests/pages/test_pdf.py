"""Pages of PDFs: rendered at the size that is asked for, or refused in one line that names the file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from randslot.errors import RandSlotError
from randslot.pages import Page, open_page
from support.models import make
from support.pdf import write_lines, write_pdf


def test_a_page_of_a_pdf_is_rendered_at_the_size_asked_for(tmp_path):
    write_pdf(tmp_path / "größer.pdf", 3, [])
    page = open_page(f"{tmp_path / 'größer.pdf'}#page=2", pixels=56_000)
    assert page.size == (200, 280)
    assert page.mode == "RGB"
    assert np.asarray(page).min() < 50 < 250 < np.asarray(page).max()
    assert make("qwen3-vl").encode_document(f"{tmp_path / 'größer.pdf'}#page=3").shape == (4, 64)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("ok.pdf#page=4", "has 3 pages, so there is no page 4"),
        ("ok.pdf#page=0", "there is no page 0"),
        ("ok.pdf", r"has pages: name one, as in ok\.pdf#page=1"),
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


def test_a_page_of_which_nothing_is_seen_is_one_line(tmp_path):
    write_lines(tmp_path / "x.pdf", ["words"], "/MediaBox [0 0 400 600] /CropBox [1000 1000 1200 1200]")
    for read in (Page(tmp_path / "x.pdf").image, Page(tmp_path / "x.pdf").text):
        with pytest.raises(RandSlotError, match=r"page 1 of .*x\.pdf has no area: its crop box is outside of it"):
            read()


def test_threads_may_open_pages_of_pdfs_at_once(tmp_path):
    """pdfium itself would crash."""
    write_pdf(tmp_path / "a.pdf", 8, [])
    with ThreadPoolExecutor(4) as pool:
        pages = [f"{tmp_path}/a.pdf#page={i % 8 + 1}" for i in range(200)]
        images = list(pool.map(lambda page: open_page(page, 64 * 64), pages))
    assert len(images) == 200
