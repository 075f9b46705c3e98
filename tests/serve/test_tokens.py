"""Tokens with names, rights and a last day; sessions that end; a brake on guesses."""

from __future__ import annotations

import logging
import re
from datetime import UTC, date, datetime, timedelta

import pytest

from randslot.errors import UsageError
from randslot.serve import access
from randslot.serve.access import COOKIE, Access, Token, read_tokens
from support.services import TOKEN, client_of, documents, pdf, serving, upload

READ, WRITE, OLD = "only-for-reading-1", "for-everything-22", "of-yesterday-3333"
TODAY = datetime.now(UTC).date()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    with serving(folder / "lib", None) as service:
        upload(client_of(service), "a.pdf", pdf(folder, 1))
        yield service


@pytest.fixture
def client(service):
    tokens = {
        "ann": Token(token=READ),
        "bob": Token(token=WRITE, rights="write", expires=TODAY),
        "cy": Token(token=OLD, rights="write", expires=TODAY - timedelta(1)),
    }
    return client_of(service, Access(TOKEN, tokens=tokens))


def test_a_token_that_may_read_cannot_change_anything(client, tmp_path, caplog):
    caplog.set_level(logging.INFO, "randslot")
    client.headers.update(bearer(READ))
    id = documents(client)["a.pdf"]["id"]
    assert client.post("/api/search", json={"query": "page"}).status_code == 200
    assert client.get("/api/status").json()["read_only"]
    for answer in (
        client.post("/api/uploads?name=b.pdf", content=pdf(tmp_path, 2)),
        client.delete(f"/api/documents/{id}"),
        client.delete(f"/api/uploads/{id}"),
    ):
        assert (answer.status_code, answer.json()["error"]) == (403, "the token ann is read-only")
    client.headers.update(bearer(WRITE))
    assert not client.get("/api/status").json()["read_only"]
    assert upload(client, "b.pdf", pdf(tmp_path, 2))["state"] == "done"
    assert "bob: POST /api/uploads" in caplog.text
    assert WRITE not in caplog.text


def test_a_token_is_refused_after_its_last_day_and_the_simple_one_works(client):
    assert client.get("/api/status", headers=bearer(OLD)).status_code == 401
    assert client.post("/api/session", json={"token": OLD}).status_code == 401
    assert client.get("/api/status", headers=bearer(TOKEN)).status_code == 200


def test_a_session_ends(client, monkeypatch):
    client.post("/api/session", json={"token": READ})
    cookie = client.cookies[COOKIE]
    assert client.get("/api/status").json()["signed_in"]
    assert client.delete("/api/session").status_code == 204
    assert COOKIE not in client.cookies
    assert client.get("/api/status", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 401
    monkeypatch.setattr(access, "SESSION_SECONDS", -1)
    client.post("/api/session", json={"token": READ})
    assert client.get("/api/status").status_code == 401


def test_a_session_cannot_be_made_longer(client):
    client.post("/api/session", json={"token": READ})
    ends, _, signature = client.cookies[COOKIE].partition(".")
    client.cookies.clear()
    for value in (f"{int(ends) + 1}.{signature}", f"{ends}.{signature[:-1]}", ends, f"{ends}.", "9" * 5000):
        assert client.get("/api/status", headers={"Cookie": f"{COOKIE}={value}"}).status_code == 401


def test_many_guesses_are_refused(client):
    statuses = [client.post("/api/session", json={"token": f"guess {i}"}).status_code for i in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert client.post("/api/session", json={"token": TOKEN}).status_code == 429
    assert client.get("/api/status", headers=bearer(TOKEN)).status_code == 200


def test_a_file_of_tokens(tmp_path):
    file = tmp_path / "tokens.toml"
    file.write_text(f'[ann]\ntoken = "{READ}"\n[bob]\ntoken = "{WRITE}"\nrights = "write"\nexpires = 2027-01-31\n')
    assert read_tokens(str(file)) == {
        "ann": Token(token=READ),
        "bob": Token(token=WRITE, rights="write", expires=date(2027, 1, 31)),
    }


@pytest.mark.parametrize(
    ("content", "offending"),
    [
        ('[ann]\ntoken = "short"', "ann.token"),
        ('[ann]\nrights = "write"', "ann.token"),
        (f'[ann]\ntoken = "{READ}"\nrights = "all"', "ann.rights"),
        (f'[ann]\ntoken = "{READ}"\nexpires = "soon"', "ann.expires"),
        (f'[ann]\ntoken = "{READ}"\nright = "read"', "ann.right"),
        ("[ann", "tokens.toml"),
        ("", "tokens.toml has no token"),
    ],
)
def test_a_wrong_file_of_tokens_is_one_line_without_the_token(tmp_path, content, offending):
    file = tmp_path / "tokens.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=re.escape(offending)) as refused:
        read_tokens(str(file))
    assert "\n" not in str(refused.value)
    assert READ not in str(refused.value)
    with pytest.raises(UsageError, match="nowhere"):
        read_tokens(str(tmp_path / "nowhere"))
