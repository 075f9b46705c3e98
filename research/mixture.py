"""Sample any number of pages from a mixture of Gaussians fitted to the vectors of real pages.

    python -m research.mixture LIBRARY QUERIES.jsonl FOLDER/NAME.npz

Queries are real, so the distribution of scores is realistic. Benchmarks of millions of pages (benchmarks/scale.py,
research.experiments.growth) sample pages from such a fit.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from randslot.library.library import Library
from randslot.library.models import choose_line
from randslot.library.stores.points import page_id

from .command import run

Floats = NDArray[np.float32]
CHUNK = 10_000  # pages sampled at once: any number of pages starts with the same ones
COMPONENTS = 64  # of the mixture
CENTRES = 2_000  # of the clusters of large vectors
QUERIES = 100


def fit(library: str, questions: Path, target: Path) -> None:
    """Fit a mixture to the vectors of a library's pages, and save it with the vectors of questions."""
    from sklearn.cluster import KMeans

    pages: list[Floats] = []
    texts = [json.loads(line)["query"] for line in questions.read_text().splitlines()]
    texts = texts[:: max(len(texts) // 2000, 1)]
    dice = random.Random(0)
    lines = []
    with Library(library, create=False) as opened:
        for file in opened.files():
            ids = [page_id(file.id, number) for number in range(1, file.num_pages + 1)]
            for page in opened.store.read(ids).values():
                if page.vectors is not None:
                    pages.append(page.vectors)
                    lines.append(choose_line(page, dice) if page.text else "")
        lines = dice.sample([line for line in lines if line], 600)
        queries = np.stack(opened.models.embed_queries(texts))
        asked = np.stack(opened.models.embed_queries(lines))
    values = np.stack(pages).astype(np.float32)
    num, vectors, dim = values.shape
    flat = values.reshape(num, vectors * dim)
    groups = KMeans(COMPONENTS, random_state=0, n_init=1).fit(flat)
    inner = flat - groups.cluster_centers_[groups.labels_]
    spread, axes = np.linalg.eigh(np.cov(inner, rowvar=False))
    noise = axes * np.sqrt(np.maximum(spread, 0))
    weights = np.bincount(groups.labels_, minlength=COMPONENTS) / num
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        target,
        centres=groups.cluster_centers_.astype(np.float32),
        weights=weights,
        noise=noise.astype(np.float32),
        queries=queries.astype(np.float32),
        lines=asked.astype(np.float32),
        shape=np.array([vectors, dim]),
    )
    print(f"{num} pages of {vectors} x {dim} and {len(queries)} queries")
    print(describe(values, queries))


def describe(pages: Floats, queries: Floats) -> str:
    """Return statistics of vectors: the similarity of a page's readouts, and the spread of scores."""
    alike = float(np.einsum("nkd,njd->kj", pages, pages)[0, 1:].mean() / len(pages))
    scores = np.sort(score(queries, pages), axis=1)[:, ::-1]
    first, fifth, hundredth, median = scores[:, [0, 4, 99, len(pages) // 2]].mean(0)
    centred = pages[:, 0] - pages[:, 0].mean(0)
    spread = np.linalg.svd(centred, compute_uv=False) ** 2
    dims = float(spread.sum() ** 2 / (spread**2).sum())
    return (
        f"cosine of readouts {alike:.2f}, effective dimensions {dims:.1f}, "
        f"scores of ranks 1, 5, 100 and the median {first:.3f} {fifth:.3f} {hundredth:.3f} {median:.3f}"
    )


def score(queries: Floats, pages: Floats) -> Floats:
    """Return MaxSim of all queries and pages."""
    total = np.zeros((len(queries), len(pages)), np.float32)
    for number in range(queries.shape[1]):
        total += np.einsum("qd,nkd->qnk", queries[:, number], pages, optimize=True).max(-1)
    return total


def normalize(values: Floats) -> Floats:
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True), np.float32)


@dataclass(frozen=True)
class Source:
    """A source of pages. dim: rotate the model's vectors into a space of more dimensions."""

    like: Path
    dim: int

    def turn(self, dim: int) -> Floats:
        square = np.random.default_rng(1).standard_normal((self.dim, self.dim))
        return np.linalg.qr(square)[0][:dim].astype(np.float32)

    def chunk(self, number: int) -> Floats:
        """Return some pages, the same each time."""
        dice = np.random.default_rng([7, number])
        like = np.load(self.like)
        vectors, dim = like["shape"]
        which = dice.choice(COMPONENTS, CHUNK, p=like["weights"])
        noise = dice.standard_normal((CHUNK, vectors * dim)).astype(np.float32) @ like["noise"].T
        values = (like["centres"][which] + noise).reshape(CHUNK, vectors, dim)
        return normalize(values @ self.turn(dim))

    def lines(self) -> Floats:
        """Return lines of pages as queries."""
        like = np.load(self.like)
        return normalize(like["lines"] @ self.turn(int(like["shape"][1])))

    def queries(self) -> Floats:
        like = np.load(self.like)
        chosen = like["queries"][:: max(len(like["queries"]) // QUERIES, 1)][:QUERIES]
        return normalize(chosen @ self.turn(int(like["shape"][1])))


@dataclass(frozen=True)
class Clusters(Source):
    """Pages of large vectors: each is near a cluster centre, and a query is near a page."""

    def chunk(self, number: int) -> Floats:
        dice = np.random.default_rng([8, number])
        centres = normalize(np.random.default_rng(8).standard_normal((CENTRES, self.dim)).astype(np.float32))
        which = dice.integers(0, CENTRES, (CHUNK, 4))
        noise = dice.standard_normal((CHUNK, 4, self.dim)).astype(np.float32) / self.dim**0.5
        return normalize(centres[which] + 0.7 * noise)

    def queries(self) -> Floats:
        pages = self.chunk(0)[:QUERIES]
        noise = np.random.default_rng(9).standard_normal(pages.shape).astype(np.float32) / self.dim**0.5
        return normalize(pages + 0.7 * noise)


@dataclass(frozen=True)
class Uniform(Source):
    """Independent random pages and queries: the worst case for codes."""

    def chunk(self, number: int) -> Floats:
        values = np.random.default_rng([6, number]).standard_normal((CHUNK, 4, self.dim), dtype=np.float32)
        return normalize(values)

    def queries(self) -> Floats:
        return normalize(np.random.default_rng(5).standard_normal((QUERIES, 4, self.dim), dtype=np.float32))


def make_source(folder: Path, like: str, dim: int) -> Source:
    """like: the name of a fit in the folder, clusters, or uniform."""
    kind = {"clusters": Clusters, "uniform": Uniform}.get(like, Source)
    return kind(folder / f"{like}.npz", dim)


if __name__ == "__main__":
    run(fit)
