"""The store on disk: Qdrant Edge, a search engine inside this process. The only file that imports qdrant_edge.

Vectors are in half precision on disk, and large ones have binary codes in memory. There is no graph of neighbours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from ...errors import RandSlotError, first_line
from ...files import read_json
from .points import (
    INTEGERS,
    KEYWORDS,
    SPARSE_FIELDS,
    TEXTS,
    VECTOR_NAME,
    DenseField,
    Filter,
    NamedVectors,
    Point,
    StoredPage,
    convert_vector,
    make_filter,
    read_page,
)
from .store import DEFAULT_TUNING, PLACE, DamagedError, Nearest, Store, StoreHit, Tuning, make_vector_field, read_hit


class EdgeStore(Store):
    """Pages in a folder."""

    def __init__(self, folder: Path, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open a store, or make one. dim: of the vectors; None for words only."""
        super().__init__(dim, tuning)
        self.folder = folder
        if not folder.exists():
            self._create()
        self.warm = False  # whether all vectors were read once
        _read_through(folder, "quantized*")
        self.shard = self._load()

    def _create(self) -> None:
        """Make an empty store: it appears complete, or not at all."""
        part = self.folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fields = [] if self.dim is None else [make_vector_field(self.dim, self.tuning)]
        shard = edge.EdgeShard.create(str(part), self._make_config(fields))
        # Words are separated by single spaces.
        text = edge.TextIndexParams(
            tokenizer=edge.TokenizerType.Whitespace, phrase_matching=True, lowercase=False, memory=edge.Memory.Cold
        )
        kinds: dict[tuple[str, ...], Any] = {
            KEYWORDS: edge.PayloadSchemaType.Keyword,
            INTEGERS: edge.PayloadSchemaType.Integer,
            TEXTS: text,
        }
        for names, kind in kinds.items():
            for name in names:
                shard.update(edge.UpdateOperation.create_field_index(name, kind))
        shard.flush()
        shard.close()
        os.rename(part, self.folder)

    def _make_config(self, fields: Sequence[DenseField]) -> edge.EdgeConfig:
        sparse = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf, memory=edge.Memory.Cold)
        return edge.EdgeConfig(
            vectors={field.name: _make_parameters(field) for field in fields},
            sparse_vectors=dict.fromkeys(SPARSE_FIELDS, sparse),
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=self.tuning.compress_from, deleted_threshold=0.1, vacuum_min_vector_number=100
            ),
        )

    def _load(self, config: edge.EdgeConfig | None = None) -> edge.EdgeShard:
        try:
            return edge.EdgeShard.load(str(self.folder), config)
        except Exception as error:  # the engine has no errors of its own
            if "WouldBlock" in str(error):
                raise RandSlotError(f"cannot open the pages in {self.folder}: open in another process") from error
            raise RandSlotError(
                f"cannot open the pages in {self.folder}: {first_line(error)}. If they are damaged, restore a copy; or "
                f"move that folder away, run randslot library verify --repair -l {self.folder.parent}, and index again"
            ) from error

    # -- writes

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
        # The engine takes codes and the place in memory when it loads the folder.
        fields = [new] if self.dim is None else [make_vector_field(self.dim, self.tuning), new]
        self.shard.flush()
        self.shard.close()
        self.shard = self._load(self._make_config(fields))

    def _update(self, operation: edge.UpdateOperation) -> None:
        try:
            self.shard.update(operation)
        except Exception as error:  # a full disk, for example
            raise RandSlotError(f"cannot write pages into {self.folder}: {first_line(error)}") from error

    # -- reads

    def find_nearest(self, requests: Sequence[Nearest]) -> list[list[StoreHit]]:
        for request in requests:
            scans = request.field == VECTOR_NAME and not request.candidates and not request.oversampling
            if scans and not self.warm:
                _read_through(self.folder, "vectors")
                self.warm = True
        with _reading():
            batch = edge.QueryBatchRequest([_make_request(request) for request in requests])
            found = self.shard.query_batch(batch)
        return [[read_hit(point) for point in points] for points in found]

    def retrieve(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        with _reading():
            records = self.shard.retrieve(list(ids), with_payload=True, with_vector=True)
        return {str(record.id): read_page(record) for record in records}

    def scroll(self, some: Filter) -> Iterator[StoredPage]:
        offset = None
        while True:
            request = edge.ScrollRequest(offset, 1000, _make_filter(some), with_payload=[*PLACE, "image"])
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
        self.shard.flush()

    def optimize(self) -> None:
        self.shard.optimize()
        self.shard.flush()  # frees what was optimized

    def wait_optimized(self) -> None:
        self.optimize()

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
    """Read files of the vectors once, from front to back, so that they are in the system's cache.

    The engine maps them for random access: from a cold disk it would fetch them four kilobytes at a time.
    """
    buffer = bytearray(2**20)
    for place in folder.glob(f"segments/*/vector_storage-{VECTOR_NAME}/{name}"):
        files = [place] if place.is_file() else list(place.iterdir())
        for file in files:
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
    prefetches = None
    if request.candidates is not None:
        name, vector, num = request.candidates
        nearest = edge.Query.Nearest(vector.tolist(), name)
        prefetches = [edge.Prefetch(num, nearest, params=edge.SearchParams(exact=True), filter=some)]
    if request.corpus is not None:
        params = edge.SearchParams(idf=edge.IdfParams(_make_filter(request.corpus)))
    else:
        by_codes = request.oversampling > 0
        codes = edge.QuantizationSearchParams(
            ignore=not by_codes, rescore=True, oversampling=request.oversampling or None
        )
        params = edge.SearchParams(exact=not by_codes, quantization=codes)
    return edge.QueryRequest(
        request.limit,
        query=edge.Query.Nearest(convert_vector(edge, request.vector), request.field),
        prefetches=prefetches,
        params=params,
        filter=some,
        with_payload=PLACE,
    )


def _make_filter(some: Filter) -> Any:
    return make_filter(edge, some, edge.HasVectorCondition, edge.RangeFloat)
