"""From queries and pages to features: what happens before a model, in whatever process.

A `Preprocessor` has tokenizer, image processor and numbers, and no weights: workers get it, and not the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..errors import RandSlotError
from .families.base import Family, Features, Processors
from .reader import Side, check_query


@dataclass(frozen=True)
class PreparedPage:
    """A page with all done that needs no model.

    share: its positions, as a share of the most that a page may take; with its prompt it may be a little above one.
    """

    features: dict[str, Any]
    share: float


@dataclass(frozen=True)
class Preprocessor:
    """Turns queries and pages into left-padded features.

    num_tokens: the most that a page may take. dtype: what the backbone computes in; pixels come in it, as they would be
    cast to it anyway.
    """

    family: Family
    processors: Processors
    num_tokens: int
    dtype: torch.dtype = torch.float32

    def __call__(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Return features, which name their side: by `task`, or else text is a query and an image a page."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            queries = [check_query(query) for query in items]
            features = self._preprocess_queries(queries, prompt or "")
            contents = [((prompt or "") + query).encode() for query in queries]
        else:
            refuse_prompt(prompt)
            pages = [self.open_page(page) for page in items]
            features = self.family.preprocess_pages(self.processors, pages, self.num_tokens)
            contents = [_page_bytes(page) for page in pages]
        for name, value in features.items():
            if value.is_floating_point():
                features[name] = value.to(self.dtype)
        return {**features, "keys": _hash_contents(contents), "side": side}

    def prepare_page(self, page: Any) -> PreparedPage:
        """Do all that is done to a page before the model."""
        features = self([page], task="document")
        return PreparedPage(features, features["input_ids"].shape[1] / self.num_tokens)

    def join_pages(self, pages: Sequence[PreparedPage]) -> dict[str, Any]:
        """Return the features of several pages, as if they had been preprocessed together."""
        parts = [page.features for page in pages]
        joined = self.family.join_pages(self.processors, [_only_tensors(part) for part in parts])
        return {**joined, "side": parts[0]["side"]}

    def _preprocess_queries(self, queries: list[str], prompt: str) -> Features:
        """A prompt is the instruction of the template, or stands before each query if the template has none."""
        if not self.processors.template.instruction:
            return self.family.preprocess_queries(self.processors, [prompt + query for query in queries])
        template = self.processors.template.instruct(prompt) if prompt else self.processors.template
        return self.family.preprocess_queries(replace(self.processors, template=template), queries)

    def open_page(self, page: Any) -> Any:
        """Open a page as the family takes it."""
        return self.family.open_page(self.processors, page, self.num_tokens)


def _only_tensors(features: dict[str, Any]) -> Features:
    return {name: value for name, value in features.items() if isinstance(value, Tensor)}


def sort_inputs(inputs: Sequence[Any], task: str | None) -> tuple[list[Any], Side]:
    """Return plain inputs and their side: by `task`, or else text is a query and an image a page."""
    items = [_unwrap(item) for item in inputs]
    if task is None:
        return items, "query" if all(isinstance(item, str) for item in items) else "page"
    return items, "query" if task == "query" else "page"


def refuse_prompt(prompt: str | None) -> None:
    """Refuse a prompt for pages: theirs is the template's."""
    if prompt:
        raise RandSlotError(f"pages take no prompt of their own, but one was given: {prompt!r}")


def _unwrap(item: Any) -> Any:
    """Take {"image": x} and {"text": x}, as mteb sends them."""
    if isinstance(item, Mapping):
        if len(item) != 1 or not item.keys() <= {"image", "text"}:
            raise RandSlotError(f"a query is text and a page is an image, but one input has {sorted(item)}")
        (item,) = item.values()
    return item


def _page_bytes(page: Image.Image | str) -> bytes:
    return page.encode() if isinstance(page, str) else f"{page.size}".encode() + page.tobytes()


def _hash_contents(contents: list[bytes]) -> Tensor:
    """Hash each content into one number, the seed of its slots under inference="random"."""
    digests = [blake2b(content, digest_size=8).digest() for content in contents]
    return torch.tensor([int.from_bytes(digest, "big") >> 1 for digest in digests])
