"""A tiny model, and files of known pages: noise as TIFFs, each frame a page."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from sentence_transformers import MultiVectorEncoder

import randslot
from randslot.library.address import read_address
from randslot.library.library import Library
from randslot.library.stores.connection import connect
from support.libraries import REAL, write_tiff
from support.models import make, noise
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


@pytest.fixture
def url(tmp_path, monkeypatch):
    """The address of a new library: on the server that RANDSLOT_QDRANT_URL names, or on a stand-in."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if REAL is None:
        with serving() as (_, port):
            yield f"qdrant://127.0.0.1:{port}/papers"
        return
    address = read_address(f"{REAL.rstrip('/')}/test-{uuid.uuid4()}")
    yield str(address)
    connection = connect(address)
    for name in (address.collection, f"{address.collection}-files"):
        connection.client.delete_collection(name)
    connection.close()


@pytest.fixture
def papers(tmp_path) -> Path:
    """A folder with two files of three pages and an image in a folder below."""
    folder = tmp_path / "papers"
    (folder / "below").mkdir(parents=True)
    write_tiff(folder / "a.tif", [1, 2, 3])
    write_tiff(folder / "b.tif", [4, 5, 6])
    noise(90, 120, 7).save(folder / "below" / "c.png")
    return folder
