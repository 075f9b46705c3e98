"""A full disk: documents are refused with 507 in one line, searches work, and adding goes on once there is room."""

from __future__ import annotations

import errno

import pytest

from randslot.errors import DiskFullError
from randslot.serve import uploads
from randslot.serve.uploads import UploadLimits
from support.services import client_of, pdf, serving, upload, wait_for

LIMITS = UploadLimits(retry_seconds=0.1)


def refuse(*_: object, **__: object) -> None:
    raise DiskFullError("the disk of /secret/place is full")


def test_an_upload_for_which_there_is_no_room_is_507(tmp_path, monkeypatch):
    with serving(tmp_path / "lib", None) as service:
        client = client_of(service)
        upload(client, "first.pdf", pdf(tmp_path, 1))
        with monkeypatch.context() as full:
            full.setattr(uploads, "check_space", refuse)
            answer = client.post("/api/uploads?name=second.pdf", content=pdf(tmp_path, 2))
            assert (answer.status_code, "/secret" in answer.text) == (507, False)
            assert "full" in answer.json()["error"]
            assert client.post("/api/search", json={"query": "page"}).status_code == 200
        assert upload(client, "second.pdf", pdf(tmp_path, 2))["state"] == "done"


def test_a_disk_that_fills_up_while_a_body_comes_is_507(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serving(tmp_path / "lib", None) as service:
        client = client_of(service)
        monkeypatch.setattr(uploads.os, "fsync", fail)
        answer = client.post("/api/uploads?name=a.pdf", content=pdf(tmp_path, 1))
        assert (answer.status_code, "full" in answer.json()["error"]) == (507, True)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not list(service.uploads.folder.iterdir())
        monkeypatch.undo()


def test_an_upload_waits_until_there_is_room(tmp_path, monkeypatch):
    with serving(tmp_path / "lib", None, upload_limits=LIMITS) as service:
        client = client_of(service)
        with monkeypatch.context() as full:
            full.setattr(service.library, "add", refuse)
            answer = client.post("/api/uploads?name=a.pdf", content=pdf(tmp_path, 1))
            job = f"/api/uploads/{answer.json()['id']}"
            wait_for(lambda: "full" in (client.get(job).json()["error"] or ""))
        wait_for(lambda: client.get(job).json()["state"] == "done")
        assert client.get(job).json()["error"] is None


@pytest.mark.filterwarnings("ignore")
def test_an_error_of_ours_is_json_too(tmp_path, monkeypatch, caplog):
    with serving(tmp_path / "lib", None) as service:
        monkeypatch.setattr(service.library, "status", lambda: 1 / 0)
        answer = client_of(service).get("/api/status")
    assert (answer.status_code, answer.json()) == (500, {"error": "internal server error; see the server log"})
    assert "ZeroDivisionError" in caplog.text
