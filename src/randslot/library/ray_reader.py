"""Pages read on a Ray cluster: tasks open them, actors that hold the model encode them, on GPUs where there are.

Vectors come back to this process, the only one that stores them: what Ray does twice is stored once. The only
file that imports ray.
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
from .models import load_bound
from .readers import ReadPage, WantedPages, open_page
from .worker import pack_text
from .workers import WorkerPool, unpack_text

PAGES_A_ROW = 8  # of one file that a task opens one after the other
Batch = dict[str, NDArray[Any]]


@cache
def _pool() -> WorkerPool:
    return WorkerPool(1)  # a broken file may end its process without harm to Ray's


def open_pages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Open some pages of a file, as a task; the content of those whose hash is known is left out."""
    opened = []
    for number in row["numbers"]:
        page = {"file": row["file"], "number": int(number), "hash": "", "error": "", "layer": ""}
        page |= {"width": 0, "height": 0, "pixels": b"", "text": ""}
        opened.append(page)
        try:
            found = open_page(_pool(), row["reads"], row["size"], os.fsdecode(row["source"]), int(number))
        except RandSlotError as error:
            page["error"] = str(error)
            continue
        page |= {"hash": found.hash, "layer": json.dumps(pack_text(found.text))}
        if found.hash in row["known"] or found.page is None:
            continue
        if isinstance(found.page, str):
            page["text"] = found.page
        else:
            page |= {"width": found.page.width, "height": found.page.height, "pixels": found.page.tobytes()}
    return opened


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

        trust_remote_code: let the model run its own Python code on all machines.
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
        started = not ray.is_initialized()  # the user's own program may have connected
        if started:
            _connect(self.address)
        try:
            for batch in self._plan(rows).iter_batches(batch_size=self.batch, batch_format="numpy"):
                yield [self._make_page(batch, i) for i in range(len(batch["file"]))]
        except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # what went wrong on a worker, without Ray's frames around it
                cause = cause.__cause__
            raise RandSlotError(f"reading on Ray failed: {first_line(cause)}") from error
        finally:
            if started:
                ray.shutdown()

    def _plan(self, rows: list[dict[str, Any]]) -> ray.data.Dataset:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        blocks = min(max(len(rows) // 4, 1), 10_000)
        pages = ray.data.from_items(rows, override_num_blocks=blocks).flat_map(open_pages)
        return pages.map_batches(
            Encode,
            fn_constructor_args=(self.identity, self.library, self.trust_remote_code, self.batch),
            batch_size=4 * self.batch,  # so that an actor can prepare pages while it encodes others
            batch_format="numpy",
            **_plan_actors(ray.cluster_resources()),
        )

    def _make_page(self, batch: Batch, i: int) -> ReadPage:
        """Make a page from a row of a batch; without vectors or an error it is one whose hash is known."""
        vectors = np.frombuffer(batch["vectors"][i], np.float16).astype(np.float32).reshape(-1, self.identity.dimension)
        return ReadPage(
            file=str(batch["file"][i]),
            number=int(batch["number"][i]),
            hash=str(batch["hash"][i]),
            vectors=vectors if len(vectors) else None,
            text=unpack_text(json.loads(batch["layer"][i])) if batch["layer"][i] else None,
            error=str(batch["error"][i]),
            cut=bool(batch["cut"][i]),
        )


def _make_rows(wanted: Sequence[WantedPages], model: PageReader) -> list[dict[str, Any]]:
    """Return the work of each task: some pages of one file, and how the model reads them."""
    rows = []
    for pages in wanted:
        row: dict[str, Any] = {"file": pages.file, "source": os.fsencode(pages.source), "known": sorted(pages.known)}
        row |= {"reads": model.reads, "size": model.page_pixels}
        for start in range(0, len(pages.numbers), PAGES_A_ROW):
            rows.append({**row, "numbers": list(pages.numbers[start : start + PAGES_A_ROW])})
    return rows


def _connect(address: str) -> None:
    """Connect to a cluster."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address or None, log_to_driver=False, logging_level="error")
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise RandSlotError(f"no Ray cluster at {address or 'this machine'}: {first_line(error)}") from error


def _plan_actors(resources: dict[str, float]) -> dict[str, Any]:
    """Return what an actor takes and how many there may be: one for each GPU, or most CPUs where there is none."""
    cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    max_actors = gpus or max(cpus - max(cpus // 4, 1), 1)
    takes = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    return {"compute": ray.data.ActorPoolStrategy(min_size=1, max_size=max_actors), **takes}


class Encode:
    """An actor: loads the model of the library once, then encodes pages."""

    def __init__(self, identity: Identity, library: str, trust_remote_code: bool = False, size: int = 8) -> None:
        """size: pages of the largest size that are encoded at once."""
        self.model = load_bound(identity, None, library, trust_remote_code=trust_remote_code)
        self.size = size

    def __call__(self, batch: Batch) -> Batch:
        pages = [_unpack(batch, i) for i in range(len(batch["file"]))]
        encoded = iter(self._encode([page for page in pages if page is not None]))
        vectors, cut = [], []
        for page in pages:
            vectors.append(b"" if page is None else next(encoded).astype(np.float16).tobytes())
            cut.append(isinstance(page, str) and self.model.is_cut(page))
        kept = {name: batch[name] for name in ("file", "number", "hash", "error", "layer")}
        return {**kept, "vectors": np.array(vectors, dtype=object), "cut": np.array(cut)}

    def _encode(self, pages: list[Any]) -> list[Vectors]:
        """Encode pages in batches by their size, while threads prepare others."""
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
