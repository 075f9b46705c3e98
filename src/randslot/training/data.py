"""Training data: load pairs of query and page from files, folders or the hub; open and preprocess them in batches."""

from __future__ import annotations

import bisect
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Image, load_dataset, load_from_disk
from torch.utils.data import BatchSampler

from ..errors import RandSlotError, UsageError, in_one_line
from ..model.encoder import CachedPage, FrozenVision
from ..model.hub import is_hub_id
from ..model.preprocessing import Preprocessor
from ..pages import is_file, open_page, page_file, short


@dataclass(frozen=True)
class Pairs:
    """A dataset with the columns "query" (a text or a list of texts), "page" (a path or an image), "row" (from 1).

    With hard negatives there is a column "negatives" too, a list of pages for each row.

    base: the folder of relative paths. texts: whether pages are texts and not paths. num_empty: the rows with an empty
    query, kept or not.
    """

    dataset: Dataset
    name: str
    base: Path
    texts: bool = False
    num_empty: int = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def locate(self, page: Any) -> Path | str | bytes:
        """Return a page of the dataset as a path, the bytes of an image, or a text."""
        if isinstance(page, dict):
            page = page["bytes"] or page["path"]
        if not page:
            raise RandSlotError("no text" if self.texts else "no image")
        if isinstance(page, bytes) or self.texts:
            return cast("str | bytes", page)
        return self.base / str(page)


def load_pairs(
    data: str, split: str, query_column: str, page_column: str, *, texts: bool = False, negatives: int = 0
) -> Pairs:
    """Load pairs from a hub id, a folder, or a .jsonl or .parquet file.

    texts: the page column holds texts. negatives: how many hard negatives each row has, in a column "negatives" or in
    several, negative_1, negative_2, ...
    """
    several = [f"negative_{number}" for number in range(1, negatives + 1)]
    dataset = read_rows(data, split, [query_column, page_column], [*several, "negatives"] if negatives else [])
    dataset = dataset.rename_columns({query_column: "query", page_column: "page"})
    for column in dataset.column_names:
        if isinstance(dataset.features[column], Image):
            dataset = dataset.cast_column(column, Image(decode=False))
    if negatives and "negatives" not in dataset.column_names:
        _check_columns(data, dataset, several)
        dataset = dataset.map(lambda row: {"negatives": [row[name] for name in several]}, remove_columns=several)
    texts_or_paths, images = ("string", "large_string"), ("binary", "large_binary", Image.dtype)
    if getattr(dataset.features["page"], "dtype", None) not in (texts_or_paths if texts else texts_or_paths + images):
        what = "texts" if texts else "images or paths"
        raise UsageError(f"{data}: column {page_column!r} holds no {what}: {dataset.features['page']}")
    path = Path(data)
    base = path.parent if path.is_file() else path if path.is_dir() else Path()
    return Pairs(dataset.add_column("row", list(range(1, len(dataset) + 1))), data, base, texts)


def read_rows(data: str, split: str, columns: Sequence[str], more: Sequence[str] = ()) -> Dataset:
    """Read columns from a hub id, a folder, or a .jsonl or .parquet file; `more`: optional ones."""
    path = Path(data)
    if not path.exists() and (path.suffix in (".jsonl", ".parquet") or not is_hub_id(data)):
        raise UsageError(f"no pairs at {data}. Pass a .jsonl or .parquet file, a folder, or a hub id like owner/name")
    with in_one_line(f"load pairs from {data} (split {split})"):
        if path.suffix == ".jsonl":
            dataset = _read_jsonl(path)
        elif path.suffix == ".parquet":
            dataset = load_dataset("parquet", data_files=data, split="train")
        elif (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            dataset = load_from_disk(data)
            dataset = dataset[split] if isinstance(dataset, DatasetDict) else dataset
        else:
            dataset = load_dataset(data, split=split)
    _check_columns(data, dataset, columns)
    return dataset.select_columns([*columns, *(column for column in more if column in dataset.column_names)])


def _check_columns(data: str, dataset: Dataset, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in dataset.column_names:
            raise UsageError(f"{data} has no column {column!r}; it has {', '.join(dataset.column_names)}")


def _read_jsonl(file: Path) -> Dataset:
    rows: list[dict[str, Any]] = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            with in_one_line(f"read row {number} of {file}"):
                row = json.loads(line) if line.strip() else {}
                for name, value in row.items():
                    texts = value if isinstance(value, list) else [value]
                    if value is not None and not all(isinstance(text, str) for text in texts):
                        row[name] = json.dumps(value)
                if row:
                    rows.append(row)
    columns: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            columns.setdefault(name, [None] * len(rows))[number] = value
    return Dataset.from_dict(columns)


def list_queries(query: Any) -> list[Any]:
    """Return the queries of a row as a list."""
    return query if isinstance(query, list) else [query]


def count_queries(pairs: Pairs) -> int:
    """Return the number of queries per row."""
    column = pairs.dataset.with_format("arrow")[:]["query"]
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return 1
    counts = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(counts) > 1:
        raise UsageError(f"{pairs.name}: every page needs the same number of queries, not {min(counts)}-{max(counts)}")
    return int(counts[0])


def is_empty(query: Any) -> bool:
    """Return whether a query has no text."""
    return not (isinstance(query, str) and query.strip())


def drop_bad_rows(
    pairs: Pairs, on_bad_row: str, *, keep_empty: bool = False, negatives: int = 0
) -> tuple[Pairs, list[str]]:
    """Return the valid pairs and a line per invalid row, without decoding images; "stop" raises at the first one.

    keep_empty: accept empty queries. negatives: the number of hard negatives each row needs.
    """
    table = pairs.dataset.with_format("arrow")[:]
    exists: dict[Path, bool] = {}
    good, lines, num_empty = [], [], 0
    for index, (query, page) in enumerate(zip(table["query"].to_pylist(), _list_pages(table["page"]), strict=True)):
        queries, reason = list_queries(query), ""
        has_empty = not queries or any(is_empty(text) for text in queries)
        num_empty += has_empty
        if has_empty and not (keep_empty and queries):
            reason = "empty query"
        elif page is None or (pairs.texts and not page.strip()):
            reason = "no text" if pairs.texts else "no image"
        elif page and not pairs.texts:
            file = page_file(str(pairs.base / page))
            if file not in exists:
                exists[file] = is_file(file)
            reason = "" if exists[file] else f"page image not found: {short(str(file))}"
        if negatives and not reason:
            given = [page for page in table["negatives"][index].as_py() or [] if page]
            reason = "" if len(given) >= negatives else f"{len(given)} of {negatives} negatives"
        if reason:
            lines.append(f"row {table['row'][index]}: {reason}")
        else:
            good.append(index)
    if lines and on_bad_row == "stop":
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise RandSlotError(f'{pairs.name}: {lines[0]}{more}. Fix it, or set on_bad_row = "skip".')
    dataset = pairs.dataset.select(good) if lines else pairs.dataset
    return replace(pairs, dataset=dataset, num_empty=num_empty), lines


def _list_pages(pages: pa.ChunkedArray) -> list[str | None]:
    """Return the path or text of each page, "" for an image inside the data, None if it is missing."""
    if pa.types.is_string(pages.type) or pa.types.is_large_string(pages.type):
        return [text or None for text in pages.to_pylist()]
    parts = [pages]
    if pa.types.is_struct(pages.type):
        parts = [pc.struct_field(pages, name) for name in ("bytes", "path")]
    found: list[str | None] = [None] * len(pages)
    for part in parts:
        for index, size in enumerate(pc.binary_length(part).to_pylist()):
            if size:
                found[index] = ""
    return found


@dataclass
class PageOpener:
    """Opens the pages of a batch in a worker; a broken image stops the run, or is replaced by the next row.

    empty_query: the text to encode for an empty query, if such rows are kept. negatives: the number per row.
    """

    pairs: Pairs
    on_bad_row: str
    log: Path
    read: Callable[[Any], Any] = open_page
    empty_query: str = ""
    negatives: int = 0

    def __post_init__(self) -> None:
        self.rows: list[int] = list(self.pairs.dataset["row"])

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        opened: dict[str, list[Any]] = {"query": [], "page": []} | ({"negatives": []} if self.negatives else {})
        for number in range(len(batch["row"])):
            query, page, *others = self._open({name: column[number] for name, column in batch.items()})
            texts = [self.empty_query if is_empty(text) else text for text in list_queries(query)]
            opened["query"].append(texts if isinstance(query, list) else texts[0])
            opened["page"].append(page)
            if self.negatives:
                opened["negatives"].append(others)
        return opened

    def _open(self, row: dict[str, Any]) -> list[Any]:
        """Return the query, page and negatives of a row, or of the next row if a page is broken."""
        for _ in self.rows:
            try:
                pages = [row["page"], *(row["negatives"][: self.negatives] if self.negatives else ())]
                return [row["query"], *(self.read(self.pairs.locate(page)) for page in pages)]
            except RandSlotError as error:
                if self.on_bad_row == "stop":
                    raise RandSlotError(f"{self.pairs.name}: row {row['row']}: {error}") from error
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(f"row {row['row']}: {error}\n")
            row = self.pairs.dataset[bisect.bisect_right(self.rows, row["row"]) % len(self.rows)]
        raise RandSlotError(f"{self.pairs.name}: cannot read any page")


@dataclass(frozen=True)
class ColumnPreprocessor:
    """Preprocesses one column of a batch in a worker: pages, or lists of queries or negatives."""

    preprocessor: Preprocessor
    frozen: FrozenVision | None = None

    def __call__(self, inputs: list[Any], **options: Any) -> dict[str, Any]:
        items = [item for row in inputs for item in list_queries(row)]
        if self.frozen is not None and isinstance(items[0], CachedPage):
            return self.frozen.preprocess(items)
        return self.preprocessor(items, **options)


def in_windows(window: int, order: int, dataset: Any, batch_size: int, drop_last: bool, **kwargs: Any) -> BatchSampler:
    """Batch rows, shuffled only within windows of the data by the seed `order`, to preserve a curriculum.

    A window of 1 keeps the order.
    """
    rng = random.Random(order)
    rows: list[int] = []
    for start in range(0, len(dataset), window):
        part = range(start, min(start + window, len(dataset)))
        rows += rng.sample(part, len(part))
    return BatchSampler(rows, batch_size, drop_last)


def held_out(pairs: Pairs) -> tuple[dict[str, str], dict[str, Path | str | bytes], dict[str, set[str]]]:
    """Return the queries, pages and relevance of held-out pairs; deduplicate pages with several queries."""
    ids: dict[Path | str | bytes, str] = {}
    queries: dict[str, str] = {}
    relevant: dict[str, set[str]] = {}
    for row in pairs.dataset:
        page_id = ids.setdefault(pairs.locate(row["page"]), f"page {len(ids)}")
        for number, query in enumerate(list_queries(row["query"])):
            queries[f"query {row['row']} {number}"] = query
            relevant[f"query {row['row']} {number}"] = {page_id}
    return queries, {page_id: page for page, page_id in ids.items()}, relevant
