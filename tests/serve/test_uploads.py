"""One upload, whatever it is, does not stop the others: turns, budgets, attempts, cancelling, and a quick end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import httpx2
import pytest

from randslot.files import read_json, write_json
from randslot.library import workers
from randslot.library.library import Library
from randslot.serve.uploads import UploadLimits
from support.services import client_of, documents, pdf, serving, upload, wait_for

pytestmark = pytest.mark.xdist_group("uploads")
TURNS = UploadLimits(turn_seconds=0.01, page_seconds=600)  # shorter than any machine needs for a page


def send(client, name: str, content: bytes) -> str:
    answer = client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def state(client, id: str) -> str:
    return client.get(f"/api/uploads/{id}").json()["state"]


def test_a_slow_upload_lets_others_come_first_and_can_be_cancelled(tmp_path, slow):
    with serving(tmp_path / "lib", None, upload_limits=TURNS) as service:
        client = client_of(service)
        first = send(client, "slow.pdf", slow)
        wait_for(lambda: state(client, first) == "reading")
        assert upload(client, "quick.pdf", pdf(tmp_path, 2))["state"] == "done"
        assert state(client, first) in ("waiting", "reading")
        assert client.delete(f"/api/uploads/{first}").status_code == 204
        wait_for(lambda: not (service.uploads.folder / "slow.pdf").exists())
        assert state(client, first) == "cancelled"
        assert client.delete(f"/api/uploads/{first}").status_code == 409
        assert set(documents(client)) == {"quick.pdf"}
        assert upload(client, "next.pdf", pdf(tmp_path, 3))["state"] == "done"
        assert not service.library.manifest.find(state="pending")


def test_what_a_file_took_does_not_count_for_the_next_of_its_name(tmp_path):
    with serving(tmp_path / "lib", None) as service:
        client = client_of(service)
        assert upload(client, "a.pdf", pdf(tmp_path, 2))["state"] == "done"
        wait_for(lambda: not service.uploads.used, 5)


def test_an_upload_that_waits_can_be_cancelled(tmp_path, slow):
    with serving(tmp_path / "lib", None) as service:
        client = client_of(service)
        first = send(client, "slow.pdf", slow)
        wait_for(lambda: state(client, first) == "reading")
        second = send(client, "quick.pdf", pdf(tmp_path, 2))
        assert client.delete(f"/api/uploads/{second}").status_code == 204
        assert state(client, second) == "cancelled"
        assert [file.name for file in service.uploads.folder.iterdir()] == ["slow.pdf"]
        client.delete(f"/api/uploads/{first}")


def test_the_pages_of_a_file_have_a_budget_together(tmp_path, slow, monkeypatch):
    monkeypatch.setattr(workers, "FILE_SECONDS", 0.0)
    (tmp_path / "slow.pdf").write_bytes(slow)
    (tmp_path / "quick.pdf").write_bytes(pdf(tmp_path, 2))
    (tmp_path / "made.pdf").unlink()
    monkeypatch.setattr(workers.WorkerPool.__init__, "__defaults__", (2.0, 120.0))
    with Library(tmp_path / "lib") as library:
        summary = library.add(tmp_path, workers=1)
    assert [os.path.basename(source) for source in summary.added] == ["quick.pdf"]
    (reason,) = summary.failed.values()
    assert "took more than 2 s in total" in reason


def test_an_upload_that_ended_the_service_three_times_fails(tmp_path):
    folder = tmp_path / "lib" / "uploads"
    with Library(tmp_path / "lib"):
        folder.mkdir()
    for name, num in (("bad.pdf", 1), ("again.pdf", 2)):
        (folder / name).write_bytes(pdf(tmp_path, num))
    write_json(tmp_path / "lib" / "uploads.json", {"bad.pdf": 3, "again.pdf": 2})
    with serving(tmp_path / "lib", None) as service:
        client = client_of(service)
        wait_for(lambda: not service.uploads.num_waiting())
        jobs = {job["name"]: job for job in client.get("/api/uploads").json()["uploads"]}
    assert jobs["again.pdf"]["state"] == "done"
    assert (jobs["bad.pdf"]["state"], "crashed 3 times" in jobs["bad.pdf"]["error"]) == ("failed", True)
    assert [file.name for file in folder.iterdir()] == ["again.pdf"]
    assert read_json(tmp_path / "lib" / "uploads.json") == {}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_service_ends_in_time_and_its_workers_with_it(tmp_path, slow, how):
    command = [sys.executable, "-m", "randslot", "serve", "-l", str(tmp_path / "lib"), "--new", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split(" at ")[1].split()[0]
        with httpx2.Client(base_url=address, timeout=30) as client:
            id = send(client, "slow.pdf", slow)
            wait_for(lambda: state(client, id) == "reading")
            time.sleep(1)
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            assert children
        started = time.monotonic()
        process.send_signal(how)
        code = process.wait(30)
        assert time.monotonic() - started < 10
        wait_for(lambda: not any(os.path.exists(f"/proc/{child}/cmdline") for child in children), 10)
    assert code == (0 if how == signal.SIGTERM else -signal.SIGKILL)
    attempts = read_json(tmp_path / "lib" / "uploads.json")
    assert attempts == ({} if how == signal.SIGTERM else {"slow.pdf": 1})
    assert (tmp_path / "lib" / "uploads" / "slow.pdf").is_file()
