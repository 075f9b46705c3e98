"""What models on servers have in common: a server is asked for vectors or states, and keeps the weights."""

from __future__ import annotations

import base64
import binascii
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import torch
from PIL import Image
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from ..errors import RandSlotError, first_line
from .hub import Source
from .server import Server

AT_ONCE = 8  # requests on their way together: the server makes batches of them


class ServedEncoder(InputModule):
    """The one module of a model that runs on a server: same inputs and outputs as `SlotEncoder`.

    A subclass sets family, dimension and weights, which a hash stands for.
    """

    family: Any
    dimension: int
    weights: str

    def __init__(self, server: Server, name: str) -> None:
        super().__init__()
        self.server, self.name = server, name
        self.source = self.home = Source(server.url)

    @property
    def modalities(self) -> list[Any]:
        return ["text", "image"] if self.family.reads == "image" else ["text"]

    def weights_key(self) -> str:
        """Return a hash of the weights, as the server or its export says."""
        return self.weights

    def get_embedding_dimension(self) -> int:
        return self.dimension

    def ask_all(self, bodies: Sequence[dict[str, Any]]) -> list[Tensor]:
        """Return what the server answers for each input of some bodies, in their order: (rows, D)."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [rows for answer in pool.map(self.ask, bodies) for rows in answer]

    @abstractmethod
    def ask(self, body: dict[str, Any]) -> list[Tensor]:
        """Return what the server answers for each input of a body."""

    def post(self, body: dict[str, Any], what: str) -> tuple[list[Tensor], dict[str, Any]]:
        """Send a body, and return the numbers of each input, which have no shape yet, and the whole answer.

        Errors: RandSlotError in one line that says `what` the answer lacks.
        """
        # base64: as numbers in text they would be several times larger.
        answer = self.server.ask("/pooling", {"model": self.name, "encoding_format": "base64", **body})
        wanted = len(body.get("input", [body]))
        try:
            items = sorted(answer["data"], key=lambda item: int(item["index"]))
            numbers = [
                torch.frombuffer(bytearray(base64.b64decode(item["data"])), dtype=torch.float32) for item in items
            ]
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise RandSlotError(f"{self.server.url} answers with no {what}: {first_line(error)}") from error
        if len(numbers) != wanted:
            raise RandSlotError(f"{self.server.url} answers with {len(numbers)} items for {wanted} inputs")
        return numbers, answer

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: the weights are on the server."""
        raise RandSlotError(f"the model of {self.server.url} has its weights there: it cannot be saved from here")


def write_page(page: Image.Image) -> dict[str, Any]:
    """Return a page image as the body of a request: a chat message, without loss."""
    file = BytesIO()
    page.save(file, "PNG", compress_level=1)
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
