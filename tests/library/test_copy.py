"""A library is copied between a folder and a server, goes on after a stop, and is compared at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import UsageError
from randslot.library import copy
from randslot.library.copy import copy_library, export_library
from randslot.library.library import Library
from randslot.library.sharing import LibraryServer
from randslot.model import open_model
from randslot.model.model import make_student
from randslot.model.reader import narrow
from support.libraries import ToyReader, same, scores, write_tiff
from support.models import noise
from support.others import save_colqwen2, save_minilm
from support.pdf import write_pdf


def test_there_and_back(url, papers, tmp_path):
    with Library(tmp_path / "lib", ToyReader()) as here, Library(url, here.binding) as there:
        here.add([papers, noise(64, 96, 8)], metadata={"year": 2023})
        copied = copy_library(here, there)
        assert (copied.files, copied.pages, copied.known, copied.compared, copied.problems) == (4, 8, 0, 4, [])
        assert copied.sampled == 8  # each page once
        assert {file.id: file.metadata for file in there.files()} == {file.id: file.metadata for file in here.files()}
    with Library(url, ToyReader()) as there, Library(tmp_path / "back", there.binding) as back:
        assert copy_library(there, back).problems == []
    with (
        Library(tmp_path / "lib", ToyReader()) as here,
        Library(tmp_path / "back", ToyReader()) as back,
        Library(url, ToyReader()) as there,
    ):
        assert same(here, there)
        assert same(here, back)
        for library in (here, there, back):  # an image without a file is kept by each of them
            (kept,) = [file for file in library.files() if Path(file.source).parent.name == "images"]
            assert kept.source.startswith(str(library.folder.absolute()))
            assert Path(kept.source).is_file()
        assert back.add(papers).unchanged == 3


def test_vectors_are_exported_as_parquet(papers, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        assert export_library(library, tmp_path / "pages.parquet") == 7
        rows = parquet.read_table(tmp_path / "pages.parquet").to_pylist()
        stored = library.store.read([row["id"] for row in rows])
        for row in rows:
            assert np.array_equal(np.array(row["vectors"], "float32"), stored[row["id"]].vectors.astype("float32"))


def test_a_second_copy_brings_what_is_new(url, papers, tmp_path):
    with Library(tmp_path / "lib", ToyReader()) as here, Library(url, ToyReader()) as there:
        here.add(papers)
        there.add(papers / "b.tif", metadata={"of": "its own"})  # another version of a file that is copied
        write_tiff(tmp_path / "own.tif", [70, 71])
        there.add(tmp_path / "own.tif")
        assert copy_library(here, there).files == 3
        assert sorted(scores(there)) == sorted([*scores(here), ("own.tif", 1), ("own.tif", 2)])
        copied = copy_library(here, there)
        assert (copied.files, copied.pages, copied.known, copied.problems) == (0, 0, 3, [])
        write_tiff(papers / "a.tif", [1, 2])
        (papers / "b.tif").rename(papers / "d.tif")
        here.add(papers)
        copied = copy_library(here, there)
        assert (copied.files, copied.pages, copied.known, copied.problems) == (1, 2, 2, [])
        assert sorted(scores(there)) == sorted([*scores(here), ("own.tif", 1), ("own.tif", 2)])


def test_it_goes_on_after_a_stop(url, papers, tmp_path, monkeypatch):
    monkeypatch.setattr(copy, "PAGES", 2)
    monkeypatch.setattr(copy, "SAFE_SECONDS", 0.0)
    with Library(tmp_path / "lib", ToyReader()) as here, Library(url, ToyReader()) as there:
        here.add(papers)
        add, calls = there.store.add, []

        def stop(pages):
            calls.append(len(pages))
            if len(calls) == 3:
                raise KeyboardInterrupt
            add(pages)

        monkeypatch.setattr(there.store, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            copy_library(here, there)
        assert sorted(scores(there)) == [("a.tif", 1), ("a.tif", 2), ("a.tif", 3)]
        assert there.status().pending == 1
        told = []
        copied = copy_library(here, there, told.append)
        assert (copied.files, copied.pages, copied.known, copied.problems) == (2, 3, 1, [])
        assert sum(calls) == 2 + 2 + 2 + 3
        assert (told[-1].pages_done, told[-1].num_pages) == (4, 4)
        assert same(here, there)


def test_what_is_not_the_same_is_told(url, papers, tmp_path, monkeypatch):
    with Library(tmp_path / "lib", ToyReader()) as here, Library(url, ToyReader()) as there:
        here.add(papers)
        copy_library(here, there)
        lost = here.manifest.find(source=str(papers / "a.tif"))[0]
        with there.write():
            there.store.delete(lost.id)
        problems = copy_library(here, there).problems
        assert problems[0] == f"{papers / 'a.tif'}: 0 of 3 pages are copied"
        assert any("its copy differs" in line for line in problems[1:])


def test_a_library_is_not_copied_onto_itself_or_over_another_model(url, papers, tmp_path):
    with Library(url, ToyReader()) as library, Library(url.replace("127.0.0.1", "localhost")) as again:
        library.add(papers)
        with pytest.raises(UsageError, match="are the same library"):
            copy_library(library, again)
        other = Library(tmp_path / "other", ToyReader(reads="text"))
        with other, pytest.raises(UsageError, match=r"was indexed with .*: choose another target"):
            copy_library(library, other)


def test_a_command_that_is_stopped_says_how_far_it_got(papers, tmp_path, monkeypatch):
    monkeypatch.setattr(copy, "PAGES", 2)
    monkeypatch.setattr(copy, "SAFE_SECONDS", 1e9)
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
    move, calls = copy._copy_pages, []

    def stop(*some):
        calls.append(some)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return move(*some)

    monkeypatch.setattr(copy, "_copy_pages", stop)
    answer = CliRunner().invoke(app, ["library", "copy", f"{tmp_path}/lib", f"{tmp_path}/new"])
    assert answer.exit_code == 130
    assert "stopped: 4 pages stored, 0 files complete; run the command again to resume" in answer.stderr


def count_blocks(folder: Path) -> int:
    return sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("is_served", [False, True])
def test_a_backup_is_a_library_and_stays_small(papers, tmp_path, is_served):
    """Also while the library is in use."""
    lib, target = tmp_path / "lib", tmp_path / "backups" / "one"
    with Library(lib, ToyReader()) as library:
        library.add([papers, noise(64, 96, 8)])
        wanted = scores(library)
        command = ["library", "backup", str(target), "-l", str(lib)]
        if is_served:
            with LibraryServer(library):
                answer = CliRunner().invoke(app, command, catch_exceptions=False)
            assert scores(library) == wanted
    if not is_served:
        answer = CliRunner().invoke(app, command, catch_exceptions=False)
    assert (answer.exit_code, str(target) in answer.stdout) == (0, True)
    assert count_blocks(target) <= 1.1 * count_blocks(lib)
    with Library(target, ToyReader()) as copied, Library(lib, ToyReader()) as library:
        assert copied.verify() == []
        assert scores(copied) == wanted
        (kept,) = [file for file in copied.files() if Path(file.source).parent.name == "images"]
        assert Path(kept.source).is_relative_to(target)
        library.remove("a.tif")
        assert scores(copied) == wanted
        copied.add(papers)
    with pytest.raises(UsageError, match="choose a new folder"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    with pytest.raises(UsageError, match="is inside the library"):
        CliRunner().invoke(app, [*command[:2], str(lib / "inside"), *command[3:]], catch_exceptions=False)


def read_vectors(library: Library) -> dict[tuple[str, int], np.ndarray]:
    sources = {file.id: file.source for file in library.files()}
    pages = library.store.read([page.id for page in library.store.find(None)])
    return {(sources[page.file], page.number): page.vectors for page in pages.values()}


def narrow_copy(saved: Path, papers: Path, folder: Path, target: str) -> None:
    """To the last bit: fewer vectors a page, and narrower ones; searches and a student follow."""
    with Library(folder / "wide", saved) as wide:
        wide.add(papers, workers=1)
    arguments = ["library", "copy", str(folder / "wide"), target, "--page-vectors", "2", "--width", "16"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    with Library(folder / "made", open_model(str(saved), width=16, page_vectors=2)) as made:
        made.add(papers, workers=1)
        found = {(hit.source, hit.page): hit.score for hit in made.search("tax", 9, by="vectors", exact=True)}
        expected = read_vectors(made)
    with Library(target) as copied:
        assert copied.binding.dimension == copied.models.model.dimension == 16
        vectors = read_vectors(copied)
        assert vectors.keys() == expected.keys()
        for page, one in expected.items():
            assert one.shape == (2, 16)
            assert np.array_equal(one, vectors[page])
        hits = copied.search("tax", 9, by="vectors", exact=True)
        assert {(hit.source, hit.page): hit.score for hit in hits} == pytest.approx(found, abs=1e-5)
    student = make_student("tiny", randslot.load(saved).identity)
    (query,) = student.embed_queries(["tax"])
    with Library(target, query_model=student) as copied:
        hits = copied.search("tax", 9, by="vectors", exact=True)
        expected = {page: (narrow(query, 16) @ one.T).max(1).sum() for page, one in vectors.items()}
        assert {(hit.source, hit.page): hit.score for hit in hits} == pytest.approx(expected, abs=1e-3)


def test_a_narrowed_copy_equals_a_library_made_narrow(saved, papers, tmp_path):
    narrow_copy(saved, papers, tmp_path, str(tmp_path / "copy"))


def test_a_narrowed_copy_on_a_server_equals_a_library_made_narrow(url, saved, papers, tmp_path):
    narrow_copy(saved, papers, tmp_path, url)


@pytest.mark.parametrize(("save", "options"), [(save_minilm, {}), (save_colqwen2, {"reduction": "kmeans"})])
def test_libraries_of_other_peoples_models_are_narrowed_too(save, options, tmp_path):
    folder, pages = save(tmp_path / "model"), tmp_path / "pages"
    pages.mkdir()
    write_pdf(pages / "a.pdf", 3, [])
    found = []
    for name, changes in (("wide", {}), ("made", {"width": 8})):
        with Library(tmp_path / name, open_model(str(folder), page_vectors=2, **options, **changes)) as library:
            library.add(pages, workers=1)
    words = ["library", "copy", str(tmp_path / "wide"), str(tmp_path / "copy"), "--width", "8"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    for name in ("made", "copy"):
        with Library(tmp_path / name) as library:
            hits = library.search("page", 3, by="vectors", exact=True)
            found.append((read_vectors(library), [(hit.page, hit.score) for hit in hits], library.binding.dimension))
    (made, hits, _), (copied, same_hits, dimension) = found
    assert (len(hits), hits, dimension) == (3, same_hits, 8)
    assert made.keys() == copied.keys()
    assert all(np.array_equal(made[page], copied[page]) for page in made)


def test_a_copy_cannot_be_wider(saved, tmp_path):
    with Library(tmp_path / "wide", saved) as wide:
        for cut in ((5, None), (None, 4096), (0, None), (None, 0)):
            with pytest.raises(UsageError, match="this library"):
                wide.binding.narrowed(*cut)
    arguments = ["library", "copy", str(tmp_path / "wide"), str(tmp_path / "x"), "--width", "4096"]
    assert isinstance(CliRunner().invoke(app, arguments).exception, UsageError)
    assert not (tmp_path / "x").exists()
