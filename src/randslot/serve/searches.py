"""The routes of searches: find pages, complete words, and explain scores."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field

from ..library.facets import get_value, show_modified
from ..library.manifest import File, show_folder, show_name
from ..library.results import By, Hit, Match, QueryResult
from ..library.stores.points import page_id
from ..pages import Box
from ..words.analyzer import tokenize
from ..words.snippets import Snippet
from .access import MAX_QUERY, Whole
from .service import MAX_NAME, SEARCH_SECONDS, Choice, Service

MAX_HITS = 100  # per answer
MAX_COLUMNS = 64  # page vectors of an explanation; of more, only the winners
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, pattern=r"\S", examples=["revenue by region"])]


class SearchBody(Choice):
    query: QueryText
    k: Whole = Field(10, ge=1, le=MAX_HITS, description="number of pages")
    offset: Whole = Field(0, ge=0, le=400, description="pages to skip")
    exact: bool = Field(False, description="exact vector search: score every page")
    by: By | None = Field(None, description="default: both if available, else words")
    collapse: bool = Field(False, description="merge identical pages into one hit, which names its copies")
    verbatim: bool = Field(False, description="search as typed: do not correct typos")
    prefix: bool = Field(False, description="the last word may be incomplete, as while typing")
    group: Literal["document"] | None = Field(None, description="rank documents, each by its best page")
    boxes: bool = Field(False, description="also return where words are on the pages; a few milliseconds per hit")


class ExplainBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    query: QueryText
    document: UUID = Field(strict=False)
    page: Whole = Field(ge=1, le=2**31)


class WordsBody(ExplainBody):
    prefix: bool = Field(False, description="the last word may be incomplete, as while typing")
    vector: Whole = Field(0, ge=0, le=2**31, description="also return the passage of this page vector, from 1")


class RankBody(Choice, ExplainBody):
    pass


class Document(BaseModel):
    id: str
    name: str
    folder: str
    place: str = Field(description="folder, only if several documents share the name")
    pages: int
    bytes: int
    modified: datetime = Field(description="last change of the file; of an upload, when it was added")
    title: str = Field(description="title from the file's metadata, or empty")
    author: str
    date: str = Field(description="date from the file's metadata, as in 2018-03-31, or empty")
    year: str
    type: str = Field(description="pdf, document, slides, sheet, text, web, mail, book, image")
    language: str = Field(description="main language")
    uploaded: bool = Field(description="the library stores the file, and deletes it with the document")
    metadata: dict[str, Any]
    file: str = Field(description="path of the file in this API")


class CopyAnswer(BaseModel):
    document: Document
    page: int


class HitAnswer(BaseModel):
    document: Document
    page: int
    score: float = Field(description="BM25 by words, MaxSim by vectors, a sum of normalised scores by both")
    by: By
    snippet: Snippet | None = Field(description="null if the page has no text; marks: where words begin and end")
    boxes: tuple[Box, ...] = Field(
        description="if asked: left, top, right, bottom of marked words, in fractions of the page"
    )
    best: Box | None = Field(description="the most relevant marked word")
    passage: tuple[Box, ...] = Field(
        description="lines of the passage nearest in meaning, if the model encodes pages in windows"
    )
    fields: tuple[str, ...] = Field(
        description="where words of the query are: name, folder, title, section, heading, text"
    )
    matches: tuple[Match, ...] = Field(description="for each query vector, the nearest page vector; both from 1")
    image: str = Field(description="path of the page's image in this API")
    gone: bool = Field(description="the file is no longer on disk; only the page's text is available")
    twin: str | None = Field(description="equal for hits of one search that are copies of one page")
    copies: list[CopyAnswer] = Field(description="identical pages, with `collapse`")


class SearchAnswer(BaseModel):
    hits: list[HitAnswer]
    unknown: list[str] = Field(description="words of the query that no page has; only with offset 0")
    corrected: str | None = Field(
        description="the query that was searched for, if words of the given one were corrected"
    )
    note: str | None = Field(description="a note on the hits: filters, a timeout, no reranking, or only similar pages")


class SimilarAnswer(BaseModel):
    hits: list[HitAnswer]


class Completions(BaseModel):
    words: list[str] = Field(description="completions, most frequent first")
    names: list[str] = Field(description="document names that contain the prefix")


class WordCount(BaseModel):
    """A word of a query, and how often any of its forms is on a page."""

    word: str
    count: int


class PageWords(BaseModel):
    snippet: Snippet | None = Field(description="null if the page has no text")
    boxes: tuple[Box, ...] = Field(description="left, top, right, bottom of marked words, in fractions of the page")
    best: Box | None = Field(description="the most relevant marked word")
    passage: tuple[Box, ...] = Field(description="lines of the passage that the vector encodes")
    words: list[WordCount]


class Ranks(BaseModel):
    """The rank of a page by words and by vectors, from 1; null if it is not in the top 100."""

    words: int | None = None
    vectors: int | None = None


class Explanation(BaseModel):
    similarities: list[list[float]] = Field(description="of each query vector (row) to each page vector (column)")
    winners: list[int] = Field(description="the nearest page vector of each row, from 1")
    score: float = Field(description="MaxSim")
    columns: list[int] = Field(description="the page vectors of the columns, from 1; of many, only the winners")


def show_document(file: File, service: Service) -> Document:
    """Return the public description of a document."""
    place = service.place(file)
    shown, document = service.shown.get(file.id, (None, None))
    if document is None or shown != (file, place):
        facets: Any = {key: get_value(file, key) for key in ("title", "author", "date", "year", "type", "language")}
        document = Document.model_construct(
            id=file.id,
            name=show_name(file),
            folder=show_folder(file),
            place=place,
            pages=file.num_pages,
            bytes=file.size,
            modified=show_modified(file),
            **facets,
            uploaded=file.source.startswith(service.own_folders),
            metadata=dict(file.metadata),
            file=f"/api/documents/{file.id}/file",
        )
        if len(service.shown) >= 1000:
            service.shown.clear()
        service.shown[file.id] = (file, place), document
    return document


def show_hit(hit: Hit, documents: dict[str, File], service: Service) -> HitAnswer:
    """Return the public description of a hit. documents: by id."""
    copies = []
    for copy in hit.copies:
        if copy.file in documents:
            copies.append(CopyAnswer(document=show_document(documents[copy.file], service), page=copy.page))
    names = ("page", "score", "by", "boxes", "best", "passage", "fields", "matches", "gone", "twin")
    return HitAnswer.model_construct(  # trusted values need no validation
        **{name: getattr(hit, name) for name in names},
        document=show_document(documents[hit.file], service),
        snippet=hit.snippet if hit.snippet and hit.snippet.text else None,
        image=f"/api/documents/{hit.file}/pages/{hit.page}/image",
        copies=copies,
    )


def write_note(found: QueryResult) -> str | None:
    """Return notes on the hits of a search."""
    notes = [note for note in (found.filter_note, found.rerank_note) if note]
    if found.by == "vectors" and found.unknown and found.hits:
        notes.append("no page has these words: hits are only similar in meaning")
    if found.is_cut:
        notes.append(f"the search took longer than {SEARCH_SECONDS:g} s: some hits or snippets are missing")
    return "; ".join(notes) or None


def count_words(service: Service, query: str, page: str) -> list[WordCount]:
    """Count the words of a query on a page. page: a page id."""
    parsed = service.library.words.read_query(query)
    on_page = Counter(map(parsed.analyzer.find_terms, tokenize(service.library.read_text(page).text)))

    def count(terms: tuple[str, ...]) -> int:
        return sum(num for others, num in on_page.items() if not set(terms).isdisjoint(others))

    words: dict[tuple[str, ...], WordCount] = {}
    for token in tokenize(parsed.plain):
        terms = parsed.analyzer.find_terms(token)
        if parsed.marked.issuperset(terms) and terms not in words:
            words[terms] = WordCount(word=parsed.plain[token.start : token.end], count=count(terms))
    for joined in parsed.joined:
        if count(joined.terms) and joined.terms not in words:
            words[joined.terms] = WordCount(word=joined.text, count=count(joined.terms))
    return list(words.values())


def add_search_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to an app."""
    library = service.library

    def find_page(body: ExplainBody) -> str:
        """Return the page id of a request."""
        service.page(str(body.document), body.page)
        return page_id(str(body.document), body.page)

    @app.post("/api/search", tags=["search"])
    async def search(body: SearchBody) -> SearchAnswer:
        """Find pages, best first."""
        names = ("k", "offset", "exact", "by", "collapse", "verbatim", "prefix", "group", "boxes")
        found, documents = await service.search(body.query, body, **{name: getattr(body, name) for name in names})
        return SearchAnswer.model_construct(
            hits=[show_hit(hit, documents, service) for hit in found.hits],
            unknown=[] if body.offset else found.unknown,
            corrected=found.corrected or None,
            note=write_note(found),
        )

    @app.get("/api/complete", tags=["search"])
    def complete(prefix: Annotated[str, Query(min_length=1, max_length=MAX_NAME)]) -> Completions:
        """Complete a prefix with words of pages and names of documents."""
        files = service.find(Choice(name=prefix))[:8]
        return Completions(words=library.complete(prefix), names=[show_name(file) for file in files])

    @app.post("/api/words", tags=["search"])
    def words(body: WordsBody) -> PageWords:
        """Find and count the words of a query on a page."""
        page = find_page(body)
        found = library.find_on_page(body.query, page, prefix=body.prefix, vector=body.vector)
        return PageWords.model_construct(
            snippet=found.snippet if found.snippet.text else None,
            boxes=found.boxes,
            best=found.best,
            passage=found.passage,
            words=count_words(service, body.query, page),
        )

    @app.post("/api/ranks", tags=["search"])
    async def ranks(body: RankBody) -> Ranks:
        """Rank a page by words and by vectors."""
        page = await asyncio.to_thread(find_page, body)
        default = await asyncio.to_thread(library.choose_by)
        found = Ranks()
        for by in ("words", "vectors") if default == "both" else (default,):
            result, _ = await service.search(body.query, body, k=MAX_HITS, by=by)
            for rank, hit in enumerate(result.hits, 1):
                if hit.id == page:
                    setattr(found, by, rank)
        return found

    @app.post("/api/explain", tags=["search"])
    def explain(body: ExplainBody) -> Explanation:
        """Explain the score of a page: each query vector against each page vector."""
        similarities = library.compare(body.query, find_page(body))
        winners = (similarities.argmax(1) + 1).tolist()
        columns = list(range(1, similarities.shape[1] + 1))
        if len(columns) > MAX_COLUMNS:
            columns = sorted(set(winners))
        shown = similarities[:, [column - 1 for column in columns]].tolist()
        score = float(similarities.max(1).sum())
        return Explanation.model_construct(similarities=shown, winners=winners, score=score, columns=columns)

    @app.get("/api/documents/{id}/pages/{number}/similar", tags=["search"])
    def similar(id: UUID, number: int, k: Annotated[int, Query(ge=1, le=20)] = 6) -> SimilarAnswer:
        """Find similar pages of other documents."""
        service.page(str(id), number)
        found = QueryResult("words", library.find_similar(page_id(str(id), number), k, seconds=SEARCH_SECONDS))
        documents = service.find_documents(found)
        return SimilarAnswer.model_construct(hits=[show_hit(hit, documents, service) for hit in found.hits])
