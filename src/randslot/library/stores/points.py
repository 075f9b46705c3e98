"""A page as a point of a vector database: named vectors, and a payload with its file, number, hash and text.

Vectors are dense ("page": several, compared by MaxSim; "sketch": one, see sketches.py) or sparse ("words": terms with
their BM25 weights, which the engine multiplies by IDF).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...words.analyzer import Terms

T = TypeVar("T")
Vectors = NDArray[np.float32]
NamedVectors = dict[str, "Vectors | Terms"]
BYTES_PER_NUMBER = 2  # of a vector: stores keep half precision
PART = "part"  # in a payload: the model has read only a part of the page


def page_id(file: str, number: int) -> str:
    """Return the id of a page, the same in every store."""
    return str(uuid.uuid5(uuid.UUID(file), str(number)))


Origin = Literal["layer", "ocr", "none", "blank", "failed", ""]
"""Where the text of a page is from: the file ("layer") or OCR. Or why it has none: it has no text layer and needs OCR
("none"), OCR found nothing ("blank") or failed, or it has not been read yet ("")."""


@dataclass(frozen=True)
class StoredText:
    """The text of a page. words: in order, for phrases. terms: for BM25. fields: headings and titles, as in `PageText`.

    boxes: of its words, eight bytes each; none if they can be read from the file, as in a PDF with text.
    """

    origin: Origin
    text: str = ""
    boxes: bytes = b""
    words: str = ""
    terms: Terms = field(default_factory=Terms)
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredPage:
    """A page: the id of its file, its number from 1, a hash of its content, its vectors (K, D) and its text.

    vectors: None without a model, or before a backfill. text: None if not read yet. cut: whether the model has read
    only a part of the text.
    """

    file: str
    number: int
    hash: str
    vectors: Vectors | None = None
    text: StoredText | None = None
    cut: bool = False

    @property
    def id(self) -> str:
        return page_id(self.file, self.number)


# -- from pages to points and back


@dataclass(frozen=True)
class DenseField:
    """A named dense vector of pages. is_multi: several per page, compared by MaxSim. has_codes: with binary codes."""

    name: str
    size: int
    is_multi: bool = False
    has_codes: bool = False


VECTOR_NAME, TERMS_NAME = "page", "words"
SKETCH = DenseField("sketch", 128)
PAYLOAD_INDEXES = {"file": "keyword", "origin": "keyword", "read": "keyword", "number": "integer", "words": "text"}


class Point(NamedTuple):
    """A page as an engine stores it."""

    id: str
    vectors: NamedVectors
    payload: dict[str, Any]


def make_vectors(page: StoredPage, sketch: Vectors | None = None) -> NamedVectors:
    """Return the named vectors of a page, in half precision, so that all engines store the same numbers."""
    vectors: NamedVectors = {}
    if page.vectors is not None:
        vectors[VECTOR_NAME] = halve(page.vectors)
    if page.text is not None and page.text.terms.numbers:
        vectors[TERMS_NAME] = page.text.terms
    if sketch is not None:
        vectors[SKETCH.name] = halve(sketch)
    return vectors


def halve(vectors: Vectors) -> Vectors:
    """Round numbers to half precision."""
    return vectors.astype(np.float16).astype("<f4")


def make_payload(page: StoredPage, *, is_new: bool = True) -> dict[str, Any]:
    """Return the payload of a page; its hash has the key "image". is_new: all fields; else only those of an update."""
    payload: dict[str, Any] = {"file": page.file, "number": page.number, "image": page.hash} if is_new else {}
    if page.text is not None:
        payload["origin"] = page.text.origin
        payload["text"] = page.text.text
        if page.text.boxes or not is_new:
            payload["boxes"] = base64.b64encode(page.text.boxes).decode()
        payload["words"] = page.text.words
        payload["fields"] = dict(page.text.fields)
    if page.vectors is not None:
        payload["image"] = page.hash
    if page.cut:
        payload["read"] = PART
    return payload


def read_page(payload: Any, vectors: Any) -> StoredPage:
    """Return the page of a point, with the fields that were retrieved; each engine has its own types."""
    own = np.array(vectors[VECTOR_NAME], np.float32) if VECTOR_NAME in vectors else None
    text = None
    if "origin" in payload:
        sparse = vectors.get(TERMS_NAME)
        terms = Terms(tuple(sparse.indices), tuple(sparse.values)) if sparse else Terms()
        boxes = base64.b64decode(payload["boxes"]) if "boxes" in payload else b""
        fields = payload.get("fields", {})
        text = StoredText(payload["origin"], payload["text"], boxes, payload["words"], terms, fields)
    cut = payload.get("read") == PART
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), own, text, cut)


# -- filters


@dataclass(frozen=True)
class Filter:
    """A filter of points; all conditions must match.

    any_of, none_of: allowed and excluded values of payload fields. phrases, excluded: of the words. first, last: page
    numbers. has, lacks: names of vectors.
    """

    any_of: Mapping[str, Collection[str]] = field(default_factory=dict)
    none_of: Mapping[str, Collection[str]] = field(default_factory=dict)
    phrases: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    first: int = 1
    last: int | None = None
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def make_filter(types: Any, some: Filter, has: Callable[[str], Any], numbers: Callable[..., Any]) -> Any:
    """Convert a filter to an engine's types. has: its condition for a named vector. numbers: its range."""
    must: list[Any] = []
    must_not: list[Any] = []
    for conditions, fields in ((must, some.any_of), (must_not, some.none_of)):
        for name, values in fields.items():
            conditions.append(types.FieldCondition(key=name, match=types.MatchAny(any=sorted(values))))
    for conditions, phrases in ((must, some.phrases), (must_not, some.excluded)):
        for phrase in phrases:
            conditions.append(types.FieldCondition(key="words", match=types.MatchPhrase(phrase=phrase)))
    for conditions, names in ((must, some.has), (must_not, some.lacks)):
        conditions += map(has, names)
    if some.first > 1 or some.last is not None:
        must.append(types.FieldCondition(key="number", range=numbers(gte=some.first, lte=some.last)))
    return types.Filter(must=must or None, must_not=must_not or None)


def convert_vector(types: Any, vector: Vectors | Terms) -> Any:
    """Convert a vector to an engine's types."""
    if isinstance(vector, Terms):
        return types.SparseVector(indices=list(vector.numbers), values=list(vector.weights))
    return vector.tolist()


# -- sizes


def measure_page(page: StoredPage) -> int:
    """Estimate the bytes of a page in a request."""
    size = 0 if page.vectors is None else 4 * page.vectors.size
    if page.text is not None:
        size += 4 * (len(page.text.text) + len(page.text.words)) + 2 * len(page.text.boxes)
        size += 8 * len(page.text.terms.numbers)
    return size


def split_by_size(
    values: Sequence[T], measure: Callable[[T], int], max_bytes: int, max_num: int = 2**30
) -> Iterator[list[T]]:
    """Split values into lists of bounded size; a larger value forms its own list."""
    batch: list[T] = []
    size = 0
    for value in values:
        own = measure(value) + 256  # overhead of a point or query
        if batch and (len(batch) == max_num or size + own > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += own
    if batch:
        yield batch
