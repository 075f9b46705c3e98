"""Write the pages of a library to a Parquet file: texts and vectors, to work on them elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import UsageError
from ..extras import needs_extra
from .facets import get_value
from .library import Library
from .results import Progress
from .stores.points import page_id
from .stores.store import pages_at_once


def export_library(library: Library, file: Path, progress: Callable[[Progress], None] = lambda _: None) -> int:
    """Write a row for each page, in the order of files and pages; return how many."""
    with needs_extra():
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

    if file.exists():
        raise UsageError(f"cannot write {file}: it already exists")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"cannot write {file}: its folder does not exist")
    columns = {"id": pa.string(), "source": pa.string(), "page": pa.int32(), "text": pa.string()}
    columns |= dict.fromkeys(("title", "author", "year", "type", "language", "metadata"), pa.string())
    schema = pa.schema(columns | {"vectors": pa.list_(pa.list_(pa.float32()))})
    files = library.manifest.find(state="done")
    places = [(one, number) for one in files for number in range(1, one.num_pages + 1)]
    step = pages_at_once(library.store, 256)
    part = file.with_name(f"{file.name}.part")
    try:
        with ParquetWriter(part, schema, compression="zstd") as writer:
            for start in range(0, len(places), step):
                some = places[start : start + step]
                pages = library.store.read([page_id(one.id, number) for one, number in some])
                rows = []
                for one, number in some:
                    page = pages.get(page_id(one.id, number))
                    row = {"id": page_id(one.id, number), "source": one.source, "page": number}
                    row["text"] = page.text.text if page and page.text else ""
                    row |= {name: get_value(one, name) for name in ("title", "author", "year", "type", "language")}
                    row["metadata"] = json.dumps(dict(one.metadata))
                    row["vectors"] = page.vectors.tolist() if page and page.vectors is not None else None
                    rows.append(row)
                writer.write_table(pa.Table.from_pylist(rows, schema))
                progress(Progress(0, 0, start + len(some), len(places), stage="export"))
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return len(places)
