"""Loads a model of sentence-transformers from files that were looked at before: no pickles, no code unless trusted."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from transformers import ColModernVBertProcessor, PreTrainedModel, modeling_utils
from transformers.integrations import peft
from transformers.processing_utils import ProcessorMixin
from transformers.utils import logging as transformers_log

from ..errors import RandSlotError, UsageError, first_line
from .backbone import bars_in_terminals
from .checkpoint import ADAPTER_CONFIG
from .embedding_model import EmbeddingModel
from .embedding_settings import EmbeddingSettings
from .hub import MODEL_FILES, WITH_CODE, Source, find
from .kinds import MODULES, Kind, check_weights, read_adapter_base
from .reader import Reads
from .staging import hash_code, list_code, remember_code, staged

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
