"""The pages of a library on a Qdrant server or cluster.

Two collections make a library. COLLECTION holds the pages, and COLLECTION-files the list of files (qdrant_records.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qdrant_client import grpc as messages
from qdrant_client import models
from qdrant_client.conversions.conversion import payload_to_grpc

from ...errors import BusyError, RandSlotError, UsageError
from ...words.analyzer import Terms
from ..address import SETTINGS
from .points import (
    PAYLOAD_INDEXES,
    SKETCH,
    TERMS_NAME,
    VECTOR_NAME,
    DenseField,
    Filter,
    NamedVectors,
    Point,
    StoredPage,
    Vectors,
    convert_vector,
    make_filter,
    measure_page,
    read_page,
    split_by_size,
)
from .qdrant_connection import Connection, is_id
from .store import DEFAULT_TUNING, Nearest, Store, StoreHit, Tuning, make_hit

MAX_BYTES = 8 * 2**20  # of points or queries in a request; the server takes 32 MiB


class ServerStore(Store):
    """Pages in a collection on a server."""

    max_read = 64
    max_bytes = MAX_BYTES

    def __init__(self, connection: Connection, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open or create a collection. dim: of the vectors; None for words only."""
        super().__init__(dim, tuning)
        self.connection, self.address = connection, connection.address
        self.name = self.address.collection
        if connection.exists(self.name):
            self._check()
        else:
            self._create()

    def _check(self) -> None:
        """Refuse a collection with other vectors or settings."""
        params = self._get_info().config.params
        vectors = params.vectors.get(VECTOR_NAME) if isinstance(params.vectors, Mapping) else None
        is_other = vectors is None or vectors.size != self.dim or vectors.multivector_config is None
        if (self.dim is not None and is_other) or TERMS_NAME not in (params.sparse_vectors or {}):
            what = "words" if self.dim is None else f"words and vectors of {self.dim} dimensions"
            raise UsageError(f"{self.address} exists but has no {what}: choose another collection")
        for name, now in zip(SETTINGS, (params.shard_number, params.replication_factor), strict=True):
            wanted = getattr(self.address, name)
            if wanted not in (None, now):
                raise UsageError(f"{self.address} has {name}={now}, not {wanted}: choose another collection")

    def _create(self) -> None:
        """Create the collection, also with a field for sketches: older servers cannot add one later."""
        fields = [] if self.dim is None else [self.tuning.make_field(self.dim), SKETCH]
        sparse = models.SparseVectorParams(modifier=models.Modifier.IDF, index=models.SparseIndexParams(on_disk=True))
        schemas = {
            "keyword": models.PayloadSchemaType.KEYWORD,
            "integer": models.PayloadSchemaType.INTEGER,
            "text": models.TextIndexParams(  # words are separated by single spaces
                type=models.TextIndexType.TEXT,
                tokenizer=models.TokenizerType.WHITESPACE,
                lowercase=False,
                phrase_matching=True,
                on_disk=True,
            ),
        }
        self.connection.create(
            self.name,
            {name: schemas[kind] for name, kind in PAYLOAD_INDEXES.items()},
            vectors_config={field.name: _make_parameters(field) for field in fields},
            sparse_vectors_config={TERMS_NAME: sparse},
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=self.tuning.compress_from),
            on_disk_payload=True,
            shard_number=self.address.shards,
            replication_factor=self.address.replicas,
        )

    def _get_info(self) -> Any:
        return self.connection.ask("get_collection", collection_name=self.name)

    # -- writes

    def split(self, pages: Sequence[StoredPage]) -> Iterator[list[StoredPage]]:
        return split_pages(pages, self.max_bytes)

    def upsert(self, points: Sequence[Point]) -> None:
        made = [make_message(point) for point in points]
        self.connection.upsert(messages.UpsertPoints(collection_name=self.name, wait=True, points=made))

    def change(
        self,
        vectors: Mapping[str, NamedVectors],
        payloads: Mapping[str, dict[str, Any]] | None = None,
        without_terms: Sequence[str] = (),
    ) -> None:
        changes: list[Any] = []
        points = []
        for id, own in vectors.items():
            made = {name: convert_vector(models, vector) for name, vector in own.items()}
            points.append(models.PointVectors(id=id, vector=made))
        if points:
            changes.append(models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=points)))
        if without_terms:
            deleted = models.DeleteVectors(points=list(without_terms), vector=[TERMS_NAME])
            changes.append(models.DeleteVectorsOperation(delete_vectors=deleted))
        for id, payload in (payloads or {}).items():
            change = models.SetPayload(payload=payload, points=[id])
            changes.append(models.SetPayloadOperation(set_payload=change))
        self.connection.write("batch_update_points", collection_name=self.name, update_operations=changes)

    def delete_points(self, some: Filter) -> None:
        self.connection.write("delete", collection_name=self.name, points_selector=_make_filter(some))

    def reset_field(self, new: DenseField) -> None:
        made = _make_parameters(new)
        old = (self._get_info().config.params.vectors or {}).get(new.name)
        if old is not None and old.size == new.size:
            having = _make_filter(Filter(has=(new.name,)))
            self.connection.write("delete_vectors", collection_name=self.name, vectors=[new.name], points=having)
        else:
            if old is not None:
                self.connection.ask("delete_vector_name", collection_name=self.name, vector_name=new.name)
            dense = models.DenseVectorConfig(
                size=made.size,
                distance=made.distance,
                multivector_config=made.multivector_config,
                datatype=made.datatype,
            )
            config = models.DenseVectorNameConfig(dense=dense)
            try:
                self.connection.ask(
                    "create_vector_name", collection_name=self.name, vector_name=new.name, vector_name_config=config
                )
            except BusyError:
                raise
            except RandSlotError as error:
                raise RandSlotError(
                    f"{self.address} cannot add vectors (Qdrant is too old): index into a new collection"
                ) from error
        change = models.VectorParamsDiff(
            hnsw_config=made.hnsw_config, quantization_config=made.quantization_config, on_disk=made.on_disk
        )
        self.connection.ask("update_collection", collection_name=self.name, vectors_config={new.name: change})

    # -- reads

    def find_nearest(self, requests: Sequence[Nearest]) -> list[list[StoreHit]]:
        """Answer requests in batches below the server's limit."""
        found = []
        for batch in split_by_size(requests, _measure_request, self.max_bytes):
            asked = [_make_request(request, self.tuning) for request in batch]
            for answer in self.connection.ask("query_batch_points", collection_name=self.name, requests=asked):
                found.append([make_hit(point) for point in answer.points])
        return found

    def retrieve(self, ids: Sequence[str], vectors: bool) -> dict[str, StoredPage]:
        valid = [id for id in ids if is_id(id)]
        records = self.connection.ask(
            "retrieve", collection_name=self.name, ids=valid, with_payload=True, with_vectors=vectors
        )
        return {str(record.id): read_page(record.payload, record.vector or {}) for record in records}

    def scroll(self, some: Filter) -> Iterator[StoredPage]:
        fields = ["file", "number", "image"]
        for record in self.connection.scroll(self.name, _make_filter(some), with_payload=fields):
            yield read_page(record.payload, record.vector or {})

    def count(self, some: Filter) -> int:
        return self.connection.count(self.name, _make_filter(some))

    def facet(self, key: str, some: Filter, limit: int) -> dict[str, int]:
        return self.connection.facet(self.name, key, _make_filter(some), limit)

    def flush(self) -> None:
        """Do nothing: the server acknowledges a write once it is in its log."""

    def optimize(self, *, wait: bool = False) -> None:
        """Wait for the server's optimizer, if asked."""
        num_green = 0
        while wait and num_green < 2:  # the optimizer may start late
            time.sleep(1.0)
            status = self._get_info().status
            if status == models.CollectionStatus.RED:
                raise RandSlotError(f"{self.address} cannot be optimized: see the log of the server")
            num_green = num_green + 1 if status == models.CollectionStatus.GREEN else 0

    def close(self) -> None:
        """Do nothing: the location closes the connection."""


def split_pages(pages: Sequence[StoredPage], max_bytes: int = MAX_BYTES) -> Iterator[list[StoredPage]]:
    """Split pages into requests of bounded size; refuse a page above the server's limit."""
    for page in pages:
        size = measure_page(page)
        if page.vectors is not None and size + 256 > 32 * 2**20:
            num, dim = page.vectors.shape
            raise RandSlotError(
                f"a page of {num:,} vectors of {dim:,} takes {size / 1e6:.0f} MB, more than a Qdrant request may hold "
                "(33 MB): reduce pages, as by --reduction kmeans --page-vectors 32"
            )
    return split_by_size(pages, measure_page, max_bytes)


# -- conversion to the client's types


def _make_parameters(field: DenseField) -> models.VectorParams:
    multi = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    codes = models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    return models.VectorParams(
        size=field.size,
        distance=models.Distance.DOT,
        multivector_config=multi if field.is_multi else None,
        datatype=models.Datatype.FLOAT16,
        on_disk=True if field.is_multi else None,
        quantization_config=codes if field.has_codes else None,
        hnsw_config=models.HnswConfigDiff(m=0),  # no graph
    )


def make_message(point: Point) -> messages.PointStruct:
    """Convert a point to a gRPC message, which is faster than the client's own models."""
    vectors: dict[str, messages.Vector] = {}
    for name, vector in point.vectors.items():
        if isinstance(vector, Terms):
            sparse = messages.SparseVector(indices=vector.numbers, values=vector.weights)
            vectors[name] = messages.Vector(sparse=sparse)
        elif vector.ndim == 1:
            vectors[name] = messages.Vector(dense=_make_dense(vector))
        else:
            multi = messages.MultiDenseVector(vectors=[_make_dense(row) for row in vector])
            vectors[name] = messages.Vector(multi_dense=multi)
    return messages.PointStruct(
        id=messages.PointId(uuid=point.id),
        vectors=messages.Vectors(vectors=messages.NamedVectors(vectors=vectors)),
        payload=payload_to_grpc(point.payload),
    )


def _make_dense(row: Vectors) -> messages.DenseVector:
    """Convert a vector to a message without a loop over its numbers: a tag, the number of bytes, and the bytes."""
    content = row.tobytes()
    head, left = bytearray([10]), len(content)
    while left > 127:
        head.append(left & 127 | 128)
        left >>= 7
    head.append(left)
    return messages.DenseVector.FromString(bytes(head) + content)


def _measure_request(request: Nearest) -> int:
    """Estimate the bytes of a request; a file in a filter takes 40."""
    size = 8 * len(request.vector.numbers) if isinstance(request.vector, Terms) else 4 * request.vector.size
    for some in (request.filter, request.filter if request.sketch is not None else None, request.corpus):
        if some is not None:
            size += 40 * (len(some.any_of.get("file", ())) + len(some.none_of.get("file", ())))
    return size


def _make_request(request: Nearest, tuning: Tuning) -> models.QueryRequest:
    some = None if request.filter == Filter() else _make_filter(request.filter)
    by_sketch = None
    if request.sketch is not None:
        by_sketch = models.Prefetch(
            query=request.sketch.tolist(),
            using=SKETCH.name,
            limit=request.num_candidates,
            params=models.SearchParams(exact=True),
            filter=some,
        )
    if request.corpus is not None:  # servers before 1.18 compute IDF over all pages
        params = models.SearchParams(idf=models.IdfCorpusParams(corpus=_make_filter(request.corpus)))
    else:
        oversampling = max(tuning.candidates / request.limit, tuning.oversampling) if request.by_codes else None
        codes = models.QuantizationSearchParams(ignore=not request.by_codes, rescore=True, oversampling=oversampling)
        params = models.SearchParams(exact=not request.by_codes, quantization=codes)
    return models.QueryRequest(
        query=convert_vector(models, request.vector),
        using=request.field,
        prefetch=by_sketch,
        limit=request.limit,
        filter=some,
        params=params,
        with_payload=request.with_pages or ["file", "number"],
    )


def _make_filter(some: Filter) -> models.Filter:
    return make_filter(models, some, lambda name: models.HasVectorCondition(has_vector=name), models.Range)
