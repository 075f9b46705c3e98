"""Everything in double precision: what is rounding in single precision is gone there, and what is a mistake stays."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class InDouble(TorchFunctionMode):
    """Wherever code asks for float32, as norms and losses do, it gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = [_double(value) for value in args]
        kwargs = {name: _double(value) for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)


def make_double(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model that computes in double precision, also where a mode does not reach: in hooks of a backward."""
    forward = model.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with InDouble():
            return forward(*args, **kwargs)

    model.forward = run
    return model.double()


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
