"""Query-to-page InfoNCE over MaxSim, with pages gathered from all processes as candidates.

Micro-batches, the cache of their gradients and the gather are sentence-transformers'. A page may come with several
queries, and is encoded once for all of them. Pages that are equal to a query's own page can be masked out of its
negatives.

Shapes: Q queries and B pages of this process, P pages of all processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.base.losses.gradcache import RandContext, _backward_hook, _create_minibatch
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
    device = query_vectors.device.type
    with torch.autocast(device, enabled=False) if device != "meta" else nullcontext():
        scores: Tensor = maxsim(query_vectors, page_vectors, a_mask=query_mask, b_mask=page_mask)
    return scores


def find_repeats(keys_P: Tensor, own_Q: Tensor) -> Tensor:
    """Return (Q, P): where a candidate is the same page as a query's own, which stands at its column."""
    same = keys_P[own_Q][:, None] == keys_P[None, :]
    same[torch.arange(len(own_Q), device=own_Q.device), own_Q] = False
    return same


def _split(num: int, size: int) -> list[tuple[int, int]]:
    """Return the first item of each part, and the one after its last."""
    return [(begin, min(begin + size, num)) for begin in range(0, num, size)]


def trim_left(features: dict[str, Any]) -> dict[str, Any]:
    """Cut the leading columns that are padding in every row: a batch is padded to its longest, a part need not be."""
    mask_BL = features["attention_mask"]
    first = int(mask_BL.any(dim=0).int().argmax())
    if not first:
        return features
    trimmed = dict(features)
    for name, value in features.items():
        if isinstance(value, Tensor) and value.shape[:2] == mask_BL.shape:
            trimmed[name] = value[:, first:]
    return trimmed


class Loss(CachedMultiVectorMultipleNegativesRankingLoss):
    """InfoNCE over MaxSim of the vectors of queries and pages, or the mean over several budgets of it.

    Pages are encoded a micro-batch at a time, and queries as many at a time as have the positions of those pages. With
    a gradient cache only one micro-batch is held in memory: the same gradients, a second forward. Without one, all are
    held until the backward; with checkpointed layers that is little more than the inputs of the layers.
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
        gradient_cache: bool = True,
    ) -> None:
        """batch: pairs of this process, of which `micro_batch` are encoded at once (0: all). prefixes: the budgets."""
        super().__init__(model, scale=1 / temperature, mini_batch_size=micro_batch or batch)
        self.cached = 0 < micro_batch < batch and gradient_cache
        self.mask_repeats = mask_repeats
        self.prefixes = prefixes
        self.keys_P: Tensor | None = None  # of the pages of the batch, if repeats are masked
        self.vision_caches: dict[int, dict[str, Any]] = {}  # of a frozen tower, by the first page of a micro-batch

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        queries, pages = (dict(side) for side in sentence_features)
        features = [queries | {"task": "query"}, pages | {"task": "document"}]
        self.keys_P = pages["keys"] if self.mask_repeats else None
        if self.keys_P is not None and torch.distributed.is_initialized():
            self.keys_P = all_gather(self.keys_P)
        ranges = [_split(len(queries["keys"]), self._num_queries(queries, pages))]
        ranges.append(_split(len(pages["keys"]), self.mini_batch_size))
        replay = self.cached and torch.is_grad_enabled()
        vectors, masks, states = [], [], []
        for side, parts in zip(features, ranges, strict=True):
            found = list(self.embed_minibatch_iter(side, not self.cached, replay, ranges=parts))
            vectors.append([part.detach().requires_grad_() if self.cached else part for part, _, _ in found])
            masks.append([mask for _, mask, _ in found])
            states.append([state for _, _, state in found])
        if not replay:
            return self.calculate_loss(vectors, masks)
        loss: Tensor
        loss, cache = self.calculate_loss_and_cache_gradients(vectors, masks)
        loss.register_hook(
            partial(
                _backward_hook,
                sentence_features=features,
                loss_obj=self,
                cache=cache,
                random_states=states,
                ranges=ranges,
            )
        )
        return loss

    def _num_queries(self, queries: dict[str, Tensor], pages: dict[str, Tensor]) -> int:
        """Return how many queries have as many positions as a micro-batch of pages."""
        positions: int = self.mini_batch_size * pages["attention_mask"].shape[1]
        return max(positions // queries["attention_mask"].shape[1], 1)

    def embed_minibatch(
        self,
        sentence_feature: dict[str, Any],
        begin: int,
        end: int,
        with_grad: bool,
        copy_random_state: bool,
        random_state: RandContext | None = None,
    ) -> tuple[Tensor, Tensor, RandContext | None]:
        """Encode some queries or pages; in the second pass of a gradient cache with the random numbers of the first."""
        part = trim_left(_create_minibatch(sentence_feature, begin, end))
        if self.cached and part["side"] == "page":
            # The second pass is the last one that needs the output of the tower.
            caches = self.vision_caches
            part["vision_cache"] = caches.pop(begin, {}) if with_grad else caches.setdefault(begin, {})
        with random_state or nullcontext(), torch.set_grad_enabled(with_grad and torch.is_grad_enabled()):
            tensors = [value for value in part.values() if isinstance(value, Tensor)]
            state = RandContext(*tensors) if copy_random_state else None
            output = self.model(part, task=part["task"])
        if not with_grad:  # torch 2.8 would use what autocast made of the weights here, which has no gradient, again
            torch.clear_autocast_cache()
        return output["token_embeddings"], output["attention_mask"].bool(), state

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
