"""A model on a server: asks for the states of all tokens, as vLLM gives them, and keeps the last K of each input.

The server runs a folder that `randslot export` wrote; the client knows it by its serving.json. A RandSlot service is
asked for vectors instead: see `service_model`.

Shapes: B batch, L tokens, K vectors, D dimension.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from time import sleep as pause
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
from .reader import SIDES, Reads, Side, check_query, is_url
from .settings import Settings

PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before asking again where no server answered
WRONG = "is it a vLLM server, started as SERVING.md says, or randslot serve?"


@dataclass(frozen=True)
class ListedModel:
    """A model as a server lists it: its name, where it was loaded from, and what a RandSlot service says of it."""

    name: str
    root: str
    about: Mapping[str, Any] | None = None


class Server:
    """An address that is asked in JSON; what goes wrong is said in one line."""

    def __init__(self, url: str, timeout: float, token: str | None) -> None:
        if not is_url(url):
            raise UsageError(f"{url!r} is not the address of a server, as in http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1").removesuffix("/pooling")
        self.timeout = timeout
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def find_model(self) -> ListedModel:
        """Return the first model that the server has."""
        answer = self.ask("/v1/models")
        try:
            model = answer["data"][0]
            return ListedModel(str(model["id"]), str(model.get("root") or model["id"]), model.get("randslot"))
        except IndexError as error:
            line = f"{self.url} has no model: a library of words alone has none, index it with --model"
            raise RandSlotError(line) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise RandSlotError(f"{self.url} names no model at /v1/models: {WRONG}") from error

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Post a body, or get a path if there is none; ask again for some seconds while no server answers."""
        request = Request(self.url + path, json.dumps(body).encode() if body else None, self.headers)
        for seconds in PAUSES:
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
                reason = _reason(error.read())
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


def _reason(body: bytes) -> str:
    """Return what a server says of an error, in one line: OpenAI's form, or the body as it is."""
    try:
        content = json.loads(body)
        content = content.get("error", content)
        text = str(content["message"] if isinstance(content, dict) else content)
    except (ValueError, KeyError, AttributeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:300]


def change_budgets(now: Settings, most: Settings, changes: Mapping[str, Any], fixed_by: str) -> Settings:
    """Return settings with other budgets, at most those that a server gives: fewer vectors are the first ones of more.

    Errors: UsageError for any other change.
    """
    settings = now.change(**changes)
    fixed = asdict(replace(most, query_vectors=settings.query_vectors, page_vectors=settings.page_vectors))
    for name, value in asdict(settings).items():
        if value != fixed[name]:
            raise UsageError(f"{name} is fixed by the {fixed_by}; on a server only the budgets can be changed")
    for side in SIDES:
        if settings.vectors(side) > most.vectors(side):
            raise UsageError(
                f"{side}_vectors={settings.vectors(side)}: this model was exported with "
                f"{most.vectors(side)}; export it again with more"
            )
    return settings


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
    folder, or its serving.json alone; by default where the server says its model is, if that is on this machine.
    query_vectors, page_vectors: fewer than it gives. timeout: in seconds, of one request. token: what the server wants
    as a bearer token.

    Errors: RandSlotError in one line if the server cannot be reached, or runs another model than the folder has.
    """
    server = Server(url, timeout, token)
    model = server.find_model()
    budgets = {"query_vectors": query_vectors, "page_vectors": page_vectors}
    given = {side: num for side, num in budgets.items() if num is not None}
    if model.about is not None:
        if folder is not None:
            raise UsageError(f"{server.url} is a RandSlot service, which says all itself: name no exported folder")
        service = ServiceEncoder(server, model)
        service.use(**given)
        return RandSlotModel(modules=[service], device="cpu")
    encoder = RemoteEncoder(server, model.name, _find_serving(server.url, folder, model.root))
    encoder.use(**given)
    encoder.meet()
    return RandSlotModel(modules=[encoder], device="cpu")


def _find_serving(url: str, folder: str | Path | None, root: str) -> Path:
    """Return the serving.json of a folder, or of the server's own if it is on this machine."""
    place = Path(root if folder is None else folder).expanduser()
    file = place / SERVING if place.is_dir() else place
    if folder is None and not (file.is_file() and place.is_absolute()):  # relative to where the server was started
        raise UsageError(f"{url} runs {root!r}, which is not a folder known here: name the exported folder")
    if not file.is_file():
        raise UsageError(f"no {SERVING} in {place}: name the exported folder, or that file of it")
    return file


class RemoteEncoder(ServedEncoder):
    """The one module of a model that runs on a server such as vLLM."""

    def __init__(self, server: Server, name: str, serving: Path) -> None:
        super().__init__(server, name)
        self.folder = serving.parent
        content = read_json(serving)
        if content.get("format") != FORMAT:
            raise RandSlotError(f"{serving} has format {content.get('format')!r}, but this version reads {FORMAT}")
        try:
            self.exported = self.settings = Settings(**content["settings"])
            self.dimension = int(content["dimension"])
            self.query_prompt = str(content["query_prompt"])
            self.query_slots, self.page_prompt = str(content["query_slots"]), str(content["page_prompt"])
            self.image = dict(content["image"])
            self.family, self.dtype = find_family(str(content["family"])), str(content["dtype"])
            what = f"{content['weights']} {content['dtype']} on a server"  # kept apart from the same weights at home
        except (KeyError, TypeError, ValueError) as error:
            raise RandSlotError(f"{serving} is broken: {first_line(error)}") from error
        self.weights = blake2b(what.encode(), digest_size=12).hexdigest()

    def use(self, **changes: Any) -> None:
        """Change the budgets, to at most what was exported: fewer vectors are the first ones of more."""
        self.settings = change_budgets(self.settings, self.exported, changes, "export")

    def meet(self) -> None:
        """Ask the server for something small.

        Errors: RandSlotError if slots are not tokens there: it would take them for text, and give other vectors.
        """
        prompt = self.page_prompt.replace(self.family.image_token, "")
        plain, slotted, page = self.ask({"input": ["x", "x" + self.query_slots, prompt]})
        if len(slotted) - len(plain) != self.exported.query_vectors - 1:
            raise RandSlotError(f"{self.server.url} does not know the slot tokens: does it run the exported folder?")
        self.num_prompt_tokens = len(page)

    @property
    def page_pixels(self) -> int:
        """The most pixels of a page that the model reads."""
        return self.family.served_pixels(**self.image) if self.family.reads == "image" else 0

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Turn queries (text) or pages (images or their paths) into the bodies of requests."""
        items, side = sort_inputs(inputs, task)
        if side == "query":
            return {"side": side, "bodies": [{"input": [self._query(query, prompt) for query in items]}]}
        refuse_prompt(prompt)
        if self.family.reads == "text":
            return self._preprocess_texts(items)
        fitted = [self.family.fit_page(open_page(page, self.page_pixels), **self.image) for page in items]
        num_tokens = [self.num_prompt_tokens + visual for _, visual in fitted]
        return {"side": side, "bodies": [write_page(page) for page, _ in fitted], "num_tokens": num_tokens}

    def _preprocess_texts(self, pages: list[Any]) -> dict[str, Any]:
        """Turn pages into token numbers: a server would cut the end, and take special tokens in a page for its own."""
        before, after = self.page_prompt.split(PAGE)
        ids = self.processors.tokenize_inside(before, after, [self.open_page(page) for page in pages])
        return {"side": "page", "bodies": [{"input": ids}], "num_tokens": [len(page) for page in ids]}

    @cached_property
    def processors(self) -> Processors:
        """The tokenizer of the exported folder, which only pages of text need."""
        return load_processors(self.family, Source(str(self.folder), folder=self.folder))

    def open_page(self, page: Any) -> Any:
        """Open a page as the model takes it, cut to what it reads."""
        if self.family.reads == "text":
            return self.family.open_page(self.processors, page, self.settings.text_tokens)
        return open_page(page, self.page_pixels)

    def _query(self, query: Any, prompt: str | None) -> str:
        text = (prompt or "") + check_query(query)
        if "<|randslot_" in text:
            raise RandSlotError(f"a query cannot hold a slot token: {text[:80]!r}")
        if self.query_prompt != QUERY:
            self._check_inside(text, prompt)
        return self.query_prompt.replace(QUERY, text) + self.query_slots

    def _check_inside(self, text: str, prompt: str | None) -> None:
        """Refuse what would break out of the template, or replace its instruction: it is part of the export."""
        if prompt:
            raise RandSlotError(f"the instruction of queries is fixed by the export, but one was given: {prompt!r}")
        for token in self.family.special_tokens:
            if token in text:
                raise RandSlotError(f"a query to a server cannot hold the special token {token}: {text[:80]!r}")

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
        first, num = self.exported.vectors(side), self.settings.vectors(side)
        if min(found) < first:
            raise RandSlotError(f"{self.server.url} answers with {min(found)} states, too few for {first} vectors")
        vectors = torch.stack([F.normalize(rows[len(rows) - first :][:num], dim=-1) for rows in states])
        if not vectors.isfinite().all():
            raise RandSlotError(f"{self.server.url} answers with states that are not finite: does it run in float16?")
        return {"token_embeddings": vectors, "attention_mask": torch.ones(vectors.shape[:2], dtype=torch.long)}

    def ask(self, body: dict[str, Any]) -> list[Tensor]:
        """Return the states (L, D) of each input in a body."""
        form = {"embed_dtype": "float32", "endianness": "little"}
        options = {"task": "token_embed", "add_special_tokens": False, **form}
        numbers, answer = self.post(options | body, "token states")
        try:
            tokens = int(answer["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise RandSlotError(f"{self.server.url} does not count the tokens: {first_line(error)}") from error
        # The bytes have no shape: only the count of tokens tells a wrong dimension.
        total = sum(len(item) for item in numbers)
        if total != tokens * self.dimension or any(len(item) % self.dimension for item in numbers):
            raise RandSlotError(
                f"{self.server.url} answers with {total} numbers for {tokens} tokens, not {self.dimension} for each: "
                "is it this model, started with token_embed?"
            )
        return [item.view(-1, self.dimension) for item in numbers]
