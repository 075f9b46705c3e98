"""What a student learns from: queries, and the vectors that a teacher makes of them, computed once and kept on disk.

teacher.json   which model the vectors are of, and of which queries
vectors.f16    N x K x D numbers in half precision, in the order of the queries

Vectors are appended as they are made, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RandSlotError, UsageError
from ..files import read_json, read_lines, write_json
from ..model.preprocessing import check_query
from ..model.reader import Identity, PageReader, read_identity
from .pairs import list_queries, read_rows

TEACHER, VECTORS = "teacher.json", "vectors.f16"
BATCH, POOL = 64, 1024  # queries that a teacher encodes at once, and that are sorted by length before


def read_queries(places: Sequence[str], column: str = "query") -> list[str]:
    """Read queries, each once: from the lines of text files, or from a column of what training pairs come from.

    Errors: UsageError for a place or column that is not there; RandSlotError for a file or row that cannot be read.
    """
    found: dict[str, None] = {}
    for place in places:
        path = Path(place)
        as_rows = path.suffix in (".jsonl", ".parquet") or not path.is_file()
        for query in _read_column(place, column) if as_rows else read_lines(path):
            found[query] = None
    if len(found) < 2:
        raise UsageError(f"{', '.join(places)}: {len(found)} different queries are too few to learn from")
    return list(found)


def _read_column(place: str, column: str) -> list[str]:
    rows = read_rows(place, "train")
    if column not in rows.column_names:
        raise UsageError(f"{place} has no column {column!r}; it has {', '.join(rows.column_names)}")
    queries = []
    for number, row in enumerate(rows.select_columns([column]), start=1):
        for query in list_queries(row[column]):
            try:
                queries.append(check_query(query).strip())
            except UsageError as error:
                raise RandSlotError(f"{place}: row {number}: {error}") from error
    return queries


@dataclass(frozen=True)
class Lessons:
    """Queries with the vectors (N, K, D) that a teacher makes of them."""

    teacher: Identity
    queries: list[str]
    vectors: NDArray[np.float16]


class LessonFolder:
    """A folder with a teacher's vectors of some queries, complete or not."""

    def __init__(self, folder: Path, queries: list[str]) -> None:
        self.folder, self.queries = folder, queries
        self.key = blake2b("\n".join(queries).encode(), digest_size=12).hexdigest()

    def read(self) -> Lessons | None:
        """Return the vectors without asking the teacher, if they are complete.

        Errors: UsageError if they are of other queries.
        """
        teacher = self._read_teacher()
        if teacher is None or self._count(teacher) < len(self.queries):
            return None
        return self._open(teacher)

    def fill(self, reader: PageReader, progress: Callable[[int], None]) -> Lessons:
        """Compute the vectors that are missing; `progress` is told how many are there.

        Errors: UsageError if those that are there are of another teacher or of other queries, or if the teacher has no
        fixed number of vectors. RandSlotError for vectors that are not finite.
        """
        teacher = describe_teacher(reader)
        before = self._read_teacher()
        if before is None:
            write_json(self.folder / TEACHER, {"queries": self.key, "teacher": teacher.as_dict()})
        elif before.weights != teacher.weights or before.settings != teacher.settings:
            raise UsageError(f"{self.folder} has vectors of {before}, and this is {teacher}: choose another folder")
        done = self._count(teacher)
        with (self.folder / VECTORS).open("ab") as file:
            file.truncate(done * self._row_bytes(teacher))  # half a row was being written when it was stopped
            for start in range(done, len(self.queries), POOL):
                rows = self._ask(reader, teacher, start, progress)
                file.write(b"".join(rows[query] for query in self.queries[start : start + POOL]))
                file.flush()
        progress(len(self.queries))
        return self._open(teacher)

    def _ask(
        self, reader: PageReader, teacher: Identity, start: int, progress: Callable[[int], None]
    ) -> dict[str, bytes]:
        """Return the rows of some queries from `start` on; those of a like length are encoded together."""
        rows: dict[str, bytes] = {}
        some = sorted(self.queries[start : start + POOL], key=len)
        for first in range(0, len(some), BATCH):
            progress(start + first)
            batch = some[first : first + BATCH]
            for query, vectors in zip(batch, reader.embed_queries(batch), strict=True):
                rows[query] = _pack(query, vectors, teacher)
        return rows

    def _read_teacher(self) -> Identity | None:
        file = self.folder / TEACHER
        if not file.is_file():
            return None
        about = read_json(file)
        if about.get("queries") != self.key:
            raise UsageError(f"{self.folder} has vectors of other queries: choose another folder")
        try:
            return read_identity(about["teacher"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RandSlotError(f"{file} does not say which model it is about: {error}") from error

    def _count(self, teacher: Identity) -> int:
        file = self.folder / VECTORS
        return file.stat().st_size // self._row_bytes(teacher) if file.is_file() else 0

    def _shape(self, teacher: Identity) -> tuple[int, int]:
        num = teacher.num_vectors("query")
        assert num is not None, "describe_teacher refuses others"
        return num, teacher.dimension

    def _row_bytes(self, teacher: Identity) -> int:
        num, dim = self._shape(teacher)
        return 2 * num * dim

    def _open(self, teacher: Identity) -> Lessons:
        shape = (len(self.queries), *self._shape(teacher))
        vectors: Any = np.memmap(self.folder / VECTORS, np.float16, "r", shape=shape)
        return Lessons(teacher, self.queries, vectors)


def describe_teacher(reader: PageReader) -> Identity:
    """Return which model a teacher is, with the number of vectors that it makes of a query.

    Errors: UsageError if that depends on the query, or if it is a student itself.
    """
    num, identity = reader.num_vectors("query"), reader.identity
    if num is None:
        raise UsageError(f"{identity} has a vector for every token of a query: a student learns a fixed number of them")
    if getattr(reader, "teacher", None) is not None:
        raise UsageError(f"{identity} is a student itself: name its teacher, {getattr(reader, 'teacher', None)}")
    return replace(identity, settings={**identity.settings, "query_vectors": num})


def _pack(query: str, vectors: NDArray[np.float32], teacher: Identity) -> bytes:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.shape != (teacher.num_vectors("query"), teacher.dimension) or not lengths.all():
        raise RandSlotError(f"the teacher makes no vectors that can be learned of {query[:80]!r}")
    if not np.isfinite(vectors).all():
        raise RandSlotError(f"the teacher makes vectors of {query[:80]!r} that are not finite")
    packed: bytes = (vectors / lengths).astype("<f2").tobytes()
    return packed


def load_lessons(
    name: str, folder: LessonFolder, progress: Callable[[int], None], *, trust_remote_code: bool = False
) -> Lessons:
    """Load a teacher, ask for the vectors that are missing, and let it go: a student has the memory for itself."""
    from ..model.remote_model import is_url, open_model

    reader: Any = open_model(name) if is_url(name) else open_model(name, trust_remote_code=trust_remote_code or None)
    lessons = folder.fill(reader, progress)
    del reader
    gc.collect()
    return lessons
