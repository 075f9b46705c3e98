"""MaxSim equals three loops and sentence-transformers' own, for any sizes and blocks."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores_pairwise

from randslot import scoring
from randslot.scoring import maxsim


def vectors(sizes: list[int], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.functional.normalize(torch.randn(size, 16, generator=generator), dim=-1) for size in sizes]


def three_loops(queries: list[torch.Tensor], pages: list[torch.Tensor]) -> torch.Tensor:
    scores = torch.zeros(len(queries), len(pages))
    for q, query in enumerate(queries):
        for p, page in enumerate(pages):
            for vector in query:
                scores[q, p] += max(float(vector @ other) for other in page)
    return scores


@pytest.mark.parametrize("block", [1, 50, 2**26])
@pytest.mark.parametrize("sizes", [([4, 4, 4], [4, 4]), ([1, 7, 3, 2], [5, 1, 9])])
def test_maxsim_is_three_loops(block, sizes, monkeypatch):
    monkeypatch.setattr(scoring, "BLOCK", block)
    queries, pages = vectors(sizes[0], 1), vectors(sizes[1], 2)
    torch.testing.assert_close(maxsim(queries, pages), three_loops(queries, pages))


def test_maxsim_is_that_of_sentence_transformers():
    queries, pages = vectors([3, 4, 5], 3), vectors([6, 2, 4], 4)
    expected = colbert_scores_pairwise(queries, pages)
    torch.testing.assert_close(maxsim(queries, pages).diagonal(), expected)


def test_negative_scores_are_not_beaten_by_padding():
    queries, pages = [torch.tensor([[1.0, 0.0]])], [torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.0, 0.0]] * 3)]
    assert maxsim(queries, pages).tolist() == [[-1.0, -1.0]]


def test_nothing_against_something_is_empty():
    assert maxsim([], vectors([2], 0)).shape == (0, 1)
    assert maxsim(vectors([2], 0), []).shape == (1, 0)
