"""Share a library between processes of one user: one process opens it and serves the others.

It listens on a Unix socket in a private folder. A request is a line of JSON, `{"call": name, ...}`; the answer is lines
of `{"progress": ...}`, then one `{"result": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Self

from ..errors import RandSlotError, UsageError
from ..pages.text import PageText
from ..words.snippets import Snippet
from .address import is_address
from .library import Library
from .location import InUseError
from .manifest import File
from .models import Name
from .results import Copy, Hit, Match, Progress, QueryResult, Status, Summary

if TYPE_CHECKING:
    from .copy import Copied

Report = Callable[[Progress], None]


def name_socket(library: str) -> str:
    """Return the path of a library's socket, in a folder that only this user can access."""
    folder = os.path.join(tempfile.gettempdir(), f"randslot-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise RandSlotError(f"{folder} is not private to this user: delete it, or set TMPDIR to another folder")
    key = f"{os.getpid()}" if is_address(library) else os.path.realpath(os.path.expanduser(library))
    return os.path.join(folder, blake2b(key.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest())


class LibraryServer:
    """Serves an open library to other processes of this user; use it in a `with` block."""

    def __init__(self, library: Library, *, refusal: str = "", owner: SharedLibrary | None = None) -> None:
        """refusal: why clients may not write, if so. owner: closes the library when another process takes it over."""
        self.library, self.refusal, self.owner = library, refusal, owner
        self.path = name_socket(library.name)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        Path(self.path).unlink(missing_ok=True)  # stale: this process holds the lock of the library
        self.listener.bind(self.path)
        self.listener.listen()
        self.library.location.announce(self.path)
        Thread(target=self._accept, name="library server", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.library.location.announce(None)
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.listener.close()
        Path(self.path).unlink(missing_ok=True)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self.listener.accept()
                Thread(target=self._serve, args=[connection], name="library request", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer the requests of one client."""
        with suppress(OSError), connection, connection.makefile("rwb") as file:  # closing flushes

            def send(message: dict[str, Any]) -> None:
                file.write(json.dumps(message, default=asdict).encode() + b"\n")
                file.flush()

            for line in iter(lambda: file.readline(2**24), b""):
                try:
                    result = self._answer(json.loads(line), lambda now: send({"progress": now}))
                except RandSlotError as error:
                    send({"error": str(error), "usage": isinstance(error, UsageError)})
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    send({"error": f"invalid request: {error}", "usage": True})
                else:
                    send({"result": result})

    def _answer(self, request: dict[str, Any], progress: Report) -> Any:
        from .copy import backup_library, copy_library, narrow_binding

        library, call = self.library, request.pop("call")
        if call == "release":
            return self.owner is not None and self.owner.release()
        if self.refusal and (call in ("add", "forget", "read_words", "copy_from", "backup") or request.get("repair")):
            raise RandSlotError(self.refusal)
        with self.owner.use(only_here=True) if self.owner else nullcontext():
            match call:
                case "search_results" | "files" | "list_gone" | "forget":
                    return getattr(library, call)(**request)
                case "add" | "read_words" | "verify":
                    return getattr(library, call)(progress=progress, **request)
                case "find_files":
                    return library.find_files(*request["patterns"])
                case "read_text":
                    return library.read_text(request["page"]).text
                case "status":  # with an absolute folder
                    found = library.status()
                    return found if library.location.shared else replace(found, folder=str(library.folder.absolute()))
                case "backup":
                    return backup_library(library, Path(request["target"]))
                case "copy_to":
                    binding = narrow_binding(library, request["page_vectors"], request["width"])
                    with Library(request["target"], binding) as target:
                        return copy_library(library, target, progress)
                case "copy_from":
                    with Library(request["source"], create=False) as source:
                        return copy_library(source, library, progress)
        raise ValueError(f"unknown call {call!r}: stop the process that has the library open, and retry")


class LibraryClient:
    """Talks to the process that has a library open, with the methods of `Library`; use it in a `with` block."""

    def __init__(self, name: str, path: str) -> None:
        """name: of the library, in messages. path: of the socket."""
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError as error:
            self.socket.close()
            raise InUseError(f"cannot reach the process that has library {name} open: {error.strerror}") from error
        self.file = self.socket.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the process did not read the request
            self.file.close()
        self.socket.close()

    def __len__(self) -> int:
        return self.status().pages

    def search_all(self, queries: Sequence[str], k: int = 5, **options: Any) -> list[list[Hit]]:
        """Search; options as in `Library.search_all`."""
        return [result.hits for result in self.search_results(queries, k, **options)]

    def search_results(self, queries: Sequence[str], k: int = 5, **options: Any) -> list[QueryResult]:
        """Search, and explain missing results; options as in `Library.search`."""
        results = []
        for values in self._ask("search_results", queries=list(queries), k=k, **options):
            results.append(QueryResult(**values | {"hits": [_make_hit(hit) for hit in values["hits"]]}))
        return results

    def read_text(self, page: str) -> PageText:
        """Return the text of a page, without the boxes of its words."""
        return PageText(str(self._ask("read_text", page=page)))

    def status(self) -> Status:
        found = self._ask("status")
        return Status(**found | {"notes": tuple(found["notes"]), "languages": tuple(found["languages"])})

    def notes(self) -> list[str]:
        return list(self.status().notes)

    def count_without_text(self) -> int:
        origins = self.status().origins
        return origins.get("none", 0) + origins.get("", 0)

    def files(self) -> list[File]:
        return [File(**file) for file in self._ask("files")]

    def find_files(self, *patterns: str) -> list[File]:
        here = [os.path.abspath(one) if one.startswith(("./", "../")) else one for one in patterns]
        return [File(**file) for file in self._ask("find_files", patterns=here)]

    def list_gone(self, paths: Iterable[str]) -> list[str]:
        return list(self._ask("list_gone", paths=[_absolute(path) for path in paths]))

    def forget(self, sources: Iterable[str]) -> list[str]:
        return list(self._ask("forget", sources=list(sources)))

    def add(self, inputs: Iterable[str], *, progress: Report = lambda _: None, **options: Any) -> Summary:
        """Index files; options as in `Library.add`."""
        return Summary(**self._ask("add", progress, inputs=[_absolute(path) for path in inputs], **options))

    def read_words(self, *, progress: Report = lambda _: None, **options: Any) -> int:
        """Backfill text; options as in `Library.read_words`."""
        return int(self._ask("read_words", progress, **options))

    def verify(self, *, repair: bool = False, progress: Report = lambda _: None) -> list[str]:
        return list(self._ask("verify", progress, repair=repair))

    def backup(self, target: str) -> int:
        """Back up the library to a new folder."""
        return int(self._ask("backup", target=_absolute(target)))

    def copy_to(self, target: str, progress: Report, page_vectors: int | None, width: int | None) -> Copied:
        """Copy the library to another place."""
        from .copy import Copied

        options = {"target": _absolute(target), "page_vectors": page_vectors, "width": width}
        return Copied(**self._ask("copy_to", progress, **options))

    def copy_from(self, source: str, progress: Report) -> Copied:
        """Copy another library into this one."""
        from .copy import Copied

        return Copied(**self._ask("copy_from", progress, source=_absolute(source)))

    def ask_to_release(self) -> bool:
        """Ask the process to close the library; return whether it did."""
        return bool(self._ask("release"))

    def _ask(self, call: str, progress: Report = lambda _: None, **request: Any) -> Any:
        with suppress(OSError):
            self.file.write(json.dumps({"call": call, **request}).encode() + b"\n")
            self.file.flush()
            for line in self.file:
                answer = json.loads(line)
                if "error" in answer:
                    raise (UsageError if answer["usage"] else RandSlotError)(answer["error"])
                if "result" in answer:
                    return answer["result"]
                now = answer["progress"]
                progress(Progress(**now | {"finished": tuple(now["finished"])}))
        raise RandSlotError(f"lost the process that had library {self.name} open: run the command again")


def _make_hit(values: dict[str, Any]) -> Hit:
    """Make a hit from JSON."""
    snippet = values["snippet"]
    if snippet is not None:
        snippet = Snippet(snippet["text"], tuple(map(tuple, snippet["marks"])))
    matches = tuple(Match(**match) for match in values["matches"])
    copies = tuple(Copy(**copy) for copy in values["copies"])
    lists = {"matches": matches, "copies": copies, "fields": tuple(values["fields"])}
    for name in ("boxes", "passage"):
        lists[name] = tuple(map(tuple, values[name]))
    best = tuple(values["best"]) if values["best"] else None
    return Hit(**values | lists | {"snippet": snippet, "best": best})


def _absolute(place: str) -> str:
    """Return an absolute path; addresses stay as they are."""
    return place if not place or is_address(place) else os.path.abspath(os.path.expanduser(place))


def open_library(place: Name, model: Any = None, *, query_model: Any = None, **options: Any) -> Library | LibraryClient:
    """Open a library, or connect to the process that has it open; options as in `Library`.

    Retries while that process starts or stops.
    """
    deadline = time.monotonic() + 2
    while True:
        try:
            try:
                return Library(place, model, query_model=query_model, **options)
            except InUseError as error:
                if error.socket is None:
                    raise
                if model is not None or query_model is not None:
                    raise UsageError(f"cannot set a model: {error}") from error
                return LibraryClient(os.fspath(place), error.socket)
        except InUseError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def share(opened: Library | LibraryClient) -> AbstractContextManager[Any]:
    """Let other commands search a library while this one writes to it."""
    if isinstance(opened, LibraryClient):
        return nullcontext()
    return LibraryServer(opened, refusal=f"process {os.getpid()} is changing library {opened.name}: wait for it")


def copy_between(
    source: str, target: str, progress: Report, page_vectors: int | None = None, width: int | None = None
) -> Copied:
    """Copy a library to another place; if another process has one of them open, that process does the copy.

    page_vectors, width: of a new copy, to store fewer or narrower vectors per page.
    """
    from .copy import copy_library, narrow_binding

    with open_library(source, create=False) as old:
        if isinstance(old, LibraryClient):
            return old.copy_to(target, progress, page_vectors, width)
        try:
            with Library(target, narrow_binding(old, page_vectors, width)) as new:
                return copy_library(old, new, progress)
        except InUseError as error:
            if error.socket is None:
                raise
            path = error.socket
    with LibraryClient(target, path) as client:  # the source is closed here by now
        return client.copy_from(source, progress)


class SharedLibrary:
    """A library for a long-lived process: opened here, or by another process that serves it. Thread-safe.

    When that process stops, the next user of the library opens it. `randslot serve` takes it over.
    """

    def __init__(self, library: Library | Name, model: str | None = None, query_model: str | None = None) -> None:
        """library: an open one, which stays open, or its place. model: the new place of its model, if it has moved.

        query_model: a distilled student of that model, for searches.
        """
        self.lock, self.closing = Condition(), ExitStack()
        self.num_users = 0
        self.release_seconds = 20.0  # to wait for users of the library
        self.given = library if isinstance(library, Library) else None
        self.own = self.given
        self.place = "" if isinstance(library, Library) else _absolute(os.fspath(library))
        self.model, self.query_model = model, query_model

    def close(self) -> None:
        """Close the library, if it was opened here; also called at exit."""
        atexit.unregister(self.close)
        with self.lock:
            self.own = self.given
            self.closing.close()

    @contextmanager
    def use(self, *, only_here: bool = False) -> Iterator[Library | LibraryClient]:
        """Use the library in a `with` block. only_here: fail if this process does not have it open."""
        with self.lock:
            if self.own is None and only_here:
                raise RandSlotError(f"another process took over library {self.place}: try again")
            opened = self._open() if self.own is None else self.own
            self.num_users += 1
        try:
            with opened if isinstance(opened, LibraryClient) else nullcontext():
                yield opened
        finally:
            with self.lock:
                self.num_users -= 1
                self.lock.notify_all()

    def release(self) -> bool:
        """Close the library once it is idle; return False on timeout."""
        with self.lock:
            if not self.lock.wait_for(lambda: not self.num_users, self.release_seconds):
                return False
            self.own = None
            self.closing.close()
            return True

    def _open(self) -> Library | LibraryClient:
        opened = open_library(self.place, self.model, query_model=self.query_model, create=False)
        if isinstance(opened, Library):
            self.own = self.closing.enter_context(opened)
            self.closing.enter_context(LibraryServer(opened, owner=self))
            atexit.register(self.close)  # removes the socket
        return opened
