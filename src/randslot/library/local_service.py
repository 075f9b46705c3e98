"""A library that one process has open, for other processes of the same user: a socket, and requests as lines of JSON.

A request is {"call": name, ...}; the answer is {"result": ...} or {"error": line, "usage": whether it was wrong usage},
after any number of {"progress": ...}. Only this user can connect: the socket is in a folder that nobody else may enter.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from threading import Thread
from types import TracebackType
from typing import Any, Self

from ..errors import RandSlotError, UsageError
from .copy import copy_library
from .library import Library
from .results import Progress, Status
from .wire import (
    read_paths,
    write_file,
    write_hit,
    write_paths,
    write_progress,
    write_status,
    write_summary,
)

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
