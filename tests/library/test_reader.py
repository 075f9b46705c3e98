"""Any reader of pages can have a library: of a model it needs the protocol and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from randslot.errors import UsageError
from randslot.library.binding import check_model
from randslot.library.library import Library
from support.libraries import ToyReader, write_tiff
from support.models import noise
from support.pdf import write_pdf


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
        assert (status.pages, status.vector_bytes_per_page) == (3, 0)  # its settings name no number of vectors
    with Library(tmp_path / "lib", ToyReader()) as library:
        assert library.search("tax", 3, exact=True) == hits


def test_a_reader_of_text(tmp_path):
    reader = ToyReader(reads="text")
    write_pdf(tmp_path / "a.pdf", 3, [])
    noise(64, 96).save(tmp_path / "scan.png")
    with Library(tmp_path / "lib", reader) as library:
        summary = library.add([tmp_path / "a.pdf", tmp_path / "scan.png"], workers=1)
        assert summary.failed == {
            str(tmp_path / "scan.png"): "it has no text, and this model reads text: use a model that reads images"
        }
        (texts,) = reader.batches
        assert [text.strip() for text in texts] == ["Page 1", "Page 2", "Page 3"]
        pages = {number: text.encode() for number, text in enumerate(texts, start=1)}
        hits = library.search("tax", 3, exact=True)
        assert [hit.page for hit in hits] == best(reader, "tax", pages)
        write_pdf(tmp_path / "a.pdf", 4, [], size=(400, 400))  # looks different, and says the same and one page more
        summary = library.add(tmp_path / "a.pdf", workers=1)
        assert (len(summary.changed), summary.pages, summary.encoded) == (1, 4, 1)


def test_a_failed_page_fails_its_file_and_no_other(tmp_path):
    reader = ToyReader(reads="text")
    write_pdf(tmp_path / "a.pdf", 2, [])
    write_tiff(tmp_path / "b.tif", [1, 2, 3])
    write_pdf(tmp_path / "c.pdf", 3, [])
    with Library(tmp_path / "lib", reader) as library:
        summary = library.add(tmp_path, batch=4, workers=1)
        assert [Path(source).name for source in summary.added] == ["a.pdf", "c.pdf"]
        assert list(summary.failed) == [str(tmp_path / "b.tif")]
        assert summary.failed[str(tmp_path / "b.tif")].startswith("page 1: it has no text")
        assert (summary.pages, library.verify()) == (5, [])


def test_what_differs_is_named(tmp_path):
    identity = ToyReader().identity
    check_model(identity, replace(identity, name="elsewhere", revision="2"), "lib")
    check_model(identity, replace(identity, settings={**identity.settings, "query_vectors": 9}), "lib")
    with pytest.raises(UsageError, match="library lib was made with tone='plain' and not 'loud': load the model so"):
        check_model(identity, replace(identity, settings={**identity.settings, "tone": "loud"}), "lib")
    Library(tmp_path / "lib", ToyReader()).close()
    with pytest.raises(UsageError, match="was made with reads='image' and not 'text'"):
        Library(tmp_path / "lib", ToyReader(reads="text"))


def test_vectors_are_those_of_the_reader(tmp_path):
    reader = ToyReader()
    write_tiff(tmp_path / "a.tif", [1])
    with Library(tmp_path / "lib", reader) as library:
        library.add(tmp_path / "a.tif", workers=1)
        (hit,) = library.search("tax")
        (page,) = library.store.read([hit.id]).values()
        np.testing.assert_allclose(page.vectors, reader.vectors(noise(64, 96, 1).tobytes()), atol=1e-3)
