"""A model that `randslot serve` runs: it is sent queries and pages as they are, and answers with their vectors.

Shapes: B batch, K vectors, D dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..errors import RandSlotError, UsageError, first_line
from ..pages import open_page
from ..pages.images import shrink
from .preprocessing import check_query, refuse_prompt, sort_inputs
from .reader import SIDES, Reads, Side
from .served_encoder import ServedEncoder, write_page
from .server import ListedModel, Server, change_budgets
from .settings import Settings

QUERIES = 64  # of one request
SENT_PIXELS = 6_000_000  # of a page that is sent, without loss; larger ones are shrunk to this


@dataclass(frozen=True)
class ServedFamily:
    """What can be known from afar of the family of a model."""

    reads: Reads


class ServiceEncoder(ServedEncoder):
    """The one module of a model that a RandSlot service runs; its vectors are those of the model itself."""

    def __init__(self, server: Server, model: ListedModel) -> None:
        """Errors: RandSlotError if the service does not say all that is needed, or runs a model of another kind."""
        super().__init__(server, model.name)
        about = dict(model.about or {})
        if "slots" not in about:
            raise RandSlotError(
                f"{server.url} runs {model.name}, which is not a RandSlot model: its vectors can be asked for at "
                f"{server.url}/pooling, but not through randslot.remote"
            )
        try:
            settings = {field.name: about[field.name] for field in fields(Settings) if field.name in about}
            self.served = self.settings = Settings(**settings)
            self.dimension, self.page_pixels = int(about["dimension"]), int(about["page_pixels"])
            self.dtype, self.weights = str(about["dtype"]), str(about["weights"])
            self.family = ServedFamily(about["reads"])
        except (KeyError, TypeError, ValueError) as error:
            raise RandSlotError(
                f"{server.url} does not say how {model.name} makes its vectors ({first_line(error)}): is it as new as "
                "this version of randslot?"
            ) from error

    def use(self, **changes: Any) -> None:
        """Change the budgets, to at most what the service gives: fewer vectors are the first ones of more."""
        settings = change_budgets(self.settings, self.served, changes, "service")
        for side in SIDES:
            if settings.vectors(side) < self.served.vectors(side) and not self.served.has_prefixes(side):
                raise UsageError(f"{side}_vectors is fixed by the service: fewer of this model are other vectors")
        self.settings = settings

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages (images or their paths, or texts) into the bodies of requests."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            texts = [(prompt or "") + check_query(query) for query in items]
            return {"side": side, "bodies": list(_split(texts, "query"))}
        refuse_prompt(prompt)
        if self.family.reads == "text":
            return {"side": side, "bodies": list(_split(items, "document"))}
        opened = [shrink(open_page(page, self.page_pixels), SENT_PIXELS) for page in items]
        return {"side": side, "bodies": [write_page(page) for page in opened]}

    def open_page(self, page: Any) -> Any:
        """Return a page as it is sent; a text that is too long is cut by the service, which does not say so."""
        return page

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        """Return `token_embeddings` (B, K, D) in float32 and their `attention_mask` (B, K)."""
        side: Side = features["side"]
        found = self.ask_all(features["bodies"])
        if (num := self.settings.num_vectors(side)) is not None:
            found = [rows[:num] for rows in found]
        lengths = torch.tensor([len(rows) for rows in found])
        vectors = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        mask = (torch.arange(vectors.shape[1])[None] < lengths[:, None]).long()
        return {"token_embeddings": vectors, "attention_mask": mask}

    def ask(self, body: dict[str, Any]) -> list[Tensor]:
        """Return the vectors (K, D) of each input in a body."""
        numbers, _ = self.post(body, "vectors")
        if any(not len(item) or len(item) % self.dimension for item in numbers):
            raise RandSlotError(f"{self.server.url} answers with vectors that have not {self.dimension} dimensions")
        return [item.view(-1, self.dimension) for item in numbers]


def _split(texts: list[str], kind: str) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), QUERIES):
        yield {"input": texts[first : first + QUERIES], "input_type": kind}
