"""One table of file kinds: what it says of each suffix holds for files that are really written."""

from __future__ import annotations

import pytest

from randslot.pages import DOCUMENT_SUFFIXES, HEAD, IMAGE_SUFFIXES, KINDS, TIFF_SUFFIXES
from support.models import noise
from support.pdf import write_pdf


def write(file):
    if file.suffix == ".pdf":
        write_pdf(file, 1, [])
    else:
        noise(30, 20).save(file)


@pytest.mark.parametrize("suffix", KINDS)
def test_a_file_begins_as_its_kind_says_and_as_no_other(suffix, tmp_path):
    write(tmp_path / f"x{suffix}")
    head = (tmp_path / f"x{suffix}").read_bytes()[:HEAD]
    matching = {kind.media_type for kind in KINDS.values() if kind.matches(head)}
    assert matching == {KINDS[suffix].media_type}


def test_a_pdf_may_begin_after_other_bytes_but_within_the_first_1024():
    assert KINDS[".pdf"].matches(b"\n" * 1019 + b"%PDF-")
    assert not KINDS[".pdf"].matches(b"\n" * 1020 + b"%PDF-")


def test_groups_of_suffixes():
    assert (".pdf", *IMAGE_SUFFIXES) == DOCUMENT_SUFFIXES
    assert TIFF_SUFFIXES == (".tif", ".tiff")
    assert [suffix for suffix, kind in KINDS.items() if kind.several_pages] == [".pdf", ".tif", ".tiff"]
