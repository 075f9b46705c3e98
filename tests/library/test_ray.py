"""A Ray cluster of two CPUs reads a library's pages while one of its workers is killed: none is lost, none is twice."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.library import ray_reader
from randslot.library.library import Library
from randslot.library.readers import WantedPages
from support.libraries import same, write_tiff
from support.models import noise
from support.pdf import write_pdf
from support.qdrant_server import serving

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray's own
    pytest.mark.xdist_group("ray"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def two_cpus():
    awake = {"worker_niceness": 0}  # on a busy machine workers would hardly run
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(num_cpus=2, _system_config=awake, **quiet)
    yield
    ray.shutdown()


def encoders() -> list[psutil.Process]:
    """Return the processes that hold the model."""
    return [one for one in psutil.Process().children(recursive=True) if "Encode" in "".join(one.cmdline())]


@pytest.mark.nightly
def test_a_killed_worker_is_replaced_and_its_pages_are_read_again(two_cpus, saved, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ray_reader, "PAGES_PER_ROW", 2)
    (tmp_path / "files").mkdir()
    for number in range(10):
        write_tiff(tmp_path / "files" / f"{number}.tif", range(10 * number, 10 * number + 8))
    killed: list[int] = []
    stored: list[str] = []
    with serving() as (_, port), Library(f"qdrant://127.0.0.1:{port}/papers", saved) as library:
        library.add(tmp_path / "files" / "0.tif")
        write_tiff(tmp_path / "files" / "0.tif", [0, 1, 2, 3, 4, 5, 6, 99])  # one page of it is new now
        (tmp_path / "files" / "1.tif").write_bytes(b"II*\0 no more")
        add = library.store.add

        def count_and_kill(pages):
            add(pages)
            stored.extend(page.id for page in pages)
            if not killed:
                for one in encoders():
                    os.kill(one.pid, signal.SIGKILL)
                    killed.append(one.pid)

        monkeypatch.setattr(library.store, "add", count_and_kill)
        summary = library.add(tmp_path / "files", batch=4, ray="")
        assert killed
        assert (len(summary.changed), len(summary.added), summary.pages, summary.encoded) == (1, 8, 72, 65)
        assert list(summary.failed) == [str(tmp_path / "files" / "1.tif")]
        assert len(stored) == len(set(stored)) == 72
        assert (library.verify(), len(library)) == ([], 72)
        with Library(tmp_path / "here", model) as here:
            here.add(tmp_path / "files")
            assert same(here, library)


def test_what_ray_cannot_do_is_one_line(model, saved, papers, tmp_path):
    with (
        Library(tmp_path / "memory", model) as library,
        pytest.raises(RandSlotError, match="a model in memory cannot run on Ray"),
    ):
        library.add(papers, ray="")
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:99999"):
        with pytest.raises(RandSlotError, match=f"no Ray cluster at {address}"):
            ray_reader._connect(address)


def open_row(file: Path, numbers: tuple[int, ...], reads: str, known: frozenset[str] = frozenset()) -> list[tuple]:
    """Open pages as a task does; return them with what a model takes of them."""
    wanted = pickle.dumps(WantedPages("id", str(file), numbers, known))
    rows = ray_reader.open_row({"wanted": wanted, "reads": reads, "pixels": 10_000})
    return [(pickle.loads(row["page"]), pickle.loads(row["content"])) for row in rows]


def test_a_page_that_does_not_open_is_told_and_one_that_is_known_is_not_encoded(papers, saved):
    (first, image), (second, _), (wrong, nothing) = open_row(papers / "a.tif", (1, 2, 9), "image")
    assert "page" in wrong.error
    assert nothing is None
    assert (first.error, first.hash == second.hash, image.size) == ("", False, (64, 96))
    known = open_row(papers / "a.tif", (1, 2, 9), "image", frozenset({first.hash}))
    assert known[0][1] is None
    encode = ray_reader.Encode(randslot.load(saved).identity, "lib")
    batch = {"page": [pickle.dumps(page) for page, _ in known], "content": [pickle.dumps(one) for _, one in known]}
    pages = [pickle.loads(page) for page in encode(batch)["page"]]
    assert [page.vectors is not None for page in pages] == [False, True, False]
    assert pages[1].vectors.shape == (4, 64)
    ray_reader._pool().close()
    ray_reader._pool.cache_clear()


def test_a_model_that_reads_text_gets_text(tmp_path):
    write_pdf(tmp_path / "a.pdf", 2, [])
    opened = open_row(tmp_path / "a.pdf", (1, 2), "text")
    assert [content.strip() for _, content in opened] == ["Page 1", "Page 2"]
    assert len({page.hash for page, _ in opened}) == 2
    noise(64, 96).save(tmp_path / "scan.png")
    ((scan, content),) = open_row(tmp_path / "scan.png", (1,), "text")
    assert (scan.error, scan.text.text, content) == ("", "", None)  # nothing to encode
    ray_reader._pool().close()
    ray_reader._pool.cache_clear()


def test_an_actor_encodes_by_the_length_of_pages_not_by_their_number(tmp_path, monkeypatch):
    randslot.tiny("llama", text_tokens=200).save_pretrained(tmp_path / "model")
    encode = ray_reader.Encode(randslot.load(tmp_path / "model").identity, "lib", size=2)
    sizes, embed = [], encode.model.embed_pages
    monkeypatch.setattr(encode.model, "embed_pages", lambda pages: sizes.append(len(pages)) or embed(pages))
    texts = ["a " * 999, "b " * 999, *(f"tax {number}" for number in range(9))]
    found = encode._encode(texts)
    assert sizes[0] == 2
    assert sizes[1] > 4
    for one, other in zip(found, embed(texts), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_actors_take_gpus_where_there_are():
    places = ray_reader._plan_actors({"CPU": 64.0, "GPU": 8.0})
    assert (places["num_gpus"], places["compute"].max_size) == (1, 8)
    places = ray_reader._plan_actors({"CPU": 2.0})
    assert (places["num_cpus"], places["compute"].max_size) == (1, 1)


@pytest.mark.parametrize(
    ("words", "address", "paths"),
    [
        (["--ray", "papers"], "", ["papers"]),
        (["papers", "--ray"], "", ["papers"]),
        (["--ray", "ray://head:10001", "papers"], "ray://head:10001", ["papers"]),
    ],
)
def test_an_address_may_follow(words, address, paths, monkeypatch, tmp_path):
    asked = {}

    def add(self, given, **options):
        asked.update(paths=given, ray=options["ray"])
        raise UsageError("enough")

    monkeypatch.setattr(Library, "add", add)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "papers").mkdir()
    CliRunner().invoke(app, ["index", "-l", str(tmp_path / "lib"), *words])
    assert asked == {"paths": paths, "ray": address}
