"""The loss: query-to-page InfoNCE over MaxSim, with the pages of all processes as candidates.

sentence-transformers provides micro-batches, the gradient cache and the gather. A page is encoded once for all of its
queries. Copies of a query's own page can be masked out of its negatives.

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


def score(queries: tuple[Tensor, Tensor], pages: tuple[Tensor, Tensor], first: int | None = None) -> Tensor:
    """Return the MaxSim (Q, P) of the first vectors in float32, also under autocast.

    A side is its vectors (N, T, D) and the mask (N, T) of those that count.
    """
    query_vectors, page_vectors = queries[0][:, :first].float(), pages[0][:, :first].float()
    device = query_vectors.device.type
    with torch.autocast(device, enabled=False) if device != "meta" else nullcontext():
        scores: Tensor = maxsim(query_vectors, page_vectors, a_mask=queries[1][:, :first], b_mask=pages[1][:, :first])
    return scores


def trim_left(features: dict[str, Any]) -> dict[str, Any]:
    """Cut the leading columns that are padding in every row of a micro-batch."""
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
    """InfoNCE over MaxSim, or its mean over several prefixes of the vectors.

    Pages are encoded a micro-batch at a time, and as many queries at a time as have the same number of positions. A
    gradient cache holds one micro-batch in memory: same gradients, a second forward. Without one, all are held until
    the backward; with checkpointed layers that is little more than the inputs of the layers.
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
        """batch: pairs of this process, of which `micro_batch` are encoded at once (0: all)."""
        super().__init__(model, scale=1 / temperature, mini_batch_size=micro_batch or batch)
        self.cached = 0 < micro_batch < batch and gradient_cache
        self.mask_repeats = mask_repeats
        self.prefixes = prefixes
        self.keys_P: Tensor | None = None  # of all candidate pages, if copies are masked
        self.vision_caches: dict[int, dict[str, Any]] = {}  # of a frozen tower, by the first page of a micro-batch

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        queries, pages = (dict(side) for side in sentence_features)
        features = [queries | {"task": "query"}, pages | {"task": "document"}]
        self.keys_P = pages["keys"] if self.mask_repeats else None
        if self.keys_P is not None and torch.distributed.is_initialized():
            self.keys_P = all_gather(self.keys_P)
        # As many queries at a time as fill the positions of a micro-batch of pages.
        positions = self.mini_batch_size * pages["attention_mask"].shape[1]
        num_queries = max(positions // queries["attention_mask"].shape[1], 1)
        ranges = []
        for num, size in ((len(queries["keys"]), num_queries), (len(pages["keys"]), self.mini_batch_size)):
            ranges.append([(begin, min(begin + size, num)) for begin in range(0, num, size)])
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
        given = {"sentence_features": features, "cache": cache, "random_states": states, "ranges": ranges}
        loss.register_hook(partial(_backward_hook, loss_obj=self, **given))
        return loss

    def embed_minibatch(
        self,
        sentence_feature: dict[str, Any],
        begin: int,
        end: int,
        with_grad: bool,
        copy_random_state: bool,
        random_state: RandContext | None = None,
    ) -> tuple[Tensor, Tensor, RandContext | None]:
        """Encode a micro-batch; the second pass of a gradient cache uses the random state of the first."""
        part = trim_left(_create_minibatch(sentence_feature, begin, end))
        if self.cached and part["side"] == "page":
            # The second pass is the last one that needs the output of the tower.
            caches = self.vision_caches
            part["vision_cache"] = caches.pop(begin, {}) if with_grad else caches.setdefault(begin, {})
        with random_state or nullcontext(), torch.set_grad_enabled(with_grad and torch.is_grad_enabled()):
            tensors = [value for value in part.values() if isinstance(value, Tensor)]
            state = RandContext(*tensors) if copy_random_state else None
            output = self.model(part, task=part["task"])
        if not with_grad:  # torch 2.8 would reuse the weights that autocast cast here without gradients
            torch.clear_autocast_cache()
        return output["token_embeddings"], output["attention_mask"].bool(), state

    def calculate_loss(
        self, reps: list[list[Tensor]], masks_chunks: list[list[Tensor]], *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of encoded queries and pages, given in chunks; the queries of a page are adjacent."""
        queries, pages = (cat_padded_token_embeddings(*side) for side in zip(reps, masks_chunks, strict=True))
        num, times = len(pages[0]), len(queries[0]) // len(pages[0])
        own_Q = get_rank() * num + torch.arange(num, device=pages[0].device).repeat_interleave(times)
        if torch.distributed.is_initialized():
            pages = all_gather_padded(*pages, with_grad=True)
        repeats = None
        if self.keys_P is not None:  # candidates that are copies of a query's own page, in column own_Q
            repeats = self.keys_P[own_Q][:, None] == self.keys_P
            repeats[torch.arange(len(own_Q), device=own_Q.device), own_Q] = False
        losses = []
        for first in self.prefixes or (None,):
            scores = score(queries, pages, first) * self.scale
            if repeats is not None:
                scores = scores.masked_fill(repeats, float("-inf"))
            losses.append(F.cross_entropy(scores, own_Q))
        loss = torch.stack(losses).mean()  # not the sum, so that clipping means the same with and without prefixes
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss
