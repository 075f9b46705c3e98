"""From content and slots to K readouts: in one pass, or step by step as the paper runs it. Or a readout a token.

With causal attention a slot does not change the states before it. So the K readouts of a strategy that knows its
slots beforehand are the last K states of one pass over content and slots: exact, and about K times cheaper than
running every prefix again.

Shapes: B batch, L content tokens, S slots, K = S + 1 readouts, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .content import Content
from .families.base import Backbone


def read_once(backbone: Backbone, content: Content, slots_BSD: Tensor) -> Tensor:
    """Return the K readouts (B, K, D) of content followed by slots, in one pass."""
    num = slots_BSD.shape[1]
    hidden, _ = backbone.run(content.append(slots_BSD))
    return _normalise(hidden[:, -num - 1 :])


def read_stepwise(
    backbone: Backbone,
    content: Content,
    num: int,
    next_slot: Callable[[int, Tensor], Tensor],
    *,
    cached: bool,
) -> Tensor:
    """Return K = `num` + 1 readouts (B, K, D), appending one slot after each.

    `next_slot(t, readout)` gives the slot (B, D) after readout t (B, D). Each step runs the new position on the
    cached states of the earlier ones, or the whole prefix again if not `cached`; gradients flow through both.
    """
    readouts: list[Tensor] = []
    part, cache = content, None
    for t in range(num + 1):
        hidden, cache = backbone.run(part, cache, use_cache=cached)
        readouts.append(_normalise(hidden[:, -1]))
        if t < num:
            content = content.append(next_slot(t, readouts[-1])[:, None])
            part = content.tail() if cached else content
    return torch.stack(readouts, dim=1)


def read_tokens(backbone: Backbone, content: Content) -> Tensor:
    """Return a readout (B, L, D) of every position of the content, padding among them."""
    hidden, _ = backbone.run(content)
    return _normalise(hidden)


def _normalise(hidden: Tensor) -> Tensor:
    return F.normalize(hidden.float(), dim=-1)
