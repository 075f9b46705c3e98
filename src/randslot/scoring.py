"""MaxSim in blocks: for each query vector its best page vector, summed over the query's vectors.

Shapes: Q queries, P pages, K vectors of one, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

BLOCK = 2**26  # dot products held at once


def maxsim(queries: Sequence[Tensor], pages: Sequence[Tensor], device: str | torch.device = "cpu") -> Tensor:
    """Return the scores (Q, P) in float32 of queries and pages, each (K, D), in numbers that may differ from one to
    another. Queries go in blocks, so that memory stays bounded; give pages in blocks of your own."""
    if not len(queries) or not len(pages):
        return torch.empty(len(queries), len(pages))
    pages_PKD, there_PK = _pad(pages, device)
    widest = max(len(query) for query in queries)
    step = max(1, BLOCK // (widest * there_PK.numel()))
    return torch.cat(
        [_score(*_pad(queries[i : i + step], device), pages_PKD, there_PK) for i in range(0, len(queries), step)]
    )


def _score(queries_QKD: Tensor, there_QK: Tensor, pages_PKD: Tensor, there_PK: Tensor) -> Tensor:
    num_queries, width, dim = queries_QKD.shape
    dots = (queries_QKD.reshape(-1, dim) @ pages_PKD.reshape(-1, dim).T).view(num_queries, width, *there_PK.shape)
    if not there_PK.all():
        dots = dots.masked_fill(~there_PK, float("-inf"))
    best_QKP = dots.amax(dim=-1)
    if not there_QK.all():
        best_QKP = best_QKP.masked_fill(~there_QK[..., None], 0)
    return best_QKP.sum(dim=1).cpu()


def _pad(items: Sequence[Tensor], device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Return items (N, K, D) padded with zeros, and where there is something (N, K)."""
    sizes = torch.tensor([len(item) for item in items])
    padded = pad_sequence([item.float() for item in items], batch_first=True).to(device)
    return padded, (torch.arange(padded.shape[1]) < sizes[:, None]).to(device)
