"""A library on a Qdrant server or cluster. The only file that imports qdrant_client.

Two collections make a library. COLLECTION holds the pages: points with a multivector and the payload file, number and
image, as any client can read them. COLLECTION-files holds points without vectors: one for each file (the manifest), one
about the library (format and model), and one that says whose turn it is to write.

Every request may be sent again: ids are those of pages and files, so what arrives twice is stored once.
"""

from __future__ import annotations

import logging
import os
import random
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from heapq import nlargest
from itertools import chain
from threading import Event
from typing import Any, TypeVar

import grpc
import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from ...errors import BusyError, RandSlotError, UsageError, first_line
from ..address import FILES, SETTINGS, Address
from ..location import Home, lost_pages
from ..records import ServerManifest, Turn, is_id
from .edge import CANDIDATES, CODES_FROM, COMPRESS_FROM, NAME, OVERSAMPLING
from .store import Found, StoredPage, Vectors, Where

T = TypeVar("T")
NOTES = logging.getLogger("randslot")

KEY = "QDRANT_API_KEY"
OLDEST = (1, 17)  # of servers: older ones do not know updates with a condition
REQUEST_BYTES = 8 * 2**20  # of the points or queries in one request; the server's limit is 32 MiB
READ_POINTS, LISTED_POINTS = 64, 1000  # in one answer, with and without vectors
FILTERED_FILES, ID_BYTES = 50_000, 40  # ids in the filter of one query, and what each takes
WAITS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a request is sent again
SHORT_WAITS = WAITS[:3]  # when it may be the address that is wrong
TOLD_FROM = 2.0  # the first wait that is told of
SECONDS = 60  # that one request may take
PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,  # what a cluster answers while too few copies of a shard are there
}
TOO_LARGE = "message larger than max"  # of a request that no waiting makes smaller
GRAPH_FROM = 1_000_000  # pages of a shard from which an index of neighbours is worth its memory; see docs/scale.md
GRAPH_EDGES = 16
HOME, TURN = (str(uuid.uuid5(uuid.NAMESPACE_URL, f"randslot:{name}")) for name in ("library", "turn"))


class Connection:
    """A server, and what asks it again when it does not answer."""

    def __init__(self, client: QdrantClient, address: Address) -> None:
        self.client, self.address = client, address
        self.may_write: Callable[[], None] = lambda: None  # raises when it is another's turn
        self.waits: tuple[float, ...] = WAITS
        self.away = Event()  # waited for in vain: until it answers again, nobody waits for it once more
        self.told = False  # that it does not answer

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client, again and again for some forty seconds if the server is out of reach.

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
                self.told = False
                return answer

    def _wait(self, seconds: float, least: float) -> bool:
        """Wait, and say so once it gets long; return False if another thread found that there is no use in it."""
        if seconds >= TOLD_FROM and not self.told:
            self.told = True
            NOTES.warning("note: no answer from %s, trying again for half a minute", self.address)
        try:
            return not self.away.wait(max(seconds * random.uniform(1.0, 1.5), least))
        except KeyboardInterrupt:
            self.away.set()  # what is left to do on the way out is tried once
            raise

    def write(self, method: str, **arguments: Any) -> Any:
        """Call a method that changes something, and return when it is safe on the server."""
        self.may_write()
        return self.ask(method, wait=True, **arguments)

    def close(self) -> None:
        self.client.close()


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
    if isinstance(error, grpc.RpcError):
        return error.code() in PASSING and TOO_LARGE not in str(error.details())
    return not isinstance(error, UnexpectedResponse) or error.status_code in (429, 500, 502, 503, 504)


def _reason(error: Exception) -> str:
    if not isinstance(error, grpc.RpcError):
        return first_line(error)
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return f"the server refuses this key: put the right one into the environment as {KEY}"
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return "no server answers there: is it running, is this its gRPC port, and does it speak TLS or not?"
    return f"{error.details()} ({error.code().name.lower().replace('_', ' ')})".splitlines()[0]


# -- pages


class ServerStore:
    """Pages in a collection of a server."""

    def __init__(self, connection: Connection, dim: int) -> None:
        """Open a collection, or make one.

        Errors: UsageError if it is there with other settings than the address says.
        """
        self.connection, self.address = connection, connection.address
        self.name = self.address.collection
        if connection.ask("collection_exists", collection_name=self.name):
            self._check(dim)
        else:
            make_pages(connection, dim)

    def _check(self, dim: int) -> None:
        params = self.connection.ask("get_collection", collection_name=self.name).config.params
        vectors = params.vectors.get(NAME) if isinstance(params.vectors, Mapping) else None
        if vectors is None or vectors.size != dim or vectors.multivector_config is None:
            raise UsageError(f"{self.address} is there and holds no pages of {dim} dimensions: name another collection")
        found = (params.shard_number, params.replication_factor, params.write_consistency_factor)
        for name, now in zip(SETTINGS, found, strict=True):
            wanted = getattr(self.address, name)
            if wanted not in (None, now):
                raise UsageError(f"{self.address} has {name}={now}, which was chosen when it was made, not {wanted}")

    def add(self, pages: Sequence[StoredPage]) -> None:
        for some in split_pages(pages):
            self.connection.write("upsert", collection_name=self.name, points=[make_point(page) for page in some])

    def delete(self, file: str) -> None:
        self.connection.write("delete", collection_name=self.name, points_selector=_equal(file=file))

    def search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[Found]]:
        if where.files is None:
            parts = [where]
        else:  # too many ids for one query: the best of several
            seen = sorted(where.files - where.hidden)
            some = _chunks(seen, FILTERED_FILES)
            parts = [replace(where, files=frozenset(files), hidden=frozenset()) for files in some]
        found = [self._search(queries, k, part, exact) for part in parts]
        return [nlargest(k, chain(*(hits[i] for hits in found)), key=_score) for i in range(len(queries))]

    def _search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[Found]]:
        """Search in requests below the server's limit: each query comes with the whole filter."""
        some = _filter(where)
        ids = ID_BYTES * len(where.hidden if where.files is None else where.files)
        codes = models.QuantizationSearchParams(
            ignore=exact, rescore=True, oversampling=max(OVERSAMPLING, CANDIDATES / max(k, 1))
        )
        found: list[list[Found]] = []
        for batch in _split(queries, lambda query: 4 * query.size + ids):
            requests = [
                models.QueryRequest(
                    query=query.tolist(),
                    using=NAME,
                    limit=k,
                    filter=some,
                    with_payload=["file", "number"],
                    params=models.SearchParams(exact=exact, quantization=codes),
                )
                for query in batch
            ]
            answers = self.connection.ask("query_batch_points", collection_name=self.name, requests=requests)
            found += [[_found(point) for point in answer.points] for answer in answers]
        return found

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        records = (
            self.connection.ask("retrieve", collection_name=self.name, ids=some, with_payload=True, with_vectors=True)
            for some in _chunks([id for id in ids if is_id(id)], READ_POINTS)
        )
        return {str(record.id): _page(record) for record in chain(*records)}

    def images(self, file: str) -> dict[int, str]:
        records = _scroll(self.connection, self.name, _equal(file=file), {})
        return {int(record.payload["number"]): str(record.payload["image"]) for record in records}

    def counts(self) -> dict[str, int]:
        limit = self.num_pages() + 1
        hits = self.connection.ask("facet", collection_name=self.name, key="file", limit=limit, exact=True).hits
        return {str(hit.value): int(hit.count) for hit in hits if hit.count}

    def num_pages(self) -> int:
        """Return how many pages are stored, also of files that are not whole."""
        return int(self.connection.ask("count", collection_name=self.name, exact=True).count)

    def flush(self) -> None:
        """Nothing to do: a write is answered when it is in the server's log."""

    def optimize(self) -> None:
        """The server does that by itself; here it is told whether it should have a graph."""
        params = self.connection.ask("get_collection", collection_name=self.name).config.params
        edges = num_edges(self.num_pages() // (params.shard_number or 1))
        now = params.vectors[NAME].hnsw_config
        if now is None or now.m != edges:
            change = {NAME: models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=edges))}
            self.connection.ask("update_collection", collection_name=self.name, vectors_config=change)

    def close(self) -> None:
        """Nothing to do: the connection is closed by who made it."""


def make_pages(connection: Connection, dim: int) -> None:
    """Make the collection of pages: half precision on disk, codes of large ones in memory, no graph yet."""
    address = connection.address
    codes = models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    vectors = models.VectorParams(
        size=dim,
        distance=models.Distance.DOT,
        multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        datatype=models.Datatype.FLOAT16,
        on_disk=True,
        quantization_config=codes if dim >= CODES_FROM else None,
        hnsw_config=models.HnswConfigDiff(m=num_edges(0)),
    )
    _make(
        connection,
        address.collection,
        vectors_config={NAME: vectors},
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=COMPRESS_FROM),
        on_disk_payload=True,
        shard_number=address.shards,
        replication_factor=address.replicas,
        write_consistency_factor=address.consistency,
    )
    kinds = {"file": models.PayloadSchemaType.KEYWORD, "number": models.PayloadSchemaType.INTEGER}
    _index(connection, address.collection, kinds)


def num_edges(pages: int) -> int:
    """Return how many edges a page of a shard with so many pages has in the graph; 0 for no graph."""
    return GRAPH_EDGES if pages >= GRAPH_FROM else 0


def split_pages(pages: Sequence[StoredPage]) -> Iterator[list[StoredPage]]:
    """Split pages into requests that stay below the server's limit: four bytes a number."""
    return _split(pages, lambda page: 4 * page.vectors.size)


def _split(values: Sequence[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Split what has a size in bytes, and needs some for the rest, into requests below the server's limit."""
    some: list[T] = []
    size = 0
    for value in values:
        own = size_of(value) + 256
        if some and size + own > REQUEST_BYTES:
            yield some
            some, size = [], 0
        some.append(value)
        size += own
    if some:
        yield some


def make_point(page: StoredPage) -> models.PointStruct:
    """Return a page as a point of the collection."""
    payload = {"file": page.file, "number": page.number, "image": page.image}
    # Half precision is what is kept: rounded here, all copies of a page and all engines have the same numbers.
    vectors = page.vectors.astype(np.float16).astype(np.float32)
    return models.PointStruct(id=page.id, vector={NAME: vectors.tolist()}, payload=payload)


def _page(record: Any) -> StoredPage:
    payload, vectors = record.payload, np.array(record.vector[NAME], np.float32)
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), vectors)


def _found(point: Any) -> Found:
    return Found(str(point.id), str(point.payload["file"]), int(point.payload["number"]), float(point.score))


def _score(found: Found) -> float:
    return found.score


def _equal(**values: str | tuple[str, ...]) -> models.Filter:
    given = {key: (value,) if isinstance(value, str) else value for key, value in values.items()}
    return models.Filter(must=[_any_of(key, some) for key, some in given.items()])


def _any_of(key: str, values: Iterable[str]) -> models.FieldCondition:
    return models.FieldCondition(key=key, match=models.MatchAny(any=sorted(values)))


def _filter(where: Where) -> models.Filter | None:
    must: list[Any] = [] if where.files is None else [_any_of("file", where.files)]
    if where.first > 1 or where.last is not None:
        must.append(models.FieldCondition(key="number", range=models.Range(gte=where.first, lte=where.last)))
    hidden = [_any_of("file", where.hidden)] if where.hidden else None
    return models.Filter(must=must or None, must_not=hidden) if must or hidden else None


def _scroll(
    connection: Connection, collection: str, some: models.Filter | None, options: dict[str, Any]
) -> Iterator[Any]:
    offset = None
    while True:
        records, offset = connection.ask(
            "scroll",
            collection_name=collection,
            scroll_filter=some,
            limit=LISTED_POINTS,
            offset=offset,
            with_payload=True,
            **options,
        )
        yield from records
        if offset is None:
            return


def _chunks(values: Sequence[T], num: int) -> Iterator[list[T]]:
    for start in range(0, len(values), num):
        yield list(values[start : start + num])


def _make(connection: Connection, collection: str, **settings: Any) -> None:
    """Make a collection, also if a request to do so was answered by a node that is lost now."""
    try:
        connection.ask("create_collection", collection_name=collection, **settings)
    except RandSlotError:
        if not connection.ask("collection_exists", collection_name=collection):
            raise


def _index(connection: Connection, collection: str, kinds: Mapping[str, models.PayloadSchemaType]) -> None:
    for field, kind in kinds.items():
        connection.ask(
            "create_payload_index", collection_name=collection, field_name=field, field_schema=kind, wait=True
        )


# -- files


class ServerRecords:
    """Points without vectors, in the collection beside the pages. One shard, so that one request is one step."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.address.collection + FILES
        # Copies may lag behind: most of them must agree on what is read, and one node orders what is written.
        self.reading = {"consistency": models.ReadConsistencyType.MAJORITY}
        self.writing = {"ordering": models.WriteOrdering.STRONG}

    def exist(self) -> bool:
        """Whether the collection is there."""
        return bool(self.connection.ask("collection_exists", collection_name=self.name))

    def make(self) -> None:
        """Make the collection."""
        address = self.connection.address
        _make(
            self.connection,
            self.name,
            vectors_config={},
            shard_number=1,
            replication_factor=address.replicas,
            write_consistency_factor=address.consistency,
        )
        keyword, number = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.INTEGER
        kinds = {
            "kind": keyword,
            "source": keyword,
            "hash": keyword,
            "state": keyword,
            "token": keyword,
            "num_pages": number,
        }
        _index(self.connection, self.name, kinds)

    def put(self, records: Mapping[str, Mapping[str, Any]], *, only_if: Mapping[str, str] | None = None) -> None:
        """Keep records by their ids. only_if: leave one alone that is there and has another value than this."""
        points = [models.PointStruct(id=id, vector={}, payload=dict(record)) for id, record in records.items()]
        for some in _chunks(points, LISTED_POINTS):
            if only_if is None:
                self.connection.write("upsert", collection_name=self.name, points=some, **self.writing)
            else:
                more = {"update_filter": _equal(**only_if), "wait": True, **self.writing}
                self.connection.ask("upsert", collection_name=self.name, points=some, **more)

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return records by their ids; those that are not there are left out."""
        found: dict[str, dict[str, Any]] = {}
        for some in _chunks(list(ids), LISTED_POINTS):
            records = self.connection.ask(
                "retrieve", collection_name=self.name, ids=some, with_payload=True, **self.reading
            )
            found |= {str(record.id): record.payload for record in records}
        return found

    def find(self, **values: str | tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return the records with these values, or one of several."""
        records = _scroll(self.connection, self.name, _equal(**values), self.reading)
        return {str(record.id): record.payload for record in records}

    def forget(self, id: str) -> None:
        """Remove a record."""
        self.connection.write("delete", collection_name=self.name, points_selector=[id], **self.writing)

    def tally(self, key: str, **values: str) -> dict[int, int]:
        """Return how many of the records with these values have each number of a key."""
        limit = int(self.connection.ask("count", collection_name=self.name, exact=True).count) + 1
        hits = self.connection.ask(
            "facet",
            collection_name=self.name,
            key=key,
            facet_filter=_equal(**values),
            limit=limit,
            exact=True,
            **self.reading,
        ).hits
        return {int(hit.value): int(hit.count) for hit in hits}


# -- the library


class Server:
    """The home of a library on a server."""

    def __init__(self, address: Address, *, create: bool, connection: Connection | None = None) -> None:
        """Connect to a server.

        Errors: RandSlotError in one line if it is out of reach, or the collection is there and no library.
        """
        self.name, self.folder = str(address), address.folder
        self.connection = connection or connect(address)
        self.records = ServerRecords(self.connection)
        self.manifest = ServerManifest(self.records)
        self._turn = Turn(self.records, TURN, self.name)
        self.connection.may_write = self._turn.check
        if self.read() is None:
            self._check_new(create)

    def _check_new(self, create: bool) -> None:
        collection = self.connection.address.collection
        if not create:
            self.abandon()
            raise UsageError(f"no library at {self.name}: randslot index makes one")
        if (
            self.connection.ask("collection_exists", collection_name=collection)
            and self.connection.ask("count", collection_name=collection, exact=True).count
        ):
            self.abandon()
            raise UsageError(f"{self.name} is no library and not empty: name another collection")

    def read(self) -> dict[str, Any] | None:
        return self.records.get([HOME]).get(HOME) if self.records.exist() else None

    def write(self, about: dict[str, Any]) -> None:
        """Write about the library last: a half-made one is no library, and is made whole when it is made again."""
        if not self.records.exist():
            self.records.make()
        ServerStore(self.connection, int(about["model"]["dimension"]))
        with self.turn():
            self.records.put({HOME: about})

    def open(self, dim: int, *, repair: bool) -> None:
        collection = self.connection.address.collection
        if not (repair or self.connection.ask("collection_exists", collection_name=collection)):
            raise lost_pages(self.name)
        self.store = ServerStore(self.connection, dim)

    def turn(self) -> AbstractContextManager[None]:
        return self._turn.hold()

    def is_same(self, other: Home) -> bool:
        now = self.records.get([TURN]).get(TURN, {})
        return isinstance(other, Server) and now.get("token") == other._turn.token

    def size(self) -> int:
        """Return the bytes of the vectors in half precision: what a server takes on disk it does not tell."""
        about = self.read() or {}
        model = about.get("model", {})
        return 2 * self.store.num_pages() * int(model.get("page_vectors", 0)) * int(model.get("dimension", 0))

    def close(self) -> None:
        self.connection.close()

    def abandon(self) -> None:
        self.connection.close()
