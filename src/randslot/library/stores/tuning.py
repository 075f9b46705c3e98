"""How the engines keep and search vectors: in one place, so that a folder and a server search alike."""

from __future__ import annotations

from dataclasses import dataclass

VECTOR_NAME = "page"  # of the vectors of a point
TERMS_NAME = "words"  # of its terms, which are a sparse vector
SKETCH_NAME = "sketch"  # of its sketch, see sketches.py


@dataclass(frozen=True)
class Tuning:
    """When vectors get codes, and how many pages are scored in full.

    candidates, oversampling: a search by codes scores at least `candidates` pages in full, and at least `oversampling`
    for each hit. compress_from: KB of vectors from which a segment is worth its codes. codes_from: dimensions from
    which codes save time, and one bit of each number says enough (see docs/log.md).

    certain_rank, witness_rank, certainty: codes are trusted if the score of one of the first pages is so many standard
    errors of a code above that of one far behind it. If not, they cannot tell pages apart, and all are scored.

    A search by words and vectors takes the best `pool` pages by each (or two for each hit, if that is more), and gives
    a page at rank r the sum of 1 / (rank_offset + r / weight). How these were chosen: docs/log.md.
    """

    candidates: int = 1000
    oversampling: int = 20
    compress_from: int = 1000
    codes_from: int = 1024
    certain_rank: int = 5
    witness_rank: int = 100
    certainty: float = 1.5
    pool: int = 100
    rank_offset: int = 1

    def has_codes(self, dim: int) -> bool:
        """Whether vectors of this dimension have codes beside them."""
        return dim >= self.codes_from

    def oversampling_for(self, k: int, limit: int) -> float:
        """Return how many pages are scored in full for each of `limit` hits, of which k are wanted."""
        return max(self.candidates, self.oversampling * k) / max(limit, 1)

    def hits_for(self, k: int) -> int:
        """Return how many hits a search by codes asks for, so that it can tell whether codes are to be trusted."""
        return max(k, self.witness_rank)

    def pool_for(self, k: int) -> int:
        """Return how many pages are taken by words and by vectors before their ranks are combined."""
        return max(self.pool, 2 * k)


DEFAULT_TUNING = Tuning()
