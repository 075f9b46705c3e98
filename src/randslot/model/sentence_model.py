"""Models of sentence-transformers as page readers, multi-vector or single-vector.

Loading refuses pickles, and runs model code only if the user trusts it. Libraries score by MaxSim. To reproduce a
model's own scores, vectors that it compares by cosine are normalised, and a mean over the query is folded into the
query's vectors.

Shapes: L vectors of one input, D dimension, Q queries, P pages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import get_device_name, maxsim
from torch import Tensor
from transformers import ColModernVBertProcessor, PreTrainedModel, ProcessorMixin

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json
from ..pages import open_page
from .backbone import bars_in_terminals
from .checkpoint import ADAPTER_CONFIG, CONFIG, hash_weights
from .encoder import SlotEncoder, narrow_tensor
from .hub import MODEL_FILES, WITH_CODE, Source, resolve
from .model import RandSlotModel, choose_dtype
from .own_code import refuse_code, trust_code
from .preprocessing import hash_content
from .reader import Identity, Reads, Side, Vectors, check_query
from .reductions import REDUCTIONS
from .settings import NO_REDUCTION, VectorSettings, check_choice
from .text_reader import cut_windows

Kind = Literal["randslot", "backbone", "multi-vector", "one-vector", "reranker"]
MODULES = "modules.json"  # what makes a folder one of sentence-transformers


@dataclass(frozen=True)
class EmbeddingSettings(VectorSettings):
    """How a model of sentence-transformers encodes queries and pages.

    kind: how many vectors per input; "token-states": the token states of a single-vector model before pooling
    (slots="tokens" when it is opened). similarity: how vectors are compared. unit: whether they have unit length.
    prompts, default_prompt_name: prefixes of queries ("query") and pages ("document").

    reduction, page_vectors, seed: pool each page to at most `page_vectors`, as `reductions.py` does. A single-vector
    model reads a page in at most `page_vectors` windows, one vector each: parts of a text, or strips of an image.
    width: keep this many dimensions of each vector (0: all), for Matryoshka models. trust_remote_code, code: whether
    the model's own Python code runs, and its hash.
    """

    kind: Literal["multi-vector", "one-vector", "token-states"]
    similarity: str
    reads: Reads
    unit: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    reduction: str = NO_REDUCTION
    query_vectors: int | None = None
    page_vectors: int | None = None
    seed: int = 42
    trust_remote_code: bool = False
    code: str = ""
    width: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("similarity", self.similarity, ("maxsim", "meanmaxsim", "cosine", "dot"))
        has_budget = self.is_multi_vector and self.page_vectors is not None
        if has_budget != self.is_reduced or (self.is_reduced and not self.unit):
            raise UsageError(
                "reduction and page_vectors go together, and need a model with a unit vector for every token, as in "
                "--reduction kmeans --page-vectors 32"
            )

    @property
    def is_multi_vector(self) -> bool:
        """Whether every token has a vector."""
        return self.kind != "one-vector"

    @property
    def in_windows(self) -> bool:
        """Whether a single-vector model reads a page in several windows."""
        return not self.is_multi_vector and self.page_vectors != 1

    @property
    def label(self) -> str:
        """The label of these settings in tables: "tokens", "tokens by kmeans", "one vector", or "windows"."""
        if not self.is_multi_vector:
            return "windows" if self.in_windows else "one vector"
        return f"tokens by {self.reduction}" if self.is_reduced else "tokens"

    def num_vectors(self, side: Side) -> int | None:
        """Return the number of vectors of a query or page; None if every token has one."""
        return self.query_vectors if side == "query" else self.page_vectors

    def vectors_name(self, side: Side) -> str:
        """Return a cache name for the vectors of one side under these settings."""
        name = "query-text" if side == "query" else f"page-{self.reads}"
        name += "-tokens" if self.kind == "token-states" else ""
        if side == "page" and self.is_reduced:
            name += f"-{self.reduction}-seed{self.seed}"
        return name + (f"-width{self.width}" if self.width else "")

    def change(self, **changes: Any) -> EmbeddingSettings:
        """Return these settings with some changed; UsageError for a fixed or unknown one."""
        wants_states = changes.get("slots") == "tokens" or changes.get("kind") == "token-states"
        if wants_states and not self.is_multi_vector:
            changes.pop("slots", None)
            fixed: dict[str, Any] = {"query_vectors": None, "page_vectors": None, "unit": True}
            states = replace(self, kind="token-states", similarity="maxsim", **fixed)
            return states.change(**changes)
        values, changeable = (
            asdict(self),
            ("reduction", "page_vectors", "seed", "prompts", "default_prompt_name", "width"),
        )
        for name, value in changes.items():
            if name not in values or (name not in changeable and value != values[name]):
                raise UsageError(f"{name}={value!r} cannot be set for this model of sentence-transformers")
        return replace(self, **changes)


class EmbeddingModel:
    """A `MultiVectorEncoder` or `SentenceTransformer` that satisfies `PageReader`."""

    def __init__(
        self,
        model: MultiVectorEncoder | SentenceTransformer,
        source: Source,
        settings: EmbeddingSettings,
        dimension: int,
    ) -> None:
        """settings, dimension: the model's own, from `make_reader`."""
        self.model, self.source, self.settings, self.full_width = model, source, settings, dimension

    def __repr__(self) -> str:
        return f"EmbeddingModel({self.source.name}, {self.settings.kind}, {self.dimension} dimensions)"

    def use(self, **changes: Any) -> None:
        """Change settings of a loaded model: reduction and page_vectors, width, seed, prompts."""
        settings = self.settings.change(**changes)
        if settings.width > self.full_width:
            raise UsageError(f"width={settings.width}: vectors of this model have {self.full_width} dimensions")
        self.settings = settings
        self.model.prompts = dict(settings.prompts)
        self.model.default_prompt_name = settings.default_prompt_name

    # -- identity

    @property
    def identity(self) -> Identity:
        source, settings = self.source, asdict(self.settings)
        del settings["reads"]  # a field of the identity itself
        if not self.settings.width:
            del settings["width"]
        return Identity(
            source.name, source.revision, self.weights_key, self.dtype, self.dimension, settings, self.reads
        )

    @cached_property
    def weights_key(self) -> str:
        """A hash of its weights, modules and processors."""
        modules = []
        for module in self.model:
            config = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
            modules.append(f"{type(module).__name__} {json.dumps(config, sort_keys=True, default=str)}".encode())
        processor = _describe_processor(getattr(self.model[0], "processor", None))
        return hash_weights(self.model.state_dict(), *modules, processor)

    @cached_property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def device(self) -> Any:
        return self.model.device

    @property
    def dimension(self) -> int:
        return self.settings.width or self.full_width

    @property
    def reads(self) -> Reads:
        return self.settings.reads

    @property
    def page_pixels(self) -> int:
        """The pixels that its image processor uses, within limits."""
        processor = getattr(self.model[0], "processor", None)
        image = getattr(processor, "image_processor", processor)
        size = dict(getattr(image, "size", None) or {})
        if size.get("height") and size.get("width"):
            pixels = 4 * int(size["height"]) * int(size["width"])  # a small square: let the processor downscale
        else:
            edge = int(size.get("longest_edge") or 2 * int(size.get("shortest_edge") or 0))
            pixels = edge if hasattr(image, "merge_size") else edge**2  # Qwen's sizes are areas
        return max(400_000, min(pixels, 4_000_000))

    def num_vectors(self, side: Side) -> int | None:
        return self.settings.num_vectors(side)

    def is_cut(self, page: str) -> bool:
        max_tokens = getattr(self.model[0], "document_length", None) or self.model.max_seq_length
        if self.reads != "text" or max_tokens is None:
            return False
        texts = [self.model.prompts.get("document", "") + window for window in self._cut(page)]
        return any(len(ids) > max_tokens for ids in self.model.tokenizer(texts, verbose=False)["input_ids"])

    def _cut(self, page: Any) -> list[Any]:
        num = self.settings.page_vectors or 1
        if not self.settings.in_windows:
            return [page]
        return cut_windows(page, num) if self.reads == "text" else cut_strips(page, num)

    # -- its own vectors and scores

    def encode_query(self, queries: Sequence[str], batch_size: int = 32) -> list[Tensor]:
        """Return the model's own vectors (L, D) of each query."""
        found = self._encode(self.model.encode_query, [check_query(query) for query in queries], batch_size)
        return [self._narrow(vectors) for vectors in found]

    def encode_document(self, pages: Sequence[Any], batch_size: int = 8) -> list[Tensor]:
        """Return the model's own vectors (L, D) of each page, pooled by the reduction, if any."""
        assert self.reads == "image" or all(isinstance(page, str) for page in pages), "this model reads text"
        opened = [page if self.reads == "text" else open_page(page, self.page_pixels) for page in pages]
        cut = [self._cut(page) for page in opened]
        encoded = iter(self._encode(self.model.encode_document, list(chain(*cut)), batch_size))
        settings, found = self.settings, []
        for page, windows in zip(opened, cut, strict=True):
            vectors = torch.cat([next(encoded) for _ in windows])
            if settings.is_reduced and settings.page_vectors is not None and len(vectors) > settings.page_vectors:
                seed = (settings.seed, hash_content(page))
                vectors = REDUCTIONS[settings.reduction](vectors.float(), settings.page_vectors, seed)
            found.append(self._narrow(vectors))
        return found

    def _narrow(self, vectors_LD: Tensor) -> Tensor:
        if not self.settings.width:
            return vectors_LD
        if self.settings.similarity == "cosine":  # any length; libraries store unit vectors
            vectors_LD = F.normalize(vectors_LD.float(), dim=-1)
        return narrow_tensor(vectors_LD, self.settings.width, unit=self.settings.unit)

    def _encode(self, encode: Callable[..., Any], inputs: list[Any], batch_size: int) -> list[Tensor]:
        """Return vectors (L, D) of each input; L = 1 for a single-vector model."""
        options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": False}
        if self.settings.kind == "token-states":
            states = encode(inputs, output_value="token_embeddings", **options)
            return [F.normalize(one.float(), dim=-1) for one in states]
        if self.settings.kind == "one-vector":
            return list(encode(inputs, convert_to_tensor=True, **options)[:, None])
        return list(encode(inputs, **options))

    def similarity(self, queries: Sequence[Tensor], pages: Sequence[Tensor], device: Any = None) -> Tensor:
        """Return the scores (Q, P) of pages for queries by the model's own similarity."""
        if isinstance(self.model, MultiVectorEncoder):
            scores: Tensor = self.model.similarity(list(queries), list(pages), device=device)
        elif self.settings.kind == "token-states":
            scores = maxsim(list(queries), list(pages), device=device)
        else:
            scores = self.model.similarity(torch.cat(list(queries)), torch.cat(list(pages)))
            if self.settings.in_windows:  # the score of a page is that of its best window
                parts = scores.split([len(page) for page in pages], dim=1)
                scores = torch.stack([part.max(dim=1).values for part in parts], dim=1)
        return scores

    # -- a reader of pages

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        if num_vectors is not None:
            self.settings.change(query_vectors=num_vectors)  # refused unless it is the current one
        if not queries:
            return []
        vectors = self._for_maxsim(self.encode_query(queries))
        if self.settings.similarity == "meanmaxsim":
            return [one / np.float32(max(len(one), 1)) for one in vectors]
        return vectors

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        return self._for_maxsim(self.encode_document(pages, batch_size=len(pages))) if pages else []

    def _for_maxsim(self, encoded: list[Tensor]) -> list[Vectors]:
        """Return vectors for MaxSim; RandSlotError if half precision, in which libraries store them, overflows."""
        found: list[Vectors] = []
        for vectors_LD in encoded:
            vectors_LD = vectors_LD.float()
            if self.settings.similarity == "cosine" and not self.settings.width:  # else they have unit length
                vectors_LD = F.normalize(vectors_LD, dim=-1)
            found.append(vectors_LD.cpu().numpy())
            if not (np.abs(found[-1]) <= np.finfo(np.float16).max).all():  # also false for NaN
                raise RandSlotError(
                    f"vectors of {self.source.name} in {self.dtype} are not finite, or too large for float16"
                )
        return found


def cut_strips(page: Image.Image, num: int) -> list[Image.Image]:
    """Cut a page into strips of equal height, from top to bottom."""
    edges = [number * page.height // num for number in range(num + 1)]
    return [page.crop((0, top, page.width, bottom)) for top, bottom in pairwise(edges) if bottom > top]


def _describe_processor(processor: Any) -> bytes:
    """Return what vectors depend on in a tokenizer or processor, for a hash."""
    parts: list[str] = []
    tokenizer = getattr(processor, "tokenizer", processor)
    if hasattr(tokenizer, "backend_tokenizer"):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state.pop("truncation", None)  # these two depend on what was encoded last
        state.pop("padding", None)
        parts.append(json.dumps(state))
    image = getattr(processor, "image_processor", None)
    if image is not None:
        parts.append(image.to_json_string())
    for name in ("chat_template", "query_prefix", "visual_prompt_prefix"):
        parts.append(str(getattr(processor, name, None) or ""))
    return "\n".join(parts).encode()


# -- loading


def find_kind(source: Source) -> Kind:
    """Detect the kind of model in a folder by its files; RandSlotError for one that makes no embeddings."""
    if source.file(CONFIG).is_file():
        return "randslot"
    if source.file(MODULES).is_file():
        config = _read_config(source, "config_sentence_transformers.json")
        name = config.get("model_type") or "SentenceTransformer"
        pylate_keys = {"query_prefix", "document_prefix", "query_length", "do_query_expansion"}
        if name in ("MultiVectorEncoder", "ColBERT") or config.keys() & pylate_keys:
            return "multi-vector"
        if name != "SentenceTransformer":
            raise RandSlotError(f"{source.name} is a {name}, which makes no vectors for MaxSim")
        return "one-vector"
    base = _find_base(source, ("config.json",))
    for name in _read_config(base or source, "config.json").get("architectures") or []:
        if str(name).endswith("ForRetrieval") or name == "HF_ColBERT":  # of transformers, or Stanford's ColBERT
            return "multi-vector"
    if base is not None:
        raise RandSlotError(
            f"{source.name} is an adapter for {base.name} without a {MODULES}, as colpali-engine saves them. Pass a "
            "version for sentence-transformers, such as one that ends in -hf or -merged."
        )
    return "backbone"


def _read_config(source: Source, name: str) -> dict[str, Any]:
    return read_json(source.file(name)) if source.file(name).is_file() else {}


def _find_base(source: Source, files: tuple[str, ...]) -> Source | None:
    """Download the base model of an adapter; return None if the source is not an adapter."""
    if not source.file(ADAPTER_CONFIG).is_file():
        return None
    return resolve(str(_read_config(source, ADAPTER_CONFIG).get("base_model_name_or_path")), files=files)


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
    """Load a folder with sentence-transformers; return the model, and the hash of its code if that may run.

    trust_remote_code: run the model's own Python code. known_code: the hash of code that was trusted before.

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
            f"{source.name} has missing weights, such as {missing.keys[0]}, which would be random. Download it again."
        )
    tokenizer: Any = getattr(model[0], "tokenizer", None)
    if hasattr(tokenizer, "all_special_ids") and len(tokenizer) <= len(tokenizer.all_special_ids):
        # transformers builds an empty tokenizer if its files are missing
        raise RandSlotError(f"{source.name} has no tokenizer (tokenizer.json). Download it again.")
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # out of the memory-mapped file: aligned, and independent of it
    return model, code if is_trusted else ""


def _check_files(folders: list[Path]) -> str:
    """Refuse pickles in the folders of a model and its base; return a hash of their Python files, or "" if none."""
    digest, files = blake2b(digest_size=12), []
    for folder in folders:
        # `use_safetensors` applies to the transformer only, not to adapters or modules such as `Dense`.
        for pickle, safe in (("pytorch_model", "model"), ("adapter_model", "adapter_model")):
            for file in sorted(folder.rglob(f"{pickle}.bin")):
                if not file.with_name(f"{safe}.safetensors").is_file():
                    raise RandSlotError(f"{file} is a pickle, which can run code. Convert it to safetensors.")
        files += sorted(folder.rglob("*.py"))
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest() if files else ""


def _load(folder: Path, kind: Kind, base: Source | None, device: str, is_trusted: bool, options: dict[str, Any]) -> Any:
    """Load a folder with sentence-transformers, from local files only."""
    shared = {"trust_remote_code": is_trusted, "local_files_only": True}
    processor = {"backend": "pil"}  # the same pixels on every machine, with or without torchvision
    if base is not None and not (folder / MODULES).is_file():
        # sentence-transformers recognises a late-interaction model by its config, which an adapter does not have.
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
    """ColModernVBERT's processor, with its prompts added in every call.

    sentence-transformers calls the processor itself, not `process_queries`; ColPali and ColQwen2 need no more.
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
    """Skip video processors, which need torchvision, and show progress bars in terminals only."""
    original = vars(ProcessorMixin)["get_attributes"]

    def get_attributes(cls: type[ProcessorMixin]) -> list[str]:
        return [name for name in original.__func__(cls) if name != "video_processor"]

    ProcessorMixin.get_attributes = classmethod(get_attributes)
    try:
        with bars_in_terminals():
            yield
    finally:
        ProcessorMixin.get_attributes = original


class MissingWeights(logging.Handler):
    """Captures warnings of both libraries in a block; `keys`: the weights that transformers initialised at random.

    Also adapter weights that match no module. Poolers are ignored: no model of sentence-transformers uses one.
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
    """Wrap a model loaded by plain sentence-transformers as a page reader; UsageError for anything else."""
    if isinstance(model, MultiVectorEncoder) and isinstance(model[0], SlotEncoder):
        return RandSlotModel(modules=list(model), device=str(model.device))
    if isinstance(model, MultiVectorEncoder | SentenceTransformer):
        return make_reader(model, Source(), "")
    raise UsageError(f"pass a loaded model, or its folder or hub id, not {type(model).__name__}")


def make_reader(model: MultiVectorEncoder | SentenceTransformer, source: Source, code: str) -> EmbeddingModel:
    """Wrap a model; infer its settings from its configuration and the vectors of a query."""
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
