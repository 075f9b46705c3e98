"""`RandSlotModel`, a `MultiVectorEncoder` for libraries, training, evaluation and export; how to load or build one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftConfig
from PIL import Image
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util import batch_to_device, get_device_name
from torch import Tensor

from ..errors import UsageError
from .backbone import Backbone, build_backbone, list_shapes, load_backbone
from .batching import batch_by_length
from .checkpoint import ADAPTER_CONFIG, add_adapter, is_saved_model, merge_adapter
from .encoder import SlotEncoder, load_encoder
from .families import find_family
from .families.base import Family
from .families.text import TextFamily
from .hub import MODEL_FILES, WITH_CODE, Source, resolve
from .own_code import use_strategy
from .preprocessing import PreparedPage, Preprocessor
from .reader import Identity, Reads, Side, Vectors, find_teacher
from .settings import Settings


class RandSlotModel(MultiVectorEncoder):
    """A `MultiVectorEncoder` that is also a `PageReader`, so that a library can use it.

    A remote model is a `RandSlotModel` too, with another module as its encoder.
    """

    # `embed_queries` encodes untrusted queries for a library or service, so it treats special tokens in them as text.
    # `encode_query` does not, like the paper's code.
    plain_queries = True

    @property
    def encoder(self) -> SlotEncoder:
        """The only module."""
        encoder: SlotEncoder = self[0]
        return encoder

    @property
    def backbone(self) -> Backbone:
        """The backbone, with its processors and family."""
        return self.encoder.parts

    @property
    def family(self) -> Family:
        """The family of the backbone."""
        return self.encoder.family

    @property
    def settings(self) -> Settings:
        """The encoding settings."""
        return self.encoder.settings

    def use(self, **settings: Any) -> None:
        """Change settings of a loaded model: any of `Settings` except `slots`, `template` and `widths`."""
        self.encoder.use(**settings)

    @property
    def preprocessor(self) -> Preprocessor:
        """The preprocessing of queries and pages; picklable."""
        return self.encoder.preprocessor

    # -- a `PageReader`

    @property
    def weights_key(self) -> str:
        """A hash of its weights, template and processors."""
        return self.encoder.weights_key()

    @property
    def identity(self) -> Identity:
        home, encoder = self.encoder.home, self.encoder
        settings = self.settings.as_dict()
        del settings["visual_tokens" if self.reads == "text" else "text_tokens"]  # unused by this model
        return Identity(home.name, home.revision, self.weights_key, encoder.dtype, self.dimension, settings, self.reads)

    @property
    def teacher(self) -> Identity | None:
        """The teacher, if this model is a student (a query-only encoder)."""
        return find_teacher(self.encoder)

    @property
    def dimension(self) -> int:
        return self.encoder.get_embedding_dimension()

    @property
    def reads(self) -> Reads:
        return self.family.reads

    @property
    def page_pixels(self) -> int:
        return self.encoder.page_pixels

    def is_cut(self, page: str) -> bool:
        return self.reads == "text" and len(self.encoder.open_page(page)) < len(page.strip())

    def num_vectors(self, side: Side) -> int | None:
        return self.settings.num_vectors(side)

    def embed_queries(self, queries: Sequence[str], num_vectors: int | None = None) -> list[Vectors]:
        if not queries:
            return []
        saved = self.settings.query_vectors
        if num_vectors is not None:
            if self.num_vectors("query") is None:
                raise UsageError(
                    f"query_vectors={num_vectors}: this model has one vector per token, not a fixed number"
                )
            self.use(query_vectors=num_vectors)
        self.encoder.plain_queries = self.plain_queries
        try:
            return _to_numpy(self.encode_query(list(queries)))
        finally:
            self.use(query_vectors=saved)
            self.encoder.plain_queries = False

    def embed_pages(self, pages: Sequence[Image.Image | str | PreparedPage]) -> list[Vectors]:
        if not pages:
            return []
        if isinstance(self.encoder, SlotEncoder):
            self.encoder.check_side("page")
        prepared = [page for page in pages if isinstance(page, PreparedPage)]
        if len(prepared) == len(pages):
            return _to_numpy(self.encode_prepared(prepared, len(pages)))
        return _to_numpy(self.encode_document(list(pages), batch_size=len(pages)))

    def prepare_page(self, page: Image.Image | str) -> Image.Image | str | PreparedPage:
        """Preprocess a page, unless the model is remote; thread-safe."""
        return self.preprocessor.prepare_page(page) if isinstance(self.encoder, SlotEncoder) else page

    def encode_prepared(self, pages: Sequence[PreparedPage], batch: int) -> list[Tensor]:
        """Return the vectors (K, D) of each page; a batch holds at most the tokens of `batch` full-size pages."""
        self.eval()
        lengths = [page.features["input_ids"].shape[1] for page in pages]
        max_positions = max(batch * self.preprocessor.num_tokens, max(lengths))
        encoded: dict[int, Tensor] = {}
        for numbers in batch_by_length(lengths, max_positions):
            features = self.preprocessor.join_pages([pages[number] for number in numbers])
            with torch.inference_mode():
                output = self(batch_to_device(features, self.device), task="document")
            for row, number in enumerate(numbers):
                mask = output["attention_mask"][row].bool()
                encoded[number] = output["token_embeddings"][row][mask]
        return [encoded[number] for number in range(len(pages))]

    # -- mteb, which by default treats a model in memory as a text model

    @property
    def mteb_model_meta(self) -> Any:
        """The metadata of mteb; the revision identifies weights and settings, so that mteb keeps results apart."""
        settings = blake2b(repr(self.settings).encode(), digest_size=4).hexdigest()
        name = f"randslot/{Path(self.encoder.source.name or 'in-memory').name}"
        return self._mteb().mteb_model_meta.model_copy(
            update={"name": name, "revision": f"{self.weights_key}-{settings}"}
        )

    def index(self, corpus: Any, **options: Any) -> None:
        """Index the pages of a task, for mteb."""
        self._search = self._mteb()
        self._search.index(corpus, **options)

    def search(self, queries: Any, **options: Any) -> Any:
        """Search the indexed pages, for mteb."""
        return self._search.search(queries, **options)

    def _mteb(self) -> Any:
        from mteb.models import MultiVectorWrapper

        wrapper = MultiVectorWrapper(self)
        modalities = self.encoder.modalities
        wrapper.mteb_model_meta = wrapper.mteb_model_meta.model_copy(update={"modalities": modalities})
        return wrapper


def _to_numpy(encoded: Sequence[Any]) -> list[Vectors]:
    return [np.asarray(vectors.float().cpu(), np.float32) for vectors in encoded]


# -- loading and building models


def load(
    name: str | Path | Source,
    *,
    lora: bool | PeftConfig | Mapping[str, Any] = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    backbone: str | Path | None = None,
    trust_remote_code: bool = False,
    **settings: Any,
) -> RandSlotModel:
    """Load a saved RandSlot model, or build a new one on a backbone; `name` is a folder or a hub id.

    lora: True for the paper's adapter, a mapping with another rank, alpha or dropout, or a PEFT config. dtype: by
    default bfloat16 on a GPU and float32 elsewhere. backbone: the new path of a saved adapter's backbone, if it moved.
    trust_remote_code: run the strategy or family that is saved with the model as a Python file (review it first).

    settings: any field of `Settings`, overriding the saved values. `slots` and `template` can only be set for a new
    model.
    """
    files = WITH_CODE if trust_remote_code else MODEL_FILES
    source = name if isinstance(name, Source) else resolve(name, revision, files=files)
    changes = {key: value for key, value in settings.items() if value is not None}
    if "slots" in changes:
        changes["slots"] = use_strategy(changes["slots"])
    device = str(device or get_device_name())
    weights = choose_dtype(dtype, device)
    if backbone is not None and not source.file(ADAPTER_CONFIG).is_file():
        raise UsageError(f"backbone= requires a saved adapter; {source.name} is not one")
    if is_saved_model(source):
        encoder = load_encoder(
            source,
            changes=changes,
            backbone=backbone,
            dtype=weights,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
        )
        return _wrap(encoder, lora, device)
    chosen = Settings().change(**changes)
    parts = load_backbone(source, dtype=weights, attn_implementation=attn_implementation)
    return _wrap(SlotEncoder(parts, chosen), lora, device)


def untrained(
    shape: str,
    *,
    lora: bool | PeftConfig | Mapping[str, Any] = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    attn_implementation: str | None = None,
    **settings: Any,
) -> RandSlotModel:
    """Build a model with random weights, without a download.

    shape: a name from `randslot/model/shapes`, such as "qwen2.5-vl-3b" or "qwen3-vl-tiny", or the path of such a JSON
    file. `device="meta"` allocates no weights. Other options: see `load`.
    """
    if "slots" in settings:
        settings["slots"] = use_strategy(settings["slots"])
    chosen = Settings().change(**settings)
    device = str(device or get_device_name())
    backbone = build_backbone(
        shape,
        seed=chosen.seed,
        device=device,
        dtype=choose_dtype(dtype, device),
        attn_implementation=attn_implementation,
    )
    return _wrap(SlotEncoder(backbone, chosen), lora, device)


def tiny(family: str, **options: Any) -> RandSlotModel:
    """Build a tiny model with random weights of a family such as "qwen3-vl" or "smolvlm", for tests and examples.

    Options: see `untrained`.
    """
    return untrained(f"{find_family(family).name}-tiny", **options)


def _wrap(encoder: SlotEncoder, lora: bool | PeftConfig | Mapping[str, Any], device: str) -> RandSlotModel:
    if lora is True:
        lora = {}
    if isinstance(lora, Mapping):
        lora = encoder.family.make_lora(**lora)
    if lora is not False:
        encoder.parts = add_adapter(encoder.parts, lora, encoder.settings.seed)
    return RandSlotModel(modules=[encoder], device=device)


def choose_dtype(dtype: str | torch.dtype | None, device: str) -> torch.dtype:
    """Return the dtype of weights: by default bfloat16 on a GPU and float32 elsewhere."""
    if dtype is None:
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    found: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if not found.is_floating_point:
        raise UsageError(f"dtype={dtype!r} is not a floating point type")
    return found


def make_student(name: str, teacher: Identity, *, layers: int = 0, seed: int = 42) -> RandSlotModel:
    """Build a student: a small text model, in float32 with zero slots, that learns a teacher's query vectors.

    name: the text model to start from (a folder or hub id; its adapter is merged), or a shape to build with random
    weights (a name, "tiny", or a JSON file). layers: keep only the first `layers` layers (0: all); of an encoder, the
    last one kept is its final layer. If it is a student of the same teacher, training continues from its weights.
    """
    num = teacher.num_vectors("query")
    assert num is not None, "a student learns a fixed number of vectors"
    start: SlotEncoder | None = None  # if the model is an encoder
    shape = "llama-tiny" if name == "tiny" else name
    if not Path(name).is_dir() and (shape.endswith(".json") or shape in list_shapes()):
        parts = build_backbone(shape, seed=seed, dtype=torch.float32)
    elif not is_saved_model(source := resolve(name)):
        parts = load_backbone(source, dtype=torch.float32)
    else:
        start = load_encoder(source, dtype=torch.float32)
        old = start.teacher
        if old is not None and (old.weights, old.settings) != (teacher.weights, teacher.settings):
            raise UsageError(f"student {name} was distilled from {old}, not {teacher}. Pass another --student.")
        merge_adapter(start.backbone).requires_grad_(True)
        parts = start.parts
    if not isinstance(parts.family, TextFamily):
        raise UsageError(f"student {name} is a {parts.family} model. Pass a text model.")
    if layers:
        # The final layer of an encoder produces its vectors; that of a language model only predicts tokens.
        parts.family.keep_layers(parts.model, layers, last=start is not None and layers > 1)
    widths = tuple(width for width in teacher.settings.get("widths", ()) if width < teacher.dimension)
    encoder = SlotEncoder(parts, Settings("zero", query_vectors=num, page_vectors=num, seed=seed, widths=widths))
    encoder.become_student(teacher)
    if encoder.head is not None and start is not None and start.head is not None:
        encoder.head.load_state_dict(start.head.state_dict())
    return RandSlotModel(modules=[encoder], device=get_device_name())
