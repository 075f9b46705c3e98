"""Sketches: one short vector for a page, whose product with that of a query is nearly their MaxSim.

MaxSim adds up, over the vectors x of a query, the largest product of x with a vector of the page. As a function of x,
this is close to a weighted sum of a few hundred features of x, exp(sharpness * x.c) for vectors c of some pages. The
weights that are best for a page, by least squares over vectors of queries, are linear in its largest products with
them. So a query is its features, a page is its weights, and both are turned to their main axes and cut off.

LEMUR (a network in place of these features) has shown that one vector can stand for many; docs/log.md has figures.

Shapes: X vectors of queries, C centres, S numbers of a sketch, K vectors of one page or query, D dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from io import BytesIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...errors import RandSlotError, first_line

Vectors = NDArray[np.float32]
Doubles = NDArray[np.float64]
NUMBERS = 128  # of a sketch
AT_ONCE = 2**24  # products at once: 64 MB


@dataclass(frozen=True)
class Sketcher:
    """Makes the sketches of queries and pages. All that it is fits into a few megabytes.

    centres_CD, sharpness, query_map: from a query to its sketch. anchors_XD, page_map_XS, page_mean_S: from a page.
    """

    centres_CD: Vectors
    sharpness: NDArray[np.float32]
    query_map: Vectors
    anchors_XD: Vectors
    page_map_XS: Vectors
    page_mean_S: Vectors

    def sketch_query(self, query_KD: Vectors) -> Vectors:
        """Return the sketch of a query."""
        features = make_features(query_KD, self.centres_CD, float(self.sharpness)).sum(0)
        return np.asarray(features @ self.query_map, np.float32)

    def sketch_pages(self, pages: Sequence[Vectors]) -> Vectors:
        """Return the sketches of pages, a row each."""
        made = np.empty((len(pages), len(self.page_mean_S)), np.float32)
        for start, end in _cut(pages, AT_ONCE // len(self.anchors_XD)):
            made[start:end] = find_nearest(self.anchors_XD, pages[start:end]).T @ self.page_map_XS - self.page_mean_S
        return made

    def to_bytes(self) -> bytes:
        """Return all that it is, in single precision."""
        content = BytesIO()
        np.savez(content, **{field.name: getattr(self, field.name) for field in fields(self)})
        return content.getvalue()

    @property
    def key(self) -> str:
        """What it is known by: another one has another key."""
        return blake2b(self.page_map_XS.tobytes() + self.anchors_XD.tobytes(), digest_size=8).hexdigest()

    @classmethod
    def from_bytes(cls, content: bytes) -> Sketcher:
        """Read what `to_bytes` wrote."""
        try:
            with np.load(BytesIO(content), allow_pickle=False) as values:
                return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (BadZipFile, EOFError, KeyError, ValueError) as error:
            raise RandSlotError(f"sketches are damaged: {first_line(error)}") from error


def make_features(vectors: Vectors, centres_CD: Vectors, sharpness: float) -> Vectors:
    """Return the features of vectors, and a one at the end of each row."""
    near = np.exp(sharpness * (vectors.astype(np.float32) @ centres_CD.T))
    return np.concatenate([near, np.ones((len(near), 1), np.float32)], axis=1)


def find_nearest(anchors_XD: Vectors, pages: Sequence[Vectors]) -> Vectors:
    """Return the largest product of each anchor with a vector of each page: anchors x pages."""
    starts = np.cumsum([0, *[len(page) for page in pages[:-1]]])
    products = anchors_XD @ np.concatenate(pages).astype(np.float32).T
    return np.asarray(np.maximum.reduceat(products, starts, axis=1), np.float32)


def _cut(pages: Sequence[Vectors], most: int) -> Iterator[tuple[int, int]]:
    """Yield first and last of groups of pages with at most so many vectors; a larger page is alone."""
    start, size = 0, 0
    for number, page in enumerate(pages):
        if number > start and size + len(page) > most:
            yield start, number
            start, size = number, 0
        size += len(page)
    if pages:
        yield start, len(pages)


def fit_sketcher(queries: Sequence[Vectors], pages: Sequence[Vectors]) -> Sketcher:
    """Fit the sketches of a library to vectors of queries as they will be asked, and to some of its pages."""
    dice = np.random.default_rng(0)
    anchors_XD = _choose(np.concatenate(queries), 4096, dice)
    centres_CD = _choose(np.concatenate(pages), 512, dice)
    length = np.linalg.norm(anchors_XD, axis=1).mean() * np.linalg.norm(centres_CD, axis=1).mean()
    sharpness = 4.0 / float(length)  # 4 for vectors of unit length
    features = make_features(anchors_XD, centres_CD, sharpness).astype(np.float64)
    num, size = features.shape
    moments = features.T @ features / num
    moments += 1e-4 * np.trace(moments) / size * np.eye(size)
    # With moments = L L', weights w of a page as L'w: their squared distance is that of two pages' scores over queries.
    root = np.linalg.cholesky(moments)
    to_weights = np.linalg.solve(root, features.T) / num
    weights = []
    for start, end in _cut(pages, AT_ONCE // len(anchors_XD)):
        weights.append((to_weights @ find_nearest(anchors_XD, pages[start:end])).T)
    sample = np.concatenate(weights)
    mean = sample.mean(0)
    axes = _main_axes(sample - mean)
    scale = 1 / max(float(np.std((sample - mean) @ axes)), 1e-12)  # numbers of about one, for half precision
    return Sketcher(
        centres_CD=centres_CD,
        sharpness=np.array(sharpness, np.float32),
        query_map=np.asarray(np.linalg.solve(root.T, axes) / scale, np.float32),
        anchors_XD=anchors_XD,
        page_map_XS=np.asarray(to_weights.T @ axes * scale, np.float32),
        page_mean_S=np.asarray(mean @ axes * scale, np.float32),
    )


def _choose(vectors: Vectors, most: int, dice: np.random.Generator) -> Vectors:
    chosen = vectors[dice.permutation(len(vectors))[:most]]
    return np.asarray(chosen, np.float32)


def _main_axes(values: Doubles) -> Doubles:
    """Return the directions in which rows differ most, as columns; zeros where there are fewer than a sketch has."""
    _, found = np.linalg.eigh(values.T @ values)
    axes = np.zeros((len(found), NUMBERS))
    axes[:, : len(found)] = found[:, ::-1][:, :NUMBERS]
    return axes
