"""nDCG as pytrec_eval computes it: linear gain on graded labels, equal scores in falling order of the page's id.

Shapes: Q queries, P pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def rank_pages(scores_QP: NDArray[np.float32], page_ids: Sequence[str], k: int) -> NDArray[np.int64]:
    """Return the indexes of the k best pages of each query (Q, k), best first."""
    by_id = np.argsort(np.array(page_ids))[::-1]
    order = np.argsort(-scores_QP[:, by_id], axis=1, kind="stable")[:, :k]
    return by_id[order]


def ndcg_of_each(
    scores_QP: NDArray[np.float32], page_ids: Sequence[str], grades: Sequence[Mapping[str, int]], k: int
) -> list[float]:
    """Return nDCG@k of each query, from its scores and the grades of its relevant pages."""
    ranked = ([page_ids[i] for i in best] for best in rank_pages(scores_QP, page_ids, k))
    return [ndcg(pages, graded, k) for pages, graded in zip(ranked, grades, strict=True)]


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """Return nDCG@k of one query's ranked pages; 0 for a query without a relevant page."""

    def gain(values: Sequence[int]) -> float:
        return float(sum(grade / np.log2(place + 2) for place, grade in enumerate(values)))

    best = gain(sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:k])
    return gain([max(grades.get(page, 0), 0) for page in ranked[:k]]) / best if best else 0.0
