"""Compare the small reader with keyword search, as libraries use it, on the test half of the manuals.

    python -m research.manuals data/manuals
    pip install "randslot[reader]"
    RANDSLOT_OCR=none python benchmarks/reader.py

The half is evaluated twice: as it is, and with 310 translations of its questions into other languages
(reader_questions.jsonl). The library is kept in --folder, so a stopped run resumes. The model, the number of windows
and the fusion of ranks were chosen on the other half: `python -m research.experiments.readers`.
"""

from __future__ import annotations

import argparse
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
from manuals import HITS, Half, Question, open_half
from numpy.typing import NDArray
from record import keep, print_table

from randslot.evaluation.compare import judge, judge_tasks
from randslot.evaluation.metrics import ndcg
from randslot.library.library import Library
from randslot.library.results import BY, By
from randslot.model.text_reader import NAME, UseReader
from research.manuals import list_questions

Array = NDArray[Any]
Ranked = list[list[str]]  # names of pages, for each question
MORE = Path(__file__).with_name("reader_questions.jsonl")
DRAWS = 10_000


def list_asked(half: Half, file: Path | None) -> list[Question]:
    """Return the questions of a half, then those of a file about the same pages."""
    asked = list(half.questions)
    if file is None:
        return asked
    known = {question["id"]: question["query"] for question in list_questions()}
    first = {one.text: one for one in half.questions}
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        one = first[known[row["id"]]]
        asked.append(Question(row["query"], row["language"], one.manual, one.grades))
    return asked


@dataclass(frozen=True)
class Gains:
    """nDCG@5 of every question by one search and by words, in points."""

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
        """Return the difference from words, with its interval over questions; language groups are weighted equally."""
        found = [self.find(group) for group in groups or [[language] for language in self.languages]]
        parts = [self.own[at] - self.words[at] for at in found]
        difference, low, high, verdict = judge_tasks({"set": parts})["set"]
        return {"minus words": difference, "from": low, "to": high, "verdict": verdict}

    def judge_together(self) -> dict[str, Any]:
        """Return the same, resampling a question together with its translations, which are not independent."""
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


def measure_test(half: Half, pages: Path, folder: Path) -> list[dict[str, Any]]:
    """Return rows for the chosen reader, as libraries use it: for the original questions, then with translations."""
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
    """Return the pages and questions that the chosen reader encodes per CPU second."""
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
    """Return a row per language, and means over languages."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="cache folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    manuals, folder = options.manuals.resolve(), options.folder.resolve()
    half = open_half("test", manuals, folder)
    rows = measure_test(half, manuals / "test" / "pages", folder)
    speed = measure_speed(half)
    half.library.close()
    for name, some in (("reader-speed", speed), ("reader-test", rows)):
        print_table(some)
        keep(name, some)


if __name__ == "__main__":
    main()
