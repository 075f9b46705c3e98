"""The store on disk with Qdrant Edge, an in-process search engine. The only file that imports qdrant_edge.

Vectors are stored in half precision; large ones also have binary codes in memory. There is no HNSW graph.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nlargest
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge
from numpy.typing import NDArray

from ...errors import DiskFullError, RandSlotError, first_line
from ...files import check_space, read_json
from ...words.analyzer import Terms
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
)
from .store import DEFAULT_TUNING, DamagedError, Nearest, Store, StoreHit, Tuning, make_hit

SEGMENT_BYTES = 2**26  # of an empty segment, on filesystems without sparse files


class EdgeStore(Store):
    """Pages in a folder."""

    def __init__(self, folder: Path, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open a store, or create one. dim: of the vectors; None for words only."""
        super().__init__(dim, tuning)
        self.folder = folder
        if not folder.exists():
            self._create()
        self._check_disk()
        self.warm = False  # whether the vectors are in the page cache
        self.num_coded, self.fallback_rate = 0, 0.0  # searches by codes; moving average of those without an answer
        _read_through(folder, "quantized*")
        self.shard = self._load()
        self._find_codes()

    def _create(self) -> None:
        """Create an empty store atomically."""
        part = self.folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        check_space(part, SEGMENT_BYTES)
        fields = [] if self.dim is None else [self.tuning.make_field(self.dim)]
        shard = edge.EdgeShard.create(str(part), self._make_config(fields, has_log=False))
        schemas: dict[str, Any] = {
            "keyword": edge.PayloadSchemaType.Keyword,
            "integer": edge.PayloadSchemaType.Integer,
            "text": edge.TextIndexParams(  # words are separated by single spaces
                tokenizer=edge.TokenizerType.Whitespace, phrase_matching=True, lowercase=False, memory=edge.Memory.Cold
            ),
        }
        for name, kind in PAYLOAD_INDEXES.items():
            shard.update(edge.UpdateOperation.create_field_index(name, schemas[kind]))
        shard.flush()
        shard.close()
        os.rename(part, self.folder)

    def _make_config(self, fields: Sequence[DenseField], has_log: bool) -> edge.EdgeConfig:
        """Return the engine's settings. has_log: old stores have a write-ahead log, which doubles small libraries."""
        sparse = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf, memory=edge.Memory.Cold)
        return edge.EdgeConfig(
            vectors={field.name: _make_parameters(field) for field in fields},
            sparse_vectors={TERMS_NAME: sparse},
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=self.tuning.compress_from, deleted_threshold=0.1, vacuum_min_vector_number=100
            ),
            wal_enabled=has_log,
        )

    def _load(self, config: edge.EdgeConfig | None = None) -> edge.EdgeShard:
        try:
            return edge.EdgeShard.load(str(self.folder), config)
        except Exception as error:  # the engine has no exception types
            reason = f"cannot open the pages in {self.folder}: "
            if "WouldBlock" in str(error):
                raise RandSlotError(f"{reason}open in another process") from error
            raise RandSlotError(
                f"{reason}{first_line(error)}. If they are damaged, restore a backup; or move that folder away, run "
                f"randslot library verify --repair -l {self.folder.parent}, and index again"
            ) from error

    # -- writes

    # The engine memory-maps sparse files: on a full disk, a write kills the process with SIGBUS.

    def _check_disk(self) -> None:
        """Raise DiskFullError if the disk is nearly full."""
        check_space(self.folder, 0, reserve=16 * 2**20)

    def split(self, pages: Sequence[StoredPage]) -> Iterator[list[StoredPage]]:
        for some in super().split(pages):
            check_space(self.folder, 2 * sum(map(measure_page, some)))  # the log, and the segment
            yield some

    def upsert(self, points: Sequence[Point]) -> None:
        made = [edge.Point(point.id, _convert(point.vectors), point.payload) for point in points]
        self._update(edge.UpdateOperation.upsert_points(made))

    def change(
        self,
        vectors: Mapping[str, NamedVectors],
        payloads: Mapping[str, dict[str, Any]] | None = None,
        without_terms: Sequence[str] = (),
    ) -> None:
        if vectors:
            points = [edge.PointVectors(id, _convert(own)) for id, own in vectors.items()]
            self._update(edge.UpdateOperation.update_vectors(points))
        if without_terms:
            self._update(edge.UpdateOperation.delete_vectors(list(without_terms), [TERMS_NAME]))
        for id, payload in (payloads or {}).items():
            self._update(edge.UpdateOperation.set_payload([id], payload))

    def delete_points(self, some: Filter) -> None:
        self._update(edge.UpdateOperation.delete_points_by_filter(_make_filter(some)))

    def reset_field(self, new: DenseField) -> None:
        config = read_json(self.folder / "edge_config.json")
        if new.name in config.get("vectors", {}):
            self._update(edge.UpdateOperation.delete_vector_name(new.name))
        parameters = _make_parameters(new)
        self._update(
            edge.UpdateOperation.create_dense_vector(
                new.name,
                parameters.size,
                parameters.distance,
                multivector_config=parameters.multivector_config,
                datatype=parameters.datatype,
            )
        )
        # The engine reads quantization and memory settings only when it loads the folder.
        fields = [new] if self.dim is None else [self.tuning.make_field(self.dim), new]
        self.shard.flush()
        self.shard.close()
        self.shard = self._load(self._make_config(fields, has_log=config.get("wal_enabled") is not False))
        self._find_codes()

    def _find_codes(self) -> None:
        """Check whether all segments have codes: a new field gets them when the store is optimized.

        num_listed: candidates by codes, of which the best are rescored in full.
        """
        self.num_listed = min(max(self.count(Filter()) // 20, 1000), 5000)
        segments = list(self.folder.glob(f"segments/*/vector_storage-{VECTOR_NAME}"))
        self.has_codes = all((segment / "quantized.config.json").exists() for segment in segments)

    def _update(self, operation: edge.UpdateOperation) -> None:
        self._check_disk()
        try:
            self.shard.update(operation)
        except Exception as error:  # the engine has no exception types
            raise RandSlotError(f"cannot write pages into {self.folder}: {first_line(error)}") from error

    # -- reads

    def find_nearest(self, requests: Sequence[Nearest]) -> list[list[StoreHit]]:
        """Answer requests by codes where possible, the others exactly in one batch."""
        found: dict[int, list[StoreHit]] = {}
        for number, request in enumerate(requests):
            if not (request.by_codes and self.has_codes and request.limit <= self.num_listed // 4):
                continue
            self.num_coded += 1
            if self.fallback_rate < 0.75 or self.num_coded % 16 == 0:  # codes are worthwhile, or may be again
                hits = self._search_by_codes(request)
                self.fallback_rate += 0.3 * ((hits is None) - self.fallback_rate)
                if hits is not None:
                    found[number] = hits
        rest = {number: request for number, request in enumerate(requests) if number not in found}
        for request in rest.values():
            if request.field == VECTOR_NAME and request.sketch is None and not self.warm:
                _read_through(self.folder, "vectors")
                self.warm = True
        found |= zip(rest, self._query([_make_request(request) for request in rest.values()]), strict=True)
        return [found[number] for number in range(len(requests))]

    def _query(self, requests: list[edge.QueryRequest]) -> list[list[StoreHit]]:
        with _reading():
            answers = self.shard.query_batch(edge.QueryBatchRequest(requests)) if requests else []
        return [[make_hit(point) for point in points] for points in answers]

    def _search_by_codes(self, request: Nearest) -> list[StoreHit] | None:
        """List candidates by codes, rescore the best in full, then all that may still be hits.

        Returns None if pages beyond the candidates may be hits.
        """
        with _reading():
            listed = self.shard.query(_make_request(request, num_listed=self.num_listed))
        hits: list[StoreHit] = []
        start, end = 0, max(250, 2 * request.limit)
        while start < end:
            ids = {point.id for point in listed[start:end]}
            (more,) = self._query([_make_request(request, ids=ids)])
            hits = nlargest(request.limit, hits + more, key=lambda hit: hit.score)
            codes = np.array([point.score for point in listed[end:]])
            start, end = end, end + count_needed(codes, hits, request.vector)
            if end == len(listed) == self.num_listed:
                return None
        return hits

    def retrieve(self, ids: Sequence[str], vectors: bool) -> dict[str, StoredPage]:
        with _reading():
            records = self.shard.retrieve(list(ids), with_payload=True, with_vector=vectors)
        return {str(record.id): read_page(record.payload, record.vector or {}) for record in records}

    def scroll(self, some: Filter) -> Iterator[StoredPage]:
        offset = None
        while True:
            request = edge.ScrollRequest(offset, 1000, _make_filter(some), with_payload=["file", "number", "image"])
            records, offset = self.shard.scroll(request)
            for record in records:
                yield read_page(record.payload, record.vector or {})
            if offset is None:
                return

    def count(self, some: Filter) -> int:
        return int(self.shard.count(edge.CountRequest(filter=_make_filter(some))))

    def facet(self, key: str, some: Filter, limit: int) -> dict[str, int]:
        request = edge.FacetRequest(key, limit=limit, filter=_make_filter(some), exact=True)
        return {str(hit.value): int(hit.count) for hit in self.shard.facet(request).hits if hit.count}

    def flush(self) -> None:
        self._check_disk()
        self.shard.flush()

    def optimize(self, *, wait: bool = False) -> None:
        size = sum(file.stat().st_blocks * 512 for file in (self.folder / "segments").rglob("*") if file.is_file())
        try:
            check_space(self.folder, size + SEGMENT_BYTES)  # the engine copies segments
        except DiskFullError as error:
            log = logging.getLogger("randslot")
            log.warning("note: the library is not optimized, so searches are slower: %s", error)
            return
        self.shard.optimize()
        self.shard.flush()  # frees what was optimized
        self._find_codes()

    def close(self) -> None:
        self.shard.close()


@contextmanager
def _reading() -> Iterator[None]:
    """Report damaged vectors, which the engine detects when it reads them, not when it opens the store."""
    try:
        yield
    except Exception as error:  # the engine has no exception types
        raise DamagedError(
            f"the library's vectors are damaged ({first_line(error)}): "
            "run randslot library verify --repair, then index its files"
        ) from error


def _read_through(folder: Path, name: str) -> None:
    """Read vector files sequentially into the page cache.

    The engine maps them for random access: from a cold disk it would fetch them four kilobytes at a time.
    """
    buffer = bytearray(2**20)
    for place in folder.glob(f"segments/*/vector_storage-{VECTOR_NAME}/{name}"):
        for file in [place] if place.is_file() else place.iterdir():
            with file.open("rb", buffering=0) as content:
                while content.readinto(buffer):
                    pass


# -- conversion to the engine's types


def _make_parameters(field: DenseField) -> edge.EdgeVectorParams:
    multi = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    codes = edge.BinaryQuantizationConfig(memory=edge.Memory.Cached)
    return edge.EdgeVectorParams(
        size=field.size,
        distance=edge.Distance.Dot,
        multivector_config=multi if field.is_multi else None,
        datatype=edge.VectorStorageDatatype.Float16,
        memory=edge.Memory.Cold,
        quantization_config=codes if field.has_codes else None,
        hnsw_config=edge.HnswIndexConfig(m=0, ef_construct=4, full_scan_threshold=10),  # no graph
    )


def _convert(vectors: NamedVectors) -> dict[str, Any]:
    return {name: convert_vector(edge, vector) for name, vector in vectors.items()}


def count_needed(codes: NDArray[np.float64], hits: Sequence[StoreHit], query: Vectors | Terms) -> int:
    """Return how many more pages to rescore: those that their codes do not rule out as hits.

    codes: scores by codes, best first: for each query vector, equal bits minus different bits. The share of different
    bits of two vectors estimates their angle, with the standard error of a binomial proportion. A page is ruled out if
    its score would have to be 1.5 standard errors above the estimate. For the recall, see research/log.md.
    """
    assert not isinstance(query, Terms)
    num, dim = query.shape
    angle = np.pi / 2 * (1 - codes / (num * dim))
    share = angle / np.pi
    error = np.sin(angle) * np.pi * np.sqrt(num * share * (1 - share) / dim)
    lowest_hit = min((hit.score for hit in hits), default=-np.inf)
    is_ruled_out = num * np.cos(angle) + 1.5 * error <= lowest_hit
    return int(np.argmax(is_ruled_out)) if is_ruled_out.any() else len(codes)


def _make_request(request: Nearest, *, num_listed: int = 0, ids: Collection[Any] = ()) -> edge.QueryRequest:
    """num_listed: number of candidates to list by codes. ids: points to rescore in full."""
    some = None if request.filter == Filter() else _make_filter(request.filter)
    by_sketch = None
    if request.sketch is not None:
        nearest = edge.Query.Nearest(request.sketch.tolist(), SKETCH.name)
        exact = edge.SearchParams(exact=True)
        by_sketch = [edge.Prefetch(request.num_candidates, nearest, params=exact, filter=some)]
    if request.corpus is not None:
        params = edge.SearchParams(idf=edge.IdfParams(_make_filter(request.corpus)))
    else:
        codes = edge.QuantizationSearchParams(ignore=not num_listed, rescore=False)
        params = edge.SearchParams(exact=not num_listed, quantization=codes)
    if ids:
        some = edge.Filter(must=[edge.HasIdCondition(set(ids))])
    return edge.QueryRequest(
        num_listed or request.limit,
        query=edge.Query.Nearest(convert_vector(edge, request.vector), request.field),
        prefetches=by_sketch,
        params=params,
        filter=some,
        with_payload=False if num_listed else request.with_pages or ["file", "number"],
    )


def _make_filter(some: Filter) -> Any:
    return make_filter(edge, some, edge.HasVectorCondition, edge.RangeFloat)
