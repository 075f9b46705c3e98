"""Save and load model checkpoints; loading is strict: a wrong key or shape is an error.

randslot.json               settings, number of stored slots, the backbone; the teacher of a student
slots.safetensors           the weights of the strategy, if it has any (the tables of fixed and learned slots)
head.safetensors            the projection of a student to the dimension of its teacher, if they differ
adapter_model.safetensors   with an adapter: the adapter in PEFT's format, and adapter_config.json
model.safetensors           without one: all weights in the format of transformers, and config.json
backbone/                   with an adapter on a backbone built in memory: its weights
tokenizer and image processor files
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from sentence_transformers.multi_vector_encoder.model_card import MultiVectorEncoderModelCardData
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json
from .backbone import Backbone, bars_in_terminals, load_backbone, load_processors
from .hub import Source, resolve
from .reader import SIDES, Side, find_teacher, read_identity
from .slots import torch_seed

FORMAT = 1
CONFIG = "randslot.json"
SLOTS = "slots.safetensors"
HEAD = "head.safetensors"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
INNER_BACKBONE = "backbone"
PEFT_PREFIX = "base_model.model."


# -- adapters


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether a backbone has a PEFT adapter."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def add_adapter(backbone: Backbone, config: PeftConfig, seed: int) -> Backbone:
    """Add a new adapter to the backbone, trainable in float32; UsageError if it does not fit."""
    bare = dict(backbone.model.state_dict()) if backbone.source.folder is None else {}
    with in_one_line(f"add adapter {str(config)[:80]}", UsageError), torch_seed(seed):
        backbone.model.add_adapter(config)
    for parameter in backbone.model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()
    return replace(backbone, bare=bare)


def merge_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Merge the adapter of a backbone, if any, into its weights in place; RandSlotError if they are not finite."""
    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            with in_one_line(f"merge the adapter at {name}"):
                module.merge(safe_merge=True)
            model.set_submodule(name, module.get_base_layer())
    if has_adapter(model):  # save it without an adapter from now on
        model._hf_peft_config_loaded = False
        del model.peft_config
    return model


def _adapter_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    (name,) = model.peft_config
    # By default PEFT asks the hub whether the vocabulary was resized.
    weights: dict[str, Tensor] = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return weights


# -- writing


def save_files(
    path: Path, backbone: Backbone, values: dict[str, Any], rows: dict[Side, int], weights: dict[str, dict[str, Tensor]]
) -> None:
    """Write a model into an existing folder, replacing an earlier model there.

    values: the settings, and the teacher of a student. weights: those outside the backbone, by file name.
    """
    home, adapter = backbone.source, has_adapter(backbone.model)
    if adapter and home.folder == path.resolve():
        raise RandSlotError(f"{path} holds the backbone of this adapter. Save the model into another folder.")
    # A backbone built in memory, or stored inside a saved model, has no name to refer to: save it with the adapter.
    inner = home.folder is None or (home.folder.name == INNER_BACKBONE and (home.folder.parent / CONFIG).is_file())
    named = adapter and not inner
    _clear(path, keep=home.folder)
    if adapter:
        _save_adapter(backbone, path, home.name if named else None)
    else:
        with bars_in_terminals():
            backbone.model.save_pretrained(path)
    backbone.processors.save(path)
    for name, tensors in weights.items():
        if tensors:
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path / name)
    reference = {
        "family": backbone.family.name,
        "name": home.name if named else None,
        "revision": home.revision if named else None,
    }
    config = {"format": FORMAT, **values, "stored": rows, "adapter": adapter, "backbone": reference}
    (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    share_weights(path, CONFIG)


def hash_weights(weights: Mapping[str, Tensor], *more: bytes) -> str:
    """Return a hash of named weights and other bytes that vectors depend on."""
    digest = blake2b(digest_size=12)
    for name, tensor in sorted(weights.items()):
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    for part in more:
        digest.update(part)
    return digest.hexdigest()


def share_weights(path: Path, like: str) -> None:
    """Copy the permissions of another file to weight files, which safetensors makes readable by the owner only."""
    for file in path.rglob("*.safetensors"):
        shutil.copymode(path / like, file)


def _clear(path: Path, keep: Path | None) -> None:
    """Remove an earlier model, but keep the inner backbone if this model still needs it."""
    for pattern in (CONFIG, SLOTS, HEAD, ADAPTER, ADAPTER_CONFIG, "config.json", "model*.safetensors", "*.index.json"):
        for file in path.glob(pattern):
            file.unlink()
    if (path / INNER_BACKBONE / "config.json").is_file() and keep != (path / INNER_BACKBONE).resolve():
        shutil.rmtree(path / INNER_BACKBONE)


def _save_adapter(backbone: Backbone, path: Path, base: str | None) -> None:
    """Save the adapter in PEFT's format, and a backbone without a name in a subfolder."""
    (name,) = backbone.model.peft_config
    config = backbone.model.peft_config[name]
    config.base_model_name_or_path = base or INNER_BACKBONE
    config.save_pretrained(path)
    weights = {PEFT_PREFIX + key: value.contiguous() for key, value in _adapter_weights(backbone.model).items()}
    save_file(weights, path / ADAPTER, metadata={"format": "pt"})
    folder, inner = backbone.source.folder, path / INNER_BACKBONE
    if base is not None or folder == inner.resolve():
        return
    if folder is not None:
        shutil.copytree(folder, inner)
        return
    assert backbone.bare, "an adapter on a backbone built in memory is added with lora="
    inner.mkdir()
    weights = {key: value.contiguous() for key, value in backbone.bare.items()}
    save_file(weights, inner / "model.safetensors", metadata={"format": "pt"})
    backbone.model.config.save_pretrained(inner)
    backbone.processors.save(inner)


# -- reading


def is_saved_model(source: Source) -> bool:
    """Whether a folder holds a saved RandSlot model, not a bare backbone."""
    return source.file(CONFIG).is_file()


def read_files(
    source: Source,
    *,
    backbone: str | Path | None = None,
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> tuple[Backbone, dict[str, Any]]:
    """Read the backbone of a saved model with its adapter, and randslot.json; `backbone`: its new path, if moved."""
    config = _read_config(source)
    name, revision = config["backbone"]["name"], config["backbone"]["revision"]
    place = source
    if config["adapter"] and backbone is not None:
        place = resolve(backbone)
    elif config["adapter"] and name is None:
        place = Source(source.name, source.revision, source.file(INNER_BACKBONE))
    elif config["adapter"]:
        try:
            place = resolve(name, revision or None)
        except RandSlotError as error:
            raise RandSlotError(f"{source.name} needs its backbone: {error} (or pass backbone=)") from error
    parts = load_backbone(place, dtype=dtype, attn_implementation=attn_implementation)
    family = config["backbone"]["family"]
    if parts.family.name != family:
        raise RandSlotError(f"{source.name} was trained on a {family} backbone, but {place.name} is {parts.family}")
    if config["adapter"]:
        parts = replace(parts, processors=load_processors(parts.family, source))
        with in_one_line(f"read {ADAPTER_CONFIG} of {source.name}"):
            adapter = PeftConfig.from_pretrained(str(source.folder))
        adapter.inference_mode = False
        add_adapter(parts, adapter, seed=0)
        weights = {key.removeprefix(PEFT_PREFIX): one for key, one in read_tensors(source.file(ADAPTER)).items()}
        check_fit(f"adapter of {source.name}", weights, _adapter_weights(parts.model))
        set_peft_model_state_dict(parts.model, weights)
    return parts, config


def _read_config(source: Source) -> dict[str, Any]:
    """Read and check randslot.json; its teacher is an `Identity`."""
    path = source.file(CONFIG)
    config = read_json(path)
    with in_one_line(f"read {path}"):
        if config["format"] != FORMAT:
            raise ValueError(f"it has format {config['format']!r}, but this version of randslot reads {FORMAT}")
        config["stored"] = {side: int(config["stored"][side]) for side in SIDES}
        _ = config["adapter"], [config["backbone"][key] for key in ("family", "name", "revision")]
        if "teacher" in config:
            config["teacher"] = read_identity(config["teacher"])
    return config


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; return {} if it does not exist."""
    with in_one_line(f"read {path}"):
        return load_file(path) if path.is_file() else {}


def check_fit(what: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise RandSlotError for missing or extra keys, or other shapes: a skipped key would leave random weights."""
    for key in sorted(found.keys() | expected.keys()):
        has, needs = (f"shape {tuple(part[key].shape)}" if key in part else "no weight" for part in (found, expected))
        if has != needs:
            raise RandSlotError(f"{what}: {key} has {has}, but this backbone and budget need {needs}")


# -- the model card


@dataclass
class RandSlotCard(MultiVectorEncoderModelCardData):
    """The data of `model_card.md`, which replaces sentence-transformers' card: its example encodes text documents."""

    tags: list[str] = field(
        default_factory=lambda: (
            ["sentence-transformers", "multi-vector", "late-interaction", "visual-document-retrieval", "randslot"]
        )
    )
    trained_on: str = ""  # a description of the training run
    template_path: Path = field(default=Path(__file__).with_name("model_card.md"), init=False, repr=False)

    def run_usage_snippet(self) -> None:
        """Run nothing: the example is fixed."""
        self.usage_examples: list[Any] = []

    def set_losses(self, losses: list[Any]) -> None:
        """Omit the class names of losses."""

    def set_widget_examples(self, dataset: Any) -> None:
        """Omit examples: they would be decoded pages."""

    def extract_dataset_metadata(
        self, dataset: Any, dataset_metadata: list[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Record the number of pairs only: sentence-transformers' statistics would encode queries as pages."""
        return [{"name": "Pairs of query and page", "size": len(dataset)}] if dataset else dataset_metadata

    def get_default_model_name(self) -> str:
        return "RandSlot model"

    def get_model_specific_metadata(self) -> dict[str, Any]:
        encoder = self.model[0]  # also of a plain MultiVectorEncoder
        teacher = find_teacher(encoder)
        metadata: dict[str, Any] = super().get_model_specific_metadata()
        return metadata | {
            "settings": encoder.get_config_dict(),
            "teacher": f"{_short_name(teacher.name)} (weights {teacher.weights})" if teacher else "",
            "trained_on": self.trained_on,
            "family": encoder.family.name,
            "backbone": _short_name(encoder.source.name),
            "revision": encoder.source.revision or "not recorded",
        }


def _short_name(name: str | None) -> str:
    """Return a name without local folders."""
    return "built in memory" if name is None else Path(name).name if Path(name).is_absolute() else name
