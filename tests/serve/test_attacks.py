"""What must not be possible: each attempt is a 4xx with a clear message, and the service goes on."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import zlib
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from randslot.serve import access as guard
from randslot.serve import uploads
from randslot.serve.access import COOKIE, HEADERS, Access, UploadLimits
from support.libraries import ToyReader
from support.services import TOKEN, client_of, documents, listening, pdf, serving, upload, wait_for

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


# -- paths


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2f..%2fetc/passwd",
        "/page.css/../../../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/documents/..%2f..%2f..%2fetc%2fpasswd/file",
        "/api/documents/%2fetc%2fpasswd/file",
        "/api/documents/alpha.pdf/file",
        "/api/documents/ALPHA/pages/..%2f..%2ffile/image",
        "/api/documents/ALPHA/pages/0/image",
        "/api/documents/ALPHA/pages/-1/image",
        "/api/documents/ALPHA/pages/4/image",
        "/api/documents/ALPHA/pages/99999999999999999999/image",
        "/api/documents/ALPHA/pages/1/image?size=../../x",
        "/api/documents/00000000-0000-0000-0000-000000000000/file",
    ],
)
def test_nothing_is_reached_by_a_path(client, path):
    answer = client.get(path.replace("ALPHA", documents(client)["alpha.pdf"]["id"]))
    assert answer.status_code in (404, 422)
    refused(answer, answer.status_code)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.pdf",
        "../../../../tmp/evil.pdf",
        "/tmp/evil.pdf",
        "..",
        ".",
        "evil\0.pdf",
        "<script>alert(1)</script>.pdf",
        "x" * 252 + ".pdf",
        "ä" * 126 + ".pdf",
    ],
)
def test_names_that_no_file_has_are_refused(client, service, tmp_path, name):
    before = sorted(service.library.folder.parent.rglob("*.pdf"))
    refused(client.post("/api/uploads", params={"name": name}, content=pdf(tmp_path, 1)), 400, "name")
    assert sorted(service.library.folder.parent.rglob("*.pdf")) == before


def test_a_file_that_is_gone_says_so_without_its_path(client, service, tmp_path):
    upload(client, "gone.pdf", pdf(tmp_path, 1, (150, 150)))
    id = documents(client)["gone.pdf"]["id"]
    (service.uploads.folder / "gone.pdf").unlink()
    for answer in (client.get(f"/api/documents/{id}/file"), client.get(f"/api/documents/{id}/pages/1/image")):
        refused(answer, 404, "file")
        assert "/" not in answer.json()["error"]


# -- uploads


def png(width: int, height: int) -> bytes:
    """Return a PNG that says it is so large, and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def test_an_oversized_upload_is_refused_by_its_length_and_by_its_bytes(tmp_path):
    content = pdf(tmp_path, 1) + b" " * 2**20
    parts = (content[start : start + 1000] for start in range(0, len(content), 1000))  # sent without a length
    with serving(tmp_path / "lib", ToyReader(), upload_limits=UploadLimits(bytes=2**20)) as service:
        client = client_of(service)
        for body in (content, parts):
            refused(client.post("/api/uploads", params={"name": "large.pdf"}, content=body), 413, "larger than 1 MB")
        assert not list(service.uploads.folder.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "status", "word"),
    [
        ("page.pdf", b"<html><script>alert(1)</script></html>", 415, ".pdf"),
        ("page.pdf", png(10, 10), 415, ".pdf"),
        ("page.png", b"%PDF-1.4 and so on", 415, ".png"),
        ("page.jpg", b"GIF89a", 415, ".jpg"),
        ("page.tif", b"II", 415, ".tif"),
        ("page.pdf", b" " * 2000 + b"%PDF-1.4", 415, ".pdf"),
        ("page.html", b"<html>", 415, "only PDFs"),
        ("page.svg", b"<svg/>", 415, "only PDFs"),
        ("page.exe", b"MZ", 415, "only PDFs"),
        ("page", b"%PDF-1.4", 415, "only PDFs"),
        ("page.pdf", b"", 400, "empty"),
    ],
)
def test_a_mislabelled_upload_is_refused(client, name, content, status, word):
    refused(client.post("/api/uploads", params={"name": name}, content=content), status, word)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "tiff", "bmp", "gif"])
def test_a_rightly_labelled_one_is_not(kind):
    buffer = BytesIO()
    Image.new("RGB", (20, 20)).save(buffer, kind)
    uploads.check_head(f"page.{kind}", buffer.getvalue())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.png", png(60_000, 60_000)),
        ("torn.png", png(100, 100)[:60]),
        ("junk.pdf", b"%PDF-1.4\n" + bytes(range(256)) * 50),
    ],
)
def test_an_upload_that_harms_fails_alone(client, name, content):
    job = upload(client, name, content)
    assert job["state"] == "failed"
    assert job["error"]


def test_an_upload_that_is_cut_off_leaves_nothing(service, capsys):
    head = b"POST /api/uploads?name=cut.pdf HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    with listening(service) as address, socket.create_connection((HOST, int(address.rpartition(":")[2]))) as visitor:
        visitor.sendall(head + b"%PDF-1.4")
        wait_for(lambda: service.uploads.coming)
        visitor.close()
        wait_for(lambda: not service.uploads.coming)
    assert "Traceback" not in capsys.readouterr().err


def test_too_many_uploads_are_refused(tmp_path):
    with serving(tmp_path / "lib", ToyReader(), upload_limits=UploadLimits(waiting=0)) as service:
        answer = client_of(service).post("/api/uploads", params={"name": "a.pdf"}, content=pdf(tmp_path, 1))
        refused(answer, 429, "0 uploads are in progress: wait")


# -- bodies


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b'{"query": "a"} x', b"[" * 5000])
def test_malformed_json_is_refused(client, body):
    answer = client.post("/api/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    refused(answer, answer.status_code)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "query is missing"),
        ([], "the body must be a JSON object"),
        ("tax", "the body must be a JSON object"),
        ({"query": ""}, "query must not be empty"),
        ({"query": " \n"}, "query must not be empty"),
        ({"query": 5}, "query must be text"),
        ({"query": "\ud800"}, "query has characters that are not valid text"),
        ({"query": "x" * 1001}, "query must have at most 1000 characters"),
        ({"query": "tax", "k": 0}, "k must be at least 1"),
        ({"query": "tax", "k": 10**9}, "k must be at most 100"),
        ({"query": "tax", "k": "5"}, "k must be a whole number"),
        ({"query": "tax", "exact": 1}, "exact must be true or false"),
        ({"query": "tax", "source": "x" * 301}, "source must have at most 300 characters"),
        ({"query": "tax", "filter": {}}, "filter is not known here"),
        ({"query": "tax", "offset": 401}, "offset must be at most 400"),
        ({"query": "tax", "modified_from": "yesterday"}, "modified_from must be a day as in 2024-01-31"),
        ({"query": "tax", "metadata": 5}, "metadata must be a JSON object"),
        ({"query": "tax", "metadata": {str(i): i for i in range(21)}}, "metadata must have at most 20 entries"),
    ],
)
def test_wrong_values_are_refused(client, body, reason):
    answer = client.post("/api/search", content=json.dumps(body), headers={"Content-Type": "application/json"})
    refused(answer, 422)
    assert answer.json() == {"error": reason}


def test_a_body_without_its_header_is_told_which(client):
    refused(client.post("/api/search", content=b'{"query": "tax"}'), 422, "Content-Type: application/json")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/documents/x", "id must be an id"),
        ("/api/documents?limit=many", "limit must be a whole number"),
        (
            "/api/documents/00000000-0000-0000-0000-000000000000/pages/1/image?size=huge",
            "size must be 'small', 'large' or 'full'",
        ),
    ],
)
def test_wrong_addresses_are_refused_in_our_words(client, path, reason):
    refused(client.get(path), 422, reason)


def test_a_query_of_a_megabyte_is_refused(client):
    body = json.dumps({"query": "x" * 2**20}).encode()
    refused(client.post("/api/search", content=body), 413, "64 KB")
    parts = (body[start : start + 5000] for start in range(0, len(body), 5000))
    refused(client.post("/api/search", content=parts), 413, "64 KB")


def test_a_wrong_method_is_refused(client):
    refused(client.delete("/api/documents"), 405)


# -- visitors


PRIVATE = ["/api/status", "/api/documents", "/api/uploads", "/api/nothing", "/api/health/../status"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer \xe4".encode("latin-1")},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f"{COOKIE}=\xe4; ;;=".encode("latin-1")},
    ],
)
def test_without_the_token_nothing_is_shown(service, headers):
    client = client_of(service, Access(TOKEN))
    for path in PRIVATE:
        refused(client.get(path, headers=headers), 401, "token")
    refused(client.post("/api/search", json={"query": "tax"}, headers=headers), 401, "token")
    refused(client.post("/api/uploads?name=a.pdf", content=b"%PDF-", headers=headers), 401, "token")
    for path in ("/", "/docs", "/openapi.json", "/api/health", "/api/live"):
        assert client.get(path, headers=headers).status_code == 200


def test_the_token_opens_as_a_header_and_as_a_cookie(service):
    client = client_of(service, Access(TOKEN))
    assert client.get("/api/status", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    refused(client.post("/api/session", json={"token": "wrong"}), 401, "not the token")
    answer = client.post("/api/session", json={"token": TOKEN})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 204
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/api/status").status_code == 200
    assert client.get("/api/status", headers={"Host": "library.example.org"}).status_code == 200


def test_tokens_are_compared_in_constant_time(service, monkeypatch):
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(guard, "hmac", type("Spy", (), {"compare_digest": compare, "digest": hmac.digest}))
    client_of(service, Access(TOKEN)).get("/api/status", headers={"Authorization": "Bearer wrong"})
    assert compared == [(b"wrong", TOKEN.encode())]


def test_other_names_of_this_machine_are_refused(client):
    """A page elsewhere may have its name lead to 127.0.0.1; the browser then sends that name."""
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "localhost@evil.example:80"):
        refused(client.get("/api/documents", headers={"Host": host}), 400, "localhost only")
    for host in ("localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"):
        assert client.get("/api/documents", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}]
    + [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")],
)
def test_a_page_elsewhere_can_change_nothing(client, tmp_path, headers):
    answer = client.post("/api/uploads", params={"name": "a.pdf"}, content=pdf(tmp_path, 1), headers=headers)
    refused(answer, 403, "elsewhere")


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_page_elsewhere_can_remove_nothing(client, headers):
    id = documents(client)["alpha.pdf"]["id"]
    refused(client.delete(f"/api/documents/{id}", headers=headers), 403, "elsewhere")
    assert "alpha.pdf" in documents(client)


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


def test_no_other_origin_may_read_unless_asked(service):
    asked = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
    body = {"query": "tax"}
    client = client_of(service)
    assert not [name for name in client.get("/api/status", headers=asked).headers if name.startswith("access-control")]
    refused(client.options("/api/search", headers=asked), 403)
    client = client_of(service, Access(origins=("https://friend.example",)))
    assert client.options("/api/search", headers=asked).status_code == 200
    answer = client.post("/api/search", json=body, headers={"Origin": "https://friend.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"
    refused(client.post("/api/search", json=body, headers={"Origin": "https://evil.example"}), 403)


def test_every_answer_has_the_strict_headers(client, papers: Path):
    id = documents(client)["alpha.pdf"]["id"]
    for path in ("/", "/docs", "/nothing", "/api/status", f"/api/documents/{id}/file"):
        headers = client.get(path).headers
        assert HEADERS.items() <= dict(headers).items()
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
