"""Any reader of pages can have a library: of a model it needs the protocol and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from randslot.errors import UsageError
from randslot.library.library import Library
from randslot.library.models import check_model
from support.libraries import ToyReader, write_tiff
from support.models import noise
from support.pdf import write_pages, write_pdf
from support.scans import write_scan


def best(reader: ToyReader, query: str, pages: dict[int, bytes]) -> list[int]:
    """Return the numbers of pages by their scores, computed here."""
    (wanted,) = reader.embed_queries([query])
    scores = {number: (wanted @ reader.vectors(content).T).max(1).sum() for number, content in pages.items()}
    return sorted(scores, key=lambda number: -scores[number])


def test_a_reader_of_images(tmp_path):
    reader = ToyReader()
    write_tiff(tmp_path / "a.tif", [1, 2, 3])
    with Library(tmp_path / "lib", reader) as library:
        assert library.add(tmp_path / "a.tif", workers=1).encoded == 3
        pages = {number: noise(64, 96, number).tobytes() for number in (1, 2, 3)}
        hits = library.search("tax", 3, exact=True)
        assert [hit.page for hit in hits] == best(reader, "tax", pages)
        assert len(library.search("tax", 1, query_vectors=5)[0].matches) == 5
        status = library.status()
        assert (status.pages, status.vector_bytes_per_page) == (3, 64)  # measured: two vectors of 16 numbers
    with Library(tmp_path / "lib", ToyReader()) as library:
        assert library.search("tax", 3, exact=True) == hits


def test_a_reader_of_text(tmp_path):
    reader = ToyReader(reads="text")
    write_pdf(tmp_path / "a.pdf", 3, [])
    noise(64, 96).save(tmp_path / "scan.png")
    with Library(tmp_path / "lib", reader) as library:
        summary = library.add([tmp_path / "a.pdf", tmp_path / "scan.png"], workers=1)
        assert (summary.failed, summary.pages, summary.encoded, summary.without_text) == ({}, 4, 3, 1)
        (texts,) = reader.batches
        assert [text.strip() for text in texts] == ["Page 1", "Page 2", "Page 3"]
        pages = {number: text.encode() for number, text in enumerate(texts, start=1)}
        hits = library.search("tax", 3, exact=True)
        assert [hit.page for hit in hits] == best(reader, "tax", pages)
        write_pdf(tmp_path / "a.pdf", 4, [], size=(400, 400))  # looks different, and says the same and one page more
        summary = library.add(tmp_path / "a.pdf", workers=1)
        assert (len(summary.changed), summary.pages, summary.encoded) == (1, 4, 1)


@pytest.mark.nightly
def test_a_page_without_text_says_so_and_gets_its_vectors_when_ocr_has_read_it(tmp_path, ocr_engine):
    """Of a reader of text; what it reads is the text of the library, whoever has found it."""
    reader = ToyReader(reads="text")
    write_pdf(tmp_path / "a.pdf", 8, [])
    write_scan(tmp_path / "scan.png", "Second invoice", "of the warehouse")
    with Library(tmp_path / "lib", reader) as library:
        library.add([tmp_path / "a.pdf", tmp_path / "scan.png"], workers=1)
        assert library.status().with_vectors == 8
        assert library.status().notes[-1] == "1 page has no text and no vectors: the model reads text only"
        assert library.add(tmp_path / "a.pdf", workers=1).encoded == 0
        assert len(reader.batches) == 1
        library.read_words(ocr="missing", workers=1)
        assert "invoice" in reader.batches[-1][0]
        status = library.status()
        assert (status.with_vectors, status.pages) == (9, 9)
        assert not any("no text" in note for note in status.notes)
        encoded = sum(len(batch) for batch in reader.batches)
        library.read_words(ocr="all", workers=1)  # other words than those of the layer have other vectors
        for page in library.store.find(("layer", "ocr"), vectors=True):
            stored = library.store.read([page.id])[page.id]
            assert np.allclose(stored.vectors, reader.vectors(stored.text.text.encode()), atol=1e-3)
        again = sum(len(batch) for batch in reader.batches) - encoded
        assert again <= 9


def test_texts_that_are_cut_are_counted(tmp_path):
    reader = ToyReader(reads="text")
    write_pages(tmp_path / "a.pdf", [["short"], [f"line {i} of a long page" for i in range(15)]])
    with Library(tmp_path / "lib", reader) as library:
        library.add(tmp_path / "a.pdf", workers=1)
        (note,) = library.status().notes
        assert note == "1 page has more text than the model reads; the rest is not encoded"
        write_pages(tmp_path / "a.pdf", [["short"], ["shorter now"]])
        library.add(tmp_path / "a.pdf", workers=1)
        assert library.status().notes == ()


def test_a_failed_page_fails_its_file_and_no_other(tmp_path):
    reader = ToyReader()
    write_pdf(tmp_path / "a.pdf", 2, [])
    write_torn_tiff(tmp_path / "b.tif")
    write_pdf(tmp_path / "c.pdf", 3, [])
    with Library(tmp_path / "lib", reader) as library:
        summary = library.add(tmp_path, batch=4, workers=1)
        assert [Path(source).name for source in summary.added] == ["a.pdf", "c.pdf"]
        assert list(summary.failed) == [str(tmp_path / "b.tif")]
        assert summary.failed[str(tmp_path / "b.tif")].startswith("page 2: ")
        assert (summary.pages, library.verify()) == (5, [])


def write_torn_tiff(file: Path) -> None:
    """Write a TIFF of three pages, of which the second cannot be decompressed."""
    first, *rest = [noise(64, 96, seed) for seed in range(3)]
    first.save(file, save_all=True, append_images=rest, compression="tiff_adobe_deflate")
    with Image.open(file) as image:
        image.seek(1)
        start, size = image.tag_v2[273][0], image.tag_v2[279][0]
    content = bytearray(file.read_bytes())
    content[start : start + size] = bytes(size)
    file.write_bytes(content)


def test_what_differs_is_named(tmp_path):
    identity = ToyReader().identity
    check_model(identity, replace(identity, name="elsewhere", revision="2"), "lib")
    check_model(identity, replace(identity, settings={**identity.settings, "query_vectors": 9}), "lib")
    with pytest.raises(UsageError, match="library lib was indexed with tone='plain', not 'loud': use that model"):
        check_model(identity, replace(identity, settings={**identity.settings, "tone": "loud"}), "lib")
    Library(tmp_path / "lib", ToyReader()).close()
    with pytest.raises(UsageError, match="was indexed with reads='image', not 'text'"):
        Library(tmp_path / "lib", ToyReader(reads="text"))
