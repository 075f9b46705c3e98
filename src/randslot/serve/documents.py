"""The routes of documents: lists, facets, files, page images, page words, and uploads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from ..library.facets import count_values
from ..library.manifest import show_folder, show_name
from ..library.stores.points import page_id
from ..pages import KINDS, Word
from .access import Refused
from .searches import Document, show_document
from .service import MAX_NAME, Filters, ImageSize, Part, Service
from .uploads import UploadJob, Uploads

MAX_VALUES, MAX_WORDS, MAX_OUTLINE = 200, 5_000, 2_000  # per facet, per page, per outline
BINARY = {"schema": {"type": "string", "format": "binary"}}
JPEG: dict[str, Any] = {
    "tags": ["documents"],
    "response_class": Response,
    "responses": {200: {"content": {"image/jpeg": BINARY}}},
}
Edge = Annotated[float, Query(ge=0, le=1, description="in fractions of the page")]


class ListQuery(Filters):
    sort: Literal["name", "folder", "pages", "size", "modified"] = "name"
    order: Literal["up", "down"] = "up"
    offset: int = Field(0, strict=False, ge=0, le=2**31)
    limit: int = Field(100, strict=False, ge=1, le=1000)


class Documents(BaseModel):
    total: int
    documents: list[Document]


@dataclass(frozen=True)
class Facets:
    """Filter values with their numbers of documents: most frequent first, years latest first."""

    folders: dict[str, int]
    years: dict[int, int]
    types: dict[str, int]
    languages: dict[str, int]
    metadata: dict[str, dict[str, int]]


class TextLayer(BaseModel):
    lines: list[list[Word]] = Field(description="words with their boxes, in fractions of the page")


@dataclass(frozen=True)
class OutlineEntry:
    """An entry of a document's outline. level: from 0."""

    level: int
    title: str
    page: int


class Outline(BaseModel):
    entries: list[OutlineEntry]


class UploadList(BaseModel):
    uploads: list[UploadJob]


def count_facets(service: Service, chosen: Filters) -> Facets:
    """Count the values of each filter over the documents that match all other filters."""
    files, root = service.library.manifest.find(state="done"), service.library.words.root

    def count(key: str, own: str | None = None) -> dict[str, int]:
        others = chosen.model_copy(update={own: None}) if own else chosen
        values = count_values((file for file in files if others.allows(file, root)), key)
        return dict(values.most_common(MAX_VALUES))

    years = {int(year): num for year, num in count("year", "year").items() if year.isdecimal()}
    keys = sorted({key for file in files for key in file.metadata})[:MAX_VALUES]
    return Facets(
        folders=count("in", "folder"),
        years=dict(sorted(years.items(), reverse=True)),
        types=count("type", "type"),
        languages=count("language", "language"),
        metadata={key: count(key) for key in keys},
    )


def add_document_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to an app."""

    @app.get("/api/documents", tags=["documents"])
    def documents(asked: Annotated[ListQuery, Query()]) -> Documents:
        """List documents in order; ties by name."""
        found, descending = service.find(asked), asked.order == "down"
        if asked.sort == "name":
            found.sort(key=lambda file: (show_name(file).lower(), file.source), reverse=descending)
        elif asked.sort == "folder":
            found.sort(key=lambda file: show_folder(file).lower(), reverse=descending)
        else:
            attribute = {"pages": "num_pages"}.get(asked.sort, asked.sort)
            found.sort(key=lambda file: getattr(file, attribute), reverse=descending)
        some = found[asked.offset : asked.offset + asked.limit]
        return Documents(total=len(found), documents=[show_document(file, service) for file in some])

    @app.get("/api/facets", tags=["documents"])
    def facets(chosen: Annotated[Filters, Query()]) -> Facets:
        """List filter values with the number of documents that match all other filters."""
        return count_facets(service, chosen)

    @app.get("/api/documents/{id}", tags=["documents"])
    def document(id: UUID) -> Document:
        """Show one document."""
        return show_document(service.document(str(id)), service)

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
        shown = "attachment" if kind.is_converted else "inline"  # a web page may contain scripts
        return FileResponse(path, media_type=kind.media_type, filename=show_name(found), content_disposition_type=shown)

    async def draw(request: Request, id: UUID, number: int, size: ImageSize | Part) -> Response:
        content = await service.image(str(id), number, size, find_address(request), request.is_disconnected)
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})

    @app.get("/api/documents/{id}/pages/{number}/image", **JPEG)
    async def image(request: Request, id: UUID, number: int, size: ImageSize = "small") -> Response:
        """Return a page as a JPEG."""
        return await draw(request, id, number, size)

    @app.get("/api/documents/{id}/pages/{number}/crop", **JPEG)
    async def crop(
        request: Request,
        id: UUID,
        number: int,
        left: Edge = 0.0,
        top: Edge = 0.0,
        right: Edge = 1.0,
        bottom: Edge = 1.0,
        width: Annotated[int, Query(ge=16, le=2400, description="in pixels")] = 800,
    ) -> Response:
        """Return a part of a page as a JPEG."""
        box = (round(left, 3), round(top, 3), round(right, 3), round(bottom, 3))
        if box[2] - box[0] < 0.01 or box[3] - box[1] < 0.01:
            raise Refused(422, "the part must be at least 0.01 wide and high")
        return await draw(request, id, number, (box, width))

    @app.get("/api/documents/{id}/pages/{number}/words", tags=["documents"])
    def text_layer(id: UUID, number: int) -> TextLayer:
        """Return the words of a page with their boxes."""
        service.page(str(id), number)
        text = service.library.read_text(page_id(str(id), number), boxes=True)
        words = iter(text.words[:MAX_WORDS])
        lines = [list(islice(words, len(line.split()))) for line in text.text.splitlines()]
        return TextLayer(lines=[line for line in lines if line])

    @app.get("/api/documents/{id}/outline", tags=["documents"])
    def outline(id: UUID) -> Outline:
        """Return the outline of a document, by page; empty if its file has none."""
        found = service.pool.read_outline(str(service.check_file(service.document(str(id)))))
        return Outline(entries=[OutlineEntry(*entry) for entry in found[:MAX_OUTLINE] if entry[1]])


def find_address(request: Request) -> str:
    """Return the client address of a request."""
    return request.client.host if request.client else ""


def add_upload_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to an app."""

    def get_uploads() -> Uploads:
        if service.uploads is None:
            raise Refused(403, "this service is read-only")
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
            return await get_uploads().receive(name, request.stream(), size, find_address(request))
        except ClientDisconnect as error:
            raise Refused(400, "the upload was interrupted") from error

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
        """Cancel a pending upload, and delete its file."""
        get_uploads().cancel(str(id))
