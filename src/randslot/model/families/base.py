"""The interface of a family of backbones: everything that differs from one architecture to the next.

Shapes: B batch, L positions, D hidden dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig
from PIL import Image
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...errors import RandSlotError, UsageError
from ...files import read_json
from ..hub import Source
from ..preprocessing import PAPER, Features, Processors, Template
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
    kernels: packages that make it fast on a GPU, by module; without them transformers falls back to plain torch.
    sizes: required keys of a config.json without text_config. spare_weights: prefixes of weights that are ignored.
    vision_modules: the vision tower and its connector in the backbone. language_module: its language model; empty if
    the backbone is the language model. cache_keeps_gradients: whether gradients can flow through its cache.
    guide: the guide that goes with an export. export_example: its Python code that makes `image` and `prompts`.

    `num_tokens` in its methods is the most tokens that a page may take: `visual_tokens` or `text_tokens`.
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
    sizes: ClassVar[tuple[str, ...]] = ("hidden_size", "num_hidden_layers")
    spare_weights: ClassVar[tuple[str, ...]] = ("lm_head.",)
    vision_modules: ClassVar[tuple[str, ...]] = ()
    language_module: ClassVar[str] = ""
    cache_keeps_gradients: ClassVar[bool] = True
    guide: ClassVar[str] = "serving.md"
    export_example: ClassVar[str] = ""

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        """A family equals its name."""
        return other == self.name if isinstance(other, str) else self is other

    def __hash__(self) -> int:
        return hash(self.name)

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the page prompt of the paper's template, which may depend on the tokenizer."""
        return self.page_prompt

    def find_template(self, name: str, tokenizer: PreTrainedTokenizerBase) -> Template:
        """Return a template by its name."""
        known = {PAPER: Template(self.prompt(tokenizer)), **self.templates}
        if name not in known:
            raise UsageError(f"template={name!r} is not one of a {self.name} model: {', '.join(known)}")
        return known[name]

    # -- making a backbone

    def load_processors(self, source: Source) -> Processors:
        """Load tokenizer and image processor from a folder, without running code found there."""
        need_file(source, "tokenizer_config.json")
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
        return Processors(tokenizer, self.load_image_processor(source))

    def load_image_processor(self, source: Source) -> Any:
        """Load the image processor, if the family has one."""
        return None

    def make_image_processor(self, shape: dict[str, Any]) -> Any:
        """Make the image processor of a shape, if the family has one."""
        return None

    def make_config(self, shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """Make the configuration of a shape, for this tokenizer."""
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
        """Return the most pixels of a page image that the model uses; 0 if it reads text."""
        return 0

    @abstractmethod
    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> Image.Image | str:
        """Open a page as an RGB image or a text, as `preprocess_pages` takes it."""

    @abstractmethod
    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        """Turn opened pages into left-padded features."""

    def join_pages(self, processors: Processors, parts: Sequence[Features]) -> Features:
        """Join the features of pages that were preprocessed one by one into a left-padded batch."""
        joined = processors.pad([part["input_ids"][0].tolist() for part in parts])
        for name in parts[0].keys() - joined.keys():
            joined[name] = torch.cat([part[name] for part in parts])
        return joined

    def page_grid(self, processors: Processors, features: Features) -> tuple[int, int] | None:
        """Return the rows and columns of visual tokens of the first page; None if it has no grid."""
        return None

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
        """Return the whole model with a language head, as servers run it, for an export."""
        raise UsageError(f"a {self.name} model cannot be exported: no known server gives the states of all its tokens")

    def write_processors(self, processors: Processors, folder: Path, visual_tokens: int) -> None:
        """Write processors into an export, as a server reads them."""
        processors.save(folder)

    def image_limits(self, processors: Processors, visual_tokens: int) -> dict[str, int]:
        """Return the limits of an exported model, for `served_pixels` and `fit_page`."""
        return {}

    def served_pixels(self, **limits: int) -> int:
        """Return the most pixels of a page image that an exported model uses."""
        raise NotImplementedError(self.name)

    def fit_page(self, image: Image.Image, **limits: int) -> tuple[Image.Image, int]:
        """Resize a page as the server of an exported model would, and count the tokens of its image there."""
        raise NotImplementedError(self.name)


class VisionFamily(Family):
    """A family that reads the image of a page."""

    def make_config(self, shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        options = dict(shape["config"])
        options["text_config"] = {"vocab_size": len(tokenizer)} | options["text_config"]
        options["text_config"] |= {"bos_token_id": None, "eos_token_id": None}
        return AutoConfig.for_model(**options, **self.token_ids(tokenizer))

    def token_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        """Return the token ids in a configuration of this family."""
        return {"image_token_id": tokenizer.convert_tokens_to_ids(self.image_token)}

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        return AutoModelForImageTextToText.from_config(config)


@dataclass(frozen=True)
class Backbone:
    """A loaded or built model of a family, with its processors."""

    family: Family
    model: PreTrainedModel
    processors: Processors
    source: Source
    bare: dict[str, Tensor] = field(default_factory=dict)  # weights under an adapter, if they are in no folder

    @property
    def language_model(self) -> nn.Module:
        """The language model inside the backbone."""
        found: nn.Module = self.model.get_submodule(self.family.language_module)
        return found

    @property
    def vision_parts(self) -> nn.ModuleList:
        """The vision tower and its connector; empty in a model that reads text."""
        return nn.ModuleList(self.model.get_submodule(name) for name in self.family.vision_modules)

    @property
    def vision_is_frozen(self) -> bool:
        """Whether there is a vision tower without trainable weights."""
        parts = self.vision_parts
        return len(parts) > 0 and not any(weight.requires_grad for weight in parts.parameters())

    def freeze_vision(self) -> None:
        """Exclude the vision tower from training."""
        if not self.vision_parts:
            raise UsageError(f"a {self.family} model has no vision tower to freeze")
        self.vision_parts.requires_grad_(False)

    def run_vision(self, features: Features) -> VisionOutput | None:
        """Run the vision tower over the pages in the features, without gradients if it is frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.vision_is_frozen):
            return self.family.run_vision(self.model, features)

    def read_content(self, features: Features, vision: VisionOutput | None = None) -> Content:
        """Embed left-padded features; `vision`: an earlier output of the vision tower for them."""
        return self.family.read_content(self.model, features, vision or self.run_vision(features))

    def run(self, content: Content, cache: Any = None, use_cache: bool = False) -> tuple[Tensor, Any]:
        """Run the language model and return its last hidden states (B, L, D) and its cache."""
        output = self.language_model(
            inputs_embeds=content.embeds_BLD,
            attention_mask=content.mask_BL,
            position_ids=content.positions,
            past_key_values=cache,
            use_cache=use_cache,
            **content.flags,
            **content.more,
        )
        return output.last_hidden_state, output.past_key_values

    def checkpoint_layers(self) -> None:
        """Turn gradient checkpointing on."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        # transformers makes the inputs of all parts of an adapted model require gradients, which only reentrant
        # checkpointing needs. Here it would send gradients through frozen weights, such as the whole vision tower.
        self.model.disable_input_require_grads()


def need_file(source: Source, *names: str) -> None:
    """Refuse a folder that has none of these files, or an invalid one."""
    for name in names:
        file = Path(str(source.folder), name)
        if file.is_file():
            read_json(file)
            return
    raise RandSlotError(f"{source.name} lacks {names[0]}")
