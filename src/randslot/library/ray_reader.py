"""Read pages on a Ray cluster: tasks open them, actors with the model encode them, on GPUs if available.

Only this process stores vectors, so tasks that Ray retries are stored once. The only file that imports ray.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import ray
import ray.data
from numpy.typing import NDArray

from ..errors import RandSlotError, first_line
from ..model.batching import batch_by_share, page_share, prefetch, return_freed_memory
from ..model.reader import Identity, PageReader, Vectors
from .models import load_bound
from .readers import ReadPage, WantedPages, open_pages
from .workers import WorkerPool

PAGES_PER_ROW = 8  # of one file per task
Batch = dict[str, NDArray[Any]]


@cache
def _pool() -> WorkerPool:
    return WorkerPool(1)  # a broken file may crash it, not Ray's worker


def open_row(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Open some pages of a file, as a task; leave out the content of pages with a known hash."""
    wanted: WantedPages = pickle.loads(row["wanted"])
    opened = []
    for page in open_pages(_pool(), row["reads"], row["pixels"], wanted):
        opened.append({"page": pickle.dumps(replace(page, content=None)), "content": pickle.dumps(page.content)})
    return opened


class RayReader:
    """Reads pages on a cluster; files and the model must have the same path on all machines."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        library: str,
        load_model: Callable[[], PageReader],
        batch: int,
        trust_remote_code: bool = False,
    ) -> None:
        """address: as in ray.init; "" for RAY_ADDRESS, or the local cluster, which is started if needed.

        trust_remote_code: run the model's own Python code on all machines.
        """
        if identity.name is None:
            raise RandSlotError("a model in memory cannot run on Ray: save it, and index with its folder")
        name = os.path.abspath(identity.name) if os.path.isdir(identity.name) else identity.name
        self.address, self.identity, self.library = address, replace(identity, name=name), library
        self.load_model, self.batch, self.trust_remote_code = load_model, batch, trust_remote_code

    def read(self, wanted: Sequence[WantedPages]) -> Iterator[list[ReadPage]]:
        model, rows = self.load_model(), []
        for pages in wanted:
            for task in pages.split(PAGES_PER_ROW):  # one task
                rows.append({"wanted": pickle.dumps(task), "reads": model.reads, "pixels": model.page_pixels})
        started = not ray.is_initialized()  # the user's program may have connected already
        if started:
            _connect(self.address)
        try:
            for batch in self._plan(rows).iter_batches(batch_size=self.batch, batch_format="numpy"):
                yield [pickle.loads(page) for page in batch["page"]]
        except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the worker's own error, without Ray's wrappers
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
        pages = ray.data.from_items(rows, override_num_blocks=blocks).flat_map(open_row)
        return pages.map_batches(
            Encode,
            fn_constructor_args=(self.identity, self.library, self.trust_remote_code, self.batch),
            batch_size=4 * self.batch,  # an actor prepares pages while it encodes others
            batch_format="numpy",
            **_plan_actors(ray.cluster_resources()),
        )


def _connect(address: str) -> None:
    """Connect to a cluster."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():  # fail fast: Ray retries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address or None, log_to_driver=False, logging_level="error")
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise RandSlotError(f"no Ray cluster at {address or 'this machine'}: {first_line(error)}") from error


def _plan_actors(resources: dict[str, float]) -> dict[str, Any]:
    """Return the resources of an actor and the pool size: one actor per GPU, else per CPU with some to spare."""
    cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    max_actors = gpus or max(cpus - max(cpus // 4, 1), 1)
    takes = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    return {"compute": ray.data.ActorPoolStrategy(min_size=1, max_size=max_actors), **takes}


class Encode:
    """An actor that loads the library's model once, then encodes pages."""

    def __init__(self, identity: Identity, library: str, trust_remote_code: bool = False, size: int = 8) -> None:
        """size: batch size for pages of the largest size."""
        self.model = load_bound(identity, None, library, trust_remote_code=trust_remote_code)
        self.size = size

    def __call__(self, batch: Batch) -> Batch:
        pages = [pickle.loads(page) for page in batch["page"]]
        contents = [pickle.loads(content) for content in batch["content"]]
        vectors = iter(self._encode([content for content in contents if content is not None]))
        encoded = []
        for page, content in zip(pages, contents, strict=True):
            if content is not None:
                cut = isinstance(content, str) and self.model.is_cut(content)
                page = replace(page, vectors=next(vectors).astype(np.float16).astype(np.float32), cut=cut)
            encoded.append(pickle.dumps(page))
        return {"page": np.array(encoded, dtype=object)}

    def _encode(self, contents: list[Any]) -> list[Vectors]:
        """Encode pages in batches of bounded size, while threads prepare the next ones."""
        prepare = getattr(self.model, "prepare_page", None) or (lambda page: page)
        vectors: list[Vectors] = []
        prepared = prefetch(prepare, contents, depth=2 * self.size)
        for group in batch_by_share(prepared, self.size, lambda item: page_share(item[1])):
            vectors += self.model.embed_pages([page for _, page in group])
            return_freed_memory()
        return vectors
