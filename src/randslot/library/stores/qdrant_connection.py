"""A connection to a Qdrant server or cluster: requests, retries while it does not answer, other nodes when one is lost.

Every request may be sent again: ids are those of pages and files, so what arrives twice is stored once.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, local
from typing import Any, TypeVar

import grpc
from qdrant_client import QdrantClient, models
from qdrant_client import grpc as messages
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from ...errors import BusyError, RandSlotError, first_line
from ..address import Address

T = TypeVar("T")
NOTES = logging.getLogger("randslot")

KEY = "QDRANT_API_KEY"
OLDEST = (1, 16)  # of servers: records need updates with a condition, and phrases an index of words
LISTED_POINTS = 1000  # in one answer or update, without vectors
WAITS = (0.25, 0.5, *(1.0,) * 30)  # seconds before a request is sent again
NOTED_FROM = 2.0  # seconds of waiting after which the user is told about it
RETRY_SECONDS = 30  # from the start of a request, after which it is not sent again
ANSWER_SECONDS = 30  # that one answer may take; with the above, a request ends within a minute
FIRST_SECONDS = 5  # the same of the first request, when it may be the address that is wrong
AGREE_SECONDS = 3  # that a cluster may take to agree: a node that was not heard, since its leader died, must ask again
LONGEST = 400  # characters of a server's reason
PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,  # what a cluster answers while too few copies of a shard are there
}
PASSING_STATUSES = (429, 500, 502, 503, 504)  # of HTTP
TOO_LARGE = "message larger than max"  # of a request that no waiting makes smaller
NO_GRPC = "http2 header with status"  # in that of something else than a gRPC server
# One node to another, as the answer tells it, in Rust: Tonic status error: status: Unavailable, message: "...", ...
BETWEEN_NODES = r'Tonic status error: (?:status|code): \W*(\w+).*?(?:, message: "(.*?)", details|$)'
AWAY = ("Unavailable", "DeadlineExceeded", "Cancelled", "Unknown")
NO_MAJORITY = "Waiting for consensus operation"
FROM_SERVER = "received from peer"  # in the description of an error that a server has answered with
ERRORS = (grpc.RpcError, ResourceExhaustedResponse, ResponseHandlingException, UnexpectedResponse)

# gRPC waits up to two minutes before it connects again, and does not notice a machine that is gone without a word. Such
# a machine is given up after ten seconds: on a slow line, an answer to a ping waits behind a large request.
CHANNEL = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 1000,  # what connecting may take
    "grpc.max_reconnect_backoff_ms": 500,
    "grpc.keepalive_time_ms": 4000,
    "grpc.keepalive_timeout_ms": 6000,
    "grpc.http2.ping_timeout_ms": 6000,
    "grpc.http2.min_time_between_pings_ms": 1000,
    "grpc.http2.max_pings_without_data": 0,  # no limit
}


class NotFoundError(RandSlotError):
    """What was asked for is not on the server."""


class Connection:
    """A server, or the nodes of a cluster, of which one is asked until it fails."""

    def __init__(self, clients: Sequence[Any], address: Address) -> None:
        """clients: one for each node of the address."""
        self.clients, self.address = list(clients), address
        self.current = 0  # the node that is asked
        self.check_write: Callable[[], None] = lambda: None  # raises if this process may not write
        self.catch_up: Callable[[], None] = lambda: None  # has the node know all that happened before
        self.fresh = [False] * len(self.clients)  # whether a node has caught up since it last failed
        self.waits: tuple[float, ...] = WAITS
        self.retry_seconds = RETRY_SECONDS
        self.away = Event()  # waited for in vain: until it answers again, nobody waits for it once more
        self.lost: set[str] = set()  # collections of which that is so: others may answer, if only some nodes are away
        self.noted = False  # that it does not answer
        self.here = local()

    @property
    def client(self) -> Any:
        """The client of the node that is asked."""
        return self.clients[self.current]

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client; if it fails for now, ask the other nodes, wait, and ask again.

        Errors: RandSlotError in one line; a BusyError if that was not enough, within a minute.
        """
        return self._ask(method, arguments, lambda: None)

    def write(self, method: str, **arguments: Any) -> Any:
        """Call a method that changes something, and return when it is safe on the server."""
        return self._ask(method, {"wait": True, **arguments}, self.check_write)

    def upsert(self, request: messages.UpsertPoints) -> None:
        """Store points that are messages already: the client takes longer to make them from its own models."""

        def send(client: Any) -> None:
            client.grpc_points.Upsert(request, timeout=ANSWER_SECONDS)

        self._call(send, self.check_write, request.collection_name)

    def arrive(self) -> str:
        """Ask for the first time, and return the server's version.

        Errors: as of ask, but sooner.
        """
        self.retry_seconds = FIRST_SECONDS
        self.noted = True  # the error comes soon enough
        try:
            return str(self.ask("info").version)
        finally:
            self.retry_seconds = RETRY_SECONDS
            self.noted = False

    def _ask(self, method: str, arguments: Mapping[str, Any], check: Callable[[], None]) -> Any:
        collection = str(arguments.get("collection_name", ""))
        return self._call(lambda client: getattr(client, method)(**arguments), check, collection)

    def _call(self, send: Callable[[Any], Any], check: Callable[[], None], collection: str) -> Any:
        """send: to a node, by its client. check: called each time before."""
        start = time.monotonic()
        waits = iter(() if self.away.is_set() or collection in self.lost else self.waits)
        failures: list[Exception] = []  # of nodes, since the last wait
        while True:
            number = self._catch_up()
            try:
                check()
                answer = send(self.clients[number])
            except ERRORS as error:
                if not _is_passing(error):
                    raise _make_error(self.address, error) from error
                self._leave(number)
                failures.append(error)
                passed = time.monotonic() - start
                if len(failures) < len(self.clients) and passed < RETRY_SECONDS + 1:
                    continue
                failure = next(filter(_is_answer, failures), error)  # a node that is there knows more
                failures = []
                if passed >= NOTED_FROM:
                    self._note(failure)
                wait = next(waits, None)
                if wait is None or passed + wait > self.retry_seconds or not self._wait(wait, failure):
                    self.away.set()
                    self.lost.add(collection)
                    raise BusyError(f"{self.address}: {_reason(failure)}") from failure
            else:
                self.here.answered = number
                self.away.clear()
                self.lost.discard(collection)
                self.noted = False
                return answer

    def agree(self, changes: Sequence[Any]) -> None:
        """Change aliases: the nodes of a cluster agree on the order of all such changes.

        Afterwards the node that was asked knows all that happened before. Errors: NotFoundError.
        """
        with self._no_catching_up():
            self.ask("update_collection_aliases", change_aliases_operations=list(changes), timeout=AGREE_SECONDS)
            self.fresh = [number == self.here.answered for number in range(len(self.clients))]

    def _catch_up(self) -> int:
        """Return the node to ask; if this process writes, one that failed has to know first what happened."""
        number = self.current
        while not self.fresh[number] and not getattr(self.here, "catching_up", False):
            with self._no_catching_up():
                self.catch_up()
            if self.current == number:
                self.fresh[number] = True
            number = self.current  # another one, if it failed just now
        return number

    @contextmanager
    def _no_catching_up(self) -> Iterator[None]:
        """A block in which requests of this thread are those by which a node catches up."""
        before = getattr(self.here, "catching_up", False)
        self.here.catching_up = True
        try:
            yield
        finally:
            self.here.catching_up = before

    def _leave(self, number: int) -> None:
        """Go on with the next node, unless another thread has done so."""
        self.fresh[number] = False
        if self.current == number:
            self.current = (number + 1) % len(self.clients)

    def _note(self, error: Exception) -> None:
        """Tell the user, once, that this takes longer, and why."""
        if not self.noted:
            self.noted = True
            NOTES.warning("note: %s: %s; trying again for half a minute", self.address, _reason(error))

    def _wait(self, seconds: float, error: Exception) -> bool:
        """Wait; return False if another thread has given up meanwhile."""
        least = getattr(error, "retry_after_s", 0)
        try:
            return not self.away.wait(max(seconds * random.uniform(1.0, 1.5), least))
        except KeyboardInterrupt:
            self.away.set()  # what is left to do on the way out is tried once
            raise

    def close(self) -> None:
        for client in self.clients:
            client.close()

    # -- requests that pages and records have in common

    def exists(self, collection: str) -> bool:
        """Whether there is such a collection."""
        return bool(self.ask("collection_exists", collection_name=collection))

    def count(self, collection: str, *, exact: bool = True) -> int:
        """Return how many points a collection has. Every shard is asked; about how many is cheap."""
        return int(self.ask("count", collection_name=collection, exact=exact).count)

    def make(self, collection: str, fields: Mapping[str, Any], **settings: Any) -> None:
        """Make a collection with indexes of these fields; it may be half made by a node that was lost since."""
        try:
            self.ask("create_collection", collection_name=collection, **settings)
        except RandSlotError:
            if not self.exists(collection):
                raise
        self.index(collection, fields)

    def index(self, collection: str, fields: Mapping[str, Any]) -> None:
        """Make indexes of some fields."""
        for field, kind in fields.items():
            self.ask("create_payload_index", collection_name=collection, field_name=field, field_schema=kind, wait=True)

    def scroll(self, collection: str, some: models.Filter, **options: Any) -> Iterator[Any]:
        """Yield the points that a filter lets through, with their payload, or parts of it."""
        options = {"with_payload": True, **options}
        offset = None
        while True:
            records, offset = self.ask(
                "scroll",
                collection_name=collection,
                scroll_filter=some,
                limit=LISTED_POINTS,
                offset=offset,
                **options,
            )
            yield from records
            if offset is None:
                return


def connect(address: Address) -> Connection:
    """Connect to a server by gRPC.

    Errors: RandSlotError if it is out of reach, or too old.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
        clients = [_make_client(host, port, address.tls) for host, port in address.nodes]
    connection = Connection(clients, address)
    try:
        _check_version(connection)
    except RandSlotError:
        connection.close()
        raise
    return connection


def _make_client(host: str, port: int, tls: bool) -> QdrantClient:
    return QdrantClient(
        host=host,
        grpc_port=port,
        prefer_grpc=True,
        https=tls,
        api_key=os.environ.get(KEY) or None,
        timeout=ANSWER_SECONDS,
        check_compatibility=False,  # asks another port
        grpc_options=dict(CHANNEL),  # the client adds to it
        pool_size=1,  # one connection, and so one node if the address stands for several
    )


def _check_version(connection: Connection) -> None:
    version = connection.arrive()
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RandSlotError(f"{connection.address} is Qdrant {version}: {oldest} or newer is needed")


def _is_passing(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, grpc.RpcError):
        return error.code() in PASSING and TOO_LARGE not in str(error.details())
    return not isinstance(error, UnexpectedResponse) or error.status_code in PASSING_STATUSES


def _make_error(address: Address, error: Exception) -> RandSlotError:
    missing = isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.NOT_FOUND
    return (NotFoundError if missing else RandSlotError)(f"{address}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return why a request failed, in one line."""
    if not isinstance(error, grpc.RpcError):
        return first_line(error)
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return f"the server refuses this key: put the right one into the environment as {KEY}"
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {ANSWER_SECONDS} seconds"
    if error.code() == grpc.StatusCode.UNAVAILABLE and not _is_answer(error):
        return "no server answers there: is it running, is this its gRPC port, and does it speak TLS or not?"
    if error.code() == grpc.StatusCode.UNIMPLEMENTED and NO_GRPC in str(error.details()):
        return "what answers there is not Qdrant's gRPC port, or a proxy is in between"
    details = " ".join(str(error.details()).split())  # a cluster has a line for each node
    if passed_on := re.search(BETWEEN_NODES, details):
        return _reason_between_nodes(*passed_on.groups(default=""))
    if NO_MAJORITY in details:
        return "the nodes that are left cannot agree on a change: most nodes of the cluster must be there"
    if len(details) > LONGEST:
        details = details[:LONGEST] + " ..."
    return f"{details} ({error.code().name.lower().replace('_', ' ')})"


def _reason_between_nodes(status: str, message: str) -> str:
    """Return what one node says that it got from another one."""
    if status not in AWAY:
        return message[:LONGEST]
    place = re.search(r"https?://([^/\s]+)", message)
    return f"a node that has the only copy left of some data is away{f' ({place[1]})' if place else ''}: start it again"


def _is_answer(error: Any) -> bool:
    """Whether an error comes from a server, and not from the lack of one."""
    if not isinstance(error, grpc.RpcError):
        return not isinstance(error, ResponseHandlingException)
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        describe = getattr(error, "debug_error_string", None)
        return describe is not None and FROM_SERVER in str(describe())
    return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def any_of(key: str, values: Iterable[str]) -> models.FieldCondition:
    """Return the condition that a field has one of these values."""
    return models.FieldCondition(key=key, match=models.MatchAny(any=sorted(values)))


def equal(**values: str | tuple[str, ...]) -> models.Filter:
    """Return a filter for points with these values, or one of several."""
    conditions: list[Any] = []
    for key, value in values.items():
        conditions.append(any_of(key, (value,) if isinstance(value, str) else value))
    return models.Filter(must=conditions)


def chunks(values: Sequence[T], num: int) -> Iterator[list[T]]:
    """Yield values in lists of at most `num`."""
    for start in range(0, len(values), num):
        yield list(values[start : start + num])
