"""Pages read on a Ray cluster: tasks open them, actors that hold the model encode them, on GPUs where there are.

Vectors come back to this process, which stores them and alone decides what is visible. So a library is written as
always, and what Ray does twice after a worker died is stored once. The only file that imports ray.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import ray
import ray.data
from numpy.typing import NDArray
from PIL import Image

from ..errors import RandSlotError, first_line
from ..model.batching import Ahead, in_shares, page_share, return_freed_memory
from ..model.reader import Identity, PageReader, Vectors
from ..pages.text import PageText, Word
from .models import load_bound
from .readers import ReadPage, WantedPages, read_content
from .workers import WorkerPool


def write_text(text: PageText) -> str:
    """Return a text as JSON; each word is [text, left, top, right, bottom]."""
    words = [[word.text, word.left, word.top, word.right, word.bottom] for word in text.words]
    return json.dumps([text.text, words, text.has_layer, text.truncated])


def parse_text(line: str) -> PageText:
    """Read what `write_text` wrote."""
    text, words, has_layer, truncated = json.loads(line)
    return PageText(text, tuple(Word(*word) for word in words), has_layer, truncated)


@cache
def _pool() -> WorkerPool:
    return WorkerPool(1)  # a process with limits, which a broken file may end without harm to Ray's


def open_pages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Open some pages of a file; the content of those whose hash is known is left out."""
    return [_open_page(row, int(number)) for number in row["numbers"]]


def _open_page(row: dict[str, Any], number: int) -> dict[str, Any]:
    page = {"file": row["file"], "number": number, "hash": "", "error": ""}
    page |= {"width": 0, "height": 0, "pixels": b"", "text": "", "layer": ""}
    try:
        content = read_content(_pool(), row["reads"], row["size"], os.fsdecode(row["source"]), number)
    except RandSlotError as error:
        return page | {"error": str(error)}
    page |= {"hash": content.hash, "layer": write_text(content.text)}
    if content.hash in row["known"]:
        return page
    if isinstance(content.page, str):
        return page | {"text": content.page}
    if content.page is None:  # without text, for a model that reads text
        return page
    return page | {"width": content.page.width, "height": content.page.height, "pixels": content.page.tobytes()}


PAGES_A_ROW = 8  # of one file that a task opens one after the other
BATCHES_A_CALL = 4  # that an actor gets, so that it can make pages ready while it encodes others
REACH_SECONDS = 10.0  # that a cluster has to answer in
MOST_BLOCKS = 10_000  # pieces that the work is cut into
Batch = dict[str, NDArray[Any]]


class RayReader:
    """Reads on a cluster; files and the model must have the same path on all its machines."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        library: str,
        load_model: Callable[[], PageReader],
        batch: int,
        trust_remote_code: bool = False,
    ) -> None:
        """address: as ray.init takes it; "" for RAY_ADDRESS, or the cluster of this machine, or a new one here.

        trust_remote_code: let the model run code of its own on all its machines.

        Errors: RandSlotError if the model is one that other processes cannot load.
        """
        if identity.name is None:
            raise RandSlotError(
                "a model in memory cannot go to a cluster: save it, and make the library with its folder"
            )
        name = os.path.abspath(identity.name) if os.path.isdir(identity.name) else identity.name
        self.address, self.identity, self.library = address, replace(identity, name=name), library
        self.load_model, self.batch, self.trust_remote_code = load_model, batch, trust_remote_code

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        rows = _make_rows(wanted, self.load_model())
        started = self._start()
        try:
            for batch in self._plan(rows).iter_batches(batch_size=self.batch, batch_format="numpy"):
                columns = [batch[name] for name in ENCODED]
                yield [self._read(*values) for values in zip(*columns, strict=True)]
        except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
            raise RandSlotError(f"reading on Ray failed: {_cause(error)}") from error
        finally:
            if started:
                ray.shutdown()

    def _start(self) -> bool:
        """Connect, unless the user's own program has; return whether that was done."""
        if ray.is_initialized():
            return False
        _reach(self.address)
        try:
            ray.init(self.address or None, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RandSlotError(f"no Ray cluster at {self.address or 'this machine'}: {first_line(error)}") from error
        return True

    def _plan(self, rows: list[dict[str, Any]]) -> ray.data.Dataset:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        blocks = min(max(len(rows) // 4, 1), MOST_BLOCKS)
        pages = ray.data.from_items(rows, override_num_blocks=blocks).flat_map(open_pages)
        return pages.map_batches(
            Encode,
            fn_constructor_args=(self.identity, self.library, self.trust_remote_code, self.batch),
            batch_size=BATCHES_A_CALL * self.batch,
            batch_format="numpy",
            **_places(ray.cluster_resources()),
        )

    def _read(self, file: str, number: int, hash: str, error: str, layer: str, vectors: bytes, cut: bool) -> ReadPage:
        """Return a page as it came back; without vectors or an error it is one whose hash is known."""
        found = np.frombuffer(vectors, np.float16).astype(np.float32).reshape(-1, self.identity.dimension)
        text = parse_text(str(layer)) if layer else None
        return ReadPage(str(file), int(number), str(hash), found if len(found) else None, text, str(error), bool(cut))


ENCODED = ("file", "number", "hash", "error", "layer", "vectors", "cut")


def _make_rows(wanted: Sequence[WantedPages], model: PageReader) -> list[dict[str, Any]]:
    """Return the work of each task: some pages of one file, and how the model reads them."""
    rows = []
    for pages in wanted:
        for start in range(0, len(pages.numbers), PAGES_A_ROW):
            rows.append(
                {
                    "file": pages.file,
                    "source": os.fsencode(pages.source),
                    "numbers": list(pages.numbers[start : start + PAGES_A_ROW]),
                    "known": sorted(pages.known),
                    "reads": model.reads,
                    "size": model.page_pixels,
                }
            )
    return rows


def _reach(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes.

    Errors: RandSlotError in one line.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise RandSlotError(f"no Ray cluster at {address}: {first_line(error)}") from error


def _places(resources: dict[str, float]) -> dict[str, Any]:
    """Return what an actor takes and how many there may be: one for each GPU, or most CPUs where there is none."""
    cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    most = gpus or max(cpus - max(cpus // 4, 1), 1)
    return {
        "compute": ray.data.ActorPoolStrategy(min_size=1, max_size=most),
        **({"num_gpus": 1} if gpus else {"num_cpus": 1}),
    }


class Encode:
    """An actor: loads the model of the library once, then encodes pages."""

    def __init__(self, identity: Identity, library: str, trust_remote_code: bool = False, size: int = 8) -> None:
        """size: pages of the largest size that are encoded at once."""
        self.model = load_bound(identity, None, library, trust_remote_code=trust_remote_code)
        self.size = size

    def __call__(self, batch: Batch) -> Batch:
        pages = [_unpack(batch, i) for i in range(len(batch["file"]))]
        new = [page for page in pages if page is not None]
        encoded = iter(self._encode(new))
        vectors = []
        for page in pages:
            vectors.append(b"" if page is None else next(encoded).astype(np.float16).tobytes())
        cut = [isinstance(page, str) and self.model.is_cut(page) for page in pages]
        kept = {name: batch[name] for name in ENCODED if name not in ("vectors", "cut")}
        return {**kept, "vectors": np.array(vectors, dtype=object), "cut": np.array(cut)}

    def _encode(self, pages: list[Any]) -> list[Vectors]:
        """Encode pages, of the largest size so many at once and of smaller ones more; threads make others ready."""
        prepare = getattr(self.model, "prepare_page", None) or (lambda page: page)
        vectors: list[Vectors] = []
        ahead = Ahead(prepare, pages, depth=2 * self.size)
        for group in in_shares(ahead, self.size, lambda item: page_share(item[1])):
            vectors += self.model.embed_pages([page for _, page in group])
            return_freed_memory()
        return vectors


def _unpack(batch: Batch, i: int) -> Image.Image | str | None:
    """Return the image or the text of a page; None if its hash is known, or it could not be opened."""
    if batch["pixels"][i]:
        size = (int(batch["width"][i]), int(batch["height"][i]))
        return Image.frombytes("RGB", size, batch["pixels"][i])
    return str(batch["text"][i]) or None


def _cause(error: BaseException) -> str:
    """Return what went wrong on a worker, without Ray's frames around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
