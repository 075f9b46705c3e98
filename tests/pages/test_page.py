"""One type for a page, wherever it comes from; nothing is opened before it is asked for."""

from __future__ import annotations

import pickle

import pytest

from randslot.errors import RandSlotError
from randslot.pages import Page, open_page
from support.libraries import write_tiff
from support.models import noise
from support.pdf import write_pdf


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
