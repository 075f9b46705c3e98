"""A library that a service has open, as commands use it: every call is asked of the service."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from ..errors import RandSlotError, UsageError
from ..pages.text import PageText
from .address import is_address
from .copy import Copied, copy_library
from .library import Library
from .local_service import LocalService
from .location import InUseError
from .manifest import File
from .models import Name
from .results import Hit, Progress, Status, Summary
from .wire import read_file, read_hit, read_paths, read_progress, read_status, read_summary, write_paths

CHANGING_SECONDS = 2.0  # that a process which has a library open may take until it answers, or has stopped


class NotThereError(RandSlotError):
    """Nobody answers on the socket of a library."""


class ServedLibrary:
    """Asks the process that has a library open; use it in a `with` block."""

    def __init__(self, name: str, path: str) -> None:
        """name: of the library, for messages. path: of the service's socket.

        Errors: RandSlotError if nobody answers.
        """
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError as error:
            self.socket.close()
            raise NotThereError(
                f"the service that has library {name} open does not answer: {error.strerror}"
            ) from error
        self.file = self.socket.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.file.close()
        self.socket.close()

    def search_all(self, queries: Sequence[str], k: int = 5, **options: Any) -> list[list[Hit]]:
        """Search; options as `Library.search_all`."""
        found = self._ask("search", queries=list(queries), k=k, **options)
        return [[read_hit(hit) for hit in hits] for hits in found]

    def find_unknown(self, query: str, *, filters: Mapping[str, Any] | None = None) -> list[str]:
        """Return the words of a query that no page has."""
        return list(self._ask("find_unknown", query=query, filters=filters))

    def read_text(self, page: str) -> PageText:
        """Return the text of a page, which is given by its id; where its words stand is not told."""
        return PageText(str(self._ask("read_text", page=page)))

    def status(self) -> Status:
        return read_status(self._ask("status"))

    def notes(self) -> list[str]:
        return list(self.status().notes)

    def files(self) -> list[File]:
        return [read_file(file) for file in self._ask("files")]

    def find_files(self, *patterns: str) -> list[File]:
        here = []
        for one in patterns:  # the service is elsewhere
            here.append(os.path.abspath(one) if one.startswith(("./", "../")) else one)
        return [read_file(file) for file in self._ask("find_files", patterns=here)]

    def list_gone(self, paths: Iterable[str]) -> list[str]:
        return read_paths(self._ask("list_gone", paths=_from_here(paths)))

    def forget(self, sources: Iterable[str]) -> list[str]:
        return read_paths(self._ask("forget", sources=write_paths(list(sources))))

    def add(
        self, inputs: Iterable[str], *, progress: Callable[[Progress], None] = lambda _: None, **options: Any
    ) -> Summary:
        """Index files; options as `Library.add`."""
        return read_summary(self._ask("add", progress, inputs=_from_here(inputs), **options))

    def read_words(self, *, progress: Callable[[Progress], None] = lambda _: None, **options: Any) -> int:
        """Read words; options as `Library.read_words`."""
        return int(self._ask("read_words", progress, **options))

    def verify(self, *, repair: bool = False, progress: Callable[[Progress], None] = lambda _: None) -> list[str]:
        """Return what is wrong with the library; see `Library.verify`."""
        return list(self._ask("verify", progress, repair=repair))

    def copy_to(self, target: str, progress: Callable[[Progress], None]) -> Copied:
        """Have the service copy its library to another place."""
        return Copied(**self._ask("copy_to", progress, target=_place_from_here(target)))

    def copy_from(self, source: str, progress: Callable[[Progress], None]) -> Copied:
        """Have the service copy a library from another place into its own."""
        return Copied(**self._ask("copy_from", progress, source=_place_from_here(source)))

    def ask_to_let_go(self) -> bool:
        """Ask the process to close the library, so that this one can open it; return whether it did."""
        return bool(self._ask("let_go"))

    def __len__(self) -> int:
        return self.status().pages

    def count_without_text(self) -> int:
        origins = self.status().origins
        return origins.get("none", 0) + origins.get("", 0)

    def _ask(self, call: str, progress: Callable[[Progress], None] = lambda _: None, **request: Any) -> Any:
        try:
            self.file.write(json.dumps({"call": call, **request}).encode() + b"\n")
            self.file.flush()
            for line in self.file:
                answer = json.loads(line)
                if "progress" in answer:
                    progress(read_progress(answer["progress"]))
                elif "error" in answer:
                    raise (UsageError if answer["usage"] else RandSlotError)(answer["error"])
                else:
                    return answer["result"]
        except OSError as error:
            raise RandSlotError(f"the service of library {self.name} was cut off: {error.strerror or error}") from error
        raise RandSlotError(f"the service of library {self.name} has stopped: run the command again")


def copy_between(source: str, target: str, progress: Callable[[Progress], None]) -> Copied:
    """Copy a library to another place; a service that has one of the two open does it.

    Errors: as `copy_library`; RandSlotError if both are open in services.
    """
    with open_library(source, create=False) as old:
        if isinstance(old, ServedLibrary):
            return old.copy_to(target, progress)
        try:
            new = Library(target, old.binding)
        except InUseError as error:
            if error.socket is None:
                raise
            socket = error.socket
        else:
            with new:
                return copy_library(old, new, progress)
    with ServedLibrary(target, socket) as served:
        return served.copy_from(source, progress)


def open_library(
    place: Name,
    model: Any = None,
    *,
    query_model: Any = None,
    create: bool = True,
    repair: bool = False,
    trust_remote_code: bool = False,
) -> Library | ServedLibrary:
    """Open a library, or ask the service that has it open; one that just starts or stops is waited for.

    Errors: as `Library`; UsageError for a model, which a service does not change.
    """
    until = time.monotonic() + CHANGING_SECONDS
    while True:
        try:
            return Library(
                place,
                model,
                query_model=query_model,
                create=create,
                repair=repair,
                trust_remote_code=trust_remote_code,
            )
        except InUseError as error:
            if error.socket is not None and (model is not None or query_model is not None):
                raise UsageError(f"{error}, to give it a model") from error
            try:
                if error.socket is not None:
                    return ServedLibrary(os.fspath(place), error.socket)
                if time.monotonic() > until:
                    raise
            except NotThereError:
                if time.monotonic() > until:
                    raise
        time.sleep(0.1)


def share(opened: Library | ServedLibrary) -> AbstractContextManager[Any]:
    """Return a block in which other commands can search a library that this one is changing."""
    if isinstance(opened, ServedLibrary):
        return nullcontext()
    return LocalService(opened, refusal=f"library {opened.name} is being changed by process {os.getpid()}: wait for it")


def _from_here(paths: Iterable[str]) -> list[str]:
    """Return paths as they are seen from any folder: the service runs in another one."""
    full = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    return write_paths(full)


def _place_from_here(place: str) -> str:
    """Return where a library is as it is seen from any folder."""
    return place if is_address(place) else _from_here([place])[0]
