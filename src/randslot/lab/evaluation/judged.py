"""What scoring needs besides vectors: which queries and pages, by the keys of their vectors, and the grades.

An evaluation keeps it on disk beside the vectors, so that an analysis needs neither the model nor the data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ...errors import RandSlotError
from ...files import write_whole
from .vectors import content_key

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
