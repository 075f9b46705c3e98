"""How should keyword and vector scores be fused? Rows on development data, with intervals.

    randslot index data/shelf/dev/pages -l shelf --model use-multilingual
    python -m research.experiments.fusion data/shelf/dev=shelf data/manuals/dev=manuals
    python -m research.experiments.fusion data/shelf/dev=shelf,shelf-minilm     # words with both readers

Chosen by these rows: `fuse` in `randslot.library.stores.store`, and the weights in `randslot.library.models`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from randslot.evaluation.metrics import ndcg
from randslot.library.library import Library
from randslot.library.models import ACROSS
from randslot.library.search import make_where, read_queries
from randslot.library.stores.store import StoreHit, StoreQuery, Where, fuse

Floats = NDArray[np.float64]
Hits = Sequence[StoreHit]
POOL = 100
READER_WEIGHTS = (0.0, 0.15, 0.25, 0.4, 0.7, 1.0)


class Question(NamedTuple):
    """The best pages of a question by words and by vectors, its grades, and whether it is in another language."""

    words: Hits
    vectors: Hits
    grades: dict[str, int]
    is_foreign: bool


def sum_ranks(words: Hits, vectors: Hits, weight: float) -> list[str]:
    """Fuse ranks, RandSlot's former method: 1 / (1 + rank / weight)."""
    scores: dict[str, float] = {}
    for hits, own in ((words, 1.0), (vectors, weight)):
        for rank, hit in enumerate(hits, start=1):
            scores[hit.id] = scores.get(hit.id, 0.0) + own / (own + rank)
    return sorted(scores, key=lambda id: -scores[id])


def sum_scores(words: Hits, vectors: Hits, weight: float, normalise: Callable[[Floats], Floats]) -> list[str]:
    """Fuse normalised scores; a page missing from a list gets 0 from it."""
    scores: dict[str, float] = {}
    for hits, own in ((words, 1.0), (vectors, weight)):
        for hit, value in zip(hits, normalise(np.array([hit.score for hit in hits])), strict=True):
            scores[hit.id] = scores.get(hit.id, 0.0) + own * float(value)
    return sorted(scores, key=lambda id: -scores[id])


def use_deviation(values: Floats) -> Floats:
    """Normalise like Qdrant's distribution-based fusion: three standard deviations around the mean map to 0..1."""
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return (values - values.mean()) / (6 * deviation) + 0.5 if deviation else np.full_like(values, 0.5)


def use_best(values: Floats) -> Floats:
    """Normalise so that the best page has score 1."""
    return values / float(values.max(initial=1e-9))


FUSIONS: dict[str, Callable[[Hits, Hits, float], list[str]]] = {
    "ranks": sum_ranks,
    "normalised sum": lambda words, vectors, weight: [hit.id for hit in fuse(words, vectors, weight, POOL)],
    "DBSF": lambda words, vectors, weight: sum_scores(words, vectors, weight, use_deviation),
    "share of the best": lambda words, vectors, weight: sum_scores(words, vectors, weight, use_best),
    "words only": lambda words, vectors, weight: [hit.id for hit in words],
    "vectors only": lambda words, vectors, weight: [hit.id for hit in vectors],
}


def read_questions(data: Path, place: Path) -> list[Question]:
    """Run the questions of a set; hits are identified by the set's page names."""
    grades: dict[str, dict[str, int]] = {}
    for line in (data / "qrels.jsonl").read_text().splitlines():
        row = json.loads(line)
        grades.setdefault(row["query"], {})[row["page"]] = row["grade"]
    rows = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
    questions = []
    with Library(place, create=False) as library:
        where = make_where(library, {})
        assert isinstance(where, Where)
        for row, one in zip(rows, read_queries(library, [row["query"] for row in rows], "both", None), strict=True):
            alone = [StoreQuery(terms=one.store.terms), StoreQuery(one.store.vectors)]
            found = library.store.search(alone, POOL, where, True)
            files = library.manifest.get({hit.file for hits in found for hit in hits})
            named = []
            for hits in found:
                sources = [Path(files[hit.file].source).relative_to((data / "pages").resolve()) for hit in hits]
                names = [f"{source.as_posix()}#page={hit.number}" for source, hit in zip(sources, hits, strict=True)]
                named.append([replace(hit, id=name) for hit, name in zip(hits, names, strict=True)])
            words, vectors = named
            questions.append(Question(words, vectors, grades[row["id"]], one.store.vectors_weight == ACROSS))
    return questions


def find_interval(differences: Floats) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean over questions."""
    means = np.random.default_rng(0).choice(differences, (10_000, len(differences))).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def compare_fusions(data: Path, place: Path) -> None:
    """Print nDCG@5 for each fusion and weight, and the difference from the former fusion of ranks."""
    questions = read_questions(data, place)
    for is_foreign, weights, before in ((False, (0.15, 0.25, 0.4, 0.7), 0.7), (True, (0.5, 1.0, 2.0), 2.0)):
        some = [one for one in questions if one.is_foreign == is_foreign]
        print(f"{data}, {len(some)} questions{' in another language' if is_foreign else ''}")
        base: Floats | None = None
        for name, fusion in FUSIONS.items():
            for weight in (before, *weights) if name == "ranks" else (1.0,) if "only" in name else weights:
                values = score([fusion(one.words, one.vectors, weight) for one in some], some)
                base = values if base is None else base
                print(f"{name} | {weight} | {values.mean():.1f} | {describe(values - base)}", flush=True)


def compare_readers(data: Path, first: Path, second: Path) -> None:
    """Print nDCG@5 of words with two readers, by the weights of both, and the differences from words with one."""
    pairs = list(zip(read_questions(data, first), read_questions(data, second), strict=True))
    foreign = {True: "in another language", False: "in the language of the library"}
    for is_foreign in foreign:
        # Only a multilingual reader detects questions in another language.
        some = [(one, other) for one, other in pairs if (one.is_foreign or other.is_foreign) == is_foreign]
        if not some:
            continue
        print(f"{data}, {len(some)} questions {foreign[is_foreign]}: weights of {first.name} and {second.name}")
        found: dict[tuple[float, float], Floats] = {}
        for weights in product(READER_WEIGHTS, READER_WEIGHTS):
            ranked = [sum_readers(one.words, one.vectors, other.vectors, *weights) for one, other in some]
            values = found[weights] = score(ranked, [one for one, _ in some])
            change = [describe(values - found[alone]) for alone in ((weights[0], 0.0), (0.0, weights[1]))]
            print(f"{weights[0]} | {weights[1]} | {values.mean():.1f} | {' | '.join(change)}", flush=True)


def sum_readers(words: Hits, first: Hits, second: Hits, weight: float, other: float) -> list[str]:
    """Fuse words and two readers: the sum of three normalised scores."""
    scores = {hit.id: hit.score for hit in fuse(words, first, weight, POOL)}
    for hit in fuse((), second, other, POOL):
        scores[hit.id] = scores.get(hit.id, 0.0) + hit.score
    return sorted(scores, key=lambda id: -scores[id])


def score(ranked: Sequence[list[str]], questions: Sequence[Question]) -> Floats:
    """Return nDCG@5 in percent per question."""
    return np.array([100 * ndcg(names, one.grades, 5) for names, one in zip(ranked, questions, strict=True)])


def describe(differences: Floats) -> str:
    """Return a mean with its interval, as text."""
    low, high = find_interval(differences)
    return f"{differences.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def main() -> None:
    """Compare the fusions of a library, or one reader with two of them."""
    for given in sys.argv[1:]:
        data, _, places = given.partition("=")
        first, *others = map(Path, places.split(","))
        if others:
            compare_readers(Path(data), first, others[0])
        else:
            compare_fusions(Path(data), first)


if __name__ == "__main__":
    main()
