"""Qwen2.5-VL, Qwen3-VL (the paper's backbones) and Qwen3.5: visual tokens among the text, positions in 3 dimensions.

Shapes: B batch, L positions, D hidden dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from ...files import read_json, write_json
from ...pages import limit_aspect, open_page
from ..hub import Source
from ..preprocessing import Features, Processors, Template
from ..readout import Content
from .base import VisionFamily, VisionOutput, require_file

MAX_ASPECT = 200  # the image processor refuses longer pages


class QwenVL(VisionFamily):
    """The common base of Qwen's vision-language models."""

    # Appendix A of the paper, character for character. Its queries have no prompt.
    page_prompt = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
    )
    lora_targets = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj)"
    special_tokens = (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|image_pad|>",
        "<|video_pad|>",
    )
    end_token = "<|im_end|>"
    image_token = "<|image_pad|>"
    export_example = """\
    image = image_processor(images, return_tensors="pt")
    counts = image["image_grid_thw"].prod(-1) // image_processor.merge_size**2
    prompts = [serving["page_prompt"].replace("<|image_pad|>", "<|image_pad|>" * num) for num in counts.tolist()]"""
    vision_modules = ("visual",)
    language_module = "language_model"
    video_processor: ClassVar[str]  # servers load it too, and would guess the wrong one

    # -- making a backbone

    def load_image_processor(self, source: Source) -> Any:
        # A processor saved as a whole keeps its image settings in processor_config.json.
        require_file(source, "preprocessor_config.json", "processor_config.json")
        return Qwen2VLImageProcessorPil.from_pretrained(source.folder, local_files_only=True)

    def make_image_processor(self, shape: dict[str, Any]) -> Any:
        vision = shape["config"]["vision_config"]
        if "image_processor" in shape:
            return Qwen2VLImageProcessorPil(**shape["image_processor"])
        return Qwen2VLImageProcessorPil(patch_size=vision["patch_size"], merge_size=vision["spatial_merge_size"])

    def token_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        ids = super().token_ids(tokenizer)
        for name, token in (("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end")):
            ids[f"{name}_token_id"] = tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        return ids

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        proj = model.visual.patch_embed.proj
        assert (*proj.stride, *proj.padding) == (*proj.kernel_size, 0, 0, 0), "patches overlap"
        model.visual.patch_embed = LinearPatches(proj)
        return model

    # -- from pages to features

    def page_pixels(self, processors: Processors, num_tokens: int) -> int:
        return image_size(processors.image, num_tokens)["longest_edge"]

    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> Image.Image:
        image = open_page(page, self.page_pixels(processors, num_tokens))
        return limit_aspect(image, min(MAX_ASPECT, num_tokens))  # a longer page would take more tokens

    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        size = image_size(processors.image, num_tokens)
        images = processors.image(list(pages), size=size, return_tensors="pt")
        pixels, grids = images["pixel_values"], images["image_grid_thw"]
        before, after = processors.tokenize(processors.template.page_prompt.split(self.image_token))
        image_token = processors.tokenizer.convert_tokens_to_ids(self.image_token)
        counts = (grids.prod(-1) // processors.image.merge_size**2).tolist()
        first, last = processors.closing_tokens()
        ids = [first + before + [image_token] * count + after + last for count in counts]
        return processors.pad(ids) | {"pixel_values": pixels, "image_grid_thw": grids}

    # -- from features to the input of the language model

    def run_vision(self, model: PreTrainedModel, features: Features) -> VisionOutput | None:
        if "pixel_values" not in features:
            return None
        output = model.get_image_features(features["pixel_values"], features["image_grid_thw"], return_dict=True)
        deeper = getattr(output, "deepstack_features", None) or []
        return tuple(torch.cat(list(layer)) for layer in (output.pooler_output, *deeper))

    def read_content(self, model: PreTrainedModel, features: Features, vision: VisionOutput | None) -> Content:
        # Compute positions per batch: given only embeddings, a Qwen model reuses those of its last image.
        ids, mask_BL = features["input_ids"], features["attention_mask"]
        embeds_BLD = model.get_input_embeddings()(ids)
        if "image_grid_thw" not in features:
            positions = (mask_BL.cumsum(-1) - 1).clamp(min=0)
            return Content(embeds_BLD, mask_BL, positions.expand(3, *positions.shape))
        is_visual = ids == model.config.image_token_id
        positions, _ = model.get_rope_index(
            ids, mm_token_type_ids=is_visual.int(), image_grid_thw=features["image_grid_thw"], attention_mask=mask_BL
        )
        assert vision is not None
        merged, *deeper = vision
        embeds_BLD = embeds_BLD.masked_scatter(is_visual[..., None], merged.to(embeds_BLD.dtype))
        flags = {"visual_pos_masks": is_visual} if deeper else {}
        more = {"deepstack_visual_embeds": deeper} if deeper else {}
        return Content(embeds_BLD, mask_BL, positions, flags, more)

    # -- serving

    def write_processors(self, processors: Processors, folder: Path, visual_tokens: int) -> None:
        processors.image.size = image_size(processors.image, visual_tokens)
        processors.save(folder)
        video = read_json(folder / "preprocessor_config.json")
        video.pop("image_processor_type", None)
        write_json(folder / "video_preprocessor_config.json", video | {"video_processor_type": self.video_processor})

    def image_limits(self, processors: Processors, visual_tokens: int) -> dict[str, int]:
        factor = processors.image.patch_size * processors.image.merge_size
        return {"factor": factor, **image_size(processors.image, visual_tokens)}

    def served_pixels(self, **limits: int) -> int:
        return limits["longest_edge"]

    def fit_page(self, image: Image.Image, **limits: int) -> tuple[Image.Image, int]:
        """Resize a page as the image processor would, so that it does not resize again; count its visual tokens.

        limits: from `image_limits`: the minimum and maximum pixels, and the side of a visual token as `factor`.
        """
        factor, max_pixels = limits["factor"], limits["longest_edge"]
        image = limit_aspect(image, min(MAX_ASPECT, max_pixels // factor**2))
        height, width = smart_resize(image.height, image.width, factor, limits["shortest_edge"], max_pixels)
        if max(height, width) <= MAX_ASPECT * min(height, width):  # rounding may exceed the processor's limit
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return image, height * width // factor**2


class Qwen25VL(QwenVL):
    """Qwen2.5-VL, the paper's 3B backbone: the image enters at the first layer only."""

    name = "qwen2.5-vl"
    model_type = "qwen2_5_vl"
    video_processor = "Qwen2VLVideoProcessor"


class Qwen3VL(QwenVL):
    """Qwen3-VL, the paper's 4B backbone: the vision tower also feeds the first layers of the language model."""

    name = "qwen3-vl"
    model_type = "qwen3_vl"
    video_processor = "Qwen3VLVideoProcessor"
    # As Qwen3-VL-Embedding was trained: a chat up to the start of the answer, the instruction as system message. Its
    # vector is the state of the last token.
    templates: ClassVar = {
        "embedding": Template(
            page="<|im_start|>system\n{instruction}<|im_end|>\n"
            "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n",
            query="<|im_start|>system\n{instruction}<|im_end|>\n"
            "<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n",
            instruction="Represent the user's input.",
            closed=True,
        )
    }


class Qwen35(QwenVL):
    """Qwen3.5: prompt, image size and positions of Qwen3-VL; the image enters at the first layer only.

    Three of four layers are gated DeltaNet layers, which carry a state instead of attending. They are causal, so one
    pass is as exact as with attention. The state is a matrix and the last three inputs of a short convolution; left
    padding leaves both at zero: transformers zeroes the inputs of padded positions.
    """

    name = "qwen3.5"
    model_type = "qwen3_5"
    # In a DeltaNet layer `in_proj_qkv` projects query, key and value in one matrix, and `out_proj` corresponds to
    # o_proj: these two get the adapter. The output gate (in_proj_z) and the write and forget gates (in_proj_b,
    # in_proj_a) get none: they have no counterpart in the attention of the paper's backbones.
    lora_targets = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|in_proj_qkv|out_proj)"
    spare_weights = ("lm_head.", "mtp.")  # the head, and the multi-token prediction layer
    video_processor = "Qwen3VLVideoProcessor"
    kernels: ClassVar = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}
    cache_keeps_gradients = False  # transformers overwrites each state in place


def image_size(image_processor: Any, visual_tokens: int) -> dict[str, int]:
    """Return the minimum and maximum pixels of a page, under the image processor's names."""
    max_pixels = visual_tokens * (image_processor.patch_size * image_processor.merge_size) ** 2
    # At most a quarter: the processor rounds small images up, and must stay within the limit.
    min_pixels = min(image_processor.size["shortest_edge"], max_pixels // 4)
    return {"shortest_edge": min_pixels, "longest_edge": max_pixels}


class LinearPatches(nn.Module):
    """The patch embedding of a backbone as a matrix product.

    Its Conv3d has a stride equal to its kernel and gets patches already cut out, so it is a Linear. The convolution
    keeps its name, so that the names of weights do not change.
    """

    def __init__(self, proj: nn.Conv3d) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, patches: Tensor) -> Tensor:
        weight = self.proj.weight
        patches = patches.to(weight.dtype)
        if type(self.proj) is nn.Conv3d:
            return F.linear(patches, weight.flatten(1), self.proj.bias)
        adapted: Tensor = self.proj(patches.view(-1, *weight.shape[1:]))  # it has an adapter
        return adapted.flatten(1)
