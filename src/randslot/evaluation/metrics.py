"""nDCG as pytrec_eval computes it: linear gain on graded labels, ties in descending order of page id.

Shapes: Q queries, P pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def ndcg_of_each(
    scores_QP: NDArray[np.float32], page_ids: Sequence[str], grades: Sequence[Mapping[str, int]], k: int
) -> list[float]:
    """Return nDCG@k per query, from its scores and the grades of its relevant pages."""
    by_id = np.argsort(np.array(page_ids))[::-1]
    best_QK = by_id[np.argsort(-scores_QP[:, by_id], axis=1, kind="stable")[:, :k]]
    found = []
    for best, graded in zip(best_QK, grades, strict=True):
        found.append(ndcg([page_ids[i] for i in best], graded, k))
    return found


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """Return nDCG@k of one query's ranked pages; 0 for a query without a relevant page."""

    def gain(values: Sequence[int]) -> float:
        return float(sum(grade / np.log2(place + 2) for place, grade in enumerate(values)))

    best = gain(sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:k])
    return gain([max(grades.get(page, 0), 0) for page in ranked[:k]]) / best if best else 0.0
