"""The cache of vectors: nothing is lost or made twice, whatever stops the process; smaller budgets are prefixes."""

from __future__ import annotations

import pytest
import torch

from randslot.errors import RandSlotError
from randslot.evaluation import cache as vectors
from randslot.evaluation.cache import VectorCache, open_cache
from randslot.evaluation.tasks import content_key
from support.models import make


def items(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.randn(size, 8) for size in sizes]


def test_what_is_flushed_is_there_for_the_next_process(tmp_path):
    first, stored = VectorCache(tmp_path), items([4, 1, 7])
    first.add(["a", "b", "c"], stored)
    assert "b" in first
    assert "b" not in VectorCache(tmp_path)  # not yet
    first.flush()
    second = VectorCache(tmp_path)
    for found, expected in zip(second.read(["c", "a", "b"]), [stored[2], stored[0], stored[1]], strict=True):
        assert torch.equal(found, expected)


def test_shards_are_written_by_size_and_by_time(tmp_path, monkeypatch):
    cache = VectorCache(tmp_path)
    monkeypatch.setattr(vectors, "SHARD_BYTES", 200)
    cache.add(["a"], items([4]))
    assert "a" not in VectorCache(tmp_path)
    cache.add(["b"], items([4]))
    assert "a" in VectorCache(tmp_path)
    monkeypatch.setattr(vectors, "SHARD_SECONDS", 0.0)
    cache.add(["c"], items([1]))
    assert "c" in VectorCache(tmp_path)


def test_blocks_are_bounded_and_do_not_depend_on_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_VECTORS", 8)
    keys, stored = [f"{i}" for i in range(30)], items([3] * 30)
    order = [int(i) for i in torch.randperm(30)]
    cache = VectorCache(tmp_path)
    for start in range(0, 30, 10):
        chosen = order[start : start + 10]
        cache.add([keys[i] for i in chosen], [stored[i] for i in chosen])
        cache.flush()
    blocks = list(cache.blocks(keys, num=2))
    assert [len(block) for block in blocks] == [4] * 7 + [2]
    found = [item for block in blocks for item in block]
    assert all(torch.equal(item, whole[:2]) for item, whole in zip(found, stored, strict=True))


def test_processes_share_a_folder(tmp_path):
    """Each sees what the other wrote after a look at the folder."""
    first, second, stored = VectorCache(tmp_path), VectorCache(tmp_path), items([2, 2])
    first.add(["a"], stored[:1])
    second.add(["b"], stored[1:])
    first.flush()
    second.flush()
    assert "b" not in first
    first.refresh()
    assert all(torch.equal(a, b) for a, b in zip(first.read(["b", "a"]), reversed(stored), strict=True))


def test_a_half_written_shard_is_passed_over_and_a_broken_one_named(tmp_path):
    (tmp_path / "x.part").write_bytes(b"half")
    VectorCache(tmp_path)
    (tmp_path / "y.safetensors").write_bytes(b"broken")
    with pytest.raises(RandSlotError, match=r"cannot read vectors from .*y.safetensors: .*Remove it"):
        VectorCache(tmp_path)


def test_a_larger_budget_serves_a_smaller_one_and_settings_keep_apart(tmp_path):
    model = make("qwen3-vl", page_vectors=8)
    weights = model.weights_key
    large = open_cache(tmp_path, weights, model.settings, "page")
    large.add(["a"], items([8]))
    large.flush()
    for changes, found in [
        ({"page_vectors": 3}, True),
        ({"page_vectors": 9}, False),
        ({"page_vectors": 3, "visual_tokens": 64}, False),
        ({"visual_tokens": 1536, "inference": "random"}, False),
    ]:
        model.use(**changes)
        assert ("a" in open_cache(tmp_path, weights, model.settings, "page")) == found, changes
    seeded = open_cache(tmp_path, weights, model.settings, "page").folder
    model.use(seed=7)
    assert open_cache(tmp_path, weights, model.settings, "page").folder != seeded


def test_other_weights_have_another_key():
    assert make("qwen3-vl").weights_key == make("qwen3-vl").weights_key
    model = make("qwen3-vl")
    next(model.parameters()).data.flatten()[0] += 1
    assert model.weights_key != make("qwen3-vl").weights_key


def test_keys_tell_parts_apart():
    assert content_key(b"ab", b"c") != content_key(b"a", b"bc")
