"""What to evaluate on: the 22 ViDoRe tasks as mteb defines them, or a folder of your own."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import RandSlotError, UsageError, first_line
from ..model.hub import check_dataset
from ..pages import PageInput, list_pages, page_file
from .cache import content_key
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


class Pages(Protocol):
    """The pages of a corpus; they stay undecoded until opened."""

    ids: list[str]

    def key(self, index: int) -> str:
        """Return the hash of a page's content."""
        ...

    def open(self, index: int) -> PageInput:
        """Return a page as `encode_document` takes it."""
        ...


@dataclass(frozen=True)
class Subset:
    """Queries in one language over one corpus, with the grades of the relevant pages of each."""

    name: str
    pages: Pages
    queries: dict[str, str]  # text by id; only queries that have grades
    grades: dict[str, dict[str, int]]
    left_out: int = 0  # queries without grades

    def key(self) -> str:
        """Return a hash of pages, queries and grades."""
        return content_key(json.dumps([self.pages.ids, self.queries, self.grades], sort_keys=True).encode())


@dataclass(frozen=True)
class Task:
    """A task under the paper's name, or a set of your own."""

    name: str
    benchmark: str
    dataset: str
    revision: str | None
    source: Any  # how to load it

    def subsets(self) -> Iterator[Subset]:
        """Load the subsets one by one."""
        for subset in self.source.load():
            if not subset.pages.ids:
                raise RandSlotError(f"{self.name}: {self.dataset} has no pages")
            if not subset.queries:
                raise RandSlotError(f"{self.name}: no query of {self.dataset} ({subset.name}) has a relevant page")
            yield subset


def choose_tasks(
    benchmarks: Sequence[str], names: Sequence[str], data: Path | None, data_root: Path | None = None
) -> list[Task]:
    """Return tasks of ViDoRe, or a set of your own."""
    vidore = bool(benchmarks or names)
    if vidore == (data is not None) or (data and data_root):
        raise UsageError("name either a benchmark (or tasks of it), or a set of your own by --data")
    return [own_task(data)] if data else find_tasks(benchmarks, names, data_root)


# -- ViDoRe


def find_tasks(benchmarks: Sequence[str], names: Sequence[str], data_root: Path | None = None) -> list[Task]:
    """Return the tasks of some benchmarks, or only those named: as the paper or mteb names them, or like finance_en."""
    chosen: list[tuple[str, str]] = []
    for benchmark in benchmarks or TASKS:
        if benchmark not in TASKS:
            raise UsageError(f"unknown benchmark {benchmark!r}. Known: {', '.join(TASKS)}")
        chosen += [(benchmark, task) for task in TASKS[benchmark]]
    if names:
        known = {}
        for pair in chosen:
            for alias in (pair[1], MTEB_NAMES[pair[1]], word_of(pair[1])):
                known[_plain(alias)] = pair
        for name in names:
            if _plain(name) not in known:
                raise UsageError(f"unknown task {name!r}. Known: {', '.join(task for _, task in chosen)}")
        wanted = {known[_plain(name)] for name in names}
        chosen = [pair for pair in chosen if pair in wanted]
    return [_vidore_task(benchmark, task, data_root) for benchmark, task in chosen]


def word_of(task: str) -> str:
    """Return the name of a task on the command line: finance_en for Vidore3FinanceEnRetrieval."""
    middle = MTEB_NAMES[task].removesuffix("Retrieval").removeprefix("Vidore").lstrip("23")
    return re.sub(r"(?<=[^A-Z])(?=[A-Z])", "_", middle).lower()


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
            return Task(name, benchmark, str(folder), None, MtebSource(task, folder))
    native = data_root / Path(dataset).name.removesuffix("_mteb_format")
    if native.is_dir():
        return Task(name, benchmark, str(native), None, NativeSource(native))
    raise UsageError(f"task {name}: no copy of {dataset} in {data_root}. Expected a folder {Path(dataset).name}.")


@dataclass(frozen=True)
class MtebSource:
    """A task as mteb loads it, from the hub or from a copy of its repository."""

    task: Any
    folder: Path | None = None

    def load(self) -> Iterator[Subset]:
        path, revision = self.task.metadata.dataset["path"], self.task.metadata.dataset["revision"]
        offline = None if self.folder else check_dataset(path, revision)
        try:
            with _quiet(self.folder, offline is not None):
                self.task.data_loaded = False  # another run may have freed its subsets
                self.task.load_data()
                self.task.convert_v1_dataset_format_to_v2(num_proc=None)
        except Exception as error:  # datasets and the hub raise many kinds
            reason = (
                f"not in the local cache, and the hub does not answer ({offline})" if offline else first_line(error)
            )
            hint = "" if self.folder else ". Without network, --data-root takes copies."
            raise RandSlotError(f"cannot load {path}: {reason}{hint}") from error
        for name, splits in self.task.dataset.items():
            data = splits["test"]
            queries = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
            yield make_subset(name, DatasetPages(data["corpus"], "id"), queries, data["relevant_docs"])
            self.task.dataset[name] = {}  # free its memory


@dataclass(frozen=True)
class NativeSource:
    """A ViDoRe V3 repository in its own layout: corpus, queries in all languages, qrels."""

    folder: Path

    def load(self) -> Iterator[Subset]:
        from datasets import load_dataset

        try:
            with _quiet(self.folder):
                corpus, queries, qrels = (
                    load_dataset(str(self.folder), part, split="test") for part in ("corpus", "queries", "qrels")
                )
        except Exception as error:
            raise RandSlotError(f"cannot load {self.folder}: {first_line(error)}") from error
        grades: dict[str, dict[str, int]] = {}
        for row in qrels:
            grades.setdefault(str(row["query_id"]), {})[str(row["corpus_id"])] = int(row["score"])
        pages = DatasetPages(corpus, "corpus_id")
        texts = queries.select_columns(["query_id", "query", "language"]).to_list()
        for language in dict.fromkeys(row["language"] for row in texts):
            chosen = {str(row["query_id"]): row["query"] for row in texts if row["language"] == language}
            yield make_subset(language, pages, chosen, grades)


@contextmanager
def _quiet(folder: Path | None, offline: bool = False) -> Iterator[None]:
    """Load without progress bars and logs.

    A local copy gets its own cache, keyed by its files: `datasets` would mistake it for another folder of that name.
    offline: only what was downloaded before; `datasets` would retry the hub for half a minute.
    """
    import datasets
    import huggingface_hub.constants as hub

    shown, cache = datasets.are_progress_bars_disabled(), datasets.config.HF_DATASETS_CACHE
    level, before = logging.getLogger("datasets").level, (hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)
    logging.getLogger("datasets").setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    if folder is not None:
        stats = [(str(file), file.stat()) for file in sorted(folder.resolve().rglob("*")) if file.is_file()]
        state = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
        datasets.config.HF_DATASETS_CACHE = Path(cache) / f"randslot-{content_key(state.encode())}"
    if offline:
        hub.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = cache
        hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
        logging.getLogger("datasets").setLevel(level)
        if not shown:
            datasets.enable_progress_bars()


def make_subset(name: str, pages: Pages, queries: dict[str, str], grades: dict[str, dict[str, int]]) -> Subset:
    """Keep the queries that have grades: pytrec_eval ignores the others."""
    kept = {id: text for id, text in queries.items() if grades.get(id)}
    return Subset(name, pages, kept, {id: grades[id] for id in kept}, len(queries) - len(kept))


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


# -- your own set


def own_task(folder: Path) -> Task:
    """Return a folder with pages/, queries.jsonl and qrels.jsonl as a task."""
    for part in ("", "pages", "queries.jsonl", "qrels.jsonl"):
        if not (folder / part).exists():
            raise UsageError(f"{folder / part} does not exist. A set has pages/, queries.jsonl and qrels.jsonl.")
    return Task(folder.resolve().name, "own", str(folder), None, FolderSource(folder))


@dataclass(frozen=True)
class FolderSource:
    """A folder with pages/, queries.jsonl ("id", "query", and "language" if there are several) and qrels.jsonl."""

    folder: Path

    def load(self) -> Iterator[Subset]:
        pages = FolderPages(self.folder / "pages")
        queries: dict[str, dict[str, str]] = {}
        known: set[str] = set()
        for place, row in _read_rows(self.folder / "queries.jsonl", ("id", "query")):
            id, text = str(row["id"]), row["query"]
            if not isinstance(text, str) or not text.strip():
                raise RandSlotError(f"{place}: query must be text, not {text!r}")
            if id in known:
                raise RandSlotError(f"{place}: duplicate id {id!r}")
            known.add(id)
            queries.setdefault(str(row.get("language", "default")), {})[id] = text
        grades = self._read_grades(known, set(pages.ids))
        for language, texts in queries.items() or [("default", {})]:
            yield make_subset(language, pages, texts, grades)

    def _read_grades(self, queries: set[str], pages: set[str]) -> dict[str, dict[str, int]]:
        grades: dict[str, dict[str, int]] = {}
        for place, row in _read_rows(self.folder / "qrels.jsonl", ("query", "page", "grade")):
            query, page, grade = str(row["query"]), row["page"], row["grade"]
            if query not in queries:
                raise RandSlotError(f"{place}: no query {query!r} in queries.jsonl")
            if not isinstance(page, str) or page not in pages:
                raise RandSlotError(f"{place}: no page {page!r} in {self.folder / 'pages'}")
            if type(grade) is not int or grade < 0:
                raise RandSlotError(f"{place}: grade must be a whole number from 0, not {grade!r}")
            grades.setdefault(query, {})[page] = grade
        return {query: by_page for query, by_page in grades.items() if any(by_page.values())}


class FolderPages:
    """The pages below a folder: each image, and each page of each PDF, named by its path."""

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


def _read_rows(file: Path, keys: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a JSONL file, each with its place for an error."""
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
        yield f"{file}: row {number}", row
