"""Attacks on a running service: paths, names, markup, bodies, other sites. After each it still answers."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.serving import INJECTION, MARKUP, Served, command, is_refused, make_pdf, serve, wait_for, write_papers

pytestmark = [pytest.mark.xdist_group("contract-attacks"), pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("attacks")
    command("index", write_papers(folder / "papers"), "-l", folder / "lib", "--quiet")
    return folder


@pytest.fixture(scope="module")
def attacked(folder) -> Iterator[Served]:
    with serve(folder / "lib") as one:
        yield one
        code, log = one.stop()
        assert code == 0
        assert "Traceback" not in log


@pytest.fixture(autouse=True)
def _still_answers(attacked, folder):
    """After each attempt the service answers, and nothing was left behind."""
    yield
    assert len(attacked.search("tax")) == 2
    wait_for(lambda: not list((folder / "lib" / "uploads").glob("*.part")))


def send_raw(served: Served, *lines: str) -> bytes:
    """Send a request as it is written, which clients would change, and return the answer."""
    with served.connect() as visitor:
        visitor.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        return b"".join(iter(lambda: visitor.recv(65536), b""))


def png(width: int, height: int) -> bytes:
    """Return a PNG that claims a size, and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


# -- paths, names and markup


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2f..%2fetc/passwd",
        "/page.css/../../../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/documents/..%2f..%2f..%2fetc%2fpasswd/file",
        "/api/documents/%2fetc%2fpasswd/file",
        "/api/documents/report.pdf/file",
        "/api/documents/ID/pages/..%2f..%2ffile/image",
        "/api/documents/ID/pages/0/image",
        "/api/documents/ID/pages/-1/image",
        "/api/documents/ID/pages/4/image",
        "/api/documents/ID/pages/99999999999999999999/image",
        "/api/documents/ID/pages/1/image?size=../../x",
        "/api/uploads/..%2f..%2flibrary.json",
    ],
)
def test_nothing_is_reached_by_a_path(attacked, path):
    path = path.replace("ID", attacked.documents()["report.pdf"]["id"])
    answer = send_raw(attacked, f"GET {path} HTTP/1.1", "Host: localhost")
    assert answer.split()[1] in (b"404", b"422")
    assert b"root:" not in answer
    assert set(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == {"error"}


@pytest.mark.parametrize(
    "name",
    ["../evil.pdf", "/tmp/evil.pdf", ".", "..", "", "evil\0.pdf", "a/b.pdf", "x" * 252 + ".pdf", "ä" * 126 + ".pdf"],
)
def test_names_that_leave_the_folder_are_refused(attacked, folder, tmp_path, name):
    before = sorted(folder.parent.rglob("*.pdf"))
    is_refused(attacked.client.post("/api/uploads", params={"name": name}, content=make_pdf(tmp_path, "x")), 400, 422)
    assert sorted(folder.parent.rglob("*.pdf")) == before


def test_markup_in_names_and_texts_stays_data(attacked, tmp_path):
    """Names and texts come as JSON that no browser renders, and files as what they are, under a strict policy."""
    for answer in (
        attacked.client.post("/api/search", json={"query": "cotton"}),
        attacked.client.get("/api/documents"),
        attacked.client.get(attacked.documents()[MARKUP]["file"]),
        attacked.client.get("/<script>alert(1)</script>"),
    ):
        assert answer.headers["content-type"].partition(";")[0] in ("application/json", "image/png")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    (hit,) = attacked.search("cotton")
    assert INJECTION.split()[0] in hit["snippet"]["text"]
    page = attacked.client.get("/", params={"q": "<script>alert(1)</script>"}).text
    assert "alert(1)" not in page
    assert attacked.upload("<b>bold & 'quoted'.pdf", make_pdf(tmp_path, "Odd names"))["state"] == "done"


def test_no_answer_shows_where_files_are(attacked, folder):
    id = attacked.documents()["report.pdf"]["id"]
    for answer in (
        attacked.client.post("/api/search", json={"query": "tax", "k": 100}),
        attacked.client.get("/api/documents"),
        attacked.client.get(f"/api/documents/{id}"),
        attacked.client.get("/api/status"),
        attacked.client.get("/api/facets"),
        attacked.client.get("/api/uploads"),
        attacked.client.get("/openapi.json"),
        attacked.client.post("/api/explain", json={"query": "tax", "document": id, "page": 1}),
    ):
        assert str(folder.parent) not in answer.text


def test_a_file_that_is_gone_is_refused_without_its_path(attacked, folder):
    attacked.upload("gone.pdf", make_pdf(folder, "Gone with the wind"))
    id = attacked.documents()["gone.pdf"]["id"]
    (folder / "lib" / "uploads" / "gone.pdf").unlink()
    for path in (f"/api/documents/{id}/file", f"/api/documents/{id}/pages/1/image"):
        assert "/" not in is_refused(attacked.client.get(path), 404)


# -- bodies


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("page.pdf", b"<html><script>alert(1)</script></html>", 415),
        ("page.pdf", png(10, 10), 415),
        ("page.png", b"%PDF-1.4 and so on", 415),
        ("page.jpg", b"GIF89a", 415),
        ("page.docx", b"<html>", 415),
        ("page.svg", b"<svg/>", 415),
        ("page", b"%PDF-1.4", 415),
        ("page.pdf", b"", 400),
    ],
)
def test_a_mislabelled_upload_is_refused(attacked, name, content, status):
    is_refused(attacked.client.post("/api/uploads", params={"name": name}, content=content), status)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.png", png(60_000, 60_000)),
        ("torn.png", png(100, 100)[:60]),
        ("junk.pdf", b"%PDF-1.4\n" + bytes(range(256)) * 50),
    ],
    ids=["bomb", "torn", "junk"],
)
def test_a_harmful_upload_fails_alone(attacked, name, content):
    job = attacked.upload(name, content)
    assert (job["state"], bool(job["error"])) == ("failed", True)
    assert name not in attacked.documents()


def test_oversized_bodies_are_refused_with_and_without_a_length(attacked):
    body = json.dumps({"query": "x" * 2**20}).encode()
    parts = (body[start : start + 5000] for start in range(0, len(body), 5000))
    json_type = {"Content-Type": "application/json"}
    for content in (body, parts):
        is_refused(attacked.client.post("/api/search", content=content, headers=json_type), 413)
    answer = send_raw(
        attacked,
        "POST /api/uploads?name=large.pdf HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {100 * 2**20 + 1}",
    )
    assert answer.split()[1] == b"413"
    large = (b"%PDF-1.4\n" + b" " * 2**20 for _ in range(101))
    is_refused(attacked.client.post("/api/uploads", params={"name": "large.pdf"}, content=large), 413)
    vectors = attacked.client.post("/pooling", content=b"x" * (32 * 2**20 + 1), headers=json_type)
    assert vectors.status_code == 413


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b'{"query": "a"} x', b"[" * 5000, b"[]", b'"tax"'])
def test_malformed_json_is_refused(attacked, body):
    answer = attacked.client.post("/api/search", content=body, headers={"Content-Type": "application/json"})
    is_refused(answer, 400, 422)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_wrong_content_type_is_refused(attacked, kind):
    """A form of another site can send these without asking."""
    headers = {"Content-Type": kind} if kind else {}
    answer = attacked.client.post("/api/search", content=b'{"query": "tax"}', headers=headers)
    is_refused(answer, 415, 422)


def test_a_slow_or_partial_upload_blocks_nobody_and_leaves_nothing(attacked, folder):
    head = b"POST /api/uploads?name=cut.pdf HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    with attacked.connect() as first, attacked.connect() as second:
        first.sendall(head + b"%PDF-1.4")
        second.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        started = time.monotonic()
        assert len(attacked.search("tax")) == 2
        assert time.monotonic() - started < 10
    wait_for(lambda: not list((folder / "lib" / "uploads").glob("*.part")))
    assert "cut.pdf" not in attacked.documents()


def test_too_many_uploads_at_once_are_refused(attacked):
    head = b"POST /api/uploads?name=slow.pdf HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    asked = {"url": "/api/uploads?name=empty.pdf", "content": b""}
    with ExitStack() as stack:

        def is_full() -> bool:  # our own question takes a place for a moment, so that others may be refused
            stack.enter_context(attacked.connect()).sendall(head + b"%PDF-1.4")
            return attacked.client.post(**asked).status_code == 429

        wait_for(is_full)
        assert len(attacked.search("tax")) == 2
    wait_for(lambda: attacked.client.post(**asked).status_code == 400)


# -- other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_can_change_nothing(attacked, tmp_path, headers):
    content = make_pdf(tmp_path, "x")
    is_refused(attacked.client.post("/api/uploads", params={"name": "a.pdf"}, content=content, headers=headers), 403)
    id = attacked.documents()["report.pdf"]["id"]
    is_refused(attacked.client.delete(f"/api/documents/{id}", headers=headers), 403)
    assert attacked.client.post("/mcp", json={}, headers=headers).status_code == 403
    assert "report.pdf" in attacked.documents()


def test_a_page_of_this_service_may(attacked):
    headers = {"Origin": attacked.url, "Sec-Fetch-Site": "same-origin"}
    assert attacked.client.post("/api/search", json={"query": "tax"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "localhost@evil.example:80"]
)
def test_names_that_lead_here_by_dns_rebinding_are_refused(attacked, host):
    for path in ("/api/documents", "/", "/mcp", "/v1/models"):
        answer = send_raw(attacked, f"GET {path} HTTP/1.1", f"Host: {host}")
        assert answer.split()[1] == b"400", (path, answer[:300])


def test_names_of_this_machine_are_answered(attacked):
    for host in ("localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"):
        assert attacked.client.get("/api/documents", headers={"Host": host}).status_code == 200
