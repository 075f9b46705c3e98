"""Rerank the first hits of a search.

A reranker is a `CrossEncoder` of sentence-transformers, which reads the text or the image of a page, or a server with a
/rerank route, such as vLLM, Text Embeddings Inference or Jina.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from ..errors import RandSlotError, in_one_line
from ..extras import needs_extra
from ..model.reader import Reads, is_url
from ..model.text_reader import cut_evenly
from .results import Hit
from .stores.points import StoredPage


class Reranker(Protocol):
    """Scores pages for a query. pages: the number of hits to rerank. seconds: timeout; hits then keep their order."""

    name: str
    reads: Reads
    pages: int
    seconds: float

    def score(self, query: str, pages: Sequence[Any], deadline: float) -> list[float]:
        """Score each page (text or image), higher is better; TimeoutError after the deadline."""


def open_reranker(
    name: str, *, pages: int = 20, seconds: float = 10.0, trust_remote_code: bool = False
) -> CrossEncoderReranker | ServedReranker:
    """Open a reranker: a folder or hub id of a cross-encoder, or the URL of a server.

    pages: the number of hits to rerank. seconds: timeout of one query; hits then keep their order.
    """
    if is_url(name):
        return ServedReranker(name, pages, seconds)
    with needs_extra():
        return CrossEncoderReranker(name, pages, seconds, trust_remote_code)


def score_windows(pages: list[list[Any]], score: Callable[[list[Any]], Any], batch: int) -> list[float]:
    """Score the windows of pages in batches; return the best score of each page."""
    owners = [(number, window) for number, windows in enumerate(pages) for window in windows]
    scores = [-math.inf] * len(pages)
    for start in range(0, len(owners), batch):
        chunk = owners[start : start + batch]
        for (number, _), found in zip(chunk, score([window for _, window in chunk]), strict=True):
            scores[number] = max(scores[number], float(found))
    return scores


class CrossEncoderReranker:
    """A `CrossEncoder` from a folder or the hub: safetensors only, no remote code unless trusted."""

    def __init__(self, name: str, pages: int, seconds: float, trust_remote_code: bool) -> None:
        from ..model.hub import MODEL_FILES, WITH_CODE, resolve
        from ..model.sentence_model import load_checked

        self.name, self.pages, self.seconds = name, pages, seconds
        source = resolve(name, files=WITH_CODE if trust_remote_code else MODEL_FILES)
        self.model, _ = load_checked(source, "reranker", trust_remote_code=trust_remote_code)
        self.reads: Reads = "image" if self.model.supports("image") else "text"
        self._lock = Lock()
        shape = np.shape(self._predict([("a query", "a page")]))  # a broken model fails here
        if shape != (1,):
            raise RandSlotError(f"{name} returns {shape[-1]} scores per page: choose a reranker that returns one")

    def _predict(self, pairs: list[tuple[str, Any]]) -> Any:
        with self._lock, in_one_line(f"rerank with {self.name}"):
            return self.model.predict(pairs, batch_size=len(pairs), show_progress_bar=False)

    def score(self, query: str, pages: Sequence[Any], deadline: float) -> list[float]:
        def predict(windows: list[Any]) -> Any:
            if time.monotonic() > deadline:
                raise TimeoutError
            return self._predict([(query, window) for window in windows])

        windows = [self._cut(query, page) if isinstance(page, str) else [page] for page in pages]
        return score_windows(windows, predict, 16 if self.reads == "text" else 2)

    def _cut(self, query: str, text: str) -> list[str]:
        """Split a text into at most eight windows that fit the model together with the query."""
        tokenizer = self.model.tokenizer
        room = min(self.model.max_seq_length or 512, 2048) - len(tokenizer(query)["input_ids"]) - 8
        tokens = len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        return cut_evenly(text, min(math.ceil(tokens / max(room, 32)), 8))


class ServedReranker:
    """A server with a /rerank route; URL#MODEL selects one of its models.

    It reads text, in windows of about 200 words. RANDSLOT_RERANK_TOKEN holds its bearer token.
    """

    reads: Reads = "text"

    def __init__(self, name: str, pages: int, seconds: float) -> None:
        from ..model.client import JsonClient

        self.name, self.pages, self.seconds = name, pages, seconds
        url, _, self.model = name.partition("#")
        hint = "; does it have a /rerank route, as in vLLM or Text Embeddings Inference?"
        token = os.environ.get("RANDSLOT_RERANK_TOKEN")
        self.client = JsonClient(url.rstrip("/").removesuffix("/rerank"), seconds, token, hint)
        self.client.pauses = ()
        self.field = "documents"  # "texts" on some servers

    def score(self, query: str, pages: Sequence[Any], deadline: float) -> list[float]:
        windows = [cut_evenly(page, math.ceil(len(page.split()) / 200)) for page in pages]
        # Text Embeddings Inference accepts at most 32.
        return score_windows(windows, lambda chunk: self._ask(query, chunk, deadline), 32)

    def _ask(self, query: str, windows: list[str], deadline: float) -> list[float]:
        self.client.timeout = min(deadline - time.monotonic(), 600.0)
        if self.client.timeout <= 0:
            raise TimeoutError
        body: dict[str, Any] = {"query": query, self.field: windows} | ({"model": self.model} if self.model else {})
        try:
            answer = self.client.ask("/rerank", body | ({"truncate": True} if self.field == "texts" else {}))
        except RandSlotError as error:
            if time.monotonic() >= deadline:
                raise TimeoutError from error
            if self.field == "documents" and "texts" in str(error):  # the missing field
                self.field = "texts"
                return self._ask(query, windows, deadline)
            raise
        found: dict[int, float] = {}
        with in_one_line(f"rerank with {self.name}"):
            for item in answer if isinstance(answer, list) else answer["results"]:
                found[int(item["index"])] = float(item["score"] if "score" in item else item["relevance_score"])
            return [found[number] for number in range(len(windows))]


def rerank_hits(
    reranker: Reranker, query: str, hits: list[Hit], pages: Mapping[str, StoredPage]
) -> tuple[list[Hit], str]:
    """Rerank the first hits; return all hits, and a note if the reranker failed and they keep their order.

    A page that the reranker cannot read keeps its rank.
    """
    places: list[int] = []
    contents: list[Any] = []
    try:
        for place, hit in enumerate(hits[: reranker.pages]):
            text = pages[hit.id].text
            if reranker.reads == "image":
                contents.append(hit.image())
            elif text is not None and text.text:
                contents.append("/".join(Path(hit.source).parts[-2:]) + "\n" + text.text)  # names distinguish twins
            else:
                continue
            places.append(place)
        scores = reranker.score(query, contents, time.monotonic() + reranker.seconds)
    except TimeoutError:
        return hits, f"{reranker.name} took longer than {reranker.seconds:g} s; hits are not reranked"
    except RandSlotError as error:
        return hits, f"{error}; hits are not reranked"
    again = list(hits)
    order = sorted(range(len(places)), key=lambda number: -scores[number])
    for place, number in zip(places, order, strict=True):
        again[place] = replace(hits[places[number]], rerank=scores[number])
    return again, ""
