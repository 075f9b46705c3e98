"""Content -> K vectors: the one module of a RandSlot model, as sentence-transformers wants it.

Preprocessing (templates, padding, image size), the choice of slots, and the pass through the backbone.

Shapes: B batch, K vectors, D dimension.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..pages import limit_aspect, open_page
from .backbone import IMAGE_TOKEN, PAGE_PROMPT, Backbone, Content, read_content
from .card import RandSlotCard
from .checkpoint import SLOTS, check_fit, read_files, save_files
from .hub import Source, find
from .readout import read_once, read_stepwise, read_tokens
from .reductions import REDUCTIONS, reduce_pages
from .slots import STRATEGIES, Sequential, Side, Strategy, Table, Tokens

LIMITS = {"query_vectors": (1, 4096), "page_vectors": (1, 4096), "visual_tokens": (4, 2**20), "seed": (0, 2**32 - 1)}


@dataclass(frozen=True)
class Settings:
    """How a model makes its vectors.

    slots: the strategy it is trained with. inference: what is appended when encoding; by default the same, but zeros
    after random training, which gives a page the same vectors every time at almost no loss (the paper's RS-Z).
    query_vectors, page_vectors: the budgets. visual_tokens: the most merged visual tokens a page may take.

    With slots="tokens" every token has a vector and the budgets do not count, but for `reduction`: it brings each page
    to at most `page_vectors` when encoding. Queries and training keep all.
    """

    slots: str = "random"
    inference: str = ""
    query_vectors: int = 4
    page_vectors: int = 4
    visual_tokens: int = 1536
    seed: int = 42
    reduction: str = "none"

    def __post_init__(self) -> None:
        if not self.inference:
            object.__setattr__(self, "inference", "zero" if self.slots == "random" else self.slots)
        strategies = tuple(STRATEGIES)
        reductions = ("none", *REDUCTIONS)
        for name, allowed in (("slots", strategies), ("inference", strategies), ("reduction", reductions)):
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        if issubclass(STRATEGIES[self.inference], Table) and self.inference != self.slots:
            raise UsageError(
                f"inference={self.inference!r} needs stored slots, and a model with slots={self.slots!r} has none"
            )
        if (self.inference == "tokens") != (self.slots == "tokens"):
            raise UsageError(
                f"inference={self.inference!r} does not go with slots={self.slots!r}: a model reads slots or tokens, "
                "as it was trained"
            )
        if self.reduction != "none" and self.slots != "tokens":
            raise UsageError(f"reduction={self.reduction!r} needs a model with slots='tokens', not {self.slots!r}")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")

    def vectors(self, side: Side) -> int:
        """Return the budget of one side."""
        return self.query_vectors if side == "query" else self.page_vectors


class SlotEncoder(InputModule):
    """A backbone and its slots: turns queries into (B, K, D) and pages into (B, K, D) unit vectors.

    `rows` is how many slots are stored for each side, where it differs from what the budgets need: a model that
    stores three slots a side can be asked for eight vectors.
    """

    __module__ = "randslot.encoder"  # the name in modules.json of saved models, wherever this file is
    config_keys: ClassVar[list[str]] = [field.name for field in fields(Settings)]

    def __init__(self, backbone: Backbone, settings: Settings, rows: dict[Side, int] | None = None) -> None:
        super().__init__()
        self.parts = backbone
        self.home = backbone.source  # where the whole came from; a saved adapter's backbone is elsewhere
        self.backbone = backbone.model
        self.tokenizer = backbone.tokenizer
        self.image_processor = backbone.image_processor
        self.rows = rows or {"query": settings.query_vectors - 1, "page": settings.page_vectors - 1}
        self.settings = settings
        self.slots = self._make_strategy(settings.slots)
        self.use(inference=settings.inference)

    def use(self, **changes: Any) -> None:
        """Change settings of a model in use: inference, query_vectors, page_vectors, visual_tokens, seed, reduction.

        Errors: UsageError for a wrong value, or for another `slots`, which is what a model is trained with.
        """
        if changes.get("slots", self.settings.slots) != self.settings.slots:
            raise UsageError(
                f"this model is trained with slots={self.settings.slots!r}; another strategy starts from the backbone, "
                "and inference= sets what is appended when encoding"
            )
        self.settings = settings = make_settings(self.settings, changes)
        self.slots.seed = settings.seed
        same = settings.inference == settings.slots
        self.inference_slots = self.slots if same else self._make_strategy(settings.inference)

    def _make_strategy(self, name: str) -> Strategy:
        return STRATEGIES[name](self.get_embedding_dimension(), self.rows, self.settings.seed)

    @property
    def family(self) -> str:
        return self.parts.family

    @property
    def dtype(self) -> str:
        return str(self.backbone.dtype).removeprefix("torch.")

    @property
    def source(self) -> Source:
        return self.parts.source

    def image_size(self) -> dict[str, int]:
        """Return the least and most pixels of a page, as the image processor calls them."""
        most = self.settings.visual_tokens * (self.image_processor.patch_size * self.image_processor.merge_size) ** 2
        # A quarter at the most: the processor rounds small images up, and must stay within the limit all the same.
        least = min(self.image_processor.size["shortest_edge"], most // 4)
        return {"shortest_edge": least, "longest_edge": most}

    @property
    def most_pixels(self) -> int:
        """The most pixels of a page image that the model looks at."""
        return self.image_size()["longest_edge"]

    @property
    def modalities(self) -> list[Any]:
        return ["text", "image"]

    @property
    def max_seq_length(self) -> int:
        length: int = self.backbone.config.get_text_config().max_position_embeddings
        return length

    def get_embedding_dimension(self) -> int:
        dim: int = self.backbone.config.get_text_config().hidden_size
        return dim

    def get_config_dict(self) -> dict[str, Any]:
        return {key: getattr(self.settings, key) for key in self.config_keys}

    # -- from inputs to features

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None
    ) -> dict[str, Tensor]:
        """Turn queries (text) or pages (images or their paths) into left-padded features.

        The side is named by `task` ("query" or "document"); without one, text is a query and an image a page.
        """
        items, side = sort_inputs(inputs, task)
        return self._preprocess_queries(items, prompt) if side == "query" else self._preprocess_pages(items, prompt)

    def _preprocess_queries(self, queries: list[Any], prompt: str | None) -> dict[str, Tensor]:
        texts = [(prompt or "") + check_query(query) for query in queries]
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return self.pad(ids) | {"keys": _keys([text.encode() for text in texts])}

    def _preprocess_pages(self, pages: list[Any], prompt: str | None) -> dict[str, Tensor]:
        images = self._open(pages, prompt)
        seen = self.image_processor(images, size=self.image_size(), return_tensors="pt")
        before, after = (
            self.tokenizer(part, add_special_tokens=False)["input_ids"] for part in PAGE_PROMPT.split(IMAGE_TOKEN)
        )
        counts = (seen["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2).tolist()
        ids = [before + [self.backbone.config.image_token_id] * count + after for count in counts]
        keys = _keys([f"{image.size}".encode() + image.tobytes() for image in images])
        return self.pad(ids) | {
            "pixel_values": seen["pixel_values"],
            "image_grid_thw": seen["image_grid_thw"],
            "keys": keys,
        }

    def _open(self, pages: list[Any], prompt: str | None) -> list[Image.Image]:
        return open_pages(pages, prompt, self.most_pixels, self.settings.visual_tokens)

    def pad(self, ids: list[list[int]]) -> dict[str, Tensor]:
        """Return ids, padded on the left, with their mask."""
        return dict(self.tokenizer.pad({"input_ids": ids}, padding=True, padding_side="left", return_tensors="pt"))

    # -- from features to vectors

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return `token_embeddings` (B, K, D), unit vectors in float32, and their `attention_mask` (B, K).

        The mask has zeros only where every token is read and some inputs are shorter than others.
        """
        side: Side = "page" if "pixel_values" in features else "query"
        num = self.settings.vectors(side) - 1
        strategy = self.slots if self.training else self.inference_slots
        content = read_content(self.backbone, features)
        if isinstance(strategy, Tokens):
            return self._read_tokens(content, side, features["keys"])
        if isinstance(strategy, Sequential):
            # Checkpointed layers keep no cache: then the prefix runs again at every step, with the same result.
            cached = not (self.training and self.backbone.is_gradient_checkpointing)
            vectors = read_stepwise(
                self.backbone, content, num, lambda _, readout: strategy.step(readout), cached=cached
            )
        else:
            vectors = read_once(self.backbone, content, strategy(side, num, features["keys"]))
        mask = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
        return {"token_embeddings": vectors, "attention_mask": mask}

    def _read_tokens(self, content: Content, side: Side, keys: Tensor) -> dict[str, Tensor]:
        vectors, mask, settings = read_tokens(self.backbone, content), content.mask_BL, self.settings
        if settings.reduction != "none" and side == "page" and not self.training:
            seeds = [(settings.seed, key) for key in keys.tolist()]
            vectors, mask = reduce_pages(settings.reduction, vectors, mask, settings.page_vectors, seeds)
        return {"token_embeddings": vectors, "attention_mask": mask}

    # -- files

    def on_model_ready(self, model: Any) -> None:
        """Give the owning model a card of ours, however it was made."""
        if not isinstance(model.model_card_data, RandSlotCard):
            model.model_card_data = RandSlotCard(local_files_only=True)
            model.model_card_data.register_model(model)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the module into a folder; see `checkpoint.py`."""
        tables = self.slots.state_dict() if isinstance(self.slots, Table) else {}
        parts = replace(self.parts, tokenizer=self.tokenizer, image_processor=self.image_processor)
        save_files(Path(output_path), parts, self.get_config_dict(), self.rows, tables)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> SlotEncoder:
        """Load what `save` wrote, for plain `MultiVectorEncoder(path, trust_remote_code=True)`."""
        options = {"dtype" if key == "torch_dtype" else key: value for key, value in (model_kwargs or {}).items()}
        if unknown := sorted(options.keys() - {"dtype", "attn_implementation"}):
            raise UsageError(f"model_kwargs takes dtype and attn_implementation, not {', '.join(unknown)}")
        folder = Path(model_name_or_path).is_dir()
        source = find(
            model_name_or_path,
            None if folder else revision,
            cache_folder=cache_folder,
            token=token,
            local_files_only=local_files_only,
        )
        return load_encoder(source, **options)


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
    saved = read_files(source, backbone=backbone, dtype=dtype, attn_implementation=attn_implementation)
    encoder = SlotEncoder(saved.backbone, make_settings(None, saved.settings, source.name), saved.rows)
    encoder.home = source
    if isinstance(encoder.slots, Table):
        if not saved.tables:
            raise RandSlotError(f"{source.name} lacks {SLOTS}")
        check_fit(f"slot tables of {source.name}", saved.tables, encoder.slots.state_dict())
        encoder.slots.load_state_dict(saved.tables)
    encoder.use(**changes or {})
    return encoder


def make_settings(base: Settings | None, values: dict[str, Any], name: str | None = None) -> Settings:
    """Make settings from a base with some values changed, or from a saved model's values, which must be complete.

    Errors: RandSlotError for unknown or missing ones.
    """
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(values.keys() - known):
        raise UsageError(f"unknown setting {unknown[0]!r}; known ones: {', '.join(sorted(known))}")
    if base is not None:
        return replace(base, **values)
    if missing := sorted(known - values.keys() - {"reduction"}):  # models of before lack it
        raise RandSlotError(f"randslot.json of {name} lacks {', '.join(missing)}")
    return Settings(**values)


def sort_inputs(inputs: Sequence[Any], task: str | None) -> tuple[list[Any], Side]:
    """Return plain inputs and their side: by `task`, or else text is a query and an image a page."""
    items = [_unwrap(item) for item in inputs]
    if task is None:
        return items, "query" if all(isinstance(item, str) for item in items) else "page"
    return items, "query" if task == "query" else "page"


def check_query(query: Any) -> str:
    """Return a query that can be encoded.

    Errors: UsageError in one line if it is no text, empty, or broken.
    """
    if not isinstance(query, str):
        raise UsageError(f"a query must be text, not {type(query).__name__}; pages go to encode_document")
    if not query.strip():
        raise UsageError("empty query: a query needs at least one character that is not a space")
    if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
        raise UsageError(f"a query has characters that are not valid text: {ascii(query)[:80]}")
    return query


def open_pages(pages: list[Any], prompt: str | None, pixels: int, visual_tokens: int) -> list[Image.Image]:
    """Open pages as images that the image processor takes: PDFs at about `pixels` pixels, no extreme sides."""
    if prompt:
        raise RandSlotError(f"pages take no prompt of their own, but one was given: {prompt!r}")
    # Above 200:1 the image processor refuses; above 1:visual_tokens it would exceed the limit.
    return [limit_aspect(open_page(page, pixels), min(200, visual_tokens)) for page in pages]


def _unwrap(item: Any) -> Any:
    """Take {"image": x} and {"text": x}, as mteb sends them, and paths of any kind."""
    if isinstance(item, Mapping):
        if len(item) != 1 or not item.keys() <= {"image", "text"}:
            raise RandSlotError(f"a query is text and a page is an image, but one input has {sorted(item)}")
        (item,) = item.values()
    return item if not isinstance(item, os.PathLike) else os.fspath(item)


def _keys(contents: list[bytes]) -> Tensor:
    """Hash each content into one number, the seed of its slots under inference="random"."""
    digests = [blake2b(content, digest_size=8).digest() for content in contents]
    return torch.tensor([int.from_bytes(digest, "big") >> 1 for digest in digests])
