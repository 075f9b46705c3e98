"""Which page readout wins for each query readout, over all pairs of a query and a page that is right for it.

Shapes: N pairs, K vectors, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError
from ...tables import Cell, Table
from .runs import Part, Run
from .views import need_readouts

TIE = 1e-8
PAIRS = 4096  # at once


@dataclass(frozen=True)
class Winners:
    """Counts of wins (query readout, page readout) over all pairs, ties, and the distinct winners of all pairs."""

    name: str
    counts: Tensor  # (K, K)
    pairs: int
    ties: int
    distinct: int

    @property
    def shares(self) -> Tensor:
        """The share of each page readout (rows) in the wins for each query readout (columns): a column sums to 1."""
        return (self.counts / self.counts.sum(1, keepdim=True)).T

    @property
    def entropy(self) -> float:
        """H: how evenly wins are spread over page readouts, from 0 (one wins all) to 1."""
        parts: list[float] = (self.counts.sum(0) / self.counts.sum()).tolist()
        return -sum(part * math.log(part) for part in parts if part) / math.log(len(parts))

    @property
    def spread(self) -> float:
        """U: how many different page readouts win within a pair, on average."""
        return self.distinct / self.pairs


def find_winners(queries_NKD: Tensor, pages_NKD: Tensor) -> tuple[Tensor, int]:
    """Return the winning page readout of each query readout (N, K) and how many of them tied.

    Readouts within 1e-8 of the best count as tied, and the lowest index wins.
    """
    similarities = queries_NKD.double() @ pages_NKD.double().transpose(1, 2)
    near = similarities >= similarities.amax(-1, keepdim=True) - TIE
    return near.int().argmax(-1), int((near.sum(-1) > 1).sum())


def count_winners(run: Run, num_vectors: int = 4) -> Winners:
    """Count the winners of one run over the pairs of all its tasks.

    Errors: UsageError for fewer than two readouts, or for vectors that the run does not have.
    """
    if num_vectors < 2:
        raise UsageError(f"winners need at least 2 vectors a side, not {num_vectors}: with one, it always wins")
    need_readouts(run, num_vectors, "the table of winners")
    counts = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
    pairs = ties = distinct = 0
    for part in run.parts():
        for _, queries, pages in positive_pairs(part, num_vectors):
            winners, tied = find_winners(queries, pages)
            won = torch.nn.functional.one_hot(winners, num_vectors)
            counts += won.sum(0)
            distinct += int(won.amax(1).sum())
            pairs, ties = pairs + len(winners), ties + tied
    return Winners(run.name, counts, pairs, ties, distinct)


def positive_pairs(part: Part, num_vectors: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield pairs in blocks: the number of each query (N,), and the first vectors of it and of its page (N, K, D)."""
    queries_QKD, pages_PKD = part.load()
    place = {id: index for index, id in enumerate(part.judged.page_ids)}
    pairs = []
    for query, grades in enumerate(part.judged.grades):
        pairs += [(query, place[page]) for page, grade in grades.items() if grade > 0 and page in place]
    for block in torch.tensor(pairs).split(PAIRS):
        yield block[:, 0], queries_QKD[block[:, 0], :num_vectors], pages_PKD[block[:, 1], :num_vectors]


def list_winners(found: Sequence[Winners]) -> Table:
    """Return H, U, pairs and ties of each run."""
    rows: list[list[Cell]] = [
        [winners.name, winners.entropy, winners.spread, winners.pairs, winners.ties] for winners in found
    ]
    heads = ["run", "H", "U", "pairs", "ties"]
    return Table("Winners: how evenly page readouts win MaxSim for the right pages", heads, rows, digits=3)


def list_shares(found: Sequence[Winners]) -> Table:
    """Return the share of each page readout in the wins for each query readout, in percent."""
    rows: list[list[Cell]] = []
    for winners in found:
        for place, shares in enumerate(winners.shares.tolist(), start=1):
            rows.append([winners.name, f"d{place}", *(100 * share for share in shares)])
    heads = ["run", "wins of", *(f"for q{place}" for place in range(1, len(found[0].counts) + 1))]
    return Table("Share of each page readout in the wins for each query readout, in percent", heads, rows)
