"""A model on a server: a vLLM-like server that runs an exported folder, or `randslot serve`.

vLLM returns the states of all tokens; the client reads serving.json of the export and keeps the last K.
`randslot serve` returns the model's own vectors.

Shapes: B batch, L tokens, K vectors, D dimension.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from sentence_transformers.base.modules import InputModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json
from ..pages import open_page
from ..pages.images import shrink
from .backbone import load_processors
from .client import JsonClient
from .encoder import narrow_tensor
from .export import FORMAT
from .families import find_family
from .hub import SERVING, Source
from .model import RandSlotModel
from .preprocessing import PAGE, QUERY, Processors, refuse_prompt, sort_inputs
from .reader import SIDES, Side, check_query
from .settings import Settings


def remote(
    url: str,
    folder: str | Path | None = None,
    *,
    query_vectors: int | None = None,
    page_vectors: int | None = None,
    width: int | None = None,
    timeout: float = 120.0,
    token: str | None = None,
) -> RandSlotModel:
    """Connect to a model on a server, and use it like a loaded model.

    url: of a server such as vLLM or `randslot serve`, as in "http://localhost:8000". folder: for vLLM, the exported
    folder or its serving.json; by default the server's model folder, if it is on this machine. query_vectors,
    page_vectors, width: at most the server's. timeout: seconds per request. token: the bearer token of the server.

    Errors: RandSlotError if the server is unreachable, or does not run the model in the folder.
    """
    hint = "; is it a vLLM server, started as SERVING.md says, or randslot serve?"
    url = url.rstrip("/").removesuffix("/v1").removesuffix("/pooling")
    server = JsonClient(url, timeout, token, hint)
    match server.ask("/v1/models"):
        case {"data": [{"id": str(_), "randslot": {}} as model, *_]}:
            encoder: RemoteEncoder = ServiceEncoder(server, model)
        case {"data": [{"id": str(_)} as model, *_]}:
            encoder = VllmEncoder(server, model, folder)
        case _:
            raise RandSlotError(f"{url} has no model: its library has only words. Index it with --model{hint}")
    budgets = {"query_vectors": query_vectors, "page_vectors": page_vectors, "width": width}
    encoder.use(**{name: num for name, num in budgets.items() if num is not None})
    return RandSlotModel(modules=[encoder], device="cpu")


class RemoteEncoder(InputModule):
    """The only module of a remote model: same inputs and outputs as `SlotEncoder`.

    A subclass sets the attributes below. limit: the server's settings, whose budgets are the maximum.
    """

    family: Any
    dimension: int
    dtype: str
    weights: str
    limit: Settings
    options: ClassVar[dict[str, Any]] = {}  # of every request

    def __init__(self, server: JsonClient, name: str) -> None:
        super().__init__()
        self.server, self.name = server, name
        self.source = self.home = Source(server.url)

    @cached_property
    def settings(self) -> Settings:
        return self.limit

    @property
    def modalities(self) -> list[Any]:
        return ["text", "image"] if self.family.reads == "image" else ["text"]

    def weights_key(self) -> str:
        return self.weights

    def get_embedding_dimension(self) -> int:
        return self.settings.width or self.dimension

    def use(self, **changes: Any) -> None:
        """Change budgets and width, up to the server's, whose vectors are then cut to a prefix."""
        settings = self.settings.change(**changes)
        maxima = {f"{side}_vectors": self.limit.vectors(side) for side in SIDES if self.limit.has_prefixes(side)}
        maxima["width"] = self.dimension
        for name, value in asdict(settings).items():
            own = getattr(self.limit, name)
            if value != own and (name not in maxima or not 0 < value <= maxima[name]):
                raise UsageError(f"{name}={value!r}: the server has {own!r}. Pass a smaller budget or width.")
        self.settings = settings

    def open_page(self, page: Any) -> Any:
        """Open a page for a request."""
        return page

    def ask_all(self, bodies: Sequence[dict[str, Any]]) -> list[Tensor]:
        """Send all bodies; return the rows (rows, D) of each input, in order."""
        with ThreadPoolExecutor(8) as pool:  # the server batches concurrent requests
            return list(chain(*pool.map(self.ask, bodies)))

    def ask(self, body: dict[str, Any]) -> list[Tensor]:
        """Send a body; return the rows (rows, D) of each input."""
        # base64 is several times smaller than decimal numbers.
        answer = self.server.ask("/pooling", {"model": self.name, "encoding_format": "base64", **self.options, **body})
        rows = []
        with in_one_line(f"read vectors of dimension {self.dimension} from {self.server.url}"):
            for item in sorted(answer["data"], key=lambda item: int(item["index"])):
                numbers = torch.frombuffer(bytearray(base64.b64decode(item["data"])), dtype=torch.float32)
                rows.append(numbers.view(-1, self.dimension))
            num_rows = int(answer["usage"]["prompt_tokens"])
        # The bytes have no shape: only the count reveals a wrong dimension.
        if len(rows) != len(body.get("input", [body])) or sum(map(len, rows)) != num_rows:
            raise RandSlotError(
                f"{self.server.url} returned {[len(item) for item in rows]} vectors of dimension {self.dimension}, "
                f"but reports {num_rows}. Does it run this model with token_embed?"
            )
        return rows

    def _make_output(self, found: list[Tensor]) -> dict[str, Tensor]:
        """Return vectors, cut to the width, as `token_embeddings` (B, K, D) and their `attention_mask` (B, K)."""
        mask = pad_sequence([torch.ones(len(rows), dtype=torch.long) for rows in found], batch_first=True)
        vectors = narrow_tensor(pad_sequence(found, batch_first=True), self.settings.width)
        return {"token_embeddings": vectors, "attention_mask": mask}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: the weights are on the server."""
        raise RandSlotError(f"cannot save the model of {self.server.url}: its weights are on the server")


def _write_page(page: Image.Image) -> dict[str, Any]:
    """Return a request body with a page image as a lossless chat message."""
    file = BytesIO()
    page.save(file, "PNG", compress_level=1)
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


class ServiceEncoder(RemoteEncoder):
    """A model on `randslot serve`, which returns the model's own vectors."""

    def __init__(self, server: JsonClient, model: Mapping[str, Any]) -> None:
        super().__init__(server, model["id"])
        about = model["randslot"]
        with in_one_line(f"use {self.name} of {server.url}, which does not describe itself as a RandSlot model"):
            self.limit = Settings(
                slots=about["slots"], **{one.name: about[one.name] for one in fields(Settings)[1:] if one.name in about}
            )
            self.dimension, self.page_pixels = int(about["dimension"]), int(about["page_pixels"])
            self.dtype, self.weights = str(about["dtype"]), str(about["weights"])
            self.family = SimpleNamespace(reads=about["reads"])

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages (images or their paths, or texts) into the bodies of requests."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            items = [(prompt or "") + check_query(query) for query in items]
        else:
            refuse_prompt(prompt)
        if side == "page" and self.family.reads == "image":
            # the service's limit
            opened = [shrink(open_page(page, self.page_pixels), 6_000_000) for page in items]
            return {"side": side, "bodies": [_write_page(page) for page in opened]}
        kind = "document" if side == "page" else "query"
        parts = [items[first : first + 64] for first in range(0, len(items), 64)]
        return {"side": side, "bodies": [{"input": part, "input_type": kind} for part in parts]}

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        num = self.settings.num_vectors(features["side"])
        return self._make_output([rows[:num] for rows in self.ask_all(features["bodies"])])


class VllmEncoder(RemoteEncoder):
    """An exported model on a server such as vLLM."""

    options: ClassVar = {
        "task": "token_embed",
        "add_special_tokens": False,
        "embed_dtype": "float32",
        "endianness": "little",
    }

    def __init__(self, server: JsonClient, model: Mapping[str, Any], folder: str | Path | None) -> None:
        super().__init__(server, model["id"])
        root = Path(str(model.get("root") or model["id"])) if folder is None else Path(folder).expanduser()
        file = root / SERVING if root.is_dir() else root
        if not file.is_file() or (folder is None and not root.is_absolute()):  # relative to the server's own folder
            raise UsageError(
                f"{server.url} runs {model['id']!r}, and {root} has no {SERVING}: pass the exported folder"
            )
        self.folder, content = file.parent, read_json(file)
        with in_one_line(f"read {file}", hint="; export the model again"):
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']!r}, but this version reads {FORMAT}")
            self.limit = Settings(**content["settings"])
            self.dimension = int(content["dimension"])
            self.query_prompt = str(content["query_prompt"])
            self.query_slots, self.page_prompt = str(content["query_slots"]), str(content["page_prompt"])
            self.image = dict(content["image"])
            self.family, self.dtype = find_family(str(content["family"])), str(content["dtype"])
            what = (
                f"{content['weights']} {content['dtype']} on a server"  # cached apart from the same weights run locally
            )
        self.weights = blake2b(what.encode(), digest_size=12).hexdigest()
        # A server that reads slots as text would return wrong vectors.
        prompt = self.page_prompt.replace(self.family.image_token, "")
        plain, slotted, page = self.ask({"input": ["x", "x" + self.query_slots, prompt]})
        if len(slotted) - len(plain) != self.limit.query_vectors - 1:
            raise RandSlotError(f"{server.url} does not know the slot tokens: does it run the exported folder?")
        self.num_prompt_tokens = len(page)

    @property
    def page_pixels(self) -> int:
        return self.family.served_pixels(**self.image) if self.family.reads == "image" else 0

    @cached_property
    def processors(self) -> Processors:
        """The tokenizer of the exported folder, needed for pages of text only."""
        return load_processors(self.family, Source(str(self.folder), folder=self.folder))

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages (images or their paths) into the bodies of requests."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            return {"side": side, "bodies": [{"input": [self._write_query(query, prompt) for query in items]}]}
        refuse_prompt(prompt)
        if self.family.reads == "text":
            # Token ids: given text, a server would truncate the slots, and interpret special tokens in a page.
            before, after = self.page_prompt.split(PAGE)
            ids = self.processors.tokenize_inside(before, after, [self.open_page(page) for page in items])
            return {"side": side, "bodies": [{"input": ids}], "num_tokens": [len(page) for page in ids]}
        fitted = [self.family.fit_page(open_page(page, self.page_pixels), **self.image) for page in items]
        num_tokens = [self.num_prompt_tokens + visual for _, visual in fitted]
        return {"side": side, "bodies": [_write_page(page) for page, _ in fitted], "num_tokens": num_tokens}

    def open_page(self, page: Any) -> Any:
        """Open a page as the model reads it, truncated to its maximum length."""
        if self.family.reads == "text":
            return self.family.open_page(self.processors, page, self.settings.text_tokens)
        return open_page(page, self.page_pixels)

    def _write_query(self, query: Any, prompt: str | None) -> str:
        """Return the prompt of a query; RandSlotError for special tokens, which could break out of the template."""
        text, special = (prompt or "") + check_query(query), ["<|randslot_"]
        if self.query_prompt != QUERY:
            refuse_prompt(prompt)  # the export has one
            special += self.family.special_tokens
        for token in special:
            if token in text:
                raise RandSlotError(f"a query to a server cannot contain the special token {token}: {text[:80]!r}")
        return self.query_prompt.replace(QUERY, text) + self.query_slots

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        side: Side = features["side"]
        states = self.ask_all(features["bodies"])
        found = [len(rows) for rows in states]
        if side == "page" and found != features["num_tokens"]:
            raise RandSlotError(
                f"{self.server.url} reads pages of {features['num_tokens']} tokens as {found}. Does it use the chat "
                "template and image settings of the exported folder?"
            )
        first, num = self.limit.vectors(side), self.settings.vectors(side)
        kept = [rows[-first:][:num] for rows in states]
        if min(found) < first or not torch.cat(kept).isfinite().all():
            raise RandSlotError(
                f"{self.server.url} returned {min(found)} states: too few for {first} vectors, or not finite. "
                "Does it run in float16?"
            )
        return self._make_output([F.normalize(rows, dim=-1) for rows in kept])
