"""What Qwen2.5-VL and Qwen3-VL have in common: prompt, image size, positions in three dimensions, the way to a server.

Shapes: B batch, L positions, D hidden dimension.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from ...errors import RandSlotError
from ...pages import limit_aspect, open_page
from ..content import Content
from ..hub import Source
from .base import Features, Processors, Seen, need_file
from .vision_model import VisionModel

IMAGE_TOKEN = "<|image_pad|>"
ASPECT = 200  # above 200:1 the image processor refuses a page


class QwenVL(VisionModel):
    """A vision-language model of Qwen: visual tokens stand among those of the text, placed in three dimensions."""

    # Appendix A of the paper, character for character. Its queries have no prompt at all.
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
        IMAGE_TOKEN,
        "<|video_pad|>",
    )
    end_token = "<|im_end|>"
    image_token = IMAGE_TOKEN
    export_example = """\
    image = image_processor(images, return_tensors="pt")
    counts = image["image_grid_thw"].prod(-1) // image_processor.merge_size**2
    prompts = [serving["page_prompt"].replace("<|image_pad|>", "<|image_pad|>" * num) for num in counts.tolist()]"""
    # Servers load it along with the image processor; without its name one family would get that of the other.
    video_processor: ClassVar[str]

    # -- making a backbone

    def load_image_processor(self, source: Source) -> Any:
        # A processor that was saved as a whole keeps its image settings in processor_config.json.
        need_file(source, "preprocessor_config.json", "processor_config.json")
        return Qwen2VLImageProcessorPil.from_pretrained(source.folder, local_files_only=True)

    def make_image_processor(self, shape: dict[str, Any]) -> Any:
        return Qwen2VLImageProcessorPil(**shape["image_processor"])

    def token_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        return {
            **super().token_ids(tokenizer),
            "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
            "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        }

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        proj = model.visual.patch_embed.proj
        if tuple(proj.stride) != tuple(proj.kernel_size) or any(proj.padding):
            raise RandSlotError("this backbone's patch embedding overlaps, which no known Qwen-VL model does")
        model.visual.patch_embed = LinearPatches(proj)
        return model

    # -- from pages to features

    def page_pixels(self, processors: Processors, num_tokens: int) -> int:
        return image_size(processors.image, num_tokens)["longest_edge"]

    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> Image.Image:
        image = open_page(page, self.page_pixels(processors, num_tokens))
        return limit_aspect(image, longest_aspect(num_tokens))

    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        size = image_size(processors.image, num_tokens)
        seen = processors.image(list(pages), size=size, return_tensors="pt")
        before, after = processors.tokenize(processors.template.page_prompt.split(IMAGE_TOKEN))
        image_token = processors.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        counts = (seen["image_grid_thw"].prod(-1) // processors.image.merge_size**2).tolist()
        first, last = processors.closing_tokens()
        ids = [first + before + [image_token] * count + after + last for count in counts]
        return processors.pad(ids) | {"pixel_values": seen["pixel_values"], "image_grid_thw": seen["image_grid_thw"]}

    def page_grid(self, processors: Processors, features: Features) -> tuple[int, int] | None:
        _, rows, columns = features["image_grid_thw"][0].tolist()
        return rows // processors.image.merge_size, columns // processors.image.merge_size

    # -- from features to states

    def see(self, model: PreTrainedModel, features: Features) -> Seen | None:
        if "pixel_values" not in features:
            return None
        seen = model.get_image_features(features["pixel_values"], features["image_grid_thw"], return_dict=True)
        deeper = getattr(seen, "deepstack_features", None) or []
        return Seen(tuple(torch.cat(list(layer)) for layer in (seen.pooler_output, *deeper)))

    def vision_parts(self, model: PreTrainedModel) -> list[nn.Module]:
        return [model.visual]

    def read_content(self, model: PreTrainedModel, features: Features, seen: Seen | None = None) -> Content:
        """Embed tokens and page images, and place them.

        Positions are computed here for every batch: given only embeddings, a Qwen model reuses those of its last image.
        """
        ids, mask_BL = features["input_ids"], features["attention_mask"]
        embeds_BLD = model.get_input_embeddings()(ids)
        if "image_grid_thw" not in features:
            positions = (mask_BL.cumsum(-1) - 1).clamp(min=0)
            return Content(embeds_BLD, mask_BL, positions.expand(3, *positions.shape))
        is_visual = ids == model.config.image_token_id
        positions, _ = model.get_rope_index(
            ids, mm_token_type_ids=is_visual.int(), image_grid_thw=features["image_grid_thw"], attention_mask=mask_BL
        )
        assert seen is not None, "pages are looked at before they are placed"
        merged, *deeper = seen.layers
        embeds_BLD = embeds_BLD.masked_scatter(is_visual[..., None], merged.to(embeds_BLD.dtype))
        flags = {"visual_pos_masks": is_visual} if deeper else {}
        more = {"deepstack_visual_embeds": deeper} if deeper else {}
        return Content(embeds_BLD, mask_BL, positions, flags, more)

    def language_model(self, model: PreTrainedModel) -> Any:
        return model.language_model

    # -- serving

    def write_processors(self, processors: Processors, folder: Path, visual_tokens: int) -> None:
        processors.image.size = image_size(processors.image, visual_tokens)
        processors.save(folder)
        image = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
        video = {key: value for key, value in image.items() if key != "image_processor_type"}
        video["video_processor_type"] = self.video_processor
        file = folder / "video_preprocessor_config.json"
        file.write_text(json.dumps(video, indent=2) + "\n", encoding="utf-8")

    def image_limits(self, processors: Processors, visual_tokens: int) -> dict[str, int]:
        factor = processors.image.patch_size * processors.image.merge_size
        return {"factor": factor, **image_size(processors.image, visual_tokens)}

    def served_pixels(self, **limits: int) -> int:
        return limits["longest_edge"]

    def fit_page(self, image: Image.Image, **limits: int) -> tuple[Image.Image, int]:
        """Resize a page as the image processor would, so that it has nothing left to resize; count its visual tokens.

        limits: as `image_limits` gave them. The edges are numbers of pixels, as the image processor calls them, and
        `factor` is the side of a visual token.
        """
        factor, most = limits["factor"], limits["longest_edge"]
        image = limit_aspect(image, longest_aspect(most // factor**2))
        height, width = smart_resize(image.height, image.width, factor, limits["shortest_edge"], most)
        if max(height, width) <= ASPECT * min(height, width):  # else rounding led beyond what the processor takes
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return image, height * width // factor**2


def longest_aspect(visual_tokens: int) -> int:
    """Return how much longer than wide a page may be: beyond 1:visual_tokens it would take more tokens than that."""
    return min(ASPECT, visual_tokens)


def image_size(image_processor: Any, visual_tokens: int) -> dict[str, int]:
    """Return the least and most pixels of a page, as the image processor calls them."""
    most = visual_tokens * (image_processor.patch_size * image_processor.merge_size) ** 2
    # A quarter at the most: the processor rounds small images up, and must stay within the limit all the same.
    least = min(image_processor.size["shortest_edge"], most // 4)
    return {"shortest_edge": least, "longest_edge": most}


class LinearPatches(nn.Module):
    """The patch embedding of a backbone as a matrix product.

    Its Conv3d has a stride equal to its kernel and gets patches already cut out, so it is a Linear. The convolution
    stays below under its own name: weights are stored, loaded and saved as before.
    """

    def __init__(self, proj: nn.Conv3d) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, patches: Tensor) -> Tensor:
        weight = self.proj.weight
        patches = patches.to(weight.dtype)
        if type(self.proj) is nn.Conv3d:
            return F.linear(patches, weight.flatten(1), self.proj.bias)
        adapted: Tensor = self.proj(patches.view(-1, *weight.shape[1:]))  # an adapter sits on it
        return adapted.flatten(1)
