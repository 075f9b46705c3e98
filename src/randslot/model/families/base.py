"""The interface of a family of backbones: everything that differs between architectures.

Shapes: B batch, L positions, D hidden dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig
from PIL import Image
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...errors import UsageError
from ...files import read_json
from ..hub import Source
from ..preprocessing import Features, Processors, Template
from ..reader import Reads
from ..readout import Content

# The output of a vision tower for some pages: merged visual tokens, then inputs of deeper layers, each (tokens, D).
VisionOutput = tuple[Tensor, ...]


class Family(ABC):
    """A family of backbones, without state: the model and its processors are passed in. The defaults are for text.

    name: as users write it. model_type: as in config.json. reads: whether it takes the image or the text of a page.
    page_prompt: the prompt around a page in the paper's template. templates: other templates, by name.
    lora_targets: a regular expression of the modules that the paper's adapter is on.
    special_tokens, end_token: for a tokenizer made in code, the padding token first.
    image_token: the token in the page prompt that visual tokens replace.
    kernels: packages of fast GPU kernels, by module; without them transformers falls back to plain torch.
    spare_weights: prefixes of weights to ignore.
    vision_modules: the vision tower and its connector in the backbone. language_module: its language model; empty if
    the backbone is the language model. cache_keeps_gradients: whether gradients can flow through its cache.
    guide: the guide of an export. export_example: Python code in it that makes `image` and `prompts`.

    `num_tokens` in its methods is the maximum number of tokens per page: `visual_tokens` or `text_tokens`.
    """

    name: ClassVar[str]
    model_type: ClassVar[str]
    reads: ClassVar[Reads] = "image"
    page_prompt: ClassVar[str] = ""
    templates: ClassVar[Mapping[str, Template]] = {}
    lora_targets: ClassVar[str]
    special_tokens: ClassVar[tuple[str, ...]]
    end_token: ClassVar[str]
    image_token: ClassVar[str] = ""
    kernels: ClassVar[Mapping[str, str]] = {}
    spare_weights: ClassVar[tuple[str, ...]] = ("lm_head.",)
    vision_modules: ClassVar[tuple[str, ...]] = ()
    language_module: ClassVar[str] = ""
    cache_keeps_gradients: ClassVar[bool] = True
    guide: ClassVar[str] = "serving.md"
    export_example: ClassVar[str] = ""

    def __repr__(self) -> str:
        return self.name

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the page prompt of the paper's template, which may depend on the tokenizer."""
        return self.page_prompt

    # -- making a backbone

    def load_processors(self, source: Source) -> Processors:
        """Load tokenizer and image processor from a folder, without running code found there."""
        require_file(source, "tokenizer_config.json")
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
        return Processors(tokenizer, self.load_image_processor(source))

    def load_image_processor(self, source: Source) -> Any:
        """Load the image processor, if the family has one."""
        return None

    def make_image_processor(self, shape: dict[str, Any]) -> Any:
        """Build the image processor of a shape, if the family has one."""
        return None

    def make_config(self, shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """Build the configuration of a shape, for this tokenizer."""
        options = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": None}
        return AutoConfig.for_model(**(options | shape["config"]))

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a model ready for use, with the same weights under the same names."""
        return model

    def make_lora(self, rank: int = 16, alpha: int = 32, dropout: float = 0.05) -> LoraConfig:
        """Return the paper's adapter on the q, k, v and o projections of the language model."""
        return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=self.lora_targets)

    # -- from pages to features

    def min_tokens(self, processors: Processors) -> int:
        """Return the smallest possible limit of visual tokens."""
        return 1

    def page_pixels(self, processors: Processors, num_tokens: int) -> int:
        """Return the maximum number of pixels that the model uses of a page image; 0 if it reads text."""
        return 0

    @abstractmethod
    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> Image.Image | str:
        """Open a page as an RGB image or a text, for `preprocess_pages`."""

    @abstractmethod
    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        """Turn opened pages into left-padded features."""

    def join_pages(self, processors: Processors, parts: Sequence[Features]) -> Features:
        """Join the features of pages that were preprocessed one by one into a left-padded batch."""
        joined = processors.pad([part["input_ids"][0].tolist() for part in parts])
        for name in parts[0].keys() - joined.keys():
            joined[name] = torch.cat([part[name] for part in parts])
        return joined

    # -- from features to the input of the language model

    def run_vision(self, model: PreTrainedModel, features: Features) -> VisionOutput | None:
        """Run the vision tower over the pages in the features; None if there are no images."""
        return None

    def read_content(self, model: PreTrainedModel, features: Features, vision: VisionOutput | None) -> Content:
        """Embed left-padded features and compute their positions."""
        mask_BL = features["attention_mask"]
        embeds_BLD = model.get_input_embeddings()(features["input_ids"])
        return Content(embeds_BLD, mask_BL, (mask_BL.cumsum(-1) - 1).clamp(min=0))

    # -- serving

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """Build the full model with a language head, as servers run it, for an export."""
        raise UsageError(
            f"a {self.name} model cannot be exported: no known server returns the states of all its tokens"
        )

    def write_processors(self, processors: Processors, folder: Path, visual_tokens: int) -> None:
        """Write processors into an export, in the servers' format."""
        processors.save(folder)

    def image_limits(self, processors: Processors, visual_tokens: int) -> dict[str, int]:
        """Return the limits of images in an exported model."""
        return {}


class VisionFamily(Family):
    """A family that reads the image of a page."""

    def make_config(self, shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        options = dict(shape["config"])
        options["text_config"] = {"vocab_size": len(tokenizer)} | options["text_config"]
        options["text_config"] |= {"bos_token_id": None, "eos_token_id": None}
        return AutoConfig.for_model(**(options | self.token_ids(tokenizer)))

    def token_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        """Return the token ids in a configuration of this family."""
        return {"image_token_id": tokenizer.convert_tokens_to_ids(self.image_token)}

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        return AutoModelForImageTextToText.from_config(config)

    @abstractmethod
    def served_pixels(self, **limits: int) -> int:
        """Return the maximum number of pixels that an exported model uses of a page image."""

    @abstractmethod
    def fit_page(self, image: Image.Image, **limits: int) -> tuple[Image.Image, int]:
        """Resize a page as the server of an exported model would, and count its visual tokens."""


def require_file(source: Source, *names: str) -> None:
    """Raise RandSlotError if a folder has none of these files, or an invalid one."""
    read_json(next((source.file(name) for name in names if source.file(name).is_file()), source.file(names[0])))
