"""What a run uses of a machine is decided in one place, said once and recorded; what cannot work is refused at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple

import pytest
import torch

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model.families import find_family
from randslot.training import plan
from randslot.training.plan import check_shared_memory, choose_hardware
from randslot.training.recipe import make_recipe
from randslot.training.train import TrainingRun
from support.pairs import small, write_pairs

RECIPE = make_recipe({"backbone": "someone/model"})


def test_without_a_gpu_every_fallback_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = choose_hardware(RECIPE)
    assert (found.precision, found.attention, found.optimizer) == ("fp32", "sdpa", "adamw_torch")
    assert found.fallbacks == (
        "no GPU: float32 instead of bfloat16",
        "no GPU with bfloat16: PyTorch's attention (SDPA) instead of flash attention 2, same results",
        "no GPU with bitsandbytes: AdamW in float32 instead of PagedAdamW8bit",
    )
    assert choose_hardware(make_recipe({"backbone": "x", "precision": "fp32", "optimizer": "adamw"})).fallbacks == ()


def test_a_cpu_computes_in_bfloat16_if_it_is_told_to(data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    randslot.train(small(data, tmp_path / "run", lora=True, precision="bf16-anywhere", steps=2))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["precision"] == "bf16"
    assert not any("float32 instead" in line for line in record["fallbacks"])
    losses = [float(line.split(",")[1]) for line in (tmp_path / "run" / "losses.csv").read_text().splitlines()[1:]]
    assert all(0 < loss < 10 for loss in losses)


def test_with_all_that_the_paper_used_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(plan, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(plan, "find_spec", lambda name: name)
    found = choose_hardware(RECIPE)
    assert (found.precision, found.attention, found.optimizer) == ("bf16", "flash_attention_2", "paged_adamw_8bit")
    assert found.fallbacks == ()
    assert found.dtype == torch.bfloat16


def test_kernels_that_a_family_lacks_are_said_too(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = choose_hardware(RECIPE)
    assert choose_hardware(RECIPE, find_family("qwen3-vl")) == found
    *before, fla, conv = choose_hardware(RECIPE, find_family("qwen3.5")).fallbacks
    assert tuple(before) == found.fallbacks
    assert fla.startswith("no GPU with flash-linear-attention: plain PyTorch instead")
    assert conv.startswith("no GPU with causal-conv1d")


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_launchers_that_cut_models_into_pieces_are_refused(variable, monkeypatch):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(UsageError, match=r"is not supported\. Use torchrun"):
        choose_hardware(RECIPE)


def test_shared_memory_is_computed_and_checked(monkeypatch):
    recipe = make_recipe({"backbone": "x", "workers": 4})
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda place: usage(64_000_000))
    model = randslot.tiny("qwen3-vl", visual_tokens=64)
    check_shared_memory(recipe, model, torch.float32, 2)
    with pytest.raises(UsageError, match=r"GB .*0\.1 GB free\. Set fewer workers"):
        check_shared_memory(recipe, model, torch.float32, 1000)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_can_be_started_in_any_way(method, tmp_path):
    """Python 3.14 starts processes by forkserver: what goes to them must be picklable."""
    data = write_pairs(tmp_path / "data")
    recipe = small(data, tmp_path / "run", workers=2, steps=2)
    code = (
        "import json, multiprocessing, sys, randslot\n"
        "if __name__ == '__main__':\n"
        f"    multiprocessing.set_start_method({method!r})\n"
        "    randslot.train(json.loads(sys.argv[1]))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(recipe)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "losses.csv").read_text().count("\n") == 3


def test_too_little_memory_is_said_in_one_line(data, tmp_path, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(TrainingRun, "make_model", fail)
    with pytest.raises(RandSlotError, match=r"out of GPU memory\. Set gradient_cache = true"):
        randslot.train(small(data, tmp_path / "run"))
