"""Profiles: every strategy and budget both ways, on inputs of the protocol's size."""

from __future__ import annotations

import pytest

from randslot.errors import UsageError
from randslot.evaluation import profile as module
from randslot.evaluation.profile import Protocol, profile
from support.models import make


def test_profiled_inputs_have_the_size_of_the_protocol(qwen_family, monkeypatch):
    """And both ways give the same vectors: what is compared is the same work."""
    seen: list[tuple[object, ...]] = []

    def spy(functions, samples, warmup):
        for features in samples:
            seen.append((features["input_ids"].shape[1], "pixel_values" in features))
        for strategy in ("random", "zero", "fixed", "learned"):
            one, step = (functions[module.Way(strategy, 3, flag)](samples[0]) for flag in (True, False))
            assert (one - step).abs().max() < 1e-5
        return {way: [1.0] for way in functions}

    monkeypatch.setattr(module, "_time", spy)
    profile(make(qwen_family), Protocol(rows=3, columns=2, warmup=1, samples=2, budgets=(3,), query_tokens=9))
    assert seen[:3] == [(9, False)] * 3
    lengths = {length for length, is_page in seen if is_page}
    assert len(seen) == 6
    assert len(lengths) == 1
    assert lengths.pop() > 6


@pytest.mark.parametrize(
    ("family", "size"), [("smolvlm", "92 positions"), ("llama", "91 positions"), ("qwen3.5", "8 x 8 merged")]
)
def test_every_family_can_be_timed(family, size):
    """Tiles have no grid, nor has a text: then the title says how many positions a page takes."""
    model = make(family, slots="tokens")
    table = profile(model, Protocol(rows=8, columns=8, warmup=1, samples=1, budgets=(2,), strategies=("zero",)))
    assert [row[:3] for row in table.rows] == [["zero", 2, "one pass"], ["zero", 2, "step by step"]]
    assert f"pages of {size}" in table.title
    assert model.settings == make(family, slots="tokens").settings


def test_a_chosen_width_is_timed(monkeypatch):
    shapes = []

    def spy(functions, samples, warmup):
        shapes.extend(function(samples[0]).shape[-1] for function in functions.values())
        return {way: [1.0] for way in functions}

    monkeypatch.setattr(module, "_time", spy)
    protocol = Protocol(rows=2, columns=2, warmup=0, samples=1, budgets=(2,), strategies=("zero", "feedback"))
    assert ", 16 dimensions" in profile(make("qwen3-vl", width=16), protocol).title
    assert shapes == [16] * 6


def test_a_wrong_protocol_is_refused():
    with pytest.raises(UsageError, match="must be 1 or more, not 0"):
        Protocol(samples=0)
