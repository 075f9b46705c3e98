"""Serve a library until the process is stopped, then finish accepted uploads. Knows uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from threading import Timer
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UsageError, first_line
from ..library.library import Library
from ..library.location import InUseError
from ..library.sharing import LibraryClient, LibraryServer, SharedLibrary
from ..library.terminal import plural
from ..library.watch import Watch
from .access import LOCAL, Access, read_tokens
from .app import make_app
from .service import Service


@dataclass(frozen=True)
class Settings:
    """Where to listen, who may connect, and how to open the library.

    tokens: a file of more tokens. new: create the library if there is none. query_model: a distilled model for
    searches. rerank: a reranker of all searches. watch: folders to keep the library in sync with; poll: by looking at
    them.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    tokens: str | None = None
    origins: tuple[str, ...] = ()
    new: bool = False
    read_only: bool = False
    model: str | None = None
    query_model: str | None = None
    rerank: str | None = None
    watch: tuple[str, ...] = ()
    poll: bool = False
    trust_remote_code: bool = False

    def check(self) -> None:
        """Refuse wrong values, and a service that is open to all."""
        if self.token is None and self.tokens is None and not is_local(self.host):
            raise UsageError(f"--host {self.host} needs a --token")
        if self.token is not None and (len(self.token) < 16 or not self.token.isascii()):
            raise UsageError("--token takes at least 16 ASCII characters: openssl rand -hex 16 makes one")
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise UsageError(f"--origin takes an address without a path, as in https://example.org, not {origin!r}")
        if self.read_only and self.watch:
            raise UsageError("--watch cannot be used with --read-only")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port {self.port}: must be 0 to 65535")


class LimitedProtocol(H11Protocol):
    """Closes connections that send no whole request in time, and those of an address that has too many."""

    request_seconds = 15.0
    max_per_address = 200
    num_open: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle_since, self.last_cycle = time.monotonic(), self.cycle
        self.address = self.client[0] if self.client else ""
        self.num_open[self.address] += 1
        self.timer = self.loop.call_later(self.request_seconds / 4, self._close_if_idle)
        if self.num_open[self.address] > self.max_per_address:
            transport.close()

    def _close_if_idle(self) -> None:
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy or self.cycle is not self.last_cycle:
            self.idle_since, self.last_cycle = time.monotonic(), self.cycle
        if time.monotonic() - self.idle_since > self.request_seconds:
            self.transport.close()
            return
        self.timer = self.loop.call_later(self.request_seconds / 4, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        self.num_open[self.address] -= 1
        if not self.num_open[self.address]:
            del self.num_open[self.address]
        super().connection_lost(exc)


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(folder: str, settings: Settings) -> None:
    """Serve a library until SIGTERM or Ctrl-C."""
    settings.check()
    tokens = read_tokens(settings.tokens) if settings.tokens else {}
    if tokens:  # say who changes documents
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("randslot").setLevel(logging.INFO)

    watchdog = Timer(4.0, os._exit, [0])  # the library survives a kill at any moment
    watchdog.daemon = True
    try:
        with (
            listen(settings.host, settings.port) as listener,
            take_over(folder, settings) as library,
            LibraryServer(library),
        ):
            library.models.reranker = settings.rerank
            library.models.find_reranker(None)  # the first search should not wait for it
            service = Service(library, read_only=settings.read_only)
            app = make_app(service, Access(settings.token, settings.origins, LOCAL | {settings.host}, tokens))
            where = show_address(settings.host, listener.getsockname()[1])
            print(f"serving {library.name} at {where} (Ctrl-C stops)", flush=True)
            watch = Watch(SharedLibrary(library), list(settings.watch), say, settings.poll) if settings.watch else None
            if watch:
                watch.start()
            _run(uvicorn.Config(app, http=LimitedProtocol, log_level="warning", timeout_graceful_shutdown=5), listener)
            watchdog.start()
            if watch:
                watch.close()
            service.close(2.0)
            waiting = service.uploads.num_waiting() if service.uploads else 0
    except KeyboardInterrupt:
        os._exit(130)
    finally:
        watchdog.cancel()
    say(f"stopped: {plural(waiting, 'upload')} left for the next start" if waiting else "stopped")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def take_over(folder: str, settings: Settings) -> Library:
    """Open a library; ask an agent or application that has it open to release it."""
    options: dict[str, Any] = {"query_model": settings.query_model, "trust_remote_code": settings.trust_remote_code}
    for _ in range(3):  # the other process may need it again at once
        try:
            return Library(folder, settings.model, create=settings.new, **options)
        except InUseError as error:
            if error.socket is None:
                raise
            with LibraryClient(folder, error.socket) as other:
                if not other.ask_to_release():
                    raise
            say("took the library over from the process that had it open")
    return Library(folder, settings.model, create=settings.new, **options)


def show_address(host: str, port: int) -> str:
    """Return the address to open."""
    if host in ("0.0.0.0", "::", ""):
        return f"http://localhost:{port}, and from elsewhere by this machine's name or address"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = f"{first_line(error).split(' (')[0]}: choose another --port or --host"
        raise UsageError(f"cannot listen on {host}, port {port}: {reason}") from error
    # Otherwise the body of an answer waits 40 ms until the client has acknowledged its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _run(config: uvicorn.Config, listener: socket.socket) -> None:
    """Run until a signal; uvicorn raises it again at the end, which here only ends the run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max_files, 65_536), max_files))  # sockets are files
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        return
