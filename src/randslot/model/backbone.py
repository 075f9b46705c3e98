"""The only file that knows Qwen2.5-VL and Qwen3-VL by name: loading, building, reading content, running.

The backbone is the plain transformers model, held as it is, so its checkpoint keys are those of the hub.

Shapes: B batch, L content tokens, S slots, D hidden dimension.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_log

from ..errors import RandSlotError, UsageError, first_line
from ..files import read_json
from ..samples.words import VOCABULARY
from .hub import Source
from .slots import seeded

FAMILIES = {"qwen2_5_vl": "qwen2.5-vl", "qwen3_vl": "qwen3-vl"}
# Servers load it along with the image processor; without its name one family would get that of the other.
VIDEO_PROCESSORS = {"qwen2.5-vl": "Qwen2VLVideoProcessor", "qwen3-vl": "Qwen3VLVideoProcessor"}

# Appendix A of the paper, character for character. Queries have no template at all.
PAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
IMAGE_TOKEN = "<|image_pad|>"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    IMAGE_TOKEN,
    "<|video_pad|>",
)
SERVING = "serving.json"  # what only an exported model has


@dataclass(frozen=True)
class Backbone:
    """A vision-language model with its tokenizer and image processor."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    image_processor: Qwen2VLImageProcessorPil
    source: Source
    bare: dict[str, Tensor] = field(default_factory=dict)  # weights below an adapter, where no folder has them

    @property
    def family(self) -> str:
        return FAMILIES[self.model.config.model_type]


def load_backbone(
    source: Source, *, dtype: torch.dtype | None = None, attn_implementation: str | None = None
) -> Backbone:
    """Load a backbone from the folder of a source, without running any code found there.

    Errors: RandSlotError in one line if it is of another family, lacks weights or has foreign ones, or is broken, or
    if it is an exported model, whose settings and slots would be lost.
    """
    name, file = source.name, Path(str(source.folder), "config.json")
    if file.with_name(SERVING).is_file():
        raise RandSlotError(
            f"{name} is an export for servers: name the model that it was made from, or the URL of a server that "
            "runs it (in Python randslot.remote)"
        )
    if not file.is_file():
        raise RandSlotError(f"no model in {name}: it has no {file.name}")
    family = read_json(file).get("model_type")
    if family not in FAMILIES:
        raise RandSlotError(f"{name} is a {family!r} model; RandSlot runs on {' and '.join(FAMILIES)}")
    try:
        with bars_in_terminals():
            model, report = AutoModel.from_pretrained(
                source.folder,
                dtype=dtype,
                attn_implementation=attn_implementation or _default_attention(dtype),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers and safetensors fail on broken files in many ways
        raise RandSlotError(f"cannot load backbone {name}: {first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise RandSlotError(
            f"backbone {name} lacks {len(missing)} weights, such as {missing[0]}: it would run with random ones; "
            "get it again"
        )
    # A language model head is the one thing that a backbone has beyond what is needed here.
    if foreign := sorted(key for key in report["unexpected_keys"] if not key.startswith("lm_head.")):
        raise RandSlotError(f"backbone {name} has {len(foreign)} weights that fit nothing here, such as {foreign[0]}")
    # Loaded weights still lie in the mapped file, at odd addresses: another kernel, other last bits, and a model that
    # is saved over its own folder would pull the ground from under itself.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return Backbone(_with_linear_patches(model), *load_processors(source), source)


@contextmanager
def bars_in_terminals() -> Iterator[None]:
    """Let transformers show its progress bars only where someone watches."""
    shown = transformers_log.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        transformers_log.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_log.enable_progress_bar()


def load_processors(source: Source) -> tuple[PreTrainedTokenizerBase, Qwen2VLImageProcessorPil]:
    """Load the tokenizer and the image processor from the folder of a source.

    Errors: RandSlotError in one line if one is missing or broken.
    """
    # A processor that was saved as a whole keeps its image settings in processor_config.json.
    for choices in (("tokenizer_config.json",), ("preprocessor_config.json", "processor_config.json")):
        files = [file for filename in choices if (file := Path(str(source.folder), filename)).is_file()]
        if not files:
            raise RandSlotError(f"{source.name} lacks {choices[0]}")
        read_json(files[0])
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
        image_processor = Qwen2VLImageProcessorPil.from_pretrained(source.folder, local_files_only=True)
    except Exception as error:  # their files can be broken in many ways
        message = first_line(error).rstrip(": ")
        raise RandSlotError(f"cannot load the tokenizer or image processor of {source.name}: {message}") from error
    return tokenizer, image_processor


def build_backbone(
    shape: str,
    *,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> Backbone:
    """Build a backbone with random weights, from the name of a shape in `backbones/` or the path of such a JSON."""
    blueprint = _read_shape(shape)
    tokenizer = make_tokenizer(VOCABULARY if blueprint.get("words") == "samples" else ())
    options = dict(blueprint["config"])
    token_ids = {
        "image_token_id": tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }
    options["text_config"] = {"vocab_size": len(tokenizer)} | options["text_config"]
    options["text_config"] |= {"bos_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(options.pop("model_type"), **options, **token_ids)
    with seeded(seed), torch.device("meta" if device == "meta" else "cpu"):
        try:
            attention = attn_implementation or _default_attention(dtype)
            model = AutoModel.from_config(config, dtype=dtype or torch.float32, attn_implementation=attention)
        except (ValueError, ImportError) as error:
            raise UsageError(f"cannot build {shape}: {first_line(error)}") from error
    image_processor = Qwen2VLImageProcessorPil(**blueprint["image_processor"])
    return Backbone(_with_linear_patches(model), tokenizer, image_processor, Source())


def _read_shape(shape: str) -> dict[str, Any]:
    shapes = resources.files("randslot") / "model" / "shapes"
    file = Path(shape) if shape.endswith(".json") else shapes / f"{shape}.json"
    if not file.is_file():
        known = ", ".join(sorted(f.name.removesuffix(".json") for f in shapes.iterdir() if f.name.endswith(".json")))
        raise UsageError(f"unknown backbone shape {shape!r}; known ones: {known}, or the path of a .json file")
    blueprint = read_json(Path(str(file)))
    if {"config", "image_processor"} - blueprint.keys():
        raise UsageError(f"{file} is no backbone shape: it needs config and image_processor")
    return blueprint


def make_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Make a tokenizer of 256 bytes, the special tokens that the prompts need, and one token for each of these words.

    It needs no file and no download. With words, which are lower case, it reads capitals as small letters.
    """
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = to_bytes
    if words:
        tokenizer.normalizer = normalizers.Lowercase()
        whole = pre_tokenizers.Split(Regex("[a-z]+"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([whole, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL_TOKENS[0], eos_token="<|im_end|>", padding_side="left"
    )


def default_lora(rank: int = 16, alpha: int = 32, dropout: float = 0.05) -> LoraConfig:
    """The paper's adapter: rank 16, alpha 32, dropout 0.05 on the language model's q, k, v and o projections."""
    targets = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj)"
    return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets)


def _default_attention(dtype: torch.dtype | None) -> str:
    """Choose flash attention 2 where it is installed and can run: on a GPU, in half precision."""
    half = dtype in (torch.float16, torch.bfloat16)
    return "flash_attention_2" if half and torch.cuda.is_available() and is_flash_attn_2_available() else "sdpa"


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


def _with_linear_patches(model: PreTrainedModel) -> PreTrainedModel:
    proj = model.visual.patch_embed.proj
    if tuple(proj.stride) != tuple(proj.kernel_size) or any(proj.padding):
        raise RandSlotError("this backbone's patch embedding overlaps, which no known Qwen-VL model does")
    model.visual.patch_embed = LinearPatches(proj)
    return model


def fit_page(image: Image.Image, factor: int, shortest_edge: int, longest_edge: int) -> tuple[Image.Image, int]:
    """Resize a page as the image processor would, so that it has nothing left to resize; count its visual tokens.

    The edges are numbers of pixels, as the image processor calls them, and `factor` is the side of a visual token.
    """
    height, width = smart_resize(image.height, image.width, factor, shortest_edge, longest_edge)
    if max(height, width) <= 200 * min(height, width):  # else rounding led beyond what the processor takes
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return image, height * width // factor**2


@dataclass(frozen=True)
class Content:
    """An input sequence before or after slots were appended: what the language model gets."""

    embeds_BLD: Tensor
    mask_BL: Tensor
    positions_3BL: Tensor
    visual: dict[str, Any] = field(default_factory=dict)  # where and what Qwen3-VL adds in its first layers

    def append(self, slots_BSD: Tensor) -> Content:
        """Return this content with slots behind it, at the positions that follow its last one."""
        num = slots_BSD.shape[1]
        steps = torch.arange(1, num + 1, device=self.mask_BL.device)
        visual = dict(self.visual)
        if visual:
            visual["visual_pos_masks"] = F.pad(visual["visual_pos_masks"], (0, num), value=False)
        return Content(
            torch.cat([self.embeds_BLD, slots_BSD.to(self.embeds_BLD.dtype)], dim=1),
            F.pad(self.mask_BL, (0, num), value=1),
            torch.cat([self.positions_3BL, self.positions_3BL[:, :, -1:] + steps], dim=2),
            visual,
        )

    def tail(self) -> Content:
        """Return only the last position, for a step whose earlier ones are in the cache."""
        return Content(self.embeds_BLD[:, -1:], self.mask_BL, self.positions_3BL[:, :, -1:])


def read_content(model: PreTrainedModel, features: dict[str, Tensor]) -> Content:
    """Embed the tokens and the page image of left-padded features, and place them.

    Positions are computed here for every batch: given only embeddings, a Qwen model reuses those of its last image.
    """
    ids, mask = features["input_ids"], features["attention_mask"]
    embeds = model.get_input_embeddings()(ids)
    if "pixel_values" not in features:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        return Content(embeds, mask, positions.expand(3, *positions.shape))
    grid = features["image_grid_thw"]
    is_visual = ids == model.config.image_token_id
    positions, _ = model.get_rope_index(
        ids, mm_token_type_ids=is_visual.int(), image_grid_thw=grid, attention_mask=mask
    )
    seen = model.get_image_features(features["pixel_values"], grid, return_dict=True)
    embeds = embeds.masked_scatter(is_visual[..., None], torch.cat(list(seen.pooler_output)).to(embeds.dtype))
    visual: dict[str, Any] = {}
    if deepstack := getattr(seen, "deepstack_features", None):
        layers: Sequence[Tensor] = [torch.cat(list(layer)) for layer in deepstack]
        visual = {"visual_pos_masks": is_visual, "deepstack_visual_embeds": layers}
    return Content(embeds, mask, positions, visual)


def run(model: PreTrainedModel, content: Content, cache: Any = None, use_cache: bool = False) -> tuple[Tensor, Any]:
    """Run the language model over a content and return its last hidden states (B, L, D) and its cache."""
    output = model.language_model(
        inputs_embeds=content.embeds_BLD,
        attention_mask=content.mask_BL,
        position_ids=content.positions_3BL,
        past_key_values=cache,
        use_cache=use_cache,
        **content.visual,
    )
    return output.last_hidden_state, output.past_key_values
