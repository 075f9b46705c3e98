"""Cache vectors of queries and pages, and relevance judgements.

An analysis reads both, and needs neither the model nor the data.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import in_one_line
from ..files import read_json
from ..model.reader import Side
from .tasks import content_key

if TYPE_CHECKING:
    from ..model.sentence_model import EmbeddingSettings
    from ..model.settings import Settings

SHARD_BYTES, SHARD_SECONDS = 2**26, 20.0
BLOCK_VECTORS = 2**15  # 256 MB of 2,048 dimensions


class VectorCache:
    """The vectors of pages or queries of one model, keyed by content hash.

    Processes can share a folder: each writes its own shards, and sees those of others after `refresh`.
    """

    def __init__(self, folder: Path, larger: Sequence[Path] = ()) -> None:
        """Open a cache; also read those in `larger`, which have more vectors per item."""
        self.folder, self.larger = folder, larger
        self.rows: dict[str, tuple[Path, int, int]] = {}  # shard, first vector and number of vectors of each key
        self.shards: set[Path] = set()
        self.waiting: dict[str, Tensor] = {}
        self.flushed = time.monotonic()
        self.refresh()

    def refresh(self) -> None:
        """Read the keys of new shards."""
        for place in (*self.larger, self.folder):
            for file in sorted(place.glob("*.safetensors")):
                if file not in self.shards:
                    self._read_keys(file)

    def _read_keys(self, file: Path) -> None:
        doing, hint = f"read vectors from {file}", ". Remove it and evaluate again."
        with in_one_line(doing, hint=hint), safe_open(file, "pt") as shard:
            keys, counts = json.loads(shard.metadata()["keys"]), shard.get_tensor("counts").tolist()
        start = 0
        for key, count in zip(keys, counts, strict=True):
            self.rows[key] = (file, start, count)
            start += count
        self.shards.add(file)

    def __contains__(self, key: str) -> bool:
        return key in self.rows or key in self.waiting

    def add(self, keys: Sequence[str], vectors: Sequence[Tensor]) -> None:
        """Add the vectors (K, D) of items; write a shard by size or time."""
        for key, item in zip(keys, vectors, strict=True):
            self.waiting[key] = item.cpu()
        size = sum(item.nbytes for item in self.waiting.values())
        if size >= SHARD_BYTES or time.monotonic() - self.flushed >= SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write pending vectors as a shard, atomically."""
        if self.waiting:
            self.folder.mkdir(parents=True, exist_ok=True)
            items = list(self.waiting.values())
            tensors = {"vectors": torch.cat(items), "counts": torch.tensor([len(item) for item in items])}
            file = self.folder / f"{uuid.uuid4().hex}.safetensors"
            part = file.with_suffix(".part")
            save_file(tensors, part, metadata={"keys": json.dumps(list(self.waiting))})
            os.replace(part, file)
            self._read_keys(file)
            self.waiting = {}
        self.flushed = time.monotonic()

    def blocks(self, keys: Sequence[str], num: int | None = None) -> Iterator[list[Tensor]]:
        """Yield the first `num` vectors of each item, in the order of the keys, in blocks of bounded size.

        Blocks do not depend on shards, so scores do not depend on which process wrote them.
        """
        start = size = 0
        for end, key in enumerate(keys, start=1):
            count = self.rows[key][2]
            size += min(num or count, count)
            if end == len(keys) or size >= BLOCK_VECTORS:
                yield self.read(keys[start:end], num)
                start, size = end, 0

    def read(self, keys: Sequence[str], num: int | None = None) -> list[Tensor]:
        """Return the first `num` vectors of each item, in the order of the keys."""
        by_shard: dict[Path, list[int]] = defaultdict(list)
        for index, key in enumerate(keys):
            by_shard[self.rows[key][0]].append(index)
        found: list[Tensor] = [torch.empty(0)] * len(keys)
        for file, indexes in by_shard.items():
            with safe_open(file, "pt") as shard:
                vectors = shard.get_slice("vectors")
                for index in indexes:
                    _, start, count = self.rows[keys[index]]
                    found[index] = vectors[start : start + min(num or count, count)].float()
        return found


def open_cache(root: Path, weights: str, settings: Settings | EmbeddingSettings, side: Side) -> VectorCache:
    """Open the cache of one side of a model under its settings.

    If smaller budgets are prefixes of larger ones, also read caches with more vectors.
    """
    folder = root / weights / settings.vectors_name(side)
    num = settings.num_vectors(side)
    if num is None:
        return VectorCache(folder)
    folder = folder.with_name(f"{folder.name}-k{num}")
    return VectorCache(folder, larger_caches(folder) if settings.has_prefixes(side) else [])


def larger_caches(folder: Path) -> list[Path]:
    """Return sibling caches with more vectors per item, from the same slots."""
    stem, _, num = folder.name.rpartition("-k")
    larger = []
    for path in sorted(folder.parent.glob(f"{stem}-k*")) if stem else ():
        if int(path.name.rpartition("-k")[2]) > int(num):
            larger.append(path)
    return larger


@dataclass(frozen=True)
class Judged:
    """The queries and pages of one subset, and the grades of the relevant pages of each query."""

    page_ids: list[str]
    page_keys: list[str]
    query_ids: list[str]
    query_keys: list[str]
    grades: list[dict[str, int]]

    def write(self, cache: Path) -> str:
        """Write it into a cache, and return its content hash as its name."""
        text = json.dumps(asdict(self))
        name = content_key(text.encode())
        file = cache / "judged" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{uuid.uuid4().hex}.part")  # of this process only
        part.write_text(text, encoding="utf-8")
        os.replace(part, file)
        return name


def read_judged(cache: Path, name: str) -> Judged:
    """Read the `Judged` of an evaluation from a cache."""
    file = cache / "judged" / f"{name}.json"
    with in_one_line(f"read {file}", hint=". Remove it and evaluate again."):
        return Judged(**read_json(file))
