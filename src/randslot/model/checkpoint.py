"""The files of a saved model: what `save_pretrained` writes and `load` reads, strictly.

randslot.json               settings, how many slots are stored, which backbone; of a student, whose vectors it makes
slots.safetensors           the weights of the strategy, if it has any (of fixed and learned slots: their tables)
head.safetensors            of a student: the projection to the dimension of its teacher, if that is another
adapter_model.safetensors   with an adapter: it alone, as PEFT writes it, and adapter_config.json
model.safetensors           without one: all weights, as transformers writes them, and config.json
backbone/                   with an adapter on a backbone that was built in memory: its weights
tokenizer and image processor files
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers.multi_vector_encoder.model_card import MultiVectorEncoderModelCardData
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import RandSlotError, UsageError, first_line
from ..files import read_json
from .backbone import bars_in_terminals, load_backbone, load_processors
from .families.base import Backbone
from .hub import Source, find
from .reader import SIDES, Identity, Side, find_teacher, read_identity
from .slots import seeded

TAGS = ["sentence-transformers", "multi-vector", "late-interaction", "visual-document-retrieval", "randslot"]


@dataclass
class RandSlotCard(MultiVectorEncoderModelCardData):
    """Facts about a RandSlot model, shown through `model_card.md`.

    It replaces sentence-transformers' own card, whose usage example encodes text as documents.
    """

    tags: list[str] = field(default_factory=lambda: list(TAGS))
    trained_on: str = ""  # what a run of ours says of itself
    template_path: Path = field(default=Path(__file__).with_name("model_card.md"), init=False, repr=False)

    def run_usage_snippet(self) -> None:
        """Run nothing: the card's example is fixed."""
        self.usage_examples: list[Any] = []

    def set_losses(self, losses: list[Any]) -> None:
        """Name no loss by its class."""

    def set_widget_examples(self, dataset: Any) -> None:
        """Take no examples: they would be decoded pages."""

    def extract_dataset_metadata(
        self, dataset: Any, dataset_metadata: list[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Note the number of pairs only: statistics would encode queries as pages."""
        return [{"name": "Pairs of query and page", "size": len(dataset)}] if dataset else dataset_metadata

    def get_default_model_name(self) -> str:
        return "RandSlot model"

    def get_model_specific_metadata(self) -> dict[str, Any]:
        encoder = self.model[0]  # also of a plain MultiVectorEncoder
        metadata: dict[str, Any] = super().get_model_specific_metadata()
        return metadata | {
            "settings": encoder.get_config_dict(),
            "teacher": _describe_teacher(find_teacher(encoder)),
            "trained_on": self.trained_on,
            "family": encoder.family.name,
            "backbone": _short(encoder.source.name),
            "revision": encoder.source.revision or "not recorded",
        }


def _describe_teacher(teacher: Identity | None) -> str:
    return f"{_short(teacher.name)} (weights {teacher.weights})" if teacher else ""


def _short(name: str | None) -> str:
    """Return a backbone's name as a card shows it: no folders of this machine."""
    return "built in memory" if name is None else Path(name).name if Path(name).is_absolute() else name


FORMAT = 1
CONFIG = "randslot.json"
SLOTS = "slots.safetensors"
HEAD = "head.safetensors"
TEACHER = "teacher"  # in randslot.json
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
INNER_BACKBONE = "backbone"
PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Saved:
    """What a model folder holds: a backbone with its adapter, settings, slot counts and the strategy's weights.

    teacher, head: of a student, whose vectors it makes, and the weights of its projection.
    """

    backbone: Backbone
    settings: dict[str, Any]
    rows: dict[Side, int]
    tables: dict[str, Tensor]
    teacher: Identity | None
    head: dict[str, Tensor]


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether a PEFT adapter sits in this backbone."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def add_adapter(backbone: Backbone, config: PeftConfig, seed: int) -> Backbone:
    """Put a fresh adapter into the backbone, the same for the same seed, trainable in float32.

    Errors: UsageError if the adapter fits nothing in this backbone.
    """
    if not isinstance(config, PeftConfig):
        raise UsageError(f"lora takes True, False or a PEFT config, not {config!r}")
    if has_adapter(backbone.model):
        raise RandSlotError("this model has an adapter already; leave lora out to go on with it")
    bare = dict(backbone.model.state_dict()) if backbone.source.folder is None else {}
    try:
        with seeded(seed):
            backbone.model.add_adapter(config)
    except Exception as error:  # whatever PEFT does not like about it
        raise UsageError(f"cannot add this adapter: {first_line(error)}") from error
    for parameter in backbone.model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()
    return replace(backbone, bare=bare)


def merge_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Add the adapter of a backbone to its weights, in place; without one nothing changes.

    Errors: RandSlotError for weights that are not finite.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            try:
                module.merge(safe_merge=True)
            except ValueError as error:  # what PEFT says of weights that are not finite
                raise RandSlotError(f"cannot merge the adapter at {name}: {first_line(error)}") from error
            model.set_submodule(name, module.get_base_layer())
    if has_adapter(model):  # it is a model like any other now, also when it is saved
        model._hf_peft_config_loaded = False
        del model.peft_config
    return model


def save_files(
    path: Path, backbone: Backbone, values: dict[str, Any], rows: dict[Side, int], weights: dict[str, dict[str, Tensor]]
) -> None:
    """Write a model's files into a folder that exists; what an earlier model left there is replaced.

    values: settings, and of a student its teacher. weights: all but the backbone's, by the names of their files.
    """
    adapter = has_adapter(backbone.model)
    home = backbone.source
    if adapter and home.folder == path.resolve():
        raise RandSlotError(f"{path} holds the backbone of this adapter: save the model into another folder")
    named = adapter and not _is_inner(home)
    _clear(path, keep=home.folder)
    if adapter:
        _save_adapter(backbone, path, home.name if named else None)
    else:
        _save_weights(backbone, path)
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


def save_backbone(backbone: Backbone, path: Path) -> None:
    """Write a backbone without an adapter as an ordinary model folder: any strategy can be trained on it."""
    _save_weights(backbone, path)
    backbone.processors.save(path)
    share_weights(path, "config.json")


def share_weights(path: Path, like: str) -> None:
    """Give the weights in a folder the rights of another file there: safetensors leaves them to their owner alone."""
    for file in path.rglob("*.safetensors"):
        shutil.copymode(path / like, file)


def _save_weights(backbone: Backbone, path: Path) -> None:
    with bars_in_terminals():
        backbone.model.save_pretrained(path)


def _clear(path: Path, keep: Path | None) -> None:
    """Take away the weights of an earlier model, but not those that this one still needs."""
    for pattern in (CONFIG, SLOTS, HEAD, ADAPTER, ADAPTER_CONFIG, "config.json", "model*.safetensors", "*.index.json"):
        for file in path.glob(pattern):
            file.unlink()
    if (path / INNER_BACKBONE / "config.json").is_file() and keep != (path / INNER_BACKBONE).resolve():
        shutil.rmtree(path / INNER_BACKBONE)


def _is_inner(source: Source) -> bool:
    """Whether a backbone has no home of its own: built in memory, or kept inside a saved model."""
    return source.folder is None or (source.folder.name == INNER_BACKBONE and (source.folder.parent / CONFIG).is_file())


def _save_adapter(backbone: Backbone, path: Path, base: str | None) -> None:
    """Save the adapter as PEFT does, and below it a backbone that has no home of its own (no `base` name)."""
    (name,) = backbone.model.peft_config
    config = backbone.model.peft_config[name]
    config.base_model_name_or_path = base or INNER_BACKBONE
    config.save_pretrained(path)
    weights = {PEFT_PREFIX + key: value.contiguous() for key, value in _adapter_weights(backbone.model).items()}
    save_file(weights, path / ADAPTER, metadata={"format": "pt"})
    if base is None:
        _save_inner_backbone(backbone, path / INNER_BACKBONE)


def _save_inner_backbone(backbone: Backbone, path: Path) -> None:
    folder = backbone.source.folder
    if folder == path.resolve():
        return
    if folder is not None:
        shutil.copytree(folder, path)
        return
    if not backbone.bare:
        raise RandSlotError("the weights below this adapter are nowhere on disk: add it with lora=, not add_adapter")
    path.mkdir()
    weights = {key: value.contiguous() for key, value in backbone.bare.items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    backbone.model.config.save_pretrained(path)
    backbone.processors.save(path)


def _adapter_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    # Left to itself, PEFT asks the hub whether the vocabulary was changed.
    (name,) = model.peft_config
    weights: dict[str, Tensor] = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return weights


def is_saved_model(source: Source) -> bool:
    """Whether this folder holds a saved RandSlot model, not a bare backbone."""
    return _file(source, CONFIG).is_file()


def read_files(
    source: Source,
    *,
    backbone: str | Path | None = None,
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
) -> Saved:
    """Read a saved model; `backbone` says where its backbone is, if it has moved.

    Errors: RandSlotError in one line if a file is missing or broken, or does not fit the backbone.
    """
    config = _read_config(source)
    place = _find_backbone(source, config, backbone)
    parts = load_backbone(place, dtype=dtype, attn_implementation=attn_implementation)
    family = config["backbone"]["family"]
    if parts.family.name != family:
        found = parts.family.name
        raise RandSlotError(f"{source.name} was trained on a {family} backbone, but {place.name} is {found}")
    if config["adapter"]:
        parts = replace(parts, processors=load_processors(parts.family, source))
        _load_adapter(parts, source)
    settings = {key: config[key] for key in config.keys() - {"format", "stored", "adapter", "backbone", TEACHER}}
    tables = _read_tensors(source, SLOTS) if _file(source, SLOTS).is_file() else {}
    head = _read_tensors(source, HEAD) if _file(source, HEAD).is_file() else {}
    return Saved(parts, settings, config["stored"], tables, _read_teacher(source, config), head)


def _read_teacher(source: Source, config: dict[str, Any]) -> Identity | None:
    if TEACHER not in config:
        return None
    try:
        return read_identity(config[TEACHER])
    except (KeyError, TypeError, AttributeError) as error:
        raise RandSlotError(f"{_file(source, CONFIG)} does not say whose student the model is: {error}") from error


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
        return find(reference["name"], reference["revision"] if reference["revision"] else None)
    except RandSlotError as error:
        raise RandSlotError(f"{source.name} needs its backbone: {error} (backbone= names another place)") from error


def _read_config(source: Source) -> dict[str, Any]:
    path = _file(source, CONFIG)
    if not path.is_file():
        raise RandSlotError(f"{source.name} is not a saved RandSlot model: it has no {CONFIG}")
    config = read_json(path)
    if config.get("format") != FORMAT:
        raise RandSlotError(f"{path} has format {config.get('format')!r}, but this version of randslot reads {FORMAT}")
    if missing := sorted({"stored", "adapter", "backbone"} - config.keys()):
        raise RandSlotError(f"{path} lacks {', '.join(missing)}")
    stored, reference = config["stored"], config["backbone"]
    counts = [stored.get(side) for side in SIDES] if isinstance(stored, dict) else []
    if not counts or any(type(count) is not int or count < 0 for count in counts):
        raise RandSlotError(f"{path}: stored must count the slots of query and page, not {stored!r}")
    if not isinstance(reference, dict) or not {"family", "name", "revision"} <= reference.keys():
        raise RandSlotError(f"{path}: backbone must have family, name and revision, not {reference!r}")
    return config


def _load_adapter(backbone: Backbone, source: Source) -> None:
    if not _file(source, ADAPTER_CONFIG).is_file():
        raise RandSlotError(f"{source.name} lacks {ADAPTER_CONFIG}")
    try:
        config = PeftConfig.from_pretrained(str(source.folder))
    except Exception as error:  # PEFT reads this file with many kinds of error
        raise RandSlotError(f"{source.name} has a broken {ADAPTER_CONFIG}: {first_line(error)}") from error
    config.inference_mode = False
    weights = {key.removeprefix(PEFT_PREFIX): tensor for key, tensor in _read_tensors(source, ADAPTER).items()}
    add_adapter(backbone, config, seed=0)
    check_fit(f"adapter of {source.name}", weights, _adapter_weights(backbone.model))
    set_peft_model_state_dict(backbone.model, weights)


def _read_tensors(source: Source, filename: str) -> dict[str, Tensor]:
    path = _file(source, filename)
    if not path.is_file():
        raise RandSlotError(f"{source.name} lacks {filename}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise RandSlotError(f"{path} is not a valid safetensors file: {first_line(error)}") from error


def _file(source: Source, filename: str) -> Path:
    return Path(str(source.folder), filename)


def check_fit(what: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Fail unless both have the same keys and shapes: a key that is skipped would leave random weights."""
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
