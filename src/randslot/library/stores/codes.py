"""Searches by codes, and when not to trust them: if scores are so close that codes cannot tell pages apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .store import StoreHit, StoreQuery
from .tuning import Tuning

Search = Callable[[Sequence[StoreQuery], int], list[list[StoreHit]]]


def search_by_codes(
    queries: Sequence[StoreQuery], k: int, tuning: Tuning, by_codes: Search, in_full: Search
) -> list[list[StoreHit]]:
    """Return the k best pages of each query: by codes, or by scoring every page in full where those are in doubt.

    by_codes: gives more than k hits of queries by vectors alone, as many as the tuning says; the others show how far
    ahead the first ones are. What is in doubt does not depend on k, so a larger k only adds hits.
    """
    found = by_codes(queries, k)
    doubtful = [i for i, query in enumerate(queries) if is_doubtful(query, found[i], tuning)]
    if doubtful:
        again = in_full([queries[i] for i in doubtful], k)
        for i, hits in zip(doubtful, again, strict=True):
            found[i] = hits
    return [hits[:k] for hits in found]


def is_doubtful(query: StoreQuery, hits: Sequence[StoreHit], tuning: Tuning) -> bool:
    """Whether codes may have missed pages that belong among the first ones.

    With few hits there is no doubt: all pages were scored in full. Nor is there by words and vectors, whose scores are
    those of ranks.
    """
    if query.vectors is None or query.terms is not None or len(hits) < tuning.witness_rank:
        return False
    margin = hits[tuning.certain_rank - 1].score - hits[tuning.witness_rank - 1].score
    return margin < tuning.certainty * error_of_codes(*query.vectors.shape)


def error_of_codes(vectors: int, dim: int) -> float:
    """Return the standard error of a score that is estimated from codes of a bit a number.

    The share of equal signs estimates the angle of two vectors. Where they have little in common, the standard error of
    their product is pi / 2 / sqrt(dim); those of several vectors of a query add up as independent ones do.
    """
    return math.pi / 2 * math.sqrt(vectors / dim)
