"""A library that several processes use: it is open in one of them, and the others ask that one."""

from __future__ import annotations

import atexit
import glob
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from threading import Condition, Thread
from types import TracebackType
from typing import Any, Self

from ..errors import RandSlotError, UsageError
from ..pages.text import PageText
from ..words.snippets import Snippet
from .address import is_address
from .copy import Copied, copy_library
from .library import Library
from .location import InUseError
from .manifest import File
from .models import Name
from .results import Copy, Hit, Match, Progress, Status, Summary


def write_file(file: File) -> dict[str, Any]:
    """Return a file as JSON has it: its path need not be valid text."""
    return asdict(file) | {"source": _write_path(file.source)}


def read_file(values: Mapping[str, Any]) -> File:
    """Read what `write_file` wrote."""
    return File(**{**values, "source": _read_path(values["source"])})


def write_hit(hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON has it."""
    copies = [asdict(copy) | {"source": _write_path(copy.source)} for copy in hit.copies]
    return hit.as_dict() | {"source": _write_path(hit.source), "copies": copies}


def read_hit(values: Mapping[str, Any]) -> Hit:
    """Read what `write_hit` wrote."""
    snippet = values["snippet"]
    if snippet is not None:
        snippet = Snippet(snippet["text"], tuple((start, end) for start, end in snippet["marks"]))
    matches = tuple(Match(**match) for match in values["matches"])
    boxes = tuple((left, top, right, bottom) for left, top, right, bottom in values["boxes"])
    copies = tuple(Copy(**{**copy, "source": _read_path(copy["source"])}) for copy in values["copies"])
    read = {"snippet": snippet, "matches": matches, "boxes": boxes, "copies": copies}
    return Hit(**{**values, "source": _read_path(values["source"]), **read})


def write_summary(summary: Summary) -> dict[str, Any]:
    """Return a summary as JSON has it."""
    values = summary.as_dict()
    for name in ("added", "changed", "moved", "removed", "others"):
        values[name] = [_write_path(source) for source in values[name]]
    values["failed"] = [[_write_path(source), reason] for source, reason in summary.failed.items()]
    return values


def read_summary(values: Mapping[str, Any]) -> Summary:
    """Read what `write_summary` wrote."""
    read = dict(values)
    for name in ("added", "changed", "moved", "removed", "others"):
        read[name] = [_read_path(source) for source in values[name]]
    read["failed"] = {_read_path(source): reason for source, reason in values["failed"]}
    return Summary(**read)


def write_status(status: Status) -> dict[str, Any]:
    """Return a status as JSON has it."""
    return status.as_dict()


def read_status(values: Mapping[str, Any]) -> Status:
    """Read what `write_status` wrote."""
    return Status(**{**values, "notes": tuple(values["notes"]), "languages": tuple(values.get("languages", ()))})


def write_progress(now: Progress) -> dict[str, Any]:
    """Return progress as JSON has it; files that were finished are counted by whoever asks."""
    return asdict(now) | {"finished": [_write_path(source) for source in now.finished]}


def read_progress(values: Mapping[str, Any]) -> Progress:
    """Read what `write_progress` wrote."""
    return Progress(**{**values, "finished": tuple(_read_path(source) for source in values["finished"])})


def write_paths(paths: list[str]) -> list[str]:
    """Return paths as JSON has them."""
    return [_write_path(path) for path in paths]


def read_paths(paths: list[str]) -> list[str]:
    """Read what `write_paths` wrote."""
    return [_read_path(path) for path in paths]


def _write_path(path: str) -> str:
    """Return a path as text: bytes that are no text are kept as surrogates, which JSON escapes."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _read_path(text: str) -> str:
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


LONGEST = 2**24  # bytes of a request
PREFIX, SOCKET = "randslot-", "library"  # of the folder in the temporary one, and of the socket in it
STALE_SECONDS = 60  # a socket that is younger may be about to be listened on
Tell = Callable[[Progress], None]


class LocalService:
    """Answers commands of this user while a process has a library open; use it in a `with` block."""

    def __init__(
        self,
        library: Library,
        *,
        refusal: str = "",
        using: Callable[[], AbstractContextManager[Any]] = nullcontext,
        let_go: Callable[[], bool] = lambda: False,
    ) -> None:
        """refusal: why nothing may be added or forgotten, if that is so. using: a block to answer each request in.

        let_go: closes the library, for a service that wants it, and returns whether it did.
        """
        self.library, self.refusal, self.using, self.let_go = library, refusal, using, let_go
        clear_stale()
        self.folder = tempfile.mkdtemp(prefix=PREFIX)  # for this user alone
        self.path = os.path.join(self.folder, SOCKET)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self.listener.bind(self.path)
        self.listener.listen()
        self.library.location.announce(self.path)
        Thread(target=self._accept, name="local service", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.library.location.announce(None)
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed
                return
            Thread(target=self._serve, args=[connection], name="local request", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rwb") as file:  # closing sends what is left, too

            def send(message: dict[str, Any]) -> None:
                file.write(json.dumps(message).encode() + b"\n")
                file.flush()

            for line in iter(lambda: file.readline(LONGEST), b""):
                try:
                    request = json.loads(line)
                    if request["call"] == "let_go":
                        result: Any = self.let_go()
                    else:
                        with self.using():
                            result = self._answer(request, lambda now: send({"progress": write_progress(now)}))
                except RandSlotError as error:
                    send({"error": str(error), "usage": isinstance(error, UsageError)})
                except (ValueError, TypeError, KeyError) as error:
                    send({"error": f"not a request: {error}", "usage": True})
                else:
                    send({"result": result})

    def _answer(self, request: dict[str, Any], tell: Tell) -> Any:
        library, call = self.library, request.pop("call")
        if self.refusal and (call in CHANGING or request.get("repair")):
            raise RandSlotError(self.refusal)
        if call == "search":
            found = library.search_all(**request)
            return [[write_hit(hit) for hit in hits] for hits in found]
        if call == "find_unknown":
            return library.find_unknown(request["query"], filters=request["filters"])
        if call == "read_text":
            return library.read_text(request["page"]).text
        if call == "status":
            return write_status(self._find_status())
        if call == "files":
            return [write_file(file) for file in library.files()]
        if call == "find_files":
            return [write_file(file) for file in library.find_files(*request["patterns"])]
        if call == "list_gone":
            return write_paths(library.list_gone(read_paths(request["paths"])))
        if call == "forget":
            return write_paths(library.forget(read_paths(request["sources"])))
        if call == "add":
            request["inputs"] = read_paths(request["inputs"])
            return write_summary(library.add(progress=tell, **request))
        if call == "verify":
            return library.verify(repair=request["repair"], progress=tell)
        if call == "copy_to":
            with Library(read_paths([request["target"]])[0], library.binding) as target:
                return asdict(copy_library(library, target, tell))
        if call == "copy_from":
            with Library(read_paths([request["source"]])[0], create=False) as source:
                return asdict(copy_library(source, library, tell))
        if call == "read_words":
            return library.read_words(progress=tell, **request)
        raise UsageError(f"a service does not know {call!r}: stop it, and run the command again")

    def _find_status(self) -> Status:
        """Return the status with the folder as it is seen from any other one."""
        found = self.library.status()
        return found if self.library.location.shared else replace(found, folder=str(self.library.folder.absolute()))


CHANGING = ("forget", "add", "read_words", "copy_from")


def clear_stale() -> None:
    """Remove sockets of processes that crashed: those of this user, where nobody has listened for a while."""
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), f"{PREFIX}*")):
        path = os.path.join(folder, SOCKET)
        with suppress(OSError):
            about = os.lstat(path)
            is_ours = stat.S_ISSOCK(about.st_mode) and about.st_uid == os.getuid()
            if is_ours and time.time() - about.st_mtime > STALE_SECONDS and not _is_answered(path):
                os.unlink(path)
                os.rmdir(folder)  # which fails, as it should, if there is something else in it


def _is_answered(path: str) -> bool:
    """Whether a process listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:  # busy, for example
            return True
    return True


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


LET_GO_SECONDS = 20.0  # that whoever uses the library may still take


class SharedLibrary:
    """A library that stays open here, or is asked of the process that has it open; from any thread.

    Agents, applications, a service and commands can use one library so, and whoever has it open may stop: the next to
    ask opens it. A service that starts gets it from whoever has it open, and is asked from then on.
    """

    def __init__(self, library: Library | Name, model: str | None = None, query_model: str | None = None) -> None:
        """library: one that is open, which stays so, or where it is. model: where its model is, if it has moved.

        query_model: a student of that model, which searches ask in its place.
        """
        self.lock, self.closing = Condition(), ExitStack()
        self.num_users = 0  # just now
        self.own = library if isinstance(library, Library) else None
        self.place: Library | Name = library
        self.model, self.query_model = model, query_model
        if not isinstance(library, Library) and os.fspath(library) and not is_address(os.fspath(library)):
            self.place = os.path.abspath(os.path.expanduser(library))  # the process may go elsewhere meanwhile

    def close(self) -> None:
        """Let go of the library, if it was opened here; done at the end of the process for whoever forgets it."""
        atexit.unregister(self.close)
        with self.lock:
            if not isinstance(self.place, Library):
                self.own = None
            self.closing.close()

    @contextmanager
    def use(self) -> Iterator[Library | ServedLibrary]:
        """Give the library for a few calls.

        Errors: as `Library`; one that is not there is not made.
        """
        with self.lock:
            opened = self._open() if self.own is None else self.own
            self.num_users += 1
        try:
            with nullcontext(opened) if isinstance(opened, Library) else opened as library:
                yield library
        finally:
            self._end_use()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """A block in which a request of another process uses the library that is open here."""
        with self.lock:
            if self.own is None:
                raise RandSlotError(f"a service has taken library {self.place} over: ask again")
            self.num_users += 1
        try:
            yield
        finally:
            self._end_use()

    def _end_use(self) -> None:
        with self.lock:
            self.num_users -= 1
            self.lock.notify_all()

    def _let_go(self) -> bool:
        """Close the library when nobody uses it any more; return False if that takes too long."""
        with self.lock:
            if not self.lock.wait_for(lambda: not self.num_users, LET_GO_SECONDS):
                return False
            self.own = None
            self.closing.close()
            return True

    def _open(self) -> Library | ServedLibrary:
        assert not isinstance(self.place, Library), "it would be our own"
        opened = open_library(self.place, self.model, query_model=self.query_model, create=False)
        if isinstance(opened, Library):
            self.own = self.closing.enter_context(opened)
            self.closing.enter_context(LocalService(opened, using=self._answering, let_go=self._let_go))
            atexit.register(self.close)  # it leaves no socket behind
        return opened
