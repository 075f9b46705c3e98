"""A connection to a Qdrant server or cluster: requests, and retries while it does not answer.

Every request may be sent again: ids are those of pages and files, so what arrives twice is stored once.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any, TypeVar

import grpc
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from ...errors import BusyError, RandSlotError, first_line
from ..address import Address

T = TypeVar("T")
NOTES = logging.getLogger("randslot")

KEY = "QDRANT_API_KEY"
OLDEST = (1, 16)  # of servers: the lease needs updates with a condition, and phrases an index of words
LISTED_POINTS = 1000  # in one answer or update, without vectors
WAITS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a request is sent again
SHORT_WAITS = WAITS[:3]  # when it may be the address that is wrong
NOTED_FROM = 2.0  # the first wait that the user is told about
SECONDS = 60  # that one request may take
PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,  # what a cluster answers while too few copies of a shard are there
}
PASSING_STATUSES = (429, 500, 502, 503, 504)  # of HTTP
TOO_LARGE = "message larger than max"  # of a request that no waiting makes smaller


class Connection:
    """A server, with retries when it does not answer."""

    def __init__(self, client: QdrantClient, address: Address) -> None:
        self.client, self.address = client, address
        self.check_write: Callable[[], None] = lambda: None  # raises if this process may not write
        self.waits: tuple[float, ...] = WAITS
        self.away = Event()  # waited for in vain: until it answers again, nobody waits for it once more
        self.noted = False  # that it does not answer

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client, and retry for some forty seconds if the server is out of reach.

        Errors: RandSlotError in one line; a BusyError if that was not enough.
        """
        waits = iter(() if self.away.is_set() else self.waits)
        while True:
            try:
                answer = getattr(self.client, method)(**arguments)
            except (grpc.RpcError, ResourceExhaustedResponse, ResponseHandlingException, UnexpectedResponse) as error:
                if not _is_passing(error):
                    raise RandSlotError(f"{self.address}: {_reason(error)}") from error
                wait = next(waits, None)
                if wait is None or not self._wait(wait, getattr(error, "retry_after_s", 0)):
                    self.away.set()
                    raise BusyError(f"{self.address}: {_reason(error)}") from error
            else:
                self.away.clear()
                self.noted = False
                return answer

    def _wait(self, seconds: float, least: float) -> bool:
        """Wait, and say so once it gets long; return False if another thread has given up meanwhile."""
        if seconds >= NOTED_FROM and not self.noted:
            self.noted = True
            NOTES.warning("note: no answer from %s, trying again for half a minute", self.address)
        try:
            return not self.away.wait(max(seconds * random.uniform(1.0, 1.5), least))
        except KeyboardInterrupt:
            self.away.set()  # what is left to do on the way out is tried once
            raise

    def write(self, method: str, **arguments: Any) -> Any:
        """Call a method that changes something, and return when it is safe on the server."""
        self.check_write()
        return self.ask(method, wait=True, **arguments)

    def close(self) -> None:
        self.client.close()

    # -- requests that pages and records have in common

    def exists(self, collection: str) -> bool:
        """Whether there is such a collection."""
        return bool(self.ask("collection_exists", collection_name=collection))

    def count(self, collection: str) -> int:
        """Return how many points a collection has."""
        return int(self.ask("count", collection_name=collection, exact=True).count)

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
        client = QdrantClient(
            host=address.host,
            grpc_port=address.port,
            prefer_grpc=True,
            https=address.tls,
            api_key=os.environ.get(KEY) or None,
            timeout=SECONDS,
            check_compatibility=False,  # asks another port
        )
    connection = Connection(client, address)
    try:
        _check_version(connection)
    except RandSlotError:
        connection.close()
        raise
    return connection


def _check_version(connection: Connection) -> None:
    connection.waits = SHORT_WAITS
    version = str(connection.ask("info").version)
    connection.waits = WAITS
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RandSlotError(f"{connection.address} is Qdrant {version}: {oldest} or newer is needed")


def _is_passing(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, grpc.RpcError):
        return error.code() in PASSING and TOO_LARGE not in str(error.details())
    return not isinstance(error, UnexpectedResponse) or error.status_code in PASSING_STATUSES


def _reason(error: Exception) -> str:
    if not isinstance(error, grpc.RpcError):
        return first_line(error)
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return f"the server refuses this key: put the right one into the environment as {KEY}"
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return "no server answers there: is it running, is this its gRPC port, and does it speak TLS or not?"
    return f"{error.details()} ({error.code().name.lower().replace('_', ' ')})".splitlines()[0]


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
