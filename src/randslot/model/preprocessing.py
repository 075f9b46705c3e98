"""Turn queries and pages into features for the model, in any process.

A `Preprocessor` has a tokenizer, an image processor and a template, but no weights, so workers need no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..errors import RandSlotError
from .reader import Side, check_query

if TYPE_CHECKING:
    from .families.base import Family

Features = dict[str, Tensor]
PAPER = "paper"  # the template of the paper: a prompt around pages, and bare queries
QUERY, PAGE, INSTRUCTION = "{query}", "{page}", "{instruction}"  # placeholders in a prompt; an image has a token


@dataclass(frozen=True)
class Template:
    """A prompt for pages and one for queries, with placeholders.

    instruction: the text for {instruction} in both. closed: also add the tokens that the tokenizer puts around a text,
    for retrieval models that pool one of them.
    """

    page: str
    query: str = QUERY
    instruction: str = ""
    closed: bool = False

    @property
    def has_raw_queries(self) -> bool:
        """Whether queries have no prompt, as in the paper."""
        return self.query == QUERY and not self.closed

    @property
    def page_prompt(self) -> str:
        return self.page.replace(INSTRUCTION, self.instruction)

    @property
    def query_prompt(self) -> tuple[str, str]:
        """The prompt before and after a query."""
        before, after = self.query.split(QUERY)
        return before.replace(INSTRUCTION, self.instruction), after.replace(INSTRUCTION, self.instruction)

    def describe(self) -> bytes:
        """Return what vectors depend on, for a hash; of the paper's template only the page prompt."""
        queries = "" if self.has_raw_queries else f"\n{self.query_prompt} {self.closed}"
        return (self.page_prompt + queries).encode()


@dataclass(frozen=True)
class Processors:
    """The tokenizer, image processor (None for a family that reads text) and template of a model.

    plain_queries: treat special tokens in bare queries as text. The paper's code does not.
    """

    tokenizer: PreTrainedTokenizerBase
    image: Any = None
    template: Template = Template("")
    plain_queries: bool = False

    def pad(self, ids: list[list[int]]) -> Features:
        """Return token ids, padded on the left, with their mask."""
        return dict(self.tokenizer.pad({"input_ids": ids}, padding=True, padding_side="left", return_tensors="pt"))

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, without special tokens around them."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def tokenize_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, treating special tokens in them as plain text.

        Each special token is split after its first character. The tokenizer's own switch for this is not thread-safe.
        """
        found = []
        before_special = re.compile(f"(?={self._special})")
        for text in texts:
            cuts = [match.start() + 1 for match in before_special.finditer(text)]
            pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
            found.append([token for ids in self.tokenize(pieces) for token in ids])
        return found

    def tokenize_queries(self, queries: Sequence[str]) -> list[list[int]]:
        """Return the token ids of queries in the template."""
        if self.template.has_raw_queries:
            return self.tokenize_plain(queries) if self.plain_queries else self.tokenize(queries)
        return self.tokenize_inside(*self.template.query_prompt, queries)

    def tokenize_inside(self, before: str, after: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts in a prompt, treating special tokens in the texts as plain text."""
        # A token may span text and prompt, so they are tokenized together, up to a special token.
        near = re.split(self._special, before)[-1]
        behind = re.split(self._special, after)[0]
        start, end = self.tokenize([before.removesuffix(near), after.removeprefix(behind)])
        first, last = self.closing_tokens()
        middles = self.tokenize_plain([near + text + behind for text in texts])
        return [first + start + middle + end + last for middle in middles]

    def closing_tokens(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the tokenizer puts before and after a text; none unless the template is closed."""
        if not self.template.closed:
            return [], []
        (bare,), whole = self.tokenize(["x"]), self.tokenizer("x")["input_ids"]
        start = whole.index(bare[0])
        return whole[:start], whole[start + len(bare) :]

    @property
    def _special(self) -> str:
        """A regular expression of all special tokens."""
        added = self.tokenizer.added_tokens_decoder.values()
        return "|".join(re.escape(token.content) for token in added if token.special) or "(?!)"

    def describe(self) -> bytes:
        """Return what vectors depend on, for a hash."""
        image = b"" if self.image is None else self.image.to_json_string().encode()
        tokenizer: str = self.tokenizer.backend_tokenizer.to_str()
        return self.template.describe() + image + tokenizer.encode()

    def save(self, folder: Path) -> None:
        """Write tokenizer and image processor into a folder."""
        self.tokenizer.save_pretrained(folder)
        if self.image is not None:
            self.image.save_pretrained(folder)


@dataclass(frozen=True)
class PreparedPage:
    """A preprocessed page.

    share: its length relative to the maximum number of tokens per page; slightly above one with a long prompt.
    """

    features: dict[str, Any]
    share: float


@dataclass(frozen=True)
class Preprocessor:
    """Turns queries and pages into left-padded features.

    num_tokens: the maximum number of tokens per page. dtype: of the backbone, and of the pixels returned.
    """

    family: Family
    processors: Processors
    num_tokens: int
    dtype: torch.dtype = torch.float32

    def __call__(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Return features with their side, from `task` or, without one, the input: text is a query, an image a page."""
        items, side = sort_inputs(inputs, task)
        prompt = prompt or ""
        if side == "query":
            queries = [check_query(query) for query in items]
            contents = [prompt + query for query in queries]
            processors = self.processors
            if not processors.template.instruction:
                queries = [prompt + query for query in queries]
            elif prompt:
                processors = replace(processors, template=replace(processors.template, instruction=prompt))
            features = processors.pad(processors.tokenize_queries(queries))
        else:
            refuse_prompt(prompt)
            contents = [self.open_page(page) for page in items]
            features = self.family.preprocess_pages(self.processors, contents, self.num_tokens)
        for name, value in features.items():
            if value.is_floating_point():
                features[name] = value.to(self.dtype)
        return {**features, "keys": torch.tensor([hash_content(one) for one in contents]), "side": side}

    def open_page(self, page: Any) -> Any:
        """Open a page as an RGB image or a text, as the family reads it."""
        return self.family.open_page(self.processors, page, self.num_tokens)

    def prepare_page(self, page: Any) -> PreparedPage:
        """Open and preprocess one page."""
        features = self([page], task="document")
        return PreparedPage(features, features["input_ids"].shape[1] / self.num_tokens)

    def join_pages(self, pages: Sequence[PreparedPage]) -> dict[str, Any]:
        """Return the features of several pages, as if they had been preprocessed together."""
        parts = [{name: x for name, x in page.features.items() if isinstance(x, Tensor)} for page in pages]
        return {**self.family.join_pages(self.processors, parts), "side": "page"}


def sort_inputs(inputs: Sequence[Any], task: str | None) -> tuple[list[Any], Side]:
    """Return plain inputs and their side; unpack mteb's {"image": x} and {"text": x}."""
    items = []
    for item in inputs:
        if isinstance(item, Mapping):
            if len(item) != 1 or not item.keys() <= {"image", "text"}:
                raise RandSlotError(f"a query is text and a page is an image, but one input has {sorted(item)}")
            (item,) = item.values()
        items.append(item)
    is_query = all(isinstance(item, str) for item in items) if task is None else task == "query"
    return items, "query" if is_query else "page"


def refuse_prompt(prompt: str | None) -> None:
    """Raise UsageError for a prompt where the template has one."""
    if prompt:
        raise RandSlotError(f"cannot use prompt={prompt!r} here: the template has its own prompt")


def hash_content(content: Image.Image | str) -> int:
    """Hash an opened page or a query into a seed."""
    data = content.encode() if isinstance(content, str) else f"{content.size}".encode() + content.tobytes()
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 1
