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
from randslot.library.stores.points import page_id
from randslot.pages import open_page
from support.libraries import ToyReader, write_tiff
from support.models import make, noise
from support.pdf import write_pdf


def shown(library: Library) -> dict[str, list[int]]:
    """Return what a search can find: page numbers by name of their file."""
    found: dict[str, list[int]] = {}
    for hit in library.search("anything", 1000, exact=True):
        found.setdefault(Path(hit.source).name, []).append(hit.page)
    return {name: sorted(pages) for name, pages in sorted(found.items())}


@pytest.fixture
def library(tmp_path):
    """An empty library of a toy model."""
    with Library(tmp_path / "lib", ToyReader()) as opened:
        yield opened


# -- the three calls


def test_pages_are_ranked_as_the_model_ranks_them(tmp_path, model, saved):
    write_pdf(tmp_path / "report.pdf", 5, [], size=(160, 240))
    image = noise(80, 100, 9)
    pages = [open_page(f"{tmp_path}/report.pdf#page={number}", model.page_pixels) for number in range(1, 6)]
    pages.append(image)
    scores = model.similarity(model.encode_query(["deferred tax"]), model.encode_document(pages))[0].numpy()
    with Library(tmp_path / "lib", saved) as library:
        summary = library.add([tmp_path / "report.pdf", image])
        assert (len(summary.added), summary.pages, summary.encoded, summary.failed) == (2, 6, 6, {})
        assert summary.vector_bytes_per_page == 4 * 64 * 2
        for exact in (True, False):
            hits = library.search("deferred tax", k=6, by="vectors", exact=exact)
            places = [hit.page - 1 if hit.source.endswith(".pdf") else 5 for hit in hits]
            np.testing.assert_allclose([hit.score for hit in hits], scores[places], atol=5e-3)
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
            assert sorted(places) == list(range(6))
    with Library(tmp_path / "lib") as library:  # it remembers its model
        assert library.search("deferred tax", k=6, by="vectors") == hits
        wanted = {"slots": "random", "inference": "zero", "page_vectors": 4, "dimension": 64, "revision": None}
        assert wanted.items() <= json.loads((tmp_path / "lib" / "library.json").read_text())["model"].items()


def test_a_hit_says_which_readouts_matched_and_shows_its_page(library, papers):
    library.add(papers)
    hit = library.search("revenue", k=1)[0]
    (page,) = library.store.read([hit.id]).values()
    similarities = ToyReader().embed_queries(["revenue"])[0] @ page.vectors.T
    assert [match.query for match in hit.matches] == [1, 2, 3]
    assert [match.page - 1 for match in hit.matches] == similarities.argmax(1).tolist()
    assert hit.score == pytest.approx(sum(match.similarity for match in hit.matches), abs=5e-3)
    seed = {"a.tif": 0, "b.tif": 3, "c.png": 6}[Path(hit.source).name] + hit.page
    size = (90, 120) if seed == 7 else (64, 96)
    assert hit.image().tobytes() == noise(*size, seed).tobytes()
    together = library.search_all(["tax", "Größe der Flotte?"], 3)
    assert together == [library.search("tax", 3), library.search("Größe der Flotte?", 3)]
    assert len(library.search("tax", 1, query_vectors=7)[0].matches) == 7
    os.remove(hit.source)
    with pytest.raises(RandSlotError, match="not found"):
        hit.image()


def test_equal_pages_come_in_the_order_of_their_names(library, tmp_path):
    names = ["d.png", "a.png", "c.png", "b.png"]
    for name in names:
        noise(64, 96, 1).save(tmp_path / name)
    library.add([tmp_path / name for name in names])
    assert [Path(hit.source).name for hit in library.search("tax", k=4)] == sorted(names)


# -- only what changed


def spoil(file: Path) -> None:
    """Make a file unreadable without a change of its size and time: whoever opens it fails."""
    stat = file.stat()
    file.write_bytes(bytes(stat.st_size))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_only_what_changed_is_opened_and_encoded(library, papers):
    library.add(papers)
    before = {hit.page: hit.score for hit in library.search("tax", 9, filters={"source": "a.tif"}, exact=True)}
    os.utime(papers / "b.tif", (1, 1))
    assert (library.add(papers).unchanged, library.models.loaded.batches[1:]) == (3, [])
    for name in ("b.tif", "below/c.png"):
        spoil(papers / name)
    write_tiff(papers / "a.tif", [50, 1, 2, 51])
    summary = library.add(papers)
    assert (summary.changed, summary.unchanged, summary.failed) == ([str(papers / "a.tif")], 2, {})
    assert (summary.pages, summary.encoded) == (4, 2)
    assert shown(library) == {"a.tif": [1, 2, 3, 4], "b.tif": [1, 2, 3], "c.png": [1]}
    after = {hit.page: hit.score for hit in library.search("tax", 9, filters={"source": "a.tif"}, exact=True)}
    assert (after[2], after[3]) == pytest.approx((before[1], before[2]), abs=1e-6)
    assert library.verify() == []


def test_a_moved_file_is_only_renamed_and_a_copy_is_a_file_of_its_own(library, papers):
    library.add(papers, metadata={"year": 2023})
    ids = {hit.id for hit in library.search("tax", 9)}
    (papers / "a.tif").rename(papers / "below" / "x.tif")
    summary = library.add(papers)
    assert (len(summary.moved), summary.pages) == (1, 0)
    assert {hit.id for hit in library.search("tax", 9)} == ids
    assert len(library.search("tax", 9, filters={"source": "x.tif", "year": 2023})) == 3
    shutil.copy(papers / "b.tif", papers / "copy.tif")
    assert library.add(papers).added == [str(papers / "copy.tif")]
    (papers / "below" / "x.tif").rename(papers / "b.tif")  # over another
    summary = library.add(papers)
    assert (summary.moved, summary.encoded) == ([str(papers / "b.tif")], 0)
    assert shown(library) == {"b.tif": [1, 2, 3], "c.png": [1], "copy.tif": [1, 2, 3]}
    assert library.verify() == []


def test_files_are_removed_by_name_and_pattern_and_pruned_in_named_folders_only(library, papers, tmp_path):
    (tmp_path / "other").mkdir()
    write_tiff(tmp_path / "other" / "o.tif", [20])
    library.add([papers, tmp_path / "other"])
    assert library.remove("a.tif") == [str(papers / "a.tif")]
    assert library.remove("*/below/*.png") == [str(papers / "below" / "c.png")]
    with pytest.raises(UsageError, match=r"nothing .* matches 'a\.tif'"):
        library.remove("a.tif")
    assert (papers / "a.tif").is_file()
    os.remove(papers / "b.tif")
    os.remove(tmp_path / "other" / "o.tif")
    assert library.add(papers / "below").removed == []
    assert library.add(papers, prune=True).removed == [str(papers / "b.tif")]
    assert library.status().missing == 1
    assert library.remove(str(tmp_path / "other")) == [str(tmp_path / "other" / "o.tif")]


def test_an_image_without_a_file_is_kept_moved_and_removed_with_the_library(tmp_path):
    image = noise(60, 80, 3)
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add([image])
        assert library.add([image]).unchanged == 1
    (tmp_path / "lib").rename(tmp_path / "moved")
    with Library(tmp_path / "moved", ToyReader()) as library:
        (hit,) = library.search("tax")
        assert hit.image().tobytes() == image.tobytes()
        assert library.add([image]).unchanged == 1
        library.remove(Path(hit.source).name)
        assert not Path(hit.source).exists()


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


# -- filters


def test_filters_all_hold_and_metadata_can_be_given_later(library, papers):
    library.add([papers / "a.tif", papers / "b.tif"], metadata={"kind": "law", "year": 2023})
    library.add(papers / "b.tif", metadata={"kind": "tax", "draft": True})

    def pages(**filters: object) -> set[tuple[str, int]]:
        return {(Path(hit.source).name, hit.page) for hit in library.search("x", 9, filters=filters)}

    assert pages(source="a.tif", year="2023") == {("a.tif", 1), ("a.tif", 2), ("a.tif", 3)}
    assert pages(source=str(papers), page=2) == {("a.tif", 2), ("b.tif", 2)}
    assert pages(kind="tax", draft="true", page=(2, 3)) == {("b.tif", 2), ("b.tif", 3)}
    assert pages(kind="tax", source="a.tif") == pages(kind="other") == set()
    for wrong in (0, (3, 2), "two", (1, None)):
        with pytest.raises(UsageError, match="page must be a number"):
            library.search("x", filters={"page": wrong})
    with pytest.raises(UsageError, match="'tags' must be text"):
        library.add(papers, metadata={"tags": ["a"]})


# -- files that cannot be read


def test_bad_files_are_told_and_the_rest_is_indexed(library, tmp_path, papers):
    write_pdf(tmp_path / "large.pdf", 1, [], size=(1_000_000, 1_000_000))
    (reason,) = library.add(tmp_path / "large.pdf").failed.values()
    assert "1000000 x 1000000 points" in reason
    Image.new("1", (30_000, 30_000)).save(papers / "bomb.png")
    cut = ["scan.jpg", "scan.png", "scan.webp", "scan.tif"]
    for name in cut:
        noise(400, 300, 1).save(papers / name)
        content = (papers / name).read_bytes()
        (papers / name).write_bytes(content[: len(content) * 2 // 3])
    with Library(tmp_path / "words") as library:  # no model looks at the pixels
        summary = library.add(papers, workers=1)
        failed = {Path(name).name: reason for name, reason in summary.failed.items()}
        assert failed.keys() == {"bomb.png", *cut}
        assert "image too large to open safely" in failed["bomb.png"]
        assert not any("\n" in reason for reason in failed.values())
        assert (len(summary.added), len(library.files()), library.verify()) == (3, 3, [])


def test_any_name_works(library, tmp_path):
    names = [
        "Größe_東京 🗼.png",
        "x" * 251 + ".png",
        "a[1] (copy)?.png",
        "line\nbreak.png",
        os.fsdecode(b"caf\xe9.png"),
    ]
    (tmp_path / "in").mkdir()
    for seed, name in enumerate(names):
        noise(40, 40, seed).save(tmp_path / "x.png")
        os.rename(tmp_path / "x.png", tmp_path / "in" / name)
    assert library.add(tmp_path / "in").failed == {}
    for name in names:
        (hit,) = library.search("x", filters={"source": name})
        assert (hit.source, hit.image().size) == (str(tmp_path / "in" / name), (40, 40))
        assert library.remove(name) == [hit.source]


def test_a_file_that_broke_keeps_its_old_pages(library, papers):
    library.add(papers)
    (papers / "a.tif").write_bytes((papers / "a.tif").read_bytes()[:300])
    summary = library.add(papers)
    assert list(summary.failed) == [str(papers / "a.tif")]
    assert shown(library)["a.tif"] == [1, 2, 3]
    assert library.verify() == []


def test_patterns_links_and_the_librarys_own_folder(library, papers, tmp_path):
    (papers / ".hidden").mkdir()
    shutil.copy(papers / "a.tif", papers / ".hidden" / "h.tif")
    os.symlink(papers, papers / "loop")
    library.add([noise(20, 20)])
    summary = library.add([str(tmp_path / "**" / "*.tif"), tmp_path])
    assert sorted(Path(name).name for name in summary.added) == ["a.tif", "b.tif", "c.png"]


# -- stopped in the middle


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


def test_what_was_to_be_deleted_is_deleted_when_opened_again(tmp_path, papers, monkeypatch):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        with monkeypatch.context() as patched:
            patched.setattr(library.store, "delete", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                library.remove("a.tif")
        assert shown(library) == {"b.tif": [1, 2, 3], "c.png": [1]}
        assert sum(library.store.counts().values()) == 7
    with Library(tmp_path / "lib", ToyReader()) as library:
        assert sum(library.store.counts().values()) == 4
        assert library.verify() == []


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
def test_a_damaged_file_names_a_remedy_that_works(tmp_path, papers, damaged):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        wanted = shown(library)
    (tmp_path / "lib" / damaged).write_text("nonsense" * 100)
    with pytest.raises(
        RandSlotError, match=r"cannot open .* move (the file|that folder) away, run .* verify --repair -l"
    ):
        Library(tmp_path / "lib", ToyReader())
    (tmp_path / "lib" / damaged.split("/")[0]).rename(tmp_path / "away")
    with pytest.raises(RandSlotError, match=r"randslot library verify --repair -l \S+ and index the files again"):
        Library(tmp_path / "lib", ToyReader())
    with Library(tmp_path / "lib", ToyReader(), repair=True) as library:
        library.verify(repair=True)
        library.add(papers)
        assert (shown(library), library.verify()) == (wanted, [])


def test_verify_reads_the_vectors_and_repair_gives_them_back(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
        wanted = library.search("tax", 3)
    for file in (tmp_path / "lib" / "pages").glob("segments/*/vector_storage-page/vectors/*"):
        file.unlink()
    with Library(tmp_path / "lib", ToyReader()) as library:
        for exact in (False, True):
            with pytest.raises(RandSlotError, match=r"vectors are damaged \(.*\): run randslot library verify"):
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


def test_a_row_of_the_list_of_files_that_is_damaged_is_one_line(tmp_path):
    with Library(tmp_path / "lib") as library:
        library.manifest.db.execute("insert into files values ('a', x'2f', '', 1, 1, 1, 'done', '{torn', '{}')")
        with pytest.raises(RandSlotError, match=r"cannot read \S+files.sqlite: damaged: .* verify --repair -l"):
            library.files()


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


def test_a_lost_list_of_files_is_told_and_repaired(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers)
    (tmp_path / "lib" / "files.sqlite").unlink()
    for _ in range(2):  # nothing is made in its place
        with pytest.raises(RandSlotError, match=r"files.sqlite of library \S+ is missing.* verify --repair"):
            Library(tmp_path / "lib", ToyReader())
    with Library(tmp_path / "lib", ToyReader(), repair=True) as library:
        assert library.verify(repair=True) != []
        assert len(library.add(papers).added) == 3
        assert library.verify() == []


def test_verify_finds_missing_and_stray_pages_and_repairs(library, papers):
    library.add(papers)
    (file,) = library.manifest.find(source=str(papers / "a.tif"))
    library.store.delete(file.id)
    (other,) = library.manifest.find(source=str(papers / "b.tif"))
    library.manifest.forget(other)
    (third,) = library.manifest.find(source=str(papers / "below" / "c.png"))
    (page,) = library.store.read([page_id(third.id, 1)]).values()
    library.store.add([replace(page, vectors=page.vectors / 2)])  # not of unit length
    problems = library.verify()
    assert len(problems) == 3
    assert "a.tif: 0 of 3 pages are stored" in problems[0]
    assert "c.png: 1 of 1 pages are damaged" in problems[1]
    assert "3 pages belong to no file" in problems[2]
    assert library.verify(repair=True) == problems
    assert library.verify() == []
    assert library.status().pending == 2
    assert len(library.add(papers).added) == 3
    assert shown(library) == {"a.tif": [1, 2, 3], "b.tif": [1, 2, 3], "c.png": [1]}


# -- one model, one process


def test_a_model_that_plain_sentence_transformers_loaded_is_the_same_model(tmp_path, saved, papers):
    plain = MultiVectorEncoder(str(saved), device="cpu", trust_remote_code=True)
    with Library(tmp_path / "lib", plain) as library:
        library.add(papers)
        hits = library.search("tax", 3)
    with Library(tmp_path / "lib", randslot.load(saved)) as library:
        assert library.search("tax", 3) == hits
    with pytest.raises(UsageError, match="pass a loaded model, or its folder or hub id, not int"):
        Library(tmp_path / "lib", 7)


def test_another_model_is_refused_in_one_line(tmp_path, model, saved, papers):
    Library(tmp_path / "lib", saved).close()
    other = make("qwen2.5-vl", visual_tokens=16)
    with pytest.raises(RandSlotError, match=r"was indexed with .*, not a model in memory") as refused:
        Library(tmp_path / "lib", other)
    assert "\n" not in str(refused.value)
    with pytest.raises(RandSlotError, match="was indexed with page_vectors=4, not 6"):
        Library(tmp_path / "lib", randslot.load(saved, page_vectors=6))
    Library(tmp_path / "lib", randslot.load(saved, query_vectors=2)).close()
    Library(tmp_path / "lib", model).close()


def test_a_model_is_remembered_by_its_own_folder_and_refused_if_it_changed(tmp_path, saved, papers):
    """An adapter not by the folder of its backbone, from which it is loaded too."""
    place = tmp_path / "adapter"
    randslot.load(saved, lora=True, page_vectors=6, query_vectors=2).save_pretrained(str(place))
    with Library(tmp_path / "lib", place) as library:
        library.add(papers / "a.tif")
    with Library(tmp_path / "lib") as library:
        hits = library.search("tax")
        assert [len(hit.matches) for hit in hits] == [2, 2, 2]
    shutil.rmtree(place)
    randslot.tiny("qwen3-vl", seed=5, visual_tokens=16).save_pretrained(str(place))
    with Library(tmp_path / "lib") as library, pytest.raises(RandSlotError, match="was indexed with"):
        library.search("tax", by="vectors")


def test_a_model_in_memory_has_to_be_passed_again(library, tmp_path):
    library.close()
    with Library(tmp_path / "lib") as again, pytest.raises(RandSlotError, match="indexed with a model in memory: pass"):
        again.search("tax")


def test_one_process_at_a_time(library, tmp_path):
    with pytest.raises(RandSlotError, match=f"is open in process {os.getpid()}: wait, or"):
        Library(tmp_path / "lib", ToyReader())
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


def test_a_query_without_a_letter_or_a_digit_finds_nothing(library, tmp_path):
    write_pdf(tmp_path / "report.pdf", 2, [])
    library.add(tmp_path / "report.pdf")
    for by in ("words", "vectors", "both"):
        assert library.search("???", by=by) == []
    assert library.search_all(["???", "a 1"], by="vectors")[1] != []
