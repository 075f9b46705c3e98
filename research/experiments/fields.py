"""Which fields help keyword search? Ablations on development data, with the engine's scoring.

    python -m research.experiments.fields data/shelf/dev data/manuals/dev

Chosen by these rows: FIELD_WEIGHTS, k1 and b in `randslot.words.analyzer`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from randslot.library.languages import LibraryWords
from randslot.pages.pdf import OpenPdf, num_pdf_pages, read_pdf_text
from randslot.words.analyzer import FIELD_WEIGHTS, get_analyzer
from randslot.words.query import read_query

ANALYZER = get_analyzer("english")
Page = tuple[str, str, dict[str, str]]  # id, text, fields


def read_pages(folder: Path) -> list[Page]:
    """Return the pages of all PDFs in a folder."""
    words = LibraryWords({"root": str(folder)}, lambda settings: None)
    pages, kept = [], OpenPdf()
    for file in sorted(folder.rglob("*.pdf")):
        for number in range(1, num_pdf_pages(file) + 1):
            text = read_pdf_text(file, number, kept)
            name = f"{file.relative_to(folder).as_posix()}#page={number}"
            pages.append((name, text.text, {**text.fields, **words.name_fields(str(file))}))
    return pages


def measure(data: Path, pages: Sequence[Page], fields: Sequence[str]) -> float:
    """Return nDCG@5 over the English questions of a set, using only some fields."""
    mean = sum(ANALYZER.count_terms(text) for _, text, _ in pages) / len(pages)
    postings: dict[int, tuple[list[int], list[float]]] = {}
    for i, (_, text, own) in enumerate(pages):
        terms, _ = ANALYZER.analyse_page(text, {name: own[name] for name in fields if name in own}, mean)
        for number, weight in zip(terms.numbers, terms.weights, strict=True):
            ids, weights = postings.setdefault(number, ([], []))
            ids.append(i)
            weights.append(weight)
    grades: dict[str, dict[str, int]] = {}
    for line in (data / "qrels.jsonl").read_text().splitlines():
        row = json.loads(line)
        grades.setdefault(row["query"], {})[row["page"]] = row["grade"]
    discount = 1 / np.log2(np.arange(2, 7))
    found = []
    for line in (data / "queries.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("language", "en") != "en":
            continue
        scores = np.zeros(len(pages))
        query = read_query(row["query"], ANALYZER).terms
        for number, weight in zip(query.numbers, query.weights, strict=True):
            if number in postings:
                ids, weights = postings[number]
                idf = math.log(1 + (len(pages) - len(ids) + 0.5) / (len(ids) + 0.5))
                scores[ids] += weight * idf * np.array(weights)
        best = np.argsort(-scores, kind="stable")[:5]
        relevant = grades[row["id"]]
        gains = [relevant.get(pages[i][0], 0) * bool(scores[i] > 0) for i in best]
        ideal = sorted(relevant.values(), reverse=True)[:5]
        found.append(float(np.dot(gains, discount[: len(gains)]) / np.dot(ideal, discount[: len(ideal)])))
    return 100 * sum(found) / len(found)


def main() -> None:
    """Print rows for all fields, none, and all but each."""
    sets = [Path(name) for name in sys.argv[1:]]
    pages = [read_pages(data / "pages") for data in sets]
    everything = list(FIELD_WEIGHTS)
    rows = {"all fields": everything, "no fields": []}
    for left_out in everything:
        rows[f"without {left_out}"] = [name for name in everything if name != left_out]
    print("fields | " + " | ".join(str(data) for data in sets))
    for label, fields in rows.items():
        scores = [measure(data, some, fields) for data, some in zip(sets, pages, strict=True)]
        print(f"{label} | " + " | ".join(f"{score:.1f}" for score in scores), flush=True)


if __name__ == "__main__":
    main()
