"""The store on disk: Qdrant Edge, a search engine inside this process. The only file that imports qdrant_edge.

Vectors are in half precision on disk, and large ones have binary codes in memory. There is no HNSW graph.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from ...errors import DiskFullError, RandSlotError, first_line
from ...files import check_space, read_json
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
    convert_vector,
    make_filter,
    measure_page,
    read_page,
)
from .store import DEFAULT_TUNING, DamagedError, Nearest, Store, StoreHit, Tuning, make_hit

SEGMENT_BYTES = 2**26  # of an empty segment, where files cannot be sparse


class EdgeStore(Store):
    """Pages in a folder."""

    def __init__(self, folder: Path, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open a store, or create one. dim: of the vectors; None for words only."""
        super().__init__(dim, tuning)
        self.folder = folder
        if not folder.exists():
            self._create()
        self._check_disk()
        self.warm = False  # whether all vectors were read once
        _read_through(folder, "quantized*")
        self.shard = self._load()

    def _create(self) -> None:
        """Create an empty store atomically."""
        part = self.folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        check_space(part, SEGMENT_BYTES)
        fields = [] if self.dim is None else [self.tuning.make_field(self.dim)]
        shard = edge.EdgeShard.create(str(part), self._make_config(fields))
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

    def _make_config(self, fields: Sequence[DenseField]) -> edge.EdgeConfig:
        sparse = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf, memory=edge.Memory.Cold)
        return edge.EdgeConfig(
            vectors={field.name: _make_parameters(field) for field in fields},
            sparse_vectors={TERMS_NAME: sparse},
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=self.tuning.compress_from, deleted_threshold=0.1, vacuum_min_vector_number=100
            ),
        )

    def _load(self, config: edge.EdgeConfig | None = None) -> edge.EdgeShard:
        try:
            return edge.EdgeShard.load(str(self.folder), config)
        except Exception as error:  # the engine has no errors of its own
            reason = f"cannot open the pages in {self.folder}: "
            if "WouldBlock" in str(error):
                raise RandSlotError(f"{reason}open in another process") from error
            raise RandSlotError(
                f"{reason}{first_line(error)}. If they are damaged, restore a copy; or move that folder away, run "
                f"randslot library verify --repair -l {self.folder.parent}, and index again"
            ) from error

    # -- writes

    # The engine maps sparse files: on a full disk a write ends the process by SIGBUS, which no exception handler sees.

    def _check_disk(self) -> None:
        """Raise DiskFullError before a write for which no room could be left."""
        check_space(self.folder, 0, reserve=16 * 2**20)

    def split(self, pages: Sequence[StoredPage]) -> Iterator[list[StoredPage]]:
        for some in super().split(pages):
            check_space(self.folder, 2 * sum(map(measure_page, some)))  # the log, and the segment
            yield some

    def upsert(self, points: Sequence[Point]) -> None:
        made = [edge.Point(point.id, _convert(point.vectors), point.payload) for point in points]
        self._update(edge.UpdateOperation.upsert_points(made))

    def set_vectors(self, vectors: Mapping[str, NamedVectors]) -> None:
        points = [edge.PointVectors(id, _convert(own)) for id, own in vectors.items()]
        self._update(edge.UpdateOperation.update_vectors(points))

    def delete_vectors(self, ids: Sequence[str], name: str) -> None:
        self._update(edge.UpdateOperation.delete_vectors(list(ids), [name]))

    def set_payloads(self, payloads: Mapping[str, dict[str, Any]]) -> None:
        for id, payload in payloads.items():
            self._update(edge.UpdateOperation.set_payload([id], payload))

    def delete_points(self, some: Filter) -> None:
        self._update(edge.UpdateOperation.delete_points_by_filter(_make_filter(some)))

    def reset_field(self, new: DenseField) -> None:
        if new.name in read_json(self.folder / "edge_config.json").get("vectors", {}):
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
        self.shard = self._load(self._make_config(fields))

    def _update(self, operation: edge.UpdateOperation) -> None:
        self._check_disk()
        try:
            self.shard.update(operation)
        except Exception as error:  # the engine has no errors of its own
            raise RandSlotError(f"cannot write pages into {self.folder}: {first_line(error)}") from error

    # -- reads

    def find_nearest(self, requests: Sequence[Nearest]) -> list[list[StoreHit]]:
        for request in requests:
            scans = request.field == VECTOR_NAME and request.sketch is None and not request.oversampling
            if scans and not self.warm:
                _read_through(self.folder, "vectors")
                self.warm = True
        with _reading():
            batch = edge.QueryBatchRequest([_make_request(request) for request in requests])
            return [[make_hit(point) for point in points] for points in self.shard.query_batch(batch)]

    def retrieve(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        with _reading():
            records = self.shard.retrieve(list(ids), with_payload=True, with_vector=True)
        return {str(record.id): read_page(record) for record in records}

    def scroll(self, some: Filter) -> Iterator[StoredPage]:
        offset = None
        while True:
            request = edge.ScrollRequest(offset, 1000, _make_filter(some), with_payload=["file", "number", "image"])
            records, offset = self.shard.scroll(request)
            for record in records:
                yield read_page(record)
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

    def close(self) -> None:
        self.shard.close()


@contextmanager
def _reading() -> Iterator[None]:
    """Report damaged vectors: the engine finds out when it needs them, not when it opens."""
    try:
        yield
    except Exception as error:  # the engine has no errors of its own
        raise DamagedError(
            f"the library's vectors are damaged ({first_line(error)}): "
            "randslot library verify --repair, then index its files"
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


# -- to the engine's types


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


def _make_request(request: Nearest) -> edge.QueryRequest:
    some = None if request.filter == Filter() else _make_filter(request.filter)
    by_sketch = None
    if request.sketch is not None:
        nearest = edge.Query.Nearest(request.sketch.tolist(), SKETCH.name)
        exact = edge.SearchParams(exact=True)
        by_sketch = [edge.Prefetch(request.num_candidates, nearest, params=exact, filter=some)]
    if request.corpus is not None:
        params = edge.SearchParams(idf=edge.IdfParams(_make_filter(request.corpus)))
    else:
        has_codes = request.oversampling > 0
        codes = edge.QuantizationSearchParams(
            ignore=not has_codes, rescore=True, oversampling=request.oversampling or None
        )
        params = edge.SearchParams(exact=not has_codes, quantization=codes)
    return edge.QueryRequest(
        request.limit,
        query=edge.Query.Nearest(convert_vector(edge, request.vector), request.field),
        prefetches=by_sketch,
        params=params,
        filter=some,
        with_payload=["file", "number"],
    )


def _make_filter(some: Filter) -> Any:
    return make_filter(edge, some, edge.HasVectorCondition, edge.RangeFloat)
