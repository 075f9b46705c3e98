"""A library is what its files are: added once, changed page by page, moved by name, forgotten on demand."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from sentence_transformers import MultiVectorEncoder

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.library.library import Library
from randslot.library.stores.base import page_id
from randslot.pages import open_page
from support.libraries import ToyReader, write_tiff
from support.models import make, noise
from support.pdf import write_pdf
from support.retrieval import write_checkpoint


def shown(library: Library) -> dict[str, list[int]]:
    """Return what a search can find: page numbers by name of their file."""
    found: dict[str, list[int]] = {}
    for hit in library.search("anything", 1000, exact=True):
        found.setdefault(Path(hit.source).name, []).append(hit.page)
    return {name: sorted(pages) for name, pages in sorted(found.items())}


# -- the three calls


def test_pages_are_ranked_as_the_model_ranks_them(library, model, tmp_path):
    write_pdf(tmp_path / "report.pdf", 5, [], size=(160, 240))
    image = noise(80, 100, 9)
    summary = library.add([tmp_path / "report.pdf", image])
    assert (len(summary.added), summary.pages, summary.encoded, summary.failed) == (2, 6, 6, {})
    assert summary.vector_bytes_per_page == 4 * 64 * 2
    pages = [open_page(f"{tmp_path}/report.pdf#page={number}", model.page_pixels) for number in range(1, 6)]
    pages.append(image)
    scores = model.similarity(model.encode_query(["deferred tax"]), model.encode_document(pages))[0].numpy()
    for exact in (True, False):
        hits = library.search("deferred tax", k=6, by="vectors", exact=exact)
        places = [hit.page - 1 if hit.source.endswith(".pdf") else 5 for hit in hits]
        np.testing.assert_allclose([hit.score for hit in hits], scores[places], atol=5e-3)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert sorted(places) == list(range(6))


def test_a_library_on_a_retrieval_model_opens_with_its_template(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    noise(64, 96, 1).save(tmp_path / "a.png")
    with Library(tmp_path / "lib", randslot.load(checkpoint, template="embedding", visual_tokens=16)) as library:
        library.add([tmp_path / "a.png"])
        (expected,) = library.search("tax", by="vectors")
    with Library(tmp_path / "lib") as library:
        assert library.search("tax", by="vectors")[0].score == expected.score
        assert library.model.settings.template == "embedding"
    with pytest.raises(UsageError, match="belongs to"):
        Library(tmp_path / "lib", randslot.load(checkpoint, visual_tokens=16)).close()


def test_equal_pages_come_in_the_order_of_their_names(library, tmp_path):
    names = ["d.png", "a.png", "c.png", "b.png"]
    for name in names:
        noise(64, 96, 1).save(tmp_path / name)
    library.add([tmp_path / name for name in names])
    hits = library.search("tax", k=4)
    assert [Path(hit.source).name for hit in hits] == sorted(names)
    assert len({hit.score for hit in hits}) == 1


def test_a_hit_says_which_readouts_matched_and_shows_its_page(library, model, papers):
    library.add(papers)
    hit = library.search("revenue", k=1)[0]
    query = np.asarray(model.encode_query(["revenue"])[0])
    (page,) = library.store.read([hit.id]).values()
    similarities = query @ page.vectors.T
    assert [match.query for match in hit.matches] == [1, 2, 3, 4]
    assert [match.page - 1 for match in hit.matches] == similarities.argmax(1).tolist()
    assert hit.score == pytest.approx(sum(match.similarity for match in hit.matches), abs=5e-3)
    seed = {"a.tif": 0, "b.tif": 3, "c.png": 6}[Path(hit.source).name] + hit.page
    size = (90, 120) if seed == 7 else (64, 96)
    assert hit.image().tobytes() == noise(*size, seed).tobytes()
    os.remove(hit.source)
    with pytest.raises(RandSlotError, match="not found"):
        hit.image()


def test_queries_in_a_batch_are_answered_as_alone(library, papers):
    library.add(papers)
    queries = ["tax", "revenue by region in 2023", "Größe der Flotte?"]
    together = library.search_all(queries, 3)
    for query, hits in zip(queries, together, strict=True):
        assert [hit.id for hit in hits] == [hit.id for hit in library.search(query, 3)]
    assert library.search_all([], 3) == []


def test_a_query_may_have_a_budget_of_its_own(library, model, papers):
    library.add(papers)
    for num in (1, 2, 7):
        hit = library.search("tax", 1, query_vectors=num)[0]
        assert len(hit.matches) == num
        assert hit.score <= num + 1e-3
    assert len(library.search("tax", 1)[0].matches) == model.num_vectors("query") == 4
    with pytest.raises(UsageError, match="query_vectors must be"):
        library.search("tax", query_vectors=0)


# -- only what changed


def spoil(file: Path) -> None:
    """Make a file unreadable without a change of its size and time: whoever opens it fails."""
    stat = file.stat()
    file.write_bytes(bytes(stat.st_size))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_the_second_time_nothing_is_opened(library, papers):
    library.add(papers)
    before = library.files()
    for file in before:
        spoil(Path(file.source))
    summary = library.add(papers)
    assert (summary.unchanged, summary.added, summary.encoded, summary.failed) == (3, [], 0, {})
    assert library.files() == before


@pytest.mark.slow
def test_the_model_is_not_loaded_where_nothing_is_to_be_read(tmp_path, saved, papers, monkeypatch):
    with Library(tmp_path / "lib", saved) as library:
        library.add(papers)
    monkeypatch.setattr("randslot.model.opening.open_torch_model", lambda *_, **__: pytest.fail("loaded"))
    with Library(tmp_path / "lib") as library:
        (papers / "a.tif").rename(papers / "x.tif")
        summary = library.add(papers)
        assert (len(summary.moved), summary.unchanged) == (1, 2)
        assert library.status().pages == 7
        assert library.remove("x.tif")


def test_a_folder_that_does_not_open_is_told_and_not_pruned(library, papers, monkeypatch):
    """As for somebody who may not look into it; root, who may run this, could look into any."""

    def closed(look):
        def ask(path, *args, **kwargs):
            if os.fspath(path).startswith(str(papers / "below")):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
            return look(path, *args, **kwargs)

        return ask

    library.add(papers)
    for name in ("scandir", "lstat"):
        monkeypatch.setattr(os, name, closed(getattr(os, name)))
    summary = library.add(papers, prune=True)
    assert summary.failed == {str(papers / "below"): "cannot be listed: Permission denied"}
    assert summary.removed == []


@pytest.mark.slow
def test_a_touched_file_is_not_rendered_again(library, papers):
    library.add(papers)
    os.utime(papers / "a.tif", (1, 1))
    summary = library.add(papers)
    assert (summary.unchanged, summary.pages) == (3, 0)
    spoil(papers / "a.tif")
    assert library.add(papers).unchanged == 3


@pytest.mark.slow
def test_a_changed_file_is_replaced_page_by_page(library, papers):
    library.add(papers)
    before = {hit.page: hit.score for hit in library.search("tax", 9, filters={"source": "a.tif"}, exact=True)}
    write_tiff(papers / "a.tif", [50, 1, 2, 51])
    summary = library.add(papers)
    assert (summary.changed, summary.unchanged) == ([str(papers / "a.tif")], 2)
    assert (summary.pages, summary.encoded) == (4, 2)
    assert shown(library) == {"a.tif": [1, 2, 3, 4], "b.tif": [1, 2, 3], "c.png": [1]}
    after = {hit.page: hit.score for hit in library.search("tax", 9, filters={"source": "a.tif"}, exact=True)}
    assert (after[2], after[3]) == pytest.approx((before[1], before[2]), abs=1e-6)
    assert library.verify() == []


@pytest.mark.slow
def test_a_moved_file_is_only_renamed(library, papers):
    library.add(papers, metadata={"year": 2023})
    ids = {hit.id for hit in library.search("tax", 9)}
    (papers / "a.tif").rename(papers / "below" / "x.tif")
    (papers / "b.tif").rename(papers / "below" / "c.png.tif")
    summary = library.add(papers)
    assert (len(summary.moved), summary.pages) == (2, 0)
    assert {hit.id for hit in library.search("tax", 9)} == ids
    assert shown(library) == {"c.png": [1], "c.png.tif": [1, 2, 3], "x.tif": [1, 2, 3]}
    assert len(library.search("tax", 9, filters={"source": "x.tif", "year": 2023})) == 3


@pytest.mark.slow
def test_a_file_moved_over_another_takes_its_place(library, papers):
    library.add(papers)
    (papers / "a.tif").rename(papers / "b.tif")
    summary = library.add(papers)
    assert (summary.moved, summary.encoded) == ([str(papers / "b.tif")], 0)
    assert shown(library) == {"b.tif": [1, 2, 3], "c.png": [1]}
    assert len(library.files()) == 2
    assert library.verify() == []


@pytest.mark.slow
def test_a_copy_is_a_file_of_its_own(library, papers):
    library.add(papers)
    shutil.copy(papers / "a.tif", papers / "copy.tif")
    assert library.add(papers).added == [str(papers / "copy.tif")]
    os.remove(papers / "a.tif")
    library.add(papers, prune=True)
    assert shown(library) == {"b.tif": [1, 2, 3], "c.png": [1], "copy.tif": [1, 2, 3]}


def test_files_are_removed_by_name_folder_and_pattern(library, papers):
    library.add(papers)
    assert library.remove("a.tif") == [str(papers / "a.tif")]
    assert shown(library) == {"b.tif": [1, 2, 3], "c.png": [1]}
    assert library.remove("*/below/*.png") == [str(papers / "below" / "c.png")]
    with pytest.raises(UsageError, match=r"nothing .* matches 'a\.tif'"):
        library.remove("a.tif")
    assert library.remove(str(papers)) == [str(papers / "b.tif")]
    assert len(library) == 0
    assert library.store.counts() == {}
    assert (papers / "a.tif").is_file()


def test_pruning_forgets_what_is_gone_from_the_named_folders_only(library, papers, tmp_path):
    image = noise(30, 30)
    (tmp_path / "other").mkdir()
    write_tiff(tmp_path / "other" / "o.tif", [20])
    library.add([papers, tmp_path / "other", image])
    os.remove(papers / "a.tif")
    os.remove(tmp_path / "other" / "o.tif")
    assert library.add(papers).removed == []
    assert library.add(papers, prune=True).removed == [str(papers / "a.tif")]
    assert len(library.files()) == 4
    assert library.status().missing == 1


def test_an_image_without_a_file_is_kept_and_removed_with_the_library(library):
    image = noise(60, 80, 3)
    library.add([image])
    assert library.add([image]).unchanged == 1
    hit = library.search("tax")[0]
    assert hit.image().tobytes() == image.tobytes()
    library.remove(Path(hit.source).name)
    assert not Path(hit.source).exists()


def test_a_library_that_was_moved_still_has_its_images(tmp_path, model, papers):
    with Library(tmp_path / "lib", model) as library:
        library.add([noise(60, 80, 3), papers / "a.tif"])
    (tmp_path / "lib").rename(tmp_path / "moved")
    with Library(tmp_path / "moved", model) as library:
        hits = library.search("tax")
        assert len(hits) == 4
        assert {hit.image().size for hit in hits} == {(60, 80), (64, 96)}
        assert library.add([noise(60, 80, 3)]).unchanged == 1


@pytest.mark.slow
def test_metadata_can_be_given_later(library, papers):
    library.add(papers / "a.tif")
    library.add(papers, metadata={"year": 2023, "draft": True})
    assert len(library.search("tax", 9, filters={"year": "2023", "draft": "true"})) == 7
    library.add(papers / "a.tif", metadata={"year": 2024})
    assert shown(library) == {"a.tif": [1, 2, 3], "b.tif": [1, 2, 3], "c.png": [1]}
    assert len(library.search("tax", 9, filters={"year": 2024})) == 3
    assert library.add(papers).unchanged == 3
    assert len(library.search("tax", 9, filters={"year": 2023})) == 4


# -- filters


@pytest.mark.slow
def test_filters_all_hold(library, papers):
    library.add(papers / "a.tif", metadata={"kind": "law"})
    library.add(papers / "b.tif", metadata={"kind": "tax"})

    def pages(**filters: object) -> set[tuple[str, int]]:
        return {(Path(hit.source).name, hit.page) for hit in library.search("x", 9, filters=filters)}

    assert pages(source="a.tif") == {("a.tif", 1), ("a.tif", 2), ("a.tif", 3)}
    assert pages(source=str(papers), page=2) == {("a.tif", 2), ("b.tif", 2)}
    assert pages(kind="tax", page=(2, 3)) == {("b.tif", 2), ("b.tif", 3)}
    assert pages(kind="tax", source="a.tif") == set()
    assert pages(kind="other") == set()
    for wrong in (0, (3, 2), "two", (1, None)):
        with pytest.raises(UsageError, match="page must be a number"):
            library.search("x", filters={"page": wrong})


def test_wrong_metadata_is_refused(library, papers):
    with pytest.raises(UsageError, match="cannot be called 'source'"):
        library.add(papers, metadata={"source": "x"})
    with pytest.raises(UsageError, match="'tags' must be text"):
        library.add(papers, metadata={"tags": ["a"]})


# -- files that cannot be read


def bad_files(folder: Path) -> dict[str, str]:
    """Write a file of each bad kind and return what must be said of it."""
    write_pdf(folder / "large.pdf", 1, [], size=(1_000_000, 1_000_000))
    write_pdf(folder / "nopages.pdf", 0, [])
    (folder / "corrupt.pdf").write_bytes(b"%PDF-1.4 nothing of the kind")
    (folder / "empty.pdf").write_bytes(b"")
    (folder / "text.png").write_text("I am no image")
    torn = noise(300, 300)
    torn.save(folder / "torn.png")
    (folder / "torn.png").write_bytes((folder / "torn.png").read_bytes()[:5000])
    Image.new("1", (30_000, 30_000)).save(folder / "bomb.png")
    return {
        "large.pdf": "1000000 x 1000000 points",
        "nopages.pdf": "cannot open: it has no pages",
        "corrupt.pdf": "cannot open: it is corrupt, or not a PDF",
        "empty.pdf": "the file is empty",
        "text.png": "not an image that can be read",
        "torn.png": "cannot read page image",
        "bomb.png": "image too large to open safely, more than 178,956,970 pixels",
    }


@pytest.mark.slow
def test_bad_files_are_told_and_the_rest_is_indexed(library, papers):
    expected = bad_files(papers)
    (papers / "notes.txt").write_text("mine")
    summary = library.add(papers)
    failed = {Path(name).name: reason for name, reason in summary.failed.items()}
    assert failed.keys() == expected.keys()
    for name, reason in expected.items():
        assert any(part in failed[name] for part in reason.split("|")), (name, failed[name])
        assert "\n" not in failed[name]
        assert name not in failed[name]  # it is told with the reason
    assert summary.others == [str(papers / "notes.txt")]
    assert shown(library) == {"a.tif": [1, 2, 3], "b.tif": [1, 2, 3], "c.png": [1]}
    assert library.verify() == []
    assert len(library.files()) == 3


def test_an_encrypted_pdf_is_told(library, tmp_path):
    """A PDF that says it is encrypted, with a password nobody knows."""
    write_pdf(tmp_path / "x.pdf", 1, [])
    content = (tmp_path / "x.pdf").read_bytes()
    secret = b"/Encrypt << /Filter /Standard /V 1 /R 2 /O <" + b"00" * 32 + b"> /U <" + b"11" * 32 + b"> /P -4 >>"
    identity = b"/ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>]"
    (tmp_path / "x.pdf").write_bytes(content.replace(b"/Root 1 0 R", b"/Root 1 0 R " + secret + identity))
    summary = library.add(tmp_path / "x.pdf")
    assert "encrypted" in summary.failed[str(tmp_path / "x.pdf")]


def test_a_named_file_that_is_no_document_fails(library, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert library.add(tmp_path / "notes.txt").failed == {str(tmp_path / "notes.txt"): "not a PDF or an image"}
    with pytest.raises(UsageError, match="no such file or folder: "):
        library.add(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no such file or folder"):
        library.add(tmp_path / "*.pdf")


def test_a_file_that_broke_keeps_its_old_pages(library, papers):
    library.add(papers)
    (papers / "a.tif").write_bytes((papers / "a.tif").read_bytes()[:300])
    summary = library.add(papers)
    assert list(summary.failed) == [str(papers / "a.tif")]
    assert shown(library)["a.tif"] == [1, 2, 3]
    assert library.verify() == []


@pytest.mark.parametrize(
    "name", ["Größe_東京 🗼.png", "x" * 251 + ".png", "a[1] (copy)?.png", "[bold]x.png", "line\nbreak.png"]
)
def test_any_name_works(library, tmp_path, name):
    folder = tmp_path / "in"
    folder.mkdir()
    noise(40, 40).save(folder / name)
    assert library.add(folder).failed == {}
    assert library.search("x", filters={"source": name})[0].source == str(folder / name)
    assert library.remove(name) == [str(folder / name)]


def test_a_name_that_is_not_text_works(library, tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    noise(40, 40).save(tmp_path / "plain.png")
    try:
        os.rename(tmp_path / "plain.png", tmp_path / name)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    library.add(tmp_path / name)
    hit = library.search("x")[0]
    assert hit.source == str(tmp_path / name)
    assert hit.image().size == (40, 40)


@pytest.mark.slow
def test_patterns_links_and_the_librarys_own_folder(library, papers, tmp_path):
    (papers / ".hidden").mkdir()
    shutil.copy(papers / "a.tif", papers / ".hidden" / "h.tif")
    os.symlink(papers, papers / "loop")
    library.add([noise(20, 20)])
    summary = library.add([str(tmp_path / "**" / "*.tif"), tmp_path])
    assert sorted(Path(name).name for name in summary.added) == ["a.tif", "b.tif", "c.png"]


# -- stopped in the middle


@pytest.mark.slow
def test_a_stopped_run_shows_only_complete_files_and_goes_on(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader(stop_after=2)) as library:
        with pytest.raises(KeyboardInterrupt):
            library.add(papers, batch=2)
        assert shown(library) == {"a.tif": [1, 2, 3]}
        assert sum(library.store.counts().values()) == 4
        assert library.status().pending == 1  # of the third nothing is there yet
    with Library(tmp_path / "lib", ToyReader()) as library:
        summary = library.add(papers)
        assert (len(summary.added), summary.encoded, summary.unchanged) == (2, 3, 1)
        assert shown(library) == {"a.tif": [1, 2, 3], "b.tif": [1, 2, 3], "c.png": [1]}


@pytest.mark.slow
def test_until_a_changed_file_is_complete_its_old_pages_are_shown(tmp_path, papers):
    reader = ToyReader()
    with Library(tmp_path / "lib", reader) as library:
        library.add(papers)
        before = library.search("tax", 1, filters={"source": "a.tif"}, exact=True)
        write_tiff(papers / "a.tif", [31, 32, 33, 34])
        reader.stop_after = len(reader.batches) + 3
        with pytest.raises(KeyboardInterrupt):
            library.add(papers, batch=1)
        reader.stop_after = None
        assert shown(library)["a.tif"] == [1, 2, 3]
        assert library.search("tax", 1, filters={"source": "a.tif"}, exact=True) == before
        write_tiff(papers / "a.tif", [41, 42])
        assert library.add(papers).encoded == 2
        assert shown(library)["a.tif"] == [1, 2]
        assert library.verify() == []


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_is_one_line(library, papers, monkeypatch):
    def fail(_):
        raise Exception("No space left on device")

    class Shard:
        update = staticmethod(fail)

        def __getattr__(self, name):
            return getattr(real, name)

    real = library.store.shard
    monkeypatch.setattr(library.store, "shard", Shard())
    with pytest.raises(RandSlotError, match=r"cannot write pages into .*: No space left on device"):
        library.add(papers)
    monkeypatch.undo()
    assert shown(library) == {}
    assert len(library.add(papers).added) == 3


def test_what_was_to_be_deleted_is_deleted_when_opened_again(tmp_path, model, papers, monkeypatch):
    with Library(tmp_path / "lib", model) as library:
        library.add(papers)
        with monkeypatch.context() as patched:
            patched.setattr(library.store, "delete", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                library.remove("a.tif")
        assert shown(library) == {"b.tif": [1, 2, 3], "c.png": [1]}
        assert sum(library.store.counts().values()) == 7
    with Library(tmp_path / "lib", model) as library:
        assert sum(library.store.counts().values()) == 4
        assert library.verify() == []


@pytest.mark.slow
def test_searching_while_another_thread_indexes(library, papers):
    library.add(papers / "a.tif")
    for number in range(8):
        write_tiff(papers / f"more{number}.tif", range(100 + 4 * number, 104 + 4 * number))
    thread = threading.Thread(target=lambda: library.add(papers, batch=1))
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(shown(library))
    thread.join()
    sizes = {"a": 3, "b": 3, "c": 1, "m": 4}
    for found in [*seen, shown(library)]:
        assert all(len(pages) == sizes[name[0]] for name, pages in found.items())
    assert len(shown(library)) == 11
    assert len(seen) > 1


# -- verify


@pytest.mark.parametrize("damaged", ["files.sqlite", "pages/edge_config.json"])
def test_a_damaged_file_names_a_remedy_that_works(tmp_path, model, papers, damaged):
    with Library(tmp_path / "lib", model) as library:
        library.add(papers)
        wanted = shown(library)
    (tmp_path / "lib" / damaged).write_text("nonsense" * 100)
    with pytest.raises(RandSlotError, match=r"cannot open .* move (it|that folder) away, run .* verify --repair -l"):
        Library(tmp_path / "lib", model)
    (tmp_path / "lib" / damaged.split("/")[0]).rename(tmp_path / "away")
    with pytest.raises(RandSlotError, match=r"randslot library verify --repair -l \S+, then index its files"):
        Library(tmp_path / "lib", model)
    with Library(tmp_path / "lib", model, repair=True) as library:
        library.verify(repair=True)
        library.add(papers)
        assert (shown(library), library.verify()) == (wanted, [])


@pytest.mark.slow
def test_verify_reads_the_vectors_and_repair_gives_them_back(tmp_path, model, papers):
    with Library(tmp_path / "lib", model) as library:
        library.add(papers)
        wanted = library.search("tax", 3)
    for file in (tmp_path / "lib" / "pages").glob("segments/*/vector_storage-page/vectors/*"):
        file.unlink()
    with Library(tmp_path / "lib", model) as library:
        for exact in (False, True):
            with pytest.raises(RandSlotError, match=r"vectors are damaged \(.*\): randslot library verify --repair"):
                library.search("tax", exact=exact)
        problems = library.verify()
        assert [line.rpartition("/")[2] for line in problems] == [
            "a.tif: 3 of 3 pages are damaged",
            "b.tif: 3 of 3 pages are damaged",
            "c.png: 1 of 1 pages are damaged",
        ]
        assert library.verify(repair=True) == problems
        assert (library.verify(), len(library), library.search("tax")) == ([], 0, [])
        assert len(library.add(papers).added) == 3
        assert (library.verify(), library.search("tax", 3)) == ([], wanted)


@pytest.mark.slow
def test_verify_finds_vectors_that_lost_their_length(library, papers):
    library.add(papers)
    (file,) = library.manifest.find(source=str(papers / "b.tif"))
    (page,) = library.store.read([page_id(file.id, 2)]).values()
    library.store.add([replace(page, vectors=0 * page.vectors)])
    assert library.verify() == [f"{papers}/b.tif: 1 of 3 pages are damaged"]
    library.verify(repair=True)
    assert library.add(papers).encoded == 3


@pytest.mark.slow
def test_lost_pages_are_told_and_repaired(tmp_path, model, papers):
    with Library(tmp_path / "lib", model) as library:
        library.add(papers)
    shutil.rmtree(tmp_path / "lib" / "pages")
    for _ in range(2):  # nothing is made in its place
        with pytest.raises(RandSlotError, match=r"the pages of library \S+ are lost: randslot library verify --repair"):
            Library(tmp_path / "lib", model)
    with Library(tmp_path / "lib", model, repair=True) as library:
        assert len(library.verify(repair=True)) == 3
        assert len(library.add(papers).added) == 3
        assert library.verify() == []


def test_a_list_of_files_that_is_damaged_inside_is_one_line(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        for number in range(500):  # so that its rows take more than a page of the file
            (file,) = library.manifest.find(source=str(papers / "a.tif"))
            library.manifest.put(replace(file, id=f"{number}", source=f"{file.source}{number}", state="gone"))
    place = tmp_path / "lib" / "files.sqlite"
    content = bytearray(place.read_bytes())
    assert len(content) > 20_000
    content[4096:-4096] = np.random.default_rng(3).bytes(len(content) - 8192)
    place.write_bytes(content)
    with pytest.raises(RandSlotError, match=r"cannot (open|read|write) \S+files.sqlite: .* verify --repair -l"):
        Library(tmp_path / "lib", ToyReader()).search("tax")


def test_verify_sees_a_damaged_index_of_the_list_of_files(tmp_path, papers):
    """Searches may not need it, and files would be missing where they do."""
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        assert library.verify() == []
        (page,) = library.manifest.db.execute("select rootpage from sqlite_master where name = 'by_state'").fetchone()
        (size,) = library.manifest.db.execute("pragma page_size").fetchone()
    with (tmp_path / "lib" / "files.sqlite").open("r+b") as file:
        file.seek((page - 1) * size + 3)
        file.write(b"\0\0")  # it has no entries any more
    line = r"cannot read \S+files.sqlite: damaged: .* verify --repair -l"
    with Library(tmp_path / "lib", ToyReader()) as library, pytest.raises(RandSlotError, match=line):
        library.verify()


def test_a_row_of_the_list_of_files_that_is_damaged_is_one_line(tmp_path):
    with Library(tmp_path / "lib") as library:
        library.manifest.db.execute("insert into files values ('a', x'2f', '', 1, 1, 1, 'done', '{torn')")
        with pytest.raises(RandSlotError, match=r"cannot read \S+files.sqlite: damaged: .* verify --repair -l"):
            library.files()


@pytest.mark.parametrize("left", [None, b""])
def test_a_lost_list_of_files_is_told_and_repaired(tmp_path, papers, left):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
    (tmp_path / "lib" / "files.sqlite").unlink()
    if left is not None:
        (tmp_path / "lib" / "files.sqlite").write_bytes(left)
    for _ in range(2):  # nothing is made in its place
        with pytest.raises(RandSlotError, match=r"the list of files of library \S+ is lost .* verify --repair"):
            Library(tmp_path / "lib", ToyReader())
    with Library(tmp_path / "lib", ToyReader(), repair=True) as library:
        assert library.verify(repair=True) != []
        assert len(library.add(papers).added) == 3
        assert library.verify() == []


def test_a_filter_that_no_page_has_is_refused(library, papers):
    library.add(papers, metadata={"year": 2023})
    with pytest.raises(UsageError, match=r"no page in library .* has 'yaer' to filter by, only page, source, year"):
        library.search("tax", filters={"yaer": 2023})
    assert library.search("tax", filters={"year": 1999}) == []


@pytest.mark.slow
def test_verify_finds_missing_and_stray_pages_and_repairs(library, papers):
    library.add(papers)
    (file,) = library.manifest.find(source=str(papers / "a.tif"))
    library.store.delete(file.id)
    (other,) = library.manifest.find(source=str(papers / "b.tif"))
    library.manifest.forget(other)
    problems = library.verify()
    assert len(problems) == 2
    assert "a.tif: 0 of 3 pages are stored" in problems[0]
    assert "3 pages belong to no file" in problems[1]
    assert library.verify(repair=True) == problems
    assert library.verify() == []
    assert library.status().pending == 1
    assert len(library.add(papers).added) == 2
    assert shown(library) == {"a.tif": [1, 2, 3], "b.tif": [1, 2, 3], "c.png": [1]}


# -- one model, one process


def test_a_library_remembers_its_model(tmp_path, saved, papers):
    with Library(tmp_path / "lib", saved) as library:
        library.add(papers)
        before = library.search("tax", 3)
    with Library(tmp_path / "lib") as library:
        assert library.search("tax", 3) == before
        assert library.binding.name == str(saved)
    record = json.loads((tmp_path / "lib" / "library.json").read_text())
    assert record["format"] == 2
    wanted = {"slots": "random", "inference": "zero", "page_vectors": 4, "dimension": 64, "revision": None}
    assert wanted.items() <= record["model"].items()


def test_a_model_that_plain_sentence_transformers_loaded_is_the_same_model(tmp_path, saved, papers):
    plain = MultiVectorEncoder(str(saved), device="cpu", trust_remote_code=True)
    with Library(tmp_path / "lib", plain) as library:
        library.add(papers)
        hits = library.search("tax", 3)
    with Library(tmp_path / "lib", randslot.load(saved)) as library:
        assert library.search("tax", 3) == hits
    with pytest.raises(UsageError, match="takes a loaded model, or the folder or hub id of one, not int"):
        Library(tmp_path / "lib", 7)


def test_budgets_of_a_new_library_are_remembered(tmp_path, saved, papers):
    with Library(tmp_path / "lib", randslot.load(saved, page_vectors=6, query_vectors=2)) as library:
        library.add(papers)
    with Library(tmp_path / "lib") as library:
        hit = library.search("tax", 1)[0]
        assert len(hit.matches) == 2
        (page,) = library.store.read([hit.id]).values()
        assert page.vectors.shape == (6, 64)


def test_another_model_is_refused_in_one_line(tmp_path, model, saved, papers):
    Library(tmp_path / "lib", saved).close()
    other = make("qwen2.5-vl", visual_tokens=16)
    with pytest.raises(RandSlotError, match=r"belongs to .* and this is a model in memory") as refused:
        Library(tmp_path / "lib", other)
    assert "\n" not in str(refused.value)
    with pytest.raises(RandSlotError, match=r"belongs to .* and this is embedded"):
        Library(tmp_path / "lib", "embedded")
    more = randslot.load(saved, page_vectors=6)
    with pytest.raises(RandSlotError, match="was made with page_vectors=4 and not 6"):
        Library(tmp_path / "lib", more)
    fewer = randslot.load(saved, query_vectors=2)
    Library(tmp_path / "lib", fewer).close()
    Library(tmp_path / "lib", model).close()


def test_a_model_that_changed_in_its_place_is_refused(tmp_path, model, papers):
    model.save_pretrained(str(tmp_path / "model"))
    with Library(tmp_path / "lib", tmp_path / "model") as library:
        library.add(papers)
    shutil.rmtree(tmp_path / "model")
    randslot.tiny("qwen3-vl", seed=5, visual_tokens=16).save_pretrained(str(tmp_path / "model"))
    with Library(tmp_path / "lib") as library, pytest.raises(RandSlotError, match="belongs to"):
        library.search("tax")


@pytest.mark.slow
def test_a_saved_adapter_is_remembered_by_its_own_folder(tmp_path, saved, papers):
    """Not by that of its backbone, from which it is loaded too."""
    model = randslot.load(saved, lora=True)
    model.save_pretrained(str(tmp_path / "adapter"))
    with Library(tmp_path / "lib", tmp_path / "adapter") as library:
        library.add(papers / "a.tif")
    with Library(tmp_path / "lib") as library:
        assert len(library.search("tax")) == 3


def test_a_model_in_memory_has_to_be_passed_again(tmp_path, model):
    Library(tmp_path / "lib", model).close()
    with Library(tmp_path / "lib") as library:
        assert len(library) == 0
        with pytest.raises(RandSlotError, match="made with a model in memory: pass that model"):
            library.search("tax")


def test_another_format_or_a_torn_file_is_refused(tmp_path, model):
    Library(tmp_path / "lib", model).close()
    home = tmp_path / "lib" / "library.json"
    record = json.loads(home.read_text())
    home.write_text(json.dumps({**record, "format": 4}))
    with pytest.raises(RandSlotError, match="has format 4, and this version of randslot reads 2 and 3"):
        Library(tmp_path / "lib")
    home.write_text(json.dumps({"format": 2, "model": {}}))
    with pytest.raises(RandSlotError, match="does not say which model"):
        Library(tmp_path / "lib")
    for damaged in ({"format": 2}, {**record, "words": {"language": 7}}):
        home.write_text(json.dumps(damaged))
        with pytest.raises(RandSlotError, match=r"\(library.json\) is damaged: bring it back from a copy"):
            Library(tmp_path / "lib")
    home.write_text("{")
    with pytest.raises(RandSlotError, match=r"is not valid JSON: .*: bring it back from a copy, or index into another"):
        Library(tmp_path / "lib")
    home.write_text(json.dumps(record))
    Library(tmp_path / "lib").close()


def test_a_folder_with_other_things_is_left_alone(tmp_path, papers):
    with pytest.raises(UsageError, match="is not a library and not empty"):
        Library(papers)
    with pytest.raises(UsageError, match="no library at"):
        Library(tmp_path / "new", create=False)
    with pytest.raises(RandSlotError, match="no model found"):
        Library(tmp_path / "new", "nowhere")
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match="cannot make or read a library"):
        Library(papers / "a.tif" / "below")


def test_one_process_at_a_time(library, model, tmp_path):
    with pytest.raises(RandSlotError, match=f"is in use by another process \\({os.getpid()}\\): wait until it ends"):
        Library(tmp_path / "lib", model)
    assert library.search("tax") == []


def test_the_lock_of_a_killed_process_is_waited_for(library, tmp_path):
    """A process that it was just about to start keeps the lock for a moment."""
    library.close()
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "lib" / "owner").write_text(json.dumps({"pid": dead.pid, "socket": None}))
    with FileLock(tmp_path / "lib" / "lock", thread_local=False) as child:
        ended = threading.Timer(0.3, child.release)
        ended.start()
        Library(tmp_path / "lib").close()
    ended.join()


@pytest.mark.parametrize("name", ["scan.jpg", "scan.png", "scan.webp", "scan.tif"])
def test_an_image_file_that_is_cut_is_told_and_not_stored(tmp_path, name):
    """Also without a model, which would look at its pixels."""
    noise(400, 300, 1).save(tmp_path / "whole.png")
    noise(400, 300, 1).save(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) * 2 // 3])
    with Library(tmp_path / "words") as library:
        summary = library.add([tmp_path / name, tmp_path / "whole.png"], workers=1)
        assert [Path(source).name for source in summary.added] == ["whole.png"]
        ((source, reason),) = summary.failed.items()
        assert Path(source).name == name
        assert "\n" not in reason


def test_a_folder_that_may_not_be_read_is_told_in_a_line(tmp_path, monkeypatch):
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)  # who runs the tests may read everything
    with pytest.raises(UsageError, match=r"cannot make or read .*lib: Permission denied"):
        Library(tmp_path / "lib")


def test_a_library_that_may_only_be_read_is_told_with_what_to_do(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    Library(tmp_path / "lib").close()
    monkeypatch.setattr(FileLock, "acquire", refuse)  # who runs the tests may write everywhere
    with pytest.raises(UsageError, match=r"cannot write into .*lib: Read-only file system\. .*copy the folder"):
        Library(tmp_path / "lib")


@pytest.mark.parametrize("by", ["words", "vectors", "both"])
def test_a_query_without_a_letter_or_a_digit_finds_nothing(tmp_path, by):
    write_pdf(tmp_path / "report.pdf", 2, [])
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(tmp_path / "report.pdf")
        library.read_words(language="english")
        assert library.search("???", by=by) == []
        assert library.search_all(["???", "a 1"], by="vectors")[1] != []
