"""A small library on a tiny model, served: through its app, and for browsers on a real port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sentence_transformers import MultiVectorEncoder
from starlette.testclient import TestClient

from randslot.library.library import Library
from randslot.serve.service import Service
from support.models import make, noise
from support.pdf import write_pdf
from support.services import SCRIPT, client_of, serving


@pytest.fixture(scope="session")
def model() -> MultiVectorEncoder:
    return make("qwen3-vl", visual_tokens=16)


@pytest.fixture(scope="session")
def papers(tmp_path_factory) -> Path:
    """Two PDFs, of three and two pages, and an image with markup in its name."""
    folder = tmp_path_factory.mktemp("papers")
    write_pdf(folder / "alpha.pdf", 3, [])
    write_pdf(folder / "beta.pdf", 2, [], size=(280, 200))
    noise(80, 100, 5).save(folder / SCRIPT)
    return folder


@pytest.fixture(scope="module")
def service(model, papers, tmp_path_factory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("served") / "mylib"
    with Library(folder, model) as library:
        library.add(papers, workers=1)
    with serving(folder, model) as service:
        yield service


@pytest.fixture
def client(service) -> TestClient:
    return client_of(service)
