"""Query-to-page InfoNCE over MaxSim, with pages gathered from all processes as candidates.

The loss is sentence-transformers' own. Four things are added: without micro-batches there is no cache and no second
pass; scores stay in float32 under autocast; pages that are equal to a query's own page can be masked out of its
negatives; and a page may come with several queries, which is as if each had come with the page, encoded once.

Shapes: B queries of this process, P pages of all processes, one for each query.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import CachedMultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from sentence_transformers.util.distributed import all_gather, get_rank
from torch import Tensor


class Scores:
    """MaxSim of queries and candidate pages in float32, with the masked pairs out of reach."""

    __name__ = "maxsim"  # what sentence-transformers writes into its records

    def __init__(self, masked_BP: Tensor | None) -> None:
        self.masked_BP = masked_BP

    def __call__(self, queries: Tensor, pages: Tensor, **masks: Any) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            scores: Tensor = colbert_scores(queries.float(), pages.float(), **masks)
        return scores if self.masked_BP is None else scores.masked_fill(self.masked_BP, float("-inf"))


def find_repeats(keys_B: Tensor, keys_P: Tensor, first: int) -> Tensor:
    """Return (B, P): where a candidate is the same page as query b's own, which stands at column `first` + b."""
    same = keys_B[:, None] == keys_P[None, :]
    own = torch.arange(len(keys_B), device=keys_B.device)
    same[own, first + own] = False
    return same


class Loss(CachedMultiVectorMultipleNegativesRankingLoss):
    """InfoNCE over MaxSim: the mean over `prefixes`, if there are any, of what the first so many vectors give."""

    mask_repeats: bool
    prefixes: tuple[int, ...]
    cached: bool

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        features = list(sentence_features)
        queries, pages = (side["keys"] for side in features)
        self.similarity_fct = Scores(self._find_masked(queries, pages))
        self.score_mini_batch_size = len(queries)  # scores of the whole batch at once: the mask is made for that
        if self.cached:
            loss: Tensor = super().forward(features, labels)
            return loss
        tasks = ("query", "document")
        outputs = [self.model(dict(side), task=task) for side, task in zip(features, tasks, strict=True)]
        vectors = [[output["token_embeddings"]] for output in outputs]
        return self.calculate_loss(vectors, [[output["attention_mask"].bool()] for output in outputs])

    def _find_masked(self, queries: Tensor, pages: Tensor) -> Tensor | None:
        """Work out the masked pairs of a batch from the content keys of its pages."""
        if not self.mask_repeats:
            return None
        keys = pages.repeat_interleave(len(queries) // len(pages))
        everyone = all_gather(keys) if torch.distributed.is_initialized() else keys
        return find_repeats(keys, everyone, get_rank() * len(keys))

    def calculate_loss(
        self, reps: list[list[Tensor]], masks_chunks: list[list[Tensor]], *, with_backward: bool = False
    ) -> Tensor:
        one = super().calculate_loss
        reps, masks_chunks = _pair(reps), _pair(masks_chunks)
        parts = [one(_first(num, reps), _first(num, masks_chunks)) for num in self.prefixes or (None,)]
        # A mean and not a sum, so that clipping means what it means without prefixes.
        loss = torch.stack(parts).mean()
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss


def _pair(columns: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the columns with each page once for every query of its own; a page's queries follow each other."""
    queries, pages = columns
    times = sum(map(len, queries)) // sum(map(len, pages))
    return columns if times == 1 else [queries, [chunk.repeat_interleave(times, dim=0) for chunk in pages]]


def _first(num: int | None, columns: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the first vectors, or the masks of them, of every chunk of every column."""
    return [[chunk[:, :num] for chunk in chunks] for chunks in columns]


def make_loss(
    model: MultiVectorEncoder,
    *,
    temperature: float,
    batch: int,
    micro_batch: int,
    mask_repeats: bool,
    prefixes: tuple[int, ...] = (),
) -> Loss:
    """Make the loss for `batch` pairs a process, of which `micro_batch` are held at once (0: all).

    Smaller micro-batches go through a gradient cache: the same gradients, memory by the micro-batch, a second forward.
    With `prefixes` it is the mean of the losses of the first so many vectors of both sides.
    """
    loss = Loss(
        model,
        scale=1 / temperature,
        mini_batch_size=micro_batch or batch,
        gather_across_devices=torch.distributed.is_initialized(),
    )
    loss.mask_repeats, loss.prefixes, loss.cached = mask_repeats, prefixes, 0 < micro_batch < batch
    return loss
