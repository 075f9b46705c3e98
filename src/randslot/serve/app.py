"""The web app: error handling, static pages, sessions and status; other modules add the other routes."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException  # the base class of FastAPI's own
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..errors import BusyError, DiskFullError, RandSlotError, first_line
from ..extras import describe_missing
from ..library.results import By
from .access import BUSY, COOKIE, FULL, SESSION_SECONDS, Access, Guard, Refused, describe_error, list_pages
from .agent_tools import ServiceTools
from .documents import add_document_routes, add_upload_routes
from .embeddings import add_embedding_routes
from .searches import add_search_routes
from .service import Service

LOG = logging.getLogger("randslot")


class SessionBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    token: str = Field(max_length=1000)


class ErrorAnswer(BaseModel):
    error: str


class Status(BaseModel):
    library: str
    documents: int
    pages: int
    bytes: int = Field(description="on disk; of a library on a server, of its vectors only")
    bytes_per_page: int
    vector_bytes_per_page: int
    model: str | None = Field(description="null for a library without vectors")
    by: By = Field(description="what searches compare by default")
    language: str | None = Field(description="of most pages; null if no page has text")
    languages: list[str] = Field(description="most frequent first")
    pages_with_text: int
    notes: list[str] = Field(description="notes for people who search")
    page_vectors: int | None = Field(description="null if pages differ")
    query_vectors: int | None = Field(description="null if queries differ")
    dimension: int
    read_only: bool
    uploads_waiting: int
    signed_in: bool = Field(description="by a cookie; DELETE /api/session signs out")


class Health(BaseModel):
    status: Literal["ok"] = "ok"


def make_app(service: Service, access: Access) -> FastAPI:
    """Create the app of a service."""
    app = FastAPI(
        title="RandSlot",
        version=__version__,
        description='Search a library of documents and images. Errors are JSON of the form `{"error": "one line"}`.',
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if access.tokens else [],
        responses={
            status: {"model": ErrorAnswer, "description": "request refused, with the reason"}
            for status in (422, "4XX", "5XX")
        },
    )
    _add_errors(app, service)
    add_search_routes(app, service)  # first: routes are matched in this order
    for path, file in list_pages().items():
        _add_page(app, path, file)
    add_document_routes(app, service)
    add_upload_routes(app, service)
    _add_state(app, service, access)
    add_embedding_routes(app, service.embeddings)
    app.router.routes.append(Route("/mcp", Mcp(service), methods=["POST"], include_in_schema=False))
    for route in list(app.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)
    app.add_middleware(Guard, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


def _add_errors(app: FastAPI, service: Service) -> None:
    def answer(request: Request, error: Exception) -> JSONResponse:
        status, reason, headers = 400, str(error), None
        if isinstance(error, Refused):
            status = error.status
        elif isinstance(error, DiskFullError):
            LOG.warning("%s", error)  # it names a folder
            status, reason = 507, FULL
        elif isinstance(error, BusyError):
            LOG.warning("temporarily refused: %s", error)  # names the server: not for clients
            status, reason = 503, BUSY
        elif isinstance(error, HTTPException):
            status, reason, headers = error.status_code, str(error.detail).lower(), error.headers
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            hint = ": send JSON with Content-Type: application/json" if first["loc"] == ("body",) else ""
            where = ".".join(str(part) for part in first["loc"][1:]) or "body"
            status, reason = 422, f"{where[:80]}: {first['msg'][:150]}{hint}"
        else:
            reason = reason.replace(service.library.name, service.library.folder.absolute().name)
        return JSONResponse(describe_error(request.url.path, status, reason), status, headers)

    for kind in (RandSlotError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)


def _add_page(app: FastAPI, path: str, file: Path) -> None:
    @app.get(path, include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(file, headers={"cache-control": "no-cache"})


def _add_state(app: FastAPI, service: Service, access: Access) -> None:
    @app.get("/api/health", tags=["service"])
    async def health() -> Health:
        """Check that the whole library answers; needs no token."""
        if not await service.is_reachable():
            raise Refused(503, "searches fail: the library, or part of it, is unreachable")
        return Health()

    @app.get("/api/live", tags=["service"])
    async def live() -> Health:
        """Check that the service runs, regardless of its library; needs no token."""
        return Health()

    @app.get("/api/status", tags=["service"])
    def status(request: Request) -> Status:
        """Show what the library holds, and its model."""
        library, uploads = service.library, service.uploads
        found, model = library.status(), library.binding
        return Status(
            library=library.folder.absolute().name,
            documents=found.files,
            pages=found.pages,
            bytes=found.bytes,
            bytes_per_page=found.bytes_per_page,
            vector_bytes_per_page=found.vector_bytes_per_page,
            model=Path(model.name or "a model in memory").name if model else None,
            page_vectors=model.num_vectors("page") if model else 0,
            query_vectors=model.num_vectors("query") if model else 0,
            dimension=model.dimension if model else 0,
            by=library.choose_by(),
            language=found.language,
            languages=list(found.languages),
            pages_with_text=found.with_text,
            notes=list(found.notes),
            read_only=uploads is None or not request.scope["can_write"],
            uploads_waiting=uploads.num_waiting() if uploads else 0,
            signed_in=COOKIE in request.cookies,
        )

    @app.post("/api/session", status_code=204, tags=["service"])
    def begin(body: SessionBody, request: Request, response: Response) -> None:
        """Exchange a token for a session cookie."""
        if not access.tokens:
            return
        name = access.find_token(body.token, request)
        if name is None:
            raise Refused(401, "wrong token")
        response.set_cookie(
            COOKIE,
            access.begin_session(name),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    @app.delete("/api/session", status_code=204, tags=["service"])
    def end(request: Request, response: Response) -> None:
        """End the session."""
        if access.find_session(cookie := request.cookies.get(COOKIE, "")):
            access.ended.add(cookie)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")


class Mcp:
    """The /mcp route. It imports the package mcp, which takes most of a second, at the first request."""

    def __init__(self, service: Service) -> None:
        self.tools, self.lock = ServiceTools(service), asyncio.Lock()
        self.server: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self.lock:
                mcp_server = await asyncio.to_thread(import_module, ".mcp_server", __package__)
                self.server = self.server or mcp_server.make_server(self.tools)
        except Exception as error:  # a broken package breaks only this route
            reason = describe_missing(error) if isinstance(error, ModuleNotFoundError) else ""
            reason = reason or f"the package mcp does not work here: {first_line(error)}"
            LOG.warning("%s", reason)
            await JSONResponse({"error": reason}, 501)(scope, receive, send)
            return
        await mcp_server.answer_http(self.server, scope, receive, send)
