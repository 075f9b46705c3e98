"""The web app: routes of the page and the API, with their requests and responses. Knows FastAPI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException  # the base class of FastAPI's own
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..errors import BusyError, DiskFullError, RandSlotError, first_line
from ..library.facets import get_value, show_modified
from ..library.manifest import File, show_folder, show_name
from ..library.results import By, Hit, Match
from ..pages import KINDS, Box, Word
from ..words.snippets import Snippet
from .access import (
    BUSY,
    COOKIE,
    FULL,
    MAX_QUERY,
    SESSION_SECONDS,
    Access,
    Guard,
    Refused,
    Whole,
    describe_error,
    list_pages,
)
from .agent_tools import ServiceTools
from .embeddings import add_embedding_routes
from .service import (
    MAX_HITS,
    MAX_NAME,
    SEARCH_SECONDS,
    Choice,
    Explanation,
    Facets,
    Filters,
    ImageSize,
    Options,
    OutlineEntry,
    PageWords,
    Ranks,
    Service,
    Sort,
)
from .uploads import UploadJob, Uploads

LOG = logging.getLogger("randslot")
Side = Annotated[float, Query(ge=0, le=1, description="in fractions of the page")]
BINARY = {"schema": {"type": "string", "format": "binary"}}


# -- requests


QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, pattern=r"\S", examples=["revenue by region"])]


class SearchBody(Choice):
    query: QueryText
    k: Whole = Field(10, ge=1, le=MAX_HITS, description="number of pages")
    offset: Whole = Field(0, ge=0, le=400, description="pages to skip")
    exact: bool = Field(False, description="score every page, in a search by vectors")
    by: By | None = Field(None, description="default: both if available, else words")
    collapse: bool = Field(False, description="identical pages are one hit, which names its copies")
    verbatim: bool = Field(False, description="search as typed: correct no word that no page has")
    prefix: bool = Field(False, description="the last word may be incomplete, as while typing")
    group: Literal["document"] | None = Field(None, description="rank documents, each by its best page")
    boxes: bool = Field(False, description="where the words stand on the pages; takes some milliseconds a hit")


class ListQuery(Filters):
    sort: Sort = "name"
    order: Literal["up", "down"] = "up"
    offset: int = Field(0, strict=False, ge=0, le=2**31)
    limit: int = Field(100, strict=False, ge=1, le=1000)


class ExplainBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    query: QueryText
    document: UUID = Field(strict=False)
    page: Whole = Field(ge=1, le=2**31)


class WordsBody(ExplainBody):
    prefix: bool = Field(False, description="the last word may be incomplete, as while typing")
    vector: Whole = Field(0, ge=0, le=2**31, description="of the page, from 1, whose passage is to be shown too")


class RankBody(Choice, ExplainBody):
    pass


class SessionBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    token: str = Field(max_length=1000)


# -- responses


class ErrorAnswer(BaseModel):
    error: str


class Document(BaseModel):
    id: str
    name: str
    folder: str
    place: str = Field(description="the part of its folders that tells it from others of the same name, if any")
    pages: int
    bytes: int
    modified: datetime = Field(description="last change of the file; of an upload, when it was added")
    title: str = Field(description="as the file says; empty if it does not")
    author: str
    date: str = Field(description="as the file says, as in 2018-03-31; empty if it does not")
    year: str
    type: str = Field(description="pdf, document, slides, sheet, text, web, mail, book, image")
    language: str = Field(description="of most of its pages")
    uploaded: bool = Field(description="the library keeps the file itself, and deletes it with the document")
    metadata: dict[str, Any]
    file: str = Field(description="address of the file itself")


class Documents(BaseModel):
    total: int
    documents: list[Document]


class CopyAnswer(BaseModel):
    document: Document
    page: int


class HitAnswer(BaseModel):
    document: Document
    page: int
    score: float = Field(description="BM25 by words, MaxSim by vectors, a sum of normalised scores by both")
    by: By
    snippet: Snippet | None = Field(description="null if the page has no text; marks: where words begin and end")
    boxes: list[Box] = Field(description="if asked: left, top, right, bottom of marked words, in fractions of the page")
    best: Box | None = Field(description="the marked word to look at first")
    passage: list[Box] = Field(description="lines of the passage nearest in meaning, if the model reads in windows")
    fields: list[str] = Field(description="where words of the query are: name, folder, title, section, heading, text")
    matches: list[Match] = Field(description="for each query vector, the nearest page vector; both from 1")
    image: str = Field(description="address of the page's image")
    gone: bool = Field(description="the file is no longer on disk: there is its text, and no image")
    twin: str | None = Field(description="equal for hits of one search that are copies of one page")
    copies: list[CopyAnswer] = Field(description="identical pages, with `collapse`")


class SearchAnswer(BaseModel):
    hits: list[HitAnswer]
    unknown: list[str] = Field(description="words of the query that no page has; only with offset 0")
    corrected: str | None = Field(
        description="the query that was searched for, if words of the given one were corrected"
    )
    note: str | None = Field(description="what to know of the hits: filters, the time it took, or only similar pages")


class Completions(BaseModel):
    words: list[str] = Field(description="words that begin so, those on most pages first")
    names: list[str] = Field(description="names of documents that contain it")


class TextLayer(BaseModel):
    lines: list[list[Word]] = Field(description="words with their boxes, in fractions of the page")


class Outline(BaseModel):
    entries: list[OutlineEntry]


class SimilarAnswer(BaseModel):
    hits: list[HitAnswer]


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
    signed_in: bool = Field(description="by a cookie, which DELETE /api/session ends")


class UploadList(BaseModel):
    uploads: list[UploadJob]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


def make_app(service: Service, access: Access) -> FastAPI:
    """Make the app of a service."""
    app = FastAPI(
        title="RandSlot",
        version=__version__,
        description='Search a library of documents and images. Errors are JSON of the form `{"error": "one line"}`.',
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if access.tokens else [],
        responses={status: {"model": ErrorAnswer, "description": "refused, and why"} for status in (422, "4XX", "5XX")},
    )
    _add_errors(app, service)
    _add_searches(app, service)  # first: routes are looked through in this order
    for path, file in list_pages().items():
        _add_page(app, path, file)
    _add_documents(app, service)
    _add_uploads(app, service)
    _add_state(app, service, access)
    add_embedding_routes(app, service.embeddings)
    _add_mcp(app, service)
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
            LOG.warning("refused for now: %s", error)  # it names the server, which is not for visitors
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


def _add_searches(app: FastAPI, service: Service) -> None:
    @app.post("/api/search", tags=["search"])
    async def search(body: SearchBody) -> SearchAnswer:
        """Find pages, best first."""
        names = ("k", "exact", "by", "collapse", "offset", "verbatim", "prefix", "group", "boxes")
        options = Options(**{name: getattr(body, name) for name in names})
        found, documents = await service.search(body.query, options, body)
        hits = [_show_hit(hit, documents, service) for hit in found.hits]
        notes = [note for note in (found.filter_note, found.rerank_note) if note]
        if found.by == "vectors" and found.unknown and found.hits:
            notes.append("no page has these words: the pages found are only similar in meaning")
        if found.is_cut:
            notes.append(f"the search took longer than {SEARCH_SECONDS:g} s: some hits or snippets are missing")
        unknown = [] if body.offset else found.unknown
        note = "; ".join(notes) or None
        return SearchAnswer.model_construct(hits=hits, unknown=unknown, corrected=found.corrected or None, note=note)

    @app.get("/api/complete", tags=["search"])
    def complete(prefix: Annotated[str, Query(min_length=1, max_length=MAX_NAME)]) -> Completions:
        """Complete a word that is being typed: by words of pages, and by names of documents."""
        _, files = service.documents(Choice(name=prefix), "name", False, 0, 8)
        return Completions(words=service.library.complete(prefix), names=[show_name(file) for file in files])

    @app.post("/api/words", tags=["search"])
    def words(body: WordsBody) -> PageWords:
        """Find and count the words of a query on a page."""
        return service.find_words(body.query, str(body.document), body.page, body.prefix, body.vector)

    @app.post("/api/ranks", tags=["search"])
    async def ranks(body: RankBody) -> Ranks:
        """Rank a page by words and by vectors."""
        return await service.rank(body.query, str(body.document), body.page, body)

    @app.post("/api/explain", tags=["search"])
    def explain(body: ExplainBody) -> Explanation:
        """Explain the score of a page: each query vector against each page vector."""
        return service.explain(body.query, str(body.document), body.page)


def _show_hit(hit: Hit, documents: dict[str, File], service: Service) -> HitAnswer:
    copies = []
    for copy in hit.copies:
        if copy.file in documents:
            copies.append(CopyAnswer(document=_show_document(documents[copy.file], service), page=copy.page))
    return HitAnswer.model_construct(  # values of our own need no validation
        document=_show_document(documents[hit.file], service),
        page=hit.page,
        score=hit.score,
        by=hit.by,
        snippet=hit.snippet if hit.snippet and hit.snippet.text else None,
        boxes=list(hit.boxes),
        best=hit.best,
        passage=list(hit.passage),
        fields=list(hit.fields),
        matches=list(hit.matches),
        image=f"/api/documents/{hit.file}/pages/{hit.page}/image",
        gone=hit.gone,
        twin=hit.twin,
        copies=copies,
    )


def _show_document(file: File, service: Service) -> Document:
    facets: Any = {key: get_value(file, key) for key in ("title", "author", "date", "year", "type", "language")}
    return Document.model_construct(
        id=file.id,
        name=show_name(file),
        folder=show_folder(file),
        place=service.place(file),
        pages=file.num_pages,
        bytes=file.size,
        modified=show_modified(file),
        **facets,
        uploaded=file.source.startswith(service.own_folders),
        metadata=dict(file.metadata),
        file=f"/api/documents/{file.id}/file",
    )


def _add_documents(app: FastAPI, service: Service) -> None:
    @app.get("/api/documents", tags=["documents"])
    def documents(asked: Annotated[ListQuery, Query()]) -> Documents:
        """List documents in order; equal ones by name."""
        total, files = service.documents(asked, asked.sort, asked.order == "down", asked.offset, asked.limit)
        return Documents(total=total, documents=[_show_document(file, service) for file in files])

    @app.get("/api/facets", tags=["documents"])
    def facets(chosen: Annotated[Filters, Query()]) -> Facets:
        """List the values to filter documents by, with the number of documents that pass all other filters."""
        return service.facets(chosen)

    @app.get("/api/documents/{id}", tags=["documents"])
    def document(id: UUID) -> Document:
        """Show one document."""
        return _show_document(service.document(str(id)), service)

    @app.delete("/api/documents/{id}", status_code=204, tags=["documents"])
    def remove(id: UUID) -> None:
        """Remove a document. Files in your folders stay; an uploaded file is deleted."""
        service.remove(str(id))

    @app.get(
        "/api/documents/{id}/file",
        tags=["documents"],
        response_class=FileResponse,
        responses={200: {"content": dict.fromkeys([kind.media_type for kind in KINDS.values()], BINARY)}},
    )
    def file(id: UUID) -> FileResponse:
        """Return the file of a document."""
        found = service.document(str(id))
        path = service.check_file(found)
        kind = KINDS[path.suffix.lower()]
        shown = "attachment" if kind.is_converted else "inline"  # a web page may hold scripts
        return FileResponse(path, media_type=kind.media_type, filename=show_name(found), content_disposition_type=shown)

    @app.get(
        "/api/documents/{id}/pages/{number}/image",
        tags=["documents"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": BINARY}}},
    )
    async def image(request: Request, id: UUID, number: int, size: ImageSize = "small") -> Response:
        """Return a page as a JPEG."""
        content = await service.image(str(id), number, size, _address(request), request.is_disconnected)
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})

    @app.get(
        "/api/documents/{id}/pages/{number}/crop",
        tags=["documents"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": BINARY}}},
    )
    async def crop(
        request: Request,
        id: UUID,
        number: int,
        left: Side = 0.0,
        top: Side = 0.0,
        right: Side = 1.0,
        bottom: Side = 1.0,
        width: Annotated[int, Query(ge=16, le=2400, description="in pixels")] = 800,
    ) -> Response:
        """Return a part of a page as a JPEG."""
        box = (round(left, 3), round(top, 3), round(right, 3), round(bottom, 3))
        if box[2] - box[0] < 0.01 or box[3] - box[1] < 0.01:
            raise Refused(422, "the part must be at least 0.01 wide and high")
        content = await service.image(str(id), number, (box, width), _address(request), request.is_disconnected)
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})

    @app.get("/api/documents/{id}/pages/{number}/words", tags=["documents"])
    def text_layer(id: UUID, number: int) -> TextLayer:
        """Return the words of a page and where they stand."""
        return TextLayer(lines=service.text_layer(str(id), number))

    @app.get("/api/documents/{id}/pages/{number}/similar", tags=["search"])
    def similar(id: UUID, number: int, k: Annotated[int, Query(ge=1, le=20)] = 6) -> SimilarAnswer:
        """Find pages of other documents that are like this one."""
        found, documents = service.similar(str(id), number, k)
        return SimilarAnswer(hits=[_show_hit(hit, documents, service) for hit in found.hits])

    @app.get("/api/documents/{id}/outline", tags=["documents"])
    def outline(id: UUID) -> Outline:
        """Return the outline of a document, by page."""
        return Outline(entries=service.outline(str(id)))


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _add_uploads(app: FastAPI, service: Service) -> None:
    def get_uploads() -> Uploads:
        if service.uploads is None:
            raise Refused(403, "this library is served read-only")
        return service.uploads

    @app.post(
        "/api/uploads",
        status_code=202,
        tags=["uploads"],
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}},
    )
    async def upload(request: Request, name: Annotated[str, Query(min_length=1, max_length=MAX_NAME)]) -> UploadJob:
        """Add a document: the body is the file. It is indexed in the background."""
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() and len(length) < 20 else 0
        try:
            return await get_uploads().receive(name, request.stream(), size, _address(request))
        except ClientDisconnect as error:
            raise Refused(400, "the upload was cut off") from error

    @app.get("/api/uploads", tags=["uploads"])
    def list_uploads() -> UploadList:
        """List recent uploads and their progress, latest first."""
        return UploadList(uploads=get_uploads().list_jobs())

    @app.get("/api/uploads/{id}", tags=["uploads"])
    def one_upload(id: UUID) -> UploadJob:
        """Show one upload and its progress."""
        return get_uploads().find_job(str(id))

    @app.delete("/api/uploads/{id}", status_code=204, tags=["uploads"])
    def cancel(id: UUID) -> None:
        """Cancel an upload that waits or is being read, and delete its file."""
        get_uploads().cancel(str(id))


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
        """Exchange a token for a cookie, as the page does."""
        if not access.tokens:
            return
        token = access.find_token(body.token, request)
        if token is None:
            raise Refused(401, "wrong token")
        response.set_cookie(
            COOKIE,
            access.begin_session(token),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    @app.delete("/api/session", status_code=204, tags=["service"])
    def end(request: Request, response: Response) -> None:
        """End the session of the cookie."""
        if access.find_session(cookie := request.cookies.get(COOKIE, "")):
            access.ended.add(cookie)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")


def _add_mcp(app: FastAPI, service: Service) -> None:
    """Add /mcp, the tools of agents. The package mcp takes most of a second to import: it waits for the first agent."""
    tools = ServiceTools(service)
    lock = asyncio.Lock()
    made: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            tools.close()

    def make() -> None:
        from .mcp_server import make_server

        made.append(make_server(tools, show_paths=False))

    class Mcp:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                async with lock:
                    if not made:
                        await asyncio.to_thread(make)
            except Exception as error:  # breaks only this address
                reason = f"the package mcp does not work here: {first_line(error)}"
                if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "mcp":
                    reason = f'agents need the package mcp here: pip install "randslot[mcp]" ({first_line(error)})'
                LOG.warning("%s", reason)
                await JSONResponse({"error": reason}, 501)(scope, receive, send)
                return
            from .mcp_server import answer_http

            await answer_http(made[0], scope, receive, send)

    app.router.routes.append(Route("/mcp", Mcp(), methods=["POST"], include_in_schema=False))
    app.router.lifespan_context = lifespan
