"""Query-to-page InfoNCE over MaxSim, with pages gathered from all processes as candidates.

The loss is sentence-transformers' own, plain or with a gradient cache. Two things are added: scores stay in float32
under autocast, and pages that are equal to a query's own page can be masked out of its negatives.

Shapes: B pairs of this process, P pages of all processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import (
    CachedMultiVectorMultipleNegativesRankingLoss,
    MultiVectorMultipleNegativesRankingLoss,
)
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


class _Masking:
    """Work out the masked pairs of each batch from the content keys of its pages, then run the loss below."""

    mask_repeats: bool

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        features = list(sentence_features)
        masked = None
        if self.mask_repeats:
            keys = features[1]["keys"]
            everyone = all_gather(keys) if torch.distributed.is_initialized() else keys
            masked = find_repeats(keys, everyone, get_rank() * len(keys))
        self.similarity_fct = Scores(masked)
        loss: Tensor = super().forward(features, labels)  # type: ignore[misc]
        return loss


class _Prefixes(CachedMultiVectorMultipleNegativesRankingLoss):
    """The mean of the losses of some prefixes: the first 1, 2, ... vectors of both sides, as MetaEmbed nests them.

    Content is encoded once for all of them. A mean and not a sum, so that clipping means what it means without them.
    """

    prefixes: tuple[int, ...]
    cached: bool

    def calculate_loss(
        self, reps: list[list[Tensor]], masks_chunks: list[list[Tensor]], *, with_backward: bool = False
    ) -> Tensor:
        one = super().calculate_loss
        loss = torch.stack([one(_first(num, reps), _first(num, masks_chunks)) for num in self.prefixes]).mean()
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        if self.cached:
            loss: Tensor = super().forward(sentence_features, labels)
            return loss
        outputs = [
            self.model(dict(features), task=task)
            for features, task in zip(sentence_features, ("query", "document"), strict=True)
        ]
        vectors = [[output["token_embeddings"]] for output in outputs]
        return self.calculate_loss(vectors, [[output["attention_mask"].bool()] for output in outputs])


def _first(num: int, columns: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the first vectors, or the masks of them, of every chunk of every column."""
    return [[chunk[:, :num] for chunk in chunks] for chunks in columns]


class _PlainLoss(_Masking, MultiVectorMultipleNegativesRankingLoss):
    pass


class _CachedLoss(_Masking, CachedMultiVectorMultipleNegativesRankingLoss):
    pass


class _NestedLoss(_Masking, _Prefixes):
    pass


def make_loss(
    model: MultiVectorEncoder,
    *,
    temperature: float,
    batch: int,
    micro_batch: int,
    mask_repeats: bool,
    prefixes: tuple[int, ...] = (),
) -> torch.nn.Module:
    """Make the loss for `batch` pairs a process, of which `micro_batch` are held at once (0: all).

    Smaller micro-batches go through a gradient cache: the same gradients, memory by the micro-batch, a second forward.
    With `prefixes` it is the mean of the losses of the first so many vectors of both sides.
    """
    options: dict[str, Any] = {
        "scale": 1 / temperature,
        "gather_across_devices": torch.distributed.is_initialized(),
        "score_mini_batch_size": batch,  # scores of the whole batch at once: the mask is made for that
    }
    loss: _PlainLoss | _CachedLoss | _NestedLoss
    cached = bool(micro_batch) and micro_batch < batch
    if prefixes:
        loss = _NestedLoss(model, mini_batch_size=micro_batch or batch, **options)
        loss.prefixes, loss.cached = prefixes, cached
    elif cached:
        loss = _CachedLoss(model, mini_batch_size=micro_batch, **options)
    else:
        loss = _PlainLoss(model, **options)
    loss.mask_repeats = mask_repeats
    module: torch.nn.Module = loss
    return module
