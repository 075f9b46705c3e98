"""Loads other people's models with sentence-transformers: no pickles, and no code unless the user trusts it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import get_device_name
from transformers import ColModernVBertProcessor, PreTrainedModel, ProcessorMixin

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json
from .backbone import bars_in_terminals
from .checkpoint import ADAPTER_CONFIG, CONFIG
from .encoder import SlotEncoder
from .hub import MODEL_FILES, WITH_CODE, Source, find
from .model import RandSlotModel, choose_dtype
from .own_code import refuse_code, trust_code
from .sentence_model import EmbeddingModel, EmbeddingSettings

Kind = Literal["randslot", "backbone", "multi-vector", "one-vector", "reranker"]
MODULES = "modules.json"  # what makes a folder one of sentence-transformers
OF_PYLATE = {"query_prefix", "document_prefix", "query_length", "do_query_expansion"}


def find_kind(source: Source) -> Kind:
    """Return what the folder of a source holds, by its files; RandSlotError for a model without vectors of pages."""
    if source.file(CONFIG).is_file():
        return "randslot"
    if source.file(MODULES).is_file():
        config = _read_config(source, "config_sentence_transformers.json")
        name = config.get("model_type") or "SentenceTransformer"
        if name in ("MultiVectorEncoder", "ColBERT") or config.keys() & OF_PYLATE:
            return "multi-vector"
        if name != "SentenceTransformer":
            raise RandSlotError(f"{source.name} is a {name}, which has no vectors of pages that MaxSim could compare")
        return "one-vector"
    base = _find_base(source, ("config.json",))
    for name in _read_config(base or source, "config.json").get("architectures") or []:
        if str(name).endswith("ForRetrieval") or name == "HF_ColBERT":  # of transformers, or Stanford's ColBERT
            return "multi-vector"
    if base is not None:
        raise RandSlotError(
            f"{source.name} is an adapter for {base.name} without a {MODULES}, as colpali-engine saves them: name a "
            "version that sentence-transformers loads, such as one that ends in -hf or -merged"
        )
    return "backbone"


def _read_config(source: Source, name: str) -> dict[str, Any]:
    return read_json(source.file(name)) if source.file(name).is_file() else {}


def _find_base(source: Source, files: tuple[str, ...]) -> Source | None:
    """Return the model that an adapter is for, downloaded; None if the source is no adapter."""
    if not source.file(ADAPTER_CONFIG).is_file():
        return None
    try:
        return find(str(_read_config(source, ADAPTER_CONFIG).get("base_model_name_or_path") or ""), files=files)
    except RandSlotError as error:
        raise RandSlotError(f"{source.name} is an adapter and needs its base: {error}") from error


def load_checked(
    source: Source,
    kind: Kind,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    known_code: str = "",
) -> tuple[Any, str]:
    """Load a folder with sentence-transformers; return the model, and a hash of its own code if that may run.

    trust_remote_code: let the model run its own Python files. known_code: the hash of files that were trusted before.

    Errors: UsageError for code that is not trusted. RandSlotError for missing or broken files, and for pickles.
    """
    base = _find_base(source, WITH_CODE if trust_remote_code or known_code else MODEL_FILES)
    folders = [Path(str(part.folder)) for part in (source, base) if part is not None]
    code = _check_files(folders)
    is_trusted = bool(code) and (trust_remote_code or code == known_code)
    if is_trusted and trust_remote_code:
        trust_code(code, source.name)
    device = str(device or get_device_name())
    options: dict[str, Any] = {"dtype": choose_dtype(dtype, device), "use_safetensors": True}
    if attn_implementation:
        options["attn_implementation"] = attn_implementation
    doing, missing = f"load {source.name}", MissingWeights()
    try:
        with in_one_line(doing, hint="; is the download complete (git lfs pull)?"), missing, _without_video():
            model = _load(folders[0], kind, base, device, is_trusted, options)
    except RandSlotError as error:
        if "trust_remote_code" in str(error.__cause__) and not is_trusted:
            raise refuse_code(source) from error
        raise
    if missing.keys:
        raise RandSlotError(
            f"{source.name} lacks weights, such as {missing.keys[0]}: it would run with random ones; get it again"
        )
    tokenizer: Any = getattr(model[0], "tokenizer", None)
    if hasattr(tokenizer, "all_special_ids") and len(tokenizer) <= len(tokenizer.all_special_ids):
        # transformers makes an empty tokenizer where its files are missing
        raise RandSlotError(f"{source.name} lacks its tokenizer, such as a file tokenizer.json: get it again")
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # out of the mapped file: aligned, and independent of the folder
    return model, code if is_trusted else ""


def _check_files(folders: list[Path]) -> str:
    """Refuse pickles in the folders of a model and its base; return a hash of their Python files, "" without any."""
    digest, files = blake2b(digest_size=12), []
    for folder in folders:
        # `use_safetensors` holds for the transformer only, and neither for adapters nor for modules such as `Dense`.
        for pickle, safe in (("pytorch_model", "model"), ("adapter_model", "adapter_model")):
            for file in sorted(folder.rglob(f"{pickle}.bin")):
                if not file.with_name(f"{safe}.safetensors").is_file():
                    raise RandSlotError(f"{file} is a pickle, which can run code: convert it to safetensors")
        files += sorted(folder.rglob("*.py"))
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest() if files else ""


def _load(folder: Path, kind: Kind, base: Source | None, device: str, is_trusted: bool, options: dict[str, Any]) -> Any:
    """Load a folder with sentence-transformers, from local files only."""
    shared = {"trust_remote_code": is_trusted, "local_files_only": True}
    processor = {"backend": "pil"}  # the same pixels on every machine, torchvision or not
    if base is not None and not (folder / MODULES).is_file():
        # sentence-transformers knows a late-interaction retriever by its config, which an adapter does not have.
        forward = {"method": "forward", "method_output_name": "embeddings"}
        transformer = Transformer(
            str(folder),
            transformer_task="retrieval",
            modality_config={"text": forward, "image": forward},
            module_output_name="token_embeddings",
            model_kwargs=shared | options,
            processor_kwargs=shared | processor,
            config_kwargs=shared,
        )
        return MultiVectorEncoder(modules=[transformer, MultiVectorMask()], device=device)
    classes: dict[str, Any] = {"multi-vector": MultiVectorEncoder, "reranker": CrossEncoder}
    model = classes.get(kind, SentenceTransformer)(
        str(folder), device=device, model_kwargs=options, processor_kwargs=processor, **shared
    )
    if type(model.processor) is ColModernVBertProcessor and isinstance(model.transformers_model, PreTrainedModel):
        model.processor.__class__ = PromptingProcessor
    return model


class PromptingProcessor(ColModernVBertProcessor):
    """Like ColModernVBERT's processor, but a call puts its prompts around queries and pages.

    sentence-transformers calls a processor, which is enough for ColPali and ColQwen2, and not `process_queries`.
    """

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        if images is not None and text is None:
            text = [self.visual_prompt_prefix] * len(images)
        elif text is not None and images is None:
            suffix = 10 * self.query_augmentation_token
            text = [f"{self.query_prefix}{query}{suffix}" for query in text]
        return super().__call__(images=images, text=text, **options)


@contextmanager
def _without_video() -> Iterator[None]:
    """Load processors without their video part, which needs torchvision, and without bars outside of terminals."""
    own = vars(ProcessorMixin)["get_attributes"]

    def get_attributes(cls: type[ProcessorMixin]) -> list[str]:
        return [name for name in own.__func__(cls) if name != "video_processor"]

    ProcessorMixin.get_attributes = classmethod(get_attributes)
    try:
        with bars_in_terminals():
            yield
    finally:
        ProcessorMixin.get_attributes = own


class MissingWeights(logging.Handler):
    """Gets the warnings of both libraries in a block, and collects the weights that transformers makes up: `keys`.

    Also those of an adapter that fit nothing. No model of sentence-transformers reads a pooler.
    """

    def __enter__(self) -> None:
        self.keys: list[str] = []
        self.loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers")]
        self.before = [(logger.handlers, logger.level, logger.propagate) for logger in self.loggers]
        for logger in self.loggers:
            logger.handlers, logger.propagate = [self], False
            logger.setLevel(logging.WARNING)

    def __exit__(self, *error: object) -> None:
        for logger, (handlers, level, propagate) in zip(self.loggers, self.before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        wrong = ("MISSING", "UNEXPECTED") if record.name.endswith(".peft") else ("MISSING",)
        for line in record.getMessage().splitlines():
            key, status, *_ = f"{line}||".split("|")
            if any(word in status for word in wrong) and "pooler." not in key:
                self.keys.append(key.strip())


# -- readers of pages


def adopt(model: Any) -> RandSlotModel | EmbeddingModel:
    """Return a model that plain sentence-transformers has loaded as a page reader; UsageError for something else."""
    if isinstance(model, MultiVectorEncoder) and isinstance(model[0], SlotEncoder):
        return RandSlotModel(modules=list(model), device=str(model.device))
    if isinstance(model, MultiVectorEncoder | SentenceTransformer):
        return make_reader(model, Source(), "")
    raise UsageError(f"a library takes a loaded model, or the folder or hub id of one, not {type(model).__name__}")


def make_reader(model: MultiVectorEncoder | SentenceTransformer, source: Source, code: str) -> EmbeddingModel:
    """Find out how a model makes its vectors: from its configuration, and from the vectors of a query."""
    with in_one_line(f"run {source.name or 'this model'}"):  # a broken model fails here
        (found,) = model.encode_query(["a query"], show_progress_bar=False)
    vectors = torch.as_tensor(found).float().reshape(-1, found.shape[-1])
    is_multi_vector = isinstance(model, MultiVectorEncoder)
    similarity = str(model.similarity_fn_name)
    settings = EmbeddingSettings(
        kind="multi-vector" if is_multi_vector else "one-vector",
        similarity=similarity,
        reads="image" if model.supports("image") else "text",
        unit=similarity == "cosine" or bool((vectors.norm(dim=-1) - 1).abs().max() < 0.02),
        prompts=dict(model.prompts),
        default_prompt_name=model.default_prompt_name,
        query_vectors=None if is_multi_vector else 1,
        page_vectors=None if is_multi_vector else 1,
        trust_remote_code=bool(code),
        code=code,
    )
    return EmbeddingModel(model, source, settings, vectors.shape[-1])
