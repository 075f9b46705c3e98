"""What the language model of a backbone gets: embedded and placed positions, to which slots are appended.

Shapes: B batch, L positions, S slots, D dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Content:
    """An input sequence before or after slots were appended.

    positions: (..., B, L), as the family counts them. flags: what a family says of each position (B, L), false for
    slots. more: what it passes on as it is.
    """

    embeds_BLD: Tensor
    mask_BL: Tensor
    positions: Tensor
    flags: dict[str, Tensor] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def append(self, slots_BSD: Tensor) -> Content:
        """Return this content with slots behind it, at the positions that follow its last one."""
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
        """Return only the last position, for a step whose earlier ones are in the cache."""
        return Content(self.embeds_BLD[:, -1:], self.mask_BL, self.positions[..., -1:])
