"""A library that is served: through its app, and on a real port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from randslot.library.library import Library
from randslot.model.reader import PageReader
from randslot.serve.access import Access
from randslot.serve.app import make_app
from randslot.serve.run import LimitedProtocol
from randslot.serve.service import Service
from support.pdf import write_pdf

TOKEN = "a-token-of-many-letters"


HOME = "http://127.0.0.1"


SCRIPT = "<img src=x onerror=alert(1)>.png"  # a file may be called so, and is indexed


@contextmanager
def serving(folder: Path, model: PageReader | None, **options: Any) -> Iterator[Service]:
    with Library(folder, model) as library:
        service = Service(library, **options)
        try:
            yield service
        finally:
            service.close()


def client_of(service: Service, access: Access | None = None) -> TestClient:
    return TestClient(make_app(service, access or Access()), base_url=HOME, raise_server_exceptions=False)


@contextmanager
def listening(service: Service, access: Access | None = None) -> Iterator[str]:
    """Serve on a real port, in a thread, and yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(make_app(service, access or Access()), http=LimitedProtocol, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"{HOME}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def documents(client: TestClient) -> dict[str, dict]:
    return {one["name"]: one for one in client.get("/api/documents").json()["documents"]}


def wait_for(condition: Callable[[], object], seconds: float = 120) -> object:
    """Wait until something is so, and return what it is."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
    return found


def upload(client: TestClient, name: str, content: bytes) -> dict:
    """Upload a file and wait until it is done or has failed."""
    answer = client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == 202, answer.text
    id = answer.json()["id"]

    def over() -> dict | None:
        job = client.get(f"/api/uploads/{id}").json()
        return job if job["state"] in ("done", "failed") else None

    return wait_for(over)


def pdf(folder: Path, num_pages: int, size: tuple[int, int] = (200, 280)) -> bytes:
    write_pdf(folder / "made.pdf", num_pages, [], size=size)
    return (folder / "made.pdf").read_bytes()
