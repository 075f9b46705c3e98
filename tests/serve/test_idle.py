"""Connections that send nothing, or next to nothing, do not keep others out. All on 127.0.0.1 and its neighbours."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from randslot.serve import access
from randslot.serve.run import LimitedProtocol
from support.services import listening, pdf, serving

HALF = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Le"
UPLOAD = b"POST /api/uploads?name=cut.pdf HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n%PDF-1.4"


@pytest.fixture
def port(tmp_path, monkeypatch) -> Iterator[int]:
    monkeypatch.setattr(access, "BODY_SECONDS", 1.5)
    monkeypatch.setattr(LimitedProtocol, "request_seconds", 1.0)
    with serving(tmp_path / "lib", None) as service, listening(service) as url:
        yield int(url.rpartition(":")[2])


def connect(stack: ExitStack, port: int, content: bytes) -> socket.socket:
    visitor = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    visitor.sendall(content)
    return visitor


def send(port: int, path: str, content: bytes, address: str = "127.0.0.1") -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(address, 0))) as connection:
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        return connection.getresponse().status


def test_uploads_that_do_not_arrive_keep_nobody_else_out_and_end(port, tmp_path):
    with ExitStack() as stack:
        visitors = [connect(stack, port, UPLOAD) for _ in range(20)]
        time.sleep(0.3)
        assert send(port, "/api/uploads?name=full.pdf", pdf(tmp_path, 1)) == 429  # too many from here
        assert send(port, "/api/uploads?name=full.pdf", pdf(tmp_path, 1), "127.0.0.2") == 202
        answers = [visitor.recv(20)[9:12] for visitor in visitors]
        assert set(answers) == {b"429", b"408"}
        assert send(port, "/api/uploads?name=more.pdf", pdf(tmp_path, 2)) == 202


def test_half_sent_requests_are_closed(port):
    with ExitStack() as stack:
        visitors = [connect(stack, port, HALF) for _ in range(50)]
        started = time.monotonic()
        for visitor in visitors:
            assert visitor.recv(100) == b""
        assert time.monotonic() - started < 10


def test_a_body_that_does_not_come_is_refused(port):
    with ExitStack() as stack:
        head = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        visitor = connect(stack, port, head)
        answer = b"".join(iter(lambda: visitor.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        assert "too slow" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_connection_in_use_stays_open(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(8):
        connection.request("GET", "/api/live")
        first = connection.sock
        assert connection.getresponse().read()
        time.sleep(0.3)
        assert connection.sock is first
    connection.close()


def test_one_address_has_a_limited_number_of_connections(port, monkeypatch):
    monkeypatch.setattr(LimitedProtocol, "max_per_address", 5)
    with ExitStack() as stack:
        for _ in range(8):
            connect(stack, port, b"")
        time.sleep(0.3)
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            send(port, "/api/search", b"{}")
        assert send(port, "/api/search", b"{}", "127.0.0.2") == 422
