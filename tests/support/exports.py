"""Models to export, and the examples of the guide that goes with an export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.models import make


def adapted(family: str, **options: Any) -> Any:
    """A model whose adapter does something: a fresh one adds zero, and its merge would show nothing."""
    model = make(family, lora=True, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(str(folder))
    return folder


def follow(folder: Path, monkeypatch: pytest.MonkeyPatch, block: int = 1) -> dict[str, Any]:
    """Run a Python block of SERVING.md where it says to, in the folder; return what it defines."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", Path("SERVING.md").read_text(), flags=re.DOTALL)[block], names)
    return names


def far(a: Any, b: Any) -> float:
    return float((torch.stack(list(a)) - torch.stack(list(b))).abs().max())
