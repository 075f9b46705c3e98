"""Load a backbone from files, or build one from a shape with random weights.

The backbone is the plain transformers model, so its checkpoint keys are those of the hub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_log

from ..errors import RandSlotError, UsageError, first_line
from ..files import read_json
from .families import FAMILIES
from .families.base import Backbone, Family
from .hub import SERVING, Source
from .preprocessing import Processors
from .slots import torch_seed


def make_tokenizer(special_tokens: Sequence[str], end_token: str, words: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Make a tokenizer of 256 bytes, special tokens (the padding token first), and lower-case words.

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
        raise RandSlotError(f"cannot load backbone {source.name}: {first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    unknown = sorted(key for key in report["unexpected_keys"] if not key.startswith(family.spare_weights))
    if missing:  # transformers would run with random ones
        raise RandSlotError(f"backbone {source.name} lacks {len(missing)} weights, such as {missing[0]}: get it again")
    if unknown:
        raise RandSlotError(f"backbone {source.name} has {len(unknown)} unknown weights, such as {unknown[0]}")
    # Loaded weights are memory-mapped at odd addresses, which selects other kernels with other last bits; and a model
    # saved over its own folder would overwrite the file it is mapped to.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return Backbone(family, family.prepare(model), load_processors(family, source), source)


def _find_family(source: Source) -> Family:
    name, file = source.name, Path(str(source.folder), "config.json")
    if file.with_name(SERVING).is_file():
        raise RandSlotError(
            f"{name} is an export for servers: name the original model, or the URL of a server that runs the export"
        )
    if not file.is_file():
        raise RandSlotError(f"no model in {name}: it has no {file.name}")
    config = read_json(file)
    if config.get("model_type") not in FAMILIES:
        raise RandSlotError(f"{name} is a {config.get('model_type')!r} model; RandSlot runs on {', '.join(FAMILIES)}")
    family = FAMILIES[config["model_type"]]
    if not config.get("text_config") and not config.keys() >= set(family.sizes):
        # transformers would fall back to its default sizes, and allocate a model of billions of weights
        raise RandSlotError(f"{file.name} of {name} lacks the sizes of its model ({', '.join(family.sizes)})")
    return family


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
    try:
        return family.load_processors(source)
    except RandSlotError:
        raise
    except Exception as error:  # their files can be broken in many ways
        message = first_line(error).rstrip(": ")
        raise RandSlotError(f"cannot load the tokenizer or image processor of {source.name}: {message}") from error


def build_backbone(
    shape: str,
    *,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> Backbone:
    """Build a backbone with random weights; `shape`: a name in `shapes/`, or the path of such a JSON file."""
    blueprint = _read_shape(shape)
    model_type = blueprint["config"].get("model_type")
    if model_type not in FAMILIES:
        raise UsageError(f"shape {shape} is of type {model_type!r}; RandSlot runs on {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    tokenizer = make_tokenizer(family.special_tokens, family.end_token, blueprint.get("words", "").split())
    config = family.make_config(blueprint, tokenizer)
    with torch_seed(seed), torch.device("meta" if device == "meta" else "cpu"):
        try:
            attention = attn_implementation or _default_attention(dtype)
            model = AutoModel.from_config(config, dtype=dtype or torch.float32, attn_implementation=attention)
        except (ValueError, ImportError) as error:
            raise UsageError(f"cannot build {shape}: {first_line(error)}") from error
    processors = Processors(tokenizer, family.make_image_processor(blueprint))
    return Backbone(family, family.prepare(model), processors, Source())


def find_shape(name: str) -> str | None:
    """Return the shape of a published backbone by its hub id or folder name; None if it is unknown."""
    words = [word for word in Path(name).name.lower().split("-") if word not in ("instruct", "embedding")]
    shape = "-".join(words)
    return shape if (resources.files(__package__) / "shapes" / f"{shape}.json").is_file() else None


def list_shapes() -> list[str]:
    """Return the names of all shapes in the package."""
    files = (resources.files(__package__) / "shapes").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def _read_shape(shape: str) -> dict[str, Any]:
    shapes = resources.files(__package__) / "shapes"
    file = Path(shape) if shape.endswith(".json") else Path(str(shapes / f"{shape}.json"))
    if not file.is_file():
        raise UsageError(f"unknown backbone shape {shape!r}; known ones: {', '.join(list_shapes())}, or a .json file")
    blueprint = read_json(file)
    if not isinstance(blueprint.get("config"), dict):
        raise UsageError(f"{file} is not a backbone shape: it needs config, and image_processor if it has one")
    return blueprint


def _default_attention(dtype: torch.dtype | None) -> str:
    """Choose flash attention 2 if it is installed and can run: on a GPU, in half precision."""
    half = dtype in (torch.float16, torch.bfloat16)
    return "flash_attention_2" if half and torch.cuda.is_available() and is_flash_attn_2_available() else "sdpa"
