"""A step without numbers: every operation of a model at its real shape, on the meta device, counted.

It takes seconds and almost no memory for a backbone of any size. Attention counts as a fused kernel, which is what GPUs
run: it keeps its inputs and output, never the square of scores.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from transformers import AttentionInterface, AttentionMaskInterface

from ..model.model import RandSlotModel

aten = torch.ops.aten
META = torch.device("meta")
ATTENTION = "randslot_fused"  # the name of the attention below among those of transformers


@dataclass
class Counted:
    """What has been counted so far. Bytes are those of tensors that were made meanwhile: weights do not count.

    multiply_adds: of matrix products, and of attention as if every position saw all others. bytes_now, bytes_most: of
    what is alive, and the most that ever was at once.
    """

    multiply_adds: int = 0
    bytes_now: int = 0
    bytes_most: int = 0

    def allocate(self, num: int) -> None:
        """Count the bytes of a tensor that was made, or that is gone."""
        self.bytes_now += num
        self.bytes_most = max(self.bytes_most, self.bytes_now)


@contextmanager
def rehearsing(model: RandSlotModel) -> Iterator[Counted]:
    """Let a model on the meta device run over features that are in memory, and count what it does."""
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    backbone = model.backbone.model
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation(ATTENTION)
    counted = Counted()
    try:
        with _OnMeta(counted, model):
            yield counted
    finally:
        backbone.set_attn_implementation(before)


class _OnMeta(TorchDispatchMode):
    """Takes tensors in memory along to the meta device where they meet others, and counts the bytes of what is made.

    Sizes and positions stay in memory, where they can be read. A question about tensors without numbers is whether all
    positions count, and is answered by yes.
    """

    counts_bytes = True

    def __init__(self, counted: Counted, model: RandSlotModel) -> None:
        super().__init__()
        self.counted = counted
        weights = [*model.parameters(), *model.buffers()]
        self.known = {weight.untyped_storage()._cdata for weight in weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func is aten._to_copy.default
            and args[0].dtype == torch.bool
            and kwargs.get("device") == torch.device("meta")
        ):
            return args[0]  # a mask stays where its numbers are
        if func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            args = (args[0], _masks_to_places(args[1]), *args[2:])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_there = [tensor.is_meta for tensor in tensors]
        if any(is_there):
            if func is aten._local_scalar_dense.default and tensors[0].dtype == torch.bool:
                return True
            if not all(is_there):
                args, kwargs = tree_map(_to_meta, (args, kwargs))
        output = func(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            products = flop_registry[func._overloadpacket](*args, **kwargs, out_val=output)
            self.counted.multiply_adds += products // 2  # torch counts a multiplication and an addition as two
        for leaf in tree_leaves(output):
            if self.counts_bytes and isinstance(leaf, Tensor) and leaf.is_meta:
                self._count(leaf)
        return output

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, num = storage._cdata, storage.nbytes()
        if place not in self.known:
            self.known.add(place)
            self.counted.allocate(num)
            weakref.finalize(storage, self._forget, place, num)

    def _forget(self, place: int, num: int) -> None:
        self.known.discard(place)
        self.counted.allocate(-num)


def _masks_to_places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Return the indices of a tensor with the places that a mask names in its stead: how many is known here only."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or index.is_meta:
            found.append(index)
        else:
            found.extend(index.nonzero(as_tuple=True))
    return found


def _to_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


class _Fused(torch.autograd.Function):
    """Attention as its fused kernels compute it: two products forward, five backward, no scores kept."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.kept = query.new_empty(query.shape), query.new_empty(query.shape[:-1], dtype=torch.float32)
        with _unseen():
            times = query.shape[1] // key.shape[1]  # heads that share a key
            scores = query @ key.repeat_interleave(times, dim=1).transpose(-1, -2)
            scores @ value.repeat_interleave(times, dim=1)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ctx.saved_tensors
        with _unseen():
            times = query.shape[1] // key.shape[1]
            scores = query @ key.repeat_interleave(times, dim=1).transpose(-1, -2)
            scores @ value.repeat_interleave(times, dim=1)  # as many as the gradient of the scores takes
            for other in (query, query, query):  # the gradients of queries, keys and values
                scores @ other
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@contextmanager
def _unseen() -> Iterator[None]:
    """Count products, and not the bytes of what they give."""
    _OnMeta.counts_bytes = False
    try:
        yield
    finally:
        _OnMeta.counts_bytes = True


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    output: Tensor = _Fused.apply(query, key, value)
    return output.transpose(1, 2).contiguous(), None


def _no_mask(*args: Any, **options: Any) -> None:
    return None
