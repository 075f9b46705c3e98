"""SmolVLM (256M, 500M), which transformers calls idefics3: a page is cut into tiles, each an image.

Shapes: B batch, T tiles, L positions, D hidden dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, Idefics3ImageProcessorPil, PreTrainedModel
from transformers.image_utils import SizeDict

from ...files import write_json
from ...pages import open_page
from ..hub import Source
from ..preprocessing import Features, Processors
from ..readout import Content
from .base import VisionFamily, VisionOutput, require_file

AROUND_TILES = "<fake_token_around_image>"
MAX_SIDE = 6  # the tokenizer has names for tiles up to <row_6_col_6>


class SmolVLM(VisionFamily):
    """SmolVLM: the tiles of a page row by row, each after its name, then a thumbnail of the page."""

    name = "smolvlm"
    model_type = "idefics3"
    # The paper's prompt in the format of this family: a user turn opens with "User:" and ends with <end_of_utterance>,
    # where Qwen has "user\n" and <|im_end|>. <|endoftext|> is a token of both.
    page_prompt = "<|im_start|>User:<image>Describe the image.<end_of_utterance><|endoftext|>"
    lora_targets = r".*text_model.*\.(q_proj|k_proj|v_proj|o_proj)"
    special_tokens = (
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_start|>",
        "<end_of_utterance>",
        AROUND_TILES,
        "<global-img>",
        "<image>",
        *(f"<row_{row}_col_{column}>" for row in range(1, MAX_SIDE + 1) for column in range(1, MAX_SIDE + 1)),
    )
    end_token = "<end_of_utterance>"
    image_token = "<image>"
    vision_modules = ("vision_model", "connector")
    language_module = "text_model"

    # -- making a backbone

    def load_image_processor(self, source: Source) -> Any:
        require_file(source, "preprocessor_config.json", "processor_config.json")
        processor = Idefics3ImageProcessorPil.from_pretrained(source.folder, local_files_only=True)
        if source.file("config.json").is_file():  # a saved adapter has no config.json, but this number
            config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
            processor.tokens_per_tile = count_tokens(processor, config.vision_config.patch_size, config.scale_factor)
        assert hasattr(processor, "tokens_per_tile"), "it lacks config.json, which says how many tokens a tile takes"
        return processor

    def make_image_processor(self, shape: dict[str, Any]) -> Any:
        config = shape["config"]
        tile = config["vision_config"].get("image_size")
        sides = {"max_image_size": {"longest_edge": tile}, "size": {"longest_edge": 4 * (tile or 0)}}
        processor = Idefics3ImageProcessorPil(**shape.get("image_processor", sides))
        patch, scale = config["vision_config"]["patch_size"], config["scale_factor"]
        processor.tokens_per_tile = count_tokens(processor, patch, scale)
        return processor

    # -- from pages to features

    def min_tokens(self, processors: Processors) -> int:
        tokens: int = processors.image.tokens_per_tile
        return tokens

    def page_pixels(self, processors: Processors, num_tokens: int) -> int:
        return longest_edge(processors.image, num_tokens) ** 2

    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> Image.Image:
        return open_page(page, self.page_pixels(processors, num_tokens))

    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        images = processors.image(
            [[page] for page in pages],
            size={"longest_edge": longest_edge(processors.image, num_tokens)},
            return_row_col_info=True,
            do_image_splitting=True,
            return_tensors="pt",
        )
        texts, counts = [], []
        for (rows,), (columns,) in zip(images["rows"], images["cols"], strict=True):
            tiles = lay_out_tiles(rows, columns, processors.image.tokens_per_tile)
            texts.append(processors.template.page_prompt.replace(self.image_token, tiles))
            counts.append(rows * columns + 1)
        features = processors.pad(processors.tokenize(texts))
        return features | {"pixel_values": images["pixel_values"], "num_tiles": torch.tensor(counts)}

    def join_pages(self, processors: Processors, parts: Sequence[Features]) -> Features:
        max_tiles = max(part["pixel_values"].shape[1] for part in parts)
        padded = []
        for part in parts:
            pixels = part["pixel_values"]  # (1, T, 3, height, width)
            missing = max_tiles - pixels.shape[1]
            padded.append({**part, "pixel_values": F.pad(pixels, (0, 0, 0, 0, 0, 0, 0, missing))})
        return super().join_pages(processors, padded)

    # -- from features to the input of the language model

    def run_vision(self, model: PreTrainedModel, features: Features) -> VisionOutput | None:
        if "pixel_values" not in features:
            return None
        # Count tiles: transformers treats an all-zero tile as padding, but a blank tile may be all zeros too.
        pixels = features["pixel_values"]  # (B, T, 3, height, width)
        numbers = torch.arange(pixels.shape[1], device=pixels.device)
        tiles: Tensor = pixels[numbers < features["num_tiles"][:, None]]
        hidden = model.vision_model(pixel_values=tiles.to(model.dtype)).last_hidden_state
        return (model.connector(hidden).flatten(0, 1),)

    def read_content(self, model: PreTrainedModel, features: Features, vision: VisionOutput | None) -> Content:
        content = super().read_content(model, features, vision)
        if vision is None:
            return content
        is_visual = features["input_ids"] == model.config.image_token_id
        merged = vision[0].to(content.embeds_BLD.dtype)
        return replace(content, embeds_BLD=content.embeds_BLD.masked_scatter(is_visual[..., None], merged))

    # -- serving

    def write_processors(self, processors: Processors, folder: Path, visual_tokens: int) -> None:
        processors.image.size = {"longest_edge": longest_edge(processors.image, visual_tokens)}
        processors.save(folder)
        # Without this number, a server expects 169 tokens per tile.
        config = {"processor_class": "Idefics3Processor", "image_seq_len": processors.image.tokens_per_tile}
        write_json(folder / "processor_config.json", config)

    def image_limits(self, processors: Processors, visual_tokens: int) -> dict[str, int]:
        (blank_line,) = processors.tokenize(["\n\n"])
        return {
            "longest_edge": longest_edge(processors.image, visual_tokens),
            "tile": processors.image.max_image_size["longest_edge"],
            "tokens_per_tile": processors.image.tokens_per_tile,
            "blank_line": len(blank_line),  # one token or two
        }

    def served_pixels(self, **limits: int) -> int:
        return limits["longest_edge"] ** 2

    def fit_page(self, image: Image.Image, **limits: int) -> tuple[Image.Image, int]:
        """Resize a page as the image processor would before tiling; count its tokens, including tile names."""
        tile, tokens = limits["tile"], limits["tokens_per_tile"]
        processor = Idefics3ImageProcessorPil()
        pixels = processor.resize(np.asarray(image).transpose(2, 0, 1), SizeDict(longest_edge=limits["longest_edge"]))
        pixels = processor.resize_for_vision_encoder(pixels, tile, processor.resample)
        rows, columns = pixels.shape[1] // tile, pixels.shape[2] // tile
        fitted, whole = Image.fromarray(pixels.transpose(1, 2, 0)), tokens + 3
        if rows == columns == 1:
            return fitted, whole
        return fitted, rows * (columns * (tokens + 2) + 1) + limits["blank_line"] - 1 + whole

    export_example = """\
    image = image_processor([[image] for image in images], return_row_col_info=True, return_tensors="pt")
    prompts = []
    for (rows,), (columns,) in zip(image.pop("rows"), image.pop("cols")):
        tiles = [f"<row_{row}_col_{column}>" for row in range(1, rows + 1) for column in range(1, columns + 1)]
        text = ""
        for number, tile in enumerate(tiles, 1):
            text += "<fake_token_around_image>" + tile + "<image>" * model.model.image_seq_len
            text += "\\n" * (number % columns == 0) + "\\n" * (number == len(tiles))
        text += "<fake_token_around_image><global-img>" + "<image>" * model.model.image_seq_len
        prompts.append(serving["page_prompt"].replace("<image>", text + "<fake_token_around_image>"))"""


def count_tokens(image_processor: Any, patch: int, scale: int) -> int:
    """Return the visual tokens of a tile, each merged from `scale` x `scale` patches."""
    return int(image_processor.max_image_size["longest_edge"] // patch // scale) ** 2


def longest_edge(image_processor: Any, visual_tokens: int) -> int:
    """Return the longer side of a page in pixels: as many tiles as a square page may have within its limit.

    The processor scales every page to this side, small ones too, and widens the other side to whole tiles.
    """
    tile: int = image_processor.max_image_size["longest_edge"]
    side: int = min(image_processor.size["longest_edge"] // tile, MAX_SIDE)
    while side > 1 and (side * side + 1) * image_processor.tokens_per_tile > visual_tokens:
        side -= 1
    return side * tile


def lay_out_tiles(rows: int, columns: int, tokens_per_tile: int) -> str:
    """Return the text that replaces an image: its tiles by rows, then the whole page (only that if 0 x 0)."""
    image = "<image>" * tokens_per_tile
    text = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            text += f"{AROUND_TILES}<row_{row}_col_{column}>{image}"
        text += "\n"
    if rows:
        text += "\n"
    return f"{text}{AROUND_TILES}<global-img>{image}{AROUND_TILES}"
