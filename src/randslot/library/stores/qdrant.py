"""A library on a Qdrant server or cluster.

Two collections make a library. COLLECTION holds the pages. COLLECTION-files holds points without vectors: one for each
file (the manifest), one about the library (format and model), and one that says who holds the write lease. The lease
itself is an alias of that collection.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from itertools import count
from typing import Any, TypeVar

import numpy as np
from qdrant_client import grpc as messages
from qdrant_client import models
from qdrant_client.conversions.conversion import payload_to_grpc

from ...errors import BusyError, RandSlotError, UsageError
from ...words.analyzer import Terms
from ..address import FILES, SETTINGS, Address
from ..location import Location, lost_pages
from ..models import read_binding
from .base import (
    BYTES_PER_NUMBER,
    DEFAULT_TUNING,
    PART,
    PLACE,
    SKETCH_NAME,
    TERMS_NAME,
    VECTOR_NAME,
    Contents,
    Origin,
    Sketches,
    Store,
    StoredPage,
    StoreHit,
    StoreQuery,
    Tuning,
    Vectors,
    Where,
    make_changes,
    make_payload,
    mean_numbers,
    read_page,
    read_split,
    search_by_codes,
)
from .qdrant_connection import LISTED_POINTS, Connection, NotFoundError, any_of, chunks, connect, equal
from .qdrant_manifest import ServerManifest, WriteLease, is_id
from .sketch import NUMBERS

T = TypeVar("T")

CALM_SECONDS = 1.0  # between two looks at whether the server is at work
READ_POINTS = 64  # in one answer, with vectors
ID_BYTES = 40  # of an id in a filter
FLOAT_BYTES = 4  # of a number in a request
TERM_BYTES = 8  # of a term in a request
DATA_TAG = 10  # of the numbers of a vector, in the protocol
LARGEST_REQUEST = 32 * 2**20  # bytes, the server's own limit
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
        dim: int | None,
        tuning: Tuning = DEFAULT_TUNING,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open a collection, or make one. dim: of the vectors; None for a store of words alone.

        Errors: UsageError if it is there with other settings than the address says.
        """
        self.connection, self.address = connection, connection.address
        self.name = self.address.collection
        self.tuning, self.limits, self.dim = tuning, limits, dim
        self.sketches: Sketches | None = None
        if connection.exists(self.name):
            self._check(dim)
        else:
            self._make(dim)

    def _check(self, dim: int | None) -> None:
        params = self._params()
        vectors = params.vectors.get(VECTOR_NAME) if isinstance(params.vectors, Mapping) else None
        if dim is not None and (vectors is None or vectors.size != dim or vectors.multivector_config is None):
            raise UsageError(f"{self.address} is there and holds no pages of {dim} dimensions: name another collection")
        if TERMS_NAME not in (params.sparse_vectors or {}):
            raise UsageError(f"{self.address} is there and holds no pages with words: name another collection")
        found = (params.shard_number, params.replication_factor, params.write_consistency_factor)
        for name, now in zip(SETTINGS, found, strict=True):
            wanted = getattr(self.address, name)
            if wanted not in (None, now):
                raise UsageError(f"{self.address} has {name}={now}, which was chosen when it was made, not {wanted}")

    def _make(self, dim: int | None) -> None:
        """Make the collection: half precision on disk, codes of large vectors in memory, no graph (see docs/log.md)."""
        self.connection.make(
            self.name,
            {"file": models.PayloadSchemaType.KEYWORD, "number": models.PayloadSchemaType.INTEGER, **WORD_FIELDS},
            vectors_config=_all_vectors(dim, self.tuning),
            sparse_vectors_config={TERMS_NAME: TERM_PARAMETERS},
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=self.tuning.compress_from),
            on_disk_payload=True,
            shard_number=self.address.shards,
            replication_factor=self.address.replicas,
            write_consistency_factor=self.address.consistency,
        )

    def prepare(self, dim: int) -> None:
        if self.dim is None:
            vectors = self._params().vectors
            if isinstance(vectors, Mapping) and VECTOR_NAME in vectors:  # of a process that was stopped just here
                self.connection.ask("delete_vector_name", collection_name=self.name, vector_name=VECTOR_NAME)
            parameters = _vector_parameters(dim, self.tuning)
            config = models.DenseVectorConfig(
                size=dim,
                distance=parameters.distance,
                multivector_config=parameters.multivector_config,
                datatype=parameters.datatype,
            )
            self._name_vectors(VECTOR_NAME, models.DenseVectorNameConfig(dense=config))
            change = models.VectorParamsDiff(
                hnsw_config=parameters.hnsw_config,
                quantization_config=parameters.quantization_config,
                on_disk=True,
            )
            self.connection.ask("update_collection", collection_name=self.name, vectors_config={VECTOR_NAME: change})
            self.dim = dim

    def clear_sketches(self) -> None:
        vectors = self._params().vectors
        if isinstance(vectors, Mapping) and SKETCH_NAME in vectors:
            has_sketch = models.Filter(must=[models.HasVectorCondition(has_vector=SKETCH_NAME)])
            self.connection.write("delete_vectors", collection_name=self.name, vectors=[SKETCH_NAME], points=has_sketch)
            return
        own = SKETCH_PARAMETERS
        config = models.DenseVectorConfig(size=own.size, distance=own.distance, datatype=own.datatype)
        self._name_vectors(SKETCH_NAME, models.DenseVectorNameConfig(dense=config))
        change = models.VectorParamsDiff(hnsw_config=own.hnsw_config)
        self.connection.ask("update_collection", collection_name=self.name, vectors_config={SKETCH_NAME: change})

    def add_sketches(self, pages: Sequence[StoredPage]) -> None:
        assert self.sketches is not None
        points = []
        for id, sketch in self.sketches.sketch(pages).items():
            points.append(models.PointVectors(id=id, vector={SKETCH_NAME: _halve(sketch).tolist()}))
        self.connection.write("update_vectors", collection_name=self.name, points=points)

    def _name_vectors(self, name: str, config: Any) -> None:
        """Add named vectors to the collection.

        Errors: RandSlotError if the server is too old for that.
        """
        try:
            self.connection.ask(
                "create_vector_name", collection_name=self.name, vector_name=name, vector_name_config=config
            )
        except BusyError:
            raise
        except RandSlotError as error:
            what = {TERMS_NAME: "words", SKETCH_NAME: "sketches"}.get(name, "vectors")
            raise RandSlotError(
                f"{self.address} cannot get {what}, which takes a newer Qdrant: index its files into a new collection"
            ) from error

    def _params(self) -> Any:
        return self.connection.ask("get_collection", collection_name=self.name).config.params

    def add(self, pages: Sequence[StoredPage]) -> None:
        for some in split_pages(pages, self.limits.bytes):
            sketches = self.sketches.sketch(some) if self.sketches else {}
            points = [make_point(page, sketches.get(page.id)) for page in some]
            self.connection.upsert(messages.UpsertPoints(collection_name=self.name, wait=True, points=points))

    def update(self, pages: Sequence[StoredPage]) -> None:
        for some in split_pages(pages, self.limits.bytes):
            vectors = [models.PointVectors(id=page.id, vector=_vectors(page)) for page in some if _vectors(page)]
            if vectors:
                self.connection.write("update_vectors", collection_name=self.name, points=vectors)
            if self.sketches and any(page.vectors is not None for page in some):
                self.add_sketches(some)
            wordless = [page.id for page in some if page.text is not None and not page.text.terms.numbers]
            if wordless:
                self.connection.write(
                    "delete_vectors", collection_name=self.name, vectors=[TERMS_NAME], points=wordless
                )
            changes = [_set_payload(page) for page in some]  # last: it also says that the terms are there
            self.connection.write("batch_update_points", collection_name=self.name, update_operations=changes)

    def delete(self, file: str) -> None:
        self.connection.write("delete", collection_name=self.name, points_selector=equal(file=file))

    def search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        if not exact and self._by_sketches:
            return self._search_files(queries, k, where, exact=False)
        if exact or self.dim is None or not self.tuning.has_codes(self.dim):
            return self._search_files(queries, k, where, exact=True)
        by_codes = partial(self._search_files, where=where, exact=False)
        in_full = partial(self._search_files, where=where, exact=True)
        return search_by_codes(queries, k, self.tuning, by_codes, in_full)

    def _search_files(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        if where.files is None:
            return self._search(queries, k, where, exact)
        found: list[list[StoreHit]] = [[] for _ in queries]
        visible = sorted(where.files - where.hidden)
        for files in chunks(visible, self.limits.files):  # too many ids for one query: the best of several
            part = replace(where, files=frozenset(files))
            for hits, more in zip(found, self._search(queries, k, part, exact), strict=True):
                hits.extend(more)
        most = k if exact or self._by_sketches else self.tuning.hits_for(k)
        return [nlargest(most, hits, key=_score) for hits in found]

    def _search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        """Search in requests below the server's limit: each query comes with the whole filter."""
        ids = ID_BYTES * (len(where.hidden) + len(where.files or ()))

        def size_of(query: StoreQuery) -> int:
            size = 0
            if query.vectors is not None:
                size += FLOAT_BYTES * query.vectors.size + ids
            if query.terms is not None:
                size += TERM_BYTES * len(query.terms.numbers) + 2 * ids  # also for how rare words are
            return size

        found: list[list[StoreHit]] = []
        for batch in _split(queries, size_of, self.limits.bytes):
            requests = [self._make_request(query, k, where, exact) for query in batch]
            answers = self.connection.ask("query_batch_points", collection_name=self.name, requests=requests)
            for answer in answers:
                found.append([_hit(point) for point in answer.points])
        return found

    def _make_request(self, query: StoreQuery, k: int, where: Where, exact: bool) -> models.QueryRequest:
        some = _filter(where, query)
        if query.vectors is not None and query.terms is not None:
            pool = self.tuning.pool_for(k)
            words = models.Prefetch(
                query=_sparse(query.terms), using=TERMS_NAME, limit=pool, filter=some, params=_rare_among(where)
            )
            vectors = models.Prefetch(
                query=query.vectors.tolist(),
                prefetch=self._find_candidates(query, pool, some, exact),
                using=VECTOR_NAME,
                limit=pool,
                filter=some,
                params=self._vector_search(pool, pool, exact),
            )
            weights = [1.0, query.vectors_weight]
            # This engine counts ranks from 0.
            together = models.RrfQuery(rrf=models.Rrf(k=self.tuning.rank_offset + 1, weights=weights))
            return models.QueryRequest(query=together, prefetch=[words, vectors], limit=k, with_payload=PLACE)
        if query.vectors is not None:
            candidates = self._find_candidates(query, k, some, exact)
            limit = k if exact or candidates else self.tuning.hits_for(k)
            return models.QueryRequest(
                query=query.vectors.tolist(),
                prefetch=candidates,
                using=VECTOR_NAME,
                limit=limit,
                filter=some,
                with_payload=PLACE,
                params=self._vector_search(k, limit, exact),
            )
        assert query.terms is not None
        how = _rare_among(where)
        return models.QueryRequest(
            query=_sparse(query.terms), using=TERMS_NAME, limit=k, filter=some, with_payload=PLACE, params=how
        )

    @property
    def _by_sketches(self) -> bool:
        """Whether searches find candidates by sketches."""
        return self.sketches is not None and self.sketches.candidates > 0

    def _find_candidates(
        self, query: StoreQuery, k: int, some: models.Filter | None, exact: bool
    ) -> list[models.Prefetch] | None:
        """Return what finds the pages by sketches that are scored in full; None if all pages are looked at."""
        if exact or self.sketches is None or not self.sketches.candidates:
            return None
        assert query.vectors is not None
        num = self.sketches.candidates_for(k)
        sketch = self.sketches.sketcher.sketch_query(query.vectors).tolist()
        how = models.SearchParams(exact=True)
        return [models.Prefetch(query=sketch, using=SKETCH_NAME, limit=num, params=how, filter=some)]

    def _vector_search(self, k: int, limit: int, exact: bool) -> models.SearchParams:
        if not exact and self._by_sketches:
            return models.SearchParams(quantization=models.QuantizationSearchParams(ignore=True))
        oversampling = self.tuning.oversampling_for(k, limit)
        codes = models.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=oversampling)
        return models.SearchParams(exact=exact, quantization=codes)

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        return read_split(self._read, [id for id in ids if is_id(id)], READ_POINTS)

    def _read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        records = self.connection.ask(
            "retrieve", collection_name=self.name, ids=ids, with_payload=True, with_vectors=True
        )
        return {str(record.id): _page(record) for record in records}

    def images(self, file: str) -> dict[int, str]:
        records = self.connection.scroll(self.name, equal(file=file), with_payload=["number", "image"])
        return {int(record.payload["number"]): str(record.payload["image"]) for record in records}

    def counts(self) -> dict[str, int]:
        limit = self.num_pages() + 1
        hits = self.connection.ask("facet", collection_name=self.name, key="file", limit=limit, exact=True).hits
        return {str(hit.value): int(hit.count) for hit in hits if hit.count}

    def contents(self, hidden: Collection[str]) -> Contents:
        unseen = [any_of("file", hidden)] if hidden else None
        pages = self._count(models.Filter(must_not=unseen))
        with_vectors = 0
        if self.dim is not None:
            has_vectors = models.HasVectorCondition(has_vector=VECTOR_NAME)
            with_vectors = self._count(models.Filter(must=[has_vectors], must_not=unseen))
        origins: dict[str, int] = {}
        hits = self.connection.ask(
            "facet",
            collection_name=self.name,
            key="origin",
            facet_filter=models.Filter(must_not=unseen),
            limit=10,
            exact=True,
        ).hits
        for hit in hits:
            origins[str(hit.value)] = int(hit.count)
        origins[""] = pages - sum(origins.values())
        return Contents(pages, with_vectors, {origin: num for origin, num in origins.items() if num})

    def count_cut(self, hidden: Collection[str]) -> int:
        unseen = [any_of("file", hidden)] if hidden else None
        return self._count(models.Filter(must=[any_of("read", [PART])], must_not=unseen))

    def _count(self, some: models.Filter) -> int:
        return int(self.connection.ask("count", collection_name=self.name, count_filter=some, exact=True).count)

    def find(
        self, origins: Collection[Origin] | None, *, vectors: bool | None = None, sketch: bool | None = None
    ) -> Iterator[StoredPage]:
        must: list[Any] = []
        must_not: list[Any] = []
        if vectors is not None and self.dim is not None:
            (must if vectors else must_not).append(models.HasVectorCondition(has_vector=VECTOR_NAME))
        if sketch is not None:
            (must if sketch else must_not).append(models.HasVectorCondition(has_vector=SKETCH_NAME))
        if origins is not None:
            should: list[Any] = [any_of("origin", [origin]) for origin in origins if origin]
            if "" in origins:
                should.append(models.IsEmptyCondition(is_empty=models.PayloadField(key="origin")))
            must.append(models.Filter(should=should))
        some = models.Filter(must=must or None, must_not=must_not or None)
        for record in self.connection.scroll(self.name, some, with_payload=[*PLACE, "image"]):
            yield _page(record)

    def num_pages(self) -> int:
        """Return how many pages are stored, also of files that are not complete."""
        return self.connection.count(self.name)

    def flush(self) -> None:
        """Nothing to do: a write is answered when it is in the server's log."""

    def optimize(self) -> None:
        """Nothing to do: the server does it by itself."""

    def wait_optimized(self) -> None:
        """Ask until the server says that it has nothing more to do.

        Errors: RandSlotError if it says that it cannot.
        """
        calm = 0
        while calm < 2:  # it may not have begun when it is first asked
            time.sleep(CALM_SECONDS)
            found = self.connection.ask("get_collection", collection_name=self.name)
            if found.status == models.CollectionStatus.RED:
                raise RandSlotError(f"{self.address} cannot be optimized: see the log of the server")
            calm = calm + 1 if found.status == models.CollectionStatus.GREEN else 0

    def close(self) -> None:
        """Nothing to do: the connection is closed by the location."""


def split_pages(pages: Sequence[StoredPage], limit: int = DEFAULT_LIMITS.bytes) -> Iterator[list[StoredPage]]:
    """Split pages into requests of at most `limit` bytes; a page that is larger is a request of its own.

    Errors: RandSlotError for a page that no request can hold.
    """
    for page in pages:
        if page.vectors is not None and _size_of_page(page) + POINT_BYTES > LARGEST_REQUEST:
            num, dim = page.vectors.shape
            raise RandSlotError(
                f"a page of {num:,} vectors of {dim:,} takes {_size_of_page(page) / 1e6:.0f} MB in a request, and a "
                "Qdrant server takes 33 MB at once: reduce pages, as by --reduction kmeans --page-vectors 32"
            )
    return _split(pages, _size_of_page, limit)


def _size_of_page(page: StoredPage) -> int:
    size = 0 if page.vectors is None else FLOAT_BYTES * page.vectors.size
    if page.text is not None:
        text = 4 * (len(page.text.text) + len(page.text.words)) + 2 * len(page.text.boxes)
        size += text + TERM_BYTES * len(page.text.terms.numbers)
    return size


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


TERM_PARAMETERS = models.SparseVectorParams(modifier=models.Modifier.IDF, index=models.SparseIndexParams(on_disk=True))
WORD_FIELDS: dict[str, Any] = {
    "words": models.TextIndexParams(
        type=models.TextIndexType.TEXT,
        tokenizer=models.TokenizerType.WHITESPACE,
        lowercase=False,
        phrase_matching=True,
        on_disk=True,
    ),
    "origin": models.PayloadSchemaType.KEYWORD,
    "read": models.PayloadSchemaType.KEYWORD,
}


SKETCH_PARAMETERS = models.VectorParams(
    size=NUMBERS,
    distance=models.Distance.DOT,
    datatype=models.Datatype.FLOAT16,
    hnsw_config=models.HnswConfigDiff(m=0),
)


def _all_vectors(dim: int | None, tuning: Tuning) -> dict[str, models.VectorParams]:
    """Return what a new collection has room for: sketches too, since older servers cannot add them later."""
    if dim is None:
        return {}
    return {VECTOR_NAME: _vector_parameters(dim, tuning), SKETCH_NAME: SKETCH_PARAMETERS}


def _vector_parameters(dim: int, tuning: Tuning) -> models.VectorParams:
    codes = models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    return models.VectorParams(
        size=dim,
        distance=models.Distance.DOT,
        multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        datatype=models.Datatype.FLOAT16,
        on_disk=True,
        quantization_config=codes if tuning.has_codes(dim) else None,
        hnsw_config=models.HnswConfigDiff(m=0),
    )


# -- from pages to points and back


def make_point(page: StoredPage, sketch: Vectors | None = None) -> messages.PointStruct:
    """Return a page as a point of the collection, as it is sent."""
    vectors: dict[str, messages.Vector] = {}
    if sketch is not None:
        vectors[SKETCH_NAME] = messages.Vector(dense=_dense(_halve(sketch)))
    if page.vectors is not None:
        rows = [_dense(row) for row in _halve(page.vectors)]
        vectors[VECTOR_NAME] = messages.Vector(multi_dense=messages.MultiDenseVector(vectors=rows))
    if page.text is not None and page.text.terms.numbers:
        terms = page.text.terms
        sparse = messages.SparseVector(indices=terms.numbers, values=terms.weights)
        vectors[TERMS_NAME] = messages.Vector(sparse=sparse)
    return messages.PointStruct(
        id=messages.PointId(uuid=page.id),
        vectors=messages.Vectors(vectors=messages.NamedVectors(vectors=vectors)),
        payload=payload_to_grpc(make_payload(page)),
    )


def _dense(row: Vectors) -> messages.DenseVector:
    """Return a vector as a message: the bytes of its numbers after a tag and their count, without a loop over them."""
    content = row.tobytes()
    head, left = bytearray([DATA_TAG]), len(content)
    while left > 127:
        head.append(left & 127 | 128)
        left >>= 7
    head.append(left)
    return messages.DenseVector.FromString(bytes(head) + content)


def _halve(vectors: Vectors) -> Vectors:
    """Round to half precision, which is what is kept: so all copies of a page and all engines have the same numbers."""
    return vectors.astype(np.float16).astype("<f4")


def _vectors(page: StoredPage) -> dict[str, Any]:
    vectors: dict[str, Any] = {}
    if page.vectors is not None:
        vectors[VECTOR_NAME] = _halve(page.vectors).tolist()
    if page.text is not None and page.text.terms.numbers:
        vectors[TERMS_NAME] = _sparse(page.text.terms)
    return vectors


def _sparse(terms: Terms) -> models.SparseVector:
    return models.SparseVector(indices=list(terms.numbers), values=list(terms.weights))


def _set_payload(page: StoredPage) -> models.SetPayloadOperation:
    return models.SetPayloadOperation(set_payload=models.SetPayload(payload=make_changes(page), points=[page.id]))


def _page(record: Any) -> StoredPage:
    return read_page(record.payload, record.vector or {})


def _hit(point: Any) -> StoreHit:
    return StoreHit(str(point.id), str(point.payload["file"]), int(point.payload["number"]), float(point.score))


def _score(hit: StoreHit) -> float:
    return hit.score


def _rare_among(where: Where) -> models.SearchParams:
    """Count how rare words are over what is visible; servers before 1.18 count over all pages."""
    hidden: list[Any] = [any_of("file", where.hidden)] if where.hidden else []
    return models.SearchParams(idf=models.IdfCorpusParams(corpus=models.Filter(must_not=hidden)))


def _filter(where: Where, query: StoreQuery) -> models.Filter | None:
    must: list[Any] = []
    if where.files is not None:
        must.append(any_of("file", where.files))
    if where.first > 1 or where.last is not None:
        must.append(models.FieldCondition(key="number", range=models.Range(gte=where.first, lte=where.last)))
    for phrase in query.phrases:
        must.append(models.FieldCondition(key="words", match=models.MatchPhrase(phrase=phrase)))
    must_not: list[Any] = [any_of("file", where.hidden)] if where.hidden else []
    for phrase in query.excluded:
        must_not.append(models.FieldCondition(key="words", match=models.MatchPhrase(phrase=phrase)))
    if not must and not must_not:
        return None
    return models.Filter(must=must or None, must_not=must_not or None)


ABOUT_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:library"))
LEASE_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:turn"))  # the name that servers have stored
STAMP = "stamp"  # of a record: which write it comes from
PUTS = 2**32  # more than a process makes
PART_BYTES = 2**19  # of a sketcher, in one record


class ServerRecords:
    """Points without vectors, in the collection beside the pages. One shard, so that one request is one step."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.address.collection + FILES
        self.lease_number: Callable[[], int] = lambda: 0
        self.num_puts = count(1)

    def exist(self) -> bool:
        """Whether the collection is there."""
        return self.connection.exists(self.name)

    def make(self) -> None:
        """Make the collection."""
        address = self.connection.address
        keyword, number = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.INTEGER
        fields = {
            "kind": keyword,
            "source": keyword,
            "hash": keyword,
            "state": keyword,
            "token": keyword,
            "num_pages": number,
            STAMP: number,
        }
        self.connection.make(
            self.name,
            fields,
            vectors_config={},
            shard_number=1,
            replication_factor=address.replicas,
            write_consistency_factor=address.consistency,
        )

    def put(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep records by their ids.

        A record is stamped with the number of the write lease and a count, and replaces none with a later stamp: what
        arrives late, from a node that was frozen or a process that lost its lease, changes nothing.
        """
        stamp = self.lease_number() * PUTS + next(self.num_puts)
        points = [models.PointStruct(id=id, vector={}, payload={**r, STAMP: stamp}) for id, r in records.items()]
        for some in chunks(points, LISTED_POINTS):
            self.connection.write(
                "upsert", collection_name=self.name, points=some, update_filter=_stamped_before(stamp)
            )

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return records by their ids; those that are not there are left out."""
        found: dict[str, dict[str, Any]] = {}
        for some in chunks(list(ids), LISTED_POINTS):
            records = self.connection.ask("retrieve", collection_name=self.name, ids=some, with_payload=True)
            for record in records:
                found[str(record.id)] = record.payload
        return found

    def find(self, **values: str | tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return the records with these values, or one of several."""
        records = self.connection.scroll(self.name, equal(**values))
        return {str(record.id): record.payload for record in records}

    def forget(self, id: str) -> None:
        """Remove a record."""
        self.connection.write("delete", collection_name=self.name, points_selector=[id])

    def tally(self, key: str, **values: str) -> dict[int, int]:
        """Return how many of the records with these values have each number of a key."""
        hits = self.connection.ask(
            "facet",
            collection_name=self.name,
            key=key,
            facet_filter=equal(**values),
            limit=self.connection.count(self.name) + 1,
            exact=True,
        ).hits
        return {int(hit.value): int(hit.count) for hit in hits}


def _stamped_before(stamp: int) -> models.Filter:
    """Return the filter for records with an earlier stamp, or none."""
    earlier = models.FieldCondition(key=STAMP, range=models.Range(lt=stamp))
    return models.Filter(should=[models.IsEmptyCondition(is_empty=models.PayloadField(key=STAMP)), earlier])


class LeaseNames:
    """Names of the collection of records, its aliases: a cluster keeps them by consensus."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.collection = connection.address.collection + FILES

    def list(self) -> list[str]:
        found = self.connection.ask("get_collection_aliases", collection_name=self.collection).aliases
        return [alias.alias_name for alias in found]

    def add(self, name: str) -> None:
        made = models.CreateAlias(collection_name=self.collection, alias_name=name)
        self.connection.agree([models.CreateAliasOperation(create_alias=made)])

    def rename(self, old: str, new: str, drop: Sequence[str] = ()) -> bool:
        changed = models.RenameAlias(old_alias_name=old, new_alias_name=new)
        changes: list[Any] = [models.RenameAliasOperation(rename_alias=changed)]
        try:
            self.connection.agree([*changes, *map(_drop_alias, drop)])
        except NotFoundError:
            return False
        return True

    def drop(self, name: str) -> None:
        self.connection.agree([_drop_alias(name)])


def _drop_alias(name: str) -> models.DeleteAliasOperation:
    return models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))


def _part_id(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"randslot:sketcher:{number}"))


class ServerLocation:
    """A library on a server."""

    shared = True

    def __init__(self, address: Address, *, create: bool, connection: Connection | None = None) -> None:
        """Connect to a server.

        Errors: RandSlotError in one line if it is out of reach, or the collection is there and not a library.
        """
        self.name, self.folder = str(address), address.folder
        self.connection = connection or connect(address)
        self.records = ServerRecords(self.connection)
        self.manifest = ServerManifest(self.records)
        self.names = LeaseNames(self.connection)
        self.lease = WriteLease(self.names, self.records, LEASE_ID, self.name)
        self.records.lease_number = lambda: self.lease.number
        self.connection.check_write = self.lease.check
        self.connection.catch_up = self.lease.renew
        if self.read() is None:
            self._check_new(create)

    def _check_new(self, create: bool) -> None:
        collection = self.connection.address.collection
        if not create:
            self.abandon()
            raise UsageError(f"no library at {self.name}: randslot index makes one")
        if self.connection.exists(collection) and self.connection.count(collection):
            self.abandon()
            raise UsageError(f"{self.name} is not a library and not empty: name another collection")

    def read(self) -> dict[str, Any] | None:
        if not self.records.exist():
            return None
        return self.records.get([ABOUT_ID]).get(ABOUT_ID)

    def write(self, about: dict[str, Any]) -> None:
        """Write about the library last: one that is half made is not a library yet, and can be made again."""
        if not self.records.exist():
            self.records.make()
        if self.read() is None:
            ServerStore(self.connection, about["model"] and int(about["model"]["dimension"]))
        with nullcontext() if self.lease.token else self.hold_lease():
            self.records.put({ABOUT_ID: about})

    def open(self, dim: int | None, *, repair: bool) -> None:
        if not (repair or self.connection.exists(self.connection.address.collection)):
            raise lost_pages(self.name)
        self.store: Store = ServerStore(self.connection, dim)

    def read_sketcher(self) -> bytes | None:
        parts = self.records.find(kind="sketcher").values()
        newest = max(parts, key=lambda part: int(part[STAMP]), default=None)
        if newest is None:
            return None
        kept = [part for part in parts if part["token"] == newest["token"]]
        kept.sort(key=lambda part: int(part["number"]))
        if len(kept) < int(newest["parts"]):  # of a process that was stopped just here
            return None
        return b"".join(base64.b64decode(part["content"]) for part in kept)

    def keep_sketcher(self, content: bytes) -> None:
        parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
        token = uuid.uuid4().hex
        for number, part in enumerate(parts):
            record = {"kind": "sketcher", "token": token, "number": number, "parts": len(parts)}
            self.records.put({_part_id(number): {**record, "content": base64.b64encode(part).decode()}})

    def hold_lease(self) -> AbstractContextManager[None]:
        return self.lease.hold()

    def announce(self, socket: str | None) -> None:
        """Nothing to do: a server lets everybody read."""

    def is_same(self, other: Location) -> bool:
        return isinstance(other, ServerLocation) and str(other.lease.held) in self.names.list()

    def check(self) -> None:
        """Count in both collections, which asks every shard: if nodes are lost, some may answer and others not."""
        for collection in (self.records.name, self.connection.address.collection):
            self.connection.count(collection, exact=False)

    def size(self) -> int:
        """Return the bytes of the vectors: a server does not say what it takes on disk."""
        about = self.read() or {}
        if about.get("model") is None:
            return 0
        model = read_binding(about.get("model"), self.name)
        num = model.num_vectors("page")
        numbers = num * model.dimension if num else mean_numbers(self.store)
        return BYTES_PER_NUMBER * numbers * self.connection.count(self.connection.address.collection)

    def close(self) -> None:
        self.connection.close()

    def abandon(self) -> None:
        self.connection.close()
