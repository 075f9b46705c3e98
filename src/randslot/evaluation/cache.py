"""What scoring needs besides vectors: which queries and pages, by the keys of their vectors, and the grades.

An evaluation keeps it on disk beside the vectors, so that an analysis needs neither the model nor the data.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..files import write_whole
from ..model.reader import Side

if TYPE_CHECKING:
    from ..model.sentence_model import EmbeddingSettings
    from ..model.settings import Settings

SHARD_BYTES, SHARD_SECONDS = 2**26, 20.0
BLOCK_BYTES = 2**28


class VectorCache:
    """The vectors of pages or of queries of one model, by the hash of their content."""

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        """Open a cache; what is in `others`, which have more vectors of each item, is read too."""
        self.folder = folder
        self.places: dict[str, tuple[Path, int]] = {}
        self.waiting: dict[str, Tensor] = {}
        self.flushed = time.monotonic()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot keep vectors in {folder}: {error.strerror or error}") from error
        for place in (*others, folder):
            for file in sorted(place.glob("*.safetensors")):
                self._learn(file)

    def _learn(self, file: Path) -> None:
        try:
            with safe_open(file, "pt") as shard:
                keys = json.loads(shard.metadata()["keys"])
        except (OSError, SafetensorError, TypeError, KeyError, ValueError) as error:
            raise RandSlotError(
                f"{file} is not a shard of vectors: {error}; remove it, it can be made again"
            ) from error
        self.places |= {key: (file, row) for row, key in enumerate(keys)}

    def __contains__(self, key: str) -> bool:
        return key in self.places or key in self.waiting

    def add(self, keys: Sequence[str], vectors: Sequence[Tensor]) -> None:
        """Take in the vectors (K, D) of some items, and write a shard when many or some seconds have gone by."""
        self.waiting |= dict(zip(keys, (item.cpu() for item in vectors), strict=True))
        size = sum(item.nbytes for item in self.waiting.values())
        if size >= SHARD_BYTES or time.monotonic() - self.flushed >= SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self.waiting:
            keys, items = list(self.waiting), list(self.waiting.values())
            tensors = {"vectors": torch.cat(items), "counts": torch.tensor([len(item) for item in items])}
            file = self.folder / f"{uuid.uuid4().hex}.safetensors"
            part = file.with_suffix(".part")
            save_file(tensors, part, metadata={"keys": json.dumps(keys)})
            os.replace(part, file)
            self._learn(file)
            self.waiting = {}
        self.flushed = time.monotonic()

    def blocks(self, keys: Sequence[str], num: int | None = None) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Yield items in blocks of bounded size: their indexes in `keys` and their first `num` vectors.

        Shards are read one by one, so the order is that of the disk.
        """
        wanted: dict[Path, list[tuple[int, int]]] = defaultdict(list)
        for index, key in enumerate(keys):
            file, row = self.places[key]
            wanted[file].append((row, index))
        for file, rows in wanted.items():
            with safe_open(file, "pt") as shard:
                counts = shard.get_tensor("counts").tolist()
                starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
                vectors = shard.get_slice("vectors")
                indexes: list[int] = []
                items: list[Tensor] = []
                for row, index in sorted(rows):
                    end = starts[row] + min(num or counts[row], counts[row])
                    indexes.append(index)
                    items.append(vectors[starts[row] : end].float())
                    if sum(item.nbytes for item in items) >= BLOCK_BYTES:
                        yield indexes, items
                        indexes, items = [], []
                if items:
                    yield indexes, items

    def read(self, keys: Sequence[str], num: int | None = None) -> list[Tensor]:
        """Return the vectors of some items in the order of their keys, all in memory."""
        found: dict[int, Tensor] = {}
        for indexes, items in self.blocks(keys, num):
            found |= dict(zip(indexes, items, strict=True))
        return [found[index] for index in range(len(keys))]


def open_cache(root: Path, weights: str, settings: Settings | EmbeddingSettings, side: Side) -> VectorCache:
    """Open the cache of one side of a model under its settings.

    Where a smaller budget is the beginning of a larger one, caches with more vectors are read as well.
    """
    folder = root / weights / settings.vectors_name(side)
    num = settings.num_vectors(side)
    if num is None:
        return VectorCache(folder)
    folder = folder.with_name(f"{folder.name}-k{num}")
    return VectorCache(folder, larger_caches(folder) if settings.has_prefixes(side) else [])


def larger_caches(folder: Path) -> list[Path]:
    """Return the caches beside one that have more vectors of each item, from the same slots."""
    stem, _, num = folder.name.rpartition("-k")
    beside = folder.parent.glob(f"{stem}-k*") if stem else ()
    return [path for path in sorted(beside) if int(path.name.rpartition("-k")[2]) > int(num)]


def content_key(*parts: bytes) -> str:
    """Return the key of a content."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def batches(items: list[int], size: int) -> Iterator[list[int]]:
    """Yield `size` items at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


JUDGED = "judged"  # the folder below that of the vectors


@dataclass(frozen=True)
class Judged:
    """The queries and pages of one subset; `grades` has those of the pages that count for each query."""

    page_ids: list[str]
    page_keys: list[str]
    query_ids: list[str]
    query_keys: list[str]
    grades: list[dict[str, int]]

    def write(self, folder: Path) -> str:
        """Write it into a folder under the hash of its content, and return that."""
        text = json.dumps(asdict(self))
        name = content_key(text.encode())
        file = folder / f"{name}.json"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
        return name


def read_judged(folder: Path, name: str) -> Judged:
    """Read what an evaluation kept.

    Errors: RandSlotError in one line if it is not there or broken.
    """
    file = folder / f"{name}.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Judged(**{field.name: found[field.name] for field in fields(Judged)})
    except FileNotFoundError as error:
        raise RandSlotError(f"{file} is not there any more: evaluate again") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RandSlotError(f"{file} is broken ({error}): remove it and evaluate again") from error
