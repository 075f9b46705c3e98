"""The loss: query-to-page InfoNCE over MaxSim, with the pages of all processes as candidates.

Queries and pages are encoded in micro-batches. A gradient cache keeps the activations of one micro-batch at a time: it
encodes all without gradients, computes the loss and its gradient at the vectors, then re-encodes each micro-batch to
backpropagate that gradient. A page is encoded once for all its queries. Hard negatives are candidates for all queries.

Shapes: Q queries and B pages of this process, P pages and negatives of all processes, L positions, K vectors, D
dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.util import cat_padded_token_embeddings, maxsim
from sentence_transformers.util.distributed import all_gather, all_gather_padded, get_rank
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states

from ..model.encoder import draw_keys
from ..model.model import RandSlotModel

Encoded = tuple[Tensor, Tensor]  # vectors (N, K, D) and the mask (N, K) of those that count


def score(queries: Encoded, pages: Encoded, first: int | None = None, width: int | None = None) -> Tensor:
    """Return the MaxSim scores (Q, P) of the first vectors, cut to a width, in float32 even under autocast."""
    query_vectors, page_vectors = (vectors[:, :first, :width].float() for vectors, _ in (queries, pages))
    if width is not None:
        query_vectors, page_vectors = F.normalize(query_vectors, dim=-1), F.normalize(page_vectors, dim=-1)
    device = query_vectors.device.type
    with torch.autocast(device, enabled=False) if device != "meta" else nullcontext():
        scores: Tensor = maxsim(query_vectors, page_vectors, a_mask=queries[1][:, :first], b_mask=pages[1][:, :first])
    return scores


def cut_batch(features: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Split left-padded features into micro-batches, trimming columns that are all padding."""
    mask_BL = features["attention_mask"]
    for begin in range(0, len(mask_BL), size):
        rows = slice(begin, begin + size)
        first = int(mask_BL[rows].any(dim=0).int().argmax())
        part = dict(features)
        for name, value in features.items():
            if isinstance(value, Tensor):
                part[name] = value[rows, first:] if value.shape[:2] == mask_BL.shape else value[rows]
        if "image_grid_thw" in features and "pixel_values" in features:  # Qwen has one row for each patch of all pages
            patches = features["image_grid_thw"].prod(dim=1)
            start = int(patches[:begin].sum())
            part["pixel_values"] = features["pixel_values"][start : start + int(patches[rows].sum())]
        yield part


class RandomState:
    """Saves the state of the random generators before a pass, to replay its dropout masks in a second pass."""

    def __init__(self, features: dict[str, Any]) -> None:
        self.cpu = torch.get_rng_state()
        self.devices, self.states = get_device_states(*features.values())

    @contextmanager
    def replay(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(self.cpu)
            set_device_states(self.devices, self.states)
            yield


class Loss(nn.Module):
    """InfoNCE over MaxSim, or its mean over several prefixes of the vectors and widths of each.

    A micro-batch of queries has about as many positions as one of pages. Without a gradient cache, all activations are
    kept until the backward pass; with checkpointed layers these are little more than the inputs of the layers.
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
        widths: Mapping[int, float] | None = None,
        gradient_cache: bool = True,
    ) -> None:
        """batch: pages of this process, of which `micro_batch` are encoded at once (0: all).

        mask_repeats: mask copies of a query's own page in its negatives. widths: the loss weight of each width; the
        full width has weight 1.
        """
        super().__init__()
        self.model = model  # the trainer replaces it with its distributed model
        self.scale = 1 / temperature
        self.micro_batch = micro_batch or batch
        self.cached = 0 < micro_batch < batch and gradient_cache
        self.mask_repeats = mask_repeats
        self.prefixes: tuple[int | None, ...] = prefixes or (None,)
        self.widths: dict[int | None, float] = {None: 1.0} | dict(widths or {})

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        columns = [features | {"draws": draw_keys(features["keys"])} for features in sentence_features]
        queries, pages, *negatives = columns
        # Fill a micro-batch of queries to the positions of a micro-batch of pages.
        positions = self.micro_batch * pages["attention_mask"].shape[1]
        num_queries = max(positions // queries["attention_mask"].shape[1], 1)
        query_parts = list(cut_batch(queries, num_queries))
        page_parts = [part for side in (pages, *negatives) for part in cut_batch(side, self.micro_batch)]
        parts = query_parts + page_parts
        keys = torch.cat([side["keys"] for side in (pages, *negatives)]) if self.mask_repeats else None
        num = len(pages["keys"])
        if not (self.cached and torch.is_grad_enabled()):
            encoded = [self.encode(part) for part in parts]
            return self.compare(encoded[: len(query_parts)], encoded[len(query_parts) :], num, keys)

        encoded, states = [], []
        for part in page_parts:
            part["vision_cache"] = {}  # a frozen tower sees each page once
        for part in parts:
            states.append(RandomState(part))
            with torch.no_grad():
                vectors, mask = self.encode(part)
            encoded.append((vectors.requires_grad_(), mask))
        torch.clear_autocast_cache()  # torch 2.8 would reuse the weights that autocast cast here without gradients
        loss = self.compare(encoded[: len(query_parts)], encoded[len(query_parts) :], num, keys)
        gradients = torch.autograd.grad(loss, [vectors for vectors, _ in encoded])
        loss = loss.detach().requires_grad_()
        loss.register_hook(lambda scale: self._encode_again(parts, states, gradients, scale))
        return loss

    def encode(self, part: dict[str, Any]) -> Encoded:
        """Return the vectors of a micro-batch and their mask."""
        output = self.model(dict(part), task="query" if part["side"] == "query" else "document")
        return output["token_embeddings"], output["attention_mask"].bool()

    def compare(self, queries: list[Encoded], pages: list[Encoded], num: int, keys: Tensor | None) -> Tensor:
        """Return the loss of encoded micro-batches; the queries of a page are adjacent.

        The first `num` of the pages are those of the queries, the others hard negatives.
        """
        all_queries, own_pages = (cat_padded_token_embeddings(*zip(*side, strict=True)) for side in (queries, pages))
        device = own_pages[0].device
        # Gathered pages are in the order of processes, each with its pages and then its negatives.
        first = get_rank() * len(own_pages[0])
        own_Q = first + torch.arange(num, device=device).repeat_interleave(len(all_queries[0]) // num)
        all_pages, keys_P = own_pages, keys
        if torch.distributed.is_initialized():
            all_pages = all_gather_padded(*own_pages, with_grad=True)
            keys_P = all_gather(keys) if keys is not None else None
        losses, weights = [], []
        for width, weight in self.widths.items():
            for first in self.prefixes:
                scores = score(all_queries, all_pages, first, width) * self.scale
                if keys_P is not None:  # copies of a query's own page, which is in column own_Q
                    repeats = keys_P[own_Q][:, None] == keys_P
                    repeats[torch.arange(len(own_Q), device=device), own_Q] = False
                    scores = scores.masked_fill(repeats, float("-inf"))
                losses.append(weight * F.cross_entropy(scores, own_Q))
                weights.append(weight)
        # The mean, not the sum, so that gradient clipping has the same effect with and without prefixes and widths.
        return torch.stack(losses).sum() / sum(weights)

    def _encode_again(
        self, parts: list[dict[str, Any]], states: list[RandomState], gradients: tuple[Tensor, ...], scale: Tensor
    ) -> None:
        """Re-encode each micro-batch with gradients, and backpropagate the gradient at its vectors."""
        model = self.model
        for number, (part, state, gradient) in enumerate(zip(parts, states, gradients, strict=True), start=1):
            is_last = number == len(parts)  # all-reduces the gradients
            is_local = isinstance(model, DistributedDataParallel) and not is_last
            with torch.enable_grad(), model.no_sync() if is_local else nullcontext():
                with state.replay():
                    vectors, _ = self.encode(part)
                part.clear()  # of the tower's output, among others
                vectors.backward(gradient * scale)
