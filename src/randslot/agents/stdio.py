"""`randslot mcp`: a library for one agent, over standard input and output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

from PIL import Image

from ..errors import RandSlotError
from ..library.library import Library
from ..library.manifest import File
from ..library.results import Hit, Summary
from ..library.sharing import SharedLibrary
from ..library.workers import WorkerPool
from .tools import Answers, add_one, check_folders

DRAW_SECONDS = 20.0


class LocalLibrary:
    """A library of this machine as the tools of agents use it."""

    def __init__(self, place: str, model: str | None = None, query_model: str | None = None) -> None:
        self.shared = SharedLibrary(place, model, query_model)
        self.pool = WorkerPool(1, DRAW_SECONDS)
        with self.shared.use() as opened:  # what is wrong is told at the start
            if isinstance(opened, Library) and opened.choose_by() != "words":
                Thread(target=_load_model, args=[opened], name="model", daemon=True).start()  # takes seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.pool.close()
        self.shared.close()

    def search(self, query: str, k: int, document: File | None) -> list[Hit]:
        filters = {} if document is None else {"source": document.source}
        with self.shared.use() as library:
            return library.search_all([query], k, filters=filters, collapse=True)[0]

    def find_unknown(self, query: str, document: File | None) -> list[str]:
        filters = {} if document is None else {"source": document.source}
        with self.shared.use() as library:
            return library.find_unknown(query, filters=filters)

    def count_without_text(self) -> int:
        with self.shared.use() as library:
            return library.count_without_text()

    def files(self) -> list[File]:
        with self.shared.use() as library:
            return [file for file in library.files() if file.state == "done"]

    def read_text(self, page: str) -> str:
        with self.shared.use() as library:
            return library.read_text(page).text

    def draw(self, source: str, number: int, pixels: int) -> Image.Image:
        return self.pool.render(source, number, pixels)

    def add(self, file: Path) -> Summary:
        with self.shared.use() as library:
            return add_one(library, file)

    def link(self, file: File, page: int, base: str) -> str:
        return f"{Path(file.source).as_uri()}#page={page}"


def _load_model(library: Library) -> None:
    with suppress(RandSlotError):  # the first search tells what is wrong
        _ = library.query_model


def serve_stdio(
    place: str, folders: Sequence[str | Path] = (), model: str | None = None, query_model: str | None = None
) -> None:
    """Answer an agent until it closes standard input.

    Errors: as `Library`; ModuleNotFoundError without the extra.
    """
    from .mcp_server import make_server

    allowed = check_folders(folders)
    with LocalLibrary(place, model, query_model) as library:
        answers = Answers(library, allowed)
        try:
            server: Any = make_server(answers)
            server.run("stdio")
        finally:
            answers.close()
