"""A small library on a tiny model, served: through its app, and for browsers on a real port."""

from __future__ import annotations

import zlib
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


@pytest.fixture(scope="session")
def slow() -> bytes:
    """A PDF whose pages share a stream of 1 GB that is compressed twice: seconds a page."""
    packer = zlib.compressobj(9)
    inner = b"".join(packer.compress(b" " * 2**20) for _ in range(1024)) + packer.flush()
    stream = zlib.compress(inner, 9)
    num = 200
    kids = b" ".join(b"%d 0 R" % (4 + i) for i in range(num))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[" + kids + b"]/Count %d>>" % num,
        b"<</Length %d/Filter[/FlateDecode/FlateDecode]>>stream\n%s\nendstream" % (len(stream), stream),
        *[b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 3 0 R>>"] * num,
    ]
    content, places = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, body in enumerate(objects, 1):
        places += b"%010d 00000 n \n" % len(content)
        content += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    size = len(objects) + 1
    tail = b"xref\n0 %d\n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (size, places, size, len(content))
    return content + tail
