"""Queries without labelling, where titles are too few: some words in a row of a page's text, each with its page."""

from __future__ import annotations

import bisect
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pypdfium2 as pdfium
from datasets import Dataset, DatasetDict, Image, load_dataset, load_from_disk

from ..errors import RandSlotError, UsageError, first_line
from ..model.hub import is_hub_id
from ..pages import is_file, open_page, page_file, short
from ..pages.page import num_pages, read_file_text
from ..pages.pdf import OpenPdf


@dataclass(frozen=True)
class Pairs:
    """Pairs as a dataset with the columns "query" (or queries), "page" (a path or an encoded image), "row" (from 1).

    `name` is what the user calls them; paths count from `base`. texts: whether the pages are texts, not paths.
    """

    dataset: Dataset
    name: str
    base: Path
    texts: bool = False

    def __len__(self) -> int:
        return len(self.dataset)

    def locate(self, page: Any) -> Path | str | bytes:
        """Return a page of the dataset as a model takes it: a path, the bytes of an image, or a text."""
        if isinstance(page, dict):
            page = page["bytes"] or page["path"]
        if not page:
            raise RandSlotError("no text" if self.texts else "no image")
        if isinstance(page, bytes) or self.texts:
            return cast("str | bytes", page)
        return self.base / str(page)


def load_pairs(data: str, split: str, query_column: str, page_column: str, *, texts: bool = False) -> Pairs:
    """Load pairs from a hub id, a folder, or a .jsonl or .parquet file; texts: whether the page column holds texts.

    Errors: UsageError for a place or column that is not there; RandSlotError for a file that cannot be read.
    """
    dataset = read_rows(data, split)
    for column in (query_column, page_column):
        if column not in dataset.column_names:
            raise UsageError(f"{data} has no column {column!r}; it has {', '.join(dataset.column_names)}")
    dataset = dataset.select_columns([query_column, page_column])
    dataset = dataset.rename_columns({query_column: "query", page_column: "page"})
    kind = getattr(dataset.features["page"], "dtype", None)
    if texts and kind not in ("string", "large_string"):
        raise UsageError(f"{data}: column {page_column!r} does not hold texts: {dataset.features['page']}")
    if isinstance(dataset.features["page"], Image):
        dataset = dataset.cast_column("page", Image(decode=False))
    elif kind not in ("string", "large_string", "binary", "large_binary"):
        raise UsageError(f"{data}: column {page_column!r} holds neither images nor paths: {dataset.features['page']}")
    path = Path(data)
    base = path.parent if path.is_file() else path if path.is_dir() else Path()
    return Pairs(dataset.add_column("row", list(range(1, len(dataset) + 1))), data, base, texts)


def read_rows(data: str, split: str) -> Dataset:
    """Read the rows of a hub id, a folder, or a .jsonl or .parquet file.

    Errors: UsageError for a place that is not there; RandSlotError for a file that cannot be read.
    """
    return _read_jsonl(Path(data)) if data.endswith(".jsonl") else _read_dataset(data, split)


def _read_jsonl(file: Path) -> Dataset:
    if not file.is_file():
        raise UsageError(f"no such file: {file}")
    rows: list[dict[str, Any]] = []
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_read_row(line, f"{file}: row {number}"))
    except UnicodeDecodeError as error:
        raise RandSlotError(f"{file} is not UTF-8 text: {error}") from error
    if not rows:
        raise UsageError(f"{file} has no rows")
    names = dict.fromkeys(key for row in rows for key in row)
    columns = {name: [_text(row.get(name)) for row in rows] for name in names}
    for name, values in columns.items():
        if len({type(value) for value in values} - {type(None)}) > 1:
            raise RandSlotError(f"{file}: column {name!r} has texts in some rows and lists in others")
    return Dataset.from_dict(columns)


def _read_row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RandSlotError(f"{place} is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise RandSlotError(f"{place} is not an object with columns")
    return row


def _text(value: Any) -> str | list[str] | None:
    texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return value if value is None or isinstance(value, str) or texts else json.dumps(value)


def _read_dataset(data: str, split: str) -> Dataset:
    path = Path(data)
    try:
        if path.is_file() and path.suffix == ".parquet":
            return load_dataset("parquet", data_files=data, split="train")
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            found = load_from_disk(data)
            return _pick(found, split, data) if isinstance(found, DatasetDict) else found
        if path.is_dir() or is_hub_id(data):
            return load_dataset(data, split=split)
    except UsageError:
        raise
    except Exception as error:  # the many ways of datasets and the hub to fail
        raise RandSlotError(f"cannot load pairs from {data} (split {split}): {first_line(error)}") from error
    raise UsageError(f"no pairs at {data}: not a .jsonl or .parquet file, a folder, or a hub id like owner/name")


def _pick(found: DatasetDict, split: str, data: str) -> Dataset:
    if split not in found:
        raise UsageError(f"{data} has no split {split!r}; it has {', '.join(found)}")
    return found[split]


def find_bad_rows(pairs: Pairs) -> Iterator[tuple[int, str]]:
    """Yield the index and reason of every row that can be seen to be bad without decoding its image."""
    table = pairs.dataset.with_format("arrow")[:]
    known: dict[Path, bool] = {}
    for index, (query, path) in enumerate(zip(table["query"].to_pylist(), _paths(table["page"]), strict=True)):
        if not _has_text(query):
            yield index, "empty query"
        elif pairs.texts:
            if not (path or "").strip():
                yield index, "no text"
        elif path is None:
            yield index, "no image"
        elif path:
            file = page_file(str(pairs.base / path))
            if file not in known:
                known[file] = is_file(file)
            if not known[file]:
                yield index, f"page image not found: {short(str(file))}"


def list_queries(query: Any) -> list[Any]:
    """Return the queries of a row, which has one or a list of them."""
    return query if isinstance(query, list) else [query]


def _has_text(query: Any) -> bool:
    queries = list_queries(query)
    return bool(queries) and all(isinstance(text, str) and text.strip() for text in queries)


def count_queries(pairs: Pairs) -> int:
    """Return how many queries every row has.

    Errors: UsageError if some have more than others.
    """
    column = pairs.dataset.with_format("arrow")[:]["query"]
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return 1
    counts = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(counts) > 1:
        raise UsageError(
            f"{pairs.name}: pages have {min(counts)} to {max(counts)} queries: give every page as many as the others"
        )
    return int(counts[0])


def _paths(pages: pa.ChunkedArray) -> list[str | None]:
    """Return the path of each page, an empty one for an image inside the data, None for nothing at all."""
    if pa.types.is_struct(pages.type):
        missing = pc.and_(*(_is_empty(pc.struct_field(pages, name)) for name in ("bytes", "path")))
        return [None if nothing else "" for nothing in missing.to_pylist()]
    if pa.types.is_string(pages.type) or pa.types.is_large_string(pages.type):
        return [path or None for path in pages.to_pylist()]
    return [None if nothing else "" for nothing in _is_empty(pages).to_pylist()]


def _is_empty(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(pc.binary_length(values), 0), True)


def drop_bad_rows(pairs: Pairs, on_bad_row: str) -> tuple[Pairs, list[str]]:
    """Return the good pairs and a line for each bad row; with "stop", fail at the first bad one."""
    bad = dict(find_bad_rows(pairs))
    rows = pairs.dataset["row"] if bad else []
    lines = [f"row {rows[index]}: {reason}" for index, reason in bad.items()]
    if bad and on_bad_row == "stop":
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise RandSlotError(f'{pairs.name}: {lines[0]}{more}; fix it, or skip such rows with on_bad_row = "skip"')
    if bad:
        good = pairs.dataset.select([index for index in range(len(pairs)) if index not in bad])
        pairs = replace(pairs, dataset=good)
    return pairs, lines


@dataclass
class Opener:
    """Opens the pages of a batch, in a worker.

    An image that turns out broken stops the run, or is skipped: the next row stands in, so that batches keep their
    size, and a line goes into the log.
    """

    pairs: Pairs
    on_bad_row: str
    log: Path
    read: Callable[[Any], Any] = open_page
    rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = list(self.pairs.dataset["row"])

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        opened = [self._open(*pair) for pair in zip(batch["query"], batch["page"], batch["row"], strict=True)]
        return {"query": [query for query, _ in opened], "page": [page for _, page in opened]}

    def _open(self, query: str, page: Any, row: int) -> tuple[str, Any]:
        for _ in range(len(self.rows)):
            try:
                return query, self.read(self.pairs.locate(page))
            except RandSlotError as error:
                if self.on_bad_row == "stop":
                    raise RandSlotError(f"{self.pairs.name}: row {row}: {error}") from error
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(f"row {row}: {error}\n")
            after = bisect.bisect_right(self.rows, row) % len(self.rows)
            following = self.pairs.dataset[after]
            query, page, row = following["query"], following["page"], following["row"]
        raise RandSlotError(f"{self.pairs.name}: no page in it can be read")


def held_out(pairs: Pairs) -> tuple[dict[str, str], dict[str, Path | str | bytes], dict[str, set[str]]]:
    """Return queries, pages and which page answers which query; each page once, however many queries it has."""
    ids: dict[Path | str | bytes, str] = {}
    queries: dict[str, str] = {}
    relevant: dict[str, set[str]] = {}
    for row in pairs.dataset:
        page_id = ids.setdefault(pairs.locate(row["page"]), f"page {len(ids)}")
        for number, query in enumerate(list_queries(row["query"])):
            queries[f"query {row['row']} {number}"] = query
            relevant[f"query {row['row']} {number}"] = {page_id}
    return queries, {page_id: page for page, page_id in ids.items()}, relevant


# Titles that any document may have do not say which page is meant.
GENERIC = frozenset(
    """abstract, acknowledgements, acknowledgments, appendix, background, bibliography, conclusion, conclusions,
    contents, copyright, credits, discussion, example, examples, foreword, further reading, getting started, glossary,
    index, introduction, license, list of figures, list of tables, notes, overview, preface, references, results,
    see also, summary, table of contents, title, usage""".replace("\n   ", "").split(", ")
)


@dataclass
class FoundPairs:
    """The pairs from a folder of PDFs, files without any, and how many titles were dropped as generic or repeated."""

    pairs: list[dict[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    without_outline: list[str] = field(default_factory=list)
    generic: int = 0
    repeated: int = 0


def find_pairs(folder: Path) -> FoundPairs:
    """Make a pair of every useful outline entry of the PDFs below a folder.

    A title is dropped if it is generic or too short, or if it names more than one page of the same PDF or of another.
    """
    found = FoundPairs()
    useful = []
    for title, page in _read_outlines(folder, found):
        if is_useful(title):
            useful.append((title, page))
        else:
            found.generic += 1
    counts = Counter(title.casefold() for title, _ in useful)
    for title, page in useful:
        if counts[title.casefold()] == 1:
            found.pairs.append({"query": title, "image": page})
        else:
            found.repeated += 1
    return found


def _read_outlines(folder: Path, found: FoundPairs) -> list[tuple[str, str]]:
    """Return the different (title, page) entries of all PDFs below a folder; note the files that have none."""
    entries: list[tuple[str, str]] = []
    for file in list_pdfs(folder):
        try:
            titles = list(read_outline(file))
        except pdfium.PdfiumError as error:
            found.failed.append(f"{file}: {error}")
            continue
        if not titles:
            found.without_outline.append(str(file))
        for title, page in titles:
            entries.append((title, f"{file.relative_to(folder)}#page={page}"))
    return list(dict.fromkeys(entries))


def list_pdfs(folder: Path) -> list[Path]:
    """Return the PDFs below a folder.

    Errors: UsageError if there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}")
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".pdf" and path.is_file())


def read_outline(file: Path) -> Iterator[tuple[str, int]]:
    """Yield each outline entry's title and page, counted from 1."""
    with pdfium.PdfDocument(file) as pdf:
        for bookmark in pdf.get_toc():
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            title = clean_title(bookmark.get_title() or "")
            if title and index is not None:
                yield title, index + 1


NUMBER = re.compile(
    r"(?:(?i:chapter|section|appendix|part)\s+[\dA-Z]{1,3}(?:\.\d+)*[.:)]?|\d{1,2}(?:\.\d+)*[.:)]?|[A-Z](?:\.\d+)+[.:)]?|[A-Z][.:)])\s+"
)


def clean_title(title: str) -> str:
    """Remove the number before a title, and extra spaces."""
    title = re.sub(r"\s+", " ", title.replace("\x00", "")).strip()
    return NUMBER.sub("", title, count=1) if NUMBER.match(title) else title


def is_useful(title: str) -> bool:
    """Whether a title says enough to search by."""
    return (
        len(title) >= 4
        and title.casefold().strip(" .:") not in GENERIC
        and re.search(r"[^\W\d_]{3}", title) is not None
    )


def write_pairs(found: FoundPairs, folder: Path, file: Path) -> None:
    """Write pairs as JSON lines; page paths are relative to the folder of that file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for pair in found.pairs:
            place = os.path.relpath(folder.resolve() / pair["image"], file.parent.resolve())
            lines.write(json.dumps(pair | {"image": place}, ensure_ascii=False) + "\n")


LEAST, MOST = 2, 8  # words of a span


def add_spans(found: FoundPairs, folder: Path, num: int, seed: int = 0) -> None:
    """Add `num` spans of every page of the PDFs below a folder to the pairs that were found there.

    A span without a word, or that names several pages or is a title, is dropped. A page without text has none, and a
    file that cannot be read is noted.
    """
    dice = random.Random(seed)
    spans: dict[tuple[str, str], None] = {}
    for file in list_pdfs(folder):
        try:
            for span, number in read_spans(file, num, dice):
                spans[span, f"{file.relative_to(folder)}#page={number}"] = None
        except RandSlotError as error:
            if not any(line.startswith(f"{file}: ") for line in found.failed):  # its outline was not read either
                found.failed.append(f"{file}: {error}")
    counts = Counter(span.casefold() for span, _ in spans)
    counts.update(pair["query"].casefold() for pair in found.pairs)
    for span, page in spans:
        if not is_useful(span):
            found.generic += 1
        elif counts[span.casefold()] > 1:
            found.repeated += 1
        else:
            found.pairs.append({"query": span, "image": page})


def read_spans(file: Path, num: int, dice: random.Random) -> Iterator[tuple[str, int]]:
    """Yield `num` spans of each page of a PDF with its number, counted from 1.

    Errors: RandSlotError if it cannot be read.
    """
    kept = OpenPdf()
    try:
        for number in range(1, num_pages(file) + 1):
            for span in cut_spans(read_file_text(file, number, kept).text, num, dice):
                yield span, number
    finally:
        kept.close()


def cut_spans(text: str, num: int, dice: random.Random) -> list[str]:
    """Return `num` spans of a text, two to eight words in a row each; none of a text without words."""
    words = text.split()
    if not words:
        return []
    spans = []
    for _ in range(num):
        length = dice.randint(LEAST, MOST)
        first = dice.randrange(max(len(words) - length, 0) + 1)
        spans.append(" ".join(words[first : first + length]))
    return spans
