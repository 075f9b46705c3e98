"""Each strategy appends exactly what the paper defines."""

from __future__ import annotations

import pytest
import torch

from randslot.errors import UsageError
from randslot.model.slots import SIDES, Fixed, Learned, Random
from randslot.model.slots import STRATEGIES as CLASSES

ROWS = {"query": 3, "page": 3}
KEYS = torch.tensor([7, 8, 2**62])


def unit(vectors: torch.Tensor) -> bool:
    return torch.allclose(vectors.norm(dim=-1), torch.ones(vectors.shape[:-1]), atol=1e-6)


def test_random_slots_are_independent_unit_vectors():
    slots = Random(512, ROWS, 0)
    first, second = slots("page", 3, KEYS), slots("page", 3, KEYS + 9)
    assert first.dtype == torch.float32
    assert unit(first)
    drawn = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
    overlap = drawn @ drawn.T - torch.eye(len(drawn))
    assert overlap.abs().max() < 0.25  # 18 independent directions in 512 dimensions: nearly orthogonal


def test_a_random_slot_depends_on_seed_side_and_key_alone():
    slots = Random(64, ROWS, 1).eval()
    together = slots("page", 3, KEYS)
    assert unit(together)
    assert torch.equal(together.flip(0), slots("page", 3, KEYS.flip(0)))
    assert torch.equal(together[1:2], slots("page", 3, KEYS[1:2]))
    assert torch.equal(together, slots("page", 7, KEYS)[:, :3])
    others = [slots("query", 3, KEYS), Random(64, ROWS, 2).eval()("page", 3, KEYS), slots("page", 3, KEYS + 1)]
    for other in others:
        assert not torch.isclose(together, other).all(dim=-1).any()


def test_fixed_is_sampled_once_from_the_seed_apart_for_each_side():
    slots = Fixed(64, ROWS, 4)
    assert torch.equal(slots("page", 3, KEYS), Fixed(64, ROWS, 4)("page", 3, KEYS))
    assert not torch.equal(slots("page", 3, KEYS), Fixed(64, ROWS, 5)("page", 3, KEYS))
    assert not torch.equal(slots("page", 3, KEYS), slots("query", 3, KEYS))
    assert unit(slots("page", 3, KEYS))
    assert not list(slots.parameters())


@pytest.mark.parametrize("kind", [Fixed, Learned])
def test_tables_repeat_their_last_slot_beyond_the_stored_count(kind):
    """Equation fixed-extension: e_t = f_min(t, 3); nothing is sampled anew, the table is not cycled."""
    slots = kind(64, ROWS, 0)
    for side in SIDES:
        stored, more = slots(side, 3, KEYS), slots(side, 7, KEYS)
        assert torch.equal(more[:, :3], stored)
        assert torch.equal(more[:, 3:], stored[:, 2:3].expand(3, 4, 64))
        assert torch.equal(slots(side, 1, KEYS), stored[:, :1])


def test_learned_adds_two_tables_of_trainable_scalars_and_normalises_them():
    slots = Learned(64, ROWS, 0)
    assert sum(p.numel() for p in slots.parameters() if p.requires_grad) == 2 * 3 * 64
    with torch.no_grad():
        slots.tables.weight.mul_(9)
    assert unit(slots("page", 3, KEYS))
    slots("page", 3, KEYS).sum().backward()
    query, page = slots.tables.weight.grad.split(3)
    assert page.abs().sum() > 0
    assert query.abs().sum() == 0
    assert not torch.equal(slots("page", 3, KEYS), slots("query", 3, KEYS))


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_a_model_without_stored_slots_says_so(kind):
    slots = CLASSES[kind](64, {"query": 0, "page": 0}, 0)
    assert slots("page", 0, KEYS).shape == (3, 0, 64)
    with pytest.raises(UsageError, match="stores no page slots"):
        slots("page", 3, KEYS)
