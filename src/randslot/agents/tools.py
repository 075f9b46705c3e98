"""What tools answer to an agent: short text with stable ids and links, page text in parts, pictures of bounded size.

Knows no protocol. A page is named by the id of its document and its number.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore
from typing import Literal, Protocol

from PIL import Image

from ..errors import RandSlotError, UsageError
from ..library.library import Library
from ..library.manifest import File, show_name, tell_apart
from ..library.results import Hit, Summary
from ..library.sharing import LibraryClient
from ..library.stores.base import page_id
from ..pages import DOCUMENT_SUFFIXES, short
from ..pages.formats import show_pages
from ..pages.images import to_jpeg
from ..pages.ocr import find_engine, show_advice

JOINERS = "\u200c\u200d"  # scripts of Iran and India are misspelled without them
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format (invisible, right-to-left, tags), halves, private, unassigned


def clean(text: str) -> str:
    """Return text without characters that cannot be seen: they may hold words for an agent that no person sees."""
    kept = []
    for character in text:
        if character in "\n\t" or character in JOINERS or unicodedata.category(character) not in HIDDEN:
            kept.append(character)
    return "".join(kept)


def clean_line(text: str, most: int) -> str:
    """Return text in one line of at most so many characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


WHERE = "only documents below folders that were allowed can be added"


def check_folders(folders: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return folders by their real paths.

    Errors: UsageError for one that does not exist, or that is the root of all.
    """
    found = []
    for folder in folders:
        if not os.fspath(folder):
            raise UsageError("--add-from takes a folder, and this is an empty path")
        real = Path(os.path.realpath(os.path.expanduser(folder)))
        if not real.is_dir():
            raise UsageError(f"--add-from takes a folder, and {folder} is none")
        if real == Path(real.anchor):
            raise UsageError("--add-from / would allow every file of this machine: name a folder of documents")
        found.append(real)
    return tuple(found)


def find_allowed(path: str, folders: Sequence[Path]) -> Path:
    """Return the real path of a document that may be added; relative paths are below one of the folders.

    Links are followed before it is decided. What is outside is answered the same way whether it exists or not.

    Errors: RandSlotError if it may not be added, or is not there.
    """
    if "\0" in path:
        raise RandSlotError(WHERE)
    given = Path(path)
    candidates = [given] if given.is_absolute() else [folder / given for folder in folders]
    for candidate in candidates:
        real = Path(os.path.realpath(candidate))
        if any(_is_allowed(real, folder) for folder in folders) and real.is_file():
            return real
    raise RandSlotError(
        f"{WHERE}, not {short(path)}: name a file that is there by its whole path, or relative to such a folder, which "
        f"is not hidden and ends in {', '.join(DOCUMENT_SUFFIXES)}"
    )


def _is_allowed(file: Path, folder: Path) -> bool:
    if not file.is_relative_to(folder) or file.suffix.lower() not in DOCUMENT_SUFFIXES:
        return False
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def add_one(library: Library | LibraryClient, file: Path) -> Summary:
    """Index one file; pages without text are read by OCR if there is an engine, as the command does."""
    summary = library.add([str(file)])
    if summary.without_text and find_engine() is not None:
        summary.by_ocr = library.read_words(ocr="missing")
    return summary


NAME_CHARACTERS = 120
SNIPPET_CHARACTERS = 300
WORD_CHARACTERS = 60
MOST_COPIES, MOST_UNKNOWN = 3, 10  # that are named
TEXT_CHARACTERS = 8_000  # of one answer; the rest is asked for by `start`
PICTURE_PIXELS = {"small": 700 * 900, "large": 1200 * 1500}
PICTURE_BYTES = 600_000
ADD_SECONDS = 20.0  # that an agent waits for a document to be read
ADDING = 10  # documents that may wait to be read
Size = Literal["none", "small", "large"]


class AgentLibrary(Protocol):
    """What tools need of a library; safe to use from several threads."""

    def search(self, query: str, k: int, document: File | None) -> list[Hit]:
        """Return the best pages, in one document or in all; identical pages are one hit."""

    def find_unknown(self, query: str, document: File | None) -> list[str]:
        """Return the words of a query that no page has, of one document or of all."""

    def count_without_text(self) -> int:
        """Return how many pages no search by words can find, since nobody has read them."""

    def files(self) -> list[File]:
        """Return the documents whose pages can be found."""

    def read_text(self, page: str) -> str:
        """Return the text of a page, which is given by its id."""

    def draw(self, source: str, number: int, pixels: int) -> Image.Image:
        """Draw a page of a document, in a process with limits of time and memory."""

    def add(self, file: Path) -> Summary:
        """Index one file."""

    def link(self, file: File, page: int, base: str) -> str:
        """Return an address at which a person can look at a page; base: of the service, if there is one."""


@dataclass(frozen=True)
class FoundPage:
    """A page that was found, as an agent gets it.

    place: of a document whose name others have too, the folder that tells them apart. copies: identical pages.
    """

    document: str
    page: int
    name: str
    place: str
    score: float
    snippet: str
    copies: list[str]
    link: str

    def __str__(self) -> str:
        name = _show_place(self.name, self.place)
        lines = [f"{name}, page {self.page} (document {self.document}, score {self.score:.3g})", f"  {self.link}"]
        if self.copies:
            lines.append(f"  the same page: {'; '.join(self.copies)}")
        return "\n".join([*lines, f"  {self.snippet}"] if self.snippet else lines)


@dataclass(frozen=True)
class Found:
    """What a search found, and the words of the query that no page has: of all, or of the document that was asked.

    without_text: if nothing was found by words, how many pages of the library have none.
    """

    pages: list[FoundPage]
    unknown: list[str]
    in_document: bool = False
    without_text: int = 0

    def __str__(self) -> str:
        lines = [f"{place}. {page}" for place, page in enumerate(self.pages, 1)] or ["no page was found"]
        if self.unknown:
            pages = "no page of this document" if self.in_document else "no page"
            words = [f'"{word}"' for word in self.unknown]
            lines.append(f"{pages} has {' or '.join(words)}")
        if self.without_text:
            lines.append(
                f"{show_pages(self.without_text)} of the library without text, which searches by words do not find: "
                f"read_page shows their pictures; whoever keeps the library can have OCR read them ({show_advice()})"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class DocumentLine:
    """A document of the library, as an agent gets it."""

    id: str
    name: str
    place: str
    pages: int

    def __str__(self) -> str:
        return f"{_show_place(self.name, self.place)} ({show_pages(self.pages)}, document {self.id})"


@dataclass(frozen=True)
class PageContent:
    """A page as an agent gets it: part of its text, where the next part starts, and its picture as a JPEG."""

    name: str
    place: str
    page: int
    num_pages: int
    link: str
    text: str
    num_characters: int
    next_start: int | None
    picture: bytes | None
    problem: str = ""

    def __str__(self) -> str:
        parts = [f"{_show_place(self.name, self.place)}, page {self.page} of {self.num_pages}", self.link]
        if self.next_start is not None:
            parts.append(f"more text from start={self.next_start}, of {self.num_characters} characters")
        if not self.num_characters:
            parts.append("this page has no text: look at its picture")
        return "\n".join([*parts, self.problem] if self.problem else parts)


class Answers:
    """Answers what agents ask of a library; folders: below which they may add documents, none by default."""

    def __init__(self, library: AgentLibrary, folders: Sequence[Path] = ()) -> None:
        self.library, self.folders = library, tuple(folders)
        self.adding = ThreadPoolExecutor(1, "adding")
        self.room = BoundedSemaphore(ADDING)

    def close(self) -> None:
        """Let the document that is being read finish, and leave the others."""
        self.adding.shutdown(cancel_futures=True)

    def search(self, query: str, k: int, document: str | None, base: str = "") -> Found:
        """Return the best pages for a query, at most k.

        Errors: RandSlotError for an unknown document.
        """
        files = {file.id: file for file in self.library.files()}
        places = tell_apart(files.values())
        only = None if document is None else _find(files, document)
        found = []
        hits = self.library.search(query, k, only)
        for hit in hits:
            file = files.get(hit.file)
            if file is None or (only is not None and file.id != only.id):
                continue
            snippet = clean_line(hit.snippet.text, SNIPPET_CHARACTERS) if hit.snippet else ""
            copies = []
            for copy in hit.copies[:MOST_COPIES]:
                if copy.file in files:
                    name = _show_place(_name(files[copy.file]), _place(copy.file, places))
                    copies.append(f"{name}, page {copy.page}")
            page = FoundPage(
                document=file.id,
                page=hit.page,
                name=_name(file),
                place=_place(file.id, places),
                score=round(hit.score, 4),
                snippet=snippet,
                copies=copies,
                link=self.library.link(file, hit.page, base),
            )
            found.append(page)
        by_vectors = bool(hits) and hits[0].by == "vectors"
        unknown = [] if by_vectors else self.library.find_unknown(query, only)[:MOST_UNKNOWN]
        words = [clean_line(word, WORD_CHARACTERS) for word in unknown]
        without_text = 0 if hits or by_vectors else self.library.count_without_text()
        return Found(found, words, only is not None, without_text)

    def list_documents(self, name: str, offset: int, limit: int) -> tuple[int, list[DocumentLine]]:
        """Return how many documents have a part of a name, in any case, and some of them, by their names."""
        files = self.library.files()
        places = tell_apart(files)
        lines = [DocumentLine(file.id, _name(file), _place(file.id, places), file.num_pages) for file in files]
        wanted = [line for line in lines if name.casefold() in line.name.casefold()]
        wanted.sort(key=lambda line: (line.name.casefold(), line.place, line.id))
        return len(wanted), wanted[offset : offset + limit]

    def read_page(self, document: str, page: int, picture: Size, start: int, base: str = "") -> PageContent:
        """Return a page: at most `TEXT_CHARACTERS` of its text from `start` on, and its picture.

        A page whose file is gone or broken still has its text, which the library keeps.

        Errors: RandSlotError for an unknown document, a page that it does not have, or a start after the text.
        """
        files = {file.id: file for file in self.library.files()}
        file = _find(files, document)
        if not 1 <= page <= file.num_pages:
            raise RandSlotError(f"the document has {show_pages(file.num_pages)}, so there is no page {page}")
        text = clean(self.library.read_text(page_id(file.id, page)))
        if start and start >= len(text):
            raise RandSlotError(f"the text of this page has {len(text)} characters, and start counts them from 0")
        end = start + TEXT_CHARACTERS
        image, problem = self._draw(file, page, picture)
        return PageContent(
            name=_name(file),
            place=_place(file.id, tell_apart(files.values())),
            page=page,
            num_pages=file.num_pages,
            link=self.library.link(file, page, base),
            text=text[start:end],
            num_characters=len(text),
            next_start=end if end < len(text) else None,
            picture=image,
            problem=problem,
        )

    def _draw(self, file: File, page: int, size: Size) -> tuple[bytes | None, str]:
        if size == "none":
            return None, ""
        try:
            image = self.library.draw(file.source, page, PICTURE_PIXELS[size])
        except (RandSlotError, OSError):  # the reason names the file's place, which is not for every agent
            return None, "the page cannot be drawn: its file is gone, or has changed or broken"
        return to_jpeg(image, PICTURE_BYTES), ""

    def add(self, path: str, seconds: float = ADD_SECONDS) -> str:
        """Index one file below the folders that were allowed; return what became of it, in one line.

        Errors: RandSlotError if it may not be added, cannot be read, or too many are waiting.
        """
        file = find_allowed(path, self.folders)
        name = clean_line(file.name, NAME_CHARACTERS)
        if not self.room.acquire(blocking=False):
            raise RandSlotError(f"{ADDING} documents are waiting to be read: try again later")
        future = self.adding.submit(self.library.add, file)
        future.add_done_callback(lambda _: self.room.release())
        told = _wait(future, name, str(file), seconds)
        ids = [one.id for one in self.library.files() if one.source == str(file)]
        return f"{told}, document {ids[0]}" if ids else told


def _wait(future: Future[Summary], name: str, source: str, seconds: float) -> str:
    try:
        summary = future.result(seconds)
    except NotYet:
        return f"{name} is still being read: list_documents shows it when it is done"
    if source in summary.failed:
        raise RandSlotError(f"{name} could not be read: {clean_line(summary.failed[source], SNIPPET_CHARACTERS)}")
    if summary.added or summary.changed or summary.moved:
        return f"{name} was added: {show_pages(summary.pages)}"
    return f"{name} is in the library already"


def _find(files: dict[str, File], document: str) -> File:
    if document not in files:
        raise RandSlotError("no such document: take the id from search or list_documents")
    return files[document]


def _name(file: File) -> str:
    return clean_line(show_name(file), NAME_CHARACTERS)


def _place(id: str, places: dict[str, str]) -> str:
    return clean_line(places.get(id, ""), NAME_CHARACTERS)


def _show_place(name: str, place: str) -> str:
    return f"{name} in {place}" if place else name
