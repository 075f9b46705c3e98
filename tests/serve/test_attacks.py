"""What must not be possible: each attempt is a 4xx with a clear message, and the service goes on."""

from __future__ import annotations

import hmac
import json
import socket
from io import BytesIO

import pytest
from PIL import Image

from randslot.serve import access as guard
from randslot.serve import uploads
from randslot.serve.access import HEADERS, Access
from support.services import TOKEN, client_of, documents, listening, pdf, serving, wait_for

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _goes_on(client, service):
    """After each attempt the service still answers, and has left nothing behind."""
    yield
    assert client.post("/api/search", json={"query": "tax"}).status_code == 200
    assert not list(service.uploads.folder.glob("*.part"))


def refused(answer, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert len(error) < 300
    assert "\n" not in error
    for word in words:
        assert word in error
    assert HEADERS.items() <= dict(answer.headers).items()


# -- uploads


def test_a_rightly_labelled_one_is_not():
    for kind in ("png", "jpeg", "webp", "tiff", "bmp", "gif"):
        buffer = BytesIO()
        Image.new("RGB", (20, 20)).save(buffer, kind)
        uploads.check_head(f"page.{kind}", buffer.getvalue())


def test_an_upload_that_is_cut_off_leaves_nothing(service, capsys):
    head = b"POST /api/uploads?name=cut.pdf HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    with listening(service) as address, socket.create_connection((HOST, int(address.rpartition(":")[2]))) as visitor:
        visitor.sendall(head + b"%PDF-1.4")
        wait_for(lambda: service.uploads.in_transit)
        visitor.close()
        wait_for(lambda: not service.uploads.in_transit)
    assert "Traceback" not in capsys.readouterr().err


# -- bodies


@pytest.mark.parametrize(
    ("body", "offending"),
    [
        ({"query": "tax", "\ud800": 1}, "body"),
        ({"query": "tax", "x" * 1000: 1}, "xxx"),
        ({"query": "tax", "metadata": {str(i): i for i in range(21)}}, "metadata"),
    ],
)
def test_wrong_values_are_refused(client, body, offending):
    answer = client.post("/api/search", content=json.dumps(body), headers={"Content-Type": "application/json"})
    refused(answer, 422, offending)


# -- visitors


def test_tokens_are_compared_in_constant_time(service, monkeypatch):
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(guard, "hmac", type("Spy", (), {"compare_digest": compare, "digest": hmac.digest}))
    client_of(service, Access(TOKEN)).get("/api/status", headers={"Authorization": "Bearer wrong"})
    assert compared == [(b"wrong", TOKEN.encode())]


def test_no_error_shows_where_the_library_is(tmp_path):
    """A library without vectors is asked for them."""
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.pdf").write_bytes(pdf(tmp_path, 1))
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "papers", workers=1)
        client = client_of(service)
        asked = {"query": "page", "document": documents(client)["a.pdf"]["id"], "page": 1}
        for answer in (
            client.post("/api/search", json={"query": "page", "by": "vectors"}),
            client.post("/api/explain", json=asked),
        ):
            refused(answer, 400, "library lib", "no vectors")
            assert str(tmp_path) not in answer.json()["error"]
