"""What a family of backbones is: everything that differs from one to the next, behind one interface.

Shapes: B batch, L positions, D hidden dimension.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...errors import RandSlotError, UsageError
from ...files import read_json
from ..content import Content
from ..hub import Source
from ..reader import Reads
from ..template import BARE, PAPER, Template

Features = dict[str, Tensor]
TOKENIZER_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Processors:
    """What turns text and images into the numbers that a backbone takes; a family that reads text has no images.

    template: the one of the model that they belong to. plain_queries: special tokens in queries are text, so that who
    writes one cannot reach beyond it; without a template the paper's tokenizer takes them for what they name.
    """

    tokenizer: PreTrainedTokenizerBase
    image: Any = None
    template: Template = BARE
    plain_queries: bool = False

    def pad(self, ids: list[list[int]]) -> Features:
        """Return token ids, padded on the left, with their mask."""
        return dict(self.tokenizer.pad({"input_ids": ids}, padding=True, padding_side="left", return_tensors="pt"))

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts as they are, without tokens around them."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def tokenize_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts in which special tokens are plain text.

        Each is cut behind its first character, so that none is found. The tokenizer has a switch for this, but it would
        hold for all threads that use the tokenizer at that moment.
        """
        found = []
        before_special = re.compile(f"(?={self._special})")
        for text in texts:
            places = [match.start() + 1 for match in before_special.finditer(text)]
            pieces = [text[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
            found.append([token for ids in self.tokenize(pieces) for token in ids])
        return found

    def tokenize_queries(self, queries: Sequence[str]) -> list[list[int]]:
        """Return the token ids of queries in the model's template."""
        if self.template.has_raw_queries:
            return self.tokenize_plain(queries) if self.plain_queries else self.tokenize(queries)
        return self.tokenize_inside(*self.template.query_prompt, queries)

    def tokenize_inside(self, before: str, after: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts in a prompt, which none can break out of: special tokens in them are text."""
        # What is next to a text may share a token with it, so both are tokenized together: up to a special token.
        *_, near = re.split(self._special, before)
        behind, *_ = re.split(self._special, after)
        start, end = self.tokenize([before.removesuffix(near), after.removeprefix(behind)])
        first, last = self.closing_tokens()
        middles = self.tokenize_plain([near + text + behind for text in texts])
        return [first + start + middle + end + last for middle in middles]

    def closing_tokens(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the tokenizer itself puts before and behind a text, if the template has them."""
        if not self.template.closed:
            return [], []
        (bare,), whole = self.tokenize(["x"]), self.tokenizer("x")["input_ids"]
        place = whole.index(bare[0])
        return whole[:place], whole[place + len(bare) :]

    @property
    def _special(self) -> str:
        """The tokens that mean more than their text, as a regular expression."""
        added = self.tokenizer.added_tokens_decoder.values()
        return "|".join(re.escape(token.content) for token in added if token.special) or "(?!)"

    def describe(self) -> bytes:
        """Return all that vectors depend on, for a hash."""
        image = b"" if self.image is None else self.image.to_json_string().encode()
        tokenizer: str = self.tokenizer.backend_tokenizer.to_str()
        return self.template.describe() + image + tokenizer.encode()

    def save(self, folder: Path) -> None:
        """Write them into a folder, each in the files of its own."""
        self.tokenizer.save_pretrained(folder)
        if self.image is not None:
            self.image.save_pretrained(folder)


@dataclass(frozen=True)
class Seen:
    """What a vision tower makes of some pages: merged tokens, then what it adds to deeper layers, each (tokens, D)."""

    layers: tuple[Tensor, ...]


def join_seen(parts: Sequence[Seen]) -> Seen:
    """Return what was seen of several pages as if they had been looked at together."""
    return Seen(tuple(torch.cat(layer) for layer in zip(*(part.layers for part in parts), strict=True)))


class Look:
    """What a frozen tower sees of some pages, kept after the first look: a gradient cache comes to each page twice."""

    def __init__(self) -> None:
        self.seen: Seen | None = None

    def at(self, backbone: Backbone, features: Features) -> Seen | None:
        """Return what is seen of the pages among features; the tower runs at the first time only."""
        if self.seen is None:
            self.seen = backbone.see(features)
        return self.seen


class Family(ABC):
    """A family of backbones. It has no state: the model and its processors are passed in.

    name: as people write it. model_type: as config.json of a backbone has it. reads: what it takes of a page.
    page_prompt: what stands around a page in the paper's template, and whatever else vectors of pages depend on.
    templates: other ones, by their names. lora_targets: the modules that the paper's adapter sits on, as a regular
    expression. special_tokens: what a tokenizer made in code needs, the padding token first. spare_weights: prefixes of
    weights in a backbone's files that are not needed here.
    kernels: packages that a GPU needs to be fast with it, by their modules; without them transformers uses plain torch.
    sizes: what a config.json must say of a model that has no text_config.
    image_token: what stands for a visual token in the page prompt of a family that reads images.
    export_example: Python for the guide of an export, from `images` to what its image processor gives and to `prompts`.
    cache_keeps_gradients: whether one can go back through what is cached.

    `num_tokens` of its methods is the most tokens that a page may take: the setting `visual_tokens` for a family that
    reads images, `text_tokens` for one that reads text.
    """

    name: ClassVar[str]
    model_type: ClassVar[str]
    reads: ClassVar[Reads] = "image"
    page_prompt: ClassVar[str] = ""
    templates: ClassVar[Mapping[str, Template]] = {}
    lora_targets: ClassVar[str]
    special_tokens: ClassVar[tuple[str, ...]]
    end_token: ClassVar[str]
    image_token: ClassVar[str] = ""
    kernels: ClassVar[Mapping[str, str]] = {}
    sizes: ClassVar[tuple[str, ...]] = ("hidden_size", "num_hidden_layers")
    spare_weights: ClassVar[tuple[str, ...]] = ("lm_head.",)
    export_example: ClassVar[str] = ""
    cache_keeps_gradients: ClassVar[bool] = True

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        """A family is equal to its name."""
        return other == self.name if isinstance(other, str) else self is other

    def __hash__(self) -> int:
        return hash(self.name)

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return what stands around a page in the paper's template, where that depends on the tokenizer."""
        return self.page_prompt

    def find_template(self, name: str, tokenizer: PreTrainedTokenizerBase) -> Template:
        """Return a template by its name, as it is with a tokenizer.

        Errors: UsageError that names the known ones.
        """
        known = {PAPER: Template(self.prompt(tokenizer)), **self.templates}
        if name not in known:
            raise UsageError(f"template={name!r} is not one of a {self.name} model: {', '.join(known)}")
        return known[name]

    # -- making a backbone

    def load_processors(self, source: Source) -> Processors:
        """Load them from the folder of a source, without running any code found there.

        Errors: RandSlotError in one line if a file is missing; whatever transformers raises for a broken one.
        """
        need_file(source, TOKENIZER_FILE)
        return Processors(
            AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True),
            self.load_image_processor(source),
        )

    def load_image_processor(self, source: Source) -> Any:
        """Load the image processor of a family that has one."""
        return None

    def make_image_processor(self, shape: dict[str, Any]) -> Any:
        """Make the image processor of a shape."""
        return None

    def make_config(self, shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """Make the configuration of a shape, which `tokenizer` was made for."""
        options = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": None}
        return AutoConfig.for_model(**(options | shape["config"]))

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a model as it is used here, with the same weights under the same names."""
        return model

    def make_lora(self, rank: int = 16, alpha: int = 32, dropout: float = 0.05) -> LoraConfig:
        """The paper's adapter on the projections of the language model that play the part of q, k, v and o."""
        return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=self.lora_targets)

    # -- from pages and queries to features

    def least_tokens(self, processors: Processors) -> int:
        """Return the fewest visual tokens that a page can be limited to."""
        return 1

    def page_pixels(self, processors: Processors, num_tokens: int) -> int:
        """Return the most pixels of a page image that the model looks at: none where it reads text."""
        return 0

    @abstractmethod
    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> Image.Image | str:
        """Return a page as `preprocess_pages` takes it: an RGB image, or a text.

        Errors: RandSlotError in one line if it cannot be opened.
        """

    @abstractmethod
    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        """Turn opened pages into left-padded features."""

    def join_pages(self, processors: Processors, parts: Sequence[Features]) -> Features:
        """Return the features of several pages, each of which was preprocessed alone, as a left-padded batch."""
        joined = processors.pad([part["input_ids"][0].tolist() for part in parts])
        for name in parts[0].keys() - joined.keys():
            joined[name] = torch.cat([part[name] for part in parts])
        return joined

    def page_grid(self, processors: Processors, features: Features) -> tuple[int, int] | None:
        """Return the rows and columns of visual tokens of the first page among features; None if it has no grid."""
        return None

    def preprocess_queries(self, processors: Processors, queries: Sequence[str]) -> Features:
        """Turn queries into left-padded features; in the paper's template they stand alone."""
        return processors.pad(processors.tokenize_queries(queries))

    # -- from features to states

    def see(self, model: PreTrainedModel, features: Features) -> Seen | None:
        """Run the vision tower over the pages among features; None where there is nothing to see."""
        return None

    def vision_parts(self, model: PreTrainedModel) -> list[nn.Module]:
        """Return the modules that `see` runs: a vision tower, and what leads from it to the language model."""
        return []

    def freeze_vision(self, model: PreTrainedModel) -> None:
        """Keep the vision tower from being trained."""
        parts = self.vision_parts(model)
        if not parts:
            raise UsageError(f"a {self.name} model has no vision tower to keep still")
        for part in parts:
            part.requires_grad_(False)

    def without_pixels(self, features: Features) -> Features:
        """Return the features of pages that were seen before, without what only the vision tower needs."""
        return features

    def read_content(self, model: PreTrainedModel, features: Features, seen: Seen | None = None) -> Content:
        """Embed left-padded features and place them; `seen` spares looking at the pages once more."""
        mask_BL = features["attention_mask"]
        embeds_BLD = model.get_input_embeddings()(features["input_ids"])
        return Content(embeds_BLD, mask_BL, (mask_BL.cumsum(-1) - 1).clamp(min=0))

    def run(
        self, model: PreTrainedModel, content: Content, cache: Any = None, use_cache: bool = False
    ) -> tuple[Tensor, Any]:
        """Run the language model over a content and return its last hidden states (B, L, D) and its cache."""
        output = self.language_model(model)(
            inputs_embeds=content.embeds_BLD,
            attention_mask=content.mask_BL,
            position_ids=content.positions,
            past_key_values=cache,
            use_cache=use_cache,
            **content.flags,
            **content.more,
        )
        return output.last_hidden_state, output.past_key_values

    def language_model(self, model: PreTrainedModel) -> Any:
        """Return the language model inside a backbone."""
        return model

    # -- serving

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """Return the whole model that servers know, with a language head, for an export.

        Errors: UsageError if no server runs this family.
        """
        raise UsageError(f"a {self.name} model cannot be exported: no known server gives the states of all its tokens")

    guide: ClassVar[str] = "serving.md"  # what goes with an export, a file beside the package's models

    def write_processors(self, processors: Processors, folder: Path, visual_tokens: int) -> None:
        """Write processors into an export as a server reads them."""
        processors.save(folder)

    def image_limits(self, processors: Processors, visual_tokens: int) -> dict[str, int]:
        """Return what `fit_page` needs to know of a model that runs elsewhere."""
        return {}

    def served_pixels(self, **limits: int) -> int:
        """Return the most pixels of a page that a model elsewhere looks at; limits: as `image_limits` gave them."""
        raise UsageError(f"a {self.name} model cannot be used on a server")

    def fit_page(self, image: Image.Image, **limits: int) -> tuple[Image.Image, int]:
        """Return a page as its server would resize it, and how many tokens its image takes there."""
        raise UsageError(f"a {self.name} model cannot be used on a server")


@dataclass(frozen=True)
class Backbone:
    """A loaded or built model of a family, with its processors."""

    family: Family
    model: PreTrainedModel
    processors: Processors
    source: Source
    bare: dict[str, Tensor] = field(default_factory=dict)  # weights below an adapter, where no folder has them

    @property
    def vision_is_frozen(self) -> bool:
        """Whether there is a vision tower, and nothing of it is trained."""
        parts = self.family.vision_parts(self.model)
        return bool(parts) and not any(weight.requires_grad for part in parts for weight in part.parameters())

    def see(self, features: Features) -> Seen | None:
        """Run the vision tower over the pages among features; a frozen one leaves nothing to go back through."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.vision_is_frozen):
            return self.family.see(self.model, features)

    def read_content(self, features: Features, seen: Seen | None = None) -> Content:
        """Embed left-padded features and place them."""
        return self.family.read_content(self.model, features, seen or self.see(features))

    def checkpoint_layers(self) -> None:
        """Keep only the inputs of layers between forward and backward, and compute what is inside them again."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        # transformers makes the inputs of every part of an adapted model require gradients, for the other kind of
        # checkpointing. Here it would only send gradients through frozen weights: the whole vision tower's among them.
        self.model.disable_input_require_grads()

    def run(self, content: Content, cache: Any = None, use_cache: bool = False) -> tuple[Tensor, Any]:
        """Run the language model over a content and return its last hidden states (B, L, D) and its cache."""
        return self.family.run(self.model, content, cache, use_cache)

    def with_processors(self, processors: Processors) -> Backbone:
        """Return this backbone with other processors."""
        return replace(self, processors=processors)


def need_file(source: Source, *names: str) -> None:
    """Refuse a folder that has none of these files, or one that is not valid JSON.

    Errors: RandSlotError in one line.
    """
    files = [Path(str(source.folder), name) for name in names]
    for file in files:
        if file.is_file():
            read_json(file)
            return
    raise RandSlotError(f"{source.name} lacks {names[0]}")
