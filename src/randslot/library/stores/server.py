"""The store on a Qdrant server or cluster: the pages of a library in a collection that any client can read.

Pages are points with a multivector and the payload file, number and image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any, TypeVar

import numpy as np
from qdrant_client import models

from ...errors import UsageError
from ..address import SETTINGS
from ..records import is_id
from .connection import Connection, any_of, chunks, equal
from .store import StoredPage, StoreHit, Vectors, Where
from .tuning import DEFAULT_TUNING, VECTOR_NAME, Tuning

T = TypeVar("T")

READ_POINTS = 64  # in one answer, with vectors
ID_BYTES = 40  # of an id in a filter
FLOAT_BYTES = 4  # of a number in a request
POINT_BYTES = 256  # of a point or query in a request, beside its vectors and ids


@dataclass(frozen=True)
class RequestLimits:
    """How large requests may be: bytes of points or queries, and files in the filter of a query.

    The server's own limit is 32 MiB.
    """

    bytes: int = 8 * 2**20
    files: int = 50_000


DEFAULT_LIMITS = RequestLimits()


class ServerStore:
    """Pages in a collection of a server."""

    def __init__(
        self,
        connection: Connection,
        dim: int,
        tuning: Tuning = DEFAULT_TUNING,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open a collection, or make one.

        Errors: UsageError if it is there with other settings than the address says.
        """
        self.connection, self.address = connection, connection.address
        self.name = self.address.collection
        self.tuning, self.limits = tuning, limits
        if connection.exists(self.name):
            self._check(dim)
        else:
            self._make(dim)

    def _check(self, dim: int) -> None:
        params = self._params()
        vectors = params.vectors.get(VECTOR_NAME) if isinstance(params.vectors, Mapping) else None
        if vectors is None or vectors.size != dim or vectors.multivector_config is None:
            raise UsageError(f"{self.address} is there and holds no pages of {dim} dimensions: name another collection")
        found = (params.shard_number, params.replication_factor, params.write_consistency_factor)
        for name, now in zip(SETTINGS, found, strict=True):
            wanted = getattr(self.address, name)
            if wanted not in (None, now):
                raise UsageError(f"{self.address} has {name}={now}, which was chosen when it was made, not {wanted}")

    def _make(self, dim: int) -> None:
        """Make the collection: half precision on disk, codes of large vectors in memory, no graph yet."""
        codes = models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
        vectors = models.VectorParams(
            size=dim,
            distance=models.Distance.DOT,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            datatype=models.Datatype.FLOAT16,
            on_disk=True,
            quantization_config=codes if self.tuning.has_codes(dim) else None,
            hnsw_config=models.HnswConfigDiff(m=0),
        )
        self.connection.make(
            self.name,
            {"file": models.PayloadSchemaType.KEYWORD, "number": models.PayloadSchemaType.INTEGER},
            vectors_config={VECTOR_NAME: vectors},
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=self.tuning.compress_from),
            on_disk_payload=True,
            shard_number=self.address.shards,
            replication_factor=self.address.replicas,
            write_consistency_factor=self.address.consistency,
        )

    def _params(self) -> Any:
        return self.connection.ask("get_collection", collection_name=self.name).config.params

    def add(self, pages: Sequence[StoredPage]) -> None:
        for some in split_pages(pages, self.limits.bytes):
            self.connection.write("upsert", collection_name=self.name, points=[make_point(page) for page in some])

    def delete(self, file: str) -> None:
        self.connection.write("delete", collection_name=self.name, points_selector=equal(file=file))

    def search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        if where.files is None:
            return self._search(queries, k, where, exact)
        found: list[list[StoreHit]] = [[] for _ in queries]
        visible = sorted(where.files - where.hidden)
        for files in chunks(visible, self.limits.files):  # too many ids for one query: the best of several
            part = replace(where, files=frozenset(files), hidden=frozenset())
            for hits, more in zip(found, self._search(queries, k, part, exact), strict=True):
                hits.extend(more)
        return [nlargest(k, hits, key=_score) for hits in found]

    def _search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        """Search in requests below the server's limit: each query comes with the whole filter."""
        codes = models.QuantizationSearchParams(
            ignore=exact, rescore=True, oversampling=self.tuning.oversampling_for(k)
        )
        some = _filter(where)
        ids = ID_BYTES * len(where.hidden if where.files is None else where.files)
        found: list[list[StoreHit]] = []
        for batch in _split(queries, lambda query: FLOAT_BYTES * query.size + ids, self.limits.bytes):
            requests = [
                models.QueryRequest(
                    query=query.tolist(),
                    using=VECTOR_NAME,
                    limit=k,
                    filter=some,
                    with_payload=["file", "number"],
                    params=models.SearchParams(exact=exact, quantization=codes),
                )
                for query in batch
            ]
            answers = self.connection.ask("query_batch_points", collection_name=self.name, requests=requests)
            for answer in answers:
                found.append([_hit(point) for point in answer.points])
        return found

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        found: dict[str, StoredPage] = {}
        for some in chunks([id for id in ids if is_id(id)], READ_POINTS):
            records = self.connection.ask(
                "retrieve", collection_name=self.name, ids=some, with_payload=True, with_vectors=True
            )
            for record in records:
                found[str(record.id)] = _page(record)
        return found

    def images(self, file: str) -> dict[int, str]:
        records = self.connection.scroll(self.name, equal(file=file))
        return {int(record.payload["number"]): str(record.payload["image"]) for record in records}

    def counts(self) -> dict[str, int]:
        limit = self.num_pages() + 1
        hits = self.connection.ask("facet", collection_name=self.name, key="file", limit=limit, exact=True).hits
        return {str(hit.value): int(hit.count) for hit in hits if hit.count}

    def num_pages(self) -> int:
        """Return how many pages are stored, also of files that are not complete."""
        return self.connection.count(self.name)

    def flush(self) -> None:
        """Nothing to do: a write is answered when it is in the server's log."""

    def optimize(self) -> None:
        """Ask for a graph once shards are large enough; the server does the rest by itself."""
        params = self._params()
        edges = self.tuning.num_edges(self.num_pages() // (params.shard_number or 1))
        now = params.vectors[VECTOR_NAME].hnsw_config
        if now is None or now.m != edges:
            change = {VECTOR_NAME: models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=edges))}
            self.connection.ask("update_collection", collection_name=self.name, vectors_config=change)

    def close(self) -> None:
        """Nothing to do: the connection is closed by the location."""


def split_pages(pages: Sequence[StoredPage], limit: int = DEFAULT_LIMITS.bytes) -> Iterator[list[StoredPage]]:
    """Split pages into requests of at most `limit` bytes; a page that is larger is a request of its own."""
    return _split(pages, lambda page: FLOAT_BYTES * page.vectors.size, limit)


def _split(values: Sequence[T], size_of: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    some: list[T] = []
    size = 0
    for value in values:
        own = size_of(value) + POINT_BYTES
        if some and size + own > limit:
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
    return models.PointStruct(id=page.id, vector={VECTOR_NAME: vectors.tolist()}, payload=payload)


def _page(record: Any) -> StoredPage:
    payload, vectors = record.payload, np.array(record.vector[VECTOR_NAME], np.float32)
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), vectors)


def _hit(point: Any) -> StoreHit:
    return StoreHit(str(point.id), str(point.payload["file"]), int(point.payload["number"]), float(point.score))


def _score(hit: StoreHit) -> float:
    return hit.score


def _filter(where: Where) -> models.Filter | None:
    must: list[Any] = []
    if where.files is not None:
        must.append(any_of("file", where.files))
    if where.first > 1 or where.last is not None:
        must.append(models.FieldCondition(key="number", range=models.Range(gte=where.first, lte=where.last)))
    must_not: list[Any] = [any_of("file", where.hidden)] if where.hidden else []
    if not must and not must_not:
        return None
    return models.Filter(must=must or None, must_not=must_not or None)
