"""The store on disk: Qdrant Edge, a search engine inside this process. The only file that imports qdrant_edge.

Vectors are kept in half precision, and large ones have codes beside them, one bit a number. By default a search
compares codes, then scores the best candidates in full; an exact one scores every page, and so does one that finds
codes in doubt (codes.py), and every search of small vectors, since comparing their codes takes no less time. A large
library may have sketches (sketches.py): then a search finds candidates by them. There are no graphs of neighbours.

Terms are a sparse vector, which the engine weighs by how rare they are. Phrases are looked up in an index of words.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from ...errors import RandSlotError, first_line
from ...files import read_json
from ...words.analyzer import Terms
from .base import (
    DEFAULT_TUNING,
    PART,
    PLACE,
    SKETCH_NAME,
    TERMS_NAME,
    VECTOR_NAME,
    Contents,
    DamagedError,
    Origin,
    Sketches,
    StoredPage,
    StoreHit,
    StoreQuery,
    Tuning,
    Where,
    group_pages,
    make_changes,
    make_payload,
    read_page,
    read_split,
    search_by_codes,
)
from .sketch import NUMBERS

CHUNK = 64  # points in one update
CONFIG = "edge_config.json"  # of the engine, in its folder
SCROLLED = 1000  # points in one answer, without vectors
NO_GRAPH = edge.HnswIndexConfig(m=0, ef_construct=4, full_scan_threshold=10)


class EdgeStore:
    """Pages in a folder, as points with a multivector, terms, and a payload: file, number, image, and the text."""

    def __init__(self, folder: Path, dim: int | None, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open a store, or make one if there is none. dim: of the vectors; None for a store of words alone.

        Errors: RandSlotError if it is damaged, or open in another process.
        """
        self.folder, self.tuning, self.dim = folder, tuning, dim
        self.sketches: Sketches | None = None
        if not folder.exists():
            _create(folder, dim, tuning)
        self.coded = dim is not None and tuning.has_codes(dim)
        self.warm = False
        _read_through(folder, "quantized*")
        self.shard = self._load()

    def _load(self, config: edge.EdgeConfig | None = None) -> edge.EdgeShard:
        try:
            return edge.EdgeShard.load(str(self.folder), config)
        except Exception as error:  # the engine has no errors of its own
            if "WouldBlock" in str(error):
                raise RandSlotError(f"cannot open the pages in {self.folder}: open in another process") from error
            raise RandSlotError(
                f"cannot open the pages in {self.folder}: {first_line(error)}; if they are damaged, bring them back "
                "from a copy, or move that folder away, run "
                f"randslot library verify --repair -l {self.folder.parent}, and index its files"
            ) from error

    def prepare(self, dim: int) -> None:
        if self.dim is None:
            self._add_vectors(dim)

    def _add_vectors(self, dim: int) -> None:
        """Make room for vectors: the engine takes their codes and their place in memory when it loads the folder."""
        self._name_vectors(VECTOR_NAME, _vector_parameters(dim, self.tuning))
        self._reload(_make_config(dim, self.tuning))
        self.dim, self.coded = dim, self.tuning.has_codes(dim)

    def _name_vectors(self, name: str, parameters: edge.EdgeVectorParams) -> None:
        if name in read_json(self.folder / CONFIG).get("vectors", {}):  # of a process that was stopped just here
            self._update(edge.UpdateOperation.delete_vector_name(name))
        self._update(
            edge.UpdateOperation.create_dense_vector(
                name,
                parameters.size,
                parameters.distance,
                multivector_config=parameters.multivector_config,
                datatype=parameters.datatype,
            )
        )

    def _reload(self, config: edge.EdgeConfig) -> None:
        self.shard.flush()
        self.shard.close()
        self.shard = self._load(config)

    def clear_sketches(self) -> None:
        self._name_vectors(SKETCH_NAME, _sketch_parameters())
        self._reload(_make_config(self.dim, self.tuning, sketches=True))

    def add_sketches(self, pages: Sequence[StoredPage]) -> None:
        assert self.sketches is not None
        made = self.sketches.sketch(pages)
        points = [edge.PointVectors(id, {SKETCH_NAME: sketch.tolist()}) for id, sketch in made.items()]
        self._update(edge.UpdateOperation.update_vectors(points))

    def add(self, pages: Sequence[StoredPage]) -> None:
        for some in group_pages(pages, CHUNK):
            vectors = self._make_vectors(some)
            points = [edge.Point(page.id, vectors[page.id], make_payload(page)) for page in some]
            self._update(edge.UpdateOperation.upsert_points(points))

    def update(self, pages: Sequence[StoredPage]) -> None:
        for some in group_pages(pages, CHUNK):
            changed = [edge.PointVectors(id, vectors) for id, vectors in self._make_vectors(some).items() if vectors]
            if changed:
                self._update(edge.UpdateOperation.update_vectors(changed))
            wordless: list[Any] = [page.id for page in some if page.text is not None and not page.text.terms.numbers]
            if wordless:
                self._update(edge.UpdateOperation.delete_vectors(wordless, [TERMS_NAME]))
            for page in some:  # last: what says where the text was found also says that its terms are there
                self._update(edge.UpdateOperation.set_payload([page.id], make_changes(page)))

    def _make_vectors(self, pages: Sequence[StoredPage]) -> dict[str, dict[str, Any]]:
        """Return all vectors of pages, by their ids."""
        sketches = self.sketches.sketch(pages) if self.sketches else {}
        made = {}
        for page in pages:
            made[page.id] = _vectors(page)
            if page.id in sketches:
                made[page.id][SKETCH_NAME] = sketches[page.id].tolist()
        return made

    def delete(self, file: str) -> None:
        self._update(edge.UpdateOperation.delete_points_by_filter(edge.Filter(must=[_is("file", file)])))

    def _update(self, operation: edge.UpdateOperation) -> None:
        try:
            self.shard.update(operation)
        except Exception as error:  # a full disk, for example; the engine has no errors of its own
            raise RandSlotError(f"cannot write pages into {self.folder}: {first_line(error)}") from error

    # -- searches

    def search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        if not exact and self.sketches and self.sketches.candidates:
            return self._search(queries, k, where, exact=False)
        if exact or not self.coded:
            return self._search(queries, k, where, exact=True)
        by_codes = partial(self._search, where=where, exact=False)
        in_full = partial(self._search, where=where, exact=True)
        return search_by_codes(queries, k, self.tuning, by_codes, in_full)

    def _search(self, queries: Sequence[StoreQuery], k: int, where: Where, exact: bool) -> list[list[StoreHit]]:
        if exact and not self.warm and any(query.vectors is not None for query in queries):
            _read_through(self.folder, "vectors")
            self.warm = True
        requests = [self._make_request(query, k, where, exact) for query in queries]
        with _reading():
            found = self.shard.query_batch(edge.QueryBatchRequest(requests))
        return [[_make_hit(point) for point in points] for points in found]

    def _make_request(self, query: StoreQuery, k: int, where: Where, exact: bool) -> edge.QueryRequest:
        some = _make_filter(where, query)
        if query.vectors is not None and query.terms is not None:
            pool = self.tuning.pool_for(k)
            prefetches = [
                edge.Prefetch(pool, _nearest_words(query), params=_rare_among(where), filter=some),
                edge.Prefetch(
                    pool,
                    _nearest_vectors(query),
                    prefetches=self._find_candidates(query, pool, some, exact),
                    params=self._vector_search(pool, pool, exact),
                    filter=some,
                ),
            ]
            weights = [1.0, query.vectors_weight]
            # This engine counts ranks from 0.
            together: Any = edge.Fusion.Rrf(k=self.tuning.rank_offset + 1, weights=weights)
            return edge.QueryRequest(k, query=together, prefetches=prefetches, with_payload=PLACE)
        if query.vectors is not None:
            candidates = self._find_candidates(query, k, some, exact)
            limit = k if exact or candidates else self.tuning.hits_for(k)
            return edge.QueryRequest(
                limit,
                query=_nearest_vectors(query),
                prefetches=candidates,
                params=self._vector_search(k, limit, exact),
                filter=some,
                with_payload=PLACE,
            )
        how = _rare_among(where)
        return edge.QueryRequest(k, query=_nearest_words(query), params=how, filter=some, with_payload=PLACE)

    def _find_candidates(
        self, query: StoreQuery, k: int, some: edge.Filter | None, exact: bool
    ) -> list[edge.Prefetch] | None:
        """Return what finds the pages by sketches that are scored in full; None if all pages are looked at."""
        if exact or self.sketches is None or not self.sketches.candidates:
            return None
        assert query.vectors is not None
        num = self.sketches.candidates_for(k)
        nearest = edge.Query.Nearest(self.sketches.sketcher.sketch_query(query.vectors).tolist(), SKETCH_NAME)
        return [edge.Prefetch(num, nearest, params=edge.SearchParams(exact=True), filter=some)]

    def _vector_search(self, k: int, limit: int, exact: bool) -> edge.SearchParams:
        if not exact and self.sketches and self.sketches.candidates:
            return edge.SearchParams(quantization=edge.QuantizationSearchParams(ignore=True))
        oversampling = self.tuning.oversampling_for(k, limit)
        codes = edge.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=oversampling)
        return edge.SearchParams(exact=exact, quantization=codes)

    # -- what is stored

    def read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        return read_split(self._read, ids, SCROLLED)

    def _read(self, ids: Sequence[str]) -> dict[str, StoredPage]:
        with _reading():
            records = self.shard.retrieve(list(ids), with_payload=True, with_vector=True)
        return {str(record.id): _read_page(record) for record in records}

    def images(self, file: str) -> dict[int, str]:
        found: dict[int, str] = {}
        for page in self._scroll(edge.Filter(must=[_is("file", file)])):
            found[page.number] = page.image
        return found

    def counts(self) -> dict[str, int]:
        hits = self.shard.facet(edge.FacetRequest("file", limit=self.shard.info().points_count + 1, exact=True)).hits
        return {str(hit.value): int(hit.count) for hit in hits if hit.count}

    def contents(self, hidden: Collection[str]) -> Contents:
        unseen = _hide(hidden)
        pages = self.shard.count(edge.CountRequest(filter=edge.Filter(must_not=unseen)))
        with_vectors = 0
        if self.dim is not None:
            has_vectors = edge.HasVectorCondition(VECTOR_NAME)
            with_vectors = self.shard.count(edge.CountRequest(filter=edge.Filter(must=[has_vectors], must_not=unseen)))
        origins: dict[str, int] = {}
        request = edge.FacetRequest("origin", limit=10, filter=edge.Filter(must_not=unseen), exact=True)
        for hit in self.shard.facet(request).hits:
            origins[str(hit.value)] = int(hit.count)
        origins[""] = pages - sum(origins.values())
        return Contents(pages, with_vectors, {origin: num for origin, num in origins.items() if num})

    def count_cut(self, hidden: Collection[str]) -> int:
        cut = edge.Filter(must=[_is("read", PART)], must_not=_hide(hidden))
        return int(self.shard.count(edge.CountRequest(filter=cut)))

    def find(
        self, origins: Collection[Origin] | None, *, vectors: bool | None = None, sketch: bool | None = None
    ) -> Iterator[StoredPage]:
        must: list[Any] = []
        must_not: list[Any] = []
        if vectors is not None and self.dim is not None:
            (must if vectors else must_not).append(edge.HasVectorCondition(VECTOR_NAME))
        if sketch is not None:
            (must if sketch else must_not).append(edge.HasVectorCondition(SKETCH_NAME))
        if origins is not None:
            should: list[Any] = [_is("origin", origin) for origin in origins if origin]
            if "" in origins:
                should.append(edge.IsEmptyCondition("origin"))
            must.append(edge.Filter(should=should))
        yield from self._scroll(edge.Filter(must=must, must_not=must_not))

    def _scroll(self, some: edge.Filter) -> Iterator[StoredPage]:
        offset = None
        while True:
            request = edge.ScrollRequest(offset, SCROLLED, some, with_payload=[*PLACE, "image"])
            records, offset = self.shard.scroll(request)
            for record in records:
                yield _read_page(record)
            if offset is None:
                return

    def flush(self) -> None:
        self.shard.flush()

    def optimize(self) -> None:
        self.shard.optimize()
        self.shard.flush()  # lets go of what was optimized

    def wait_optimized(self) -> None:
        self.optimize()

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


# -- a new store


def _create(folder: Path, dim: int | None, tuning: Tuning) -> None:
    """Make an empty store: it appears complete, or not at all."""
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(part), _make_config(dim, tuning))
    shard.update(edge.UpdateOperation.create_field_index("file", edge.PayloadSchemaType.Keyword))
    shard.update(edge.UpdateOperation.create_field_index("number", edge.PayloadSchemaType.Integer))
    _index_words(shard)
    shard.flush()
    shard.close()
    os.rename(part, folder)


def _make_config(dim: int | None, tuning: Tuning, *, sketches: bool = False) -> edge.EdgeConfig:
    vectors = {} if dim is None else {VECTOR_NAME: _vector_parameters(dim, tuning)}
    if sketches:
        vectors[SKETCH_NAME] = _sketch_parameters()
    return edge.EdgeConfig(
        vectors=vectors,
        sparse_vectors={TERMS_NAME: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf, memory=edge.Memory.Cold)},
        optimizers=edge.EdgeOptimizersConfig(
            indexing_threshold=tuning.compress_from, deleted_threshold=0.1, vacuum_min_vector_number=100
        ),
    )


def _vector_parameters(dim: int, tuning: Tuning) -> edge.EdgeVectorParams:
    codes = edge.BinaryQuantizationConfig(memory=edge.Memory.Cached)
    return edge.EdgeVectorParams(
        size=dim,
        distance=edge.Distance.Dot,
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
        datatype=edge.VectorStorageDatatype.Float16,
        memory=edge.Memory.Cold,
        quantization_config=codes if tuning.has_codes(dim) else None,
        hnsw_config=NO_GRAPH,
    )


def _sketch_parameters() -> edge.EdgeVectorParams:
    return edge.EdgeVectorParams(
        size=NUMBERS,
        distance=edge.Distance.Dot,
        datatype=edge.VectorStorageDatatype.Float16,
        memory=edge.Memory.Cold,
        hnsw_config=NO_GRAPH,
    )


def _index_words(shard: edge.EdgeShard) -> None:
    """Index where texts were found, and words by their places; they are words already, with a space between them."""
    words = edge.TextIndexParams(
        tokenizer=edge.TokenizerType.Whitespace, phrase_matching=True, lowercase=False, memory=edge.Memory.Cold
    )
    shard.update(edge.UpdateOperation.create_field_index("words", words))
    for name in ("origin", "read"):
        shard.update(edge.UpdateOperation.create_field_index(name, edge.PayloadSchemaType.Keyword))


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


# -- from pages to points and back


def _vectors(page: StoredPage) -> dict[str, Any]:
    vectors: dict[str, Any] = {}
    if page.vectors is not None:
        vectors[VECTOR_NAME] = page.vectors.tolist()
    if page.text is not None and page.text.terms.numbers:
        vectors[TERMS_NAME] = _sparse(page.text.terms)
    return vectors


def _read_page(record: Any) -> StoredPage:
    return read_page(record.payload, record.vector or {})


def _make_hit(point: Any) -> StoreHit:
    return StoreHit(str(point.id), str(point.payload["file"]), int(point.payload["number"]), float(point.score))


# -- queries and filters


def _sparse(terms: Terms) -> edge.SparseVector:
    return edge.SparseVector(list(terms.numbers), list(terms.weights))


def _nearest_vectors(query: StoreQuery) -> edge.Query:
    assert query.vectors is not None
    return edge.Query.Nearest(query.vectors.tolist(), VECTOR_NAME)


def _nearest_words(query: StoreQuery) -> edge.Query:
    assert query.terms is not None
    return edge.Query.Nearest(_sparse(query.terms), TERMS_NAME)


def _rare_among(where: Where) -> edge.SearchParams:
    """Count how rare words are over what is visible: pages of hidden files do not count, nor do deleted ones."""
    return edge.SearchParams(idf=edge.IdfParams(edge.Filter(must_not=_hide(where.hidden))))


def _is(key: str, value: str) -> edge.FieldCondition:
    return edge.FieldCondition(key, match=edge.MatchValue(value))


def _hide(files: Collection[str]) -> list[Any]:
    return [edge.FieldCondition("file", match=edge.MatchAny(sorted(files)))] if files else []


def _make_filter(where: Where, query: StoreQuery) -> edge.Filter | None:
    must: list[Any] = []
    if where.files is not None:
        must.append(edge.FieldCondition("file", match=edge.MatchAny(sorted(where.files))))
    if where.first > 1 or where.last is not None:
        must.append(edge.FieldCondition("number", range=edge.RangeFloat(gte=where.first, lte=where.last)))
    for phrase in query.phrases:
        must.append(edge.FieldCondition("words", match=edge.MatchPhrase(phrase)))
    must_not = _hide(where.hidden)
    for phrase in query.excluded:
        must_not.append(edge.FieldCondition("words", match=edge.MatchPhrase(phrase)))
    return edge.Filter(must=must, must_not=must_not) if must or must_not else None
