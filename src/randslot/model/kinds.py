"""What a folder of model files is: a RandSlot model, a backbone, one of sentence-transformers, or something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from ..errors import RandSlotError, first_line
from ..files import read_json
from .checkpoint import ADAPTER_CONFIG, CONFIG
from .families import list_families
from .hub import SERVING, Source, find

Kind = Literal["randslot", "backbone", "multi-vector", "one-vector"]

MODULES = "modules.json"  # what makes a folder one of sentence-transformers
ST_CONFIG = "config_sentence_transformers.json"
LFS = b"version https://git-lfs"  # how a file begins that Git left on its server
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# What sentence-transformers calls its models; those of before have no name, and PyLate's are of several vectors.
KINDS: dict[str, Kind] = {
    "SentenceTransformer": "one-vector",
    "MultiVectorEncoder": "multi-vector",
    "ColBERT": "multi-vector",
}
PYLATE = ("query_prefix", "document_prefix", "query_length", "do_query_expansion")


def find_kind(source: Source) -> Kind:
    """Return what the folder of a source holds.

    Errors: RandSlotError in one line that says what it is, if it cannot be run here.
    """
    folder = Path(str(source.folder))
    if (folder / CONFIG).is_file():
        return "randslot"
    if (folder / MODULES).is_file():
        return _find_st_kind(source, folder)
    if (folder / ADAPTER_CONFIG).is_file():
        return _find_adapter_kind(source)
    if (folder / SERVING).is_file() or not (folder / "config.json").is_file():
        return _refuse(source, folder)
    config = read_json(folder / "config.json")
    if is_retriever(config):
        return "multi-vector"
    if config.get("model_type") in list_families():
        return "backbone"
    raise RandSlotError(
        f"{source.name} is a {config.get('model_type')!r} model without vectors for search: RandSlot runs models of "
        f"sentence-transformers, which have a {MODULES}, and is trained on {', '.join(list_families())}"
    )


def is_retriever(config: dict[str, Any]) -> bool:
    """Whether transformers or Stanford's ColBERT has made this model for late interaction, projection and all."""
    names = config.get("architectures") or []
    return any(str(name).endswith("ForRetrieval") or name == "HF_ColBERT" for name in names)


def _find_st_kind(source: Source, folder: Path) -> Kind:
    config = read_json(folder / ST_CONFIG) if (folder / ST_CONFIG).is_file() else {}
    name = config.get("model_type") or "SentenceTransformer"
    if name == "SentenceTransformer" and any(key in config for key in PYLATE):
        name = "ColBERT"
    if name not in KINDS:
        raise RandSlotError(f"{source.name} is a {name}, which has no vectors of pages that MaxSim could compare")
    return KINDS[name]


def _find_adapter_kind(source: Source) -> Kind:
    """An adapter without modules is what its base is: only a model for late interaction needs nothing else."""
    base = read_adapter_base(source)
    try:
        place = find(base, files=("config.json",))
    except RandSlotError as error:
        raise RandSlotError(f"{source.name} is an adapter and needs its base: {error}") from error
    config = Path(str(place.folder), "config.json")
    if config.is_file() and is_retriever(read_json(config)):
        return "multi-vector"
    raise RandSlotError(
        f"{source.name} is an adapter for {base} without a {MODULES}, as colpali-engine saves them: name a version "
        "that sentence-transformers loads, such as one that ends in -hf or -merged"
    )


def read_adapter_base(source: Source) -> str:
    """Return the name of the model that an adapter is for.

    Errors: RandSlotError if the adapter does not say.
    """
    base = read_json(Path(str(source.folder), ADAPTER_CONFIG)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise RandSlotError(f"{source.name} is an adapter, and its {ADAPTER_CONFIG} names no base model")
    return base


def _refuse(source: Source, folder: Path) -> Kind:
    """Say what a folder without a configuration is."""
    if (folder / SERVING).is_file():
        raise RandSlotError(
            f"{source.name} is an export for servers: name the model that it was made from, or the URL of a server "
            "that runs it (in Python randslot.remote)"
        )
    for pattern, what in (("*.gguf", "a GGUF file, for llama.cpp"), ("*.onnx", "an ONNX file")):
        if any(folder.rglob(pattern)):
            raise RandSlotError(f"{source.name} holds {what}, and no model that transformers can load")
    raise RandSlotError(f"no model in {source.name}: it has no config.json and no {MODULES}")


# -- are the files whole?


def check_weights(source: Source) -> None:
    """Refuse weights that are missing, cut off, or pickles, before minutes are spent on loading them.

    Errors: RandSlotError in one line.
    """
    folder = Path(str(source.folder))
    for index in sorted(folder.rglob("*.safetensors.index.json")):
        named = set(read_json(index).get("weight_map", {}).values())
        missing = sorted(name for name in named if not (index.parent / str(name)).is_file())
        if missing:
            raise RandSlotError(f"{source.name} lacks {missing[0]}, one of {len(named)} files of weights: get it again")
    files = sorted(folder.rglob("*.safetensors"))
    for file in files:
        _check_file(source, file)
    if not files and (pickles := [file for pattern in PICKLES for file in sorted(folder.rglob(pattern))]):
        raise RandSlotError(
            f"{source.name} has its weights in {pickles[0].name}, a pickle, which can run code: convert it to "
            "safetensors"
        )
    if not files:
        raise RandSlotError(f"{source.name} has no weights: no .safetensors file is in it; get it again")


def _check_file(source: Source, file: Path) -> None:
    name = file.relative_to(str(source.folder)).as_posix()
    with file.open("rb") as content:
        if content.read(len(LFS)) == LFS:
            raise RandSlotError(f"{name} of {source.name} is a Git LFS pointer: git lfs pull gets the file itself")
    try:
        with safe_open(file, "pt") as tensors:
            tensors.keys()
    except (SafetensorError, OSError) as error:
        raise RandSlotError(f"{name} of {source.name} is cut off or broken: {first_line(error)}; get it again") from (
            error
        )
