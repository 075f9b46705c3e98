"""The store on disk: Qdrant Edge, a search engine inside this process. The only file that imports qdrant_edge.

Vectors are kept in half precision, and large ones have codes beside them, one bit a number. By default a search
compares codes, then scores the best candidates in full; an exact one scores every page, and so does every search of
small vectors, since comparing their codes takes no less time. There is no graph: a page is four vectors, and comparing
the codes of all pages takes milliseconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge

from ...errors import RandSlotError, first_line
from .store import DamagedError, StoredPage, StoreHit, Vectors, Where
from .tuning import DEFAULT_TUNING, VECTOR_NAME, Tuning

CHUNK = 64  # points in one update: its vectors are Python lists on their way in
SCROLLED = 1000  # points in one answer, without vectors


class EdgeStore:
    """Pages in a folder, as points with a multivector and the payload file, number and image."""

    def __init__(self, folder: Path, dim: int, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open a store, or make one if there is none.

        Errors: RandSlotError if it is damaged, or open in another process.
        """
        if not folder.exists():
            _create(folder, dim, tuning)
        self.folder, self.tuning = folder, tuning
        self.coded = tuning.has_codes(dim)
        self.warm = False
        _read_through(folder, "quantized*")
        try:
            self.shard = edge.EdgeShard.load(str(folder))
        except Exception as error:  # the engine has no errors of its own
            reason = "open in another process" if "WouldBlock" in str(error) else first_line(error)
            raise RandSlotError(f"cannot open the vectors in {folder}: {reason}") from error

    def add(self, pages: Sequence[StoredPage]) -> None:
        for start in range(0, len(pages), CHUNK):
            points = [_point(page) for page in pages[start : start + CHUNK]]
            self._update(edge.UpdateOperation.upsert_points(points))

    def delete(self, file: str) -> None:
        self._update(edge.UpdateOperation.delete_points_by_filter(_of_file(file)))

    def _update(self, operation: edge.UpdateOperation) -> None:
        try:
            self.shard.update(operation)
        except Exception as error:  # a full disk, for example; the engine has no errors of its own
            raise RandSlotError(f"cannot write vectors into {self.folder}: {first_line(error)}") from error

    def search(self, queries: Sequence[Vectors], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        exact = exact or not self.coded
        if exact and not self.warm:
            _read_through(self.folder, "vectors")
            self.warm = True
        codes = edge.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=self.tuning.oversampling_for(k))
        requests = [
            edge.QueryRequest(
                limit=k,
                query=edge.Query.Nearest(query.tolist(), VECTOR_NAME),
                filter=_filter(where),
                with_payload=["file", "number"],
                params=edge.SearchParams(exact=exact, quantization=codes),
            )
            for query in queries
        ]
        with _reading():
            found = self.shard.query_batch(edge.QueryBatchRequest(requests))
        return [[_hit(point) for point in points] for points in found]

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        with _reading():
            records = self.shard.retrieve(list(ids), with_payload=True, with_vector=True)
        return {str(record.id): _page(record) for record in records}

    def images(self, file: str) -> dict[int, str]:
        found: dict[int, str] = {}
        offset = None
        while True:
            request = edge.ScrollRequest(offset=offset, limit=SCROLLED, filter=_of_file(file), with_payload=True)
            records, offset = self.shard.scroll(request)
            for record in records:
                payload = record.payload or {}
                found[int(payload["number"])] = str(payload["image"])
            if offset is None:
                return found

    def counts(self) -> dict[str, int]:
        hits = self.shard.facet(edge.FacetRequest("file", limit=self.shard.info().points_count + 1, exact=True)).hits
        return {str(hit.value): int(hit.count) for hit in hits if hit.count}

    def flush(self) -> None:
        self.shard.flush()

    def optimize(self) -> None:
        self.shard.optimize()
        self.shard.flush()  # lets go of what was optimized

    def close(self) -> None:
        self.shard.close()


@contextmanager
def _reading() -> Iterator[None]:
    """Say in one line that vectors cannot be read; the engine finds out when it needs them, not when it opens."""
    try:
        yield
    except Exception as error:  # the engine has no errors of its own
        reason = first_line(error)
        raise DamagedError(
            f"the library's vectors are damaged ({reason}): randslot library verify --repair, then index its files"
        ) from error


def _create(folder: Path, dim: int, tuning: Tuning) -> None:
    """Make an empty store: it appears complete, or not at all."""
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    codes = edge.BinaryQuantizationConfig(memory=edge.Memory.Cached)
    vectors = edge.EdgeVectorParams(
        size=dim,
        distance=edge.Distance.Dot,
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
        datatype=edge.VectorStorageDatatype.Float16,
        memory=edge.Memory.Cold,
        quantization_config=codes if tuning.has_codes(dim) else None,
        hnsw_config=edge.HnswIndexConfig(m=0, ef_construct=4, full_scan_threshold=10),
    )
    config = edge.EdgeConfig(
        vectors={VECTOR_NAME: vectors}, optimizers=edge.EdgeOptimizersConfig(indexing_threshold=tuning.compress_from)
    )
    shard = edge.EdgeShard.create(str(part), config)
    shard.update(edge.UpdateOperation.create_field_index("file", edge.PayloadSchemaType.Keyword))
    shard.update(edge.UpdateOperation.create_field_index("number", edge.PayloadSchemaType.Integer))
    shard.flush()
    shard.close()
    os.rename(part, folder)


def _read_through(folder: Path, name: str) -> None:
    """Read files of the vectors once, from front to back, so that they are in the system's cache.

    The engine maps them for access at random: from a cold disk it would fetch them four kilobytes at a time.
    """
    buffer = bytearray(2**20)
    for place in folder.glob(f"segments/*/vector_storage-{VECTOR_NAME}/{name}"):
        files = [place] if place.is_file() else list(place.iterdir())
        for file in files:
            with file.open("rb", buffering=0) as content:
                while content.readinto(buffer):
                    pass


def _point(page: StoredPage) -> edge.Point:
    payload = {"file": page.file, "number": page.number, "image": page.image}
    return edge.Point(page.id, {VECTOR_NAME: page.vectors.tolist()}, payload)


def _page(record: Any) -> StoredPage:
    payload, vectors = record.payload, np.array(record.vector[VECTOR_NAME], np.float32)
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), vectors)


def _hit(point: Any) -> StoreHit:
    return StoreHit(str(point.id), str(point.payload["file"]), int(point.payload["number"]), float(point.score))


def _of_file(file: str) -> edge.Filter:
    return edge.Filter(must=[edge.FieldCondition("file", match=edge.MatchValue(file))])


def _filter(where: Where) -> edge.Filter | None:
    if where == Where():
        return None
    must: list[Any] = []
    if where.files is not None:
        must.append(edge.FieldCondition("file", match=edge.MatchAny(sorted(where.files))))
    if where.first > 1 or where.last is not None:
        must.append(edge.FieldCondition("number", range=edge.RangeFloat(gte=where.first, lte=where.last)))
    hidden: list[Any] = [edge.FieldCondition("file", match=edge.MatchAny(sorted(where.hidden)))] if where.hidden else []
    return edge.Filter(must=must, must_not=hidden)
