"""Qwen3-VL, the paper's 4B backbone."""

from __future__ import annotations

from .qwen_vl import QwenVL


class Qwen3VL(QwenVL):
    """Qwen3-VL: its first layers get more of the image, each from a deeper layer of the vision tower."""

    name = "qwen3-vl"
    model_type = "qwen3_vl"
    video_processor = "Qwen3VLVideoProcessor"


FAMILY = Qwen3VL()
