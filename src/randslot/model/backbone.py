"""A backbone: loaded from files, or built from a shape with random weights.

The backbone is the plain transformers model, so its checkpoint keys match the hub's.
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
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_log

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json
from .families import FAMILIES
from .families.base import Family, VisionOutput
from .hub import SERVING, Source
from .preprocessing import Features, Processors
from .readout import Content
from .slots import torch_seed


@dataclass(frozen=True)
class Backbone:
    """A loaded or built model of a family, with its processors."""

    family: Family
    model: PreTrainedModel
    processors: Processors
    source: Source
    bare: dict[str, Tensor] = field(default_factory=dict)  # weights without the adapter, if they are not in a folder

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
        assert self.vision_parts, f"a {self.family} model has no vision tower to freeze"
        self.vision_parts.requires_grad_(False)

    def run_vision(self, features: Features) -> VisionOutput | None:
        """Run the vision tower over the pages in the features, without gradients if it is frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.vision_is_frozen):
            return self.family.run_vision(self.model, features)

    def read_content(self, features: Features, vision: VisionOutput | None = None) -> Content:
        """Embed left-padded features; `vision`: a cached output of the vision tower for them."""
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


def make_tokenizer(special_tokens: Sequence[str], end_token: str, words: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Build a tokenizer of 256 bytes, special tokens (the padding token first), and lower-case words.

    With words, it lower-cases its input.
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
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=special_tokens[0], eos_token=end_token, padding_side="left"
    )


def load_backbone(
    source: Source, *, dtype: torch.dtype | None = None, attn_implementation: str | None = None
) -> Backbone:
    """Load a backbone from a folder, without running code found there."""
    family = _find_family(source)
    with in_one_line(f"load backbone {source.name}"), bars_in_terminals():
        model, report = AutoModel.from_pretrained(
            source.folder,
            dtype=dtype,
            attn_implementation=attn_implementation or _default_attention(dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    missing = sorted(report["missing_keys"])  # transformers would initialise them at random
    unexpected = sorted(key for key in report["unexpected_keys"] if not key.startswith(family.spare_weights))
    if missing or unexpected:
        raise RandSlotError(
            f"backbone {source.name} has {len(missing)} missing and {len(unexpected)} unexpected weights, such as "
            f"{(missing + unexpected)[0]}. Download it again."
        )
    # Copy weights out of the memory-mapped file: at unaligned addresses, other kernels round differently; and saving
    # a model over its own folder would overwrite the mapped file.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return Backbone(family, family.prepare(model), load_processors(family, source), source)


def _find_family(source: Source) -> Family:
    """Return the backbone family that config.json in a folder names."""
    name, file = source.name, source.file("config.json")
    if file.with_name(SERVING).is_file():
        raise RandSlotError(
            f"{name} is an export for servers. Pass the original model, or the URL of a server that runs it."
        )
    if not file.is_file():
        raise RandSlotError(f"no model in {name}: it has no {file.name}")
    config = read_json(file)
    if config.get("model_type") not in FAMILIES:
        raise RandSlotError(f"{name} is a {config.get('model_type')!r} model; RandSlot runs on {', '.join(FAMILIES)}")
    return FAMILIES[config["model_type"]]


@contextmanager
def bars_in_terminals() -> Iterator[None]:
    """Show the progress bars of transformers in terminals only."""
    shown = transformers_log.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        transformers_log.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_log.enable_progress_bar()


def load_processors(family: Family, source: Source) -> Processors:
    """Load tokenizer and image processor from a folder; RandSlotError if a file is missing or broken."""
    with in_one_line(f"load the tokenizer or image processor of {source.name}"):
        return family.load_processors(source)


def build_backbone(
    shape: str,
    *,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> Backbone:
    """Build a backbone with random weights.

    shape: a name in `shapes/`, or the path of such a JSON file or of a transformers config.json.
    """
    file = Path(shape if shape.endswith(".json") else str(resources.files(__package__) / "shapes" / f"{shape}.json"))
    if not file.is_file():
        raise UsageError(f"unknown backbone shape {shape!r}; known ones: {', '.join(list_shapes())}, or a .json file")
    blueprint = read_json(file)
    if "model_type" in blueprint:
        with in_one_line(f"read {file}", UsageError):
            blueprint = {"config": AutoConfig.from_pretrained(file.parent, local_files_only=True).to_dict()}
    with in_one_line(f"read shape {shape}", UsageError, f": its config needs a model_type of {', '.join(FAMILIES)}"):
        family = FAMILIES[blueprint["config"]["model_type"]]
    tokenizer = make_tokenizer(family.special_tokens, family.end_token, blueprint.get("words", "").split())
    config = family.make_config(blueprint, tokenizer)
    attention = attn_implementation or _default_attention(dtype)
    with (
        torch_seed(seed),
        torch.device("meta" if device == "meta" else "cpu"),
        in_one_line(f"build {shape}", UsageError),
    ):
        model = AutoModel.from_config(config, dtype=dtype or torch.float32, attn_implementation=attention)
    processors = Processors(tokenizer, family.make_image_processor(blueprint))
    return Backbone(family, family.prepare(model), processors, Source())


def list_shapes() -> list[str]:
    """Return the names of all shapes in the package."""
    files = (resources.files(__package__) / "shapes").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def _default_attention(dtype: torch.dtype | None) -> str:
    """Choose flash attention 2 if it is installed and can run: on a GPU, in half precision."""
    half = dtype in (torch.float16, torch.bfloat16)
    return "flash_attention_2" if half and torch.cuda.is_available() and is_flash_attn_2_available() else "sdpa"
