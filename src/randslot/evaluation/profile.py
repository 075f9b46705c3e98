"""How fast a model encodes, by the paper's protocol: inputs of fixed size, one at a time, preprocessing left out.

Every strategy and budget is timed in our one pass and in the paper's way, position by position on a cache, in turns
within one run, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import torch
from PIL import Image
from rich.progress import Progress
from torch import Tensor

from ..errors import UsageError
from ..model.batching import Ahead, in_groups
from ..model.model import RandSlotModel
from ..model.reader import Side
from ..model.readout import read_once, read_stepwise
from ..model.slots import STRATEGIES, Sequential, Strategy
from ..pages import open_page
from ..tables import Cell, Table

WORDS = ("net sales by region", "deferred tax", "how did output change?", "staff costs in the third quarter")
Features = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """What is timed: by default as in the paper.

    rows, columns: the merged visual tokens of a page; of a text as many tokens as that.
    """

    rows: int = 48
    columns: int = 32
    query_tokens: int = 32
    warmup: int = 3
    samples: int = 32
    budgets: tuple[int, ...] = (1, 4, 6)
    strategies: tuple[str, ...] = ()  # () for all that append slots

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "query_tokens", "samples", *(() if not self.warmup else ("warmup",))):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not self.budgets or min(self.budgets) < 1:
            raise UsageError("budgets must be whole numbers of 1 or more")
        known = [name for name, strategy in STRATEGIES.items() if not strategy.every_token]
        for name in self.strategies:
            if name not in known:
                raise UsageError(f"strategy {name!r} is not one of {', '.join(known)}")
        if not self.strategies:
            object.__setattr__(self, "strategies", tuple(known))


@dataclass(frozen=True)
class Way:
    """One way to some vectors: a strategy, a budget, and whether all come from one pass."""

    strategy: str
    vectors: int
    one_pass: bool

    @property
    def name(self) -> str:
        return "one pass" if self.one_pass else "step by step"


def profile(model: RandSlotModel, protocol: Protocol, progress: Progress | None = None) -> Table:
    """Time a model's backbone and return the median query latency and the pages a second of every way."""
    ways = _list_ways(protocol)
    seconds: dict[Side, dict[Way, list[float]]] = {}
    with _encoding(model, protocol), torch.inference_mode():
        inputs: dict[Side, list[Features]] = {
            "query": _make_queries(model, protocol),
            "page": _make_pages(model, protocol),
        }
        for side, samples in inputs.items():
            bar = progress.add_task(f"timing {side} encoding", total=len(samples)) if progress else None
            functions = {way: _make_function(model, way, side) for way in ways}
            seconds[side] = _time(functions, samples, protocol.warmup, partial(_advance, progress, bar))
    rows: list[list[Cell]] = [
        [
            way.strategy,
            way.vectors,
            way.name,
            1000 * statistics.median(seconds["query"][way]),
            protocol.samples / sum(seconds["page"][way]),
        ]
        for way in ways
    ]
    title = (
        f"Encoding: queries of {protocol.query_tokens} tokens, pages of {_describe_size(model, inputs['page'][0])}, "
        f"one at a time, {protocol.samples} samples"
    )
    return Table(title, ["strategy", "vectors", "way", "query ms (median)", "pages/s"], rows, digits=2)


def measure_waiting(model: RandSlotModel, protocol: Protocol, batch: int = 1) -> Table:
    """Encode page images as `evaluate` and `index` do, others being made ready meanwhile; say how long the model waits.

    The first pages, for which everything waits, do not count. The time of making ready is that of one thread alone.
    """
    with _encoding(model, protocol):
        files = make_files(model, protocol.warmup * batch + protocol.samples)

        def prepare(file: bytes) -> Any:
            return model.prepare_page(open_page(file, model.page_pixels))

        started = time.perf_counter()
        for file in files[: protocol.warmup]:
            prepare(file)
        alone = (time.perf_counter() - started) / max(protocol.warmup, 1)
        ahead = Ahead(prepare, files, depth=4 * batch)
        for number, group in enumerate(in_groups(ahead, batch), 1):
            model.embed_pages([page for _, page in group])
            _wait()
            if number == protocol.warmup:
                started, ahead.waited = time.perf_counter(), 0.0
        seconds = time.perf_counter() - started
    row: list[Cell] = [protocol.samples / seconds, 1000 * alone, f"{ahead.waited / seconds:.1%}"]
    size = f"up to {protocol.rows} x {protocol.columns}"
    title = (
        f"Page images of {size} merged visual tokens, made ready in {ahead.threads} thread{'s' * (ahead.threads > 1)}"
    )
    return Table(title, ["pages/s", "ms to make one ready", "the model waits"], [row], digits=2)


def make_files(model: RandSlotModel, num: int) -> list[bytes]:
    """Make page images as scanners do: larger than what the model looks at, and compressed."""
    width = round((2 * model.page_pixels * 2 / 3) ** 0.5)
    files = []
    for number in range(num):
        image = Image.effect_noise((width, width * 3 // 2), 40 + number).convert("RGB")
        file = BytesIO()
        image.save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return files


def _advance(progress: Progress | None, bar: object) -> None:
    if progress is not None:
        progress.update(bar, advance=1)  # type: ignore[arg-type]


def _list_ways(protocol: Protocol) -> list[Way]:
    ways = []
    for strategy in protocol.strategies:
        for vectors in protocol.budgets:
            if not issubclass(STRATEGIES[strategy], Sequential):
                ways.append(Way(strategy, vectors, one_pass=True))
            ways.append(Way(strategy, vectors, one_pass=False))
    return ways


@contextmanager
def _encoding(model: RandSlotModel, protocol: Protocol) -> Iterator[None]:
    """Set a model to encode pages of the protocol's size, and set it back."""
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
    """Make queries of a fixed length: short ones repeated, of which the last tokens are kept."""
    queries = []
    for number in range(protocol.warmup + protocol.samples):
        features = model.preprocess([f"{WORDS[number % len(WORDS)]} {number}"], task="query")
        ids = features["input_ids"]
        times = -(-protocol.query_tokens // ids.shape[1])
        fixed = ids.repeat(1, times)[:, -protocol.query_tokens :]
        queries.append(features | {"input_ids": fixed, "attention_mask": torch.ones_like(fixed)})
    return queries


def _make_pages(model: RandSlotModel, protocol: Protocol) -> list[Features]:
    """Make pages of a fixed size, which a mark tells apart; what is on a page costs nothing.

    A family whose pages have no grid, such as one that cuts them into tiles, gets as many tokens as it takes of those.
    """
    numbers = range(protocol.warmup + protocol.samples)
    make = _make_text if model.reads == "text" else _make_image
    pages = [model.preprocess([make(model, protocol, number)], task="document") for number in numbers]
    if model.page_grid(pages[0]) not in (None, (protocol.rows, protocol.columns)):
        raise UsageError(f"a page of {protocol.rows} x {protocol.columns} visual tokens is too long: at most 200 to 1")
    return pages


def _make_image(model: RandSlotModel, protocol: Protocol, number: int) -> Image.Image:
    side = round((model.page_pixels / (protocol.rows * protocol.columns)) ** 0.5)  # of one visual token, in pixels
    image = Image.new("RGB", (protocol.columns * side, protocol.rows * side), "white")
    image.paste((number, number, number), (0, 0, side // 2, side // 2))
    return image


def _make_text(model: RandSlotModel, protocol: Protocol, number: int) -> str:
    """Return more text than the model reads of a page: a word is a token at the least."""
    return f"{number:04} " + "tax " * protocol.rows * protocol.columns


def _describe_size(model: RandSlotModel, page: Features) -> str:
    grid, positions = model.page_grid(page), page["input_ids"].shape[1]
    if grid is None:
        return f"{positions} positions"
    return f"{grid[0]} x {grid[1]} merged visual tokens"


def _make_function(model: RandSlotModel, way: Way, side: Side) -> Callable[[Features], Tensor]:
    """Return the function that takes features from the host to vectors."""
    backbone, num = model.backbone, way.vectors - 1
    device = next(backbone.model.parameters()).device
    slots: Strategy = STRATEGIES[way.strategy](
        model.dimension, {"query": max(num, 1), "page": max(num, 1)}, model.settings.seed
    )
    slots.to(device).eval()

    def encode(features: Features) -> Tensor:
        there = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
        content = backbone.read_content(there)
        if isinstance(slots, Sequential):
            return read_stepwise(backbone, content, num, lambda _, readout: slots.step(readout), cached=True)
        given = slots(side, num, there["keys"])
        if way.one_pass:
            return read_once(backbone, content, given)
        return read_stepwise(backbone, content, num, lambda t, _: given[:, t], cached=True)

    return encode


def _time(
    functions: dict[Way, Callable[[Features], Tensor]],
    samples: Sequence[Features],
    warmup: int,
    advance: Callable[[], None],
) -> dict[Way, list[float]]:
    """Time every function on every sample, in turns; the first samples warm up and do not count."""
    seconds: dict[Way, list[float]] = {way: [] for way in functions}
    for number, features in enumerate(samples):
        for way, function in functions.items():
            _wait()
            start = time.perf_counter()
            function(features)
            _wait()
            if number >= warmup:
                seconds[way].append(time.perf_counter() - start)
        advance()
    return seconds


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
