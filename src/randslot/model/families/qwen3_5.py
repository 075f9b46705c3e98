"""Qwen3.5, in which three of four layers are gated DeltaNet layers, which carry a state instead of attending.

A DeltaNet layer is causal, so one pass is as exact as with attention. Its state is a matrix and the last three inputs
of a short convolution. Left padding leaves both at zero: transformers zeroes the inputs of padded positions.
"""

from __future__ import annotations

from typing import ClassVar

from .qwen_vl import QwenVL


class Qwen35(QwenVL):
    """Qwen3.5: prompt, image size and positions of Qwen3-VL; the image enters at the first layer only."""

    name = "qwen3.5"
    model_type = "qwen3_5"
    # In a DeltaNet layer `in_proj_qkv` makes query, key and value in one matrix, and `out_proj` plays the part of
    # o_proj: these two get the adapter. The output gate (in_proj_z) and the write and forget gates (in_proj_b,
    # in_proj_a) get none: the attention of the paper's backbones has nothing like them.
    lora_targets = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|in_proj_qkv|out_proj)"
    spare_weights = ("lm_head.", "mtp.")  # the head, and the multi-token prediction layer
    video_processor = "Qwen3VLVideoProcessor"
    kernels: ClassVar = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}
    cache_keeps_gradients = False  # transformers overwrites each state in place
