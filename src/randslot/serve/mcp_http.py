"""/mcp of a service: the tools of agents over HTTP, behind the same guard as the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from ..errors import BusyError, first_line
from ..library.library import Library
from ..library.manifest import File
from ..library.results import QueryResult
from .access import BUSY, Refused
from .agent_tools import AgentTools
from .service import Options, Service

LOG = logging.getLogger("randslot")


class ServiceTools(AgentTools):
    """The tools on the library of a service: searches join the batches of all others, pages are drawn with limits."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.add_from if service.uploads is not None else ())
        self.service = service

    @contextmanager
    def use(self) -> Iterator[Library]:
        try:
            yield self.service.library
        except (BusyError, TimeoutError) as error:
            LOG.warning("refused for now: %s", error)  # it may name the server, which is not for visitors
            raise Refused(503, BUSY) from error

    def find(self, query: str, k: int, document: File | None) -> QueryResult:
        sources = None if document is None else frozenset([document.source])
        with self.use():
            return self.service.searches.ask(Options(k, sources, collapse=True), query).result(60)

    def draw(self, file: File, number: int, pixels: int) -> Image.Image:
        path = str(self.service.check_file(file))
        return self.service.threads.submit(self.service.pool.render, path, number, pixels).result()

    def link(self, file: File, page: int, base: str) -> str:
        return f"{base}/?open={file.id}:{page}"


class McpEndpoint:
    """Answers at /mcp; a missing or broken package breaks only this address.

    Importing mcp takes most of a second, so that waits for the first agent.
    """

    def __init__(self, service: Service) -> None:
        self.tools = ServiceTools(service)
        self.server: Any = None
        self.lock = asyncio.Lock()

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.tools.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            async with self.lock:
                if self.server is None:
                    self.server = await asyncio.to_thread(self._make_server)
        except Exception as error:
            reason = f"the package mcp does not work here: {first_line(error)}"
            if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "mcp":
                reason = f'agents need the package mcp here: pip install "randslot[mcp]" ({first_line(error)})'
            LOG.warning("%s", reason)
            await JSONResponse({"error": reason}, 501)(scope, receive, send)
            return
        from .mcp_server import answer_http

        await answer_http(self.server, scope, receive, send)

    def _make_server(self) -> Any:
        from .mcp_server import make_server

        def find_base(call: Any) -> str:
            """Return the address at which a visitor has reached the service."""
            return str(call.request_context.request.base_url).rstrip("/")

        def can_write(call: Any) -> bool:
            return bool(call.request_context.request.scope["can_write"])

        return make_server(self.tools, find_base, can_write, show_paths=False)


def add_mcp_route(app: Starlette, service: Service) -> None:
    """Add /mcp to an app."""
    endpoint = McpEndpoint(service)
    app.router.routes.append(Route("/mcp", endpoint, methods=["POST"], include_in_schema=False))
    app.router.lifespan_context = endpoint.lifespan
