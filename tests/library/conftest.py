"""A tiny model, and files of known pages: noise as TIFFs, each frame a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sentence_transformers import MultiVectorEncoder

import randslot
from randslot.library.library import Library
from support.libraries import REAL, new_collection, write_tiff
from support.models import make, noise
from support.qdrant_nodes import MISSING, Node, find_program, running, url_of
from support.qdrant_server import serving


@pytest.fixture(scope="session")
def model() -> MultiVectorEncoder:
    return make("qwen3-vl", visual_tokens=16)


@pytest.fixture(scope="session")
def saved(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def other() -> MultiVectorEncoder:
    """Another model."""
    return randslot.tiny("qwen3-vl", seed=1, visual_tokens=16)


@pytest.fixture
def library(tmp_path, model):
    opened = Library(tmp_path / "lib", model)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def node() -> Iterator[str]:
    """The address of a real server: the one that RANDSLOT_QDRANT_URL names, or one that is started here."""
    if REAL is not None:
        yield REAL
        return
    if find_program() is None:
        pytest.skip(MISSING)
    with running() as (one,):
        yield one.url


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[Node]]:
    """A real cluster of three nodes. Who kills one starts it again."""
    if find_program() is None:
        pytest.skip(MISSING)
    with running(3) as made:
        yield made


@pytest.fixture(scope="session")
def server(request) -> Iterator[str]:
    """The address of a real server, or of a stand-in where there is none."""
    if REAL or find_program():
        yield request.getfixturevalue("node")
    else:
        with serving() as (_, port):
            yield f"qdrant://127.0.0.1:{port}"


@pytest.fixture(params=["server", pytest.param("cluster", marks=pytest.mark.nightly)])
def url(request, tmp_path, monkeypatch) -> Iterator[str]:
    """The address of a new library on a server, and nightly on a cluster."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if request.param == "server":
        base = request.getfixturevalue("server")
    else:
        base = f"{url_of(request.getfixturevalue('nodes'))}?shards=6&replicas=2"
    with new_collection(base) as made:
        yield made


@pytest.fixture
def papers(tmp_path) -> Path:
    """A folder with two files of three pages and an image in a folder below."""
    folder = tmp_path / "papers"
    (folder / "below").mkdir(parents=True)
    write_tiff(folder / "a.tif", [1, 2, 3])
    write_tiff(folder / "b.tif", [4, 5, 6])
    noise(90, 120, 7).save(folder / "below" / "c.png")
    return folder
