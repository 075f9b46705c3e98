"""The files of a saved model: what `save_pretrained` writes and `load` reads, strictly.

randslot.json               settings, stored slots, which backbone
slots.safetensors           the slot tables (fixed and learned strategies only)
adapter_model.safetensors   with LoRA: the adapter alone, as PEFT writes it, and adapter_config.json
model.safetensors           without LoRA: all weights, as transformers writes them, and config.json
backbone/                   with LoRA on a backbone that was built in memory: its weights
tokenizer and preprocessor files
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from .backbone import Backbone, load_backbone
from .encoder import Settings, SlotEncoder
from .errors import RandSlotError, UsageError
from .hub import Source, find, first_line
from .slots import Table

FORMAT = 1
CONFIG = "randslot.json"
SLOTS = "slots.safetensors"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
INNER_BACKBONE = "backbone"
PEFT_PREFIX = "base_model.model."


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether a PEFT adapter sits in this backbone."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def add_adapter(model: PreTrainedModel, config: PeftConfig, seed: int) -> None:
    """Put a fresh adapter into the backbone, the same for the same seed, trainable in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(config)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


def save_encoder(encoder: SlotEncoder, folder: str) -> None:
    """Write an encoder's files into a folder that exists; what an earlier model left there is replaced."""
    path = Path(folder)
    adapter = has_adapter(encoder.backbone)
    home = encoder.source
    if adapter and home.folder == path.resolve():
        raise RandSlotError(f"{folder} holds the backbone of this adapter: save the model into another folder")
    for stale in (SLOTS, ADAPTER, ADAPTER_CONFIG):
        (path / stale).unlink(missing_ok=True)
    if adapter:
        _save_adapter(encoder, path)
    else:
        encoder.backbone.save_pretrained(path)
    encoder.tokenizer.save_pretrained(path)
    encoder.image_processor.save_pretrained(path)
    if isinstance(encoder.slots, Table):
        tables = {name: tensor.contiguous() for name, tensor in encoder.slots.state_dict().items()}
        save_file(tables, path / SLOTS)
    reference = {
        "family": encoder.family,
        "name": home.name if adapter else None,
        "revision": home.revision if adapter else None,
    }
    config = {
        "format": FORMAT,
        **asdict(encoder.settings),
        "stored": encoder.rows,
        "adapter": adapter,
        "backbone": reference,
    }
    (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _save_adapter(encoder: SlotEncoder, path: Path) -> None:
    """Save the adapter as PEFT does, and below it a backbone that was built in memory and is nowhere else."""
    config = encoder.backbone.peft_config["default"]
    config.base_model_name_or_path = encoder.source.name or INNER_BACKBONE
    config.save_pretrained(path)
    weights = {PEFT_PREFIX + key: tensor.contiguous() for key, tensor in _adapter_weights(encoder.backbone).items()}
    save_file(weights, path / ADAPTER, metadata={"format": "pt"})
    if encoder.source.name is None:
        _save_bare_backbone(encoder, path / INNER_BACKBONE)


def _save_bare_backbone(encoder: SlotEncoder, path: Path) -> None:
    """Save the backbone without its adapter, under the keys that it has without one."""
    path.mkdir(exist_ok=True)
    adapted = _adapter_weights(encoder.backbone)
    weights = {
        key.replace(".base_layer.", "."): tensor.contiguous()
        for key, tensor in encoder.backbone.state_dict().items()
        if key.replace(".default.", ".") not in adapted
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    for part in (encoder.backbone.config, encoder.tokenizer, encoder.image_processor):
        part.save_pretrained(path)


def _adapter_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    # Left to itself, PEFT asks the hub whether the vocabulary was changed.
    weights: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return weights


def is_saved_model(source: Source) -> bool:
    """Whether this folder holds a saved RandSlot model, not a bare backbone."""
    return _file(source, CONFIG).is_file()


def load_encoder(
    source: Source,
    *,
    changes: dict[str, Any] | None = None,
    backbone: str | Path | None = None,
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> SlotEncoder:
    """Load a saved encoder; `changes` override its saved settings, `backbone` where its backbone is.

    Errors: RandSlotError in one line if a file is missing or broken, or does not fit the backbone.
    """
    config = _read_config(source)
    found = _find_backbone(source, config, backbone)
    parts = load_backbone(found, dtype=dtype, attn_implementation=attn_implementation)
    family = config["backbone"]["family"]
    if parts.family != family:
        raise RandSlotError(f"{source.name} was trained on a {family} backbone, but {found.name} is {parts.family}")
    if config["adapter"]:
        _load_adapter(parts.model, source)
        if found.folder == _file(source, INNER_BACKBONE):
            parts = replace(parts, source=Source())  # it has no home of its own: saving takes it along
    return _assemble(parts, config, changes or {}, source)


def _find_backbone(source: Source, config: dict[str, Any], backbone: str | Path | None) -> Source:
    reference = config["backbone"]
    if not config["adapter"]:
        if backbone is not None:
            raise UsageError(f"{source.name} holds all its weights: it needs no backbone={str(backbone)!r}")
        return source
    if backbone is not None:
        return find(backbone)
    if reference["name"] is None:
        return Source(source.name, source.revision, _file(source, INNER_BACKBONE))
    try:
        return find(reference["name"], reference["revision"])
    except RandSlotError as error:
        raise RandSlotError(f"{source.name} needs its backbone: {error} (backbone= names another place)") from error


def _assemble(parts: Backbone, config: dict[str, Any], changes: dict[str, Any], source: Source) -> SlotEncoder:
    saved = {key: config[key] for key in SlotEncoder.config_keys}
    if changes.get("slots", saved["slots"]) != saved["slots"]:
        raise UsageError(
            f"{source.name} was trained with slots={saved['slots']!r}; another strategy starts from the backbone, "
            "and inference= sets what is appended when encoding"
        )
    encoder = SlotEncoder(parts, Settings(**saved | changes), rows=config["stored"])
    if isinstance(encoder.slots, Table):
        tables = _read_tensors(source, SLOTS)
        _check_fit(f"slot tables of {source.name}", tables, encoder.slots.state_dict())
        encoder.slots.load_state_dict(tables)
    return encoder


def _read_config(source: Source) -> dict[str, Any]:
    path = _file(source, CONFIG)
    if not path.is_file():
        raise RandSlotError(f"{source.name} is not a saved RandSlot model: it has no {CONFIG}")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RandSlotError(f"{path} is not valid JSON: {first_line(error)}") from error
    if config.get("format") != FORMAT:
        raise RandSlotError(f"{path} has format {config.get('format')!r}, but this version of randslot reads {FORMAT}")
    wanted = {*SlotEncoder.config_keys, "stored", "adapter", "backbone"}
    if missing := sorted(wanted - config.keys()):
        raise RandSlotError(f"{path} lacks {', '.join(missing)}")
    return config


def _load_adapter(model: PreTrainedModel, source: Source) -> None:
    if not _file(source, ADAPTER_CONFIG).is_file():
        raise RandSlotError(f"{source.name} lacks {ADAPTER_CONFIG}")
    config = PeftConfig.from_pretrained(str(source.folder))
    config.inference_mode = False
    weights = {key.removeprefix(PEFT_PREFIX): tensor for key, tensor in _read_tensors(source, ADAPTER).items()}
    add_adapter(model, config, seed=0)
    _check_fit(f"adapter of {source.name}", weights, _adapter_weights(model))
    set_peft_model_state_dict(model, weights)


def _read_tensors(source: Source, filename: str) -> dict[str, Tensor]:
    path = _file(source, filename)
    if not path.is_file():
        raise RandSlotError(f"{source.name} lacks {filename}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise RandSlotError(f"{path} is not a valid safetensors file: {first_line(error)}") from error


def _file(source: Source, filename: str) -> Path:
    return Path(str(source.folder), filename)


def _check_fit(what: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Fail unless both have the same keys and shapes: a key that is passed over would leave random weights."""
    if missing := sorted(expected.keys() - found.keys()):
        raise RandSlotError(f"{what}: {len(missing)} weights are missing, such as {missing[0]}")
    if unexpected := sorted(found.keys() - expected.keys()):
        raise RandSlotError(f"{what}: {len(unexpected)} weights fit nothing here, such as {unexpected[0]}")
    for key in expected:
        if found[key].shape != expected[key].shape:
            raise RandSlotError(
                f"{what}: {key} has shape {tuple(found[key].shape)}, "
                f"but this backbone and budget need {tuple(expected[key].shape)}"
            )
