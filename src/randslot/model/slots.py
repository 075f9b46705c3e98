"""The method: the slots that are appended to the content. One class per strategy; the research file.

A *slot* is an input vector appended to the content of a query or page. K vectors need K-1 slots: the first readout is
at the last position of the content. A strategy that knows its slots in advance returns all of them from `forward`, and
the encoder reads K vectors in one pass. A `Sequential` strategy, whose next slot depends on the latest readout, returns
that slot from `step`. `Tokens` appends nothing and reads every token of the content.

Shapes: B batch, S slots, D input dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UsageError
from .reader import SIDES, Side


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Seed torch on the CPU inside the block, and restore its generators after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Strategy(nn.Module):
    """A slot strategy. dim: the input dimension. rows: the number of stored slots per side.

    `forward(side, num, keys)` returns (B, S, D) in float32. `keys` (B,) holds a seed per example: a hash of its
    content, or a random number in training. Sample from these seeds, so that an example does not depend on its batch.
    Parameters and buffers are saved and loaded with the model.

    title: its name in the paper. constant: the slots are the same for every content, so they can be exported as tokens.
    seeded: the slots depend on the seed. sequential: the next slot depends on the latest readout. prefix_stable: the
    first vectors do not depend on how many follow. every_token: no slots; every token has a vector. inference: the
    default strategy for encoding; the same one if empty.
    """

    title: ClassVar[str] = ""
    constant: ClassVar[bool] = False
    seeded: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    prefix_stable: ClassVar[bool] = True
    every_token: ClassVar[bool] = False
    inference: ClassVar[str] = ""

    def __init__(self, dim: int, rows: dict[Side, int], seed: int) -> None:
        super().__init__()
        self.dim = dim
        self.rows = rows
        self.seed = seed


class Zero(Strategy):
    """Zero-Feedback (Z): every slot is the zero vector."""

    title = "Zero-Feedback"
    constant = True

    def forward(self, side: Side, num: int, keys: Tensor) -> Tensor:
        return torch.zeros(len(keys), num, self.dim, device=keys.device, dtype=torch.float32)


class Random(Strategy):
    """RandSlot (R): fresh random unit vectors, independent over examples, sides and positions.

    Each example has its own seed, a fresh one per training step, so micro-batches and a gradient cache do not change
    its slots. At inference (RS-R) the seed is a hash of the content: a page gets the same slots in every batch. By
    default, inference uses zeros instead (RS-Z), at almost no loss.
    """

    title = "RandSlot"
    seeded = True
    inference = "zero"

    def forward(self, side: Side, num: int, keys: Tensor) -> Tensor:
        drawn = []
        for key in keys.tolist():
            # numpy fills row by row, so the slots of a small budget are the first slots of a larger one.
            generator = np.random.default_rng([self.seed, SIDES.index(side), key])
            drawn.append(generator.standard_normal((num, self.dim), dtype=np.float32))
        return F.normalize(torch.from_numpy(np.stack(drawn)).to(keys.device), dim=-1)


class Table(Strategy, ABC):
    """Slots stored by position, one table per side. Positions beyond the stored slots repeat the last one."""

    constant = True

    @abstractmethod
    def table(self, side: Side) -> Tensor:
        """Return the stored unit vectors of one side, (rows, D) in float32."""

    def forward(self, side: Side, num: int, keys: Tensor) -> Tensor:
        if num and not self.rows[side]:
            raise UsageError(f"this model stores no {side} slots: use {side}_vectors=1 or inference='zero'")
        position = torch.arange(num, device=keys.device).clamp(max=max(self.rows[side] - 1, 0))
        return self.table(side)[position].expand(len(keys), num, self.dim)


class Fixed(Table):
    """Fixed-Random (F): random unit vectors, sampled once from the seed."""

    title = "Fixed-Random"
    seeded = True

    def __init__(self, dim: int, rows: dict[Side, int], seed: int) -> None:
        super().__init__(dim, rows, seed)
        generator = torch.Generator().manual_seed(seed)
        for side in SIDES:
            z = torch.randn(rows[side], dim, generator=generator)
            self.register_buffer(side, F.normalize(z, dim=-1))

    def table(self, side: Side) -> Tensor:
        table: Tensor = getattr(self, side)
        return table.float()


class Learned(Table):
    """Learned-Feedback (L): trainable vectors, normalised before use.

    The tables of both sides are rows of one parameter, the query's first, so that every pass uses it: distributed
    training with a gradient cache all-reduces gradients in its last pass only, and a parameter unused in that pass
    would block its whole bucket.
    """

    title = "Learned-Feedback"

    def __init__(self, dim: int, rows: dict[Side, int], seed: int) -> None:
        super().__init__(dim, rows, seed)
        with torch_seed(seed):
            self.tables = nn.Embedding(rows["query"] + rows["page"], dim)
        self.tables.weight.requires_grad_(len(self.tables.weight) > 0)

    def table(self, side: Side) -> Tensor:
        query, page = self.tables.weight.split([self.rows["query"], self.rows["page"]])
        return F.normalize((query if side == "query" else page).float(), dim=-1)


class Sequential(Strategy, ABC):
    """A strategy whose next slot depends on the latest readout."""

    sequential = True

    @abstractmethod
    def step(self, readout: Tensor) -> Tensor:
        """Return the slot (B, D) that follows this readout (B, D)."""


class Feedback(Sequential):
    """Direct-Feedback (DF): the latest readout is the next slot, never detached."""

    title = "Direct-Feedback"

    def step(self, readout: Tensor) -> Tensor:
        return readout


class Tokens(Strategy):
    """Full-token (Base): no slots; the state of every content token is a vector."""

    title = "Full-token"
    prefix_stable = False
    every_token = True


STRATEGIES: dict[str, type[Strategy]] = {
    "random": Random,
    "zero": Zero,
    "fixed": Fixed,
    "learned": Learned,
    "feedback": Feedback,
    "tokens": Tokens,
}
