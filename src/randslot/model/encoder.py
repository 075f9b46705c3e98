"""`SlotEncoder`, a sentence-transformers module: preprocess, append slots, run the backbone.

Shapes: B batch, K vectors, D dimension.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn

from ..errors import UsageError
from ..files import write_whole
from .backbone import Backbone
from .checkpoint import HEAD, SLOTS, RandSlotCard, check_fit, hash_weights, read_files, read_tensors, save_files
from .families.base import VisionOutput
from .hub import MODEL_FILES, WITH_CODE, Source, resolve
from .own_code import list_code, load_code
from .preprocessing import PAPER, Preprocessor, Processors, Template
from .reader import Identity, Side, narrow
from .readout import Content, read_once, read_stepwise, read_tokens
from .reductions import reduce_pages
from .settings import Settings, check_choice, read_settings
from .slots import STRATEGIES, Sequential, Strategy, torch_seed


class SlotEncoder(InputModule):
    """A backbone and its slots: encodes queries and pages as unit vectors (B, K, D).

    rows: the number of stored slots per side, if it differs from the budgets: a model that stores three slots per side
    can still return eight vectors.
    """

    __module__ = "randslot.encoder"  # the name in modules.json of saved models
    config_keys: ClassVar[list[str]] = [field.name for field in fields(Settings)]

    def __init__(self, backbone: Backbone, settings: Settings, rows: dict[Side, int] | None = None) -> None:
        super().__init__()
        paper = Template(backbone.family.prompt(backbone.processors.tokenizer))
        templates = {PAPER: paper, **backbone.family.templates}
        check_choice("template", settings.template, templates)
        self.template = templates[settings.template]
        self.parts = replace(backbone, processors=replace(backbone.processors, template=self.template))
        self.family, self.source = backbone.family, backbone.source
        self.home = backbone.source  # the model's own files; the backbone of a saved adapter is elsewhere
        self.backbone = backbone.model
        # The dimension of slots, and of vectors before a projection.
        self.hidden_size: int = backbone.model.config.get_text_config().hidden_size
        self.tokenizer = backbone.processors.tokenizer
        self.image_processor = backbone.processors.image
        self.rows = rows or {"query": settings.query_vectors - 1, "page": settings.page_vectors - 1}
        self.settings = settings
        self.teacher: Identity | None = None  # of a student
        self.head: nn.Linear | None = None  # of a student: the projection to the teacher's dimension, if it differs
        self.slots = self._make_strategy(settings.slots)
        self.record: dict[str, str] = {}  # the files of its training run, by name, saved with it
        self.plain_queries = False  # treat special tokens in queries as text
        self.loops = False  # in training, run every prefix with its own dropout, as the paper does
        self.recall_vision: Callable[[Tensor], VisionOutput] | None = None  # of `FrozenVision`, by page numbers
        self.use(inference=settings.inference)

    def use(self, **changes: Any) -> None:
        """Change settings of a loaded model, except `slots`, `template` and `widths`; UsageError for a wrong value."""
        settings = self.settings.change(**changes)
        for name in ("slots", "template", "widths"):
            trained = getattr(self.settings, name)
            if getattr(settings, name) != trained:
                raise UsageError(
                    f"cannot change {name}: this model was trained with {trained!r}. Start from the backbone."
                )
        if settings.width > self.full_width:
            raise UsageError(f"width={settings.width}: vectors of this model have {self.full_width} dimensions")
        min_tokens = self.family.min_tokens(self.processors)
        if settings.visual_tokens < min_tokens:
            raise UsageError(
                f"visual_tokens={settings.visual_tokens}: a {self.family} page takes at least {min_tokens}"
            )
        max_vectors = self.teacher.num_vectors("query") if self.teacher else None
        if max_vectors is not None and settings.query_vectors > max_vectors:
            raise UsageError(f"query_vectors={settings.query_vectors}: this student makes at most {max_vectors}")
        strategy = self.slots if settings.inference == settings.slots else self._make_strategy(settings.inference)
        if strategy is not self.slots and strategy.state_dict():
            raise UsageError(
                f"inference={settings.inference!r} needs stored slots, but a model with slots={settings.slots!r} "
                "has none"
            )
        self.settings = settings
        self.slots.seed = strategy.seed = settings.seed
        self.inference_slots = strategy

    def _make_strategy(self, name: str) -> Strategy:
        return STRATEGIES[name](self.hidden_size, self.rows, self.settings.seed)

    def become_student(self, teacher: Identity) -> None:
        """Turn this into a student, which encodes queries only, in its teacher's dimension."""
        self.teacher = teacher
        if teacher.dimension != self.hidden_size:
            with torch_seed(self.settings.seed):
                self.head = nn.Linear(self.hidden_size, teacher.dimension)
            nn.init.zeros_(self.head.bias)

    @property
    def processors(self) -> Processors:
        """The current tokenizer and image processor: sentence-transformers lets users replace the tokenizer."""
        return Processors(self.tokenizer, self.image_processor, self.template, self.plain_queries)

    @property
    def preprocessor(self) -> Preprocessor:
        """The preprocessing, without weights; picklable."""
        return Preprocessor(self.family, self.processors, self.page_tokens, self.backbone.dtype)

    @property
    def dtype(self) -> str:
        return str(self.backbone.dtype).removeprefix("torch.")

    @property
    def modalities(self) -> list[Any]:
        return ["text", "image"] if self.family.reads == "image" else ["text"]

    @property
    def max_seq_length(self) -> int:
        length: int = self.backbone.config.get_text_config().max_position_embeddings
        return length

    @property
    def full_width(self) -> int:
        """The dimension of vectors before they are narrowed."""
        return self.head.out_features if self.head is not None else self.hidden_size

    def get_embedding_dimension(self) -> int:
        return self.settings.width or self.full_width

    def get_config_dict(self) -> dict[str, Any]:
        return self.settings.as_dict()

    @property
    def page_tokens(self) -> int:
        """The maximum number of tokens per page, without its prompt."""
        return self.settings.text_tokens if self.family.reads == "text" else self.settings.visual_tokens

    @property
    def page_pixels(self) -> int:
        """The maximum number of pixels that the model uses of a page image."""
        return self.family.page_pixels(self.processors, self.page_tokens)

    def weights_key(self) -> str:
        """Return a hash of weights, template and processors."""
        # The prefix gives weights their names in the whole model.
        return hash_weights(self.state_dict(prefix="0."), self.processors.describe())

    # -- from inputs to features

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages into left-padded features with their side.

        task: "query" or "document"; without it, text is a query and an image a page. prompt: for queries only; it
        replaces the instruction of the template, or precedes each query if the template has none.
        """
        return self.preprocessor(inputs, prompt, task)

    def check_side(self, side: Side) -> None:
        """Raise UsageError for pages if this is a student."""
        if side == "page" and self.teacher is not None:
            raise UsageError(f"this student encodes queries only. Encode pages with {self.teacher}.")

    def open_page(self, page: Any) -> Any:
        """Open a page as the model reads it."""
        return self.preprocessor.open_page(page)

    # -- from features to vectors

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        """Return `token_embeddings` (B, K, D), unit vectors in float32, and their `attention_mask` (B, K)."""
        return self.read(self.read_content(features), features)

    def read_content(self, features: dict[str, Any]) -> Content:
        """Embed left-padded features; reuse the cached output of a frozen vision tower."""
        vision = None
        if "page_numbers" in features:
            assert self.recall_vision is not None
            vision = self.recall_vision(features["page_numbers"])
        elif "vision_cache" in features and self.parts.vision_is_frozen:
            cache: dict[str, Any] = features["vision_cache"]  # a gradient cache encodes each page twice
            if "output" not in cache:
                cache["output"] = self.parts.run_vision(features)
            vision = cache["output"]
        return self.parts.read_content(features, vision)

    def read(self, content: Content, features: dict[str, Any]) -> dict[str, Tensor]:
        """Return the result of `forward` for embedded features."""
        settings, side, keys = self.settings, features["side"], features["keys"]
        self.check_side(side)
        strategy = self.slots if self.training else self.inference_slots
        if strategy.training:
            keys = features["draws"] if "draws" in features else draw_keys(keys)
        if strategy.every_token:
            vectors, mask = read_tokens(self.parts, content), content.mask_BL
        else:
            vectors = self._read_slots(content, strategy, side, keys)
            mask = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
        if self.head is not None:
            vectors = F.normalize(self.head(vectors.to(self.head.weight.dtype)).float(), dim=-1)
        if settings.is_reduced and side == "page" and not self.training:
            if settings.reduction == "random" and self.family.image_token:  # the paper selects among patches only
                mask = mask * (features["input_ids"] == self.backbone.config.image_token_id)
            seeds = [(settings.seed, key) for key in keys.tolist()]
            vectors, mask = reduce_pages(settings.reduction, vectors, mask, settings.page_vectors, seeds)
        if settings.width and not self.training:
            vectors = narrow_tensor(vectors, settings.width)
        return {"token_embeddings": vectors, "attention_mask": mask}

    def _read_slots(self, content: Content, strategy: Strategy, side: Side, keys: Tensor) -> Tensor:
        """Append the slots of a strategy, and return K readouts (B, K, D)."""
        num = self.settings.vectors(side) - 1
        if isinstance(strategy, Sequential):
            # Checkpointed layers keep no KV cache: then every step reruns the prefix, with the same result.
            checkpointed = self.training and self.backbone.is_gradient_checkpointing
            cached = not checkpointed and (self.family.cache_keeps_gradients or not torch.is_grad_enabled())
            return read_stepwise(self.parts, content, num, lambda _, readout: strategy.step(readout), cached=cached)
        slots_BSD = strategy(side, num, keys)
        # A user's strategy may return anything.
        assert slots_BSD.shape == (len(keys), num, strategy.dim), f"slots have shape {tuple(slots_BSD.shape)}"
        if self.training and self.loops:
            return read_stepwise(self.parts, content, num, lambda t, _: slots_BSD[:, t], cached=False)
        return read_once(self.parts, content, slots_BSD)

    # -- files

    def on_model_ready(self, model: Any) -> None:
        """Set our card on the model that owns this module."""
        if not isinstance(model.model_card_data, RandSlotCard):
            run = json.loads(self.record.get("run.json", "{}"))
            model.model_card_data = RandSlotCard(local_files_only=True, trained_on=run.get("trained_on", ""))
            model.model_card_data.register_model(model)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the module into a folder; see `checkpoint.py`."""
        parts = replace(self.parts, processors=self.processors)
        values = self.get_config_dict() | ({"teacher": self.teacher.as_dict()} if self.teacher else {})
        head = self.head.state_dict() if self.head is not None else {}
        save_files(Path(output_path), parts, values, self.rows, {SLOTS: self.slots.state_dict(), HEAD: head})
        for name, text in (self.record | list_code(self.settings)).items():
            write_whole(Path(output_path, name), text)

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
        """Load a saved module, for plain `MultiVectorEncoder(path, trust_remote_code=True)`."""
        trust = bool(kwargs.get("trust_remote_code"))
        source = resolve(
            model_name_or_path,
            None if Path(model_name_or_path).is_dir() else revision,
            files=WITH_CODE if trust else MODEL_FILES,
            cache_dir=cache_folder,
            token=token,
            local_files_only=local_files_only,
        )
        return load_encoder(source, trust_remote_code=trust, **model_kwargs or {})


def narrow_tensor(vectors_BKD: Tensor, width: int, *, unit: bool = True) -> Tensor:
    """Narrow tensors by `narrow`, so that all kinds of models give the same bits."""
    return torch.from_numpy(narrow(vectors_BKD.detach().float().cpu().numpy(), width, unit=unit)).to(vectors_BKD.device)


def draw_keys(keys_B: Tensor) -> Tensor:
    """Draw a seed per example of a batch, for its slots in training."""
    return torch.randint(2**63 - 1, keys_B.shape).to(keys_B.device)


def load_encoder(
    source: Source,
    *,
    changes: Mapping[str, Any] | None = None,
    backbone: str | Path | None = None,
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> SlotEncoder:
    """Load a saved encoder; `changes` override its settings, `backbone` the path of its backbone."""
    load_code(source, trust_remote_code=trust_remote_code)
    parts, config = read_files(source, backbone=backbone, dtype=dtype, attn_implementation=attn_implementation)
    values = {key: config[key] for key in config.keys() - {"format", "stored", "adapter", "backbone", "teacher"}}
    encoder = SlotEncoder(parts, read_settings(values, source.name), config["stored"])
    encoder.home = source
    for name in ("recipe.toml", "distill.json", "run.json"):
        if source.file(name).is_file():
            encoder.record[name] = source.file(name).read_text(encoding="utf-8")
    if "teacher" in config:
        encoder.become_student(config["teacher"])
    for what, file, module in (("slot tables", SLOTS, encoder.slots), ("projection", HEAD, encoder.head)):
        if module is not None and module.state_dict():
            weights = read_tensors(source.file(file))
            check_fit(f"{what} of {source.name}", weights, module.state_dict())
            module.load_state_dict(weights)
    encoder.use(**changes or {})
    return encoder


class CachedPage(NamedTuple):
    """A page whose vision output is cached: its features have no pixels."""

    number: int
    features: dict[str, Any]


class FrozenVision:
    """Freezes the vision tower of an encoder, and caches its output for each page.

    For many epochs over few pages: a training step then costs little more than the language model.
    """

    def __init__(self, encoder: SlotEncoder) -> None:
        self.encoder, self.backbone = encoder, encoder.parts
        self.pages: dict[str | bytes, CachedPage] = {}
        self.outputs: list[VisionOutput] = []
        self.backbone.freeze_vision()
        self.encoder.recall_vision = self.recall

    def close(self) -> None:
        """Drop the cached pages; the tower stays frozen."""
        self.encoder.recall_vision = None

    def read(self, page: str | bytes) -> CachedPage:
        """Return a page by its path or image bytes; on a cache miss, open it and run the tower."""
        key = blake2b(page).digest() if isinstance(page, bytes) else page
        if key not in self.pages:
            features = self.encoder.preprocess([page], task="document")
            device = self.backbone.model.device
            tensors = {name: value.to(device) for name, value in features.items() if isinstance(value, Tensor)}
            with torch.no_grad():
                output = self.backbone.run_vision(tensors)
            assert output is not None
            del features["pixel_values"]
            self.pages[key] = CachedPage(len(self.outputs), features)
            self.outputs.append(output)
        return self.pages[key]

    def recall(self, page_numbers: Tensor) -> VisionOutput:
        """Return the cached output of the tower for pages, by number."""
        outputs = [self.outputs[number] for number in page_numbers.tolist()]
        return tuple(torch.cat(layer) for layer in zip(*outputs, strict=True))

    def preprocess(self, pages: list[CachedPage]) -> dict[str, Any]:
        """Return the features of cached pages, like the model's `preprocess`, with page numbers instead of pixels."""
        ids = [page.features["input_ids"][0].tolist() for page in pages]
        features: dict[str, Any] = dict(pages[0].features)
        for name, value in features.items():
            if isinstance(value, Tensor) and name not in ("input_ids", "attention_mask"):
                features[name] = torch.cat([page.features[name] for page in pages])
        numbers = torch.tensor([page.number for page in pages])
        return features | self.encoder.processors.pad(ids) | {"page_numbers": numbers}
