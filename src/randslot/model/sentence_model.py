"""Any model of sentence-transformers as a reader of pages: several vectors a page, or one.

Its vectors and scores are its own. For a library they are brought into the one form that it compares, a sum of largest
products: vectors that are compared by cosine get unit length, and a mean over a query becomes part of its vectors.

Shapes: L vectors of one input, D dimension, Q queries, P pages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..pages import open_page
from .hub import Source
from .reader import Identity, Reads, Side, Vectors, check_query
from .reductions import REDUCTIONS, SEEDED_REDUCTIONS, plain_name
from .settings import LIMITS, NO_REDUCTION
from .text_reader import cut_windows

# What sentence-transformers calls a score, and whether a sum of largest products can express it.
SIMILARITIES = ("maxsim", "meanmaxsim", "cosine", "dot")
CHOSEN = ("reduction", "page_vectors", "seed", "prompts", "default_prompt_name")


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a model makes its vectors, in the words of its own configuration.

    kind: of several vectors a text or page, or of one. similarity: how they are compared. unit: whether they have the
    length of one. prompts, default_prompt_name: what stands before queries ("query") and pages ("document").

    reduction, page_vectors, seed: bring each page to at most so many vectors, as `reductions.py` does. A text model of
    one vector reads a page in at most `page_vectors` windows, as `windows.py` cuts them, with a vector for each.
    trust_remote_code, code: whether the model runs code of its own, and a hash of that.
    """

    kind: Literal["multi-vector", "one-vector"]
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "reduction", plain_name(self.reduction))
        if self.similarity not in SIMILARITIES:
            raise RandSlotError(
                f"this model compares its vectors by {self.similarity!r}, which MaxSim cannot express; known are "
                f"{', '.join(SIMILARITIES)}"
            )
        if self.reduction not in (NO_REDUCTION, *REDUCTIONS):
            raise UsageError(f"reduction={self.reduction!r} is not one of {NO_REDUCTION}, {', '.join(REDUCTIONS)}")
        if self.is_reduced and not self.several:
            raise UsageError(f"reduction={self.reduction!r} is for models of several vectors a page: this has one")
        if self.is_reduced and not self.unit:
            raise UsageError(
                f"reduction={self.reduction!r} is for vectors of unit length, and this model's have others"
            )
        if self.several and (self.page_vectors is not None) != self.is_reduced:
            raise UsageError(
                "reduction and page_vectors go together for a model with a vector for every token, as in "
                "--reduction kmeans --page-vectors 32"
            )
        if not self.several and self.query_vectors != 1:
            raise UsageError("this model has one vector a query, and no others can be asked for")
        if not self.several and self.reads == "image" and self.page_vectors != 1:
            raise UsageError("this model has one vector a page: only a text can be read in several windows")
        if self.several and self.query_vectors is not None:
            raise UsageError("query_vectors is for models with slots: this one has a vector for every token")
        for name in ("page_vectors", "seed"):
            value, (least, most) = getattr(self, name), LIMITS[name]
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")

    @property
    def several(self) -> bool:
        """Whether a page has several vectors."""
        return self.kind == "multi-vector"

    @property
    def is_reduced(self) -> bool:
        """Whether pages have fewer vectors than tokens by a reduction."""
        return self.reduction != NO_REDUCTION

    @property
    def in_windows(self) -> bool:
        """Whether a model of one vector reads the text of a page in several windows."""
        return not self.several and self.page_vectors != 1

    @property
    def label(self) -> str:
        """What tells runs of one model apart in tables: "tokens", "tokens by kmeans", "one vector", or "windows"."""
        if not self.several:
            return "windows" if self.in_windows else "one vector"
        return f"tokens by {self.reduction}" if self.is_reduced else "tokens"

    def num_vectors(self, side: Side) -> int | None:
        """Return how many vectors a query or a page has; None if every token has its own."""
        return self.query_vectors if side == "query" else self.page_vectors

    def vectors_name(self, side: Side) -> str:
        """Return a name for the vectors of one side under these settings, whatever the weights: for caches."""
        parts: list[str] = [side, "text" if side == "query" else self.reads]
        if side == "page" and self.is_reduced:
            parts += [self.reduction, f"seed{self.seed}"]
        return "-".join(parts)

    def has_prefixes(self, side: Side) -> bool:
        """Whether the vectors of a smaller budget are the first ones of a larger: never, here."""
        return False

    @property
    def note(self) -> str:
        """What should be said before an evaluation."""
        return ""

    @property
    def draws(self) -> bool:
        """Whether encoding draws from the seed."""
        return self.reduction in SEEDED_REDUCTIONS

    def change(self, **changes: Any) -> EmbeddingSettings:
        """Return these settings with some changed; what is the model's own must stay as it is.

        Errors: UsageError for a setting that such a model does not have, or that is its own.
        """
        known = {one.name for one in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise UsageError(f"{name}={value!r} is for RandSlot models, and this is one of sentence-transformers")
            if name not in CHOSEN and value != getattr(self, name):
                if name == "query_vectors":
                    raise UsageError(
                        f"query_vectors={value!r}: only RandSlot models have it, this one counts by itself"
                    )
                raise UsageError(f"{name}={value!r} does not go with this model, which has {getattr(self, name)!r}")
        return replace(self, **changes)


LARGEST = 65504.0  # that half precision can hold, in which libraries keep vectors
PIXELS = (400_000, 4_000_000)  # of a page image: at least and at most, whatever an image processor says
QUERIES = 32  # encoded at once


class EmbeddingModel:
    """A `MultiVectorEncoder` or `SentenceTransformer` that satisfies `PageReader`."""

    def __init__(
        self,
        model: MultiVectorEncoder | SentenceTransformer,
        source: Source,
        settings: EmbeddingSettings,
        dimension: int,
    ) -> None:
        """settings, dimension: of the model itself, which `embedding_loading` finds out."""
        self.model, self.source, self.settings, self._dimension = model, source, settings, dimension

    def __repr__(self) -> str:
        return f"EmbeddingModel({self.source.name}, {self.settings.kind}, {self.dimension} dimensions)"

    def use(self, **changes: Any) -> None:
        """Change settings of a model in use: reduction and page_vectors, seed, prompts.

        Errors: UsageError for a wrong value, or for what is the model's own.
        """
        self.settings = self.settings.change(**changes)
        self.model.prompts = dict(self.settings.prompts)
        self.model.default_prompt_name = self.settings.default_prompt_name

    # -- which model this is

    @property
    def identity(self) -> Identity:
        source, settings = self.source, asdict(self.settings)
        del settings["reads"]  # a fact of the weights
        return Identity(
            source.name, source.revision, self.weights_key, self.dtype, self.dimension, settings, self.reads
        )

    @cached_property
    def weights_key(self) -> str:
        """A hash of its weights, modules and processors: other ones, other vectors."""
        digest = blake2b(digest_size=12)
        for name, tensor in sorted(self.model.state_dict().items()):
            flat = tensor.detach().cpu().contiguous().flatten()
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        for module in self.model:
            config = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
            digest.update(f"{type(module).__name__} {json.dumps(config, sort_keys=True, default=str)}".encode())
        digest.update(describe_processor(getattr(self.model[0], "processor", None)))
        return digest.hexdigest()

    @cached_property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def device(self) -> Any:
        return self.model.device

    @property
    def reads(self) -> Reads:
        return self.settings.reads

    def is_cut(self, page: str) -> bool:
        most = getattr(self.model[0], "document_length", None) or self.model.max_seq_length
        if self.reads != "text" or most is None:
            return False
        prompt = self.model.prompts.get("document", "")
        for window in self._cut(page):
            if len(self.model.tokenizer(prompt + window, verbose=False)["input_ids"]) > most:
                return True
        return False

    def _cut(self, page: str) -> list[str]:
        return cut_windows(page, self.settings.page_vectors or 1) if self.settings.in_windows else [page]

    def num_vectors(self, side: Side) -> int | None:
        return self.settings.num_vectors(side)

    @property
    def page_pixels(self) -> int:
        least, most = PIXELS
        return max(least, min(find_pixels(self.model), most))

    # -- its own vectors and scores

    def encode_query(self, queries: Sequence[str], batch_size: int = QUERIES) -> list[Tensor]:
        """Return the vectors (L, D) of each query, as the model makes them.

        Errors: UsageError for a query without text.
        """
        texts = [check_query(query) for query in queries]
        return _as_rows(self.model.encode_query(texts, batch_size=batch_size, **self._how()))

    def encode_document(self, pages: Sequence[Any], batch_size: int = 8) -> list[Tensor]:
        """Return the vectors (L, D) of each page, as the model makes them, or fewer by the reduction."""
        opened = [self._open(page) for page in pages]
        if self.settings.in_windows:
            return self._encode_windows([str(page) for page in opened], batch_size)
        encoded = _as_rows(self.model.encode_document(opened, batch_size=batch_size, **self._how()))
        if not self.settings.is_reduced:
            return encoded
        return [self._reduce(vectors, page) for vectors, page in zip(encoded, opened, strict=True)]

    def _encode_windows(self, pages: Sequence[str], batch_size: int) -> list[Tensor]:
        """Return a vector for each window of each page."""
        cut = [self._cut(page) for page in pages]
        windows = [window for some in cut for window in some]
        encoded: Tensor = self.model.encode_document(windows, batch_size=batch_size, **self._how())
        return list(encoded.split([len(some) for some in cut])) if windows else []

    def _how(self) -> dict[str, Any]:
        own = {} if self.settings.several else {"convert_to_tensor": True}
        return {"show_progress_bar": False, **own}

    def _open(self, page: Any) -> Image.Image | str:
        if self.reads == "image":
            return open_page(page, self.page_pixels)
        if not isinstance(page, str):
            raise UsageError(f"this model reads the text of a page, not its image ({type(page).__name__})")
        return page

    def _reduce(self, vectors_LD: Tensor, page: Image.Image | str) -> Tensor:
        num = self.settings.page_vectors
        assert num is not None, "a reduction has a number of vectors"
        if len(vectors_LD) <= num:
            return vectors_LD
        content = page.encode() if isinstance(page, str) else f"{page.size}".encode() + page.tobytes()
        key = int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> 1
        return REDUCTIONS[self.settings.reduction](vectors_LD.float(), num, (self.settings.seed, key))

    def similarity(self, queries: Sequence[Tensor], pages: Sequence[Tensor], device: Any = None) -> Tensor:
        """Return the scores (Q, P) of pages for queries by the model's own measure."""
        if self.settings.several:
            assert isinstance(self.model, MultiVectorEncoder)
            scores: Tensor = self.model.similarity(list(queries), list(pages), device=device)
        else:
            scores = self.model.similarity(torch.cat(list(queries)), torch.cat(list(pages)))
            if self.settings.in_windows:  # a page is as near as the nearest of its windows
                parts = scores.split([len(page) for page in pages], dim=1)
                scores = torch.stack([part.max(dim=1).values for part in parts], dim=1)
        return scores

    # -- a reader of pages

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        if num_vectors not in (None, self.settings.query_vectors):
            raise UsageError("query_vectors is for models with slots: this one makes the vectors of a query by itself")
        if not queries:
            return []
        vectors = [self._bring(one) for one in self.encode_query(queries)]
        if self.settings.similarity == "meanmaxsim":
            return [one / np.float32(max(len(one), 1)) for one in vectors]
        return vectors

    def embed_pages(self, pages: Sequence[Image.Image | str]) -> list[Vectors]:
        return [self._bring(one) for one in self.encode_document(pages, batch_size=len(pages))] if pages else []

    def _bring(self, vectors_LD: Tensor) -> Vectors:
        """Return vectors as a library compares them.

        Errors: RandSlotError if they are not numbers that it can keep.
        """
        vectors_LD = vectors_LD.float()
        if self.settings.similarity == "cosine":
            vectors_LD = F.normalize(vectors_LD, dim=-1)
        found = vectors_LD.cpu().numpy()
        if not np.isfinite(found).all():
            raise RandSlotError(f"{self.source.name} makes vectors that are not finite in {self.dtype}: try another")
        if len(found) and np.abs(found).max() > LARGEST:
            raise RandSlotError(f"{self.source.name} makes vectors with numbers above {LARGEST:.0f}: too large to keep")
        return found.astype(np.float32)


def _as_rows(encoded: Any) -> list[Tensor]:
    """Return vectors as (L, D) each; one vector is a row of its own."""
    return [one if one.ndim == 2 else one[None] for one in encoded]


def describe_processor(processor: Any) -> bytes:
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


def find_pixels(model: MultiVectorEncoder | SentenceTransformer) -> int:
    """Return how many pixels of a page the image processor of a model looks at, as far as it says."""
    processor = getattr(model[0], "processor", None)
    image = getattr(processor, "image_processor", processor)
    size = getattr(image, "size", None)
    if size is None:
        return 0
    size = dict(size)
    if size.get("height") and size.get("width"):
        return 4 * int(size["height"]) * int(size["width"])  # a small square: sharper if made smaller by it
    longest = int(size.get("longest_edge") or 2 * int(size.get("shortest_edge") or 0))
    return longest if hasattr(image, "merge_size") else longest**2  # Qwen's sizes are areas
