"""Measure keyword search: speed and size, compared with bm25s and SQLite's FTS5.

    python -m research.manuals data/manuals           # real manuals with questions
    pip install bm25s                                 # the peer; FTS5 is in Python's SQLite
    python benchmarks/words.py speed                  # 10k and 100k pages
    python benchmarks/words.py shell                  # a search by words from the shell, everything included
    python benchmarks/words.py index                  # CPU and disk use of indexing, and of reading plain text
    python benchmarks/words.py search                 # ten hits with snippets and boxes, also over 100k pages

All engines get the text that the library extracts from the files. Libraries are kept in --folder and reused.
`python benchmarks/peers.py` compares quality, starting from PDFs.

For `speed`, pages combine the first half of one real page and the second half of another. Every engine is built in one
process and queried in another, each on one core. Before it is opened, its files are evicted from the page cache. Build
times are CPU times. Phrases are two adjacent words of a real page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from manuals import HALVES, HITS, open_half
from numpy.typing import NDArray
from record import check_found, keep, list_heavy, list_imports, print_table, time_command

import randslot
from randslot.library.languages import LibraryWords
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import StoredPage
from randslot.library.stores.store import StoreQuery, Where
from randslot.pages.text import PageText
from randslot.words.analyzer import Analyzer, get_analyzer, list_words
from randslot.words.query import read_query

LANGUAGE = "english"


# -- the peers


class Fts5:
    """SQLite's full-text search, with its porter tokenizer and BM25; query words are joined by OR."""

    def __init__(self, file: Path) -> None:
        self.db = sqlite3.connect(file)

    def build(self, pages: Iterable[tuple[str, str]]) -> None:
        """Store pages: the file and the text of each. They are numbered from 0."""
        if not self.db.execute("select 1 from sqlite_master").fetchone():
            self.db.execute(
                "create virtual table pages using fts5(text, file unindexed, tokenize = 'porter unicode61')"
            )
        num = self.db.execute("select coalesce(max(rowid), -1) + 1 from pages").fetchone()[0]
        rows = [(num + i, text, file) for i, (file, text) in enumerate(pages)]
        self.db.executemany("insert into pages(rowid, text, file) values (?, ?, ?)", rows)
        self.db.commit()

    def optimize(self) -> None:
        self.db.execute("insert into pages(pages) values ('optimize')")
        self.db.commit()

    def search(self, match: str, k: int, file: str | None = None) -> list[int]:
        within = "and file = ?" if file else ""
        found = self.db.execute(
            f"select rowid from pages where pages match ? {within} order by rank limit ?",
            (match, *([file] if file else []), k),
        )
        return [row[0] for row in found]


def any_word(query: str, left_out: frozenset[str] = frozenset()) -> str:
    """Return an FTS5 query for any of the words without stop words; for all of them if nothing would remain."""
    words = re.findall(r"\w+", query.lower())
    chosen = [word for word in words if word not in left_out] or words
    return " OR ".join(f'"{word}"' for word in chosen)


class Bm25s:
    """bm25s with its defaults, and stems of PyStemmer."""

    def __init__(self, stop_words: str | None) -> None:
        self.stop_words = stop_words
        self.package = importlib.import_module("bm25s")  # a peer: optional, and untyped
        self.stemmer = importlib.import_module("Stemmer").Stemmer(LANGUAGE)
        self.index: Any = self.package.BM25()

    def tokenize(self, texts: list[str]) -> Any:
        return self.package.tokenize(texts, stopwords=self.stop_words or [], stemmer=self.stemmer, show_progress=False)

    def build(self, tokens: Any) -> None:
        self.index.index(tokens, show_progress=False)

    def search(self, query: str, k: int, mask: NDArray[Any] | None = None) -> list[int]:
        tokens = self.tokenize([query])
        found = self.index.retrieve(tokens, k=k, show_progress=False, weight_mask=mask)
        return [int(i) for i in found.documents[0]]


# -- speed: every engine, in separate processes


WORDS = LibraryWords({"language": LANGUAGE, "each": False}, lambda settings: None)
Asked = Callable[[str], Sequence[object]]  # from a query to hits


@dataclass(frozen=True)
class Built:
    """The CPU seconds of an engine: to tokenize texts, and to store them. None if these cannot be separated."""

    analysis: float | None
    storing: float


class Engine(Protocol):
    """An engine in a folder: build it from pages (file, number, text), or open and query it."""

    def build(self, pages: Iterator[tuple[str, int, PageText]], folder: Path) -> Built: ...

    def open(self, folder: Path) -> dict[str, Asked]:
        """Open it; return ways to query it, by name."""
        ...


class OursOnDisk:
    """The store of a library."""

    def build(self, pages: Iterator[tuple[str, int, PageText]], folder: Path) -> Built:
        store = EdgeStore(folder / "pages", None)
        analysis = storing = 0.0
        for num, some in enumerate(_batches(pages)):
            start = time.process_time()
            stored = [
                StoredPage(file, number, "", None, WORDS.read_page(text, "layer", "")) for file, number, text in some
            ]
            middle = time.process_time()
            store.add(stored)
            if num % 5 == 4:
                store.flush()  # every few seconds, as a library does
            analysis, storing = analysis + middle - start, storing + time.process_time() - middle
        start = time.process_time()
        store.flush()
        store.optimize()
        store.close()
        return Built(analysis, storing + time.process_time() - start)

    def open(self, folder: Path) -> dict[str, Asked]:
        self.store, self.analyzer = EdgeStore(folder / "pages", None), get_analyzer(LANGUAGE)
        hidden = frozenset(_file_id(number) for number in range(3))
        return {
            "randslot": lambda query: self._ask(query, Where()),
            "randslot, 3 files hidden": lambda query: self._ask(query, Where(hidden=hidden)),
        }

    def _ask(self, query: str, where: Where) -> Sequence[object]:
        read = read_query(query, self.analyzer)
        return self.store.search([StoreQuery(None, read.terms, read.phrases, read.excluded)], HITS, where, False)[0]

    def ask_phrase(self, phrase: str) -> Sequence[object]:
        return self._ask(f'"{phrase}"', Where())


class Fts5OnDisk:
    """SQLite FTS5, with the texts in it."""

    def build(self, pages: Iterator[tuple[str, int, PageText]], folder: Path) -> Built:
        engine = Fts5(folder / "pages.db")
        storing = 0.0
        for some in _batches(pages):
            rows = [(file, text.text) for file, _, text in some]
            start = time.process_time()
            engine.build(rows)
            storing += time.process_time() - start
        start = time.process_time()
        engine.optimize()
        engine.db.close()
        return Built(None, storing + time.process_time() - start)

    def open(self, folder: Path) -> dict[str, Asked]:
        self.engine = Fts5(folder / "pages.db")
        left_out = get_analyzer(LANGUAGE).stopwords
        return {
            "SQLite FTS5": lambda query: self.engine.search(any_word(query), HITS),
            "SQLite FTS5, no stop words asked": lambda query: self.engine.search(any_word(query, left_out), HITS),
        }

    def ask_phrase(self, phrase: str) -> Sequence[object]:
        return self.engine.search(f'"{phrase}"', HITS)


class Bm25sOnDisk:
    """bm25s with English stop words, in memory or mapped; it keeps no texts and knows no phrases."""

    mapped = False

    def build(self, pages: Iterator[tuple[str, int, PageText]], folder: Path) -> Built:
        engine = Bm25s("en")
        texts = [text.text for _, _, text in pages]
        start = time.process_time()
        tokens = engine.tokenize(texts)
        middle = time.process_time()
        engine.build(tokens)
        engine.index.save(folder / "pages", show_progress=False)
        return Built(middle - start, time.process_time() - middle)

    def open(self, folder: Path) -> dict[str, Asked]:
        engine = Bm25s("en")
        engine.index = engine.package.BM25.load(folder / "pages", mmap=self.mapped, load_corpus=False)
        name = "bm25s, mapped" if self.mapped else "bm25s, in memory"
        return {name: lambda query: engine.search(query, HITS)}


class Bm25sMapped(Bm25sOnDisk):
    """The same, mapped."""

    mapped = True


ENGINES: dict[str, type[Engine]] = {"fts5": Fts5OnDisk, "bm25s": Bm25sOnDisk, "mapped": Bm25sMapped, "ours": OursOnDisk}
SAME_FOLDER = {"mapped": "bm25s"}  # engines that open what another one built


def _batches(pages: Iterator[tuple[str, int, PageText]]) -> Iterator[list[tuple[str, int, PageText]]]:
    while some := list(islice(pages, 1000)):
        yield some


def _file_id(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


def generate(real: Sequence[PageText], num: int) -> Iterator[tuple[str, int, PageText]]:
    """Yield distinct pages, a hundred a file: the first lines of one real page, and the last ones of another."""
    random = np.random.default_rng(0)
    for i, pair in enumerate(random.choice(len(real) ** 2, num, replace=False).tolist()):
        first, last = real[pair // len(real)], real[pair % len(real)]
        lines, others = first.text.split("\n"), last.text.split("\n")
        top, rest = lines[: len(lines) // 2], others[len(others) // 2 :]
        num_top, num_rest = (sum(len(line.split()) for line in some) for some in (top, rest))
        boxes = first.boxes[: 8 * num_top] + last.boxes[len(last.boxes) - 8 * num_rest :]
        yield _file_id(i // 100), i % 100 + 1, PageText("\n".join([*top, *rest]), boxes)


def choose_phrases(real: Sequence[PageText], num: int, analyzer: Analyzer) -> list[str]:
    """Return pairs of adjacent content words."""
    random = np.random.default_rng(1)
    phrases: list[str] = []
    while len(phrases) < num:
        words = list(list_words(real[int(random.integers(len(real)))].text))
        place = int(random.integers(max(len(words) - 1, 1)))
        pair = words[place : place + 2]
        if len(pair) == 2 and all(len(one) > 2 and one.isalpha() for one in pair):
            phrases += [" ".join(pair)] if not analyzer.stopwords & set(pair) else []
    return phrases


def build_engine(name: str, num: int, folder: Path, place: Path) -> dict[str, Any]:
    """Build an engine; return its build time and size."""
    real, _ = pickle.loads((folder / "real.pickle").read_bytes())
    place.mkdir()
    built = ENGINES[name]().build(generate(real, num), place)
    os.sync()
    size = sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())
    return {"analysis CPU s": built.analysis, "storing CPU s": built.storing, "bytes a page": size / num}


def ask_engine(name: str, folder: Path, place: Path) -> list[dict[str, Any]]:
    """Open an engine with a cold page cache, and query it; return a row for every way."""
    real, questions = pickle.loads((folder / "real.pickle").read_bytes())
    get_analyzer(LANGUAGE)
    engine = ENGINES[name]()
    _forget(place)
    start = time.perf_counter()
    ways = engine.open(place)
    opened = time.perf_counter() - start
    next(iter(ways.values()))(questions[0])
    cold = time.perf_counter() - start - opened
    for way, ask in ways.items():
        assert len(ask(questions[0])) == HITS, f"{way} does not find {HITS} pages"
    rows = []
    for i, (way, ask) in enumerate(ways.items()):
        seconds, spent = _time(ask, questions)
        row: dict[str, Any] = {"engine": way, "opened cold s": None if i else opened, "first query ms": None}
        row |= {"first query ms": None if i else 1000 * cold, "p50 ms": 1000 * statistics.median(seconds)}
        row |= {"p95 ms": 1000 * float(np.quantile(seconds, 0.95)), "CPU p50 ms": 1000 * statistics.median(spent)}
        row["phrase p50 ms"] = None
        rows.append(row)
    if isinstance(engine, OursOnDisk | Fts5OnDisk):  # bm25s has no phrases
        phrases = choose_phrases(real, 100, get_analyzer(LANGUAGE))
        rows[0]["phrase p50 ms"] = 1000 * statistics.median(_time(engine.ask_phrase, phrases)[0])
    return rows


def _time(ask: Asked, queries: Sequence[str]) -> tuple[list[float], list[float]]:
    """Run every query three times; return the wall and CPU seconds of the last two."""
    seconds, spent = [], []
    for turn in range(3):
        for query in queries:
            start, cpu = time.perf_counter(), time.process_time()
            ask(query)
            if turn:
                seconds.append(time.perf_counter() - start)
                spent.append(time.process_time() - cpu)
    return seconds, spent


def _forget(place: Path) -> None:
    """Evict files from the page cache."""
    for file in place.rglob("*"):
        if file.is_file():
            with file.open("rb") as content:
                os.fsync(content.fileno())
                os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_speed(manuals: Path, folder: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure every engine with each number of pages."""
    real: list[PageText] = []
    questions: dict[str, list[str]] = {}
    for name in HALVES:
        half = open_half(name, manuals, folder)
        real += [page for page in half.pages.values() if page.text]
        questions[name] = [one.text for one in half.questions]
        half.library.close()
    (folder / "real.pickle").write_bytes(pickle.dumps((real, questions["dev"])))
    rows: list[dict[str, Any]] = []
    for num in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as places:
            for name in ENGINES:
                place = Path(places) / SAME_FOLDER.get(name, name)
                built: dict[str, Any] = {"analysis CPU s": None, "storing CPU s": None, "bytes a page": None}
                if name not in SAME_FOLDER:
                    built = in_process("build", name, str(num), str(folder), str(place))
                for row in in_process("ask", name, str(num), str(folder), str(place)):
                    rows.append({"pages": num, "engine": row.pop("engine"), **built, **row, "load": os.getloadavg()[0]})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                    built = dict.fromkeys(built)
    return [{head: "" if value is None else value for head, value in row.items()} for row in rows]


def in_process(*words: str) -> Any:
    """Run a part of this script in a separate process, and return the last line it prints."""
    answer = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def run_part(part: str, name: str, num: int, folder: Path, place: Path) -> None:
    """Build or query one engine, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(build_engine(name, num, folder, place) if part == "build" else ask_engine(name, folder, place)))


# -- from the shell


def measure_shell(manuals: Path, folder: Path) -> list[dict[str, Any]]:
    """Time whole processes that search the first half of the manuals, and list their imports."""
    open_half("dev", manuals, folder).library.close()
    searches = {"words": "restore a backup from tape", "a phrase": '"restore job" tape'}
    rows = []
    for what, query in searches.items():
        command = ["-m", "randslot", "search", query, "-l", str(folder / "library-dev")]
        check_found(command)
        rows.append(
            {"search by": what} | time_command(command) | {"imports of torch and the like": list_heavy(command)}
        )
    others = {"--help": ["-m", "randslot", "--help"], "import typer": ["-c", "import typer"], "python": ["-c", ""]}
    for what, command in others.items():
        rows.append({"search by": what} | time_command(command) | {"imports of torch and the like": ""})
    return [*rows, *list_imports(["-m", "randslot", "search", "words", "-l", str(folder / "library-dev")])]


# -- index


PLAIN = """
import sys
from pathlib import Path
import pypdfium2 as pdfium
for file in sorted(Path(sys.argv[1]).rglob("*.pdf")):
    with pdfium.PdfDocument(file) as pdf:
        for i in range(len(pdf)):
            page = pdf[i]
            text = page.get_textpage()
            text.get_text_range()
            text.close()
            page.close()
"""


def measure_index(manuals: Path, folder: Path) -> list[dict[str, Any]]:
    """Compare the CPU time of indexing PDFs, over all processes, with that of pypdfium2 reading their plain text."""
    library = folder / "library-index"
    plain, index = [], []
    for _ in range(3):
        plain.append(measure_cpu(["-c", PLAIN, str(manuals)]))
        shutil.rmtree(library, ignore_errors=True)
        command = ["-m", "randslot", "index", str(manuals), "-l", str(library), "--no-ocr", "--quiet"]
        index.append(measure_cpu(command))
    status = json.loads(
        subprocess.run(
            [sys.executable, "-m", "randslot", "library", "status", "-l", str(library), "--json"],
            check=True,
            capture_output=True,
        ).stdout
    )
    row = {"folder": manuals.name, "pages": status["pages"], "plain text CPU s": min(plain), "index CPU s": min(index)}
    row |= {"times": min(index) / min(plain), "bytes a page": measure_disk(library) / status["pages"]}
    return [row | {"load": os.getloadavg()[0]}]


def measure_cpu(command: Sequence[str]) -> float:
    """Run Python with arguments; return the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_disk(folder: Path) -> int:
    """Return the bytes of disk blocks that files use."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


# -- whole searches of a library


def measure_searches(manuals: Path, folder: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure searches of the first half of the manuals, and of generated text files."""
    half = open_half("dev", manuals, folder)
    questions = [one.text for one in half.questions]
    rows = time_searches("PDFs", half.library, questions)
    half.library.close()
    real = [page for page in half.pages.values() if page.text]
    for num in sizes:
        with randslot.Library(folder / f"library-text-{num}") as library:
            if len(library) < num:
                files = folder / f"text-{num}"
                files.mkdir(exist_ok=True)
                pages = generate(real, num)
                for i in range(num // 100):
                    texts = [text.text for _, _, text in islice(pages, 100)]
                    (files / f"{i}.txt").write_text("\f".join(texts), encoding="utf-8", errors="replace")
                start = time.perf_counter()
                library.add(files)
                print(f"{len(library):,} pages in {time.perf_counter() - start:.0f} s", file=sys.stderr)
            rows += time_searches("text files", library, questions)
    return rows


def time_searches(what: str, library: randslot.Library, questions: Sequence[str]) -> list[dict[str, Any]]:
    """Return the CPU time of ten hits with snippets: for new queries, repeated ones, and without the last letter."""
    ways: dict[str, dict[str, Any]] = {"new": {}, "again": {}, "last word unfinished": {"prefix": True}}
    if what == "PDFs":
        ways |= {"boxes too": {"boxes": True}, "boxes too, again": {"boxes": True}}
    rows = []
    for name, options in ways.items():
        spent, seconds = [], []
        for question in questions:
            start, cpu = time.perf_counter(), time.process_time()
            library.search(question[:-1] if "prefix" in options else question, HITS, by="words", **options)
            spent.append(1000 * (time.process_time() - cpu))
            seconds.append(1000 * (time.perf_counter() - start))
        row = {"library": what, "pages": len(library), "search": name, "CPU mean ms": statistics.mean(spent)}
        row |= {"CPU p50 ms": statistics.median(spent), "CPU p95 ms": float(np.quantile(spent, 0.95))}
        rows.append(row | {"wall p50 ms": statistics.median(seconds), "load": os.getloadavg()[0]})
    return rows


# -- all


def main() -> None:
    if sys.argv[1:2] in (["build"], ["ask"]):
        part, name, num, folder, place = sys.argv[1:]
        run_part(part, name, int(num), Path(folder), Path(place))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "shell", "index", "search"])
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="cache folder")
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000], help="for speed and search")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    manuals, folder = options.manuals.resolve(), options.folder.resolve()
    if options.part in ("speed", "search"):
        measure = measure_speed if options.part == "speed" else measure_searches
        rows = measure(manuals, folder, options.pages)
    else:
        rows = measure_shell(manuals, folder) if options.part == "shell" else measure_index(manuals, folder)
    print_table(rows)
    keep(f"words-{options.part}", rows)


if __name__ == "__main__":
    main()
