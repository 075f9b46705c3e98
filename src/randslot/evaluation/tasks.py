"""Evaluation tasks: the 22 ViDoRe tasks as mteb defines them, or a local folder."""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, StrictInt, ValidationError

from ..errors import RandSlotError, UsageError, in_one_line
from ..pages import list_pages, page_file
from .published import TASKS

# The paper's name of each task, and mteb's.
MTEB_NAMES = {
    "Arxiv": "VidoreArxivQARetrieval",
    "Doc": "VidoreDocVQARetrieval",
    "Info": "VidoreInfoVQARetrieval",
    "TabF": "VidoreTabfquadRetrieval",
    "TatD": "VidoreTatdqaRetrieval",
    "Shift": "VidoreShiftProjectRetrieval",
    "Syn-AI": "VidoreSyntheticDocQAAIRetrieval",
    "Syn-En": "VidoreSyntheticDocQAEnergyRetrieval",
    "Syn-GR": "VidoreSyntheticDocQAGovernmentReportsRetrieval",
    "Syn-HI": "VidoreSyntheticDocQAHealthcareIndustryRetrieval",
    "ESG": "Vidore2ESGReportsRetrieval",
    "Bio": "Vidore2BioMedicalLecturesRetrieval",
    "Econ": "Vidore2EconomicsReportsRetrieval",
    "ESG-H": "Vidore2ESGReportsHLRetrieval",
    "HR": "Vidore3HrRetrieval",
    "Fin-E": "Vidore3FinanceEnRetrieval",
    "Ind.": "Vidore3IndustrialRetrieval",
    "Phar.": "Vidore3PharmaceuticalsRetrieval",
    "C.S.": "Vidore3ComputerScienceRetrieval",
    "Ener.": "Vidore3EnergyRetrieval",
    "Phys.": "Vidore3PhysicsRetrieval",
    "Fin-F": "Vidore3FinanceFrRetrieval",
}


def content_key(*parts: bytes) -> str:
    """Return a hash of content."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


class DatasetPages:
    """The pages of a `datasets` corpus; images stay encoded."""

    def __init__(self, corpus: Any, id_column: str) -> None:
        from datasets import Image

        self.ids = [str(id) for id in corpus[id_column]]
        self.images = corpus.select_columns(["image"]).cast_column("image", Image(decode=False))

    def key(self, index: int) -> str:
        """Return the hash of a page's content."""
        return content_key(self.open(index))

    def open(self, index: int) -> bytes:
        """Return a page for `encode_document`."""
        image = self.images[index]["image"]
        return bytes(image["bytes"]) if image["bytes"] else Path(image["path"]).read_bytes()


class FolderPages:
    """The pages in a folder: each image, and each page of each PDF, named by its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids = list_pages(folder)
        self.hashes: dict[Path, bytes] = {}

    def key(self, index: int) -> str:
        """Return the hash of a page's content."""
        page = self.open(index)
        file = page_file(page)
        if file not in self.hashes:
            self.hashes[file] = content_key(file.read_bytes()).encode()
        return content_key(self.hashes[file], page.removeprefix(str(file)).encode())

    def open(self, index: int) -> str:
        """Return a page for `encode_document`."""
        return str(self.folder / self.ids[index])


Pages = DatasetPages | FolderPages


@dataclass(frozen=True)
class Subset:
    """Queries in one language over one corpus, with the grades of relevant pages."""

    name: str
    pages: Pages
    queries: dict[str, str]  # text by id; only queries that have grades
    grades: dict[str, dict[str, int]]
    left_out: int = 0  # queries without grades

    def key(self) -> str:
        """Return a hash of pages, queries and grades."""
        return content_key(json.dumps([self.pages.ids, self.queries, self.grades], sort_keys=True).encode())


@dataclass(frozen=True)
class Task(ABC):
    """A task under the paper's name, or a local set."""

    name: str
    benchmark: str
    dataset: str
    revision: str | None

    @abstractmethod
    def subsets(self) -> Iterator[Subset]:
        """Load the subsets one by one."""

    def make_subset(
        self, name: str, pages: Pages, queries: dict[str, str], grades: dict[str, dict[str, int]]
    ) -> Subset:
        """Make a subset of the queries that have grades: pytrec_eval ignores the others."""
        kept = {id: text for id, text in queries.items() if grades.get(id)}
        if not pages.ids or not kept:
            lacks = "has no query with a relevant page" if pages.ids else "has no pages"
            raise RandSlotError(f"{self.name}: {self.dataset} ({name}) {lacks}")
        return Subset(name, pages, kept, {id: grades[id] for id in kept}, len(queries) - len(kept))


def choose_tasks(
    benchmarks: Sequence[str], names: Sequence[str], data: Path | None, data_root: Path | None = None
) -> list[Task]:
    """Return tasks of ViDoRe, or a local set."""
    vidore = bool(benchmarks or names)
    if vidore == (data is not None) or (data and data_root):
        raise UsageError("pass either --benchmark (or --tasks), or a local set with --data")
    return [own_task(data)] if data else find_tasks(benchmarks, names, data_root)


# -- ViDoRe


def count_pages(benchmark: str) -> int:
    """Return the number of pages of a benchmark, as mteb counts them."""
    import mteb

    num = 0
    for task in TASKS[benchmark]:
        stats: Any = mteb.get_task(MTEB_NAMES[task]).metadata.descriptive_stats or {}
        for split in stats.values():
            num += split["documents_image_statistics"]["unique_images"]
    return num


def find_tasks(benchmarks: Sequence[str], names: Sequence[str], data_root: Path | None = None) -> list[Task]:
    """Return the tasks of benchmarks, or only those named: by the paper's or mteb's names, or like finance_en."""
    chosen: dict[str, str] = {}  # the benchmark of each task
    for benchmark in benchmarks or TASKS:
        if benchmark not in TASKS:
            raise UsageError(f"unknown benchmark {benchmark!r}. Known: {', '.join(TASKS)}")
        chosen |= dict.fromkeys(TASKS[benchmark], benchmark)
    by_alias: dict[str, str] = {}
    for task in chosen:
        name = MTEB_NAMES[task]
        middle = name.removesuffix("Retrieval").removeprefix("Vidore").lstrip("23")
        for alias in (task, name, re.sub(r"(?<=[^A-Z])(?=[A-Z])", "_", middle)):  # Fin-E, Vidore3..., Finance_En
            by_alias[alias.lower().rstrip(".").replace("-", "_")] = task
    wanted = set()
    for name in names:
        alias = name.lower().rstrip(".").replace("-", "_")
        if alias not in by_alias:
            raise UsageError(f"unknown task {name!r}. Known: {', '.join(chosen)}")
        wanted.add(by_alias[alias])
    tasks = [task for task in chosen if task in wanted or not names]
    return [_vidore_task(chosen[task], task, data_root) for task in tasks]


def _vidore_task(benchmark: str, name: str, data_root: Path | None) -> Task:
    import mteb

    task = mteb.get_task(MTEB_NAMES[name])
    dataset, revision = task.metadata.dataset["path"], task.metadata.dataset["revision"]
    if data_root is None:
        return MtebTask(name, benchmark, dataset, revision, task)
    for folder in (data_root / dataset, data_root / Path(dataset).name):
        if folder.is_dir():
            task.metadata = task.metadata.model_copy(update={"dataset": {"path": str(folder), "revision": revision}})
            return MtebTask(name, benchmark, str(folder), None, task, folder)
    raise UsageError(f"task {name}: no copy of {dataset} in {data_root}. Expected a folder {Path(dataset).name}.")


@dataclass(frozen=True)
class MtebTask(Task):
    """A task as mteb loads it, from the hub or from a copy of its repository."""

    task: Any
    folder: Path | None = None

    def subsets(self) -> Iterator[Subset]:
        with _loading(self.dataset, self.folder):
            self.task.data_loaded = False  # an earlier call may have freed its subsets
            self.task.load_data()
            self.task.convert_v1_dataset_format_to_v2(num_proc=None)
        for name, splits in self.task.dataset.items():
            data = splits["test"]
            queries = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
            yield self.make_subset(name, DatasetPages(data["corpus"], "id"), queries, data["relevant_docs"])
            self.task.dataset[name] = {}  # free its memory


@contextmanager
def _loading(dataset: str, folder: Path | None) -> Iterator[None]:
    """Load without progress bars and logs; raise a one-line RandSlotError on failure.

    A local copy gets its own cache, keyed by its files: `datasets` would confuse it with another folder of that name.
    """
    import datasets

    config, logger, hidden = datasets.config, logging.getLogger("datasets"), datasets.are_progress_bars_disabled()
    cache, level = config.HF_DATASETS_CACHE, logger.level
    logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    if folder is not None:
        files = [(file, file.stat()) for file in sorted(folder.resolve().rglob("*")) if file.is_file()]
        state = [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in files]
        config.HF_DATASETS_CACHE = Path(cache) / f"randslot-{content_key(repr(state).encode())}"
    hint = "" if folder else ". Offline, pass copies with --data-root."
    try:
        with in_one_line(f"load {dataset}", hint=hint):
            yield
    finally:
        config.HF_DATASETS_CACHE = cache
        logger.setLevel(level)
        if not hidden:
            datasets.enable_progress_bars()


# -- your own set


def own_task(folder: Path) -> FolderTask:
    """Return a folder with pages/, queries.jsonl and qrels.jsonl as a task."""
    for part in ("", "pages", "queries.jsonl", "qrels.jsonl"):
        if not (folder / part).exists():
            raise UsageError(f"{folder / part} does not exist. A set has pages/, queries.jsonl and qrels.jsonl.")
    return FolderTask(folder.resolve().name, "own", str(folder), None)


class QueryRow(BaseModel):
    """A row of queries.jsonl."""

    id: str | int
    query: str = Field(pattern=r"\S")
    language: str = "default"


class GradeRow(BaseModel):
    """A row of qrels.jsonl."""

    query: str | int
    page: str
    grade: StrictInt = Field(ge=0)


Row = TypeVar("Row", bound=BaseModel)


class FolderTask(Task):
    """A folder with pages/, queries.jsonl and qrels.jsonl."""

    def subsets(self) -> Iterator[Subset]:
        pages = FolderPages(Path(self.dataset, "pages"))
        by_language: dict[str, dict[str, str]] = {}
        known: set[str] = set()
        for place, query in _read_rows(Path(self.dataset, "queries.jsonl"), QueryRow):
            if str(query.id) in known:
                raise RandSlotError(f"{place}: duplicate id {query.id!r}")
            known.add(str(query.id))
            by_language.setdefault(query.language, {})[str(query.id)] = query.query
        grades: dict[str, dict[str, int]] = {}
        page_ids = set(pages.ids)
        for place, row in _read_rows(Path(self.dataset, "qrels.jsonl"), GradeRow):
            if str(row.query) not in known or row.page not in page_ids:
                what = f"query {row.query!r}" if str(row.query) not in known else f"page {row.page!r}"
                raise RandSlotError(f"{place}: no {what} in this set")
            grades.setdefault(str(row.query), {})[row.page] = row.grade
        relevant = {query: by_page for query, by_page in grades.items() if any(by_page.values())}
        for language, texts in by_language.items() or [("default", {})]:
            yield self.make_subset(language, pages, texts, relevant)


def _read_rows(file: Path, kind: type[Row]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a JSONL file, each with its location for error messages."""
    for number, line in enumerate(file.read_bytes().removeprefix(BOM_UTF8).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{file}: row {number}"
        try:
            row = kind.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = "".join(f"{name}: " for name in first["loc"])
            raise RandSlotError(f"{place}: {field}{first['msg']}, not {first['input']!r:.80}") from error
        yield place, row
