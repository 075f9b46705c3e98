"""A model on a server: a vLLM-like server that runs an exported folder, or `randslot serve`.

vLLM returns the states of all tokens, of which the client keeps the last K; it knows the export by its serving.json.
`randslot serve` returns the vectors of the model itself.

Shapes: B batch, L tokens, K vectors, D dimension.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from functools import cached_property
from hashlib import blake2b
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from time import sleep as pause
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
import torch.nn.functional as F
from PIL import Image
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from ..errors import RandSlotError, UsageError, first_line
from ..files import read_json
from ..pages import open_page
from ..pages.images import shrink
from .backbone import load_processors
from .export import FORMAT
from .families import find_family
from .hub import SERVING, Source
from .model import RandSlotModel
from .preprocessing import PAGE, QUERY, Processors, refuse_prompt, sort_inputs
from .reader import SIDES, Side, check_query, is_url
from .settings import Settings

WRONG = "is it a vLLM server, started as SERVING.md says, or randslot serve?"


def remote(
    url: str,
    folder: str | Path | None = None,
    *,
    query_vectors: int | None = None,
    page_vectors: int | None = None,
    timeout: float = 120.0,
    token: str | None = None,
) -> RandSlotModel:
    """Return the model that a server runs, to be used like one that was loaded.

    url: of a server such as vLLM or `randslot serve`, as in "http://localhost:8000". folder: for vLLM, the exported
    folder or its serving.json; by default where the server says its model is, if that is on this machine.
    query_vectors, page_vectors: fewer than the server gives. timeout: seconds for one request. token: the bearer token
    of the server.

    Errors: RandSlotError if the server cannot be reached, or runs another model than the folder has.
    """
    server = Server(url, timeout, token)
    model = server.first_model()
    if model.get("randslot") is None:
        encoder: RemoteEncoder = VllmEncoder(server, model, folder)
    elif folder is None:
        encoder = ServiceEncoder(server, model)
    else:
        raise UsageError(f"{server.url} is a RandSlot service, which says all itself: name no exported folder")
    budgets = {"query_vectors": query_vectors, "page_vectors": page_vectors}
    encoder.use(**{name: num for name, num in budgets.items() if num is not None})
    return RandSlotModel(modules=[encoder], device="cpu")


class Server:
    """A server that is asked in JSON; its failures become one line."""

    def __init__(self, url: str, timeout: float, token: str | None) -> None:
        if not is_url(url):
            raise UsageError(f"{url!r} is not the address of a server, as in http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1").removesuffix("/pooling")
        self.timeout = timeout
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def first_model(self) -> dict[str, Any]:
        """Return the first model that the server lists."""
        models = self.ask("/v1/models").get("data")
        if models == []:
            raise RandSlotError(f"{self.url} has no model: a library of words has none, index it with --model")
        if not (isinstance(models, list) and isinstance(models[0], dict) and "id" in models[0]):
            raise RandSlotError(f"{self.url} names no model at /v1/models: {WRONG}")
        return dict(models[0])

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Post a body, or get a path if there is none; retry for some seconds while no server answers."""
        request = Request(self.url + path, json.dumps(body).encode() if body else None, self.headers)
        for seconds in (0.5, 1.0, 2.0, 4.0):
            try:
                return self._open(request)
            except ConnectionError:
                pause(seconds)
        try:
            return self._open(request)
        except ConnectionError as error:
            raise RandSlotError(f"cannot reach {self.url}: {error}; is the server running?") from error

    def _open(self, request: Request) -> dict[str, Any]:
        try:
            with urlopen(request, timeout=self.timeout) as answer:
                content = json.load(answer)
        except HTTPError as error:
            with error:
                reason = _read_reason(error.read())
            hint = f"; {WRONG}" if error.code == 404 else ""
            raise RandSlotError(f"{request.full_url} answers {error.code}: {reason or error.reason}{hint}") from error
        except ValueError as error:
            raise RandSlotError(f"{request.full_url} answers no JSON: {first_line(error)}; {WRONG}") from error
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ConnectionError):
                raise cause from error
            if isinstance(cause, TimeoutError):
                raise RandSlotError(f"no answer from {request.full_url} within {self.timeout:g} seconds") from error
            raise RandSlotError(f"cannot reach {request.full_url}: {cause}") from error
        if not isinstance(content, dict):
            raise RandSlotError(f"{request.full_url} answers no JSON object")
        return content


def _read_reason(body: bytes) -> str:
    """Return the reason of an error in one line: from OpenAI's form, or the body itself."""
    try:
        content = json.loads(body)
        content = content.get("error", content)
        text = str(content["message"] if isinstance(content, dict) else content)
    except (ValueError, KeyError, AttributeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:300]


class RemoteEncoder(InputModule):
    """The one module of a model that runs on a server: same inputs and outputs as `SlotEncoder`.

    A subclass sets the attributes below. limit: the settings of the server, whose budgets are the largest.
    """

    family: Any
    dimension: int
    dtype: str
    weights: str
    settings: Settings
    limit: Settings
    fixed_by: str

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

    def use(self, **changes: Any) -> None:
        """Change the budgets, to at most those of the server: fewer vectors are the first ones of more.

        Errors: UsageError for any other change.
        """
        settings = self.settings.change(**changes)
        fixed = asdict(replace(self.limit, query_vectors=settings.query_vectors, page_vectors=settings.page_vectors))
        for name, value in asdict(settings).items():
            if value != fixed[name]:
                raise UsageError(f"{name} is fixed by the {self.fixed_by}; on a server only the budgets can be changed")
        for side in SIDES:
            num, most = settings.vectors(side), self.limit.vectors(side)
            if num > most:
                raise UsageError(f"{side}_vectors={num}: the {self.fixed_by} has only {most}")
            if num < most and not self.limit.has_prefixes(side):
                raise UsageError(f"{side}_vectors is fixed by the {self.fixed_by}: fewer of this model are others")
        self.settings = settings

    def ask_all(self, bodies: Sequence[dict[str, Any]]) -> list[Tensor]:
        """Return the rows (rows, D) of each input of some bodies, in their order."""
        found = []
        with ThreadPoolExecutor(8) as pool:  # the server makes batches of requests that come together
            for answer in pool.map(self.ask, bodies):
                found += answer
        return found

    def ask(self, body: dict[str, Any], num_rows: str = "") -> list[Tensor]:
        """Return the rows (rows, D) of each input of a body.

        num_rows: a key of `usage` in the answer that counts them: the bytes have no shape, and only a count tells a
        wrong dimension.
        """
        # base64: as numbers in text they would be several times larger.
        answer = self.server.ask("/pooling", {"model": self.name, "encoding_format": "base64", **body})
        wanted = len(body.get("input", [body]))
        try:
            numbers = []
            for item in sorted(answer["data"], key=lambda item: int(item["index"])):
                numbers.append(torch.frombuffer(bytearray(base64.b64decode(item["data"])), dtype=torch.float32))
            total = sum(len(item) for item in numbers)
            expected = int(answer["usage"][num_rows]) * self.dimension if num_rows else total
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise RandSlotError(f"{self.server.url} answers with no vectors: {first_line(error)}") from error
        if len(numbers) != wanted:
            raise RandSlotError(f"{self.server.url} answers with {len(numbers)} items for {wanted} inputs")
        if total != expected or any(not len(item) or len(item) % self.dimension for item in numbers):
            raise RandSlotError(
                f"{self.server.url} answers with {total} numbers, not {expected}, {self.dimension} for each vector: is "
                "it this model, started with token_embed?"
            )
        return [item.view(-1, self.dimension) for item in numbers]

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: the weights are on the server."""
        raise RandSlotError(f"the model of {self.server.url} has its weights there: it cannot be saved from here")


def _write_page(page: Image.Image) -> dict[str, Any]:
    """Return a page image as the body of a request: a chat message, without loss."""
    file = BytesIO()
    page.save(file, "PNG", compress_level=1)
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


class ServiceEncoder(RemoteEncoder):
    """A model that `randslot serve` runs; its vectors are those of the model itself."""

    fixed_by = "service"

    def __init__(self, server: Server, model: Mapping[str, Any]) -> None:
        """Errors: RandSlotError if the service runs a model of another kind, or is of another version."""
        super().__init__(server, str(model["id"]))
        about = model["randslot"]
        if "slots" not in about:
            raise RandSlotError(
                f"{server.url} runs {self.name}, which is not a RandSlot model: its vectors can be asked for at "
                f"{server.url}/pooling, but not through randslot.remote"
            )
        try:
            self.limit = Settings(
                **{field.name: about[field.name] for field in fields(Settings) if field.name in about}
            )
            self.dimension, self.page_pixels = int(about["dimension"]), int(about["page_pixels"])
            self.dtype, self.weights = str(about["dtype"]), str(about["weights"])
            self.family = SimpleNamespace(reads=about["reads"])
        except (KeyError, TypeError, ValueError) as error:
            raise RandSlotError(
                f"{server.url} does not say how {self.name} makes its vectors ({first_line(error)}): is it as new as "
                "this version of randslot?"
            ) from error
        self.settings = self.limit

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages (images or their paths, or texts) into the bodies of requests."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            texts = [(prompt or "") + check_query(query) for query in items]
            return {"side": side, "bodies": list(_split(texts, "query"))}
        refuse_prompt(prompt)
        if self.family.reads == "text":
            return {"side": side, "bodies": list(_split(items, "document"))}
        opened = [shrink(open_page(page, self.page_pixels), 6_000_000) for page in items]  # pixels of a request
        return {"side": side, "bodies": [_write_page(page) for page in opened]}

    def open_page(self, page: Any) -> Any:
        """Return a page as it is sent; the service cuts a text that is too long, and does not say so."""
        return page

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        """Return `token_embeddings` (B, K, D) in float32 and their `attention_mask` (B, K)."""
        found = self.ask_all(features["bodies"])
        if (num := self.settings.num_vectors(features["side"])) is not None:
            found = [rows[:num] for rows in found]
        lengths = torch.tensor([len(rows) for rows in found])
        vectors = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        mask = (torch.arange(vectors.shape[1])[None] < lengths[:, None]).long()
        return {"token_embeddings": vectors, "attention_mask": mask}


def _split(texts: list[str], kind: str, size: int = 64) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), size):
        yield {"input": texts[first : first + size], "input_type": kind}


class VllmEncoder(RemoteEncoder):
    """A model that a server such as vLLM runs from an exported folder."""

    fixed_by = "export"

    def __init__(self, server: Server, model: Mapping[str, Any], folder: str | Path | None) -> None:
        super().__init__(server, str(model["id"]))
        serving = self._find_serving(folder, str(model.get("root") or model["id"]))
        self.folder, content = serving.parent, read_json(serving)
        if content.get("format") != FORMAT:
            raise RandSlotError(f"{serving} has format {content.get('format')!r}, but this version reads {FORMAT}")
        try:
            self.limit = self.settings = Settings(**content["settings"])
            self.dimension = int(content["dimension"])
            self.query_prompt = str(content["query_prompt"])
            self.query_slots, self.page_prompt = str(content["query_slots"]), str(content["page_prompt"])
            self.image = dict(content["image"])
            self.family, self.dtype = find_family(str(content["family"])), str(content["dtype"])
            what = f"{content['weights']} {content['dtype']} on a server"  # kept apart from the same weights at home
        except (KeyError, TypeError, ValueError) as error:
            raise RandSlotError(f"{serving} is broken: {first_line(error)}") from error
        self.weights = blake2b(what.encode(), digest_size=12).hexdigest()
        self._check_slots()

    def _find_serving(self, folder: str | Path | None, root: str) -> Path:
        """Return the serving.json of a folder, or of the server's own if it is on this machine."""
        place = Path(root if folder is None else folder).expanduser()
        file = place / SERVING if place.is_dir() else place
        if file.is_file() and (folder is not None or place.is_absolute()):  # else relative to the server's folder
            return file
        if folder is None:
            raise UsageError(f"{self.server.url} runs {root!r}, which is not a folder known here: name the export")
        raise UsageError(f"no {SERVING} in {place}: name the exported folder, or that file of it")

    def _check_slots(self) -> None:
        """Refuse a server that takes slots for text: it would give other vectors."""
        prompt = self.page_prompt.replace(self.family.image_token, "")
        plain, slotted, page = self.ask({"input": ["x", "x" + self.query_slots, prompt]})
        if len(slotted) - len(plain) != self.limit.query_vectors - 1:
            raise RandSlotError(f"{self.server.url} does not know the slot tokens: does it run the exported folder?")
        self.num_prompt_tokens = len(page)

    @property
    def page_pixels(self) -> int:
        """The most pixels of a page that the model reads."""
        return self.family.served_pixels(**self.image) if self.family.reads == "image" else 0

    @cached_property
    def processors(self) -> Processors:
        """The tokenizer of the exported folder, which only pages of text need."""
        return load_processors(self.family, Source(str(self.folder), folder=self.folder))

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages (images or their paths) into the bodies of requests."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            return {"side": side, "bodies": [{"input": [self._write_query(query, prompt) for query in items]}]}
        refuse_prompt(prompt)
        if self.family.reads == "text":
            # Token numbers: a server would cut the end, and take special tokens in a page for its own.
            before, after = self.page_prompt.split(PAGE)
            ids = self.processors.tokenize_inside(before, after, [self.open_page(page) for page in items])
            return {"side": side, "bodies": [{"input": ids}], "num_tokens": [len(page) for page in ids]}
        fitted = [self.family.fit_page(open_page(page, self.page_pixels), **self.image) for page in items]
        num_tokens = [self.num_prompt_tokens + visual for _, visual in fitted]
        return {"side": side, "bodies": [_write_page(page) for page, _ in fitted], "num_tokens": num_tokens}

    def open_page(self, page: Any) -> Any:
        """Open a page as the model takes it, cut to the length that it reads."""
        if self.family.reads == "text":
            return self.family.open_page(self.processors, page, self.settings.text_tokens)
        return open_page(page, self.page_pixels)

    def _write_query(self, query: Any, prompt: str | None) -> str:
        """Return the prompt of a query; refuse special tokens that would break out of its template."""
        text = (prompt or "") + check_query(query)
        special = ["<|randslot_"]
        if self.query_prompt != QUERY:
            if prompt:
                raise RandSlotError(f"the instruction of queries is fixed by the export, but one was given: {prompt!r}")
            special += self.family.special_tokens
        for token in special:
            if token in text:
                raise RandSlotError(f"a query to a server cannot hold the special token {token}: {text[:80]!r}")
        return self.query_prompt.replace(QUERY, text) + self.query_slots

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        """Return `token_embeddings` (B, K, D), unit vectors in float32, and their `attention_mask` (B, K)."""
        side: Side = features["side"]
        states = self.ask_all(features["bodies"])
        found = [len(rows) for rows in states]
        if side == "page" and found != features["num_tokens"]:
            raise RandSlotError(
                f"{self.server.url} reads pages of {features['num_tokens']} tokens as {found}: does it use the chat "
                "template and image settings of the exported folder?"
            )
        first, num = self.limit.vectors(side), self.settings.vectors(side)
        if min(found) < first:
            raise RandSlotError(f"{self.server.url} answers with {min(found)} states, too few for {first} vectors")
        vectors = torch.stack([F.normalize(rows[len(rows) - first :][:num], dim=-1) for rows in states])
        if not vectors.isfinite().all():
            raise RandSlotError(f"{self.server.url} answers with states that are not finite: does it run in float16?")
        return {"token_embeddings": vectors, "attention_mask": torch.ones(vectors.shape[:2], dtype=torch.long)}

    def ask(self, body: dict[str, Any], num_rows: str = "prompt_tokens") -> list[Tensor]:
        """Return the states (L, D) of each input of a body."""
        options = {"task": "token_embed", "add_special_tokens": False, "embed_dtype": "float32", "endianness": "little"}
        return super().ask(options | body, num_rows)
