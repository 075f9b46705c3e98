"""A connection to a Qdrant server or cluster: requests, retries, and failover to other nodes.

Requests are idempotent and can be retried: ids are those of pages and files.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, local
from typing import Any

import grpc
from qdrant_client import QdrantClient, models
from qdrant_client import grpc as messages
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from ...errors import BusyError, RandSlotError, first_line
from ..address import Address

BACKOFFS = (0.25, 0.5, *(1.0,) * 90)  # seconds between attempts
RETRY_SECONDS = 30  # retry a request for so long
WRITE_SECONDS = 90  # retry a write for so long: nodes wait a minute for replicas on a frozen node before they drop them
ANSWER_SECONDS = 30  # timeout of one attempt
CONNECT_SECONDS = 5  # retry the first request for so long: the address may be wrong
LISTED_POINTS = 1000  # without vectors, in one answer or update
ERRORS = (grpc.RpcError, ResourceExhaustedResponse, ResponseHandlingException, UnexpectedResponse)


class NotFoundError(RandSlotError):
    """The server does not have the requested object."""


class Connection:
    """A connection to a server or cluster. It uses one node until that fails."""

    def __init__(self, clients: Sequence[Any], address: Address) -> None:
        """clients: one per node of the address."""
        self.clients, self.address = list(clients), address
        self.current = 0  # the node in use
        self.check_write: Callable[[], None] = lambda: None  # called before each attempt to write; raises to refuse it
        self.catch_up: Callable[[], None] = lambda: None  # makes the current node apply all earlier changes
        self.caught_up = [False] * len(self.clients)  # by node, since it last failed
        self.backoffs: tuple[float, ...] = BACKOFFS
        self.retry_seconds = RETRY_SECONDS
        self.is_down = Event()  # retries failed: requests fail fast until the server answers
        self.lost: set[str] = set()  # the same by collection: others may answer if only some nodes are down
        self.is_outage_logged = False
        self.thread = local()

    @property
    def client(self) -> Any:
        """The client of the current node."""
        return self.clients[self.current]

    def ask(self, method: str, *, is_write: bool = False, **arguments: Any) -> Any:
        """Call a method of the client; retry on all nodes."""
        collection = str(arguments.get("collection_name", ""))
        return self._retry(lambda client: getattr(client, method)(**arguments), collection, is_write)

    def write(self, method: str, **arguments: Any) -> Any:
        """Call a method that writes; return when the write is durable on the server."""
        return self.ask(method, is_write=True, **{"wait": True, **arguments})

    def upsert(self, request: messages.UpsertPoints) -> None:
        """Write points given as gRPC messages."""

        def send(client: Any) -> None:
            client.grpc_points.Upsert(request, timeout=ANSWER_SECONDS)

        self._retry(send, request.collection_name, is_write=True)

    def get_version(self) -> str:
        """Return the server's version. This is the first request: it gives up sooner than others."""
        self.retry_seconds = CONNECT_SECONDS
        self.is_outage_logged = True  # the error comes soon enough
        try:
            return str(self.ask("info").version)
        finally:
            self.retry_seconds = RETRY_SECONDS
            self.is_outage_logged = False

    def update_aliases(self, changes: Sequence[Any]) -> None:
        """Update aliases, which a cluster orders by consensus.

        Afterwards the node that answered has applied all earlier changes. The timeout is short: a node whose leader
        died must retry.
        """
        with self._without_catch_up():
            self.ask("update_collection_aliases", change_aliases_operations=list(changes), timeout=3)
            self.caught_up = [number == self.thread.answered for number in range(len(self.clients))]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def _retry(self, send: Callable[[Any], Any], collection: str, is_write: bool) -> Any:
        """Try each node in turn; back off and retry after all have failed."""
        start, max_seconds = time.monotonic(), WRITE_SECONDS if is_write else self.retry_seconds
        backoffs = iter(() if self.is_down.is_set() or collection in self.lost else self.backoffs)
        failures: list[Exception] = []  # of nodes, since the last backoff
        while True:
            number = self._choose_node()
            try:
                if is_write:
                    self.check_write()
                answer = send(self.clients[number])
            except ERRORS as error:
                if not _is_transient(error):
                    missing = isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.NOT_FOUND
                    kind = NotFoundError if missing else RandSlotError
                    raise kind(f"{self.address}: {_explain(error)}") from error
                self.caught_up[number] = False
                if self.current == number:  # unless another thread has already moved to the next node
                    self.current = (number + 1) % len(self.clients)
                failures.append(error)
                passed = time.monotonic() - start
                if len(failures) < len(self.clients) and passed < max(max_seconds, RETRY_SECONDS) + 1:
                    continue
                failure = next(filter(_is_answer, failures), error)  # prefer the error of a node that answered
                failures = []
                if passed >= 2.0 and not self.is_outage_logged:
                    self.is_outage_logged = True
                    note = "note: %s: %s; retrying"
                    logging.getLogger("randslot").warning(note, self.address, _explain(failure))
                wait = next(backoffs, None)
                if wait is None or passed + wait > max_seconds or not self._wait(wait, failure):
                    self.is_down.set()
                    self.lost.add(collection)
                    raise BusyError(f"{self.address}: {_explain(failure)}") from failure
            else:
                self.thread.answered = number
                self.is_down.clear()
                self.lost.discard(collection)
                self.is_outage_logged = False
                return answer

    def _choose_node(self) -> int:
        """Return the current node; one that has failed must catch up first."""
        number = self.current
        while not self.caught_up[number] and not getattr(self.thread, "catching_up", False):
            with self._without_catch_up():
                self.catch_up()
            if self.current == number:
                self.caught_up[number] = True
            number = self.current  # another node, if this one has just failed
        return number

    @contextmanager
    def _without_catch_up(self) -> Iterator[None]:
        """Let this thread use nodes that have not caught up."""
        before = getattr(self.thread, "catching_up", False)
        self.thread.catching_up = True
        try:
            yield
        finally:
            self.thread.catching_up = before

    def _wait(self, seconds: float, error: Exception) -> bool:
        """Wait with jitter; return False if another thread has given up."""
        try:
            return not self.is_down.wait(max(seconds * random.uniform(1.0, 1.5), getattr(error, "retry_after_s", 0)))
        except KeyboardInterrupt:
            self.is_down.set()  # cleanup on the way out is not retried
            raise

    # -- requests of both collections

    def exists(self, collection: str) -> bool:
        """Whether a collection exists."""
        return bool(self.ask("collection_exists", collection_name=collection))

    def count(self, collection: str, some: models.Filter | None = None, *, exact: bool = True) -> int:
        """Count the points that pass a filter. This asks every shard; an estimate (exact=False) is cheap."""
        return int(self.ask("count", collection_name=collection, count_filter=some, exact=exact).count)

    def create(self, collection: str, fields: Mapping[str, Any], **settings: Any) -> None:
        """Create a collection with payload indexes; resume after a partial creation."""
        try:
            self.ask("create_collection", collection_name=collection, **settings)
        except RandSlotError:
            if not self.exists(collection):
                raise
        for name, schema in fields.items():
            self.ask(
                "create_payload_index", collection_name=collection, field_name=name, field_schema=schema, wait=True
            )

    def scroll(self, collection: str, some: models.Filter, **options: Any) -> Iterator[Any]:
        """Yield the points that pass a filter, with their payload."""
        options = {"with_payload": True, "limit": LISTED_POINTS, **options}
        offset = None
        while True:
            records, offset = self.ask(
                "scroll", collection_name=collection, scroll_filter=some, offset=offset, **options
            )
            yield from records
            if offset is None:
                return

    def facet(self, collection: str, key: str, some: models.Filter, limit: int) -> dict[str, int]:
        """Count the points that pass a filter, by the values of a field."""
        found = self.ask("facet", collection_name=collection, key=key, facet_filter=some, limit=limit, exact=True)
        return {str(hit.value): int(hit.count) for hit in found.hits if hit.count}


def connect(address: Address) -> Connection:
    """Connect to a server by gRPC, and check its version."""
    # By default gRPC waits up to two minutes to reconnect, and does not notice a dead machine. Ten seconds for that: on
    # a slow line, the answer to a ping waits behind a large request.
    channel_options = {
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 1000,  # timeout of a connection attempt
        "grpc.max_reconnect_backoff_ms": 500,
        "grpc.keepalive_time_ms": 4000,
        "grpc.keepalive_timeout_ms": 6000,
        "grpc.http2.ping_timeout_ms": 6000,
        "grpc.http2.min_time_between_pings_ms": 1000,
        "grpc.http2.max_pings_without_data": 0,  # no limit
    }
    clients = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
        for host, port in address.nodes:
            client = QdrantClient(
                host=host,
                grpc_port=port,
                prefer_grpc=True,
                https=address.tls,
                api_key=os.environ.get("QDRANT_API_KEY") or None,
                timeout=ANSWER_SECONDS,
                check_compatibility=False,  # uses another port
                grpc_options=dict(channel_options),  # the client modifies it
                pool_size=1,  # one connection, so one node if the address resolves to several
            )
            clients.append(client)
    connection = Connection(clients, address)
    try:
        version = connection.get_version()
        if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < (1, 16):
            # Records need conditional updates; phrases need a text index.
            raise RandSlotError(f"{address} runs Qdrant {version}: upgrade it to 1.16 or newer")
    except RandSlotError:
        connection.close()
        raise
    return connection


def is_id(text: str) -> bool:
    """Whether a text is a UUID; a server refuses other ids."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


# -- errors


def _is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, grpc.RpcError):
        codes = (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.INTERNAL,  # a cluster's answer while too few replicas of a shard are up
        )
        return error.code() in codes and "message larger than max" not in str(error.details())
    return not isinstance(error, UnexpectedResponse) or error.status_code in (429, 500, 502, 503, 504)


def _is_answer(error: Any) -> bool:
    """Whether an error is a server's answer, not a failure to reach one."""
    if not isinstance(error, grpc.RpcError):
        return not isinstance(error, ResponseHandlingException)
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        describe = getattr(error, "debug_error_string", None)
        return describe is not None and "received from peer" in str(describe())
    return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def _explain(error: Exception) -> str:
    """Explain in one line why a request failed, and what to do."""
    if not isinstance(error, grpc.RpcError):
        return first_line(error)
    code, details = error.code(), " ".join(str(error.details()).split())  # a cluster has a line for each node
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return "the server refused the API key: set QDRANT_API_KEY to a valid one"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {ANSWER_SECONDS} seconds"
    if code == grpc.StatusCode.UNAVAILABLE and not _is_answer(error):
        return "the server is unreachable: check that it runs, its gRPC port, and TLS"
    if code == grpc.StatusCode.UNIMPLEMENTED and "http2 header with status" in details:
        return "this is not Qdrant's gRPC port, or a proxy is in between"
    if "Waiting for consensus operation" in details:
        return "the cluster has no quorum: start more nodes (a majority is required)"
    # An error between nodes, in Rust: Tonic status error: status: Unavailable, message: "...", details: ...
    between = re.search(r'Tonic status error: (?:status|code): \W*(\w+).*?(?:, message: "(.*?)", details|$)', details)
    if between is None:
        short = details if len(details) <= 400 else details[:400] + " ..."
        return f"{short} ({code.name.lower().replace('_', ' ')})"
    status, message = between.groups(default="")
    if status not in ("Unavailable", "DeadlineExceeded", "Cancelled", "Unknown"):
        return message[:400]
    place = re.search(r"https?://([^/\s]+)", message)
    return f"no replica of a shard is available{f' ({place[1]})' if place else ''}: start that node"
