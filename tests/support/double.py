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
        if func is torch.Tensor.backward:  # a gradient cache runs the model again in a hook of it
            with self:
                return torch.autograd.backward(args[0])
        args = [_double(value) for value in args]
        kwargs = {name: _double(value) for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
