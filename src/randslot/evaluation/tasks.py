"""What to evaluate on: the 22 ViDoRe tasks through mteb's definitions, or a folder of your own.

The only file that imports mteb. Pages stay undecoded until they are needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import RandSlotError, UsageError
from ..hub import first_line
from ..pages import PageInput, list_pages, page_file
from .published import TASKS
from .vectors import content_key

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
SPLIT = "test"


class Pages(Protocol):
    """The pages of a corpus, opened one by one."""

    ids: list[str]

    def key(self, index: int) -> str:
        """Return the hash of a page's content."""
        ...

    def open(self, index: int) -> PageInput:
        """Return a page as `encode_document` takes it."""
        ...


@dataclass(frozen=True)
class Subset:
    """Queries in one language over one corpus, with the grades of the pages that count for each."""

    name: str
    pages: Pages
    queries: dict[str, str]  # text by id; only queries that have grades
    grades: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Task:
    """A task under the paper's name, or a set of one's own; its subsets are loaded one after the other."""

    name: str
    benchmark: str
    dataset: str
    revision: str | None
    source: Any  # how to load it

    def subsets(self) -> Iterator[Subset]:
        """Load the subsets.

        Errors: RandSlotError in one line for data that is not there, or is empty or broken.
        """
        found = False
        for subset in self.source.load():
            if not subset.pages.ids:
                raise RandSlotError(f"{self.name}: the corpus of {self.dataset} is empty")
            if not subset.queries:
                raise RandSlotError(f"{self.name}: no query of {self.dataset} ({subset.name}) has a relevant page")
            found = True
            yield subset
        if not found:
            raise RandSlotError(f"{self.name}: {self.dataset} has no subset to evaluate")


# -- ViDoRe


def find_tasks(benchmarks: list[str], names: list[str], data_root: Path | None = None) -> list[Task]:
    """Return the tasks of some benchmarks, or only those named: as the paper or mteb names them, or like finance_en.

    Errors: UsageError for an unknown benchmark or task.
    """
    for benchmark in benchmarks:
        if benchmark not in TASKS:
            raise UsageError(f"unknown benchmark {benchmark!r}; known ones: {', '.join(TASKS)}")
    chosen = [(benchmark, name) for benchmark in benchmarks or TASKS for name in TASKS[benchmark]]
    if names:
        wanted = [_match(name, chosen) for name in names]
        chosen = [pair for pair in chosen if pair in wanted]
    return [_vidore_task(benchmark, name, data_root) for benchmark, name in chosen]


def _match(name: str, among: list[tuple[str, str]]) -> tuple[str, str]:
    for pair in among:
        if _plain(name) in {_plain(pair[1]), _plain(MTEB_NAMES[pair[1]]), word_of(pair[1])}:
            return pair
    known = ", ".join(word_of(task) for _, task in among)
    raise UsageError(f"unknown task {name!r}; known ones: {known}")


def word_of(task: str) -> str:
    """Return the word for a task on the command line: finance_en for Vidore3FinanceEnRetrieval."""
    middle = MTEB_NAMES[task].removesuffix("Retrieval").removeprefix("Vidore").lstrip("23")
    letters = [f"_{a}" if a.isupper() and not b.isupper() else a for a, b in zip(middle[1:], middle, strict=False)]
    return (middle[0] + "".join(letters)).lower()


def _plain(name: str) -> str:
    return name.lower().rstrip(".").replace("-", "_")


def _vidore_task(benchmark: str, name: str, data_root: Path | None) -> Task:
    import mteb

    task = mteb.get_task(MTEB_NAMES[name])
    dataset, revision = task.metadata.dataset["path"], task.metadata.dataset["revision"]
    if data_root is None:
        return Task(name, benchmark, dataset, revision, MtebSource(task))
    for folder in (data_root / dataset, data_root / Path(dataset).name):
        if folder.is_dir():
            task.metadata = task.metadata.model_copy(update={"dataset": {"path": str(folder), "revision": revision}})
            return Task(name, benchmark, str(folder), None, MtebSource(task))
    native = data_root / Path(dataset).name.removesuffix("_mteb_format")
    if native.is_dir():
        return Task(name, benchmark, str(native), None, NativeSource(native))
    raise UsageError(f"task {name}: no copy of {dataset} in {data_root}: expected a folder {Path(dataset).name}")


@dataclass(frozen=True)
class MtebSource:
    """A task as mteb loads it, from the hub or from a copy of its repository."""

    task: Any

    def load(self) -> Iterator[Subset]:
        logging.getLogger("datasets").setLevel(logging.ERROR)
        try:
            self.task.load_data()
            self.task.convert_v1_dataset_format_to_v2(num_proc=None)
        except Exception as error:  # whatever datasets and the hub make of it
            path = self.task.metadata.dataset["path"]
            raise RandSlotError(f"cannot load {path}: {first_line(error)}") from error
        for name, splits in self.task.dataset.items():
            data = splits[SPLIT]
            queries = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
            yield make_subset(name, DatasetPages(data["corpus"], "id"), queries, data["relevant_docs"])
            self.task.dataset[name] = {}


@dataclass(frozen=True)
class NativeSource:
    """A ViDoRe V3 repository in its own layout: corpus, queries in all languages, qrels."""

    folder: Path

    def load(self) -> Iterator[Subset]:
        from datasets import load_dataset

        try:
            corpus, queries, qrels = (
                load_dataset(str(self.folder), part, split=SPLIT) for part in ("corpus", "queries", "qrels")
            )
        except Exception as error:  # whatever datasets makes of it
            raise RandSlotError(f"cannot load {self.folder}: {first_line(error)}") from error
        grades: dict[str, dict[str, int]] = {}
        for row in qrels:
            grades.setdefault(str(row["query_id"]), {})[str(row["corpus_id"])] = int(row["score"])
        pages = DatasetPages(corpus, "corpus_id")
        texts = queries.select_columns(["query_id", "query", "language"]).to_list()
        for language in dict.fromkeys(row["language"] for row in texts):
            chosen = {str(row["query_id"]): row["query"] for row in texts if row["language"] == language}
            yield make_subset(language, pages, chosen, grades)


def make_subset(name: str, pages: Pages, queries: dict[str, str], grades: dict[str, dict[str, int]]) -> Subset:
    """Keep the queries that have grades: the others count for nothing in pytrec_eval."""
    kept = {id: text for id, text in queries.items() if grades.get(id)}
    return Subset(name, pages, kept, {id: grades[id] for id in kept})


class DatasetPages:
    """The pages of a `datasets` corpus; images stay encoded."""

    def __init__(self, corpus: Any, id_column: str) -> None:
        from datasets import Image

        self.ids = [str(id) for id in corpus[id_column]]
        self.images = corpus.select_columns(["image"]).cast_column("image", Image(decode=False))

    def key(self, index: int) -> str:
        return content_key(self.open(index))

    def open(self, index: int) -> bytes:
        image = self.images[index]["image"]
        return bytes(image["bytes"]) if image["bytes"] else Path(image["path"]).read_bytes()


# -- a folder of one's own


def own_task(folder: Path) -> Task:
    """Return a folder with pages/, queries.jsonl and qrels.jsonl as a task.

    Errors: UsageError if one of them is not there.
    """
    for part in ("pages", "queries.jsonl", "qrels.jsonl"):
        if not (folder / part).exists():
            raise UsageError(f"{folder} has no {part}: a set has pages/, queries.jsonl and qrels.jsonl")
    return Task(folder.resolve().name, "own", str(folder), None, FolderSource(folder))


@dataclass(frozen=True)
class FolderSource:
    """A folder with pages/, queries.jsonl ("id", "query", "language" if there are several) and qrels.jsonl."""

    folder: Path

    def load(self) -> Iterator[Subset]:
        pages = FolderPages(self.folder / "pages")
        known = set(pages.ids)
        queries: dict[str, dict[str, str]] = {}
        for row in _read_rows(self.folder / "queries.jsonl", ("id", "query")):
            queries.setdefault(str(row.get("language", "default")), {})[str(row["id"])] = str(row["query"])
        grades: dict[str, dict[str, int]] = {}
        for row in _read_rows(self.folder / "qrels.jsonl", ("query", "page", "grade")):
            if row["page"] not in known:
                raise RandSlotError(
                    f"{self.folder / 'qrels.jsonl'}: no page {row['page']!r} in {self.folder / 'pages'}"
                )
            grades.setdefault(str(row["query"]), {})[str(row["page"])] = int(row["grade"])
        for language, texts in queries.items():
            yield make_subset(language, pages, texts, grades)


class FolderPages:
    """The pages below a folder: each image, and each page of each PDF, named by its path there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids = list_pages(folder)
        self.hashes: dict[Path, bytes] = {}

    def key(self, index: int) -> str:
        page = self.open(index)
        file = page_file(page)
        if file not in self.hashes:
            self.hashes[file] = content_key(file.read_bytes()).encode()
        return content_key(self.hashes[file], page.removeprefix(str(file)).encode())

    def open(self, index: int) -> str:
        return str(self.folder / self.ids[index])


def _read_rows(file: Path, keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RandSlotError(f"cannot read {file}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RandSlotError(f"{file}: row {number} is not valid JSON: {error}") from error
        if not isinstance(row, dict) or any(key not in row for key in keys):
            raise RandSlotError(f"{file}: row {number} must have {', '.join(keys)}")
        yield row
