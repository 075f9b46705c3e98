"""Query-to-page InfoNCE over MaxSim, with pages gathered from all processes as candidates.

Micro-batches, the cache of their gradients and the gather are sentence-transformers'. A page may come with several
queries, and is encoded once for all of them. Pages that are equal to a query's own page can be masked out of its
negatives.

Shapes: Q queries and B pages of this process, P pages of all processes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from sentence_transformers.multi_vector_encoder.losses import CachedMultiVectorMultipleNegativesRankingLoss
from sentence_transformers.util import cat_padded_token_embeddings, maxsim
from sentence_transformers.util.distributed import all_gather, all_gather_padded, get_rank
from torch import Tensor

from ..model.model import RandSlotModel

Side = tuple[Tensor, Tensor]  # vectors (N, T, D), and a mask (N, T) of those that are none


def score(queries: Side, pages: Side, first: int | None = None) -> Tensor:
    """Return the MaxSim of the first vectors of queries and pages, in float32 also under autocast."""
    (query_vectors, query_mask), (page_vectors, page_mask) = (
        (vectors[:, :first].float(), mask[:, :first]) for vectors, mask in (queries, pages)
    )
    with torch.autocast(query_vectors.device.type, enabled=False):
        scores: Tensor = maxsim(query_vectors, page_vectors, a_mask=query_mask, b_mask=page_mask)
    return scores


def find_repeats(keys_P: Tensor, own_Q: Tensor) -> Tensor:
    """Return (Q, P): where a candidate is the same page as a query's own, which stands at its column."""
    same = keys_P[own_Q][:, None] == keys_P[None, :]
    same[torch.arange(len(own_Q), device=own_Q.device), own_Q] = False
    return same


class Loss(CachedMultiVectorMultipleNegativesRankingLoss):
    """InfoNCE over MaxSim of the vectors of queries and pages, or the mean over several budgets of it.

    Smaller micro-batches go through a gradient cache: the same gradients, memory by the micro-batch, a second forward.
    """

    def __init__(
        self,
        model: RandSlotModel,
        *,
        temperature: float,
        batch: int,
        micro_batch: int,
        mask_repeats: bool,
        prefixes: tuple[int, ...] = (),
    ) -> None:
        """batch: pairs of this process, of which `micro_batch` are held at once (0: all). prefixes: the budgets."""
        super().__init__(model, scale=1 / temperature, mini_batch_size=micro_batch or batch)
        self.cached = 0 < micro_batch < batch
        self.mask_repeats = mask_repeats
        self.prefixes = prefixes
        self.keys_P: Tensor | None = None  # of the pages of the batch, if repeats are masked

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        features = list(sentence_features)
        self.keys_P = features[1]["keys"] if self.mask_repeats else None
        if self.keys_P is not None and torch.distributed.is_initialized():
            self.keys_P = all_gather(self.keys_P)
        if self.cached:
            loss: Tensor = super().forward(features, labels)
            return loss
        tasks = ("query", "document")
        outputs = [self.model(dict(side), task=task) for side, task in zip(features, tasks, strict=True)]
        vectors = [[output["token_embeddings"]] for output in outputs]
        return self.calculate_loss(vectors, [[output["attention_mask"].bool()] for output in outputs])

    def calculate_loss(
        self, reps: list[list[Tensor]], masks_chunks: list[list[Tensor]], *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of encoded queries and pages, which come in chunks; a page's queries follow each other."""
        queries, pages = (cat_padded_token_embeddings(*side) for side in zip(reps, masks_chunks, strict=True))
        num, times = len(pages[0]), len(queries[0]) // len(pages[0])
        own_Q = get_rank() * num + torch.arange(num, device=pages[0].device).repeat_interleave(times)
        if torch.distributed.is_initialized():
            pages = all_gather_padded(*pages, with_grad=True)
        losses = []
        for first in self.prefixes or (None,):
            scores = score(queries, pages, first) * self.scale
            if self.keys_P is not None:
                scores = scores.masked_fill(find_repeats(self.keys_P, own_Q), float("-inf"))
            losses.append(F.cross_entropy(scores, own_Q))
        loss = torch.stack(losses).mean()  # not their sum, so that clipping means what it means without prefixes
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss


make_loss = Loss  # its name in earlier versions
