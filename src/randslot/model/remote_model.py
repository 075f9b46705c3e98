"""A model on a server: asks for the states of all tokens, as vLLM gives them, and keeps the last K of each input.

The server runs a folder that `randslot export` wrote; the client knows it by its serving.json. A RandSlot service is
asked for vectors instead: see `service_model`.

Shapes: B batch, L tokens, K vectors, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.util import get_device_name
from torch import Tensor

from ..errors import RandSlotError, UsageError, first_line
from ..files import read_json
from ..pages import open_page
from .backbone import load_processors
from .embedding_loading import load_embedding_model
from .embedding_model import EmbeddingModel
from .export import FORMAT
from .families import find_family
from .families.family import Processors
from .hub import MODEL_FILES, SERVING, WITH_CODE, Source, find
from .kinds import find_kind
from .loading import choose_dtype, load_source
from .model import RandSlotModel
from .preprocessing import check_query, refuse_prompt, sort_inputs
from .reader import Side
from .served_encoder import ServedEncoder, write_page
from .server import Server, change_budgets
from .server import is_url as is_url  # where it was, for others
from .service_model import ServiceEncoder
from .settings import Settings
from .template import PAGE, QUERY
from .use_reader import NAME as SMALL_READER


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


def open_model(name: str, **options: Any) -> RandSlotModel | EmbeddingModel:
    """Open any model that is run by torch or on a server: by its folder or hub id, or at the address of a server.

    A saved RandSlot model, a backbone that gets new slots, or a model of sentence-transformers, of several vectors a
    page or of one; if a `template` is named, it is a backbone that gets new slots. Options are those of `load` or
    `load_embedding_model`; those that are None are left.

    Errors: UsageError for an option that this kind of model does not have. RandSlotError in one line if there is no
    such model, or none that can be run here.
    """
    if name == SMALL_READER:
        raise UsageError(f"{name} is for libraries: index, search, serve and compare take it, and evaluate --by both")
    given = {option: value for option, value in options.items() if value is not None}
    if is_url(name):
        if fixed := sorted(given.keys() - {"query_vectors", "page_vectors"}):
            raise UsageError(f"{fixed[0]}={given[fixed[0]]!r} does not go with a server: its export has set it")
        return remote(name, **given)
    code = {option: given.pop(option) for option in ("trust_remote_code", "known_code") if option in given}
    source = find(name, given.pop("revision", None), files=WITH_CODE if any(code.values()) else MODEL_FILES)
    kind = find_kind(source)
    if kind in ("randslot", "backbone") or "template" in given:  # with one, a retrieval model is a backbone
        return load_source(source, **given)
    device = str(given.pop("device", None) or get_device_name())
    dtype = choose_dtype(given.pop("dtype", None), device)
    return load_embedding_model(source, kind, device=device, dtype=dtype, **code, **given)


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
