"""`randslot mcp`: a library for one agent, over standard input and output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

from PIL import Image

from ..library.library import Library
from ..library.local_service import LocalService
from ..library.manifest import File
from ..library.reading.workers import Renderers
from ..library.results import Hit, Summary
from ..library.served_library import ServedLibrary, open_library
from .adding import add_one, check_folders
from .answers import Answers

DRAW_SECONDS = 20.0


class LocalLibrary:
    """A library of this machine, which stays open here, or is asked of the process that has it open.

    Several agents, a service and commands can use one library so, and whoever has it open may stop: the next to ask
    opens it.
    """

    def __init__(self, place: str, model: str | None = None) -> None:
        self.place, self.model = place, model
        self.lock = Lock()
        self.closing = ExitStack()
        self.own: Library | None = None
        self.renderers = Renderers(1, DRAW_SECONDS)
        with self._use() as opened:  # what is wrong is told at the start
            if isinstance(opened, Library) and opened.choose_by() != "words":
                Thread(target=lambda: opened.model, name="model", daemon=True).start()  # takes seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.renderers.close()
        self.closing.close()

    @contextmanager
    def _use(self) -> Iterator[Library | ServedLibrary]:
        with self.lock:
            if self.own is None:
                opened = open_library(self.place, self.model, create=False)
                if isinstance(opened, Library):
                    self.own = self.closing.enter_context(opened)
                    self.closing.enter_context(LocalService(opened))
        if self.own is not None:
            yield self.own
        else:
            with opened:
                yield opened

    def search(self, query: str, k: int, document: File | None) -> list[Hit]:
        filters = {} if document is None else {"source": document.source}
        with self._use() as library:
            return library.search_all([query], k, filters=filters)[0]

    def files(self) -> list[File]:
        with self._use() as library:
            return [file for file in library.files() if file.state == "done"]

    def read_text(self, page: str) -> str:
        with self._use() as library:
            return library.read_text(page).text

    def draw(self, source: str, number: int, pixels: int) -> Image.Image:
        return self.renderers.render(source, number, pixels)

    def add(self, file: Path) -> Summary:
        with self._use() as library:
            return add_one(library, file)

    def link(self, file: File, page: int, base: str) -> str:
        return f"{Path(file.source).as_uri()}#page={page}"


def serve_stdio(place: str, folders: Sequence[str | Path] = (), model: str | None = None) -> None:
    """Answer an agent until it closes standard input.

    Errors: as `Library`; ModuleNotFoundError without the extra.
    """
    from .mcp_server import make_server

    allowed = check_folders(folders)
    with LocalLibrary(place, model) as library:
        answers = Answers(library, allowed)
        try:
            server: Any = make_server(answers)
            server.run("stdio")
        finally:
            answers.close()
