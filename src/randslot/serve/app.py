"""The web app: routes of the page and the API, and what they take and answer. Knows FastAPI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException  # FastAPI's own is one of these
from starlette.requests import ClientDisconnect

from .. import __version__
from ..errors import BusyError, RandSlotError
from ..library.manifest import File, show_folder, show_name
from ..library.results import By
from ..library.search import sign
from ..words.snippets import Snippet
from .access import (
    COOKIE,
    DEEPEST,
    HITS,
    QUERY_CHARACTERS,
    SCRIPTS,
    SOURCE_CHARACTERS,
    Access,
    Guard,
    Refused,
    describe_error,
)
from .embeddings import add_embedding_routes
from .mcp_http import add_mcp_route
from .service import Choice, Choices, Explanation, FoundPage, Options, Ranks, Service, Sort, WordCount, show_modified
from .uploads import UploadJob, Uploads

PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
}
ABOUT = 'Search a library of PDFs and images. Errors are JSON of the form `{"error": "one line"}`.'
WORDS = {  # what is wrong with a value, by pydantic's name for it
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "model_attributes_type": "must be a JSON object",
    "string_type": "must be text",
    "string_unicode": "has characters that are not valid text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "bool_type": "must be true or false",
    "uuid_parsing": "must be an id from the list of documents or uploads",
    "uuid_type": "must be an id from the list of documents or uploads",
    "literal_error": "must be {expected}",
    "date_type": "must be a day as in 2024-01-31",
    "date_parsing": "must be a day as in 2024-01-31",
    "date_from_datetime_parsing": "must be a day as in 2024-01-31",
    "date_from_datetime_inexact": "must be a day as in 2024-01-31",
    "dict_type": "must be a JSON object",
    "texts": "must be a text, or a list of 1 to {most} texts",
    "too_long": "must have at most {max_length} entries",
}
BUSY = "the library is out of reach or in use for now: try again later"
LOG = logging.getLogger("randslot")
BINARY = {"schema": {"type": "string", "format": "binary"}}


class Body(BaseModel):
    """What a request may hold: nothing but what is named."""

    model_config = ConfigDict(extra="forbid", strict=True)


QueryText = Annotated[
    str, Field(min_length=1, max_length=QUERY_CHARACTERS, pattern=r"\S", examples=["revenue by region"])
]


NamePart = Annotated[str, Field(max_length=SOURCE_CHARACTERS, description="a part of the name, or wildcards")]
FolderName = Annotated[str | None, Field(max_length=SOURCE_CHARACTERS, description="the name of the folder")]


class ChoiceBody(Body):
    """Which documents are meant."""

    source: str | None = Field(
        None, min_length=1, max_length=SOURCE_CHARACTERS, description="a name, folder/name, or wildcards as in *.pdf"
    )
    name: NamePart = ""
    folder: FolderName = None
    modified_from: date | None = Field(None, strict=False, description="the first day of the file's last change, UTC")
    modified_to: date | None = Field(None, strict=False, description="the last day")
    metadata: dict[str, str | int | float | bool] = Field({}, max_length=20, description="values by their keys")

    def choice(self) -> Choice:
        return Choice(self.name, self.folder, self.modified_from, self.modified_to, self.metadata, self.source)


class SearchBody(ChoiceBody):
    query: QueryText
    k: int = Field(10, ge=1, le=HITS, description="how many pages")
    offset: int = Field(0, ge=0, le=DEEPEST, description="how many to pass over")
    exact: bool = Field(False, description="score every page in full; of searches by vectors")
    by: By | None = Field(None, description="by default what the library has and its model can read")
    collapse: bool = Field(False, description="identical pages are one hit, which names its copies")


class ExplainBody(Body):
    query: QueryText
    document: UUID = Field(strict=False)
    page: int = Field(ge=1, le=2**31)


class RankBody(ChoiceBody, ExplainBody):
    pass


class SessionBody(Body):
    token: str = Field(max_length=1000)


class ErrorAnswer(BaseModel):
    error: str


class Document(BaseModel):
    id: str
    name: str
    folder: str
    place: str = Field(description="as much of its folders as tells it from others of the same name; empty if none are")
    pages: int
    bytes: int
    modified: datetime = Field(description="when the file was last changed; of an upload, when it was added")
    uploaded: bool = Field(description="the library keeps the file itself, and deletes it with the document")
    metadata: dict[str, Any]
    file: str = Field(description="address of the file itself")


class MatchAnswer(BaseModel):
    query: int = Field(description="readout of the query, from 1")
    page: int = Field(description="the readout of the page that is nearest to it, from 1")
    similarity: float


Fractions = tuple[float, float, float, float]


class SnippetAnswer(BaseModel):
    text: str
    marks: list[tuple[int, int]] = Field(description="where words of the query begin and end in the text")


class WordsAnswer(BaseModel):
    snippet: SnippetAnswer | None = Field(description="null if the page has no text")
    boxes: list[Fractions] = Field(description="left, top, right, bottom of each marked word, in fractions of the page")


class PageWordsAnswer(WordsAnswer):
    words: list[WordCount]


class CopyAnswer(BaseModel):
    document: Document
    page: int


class HitAnswer(WordsAnswer):
    document: Document
    page: int
    score: float = Field(description="BM25 by words, MaxSim by vectors, a sum over ranks by both")
    by: By
    matches: list[MatchAnswer] = Field(description="of readouts; none where no vectors were compared")
    image: str = Field(description="address of the page's image")
    twin: str | None = Field(description="equal for hits of one search that are copies of one page")
    copies: list[CopyAnswer] = Field(description="identical pages, if `collapse` was asked for")


class SearchAnswer(BaseModel):
    hits: list[HitAnswer]
    unknown: list[str] = Field(description="words of the query that no page has; told with the first hits only")


class Documents(BaseModel):
    total: int
    documents: list[Document]


class Status(BaseModel):
    library: str
    documents: int
    pages: int
    bytes: int = Field(description="on disk; of a library on a server, of the vectors alone")
    bytes_per_page: int
    vector_bytes_per_page: int
    model: str | None = Field(description="null for a library without vectors")
    by: By = Field(description="what searches compare by default")
    language: str | None = Field(description="of the words of most pages; null if no page has any")
    languages: list[str] = Field(description="of the words, that of most pages first")
    pages_with_text: int
    notes: list[str] = Field(description="what everybody who searches should know")
    page_vectors: int | None = Field(description="null if that depends on the page")
    query_vectors: int | None = Field(description="null if that depends on the query")
    dimension: int
    read_only: bool
    uploads_waiting: int


class Upload(BaseModel):
    id: str
    name: str
    state: Literal["waiting", "reading", "done", "failed"]
    pages_done: int
    num_pages: int
    error: str | None
    same_as: str | None = Field(description="the document that has this content already: nothing was added")


class UploadList(BaseModel):
    uploads: list[Upload]


class Health(BaseModel):
    status: Literal["ok"]


def make_app(service: Service, access: Access) -> FastAPI:
    """Make the app of a service."""
    app = FastAPI(
        title="RandSlot",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if access.token else [],
        responses={status: {"model": ErrorAnswer, "description": "refused, and why"} for status in (422, 503, "4XX")},
    )
    _add_errors(app, service)
    _add_page(app)
    _add_reading(app, service)
    _add_documents(app, service)
    _add_uploads(app, service)
    _add_session(app, access)
    add_embedding_routes(app, service.embeddings)
    add_mcp_route(app, service)
    _add_heads(app)
    app.add_middleware(Guard, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


# -- errors


def _add_errors(app: FastAPI, service: Service) -> None:
    def refused(request: Request, error: Refused) -> JSONResponse:
        return _error(request, error.status, str(error))

    def wrong(request: Request, error: RandSlotError) -> JSONResponse:
        return _error(request, 400, str(error).replace(service.library.name, service.library.folder.absolute().name))

    def busy(request: Request, error: BusyError) -> JSONResponse:
        LOG.warning("refused for now: %s", error)  # it names the server, which is not for visitors
        return _error(request, 503, BUSY)

    def http(request: Request, error: HTTPException) -> JSONResponse:
        reason = str(error.detail).lower()
        if error.status_code == 405 and error.headers:
            reason = f"{reason}: {request.url.path} takes {error.headers['Allow']}, not {request.method}"
        return _error(request, error.status_code, reason, error.headers)

    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _error(request, 400, f"the body is not JSON: {first['ctx']['error']}")
        if first["loc"] == ("body",) and "json" not in request.headers.get("content-type", ""):
            return _error(request, 422, "the body must be JSON, sent with the header Content-Type: application/json")
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        words = WORDS.get(first["type"])
        reason = words.format(**first.get("ctx", {})) if words else first["msg"]
        return _error(request, 422, f"{where[:80]} {reason[:200]}" if words else f"{where[:80]}: {reason[:200]}")

    for kind, handler in {
        Refused: refused,
        RandSlotError: wrong,
        BusyError: busy,
        HTTPException: http,
        RequestValidationError: invalid,
    }.items():
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]


def _error(request: Request, status: int, reason: str, headers: Any = None) -> JSONResponse:
    return JSONResponse(describe_error(request.url.path, status, reason), status, headers)


# -- the page


def _add_page(app: FastAPI) -> None:
    folder = resources.files("randslot") / "serve" / "page"
    for path, (name, kind) in PAGES.items():
        content = (folder / name).read_bytes()
        app.get(path, include_in_schema=False)(_static(content, kind))


def _static(content: bytes, kind: str) -> Callable[[], Response]:
    def show() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return show


def _add_heads(app: FastAPI) -> None:
    """Answer HEAD wherever GET is answered; it is not described twice."""
    for route in [route for route in app.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())]:
        app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


# -- what can be read


def _add_reading(app: FastAPI, service: Service) -> None:
    @app.get("/api/health", tags=["service"], responses={503: {"model": ErrorAnswer, "description": "it is not"}})
    async def health() -> Health:
        """Whether searches are answered: the service is up, and so is all of its library; needs no token."""
        if not await service.is_reachable():
            raise Refused(503, "searches are not answered: the library, or part of it, is out of reach")
        return Health(status="ok")

    @app.get("/api/live", tags=["service"])
    async def live() -> Health:
        """Whether the service is up, whatever its library does: if not, it should be started again; needs no token."""
        return Health(status="ok")

    @app.get("/api/status", tags=["service"])
    def status() -> Status:
        """What the library holds, and its model."""
        return Status(**service.status())

    @app.post("/api/search", tags=["search"])
    async def search(body: SearchBody) -> SearchAnswer:
        """Find pages, best first."""
        options = Options(body.k, None, body.exact, body.by, body.collapse)
        found = await service.search(body.query, options, body.choice(), body.offset)
        unknown = [] if body.offset else await service.find_unknown(body.query, body.by, body.choice())
        return SearchAnswer(hits=[_hit(one, service) for one in found], unknown=unknown)

    @app.post("/api/words", tags=["search"])
    def words(body: ExplainBody) -> PageWordsAnswer:
        """Where the words of a query stand on a page, and how often."""
        found = service.find_words(body.query, str(body.document), body.page)
        counts = service.count_words(body.query, str(body.document), body.page)
        return PageWordsAnswer(snippet=_snippet(found.snippet), boxes=list(found.boxes), words=counts)

    @app.post("/api/ranks", tags=["search"])
    async def ranks(body: RankBody) -> Ranks:
        """Which place a page has by words and by vectors, each alone."""
        return await service.rank(body.query, str(body.document), body.page, body.choice())

    @app.post("/api/explain", tags=["search"])
    def explain(body: ExplainBody) -> Explanation:
        """Why a page has its score: each readout of the query against each readout of the page."""
        return service.explain(body.query, str(body.document), body.page)


def _hit(found: FoundPage, service: Service) -> HitAnswer:
    hit = found.hit
    return HitAnswer(
        document=_document(found.document, service),
        page=hit.page,
        score=hit.score,
        by=hit.by,
        snippet=_snippet(hit.snippet),
        boxes=list(hit.boxes),
        matches=[MatchAnswer(query=one.query, page=one.page, similarity=one.similarity) for one in hit.matches],
        image=f"/api/documents/{found.document.id}/pages/{hit.page}/image",
        twin=sign(hit),
        copies=[CopyAnswer(document=_document(file, service), page=page) for file, page in found.copies],
    )


def _snippet(snippet: Snippet | None) -> SnippetAnswer | None:
    if snippet is None or not snippet.text:
        return None
    return SnippetAnswer(text=snippet.text, marks=list(snippet.marks))


def _document(file: File, service: Service) -> Document:
    return Document(
        id=file.id,
        name=show_name(file),
        folder=show_folder(file),
        place=service.place(file),
        pages=file.num_pages,
        bytes=file.size,
        modified=show_modified(file),
        uploaded=service.is_uploaded(file),
        metadata=dict(file.metadata),
        file=f"/api/documents/{file.id}/file",
    )


# -- documents


def _add_documents(app: FastAPI, service: Service) -> None:
    @app.get("/api/documents", tags=["documents"])
    def documents(
        name: Annotated[NamePart, Query()] = "",
        folder: Annotated[FolderName, Query()] = None,
        sort: Sort = "name",
        order: Literal["up", "down"] = "up",
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Documents:
        """The documents of the library, in an order; equal ones by name."""
        total, files = service.documents(Choice(name, folder), sort, order == "down", offset, limit)
        return Documents(total=total, documents=[_document(file, service) for file in files])

    @app.get("/api/choices", tags=["documents"])
    def choices() -> Choices:
        """What documents can be filtered by."""
        return service.choices()

    @app.get("/api/documents/{id}", tags=["documents"])
    def document(id: UUID) -> Document:
        """One document."""
        return _document(service.document(str(id)), service)

    @app.delete("/api/documents/{id}", status_code=204, tags=["documents"])
    def remove(id: UUID) -> None:
        """Forget a document. Files of your folders stay where they are; an uploaded file is deleted."""
        service.remove(str(id))

    @app.get(
        "/api/documents/{id}/file",
        tags=["documents"],
        response_class=FileResponse,
        responses={200: {"content": {"application/octet-stream": BINARY}}},
    )
    def file(id: UUID) -> FileResponse:
        """The file of a document."""
        path, kind = service.content(str(id))
        name = show_name(service.document(str(id)))
        return FileResponse(path, media_type=kind, filename=name, content_disposition_type="inline")

    @app.get(
        "/api/documents/{id}/pages/{number}/image",
        tags=["documents"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": BINARY}}},
    )
    async def image(id: UUID, number: int, size: Literal["small", "large", "full"] = "small") -> Response:
        """A page of a document as a JPEG."""
        draw = partial(service.image, str(id), number, size)
        content = await asyncio.get_running_loop().run_in_executor(service.threads, draw)
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


# -- uploads


def _add_uploads(app: FastAPI, service: Service) -> None:
    def uploads() -> Uploads:
        if service.uploads is None:
            raise Refused(403, "this library is served read-only")
        return service.uploads

    @app.post(
        "/api/uploads",
        status_code=202,
        tags=["uploads"],
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}},
    )
    async def upload(
        request: Request, name: Annotated[str, Query(min_length=1, max_length=SOURCE_CHARACTERS)]
    ) -> Upload:
        """Add a document: the file's bytes are the body. It is indexed in the background."""
        taken = uploads()
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() and len(length) < 20 else 0
        try:
            return _upload(await taken.receive(name, request.stream(), size))
        except ClientDisconnect as error:
            raise Refused(400, "the upload was cut off") from error

    @app.get("/api/uploads", tags=["uploads"])
    def list_uploads() -> UploadList:
        """The recent uploads and how far they are, the latest first."""
        return UploadList(uploads=[_upload(job) for job in uploads().list_jobs()])

    @app.get("/api/uploads/{id}", tags=["uploads"])
    def one_upload(id: UUID) -> Upload:
        """One upload and how far it is."""
        return _upload(uploads().find_job(str(id)))


def _upload(job: UploadJob) -> Upload:
    return Upload(
        id=job.id,
        name=job.name,
        state=job.state,  # type: ignore[arg-type]
        pages_done=job.pages_done,
        num_pages=job.num_pages,
        error=job.error,
        same_as=job.same_as,
    )


# -- a browser's session


def _add_session(app: FastAPI, access: Access) -> None:
    @app.post("/api/session", status_code=204, tags=["service"])
    def begin(body: SessionBody, request: Request, response: Response) -> None:
        """Exchange the token for a cookie, as the page does."""
        if access.token is None:
            return
        if not access.is_token(body.token):
            raise Refused(401, "that is not the token")
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, access.session(), httponly=True, samesite="strict", secure=secure)
