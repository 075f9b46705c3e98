"""Time encoding by the paper's protocol: inputs of fixed size, one at a time, without preprocessing.

Every strategy and budget is timed in one pass and, as in the paper, step by step on a KV cache. Timings interleave all
of them, so that load on the machine affects all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ..errors import UsageError
from ..model.encoder import narrow_tensor
from ..model.model import RandSlotModel
from ..model.reader import Side
from ..model.readout import read_once, read_stepwise
from ..model.slots import STRATEGIES, Sequential, Strategy
from ..tables import Cell, Table

Features = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """The timing protocol, by default the paper's.

    rows, columns: the merged visual tokens of a page; a text has as many tokens.
    """

    rows: int = 48
    columns: int = 32
    query_tokens: int = 32
    warmup: int = 3
    samples: int = 32
    budgets: tuple[int, ...] = (1, 4, 6)
    strategies: tuple[str, ...] = tuple(name for name, one in STRATEGIES.items() if not one.every_token)

    def __post_init__(self) -> None:
        if (smallest := min(self.rows, self.columns, self.query_tokens, self.samples, *self.budgets)) < 1:
            raise UsageError(f"sizes, samples and budgets must be 1 or more, not {smallest}")


class Way(NamedTuple):
    """A way to encode: a strategy, a budget, and whether all vectors come from one pass."""

    strategy: str
    vectors: int
    one_pass: bool


def profile(model: RandSlotModel, protocol: Protocol) -> Table:
    """Time a model's backbone; return the median query latency and page throughput of every way."""
    ways = []
    for strategy in protocol.strategies:
        for vectors in protocol.budgets:
            if not issubclass(STRATEGIES[strategy], Sequential):
                ways.append(Way(strategy, vectors, one_pass=True))
            ways.append(Way(strategy, vectors, one_pass=False))
    seconds: dict[Side, dict[Way, list[float]]] = {}
    with page_size(model, protocol), torch.inference_mode():
        pages = _make_pages(model, protocol)
        inputs: dict[Side, list[Features]] = {"query": _make_queries(model, protocol), "page": pages}
        for side, samples in inputs.items():
            functions = {way: _make_function(model, way, side) for way in ways}
            seconds[side] = _time(functions, samples, protocol.warmup)
    rows: list[list[Cell]] = []
    for way in ways:
        speeds = [1000 * statistics.median(seconds["query"][way]), protocol.samples / sum(seconds["page"][way])]
        rows.append([way.strategy, way.vectors, "one pass" if way.one_pass else "step by step", *speeds])
    size = f"{pages[0]['input_ids'].shape[1]} positions"
    if "image_grid_thw" in pages[0]:  # neither tiles nor text
        size = f"{protocol.rows} x {protocol.columns} merged visual tokens"
    queries = f"queries of {protocol.query_tokens} tokens"
    title = f"Encoding: {queries}, pages of {size}, one at a time, {protocol.samples} samples"
    if model.settings.width:
        title += f", {model.settings.width} dimensions"
    return Table(title, ["strategy", "vectors", "way", "query ms (median)", "pages/s"], rows, digits=2)


@contextmanager
def page_size(model: RandSlotModel, protocol: Protocol) -> Iterator[None]:
    """Set a model to encode pages of the protocol's size inside the block, and restore it after."""
    limit = "text_tokens" if model.reads == "text" else "visual_tokens"
    before, training = getattr(model.settings, limit), model.training
    model.use(**{limit: protocol.rows * protocol.columns})
    model.eval()
    try:
        yield
    finally:
        model.use(**{limit: before})
        model.train(training)


def _make_queries(model: RandSlotModel, protocol: Protocol) -> list[Features]:
    """Make queries of a fixed length: repeat short ones and keep the last tokens."""
    words = ("net sales by region", "deferred tax", "how did output change?", "staff costs in the third quarter")
    queries = []
    for number in range(protocol.warmup + protocol.samples):
        features = model.preprocess([f"{words[number % len(words)]} {number}"], task="query")
        ids = features["input_ids"]
        times = -(-protocol.query_tokens // ids.shape[1])
        fixed = ids.repeat(1, times)[:, -protocol.query_tokens :]
        queries.append(features | {"input_ids": fixed, "attention_mask": torch.ones_like(fixed)})
    return queries


def _make_pages(model: RandSlotModel, protocol: Protocol) -> list[Features]:
    """Make distinct pages of a fixed size.

    In a family without a fixed grid, such as one with tiles, the number of tokens may differ.
    """
    tokens = protocol.rows * protocol.columns
    side = round((model.page_pixels / tokens) ** 0.5)  # the side of a visual token, in pixels
    pages = []
    for number in range(protocol.warmup + protocol.samples):
        page: Any = f"{number:04} " + "tax " * tokens  # longer than the limit: a word has at least one token
        if model.reads != "text":
            page = Image.new("RGB", (protocol.columns * side, protocol.rows * side), "white")
            page.paste((number, number, number), (0, 0, side // 2, side // 2))
        pages.append(model.preprocess([page], task="document"))
    return pages


def _make_function(model: RandSlotModel, way: Way, side: Side) -> Callable[[Features], Tensor]:
    """Return the function that encodes features from the host."""
    backbone, num = model.backbone, way.vectors - 1
    device = next(backbone.model.parameters()).device
    width = model.settings.width
    counts: dict[Side, int] = {"query": max(num, 1), "page": max(num, 1)}
    slots: Strategy = STRATEGIES[way.strategy](model.encoder.hidden_size, counts, model.settings.seed)
    slots.to(device).eval()

    def encode(features: Features) -> Tensor:
        there = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
        content = backbone.read_content(there)
        if isinstance(slots, Sequential):
            vectors = read_stepwise(backbone, content, num, lambda _, readout: slots.step(readout), cached=True)
        else:
            given = slots(side, num, there["keys"])
            if way.one_pass:
                vectors = read_once(backbone, content, given)
            else:
                vectors = read_stepwise(backbone, content, num, lambda t, _: given[:, t], cached=True)
        return narrow_tensor(vectors, width) if width else vectors

    return encode


def _time(
    functions: dict[Way, Callable[[Features], Tensor]], samples: Sequence[Features], warmup: int
) -> dict[Way, list[float]]:
    """Time every function on every sample, interleaved; skip the warmup samples."""
    seconds: dict[Way, list[float]] = {way: [] for way in functions}
    console = Console(stderr=True)
    tracked = track(samples, "timing", console=console, transient=True, disable=not console.is_terminal)
    for number, features in enumerate(tracked):
        for way, function in functions.items():
            synchronize()
            start = time.perf_counter()
            function(features)
            synchronize()
            if number >= warmup:
                seconds[way].append(time.perf_counter() - start)
    return seconds


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
