"""Qwen3.5: the newest family, in which three of four layers carry a state along instead of looking back.

A gated DeltaNet layer is causal, so one pass is as exact as with attention: what it has read up to a position is a
matrix and the last three inputs of a short convolution. Padding on the left must not enter either: transformers sets
the inputs of padded positions to zero, which leaves both at zero.
"""

from __future__ import annotations

from typing import ClassVar

from .qwen_vl import QwenVL


class Qwen35(QwenVL):
    """Qwen3.5: prompt, image size and positions are those of Qwen3-VL; the image comes in with the first layer only."""

    name = "qwen3.5"
    model_type = "qwen3_5"
    # In a DeltaNet layer `in_proj_qkv` makes query, key and value in one matrix, and `out_proj` leads back, as o_proj
    # does: these two get the adapter. The three parts of the first share its rank. The output gate (in_proj_z) and what
    # decides how much a position writes and forgets (in_proj_b, in_proj_a) get none: the attention of the paper's
    # backbones has nothing like them.
    lora_targets = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|in_proj_qkv|out_proj)"
    spare_weights = ("lm_head.", "mtp.")  # the head, and the layer that predicts several tokens
    video_processor = "Qwen3VLVideoProcessor"
    kernels: ClassVar = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}
    cache_keeps_gradients = False  # transformers writes each state over the one before


FAMILY = Qwen35()
