"""Any model of sentence-transformers as a page reader: several vectors a page, or one.

A library compares vectors by MaxSim. To give the scores of the model itself, vectors that it compares by cosine get
unit length, and a mean over the query becomes part of the query's vectors.

Shapes: L vectors of one input, D dimension, Q queries, P pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.util import maxsim
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..pages import open_page
from .checkpoint import hash_weights
from .encoder import narrow_tensor
from .hub import Source
from .preprocessing import hash_content
from .reader import Identity, Reads, Side, Vectors, check_query
from .reductions import REDUCTIONS, plain_name
from .settings import NO_REDUCTION, VectorSettings, check_choice, check_limits
from .text_reader import cut_windows


@dataclass(frozen=True)
class EmbeddingSettings(VectorSettings):
    """How a model of sentence-transformers makes its vectors.

    kind: several vectors a text or page, or one; "token-states": of a model that pools one vector, the states of all
    its tokens before that (slots="tokens" when it is opened). similarity: how they are compared. unit: whether they
    have unit length. prompts, default_prompt_name: put before queries ("query") and pages ("document").

    reduction, page_vectors, seed: bring each page to at most `page_vectors`, as `reductions.py` does. A model of one
    vector reads a page in at most `page_vectors` windows, with a vector for each: parts of a text, or strips of an
    image. width: keep this many numbers of each vector (0: all), of a model that was trained for it.
    trust_remote_code, code: whether the model runs code of its own, and a hash of that code.
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
        object.__setattr__(self, "reduction", plain_name(self.reduction))
        check_choice("similarity", self.similarity, ("maxsim", "meanmaxsim", "cosine", "dot"))
        check_choice("reduction", self.reduction, (NO_REDUCTION, *REDUCTIONS))
        for name in ("page_vectors", "seed", "width"):
            if getattr(self, name) is not None:
                check_limits(name, getattr(self, name))
        has_budget = self.is_multi_vector and self.page_vectors is not None
        if has_budget != self.is_reduced or (self.is_reduced and not self.unit):
            raise UsageError(
                "reduction and page_vectors go together, for a model with a unit vector for every token, as in "
                "--reduction kmeans --page-vectors 32"
            )

    @property
    def is_multi_vector(self) -> bool:
        """Whether every token has a vector."""
        return self.kind != "one-vector"

    @property
    def in_windows(self) -> bool:
        """Whether a model of one vector reads a page in several windows."""
        return not self.is_multi_vector and self.page_vectors != 1

    @property
    def label(self) -> str:
        """What tells runs of one model apart in tables: "tokens", "tokens by kmeans", "one vector", or "windows"."""
        if not self.is_multi_vector:
            return "windows" if self.in_windows else "one vector"
        return f"tokens by {self.reduction}" if self.is_reduced else "tokens"

    def num_vectors(self, side: Side) -> int | None:
        """Return the number of vectors of a query or page; None if every token has one."""
        return self.query_vectors if side == "query" else self.page_vectors

    def vectors_name(self, side: Side) -> str:
        """Return a name for the vectors of one side under these settings, for caches."""
        name = "query-text" if side == "query" else f"page-{self.reads}"
        name += "-tokens" if self.kind == "token-states" else ""
        if side == "page" and self.is_reduced:
            name += f"-{self.reduction}-seed{self.seed}"
        return name + (f"-width{self.width}" if self.width else "")

    def change(self, **changes: Any) -> EmbeddingSettings:
        """Return these settings with some changed; UsageError for one that the model itself decides, or has not."""
        wants_states = changes.get("slots") == "tokens" or changes.get("kind") == "token-states"
        if wants_states and not self.is_multi_vector:
            changes.pop("slots", None)
            of_states: dict[str, Any] = {"query_vectors": None, "page_vectors": None, "unit": True}
            states = replace(self, kind="token-states", similarity="maxsim", **of_states)
            return states.change(**changes)
        own, free = asdict(self), ("reduction", "page_vectors", "seed", "prompts", "default_prompt_name", "width")
        for name, value in changes.items():
            if name not in own or (name not in free and value != own[name]):
                raise UsageError(f"{name}={value!r} does not go with this model of sentence-transformers")
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
        """settings, dimension: of the model itself, as `sentence_loading` finds them."""
        self.model, self.source, self.settings, self.full_width = model, source, settings, dimension

    def __repr__(self) -> str:
        return f"EmbeddingModel({self.source.name}, {self.settings.kind}, {self.dimension} dimensions)"

    def use(self, **changes: Any) -> None:
        """Change settings of a model in use: reduction and page_vectors, width, seed, prompts."""
        settings = self.settings.change(**changes)
        if settings.width > self.full_width:
            raise UsageError(f"width={settings.width}: vectors of this model have {self.full_width} numbers")
        self.settings = settings
        self.model.prompts = dict(settings.prompts)
        self.model.default_prompt_name = settings.default_prompt_name

    # -- which model this is

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
        """A hash of its weights, modules and processors: all that its vectors depend on."""
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
        """The pixels that its image processor looks at, within reason where the processor does not say."""
        processor = getattr(self.model[0], "processor", None)
        image = getattr(processor, "image_processor", processor)
        size = dict(getattr(image, "size", None) or {})
        if size.get("height") and size.get("width"):
            pixels = 4 * int(size["height"]) * int(size["width"])  # a small square: sharper if made smaller by it
        else:
            edge = int(size.get("longest_edge") or 2 * int(size.get("shortest_edge") or 0))
            pixels = edge if hasattr(image, "merge_size") else edge**2  # Qwen's sizes are areas
        return max(400_000, min(pixels, 4_000_000))

    def num_vectors(self, side: Side) -> int | None:
        return self.settings.num_vectors(side)

    def is_cut(self, page: str) -> bool:
        most = getattr(self.model[0], "document_length", None) or self.model.max_seq_length
        if self.reads != "text" or most is None:
            return False
        texts = [self.model.prompts.get("document", "") + window for window in self._cut(page)]
        return any(len(ids) > most for ids in self.model.tokenizer(texts, verbose=False)["input_ids"])

    def _cut(self, page: Any) -> list[Any]:
        num = self.settings.page_vectors or 1
        if not self.settings.in_windows:
            return [page]
        return cut_windows(page, num) if self.reads == "text" else cut_strips(page, num)

    # -- its own vectors and scores

    def encode_query(self, queries: Sequence[str], batch_size: int = 32) -> list[Tensor]:
        """Return the vectors (L, D) of each query, as the model makes them."""
        found = self._encode(self.model.encode_query, [check_query(query) for query in queries], batch_size)
        return [self._narrow(vectors) for vectors in found]

    def encode_document(self, pages: Sequence[Any], batch_size: int = 8) -> list[Tensor]:
        """Return the vectors (L, D) of each page, as the model makes them, or fewer by the reduction."""
        opened: list[Any] = []
        for page in pages:
            if self.reads == "text" and not isinstance(page, str):
                raise UsageError(f"this model reads the text of a page, not its image ({type(page).__name__})")
            opened.append(page if self.reads == "text" else open_page(page, self.page_pixels))
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
        if self.settings.similarity == "cosine":  # vectors of any length, which a library keeps as unit vectors
            vectors_LD = F.normalize(vectors_LD.float(), dim=-1)
        return narrow_tensor(vectors_LD, self.settings.width, unit=self.settings.unit)

    def _encode(self, encode: Callable[..., Any], inputs: list[Any], batch_size: int) -> list[Tensor]:
        """Return vectors as (L, D) each; one vector is a row of its own."""
        options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": False}
        if self.settings.kind == "token-states":
            states = encode(inputs, output_value="token_embeddings", **options)
            return [F.normalize(one.float(), dim=-1) for one in states]
        if self.settings.kind == "one-vector":
            return list(encode(inputs, convert_to_tensor=True, **options)[:, None])
        return list(encode(inputs, **options))

    def similarity(self, queries: Sequence[Tensor], pages: Sequence[Tensor], device: Any = None) -> Tensor:
        """Return the scores (Q, P) of pages for queries by the model's own measure."""
        if isinstance(self.model, MultiVectorEncoder):
            scores: Tensor = self.model.similarity(list(queries), list(pages), device=device)
        elif self.settings.kind == "token-states":
            scores = maxsim(list(queries), list(pages), device=device)
        else:
            scores = self.model.similarity(torch.cat(list(queries)), torch.cat(list(pages)))
            if self.settings.in_windows:  # a page is as near as the nearest of its windows
                parts = scores.split([len(page) for page in pages], dim=1)
                scores = torch.stack([part.max(dim=1).values for part in parts], dim=1)
        return scores

    # -- a reader of pages

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        if num_vectors is not None:
            self.settings.change(query_vectors=num_vectors)  # no other number than its own
        if not queries:
            return []
        vectors = self._for_maxsim(self.encode_query(queries))
        if self.settings.similarity == "meanmaxsim":
            return [one / np.float32(max(len(one), 1)) for one in vectors]
        return vectors

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        return self._for_maxsim(self.encode_document(pages, batch_size=len(pages))) if pages else []

    def _for_maxsim(self, encoded: list[Tensor]) -> list[Vectors]:
        """Return vectors as a library compares them; RandSlotError if half precision, as it keeps them, has no such."""
        found: list[Vectors] = []
        for vectors_LD in encoded:
            vectors_LD = vectors_LD.float()
            if self.settings.similarity == "cosine" and not self.settings.width:  # else they have unit length
                vectors_LD = F.normalize(vectors_LD, dim=-1)
            found.append(vectors_LD.cpu().numpy())
            if not (np.abs(found[-1]) <= np.finfo(np.float16).max).all():  # also false for NaN
                raise RandSlotError(
                    f"{self.source.name} makes vectors in {self.dtype} that are not finite or too large"
                )
        return found


def cut_strips(page: Image.Image, num: int) -> list[Image.Image]:
    """Cut a page into strips of equal height, from top to bottom."""
    edges = [number * page.height // num for number in range(num + 1)]
    return [page.crop((0, top, page.width, bottom)) for top, bottom in pairwise(edges) if bottom > top]


def _describe_processor(processor: Any) -> bytes:
    """Return all that vectors depend on in a tokenizer or a processor, for a hash."""
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
