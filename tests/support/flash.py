"""A stand-in for flash attention 2 on a CPU: its documented functions in plain torch, with the checks of the real one.

transformers' own code around it runs as on a GPU: masks, unpadding, packed sequences, casts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import modeling_flash_attention_utils as flash_utils


@dataclass
class Flash:
    """The functions of the package `flash_attn`, and what they were called with.

    half_only: as the real kernels, which refuse float32; without it exactness can be tested.
    """

    half_only: bool = True
    calls: list[str] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)

    def flash_attn_func(
        self,
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
    ) -> Tensor:
        """q: (batch, positions, heads, dimension); k and v may have fewer heads."""
        assert q.ndim == k.ndim == v.ndim == 4, "flash_attn_func takes (batch, positions, heads, dimension)"
        self._check(q, k, v, dropout_p, window_size, softcap, alibi_slopes, return_attn_probs)
        self.calls.append("plain")
        rows = [attend(*row, softmax_scale, causal) for row in zip(q, k, v, strict=True)]
        return torch.stack(rows)

    def flash_attn_varlen_func(
        self,
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ) -> Tensor:
        """q: (all positions, heads, dimension), cut into sequences at the places in cu_seqlens."""
        assert q.ndim == k.ndim == v.ndim == 3, "flash_attn_varlen_func takes (positions, heads, dimension)"
        assert block_table is None
        self._check(q, k, v, dropout_p, window_size, softcap, alibi_slopes, return_attn_probs)
        for places, tensor, longest in ((cu_seqlens_q, q, max_seqlen_q), (cu_seqlens_k, k, max_seqlen_k)):
            assert places.dtype == torch.int32, f"cu_seqlens must be int32, not {places.dtype}"
            assert places.is_contiguous()
            assert places[0] == 0
            assert places[-1] == len(tensor), "cu_seqlens must end at the number of positions"
            assert int(longest) >= int(places.diff().max()), "a sequence is longer than max_seqlen"
        self.calls.append("packed")
        ends = zip(cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist(), strict=True)
        queries, keys = zip(*ends, strict=True)
        parts = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
        return torch.cat([attend(*part, softmax_scale, causal) for part in parts])

    def _check(self, q, k, v, dropout_p, window_size, softcap, alibi_slopes, return_attn_probs) -> None:
        assert q.dtype == k.dtype == v.dtype, f"mixed types: {q.dtype}, {k.dtype}, {v.dtype}"
        if self.half_only:
            assert q.dtype in (torch.float16, torch.bfloat16), f"only half precision is supported, not {q.dtype}"
        assert all(tensor.stride(-1) == 1 for tensor in (q, k, v)), "the last dimension must be contiguous"
        assert q.shape[-1] <= 256, "at most 256 numbers a head"
        assert q.shape[-2] % k.shape[-2] == 0, "heads of keys must divide those of queries"
        assert not dropout_p
        assert tuple(window_size) == (-1, -1)
        assert not softcap
        assert alibi_slopes is None
        assert not return_attn_probs
        self.dtypes.add(q.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """Attention of one sequence, (positions, heads, dimension); causal from the end, as flash attention aligns it."""
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * (scale or q.shape[-1] ** -0.5)
    if causal:
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.float()).to(q.dtype)


def install_flash(monkeypatch: pytest.MonkeyPatch, half_only: bool = True) -> Flash:
    """Put the stand-in where transformers keeps the functions of the package once it has loaded them."""
    flash = Flash(half_only)
    monkeypatch.setattr(flash_utils, "_loaded_implementation", "flash_attention_2")
    monkeypatch.setattr(flash_utils, "_flash_fn", flash.flash_attn_func)
    monkeypatch.setattr(flash_utils, "_flash_varlen_fn", flash.flash_attn_varlen_func)
    monkeypatch.setattr(flash_utils, "_flash_with_kvcache_fn", None)
    monkeypatch.setattr(flash_utils, "_pad_fn", flash_utils._pad_input)
    monkeypatch.setattr(flash_utils, "_unpad_fn", flash_utils._unpad_input)
    process = flash_utils._lazy_define_process_function(flash.flash_attn_varlen_func)
    monkeypatch.setattr(flash_utils, "_process_flash_kwargs_fn", process)
    monkeypatch.setattr(flash_utils, "_process_with_kvcache_kwargs_fn", dict)
    return flash


def use_flash(backbone: PreTrainedModel) -> None:
    """Switch a backbone to flash attention 2, past the check for a GPU."""
    for module in backbone.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation_internal = "flash_attention_2"
