"""From content and slots to K readouts: in one pass, or step by step as in the paper; or one readout per token.

With causal attention a slot does not change the states before it. So if all slots are known in advance, the K readouts
are the last K states of one pass over content and slots: exact, and about K times cheaper than running every prefix.

Shapes: B batch, L positions, S slots, K = S + 1 readouts, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from .backbone import Backbone


@dataclass(frozen=True)
class Content:
    """The input of a language model: embeddings and positions, to which slots are appended.

    positions: (..., B, L), as the family counts them. flags: per-position inputs (B, L) of a family, false for slots.
    more: inputs passed on unchanged.
    """

    embeds_BLD: Tensor
    mask_BL: Tensor
    positions: Tensor
    flags: dict[str, Tensor] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def append(self, slots_BSD: Tensor) -> Content:
        """Return this content followed by slots, at the next positions."""
        num = slots_BSD.shape[1]
        steps = torch.arange(1, num + 1, device=self.mask_BL.device)
        return Content(
            torch.cat([self.embeds_BLD, slots_BSD.to(self.embeds_BLD.dtype)], dim=1),
            F.pad(self.mask_BL, (0, num), value=1),
            torch.cat([self.positions, self.positions[..., -1:] + steps], dim=-1),
            {name: F.pad(flag, (0, num), value=False) for name, flag in self.flags.items()},
            self.more,
        )

    def tail(self) -> Content:
        """Return the last position only, for a step on a cache."""
        return Content(self.embeds_BLD[:, -1:], self.mask_BL, self.positions[..., -1:])


def read_once(backbone: Backbone, content: Content, slots_BSD: Tensor) -> Tensor:
    """Return the K readouts (B, K, D) of content followed by slots, in one pass."""
    num = slots_BSD.shape[1]
    hidden, _ = backbone.run(content.append(slots_BSD))
    return F.normalize(hidden[:, -num - 1 :].float(), dim=-1)


def read_stepwise(
    backbone: Backbone,
    content: Content,
    num: int,
    next_slot: Callable[[int, Tensor], Tensor],
    *,
    cached: bool,
) -> Tensor:
    """Return K = `num` + 1 readouts (B, K, D), appending one slot after each.

    `next_slot(t, readout)` returns the slot (B, D) after readout t (B, D). Each step runs the new position on the KV
    cache, or reruns the whole prefix if not `cached`; gradients flow through both.
    """
    readouts: list[Tensor] = []
    part, cache = content, None
    for t in range(num + 1):
        hidden, cache = backbone.run(part, cache, use_cache=cached)
        readouts.append(F.normalize(hidden[:, -1].float(), dim=-1))
        if t < num:
            content = content.append(next_slot(t, readouts[-1])[:, None])
            part = content.tail() if cached else content
    return torch.stack(readouts, dim=1)


def read_tokens(backbone: Backbone, content: Content) -> Tensor:
    """Return a readout (B, L, D) of every position of the content, including padding."""
    hidden, _ = backbone.run(content)
    return F.normalize(hidden.float(), dim=-1)
