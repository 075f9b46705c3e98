"""A strategy says all about itself: two that are defined here go through training, files, evaluation and export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.report import make_report
from randslot.evaluation.tasks import own_task
from randslot.model.export import export_model
from randslot.model.reader import SIDES, Side
from randslot.model.slots import STRATEGIES, Random, Strategy
from research.samples.sets import write_set
from support.models import make
from support.pairs import small


class Turned(Strategy):
    """Each slot is a trained turn of one trained vector: weights, and not a table."""

    title = "Turned"
    constant = True

    def __init__(self, dim: int, rows: dict[Side, int], seed: int) -> None:
        super().__init__(dim, rows, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Parameter(torch.randn(dim))
            self.turn = nn.Linear(dim, dim)

    def forward(self, side: Side, num: int, keys: Tensor) -> Tensor:
        slots = [self.first + 0 * self.turn(self.first)]
        for _ in range(num):
            slots.append(self.turn(slots[-1]))
        return torch.stack(slots)[1:].expand(len(keys), num, self.dim)


class Dice(Random):
    """Random slots also at inference, from a die of its own, and others for every budget."""

    title = "Dice"
    inference = ""
    prefix_stable = False

    def forward(self, side: Side, num: int, keys: Tensor) -> Tensor:
        slots = []
        for key in keys.tolist():
            generator = torch.Generator().manual_seed(hash((self.seed, SIDES.index(side), num, key)) % 2**31)
            slots.append(torch.randn(num, self.dim, generator=generator))
        return torch.stack(slots)


@pytest.fixture(autouse=True)
def strategies(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "turned", Turned)
    monkeypatch.setitem(STRATEGIES, "dice", Dice)


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("samples") / "set"
    write_set(folder, 2, split="test", seed=0)
    return folder


def evaluate(model: randslot.model.RandSlotModel, samples: Path, output: Path) -> Path:
    """Evaluate, and return the folder that the vectors of pages are in."""
    (result,) = Evaluation(model, "mine", output, output / "vectors").run([own_task(samples)])
    return output / "vectors" / result.vectors["page"]


def test_weights_of_any_strategy_are_trained_saved_and_loaded(data, tmp_path, pages):
    before = randslot.untrained("qwen3-vl-tiny", slots="turned", seed=42).encoder.slots.state_dict()
    model = randslot.train(small(data, tmp_path / "run", slots="turned"))
    after = model.encoder.slots.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in ("first", "turn.weight"))
    again = randslot.load(tmp_path / "run")
    for name, tensor in again.encoder.slots.state_dict().items():
        assert torch.equal(tensor, after[name]), name
    assert torch.equal(again.encode_document(pages)[1], model.encode_document(pages)[1])
    (tmp_path / "run" / "slots.safetensors").unlink()
    with pytest.raises(RandSlotError, match=r"slot tables of .* has no weight"):
        randslot.load(tmp_path / "run")


def test_a_seeded_strategy_shares_no_vectors_between_seeds_nor_between_budgets(samples, tmp_path):
    folders = []
    for seed, vectors in ((1, 4), (2, 4), (2, 2)):
        model = make("qwen3-vl", slots="dice", visual_tokens=16)
        model.use(seed=seed, query_vectors=vectors, page_vectors=vectors)
        folders.append(evaluate(model, samples, tmp_path))
    assert len(set(folders)) == 3
    assert all(list(folder.glob("*.safetensors")) for folder in folders)  # each was encoded, none was read from another
    assert "mine, dice | 4/4" in make_report(tmp_path)


def test_what_cannot_be_a_token_is_not_exported(tmp_path):
    for slots, reason in (("dice", "random slots cannot be exported"), ("turned", "")):
        model = make("qwen3-vl", slots=slots)
        model.save_pretrained(str(tmp_path / slots))
        if not reason:
            served = export_model(tmp_path / slots, tmp_path / f"{slots}-out")
            assert served["settings"]["inference"] == "turned"
            continue
        with pytest.raises(UsageError, match=f"cannot export .*slots='dice': {reason}"):
            export_model(tmp_path / slots, tmp_path / f"{slots}-out")
        with pytest.raises(UsageError, match="slots='dice': random slots cannot be exported"):
            export_model(tmp_path / slots, tmp_path / "out", slots="dice")
