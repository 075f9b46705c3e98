"""Qwen2.5-VL, the paper's 3B backbone."""

from __future__ import annotations

from .qwen_vl import QwenVL


class Qwen25VL(QwenVL):
    """Qwen2.5-VL: the image comes in with the first layer only."""

    name = "qwen2.5-vl"
    model_type = "qwen2_5_vl"
    video_processor = "Qwen2VLVideoProcessor"


FAMILY = Qwen25VL()
