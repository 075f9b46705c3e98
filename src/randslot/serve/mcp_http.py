"""The library of a service for agents: /mcp, the Model Context Protocol over HTTP, behind the same guard as the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from ..agents.tools import Answers, add_one
from ..errors import BusyError, first_line
from ..library.manifest import File
from ..library.results import Hit, Summary
from .access import Refused, describe_error
from .service import Options, Service

PATH = "/mcp"
SEARCH_SECONDS = 60.0
MISSING = 'agents need the package mcp here: pip install "randslot[mcp]"'
LOG = logging.getLogger("randslot")


class ServiceLibrary:
    """A service as the tools of agents use it: searches wait together with all others, pages are drawn with limits."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def search(self, query: str, k: int, document: File | None) -> list[Hit]:
        source = None if document is None else frozenset([document.source])
        with _refusing():
            return self.service.searches.ask(query, Options(k, source, collapse=True)).result(SEARCH_SECONDS)

    def find_unknown(self, query: str, document: File | None) -> list[str]:
        filters = {} if document is None else {"source": frozenset([document.source])}
        with _refusing():
            return self.service.library.find_unknown(query, filters=filters)

    def count_without_text(self) -> int:
        with _refusing():
            return self.service.library.count_without_text()

    def files(self) -> list[File]:
        with _refusing():
            return self.service.library.manifest.find(state="done")

    def read_text(self, page: str) -> str:
        with _refusing():
            return self.service.library.read_text(page).text

    def draw(self, source: str, number: int, pixels: int) -> Image.Image:
        return self.service.threads.submit(self.service.pool.render, source, number, pixels).result()

    def add(self, file: Path) -> Summary:
        with _refusing():
            return add_one(self.service.library, file)

    def link(self, file: File, page: int, base: str) -> str:
        return f"{base}/?open={file.id}:{page}"


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (BusyError, TimeoutError) as error:
        LOG.warning("refused for now: %s", error)  # it may name the server, which is not for visitors
        raise Refused(503, "the library is out of reach or in use for now: try again later") from error


class McpEndpoint:
    """Answers at /mcp while the app runs; what is missing or broken breaks this address alone, and says why.

    The package mcp takes most of a second to import, so that is left until the first agent comes.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.server: Any = None
        self.reason = "the service is not ready yet: try again later"
        self.wanted: asyncio.Event | None = None
        self.decided = asyncio.Event()

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.wanted, self.decided = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(self._run(self.wanted))
        try:
            yield
        finally:
            self.wanted = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, wanted: asyncio.Event) -> None:
        """Wait for the first agent, then serve until cancelled: one task, as its task group must end where it began."""
        await wanted.wait()
        folders = self.service.add_from if self.service.uploads is not None else ()
        answers = Answers(ServiceLibrary(self.service), folders)
        try:
            http = await asyncio.to_thread(_make_server, answers)
            async with http.lifespan():
                self.server = http
                self.decided.set()
                await asyncio.Event().wait()
        except ModuleNotFoundError as error:
            self.reason = MISSING if str(error.name).partition(".")[0] == "mcp" else f"{MISSING}: {first_line(error)}"
        except Exception as error:  # a broken package must not stop the service
            self.reason = f"the package mcp does not work here: {first_line(error)}"
            LOG.warning("%s", self.reason)
        finally:
            self.server = None
            self.decided.set()
            answers.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.wanted is not None:
            self.wanted.set()
            await self.decided.wait()
        if self.server is None:
            await JSONResponse(describe_error(PATH, 501, self.reason), 501)(scope, receive, send)
            return
        await self.server(scope, receive, send)


def _make_server(answers: Answers) -> Any:
    from ..agents.mcp_server import HttpServer, make_server

    return HttpServer(make_server(answers, find_base, whole_paths=False))


def find_base(call: Any) -> str:
    """Return the address that a visitor has reached the service by, without a slash at its end."""
    request = call.request_context.request
    return "" if request is None else str(request.base_url).rstrip("/")


def add_mcp_route(app: Starlette, service: Service) -> None:
    """Add /mcp to an app."""
    endpoint = McpEndpoint(service)
    app.router.routes.append(Route(PATH, endpoint, methods=["POST"], include_in_schema=False))
    app.router.lifespan_context = endpoint.lifespan
