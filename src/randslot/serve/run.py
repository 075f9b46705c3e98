"""Serve a library until the process is asked to stop; then finish what was acknowledged. Knows uvicorn."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from ..errors import UsageError
from ..library.library import Library
from ..library.location import InUseError
from ..library.sharing import LibraryClient, LibraryServer
from ..library.terminal import plural
from .access import LOCAL, TOKEN_CHARACTERS, Access
from .agent_tools import check_folders
from .app import make_app
from .service import Service

EVERYWHERE = ("0.0.0.0", "::", "")
TRIES = 3  # to take a library over: who let go of it may need it again at once
GRACE = 10  # seconds that requests on their way have when the service stops


@dataclass(frozen=True)
class Visitors:
    """Where to listen, and who may come in."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    origins: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse to be open to all.

        Errors: UsageError in one line.
        """
        if self.token is None and not is_local(self.host):
            raise UsageError(f"to listen on {self.host} name a --token, which visitors must know")
        if self.token is not None and (len(self.token) < TOKEN_CHARACTERS or not self.token.isascii()):
            raise UsageError(
                f"--token takes at least {TOKEN_CHARACTERS} ASCII characters: openssl rand -hex 16 makes one"
            )
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise UsageError(f"--origin takes an address without a path, as in https://example.org, not {origin!r}")


def is_local(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    folder: str,
    visitors: Visitors,
    *,
    new: bool = False,
    read_only: bool = False,
    model: str | None = None,
    query_model: str | None = None,
    add_from: Sequence[str] = (),
    trust_remote_code: bool = False,
) -> None:
    """Serve a library until SIGTERM or Ctrl-C. new: make it if there is none, for uploads to come.

    query_model: a student of the library's model, for searches. add_from: folders below which agents may add documents.
    """
    visitors.check()
    allowed = check_folders(add_from)
    if read_only and allowed:
        raise UsageError("--add-from lets agents add documents, and --read-only nobody: name one")

    def open_library() -> Library:
        return Library(folder, model, query_model=query_model, create=new, trust_remote_code=trust_remote_code)

    with (
        listen(visitors.host, visitors.port) as listener,
        take_over(folder, open_library) as library,
        LibraryServer(library),
    ):
        service = Service(library, read_only=read_only, add_from=allowed)
        access = Access(visitors.token, visitors.origins, LOCAL | {visitors.host})
        where = show_address(visitors.host, listener.getsockname()[1])
        print(f"serving {library.name} at {where} (Ctrl-C stops)", flush=True)
        _run(uvicorn.Config(make_app(service, access), log_level="warning", timeout_graceful_shutdown=GRACE), listener)
        waiting = service.uploads.num_waiting() if service.uploads else 0
        if waiting:
            left = plural(waiting, "upload")
            print(f"stopping: {left} still to be read (again: leave that for next time)", flush=True)
        try:
            service.close()
        except KeyboardInterrupt:
            os._exit(130)  # as if killed: the library survives that, and its threads need not end in order
    print("stopped", file=sys.stderr)


def take_over(folder: str, open_library: Callable[[], Library]) -> Library:
    """Open a library; an agent or an application that has it open lets go of it, and asks us from then on."""
    for _ in range(TRIES):
        try:
            return open_library()
        except InUseError as error:
            if error.socket is None:
                raise
            print("taking the library over from the process that has it open", file=sys.stderr, flush=True)
            with LibraryClient(folder, error.socket) as other:
                if not other.ask_to_release():
                    raise
    return open_library()


def show_address(host: str, port: int) -> str:
    """Return the address to open; a service on all addresses is reached as localhost, and by the machine's names."""
    if host in EVERYWHERE:
        return f"http://localhost:{port}, and from elsewhere by this machine's name or address"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address, so that visitors may come from now on.

    Errors: UsageError if that is not possible.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: ports are 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror
        raise UsageError(f"cannot listen on {host}, port {port}: {reason}: name another --port or --host") from error
    # Otherwise an answer's body waits 40 ms for the visitor to have seen its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _run(config: uvicorn.Config, listener: socket.socket) -> None:
    """Run until a signal; uvicorn raises it again when it is done, which here only ends the run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        return
