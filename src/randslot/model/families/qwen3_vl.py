"""Qwen3-VL, the paper's 4B backbone, and the backbone of Qwen3-VL-Embedding."""

from __future__ import annotations

from typing import ClassVar

from ..template import Template
from .qwen_vl import QwenVL

# As Qwen3-VL-Embedding was trained: a conversation up to where the answer would begin, the instruction as its system
# message. Its vector is the state of the last token.
EMBEDDING = Template(
    page="<|im_start|>system\n{instruction}<|im_end|>\n"
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n",
    query="<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n",
    instruction="Represent the user's input.",
    closed=True,
)


class Qwen3VL(QwenVL):
    """Qwen3-VL: its first layers get more of the image, each from a deeper layer of the vision tower."""

    name = "qwen3-vl"
    model_type = "qwen3_vl"
    templates: ClassVar = {"embedding": EMBEDDING}
    video_processor = "Qwen3VLVideoProcessor"


FAMILY = Qwen3VL()
