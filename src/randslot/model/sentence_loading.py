"""Loads a model of sentence-transformers from files that were looked at before: no pickles, no code unless trusted."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from transformers import ColModernVBertProcessor, PreTrainedModel, modeling_utils
from transformers.integrations import peft
from transformers.processing_utils import ProcessorMixin
from transformers.utils import logging as transformers_log

from ..errors import RandSlotError, UsageError, first_line
from ..files import data_folder, read_json, write_json
from .backbone import bars_in_terminals
from .checkpoint import ADAPTER_CONFIG, CONFIG
from .families import FAMILIES
from .hub import MODEL_FILES, SERVING, WITH_CODE, Source, find
from .reader import Reads
from .sentence_model import EmbeddingModel, EmbeddingSettings

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
    if config.get("model_type") in FAMILIES:
        return "backbone"
    raise RandSlotError(
        f"{source.name} is a {config.get('model_type')!r} model without vectors for search: RandSlot runs models of "
        f"sentence-transformers, which have a {MODULES}, and is trained on {', '.join(FAMILIES)}"
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


ST = "sentence_transformers"
TRUSTED = "trusted.json"  # the code that this user has trusted, by its hash


@contextmanager
def staged(source: Source, base: Source | None, *, code: bool) -> Iterator[Path]:
    """Give a folder with links to the files of a model, below it one of its base if it is an adapter."""
    with tempfile.TemporaryDirectory(prefix="randslot-model-") as root:
        folder = Path(root, _safe(source.name))
        _link(source, folder, code)
        if base is not None:
            below = Path(root, "base", _safe(base.name))
            _link(base, below, code)
            _point(folder / ADAPTER_CONFIG, below)
            if not (folder / MODULES).exists():
                _write_modules(folder)
        yield folder


def _safe(name: str | None) -> str:
    """Return the last part of a name; transformers makes a Python package of it if the model has code."""
    return Path(name or "model").name or "model"


def _link(source: Source, folder: Path, code: bool) -> None:
    patterns = WITH_CODE if code else MODEL_FILES
    root = Path(str(source.folder))
    folder.mkdir(parents=True)
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = folder / Path(place).relative_to(root)
        below.mkdir(exist_ok=True)
        for name in files:
            if any(fnmatch(name, pattern) for pattern in patterns):
                _link_file(Path(place, name).resolve(), below / name)


def _link_file(file: Path, link: Path) -> None:
    try:
        link.symlink_to(file)
    except OSError:  # systems where links take a privilege
        shutil.copy2(file, link)


def _point(file: Path, base: Path) -> None:
    """Have the configuration of an adapter name the folder of its base."""
    config = read_json(file) | {"base_model_name_or_path": str(base), "revision": None}
    file.unlink()
    file.write_text(json.dumps(config), encoding="utf-8")


def _write_modules(folder: Path) -> None:
    """Say of an adapter on a model for late interaction what sentence-transformers says of that model itself."""
    forward = {"method": "forward", "method_output_name": "embeddings"}
    retrieval = {
        "transformer_task": "retrieval",
        "modality_config": {"text": forward, "image": forward},
        "module_output_name": "token_embeddings",
    }
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{ST}.base.modules.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Mask", "type": f"{ST}.multi_vector_encoder.modules.MultiVectorMask"},
    ]
    (folder / "1_Mask").mkdir()
    files: dict[str, Any] = {
        MODULES: modules,
        ST_CONFIG: {"model_type": "MultiVectorEncoder"},
        "sentence_bert_config.json": retrieval,
        "1_Mask/config.json": {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


# -- code


def list_code(*sources: Source | None) -> list[Path]:
    """Return the Python files among the files of a model and its base."""
    found = []
    for source in sources:
        if source is not None:
            found += sorted(Path(str(source.folder)).rglob("*.py"))
    return found


def hash_code(files: list[Path]) -> str:
    """Return a hash of Python files; "" for none."""
    if not files:
        return ""
    digest = blake2b(digest_size=12)
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def remember_code(code: str, name: str | None) -> None:
    """Keep that this user, on this machine, has trusted some code: a library made with it opens without asking."""
    file = data_folder() / TRUSTED
    try:
        write_json(file, _read_trusted(file) | {code: name})
    except OSError as error:
        raise RandSlotError(f"cannot note in {file} that {name} is trusted: {error.strerror or error}") from error


def is_code_trusted(code: str) -> bool:
    """Whether this user has trusted some code before, on this machine."""
    return code in _read_trusted(data_folder() / TRUSTED)


def _read_trusted(file: Path) -> dict[str, str]:
    return read_json(file) if file.is_file() else {}


PROBE = "a query"  # whose vectors show what a model makes
OWN_MODULES = ("sentence_transformers.", "pylate.")  # classes that no code of the model is needed for


def load_embedding_model(
    source: Source,
    kind: Kind,
    *,
    device: str,
    dtype: torch.dtype,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    known_code: str = "",
    **settings: Any,
) -> EmbeddingModel:
    """Load a model of sentence-transformers.

    trust_remote_code: let it run the Python files among its own. known_code: the hash of such files that were trusted
    before. settings: of `EmbeddingSettings`, those that can be chosen.

    Errors: RandSlotError in one line for files that are missing, cut off, broken or pickles, for weights that would be
    random, and for code that is not trusted.
    """
    base = _find_base(source, code=trust_remote_code or bool(known_code))
    for part in (source, base):
        if part is not None:
            check_weights(part)
    files = list_code(source, base)
    code = hash_code(files)
    allowed = bool(code) and (trust_remote_code or code == known_code)
    _check_modules(source, files, allowed)
    if allowed and trust_remote_code:
        remember_code(code, source.name)
    options = {"dtype": dtype, "use_safetensors": True}
    if attn_implementation:
        options["attn_implementation"] = attn_implementation
    with staged(source, base, code=allowed) as folder:
        model = _load(source, kind, folder, allowed, files, device=device, model_kwargs=options)
    _copy_weights(model)
    _give_prompts(model)
    reader = _make_reader(model, source, kind, code if allowed else "")
    reader.use(**settings)
    return reader


def adopt_embedding_model(model: MultiVectorEncoder | SentenceTransformer) -> EmbeddingModel:
    """Return a model that plain sentence-transformers has loaded as a reader of pages."""
    kind: Kind = "multi-vector" if isinstance(model, MultiVectorEncoder) else "one-vector"
    return _make_reader(model, Source(), kind, "")


def _find_base(source: Source, *, code: bool) -> Source | None:
    if not Path(str(source.folder), ADAPTER_CONFIG).is_file():
        return None
    base = read_adapter_base(source)
    own = Path(str(source.folder), base)
    try:
        return find(str(own)) if own.is_dir() else find(base, files=WITH_CODE if code else MODEL_FILES)
    except RandSlotError as error:
        raise RandSlotError(f"{source.name} is an adapter and needs its base: {error}") from error


def _check_modules(source: Source, files: list[Path], allowed: bool) -> None:
    """Refuse a list of modules that is broken, or names classes of code that is not trusted."""
    file = Path(str(source.folder), MODULES)
    if not file.is_file():
        return
    try:
        types = [str(module["type"]) for module in read_json_list(file)]
    except (KeyError, TypeError) as error:
        raise RandSlotError(f"{file} does not name the type of each module") from error
    if not allowed and any(not name.startswith(OWN_MODULES) for name in types):
        raise _untrusted(source, files)


def read_json_list(file: Path) -> list[Any]:
    """Read a JSON file that holds a list.

    Errors: RandSlotError in one line if it does not.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RandSlotError(f"{file} is not valid JSON: {first_line(error)}") from error
    if not isinstance(content, list):
        raise RandSlotError(f"{file} does not hold a list")
    return content


def _untrusted(source: Source, files: list[Path]) -> RandSlotError:
    names = ", ".join(file.name for file in files[:3]) or "Python files of its repository"
    return UsageError(
        f"{source.name} runs code of its own ({names}): read it, and if you trust it say so by --trust-remote-code "
        "(in Python trust_remote_code=True)"
    )


def _load(source: Source, kind: Kind, folder: Path, allowed: bool, files: list[Path], **options: Any) -> Any:
    cls: Any = MultiVectorEncoder if kind == "multi-vector" else SentenceTransformer
    missing: list[str] = []
    try:
        with _quiet(), _without_video(), _watch_weights(missing), bars_in_terminals():
            model = cls(
                str(folder),
                local_files_only=True,
                trust_remote_code=allowed,
                processor_kwargs={"backend": "pil"},  # the same pixels on every machine, torchvision or not
                **options,
            )
    except RandSlotError:
        raise
    except Exception as error:  # transformers and sentence-transformers fail on broken files in many ways
        if "trust_remote_code" in str(error) and not allowed:
            raise _untrusted(source, files) from error
        message = first_line(error).replace(str(folder), str(source.name))
        raise RandSlotError(f"cannot load {source.name}: {message}") from error
    if missing:
        raise RandSlotError(
            f"{source.name} lacks {len(missing)} weights, such as {missing[0]}: it would run with random ones; get it "
            "again, or another version of it"
        )
    _check_tokenizer(source, getattr(model[0], "tokenizer", None))
    return model


def _check_tokenizer(source: Source, tokenizer: Any) -> None:
    """Refuse a tokenizer that knows no words: transformers makes such a one where its files are missing."""
    if hasattr(tokenizer, "all_special_ids") and len(tokenizer) <= len(tokenizer.all_special_ids):
        raise RandSlotError(f"{source.name} lacks its tokenizer, such as a file tokenizer.json: get it again")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what loaders say to themselves from a user: what matters is told by us."""
    level = transformers_log.get_verbosity()
    others = logging.getLogger("sentence_transformers")
    before = others.level
    transformers_log.set_verbosity_error()
    others.setLevel(logging.ERROR)
    try:
        yield
    finally:
        transformers_log.set_verbosity(level)
        others.setLevel(before)


@contextmanager
def _watch_weights(missing: list[str]) -> Iterator[None]:
    """Take down weights that a checkpoint lacks: transformers makes them up, with a warning that nobody reads.

    Also those of an adapter that fit nothing. Poolers are not read by any model of sentence-transformers.
    """

    def note(*args: Any, loading_info: Any, **kwargs: Any) -> None:
        if loading_info.error_msgs:
            raise RandSlotError("; ".join(first_line(Exception(line)) for line in loading_info.error_msgs))
        wrong = [key for key, *_ in loading_info.mismatched_keys] + list(loading_info.conversion_errors)
        for key in sorted([*loading_info.missing_keys, *wrong]):
            if "pooler." not in key:
                missing.append(key)

    def note_adapter(*args: Any, loading_info: Any, **kwargs: Any) -> None:
        note(*args, loading_info=loading_info, **kwargs)
        missing.extend(sorted(loading_info.unexpected_keys))

    with (
        _replaced(modeling_utils, "log_state_dict_report", note),
        _replaced(peft, "log_state_dict_report", note_adapter),
    ):
        yield


@contextmanager
def _without_video() -> Iterator[None]:
    """Load processors without the part that reads videos, which needs torchvision; pages are images."""
    own = ProcessorMixin.get_attributes.__func__

    def get_attributes(cls: type[ProcessorMixin]) -> list[str]:
        return [name for name in own(cls) if name != "video_processor"]

    with _replaced(ProcessorMixin, "get_attributes", classmethod(get_attributes)):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something else in the place of a name for a while."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _copy_weights(model: Any) -> None:
    """Copy loaded weights out of their mapped files: aligned, and free of a folder that is gone now."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _give_prompts(model: Any) -> None:
    """Have ColModernVBERT's processor put its prompts around queries and pages by itself, as those of its kin do."""
    processor = getattr(model[0], "processor", None)
    if type(processor) is ColModernVBertProcessor and isinstance(model.transformers_model, PreTrainedModel):
        processor.__class__ = PromptingProcessor


class PromptingProcessor(ColModernVBertProcessor):
    """As ColModernVBERT's, but a call does what `process_queries` and `process_images` do.

    sentence-transformers only calls its processors, which is enough for ColPali and ColQwen2.
    """

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        if images is not None and text is None:
            text = [self.visual_prompt_prefix] * len(images)
        elif text is not None and images is None:
            suffix = 10 * self.query_augmentation_token
            text = [f"{self.query_prefix}{query}{suffix}" for query in text]
        return super().__call__(images=images, text=text, **options)


def _make_reader(model: Any, source: Source, kind: Kind, code: str) -> EmbeddingModel:
    """Find out how a model makes its vectors: by its configuration, and by what it makes of a query."""
    several = kind == "multi-vector"
    own: Any = {} if several else {"query_vectors": 1, "page_vectors": 1}
    try:
        with _quiet():
            (found,) = model.encode_query([PROBE], show_progress_bar=False)
    except Exception as error:  # whatever is wrong with a model shows when it is run
        raise RandSlotError(f"cannot run {source.name or 'this model'}: {first_line(error)}") from error
    vectors = torch.as_tensor(found).float().reshape(-1, found.shape[-1])
    lengths = vectors.norm(dim=-1)
    similarity = str(model.similarity_fn_name)
    reads: Reads = "image" if model.supports("image") else "text"
    if reads == "text" and not model.supports("text"):
        raise RandSlotError(f"{source.name} reads neither images nor text, but {', '.join(map(str, model.modalities))}")
    settings = EmbeddingSettings(
        kind="multi-vector" if several else "one-vector",
        similarity=similarity,
        reads=reads,
        unit=similarity == "cosine" or bool((lengths - 1).abs().max() < 0.02),
        prompts=dict(model.prompts),
        default_prompt_name=model.default_prompt_name,
        trust_remote_code=bool(code),
        code=code,
        **own,
    )
    return EmbeddingModel(model, source, settings, vectors.shape[-1])
