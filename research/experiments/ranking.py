"""Saturation, neighbours, coverage, tables of contents and rarity: ablations of keyword search on development data.

    python -m research.experiments.ranking data/shelf/dev data/manuals/dev

With the engine's scoring, on English questions. Each row is compared with the former ranking (k1 1.2, b 0.5) on the
same questions: the difference of nDCG@5, with the 95 % interval of 4,000 resamples. "within": search only the file that
answers. "long": verbose questions. Chosen by these rows: k1 and b in `randslot.words.analyzer`, and the
weights in `randslot.library.search`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import typer
from record import keep

from randslot.words.analyzer import FIELD_WEIGHTS, NAME_WEIGHT, is_contents, tokenize
from randslot.words.query import choose_longest, read_query
from randslot.words.snippets import score_proximity

from .fields import ANALYZER, read_pages

LONG = (
    "Assume that you are an experienced analyst. Answer the following question by primarily using information that is "
    "clearly shown in the documents: {} Round your answer to two decimal places."
)
FORMER: dict[str, Any] = {"k1": 1.2, "b": 0.5, "near": 0.0, "cover": 0.0, "contents": 1.0, "own_rarity": False}
MIDDLE = FORMER | {"k1": 1.6, "b": 0.4}
CHOSEN = MIDDLE | {"near": 0.8, "cover": 0.5, "contents": 0.7}
VARIANTS = {
    "former": FORMER,
    "k1 0.6": FORMER | {"k1": 0.6},
    "k1 2.0": FORMER | {"k1": 2.0},
    "b 0.75": FORMER | {"b": 0.75},
    "k1 1.6, b 0.4": MIDDLE,
    "rarity in the file": MIDDLE | {"own_rarity": True},
    "lists of contents x 0.7": MIDDLE | {"contents": 0.7},
    "neighbours 0.8": MIDDLE | {"near": 0.8},
    "coverage 0.5": MIDDLE | {"cover": 0.5},
    "chosen": CHOSEN,
}


class Pages:
    """The pages of a set with their postings, and its questions."""

    def __init__(self, data: Path) -> None:
        self.pages = read_pages(data / "pages")
        self.files = np.array([name.split("#")[0] for name, _, _ in self.pages])
        self.contents = np.array([is_contents(text) for _, text, _ in self.pages])
        self.lengths = np.array([ANALYZER.count_terms(text) for _, text, _ in self.pages], float)
        self.counts: dict[str, dict[int, float]] = {}
        self.named: dict[str, list[int]] = {}
        for i, (_, text, fields) in enumerate(self.pages):
            own: Counter[str] = Counter(map(ANALYZER.find_term, tokenize(text)))
            scores: dict[str, float] = dict(own)
            in_names: set[str] = set()
            for field, content in fields.items():
                for term in set(map(ANALYZER.find_term, tokenize(content))):
                    scores[term] = scores.get(term, 0.0) + FIELD_WEIGHTS[field]
                    if field in ("name", "folder"):
                        in_names.add(term)
            for term, score in scores.items():
                self.counts.setdefault(term, {})[i] = score
            for term in in_names:
                self.named.setdefault(term, []).append(i)
        self.grades: dict[str, dict[str, int]] = {}
        for line in (data / "qrels.jsonl").read_text().splitlines():
            row = json.loads(line)
            self.grades.setdefault(row["query"], {})[row["page"]] = row["grade"]
        rows = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
        self.queries = {row["id"]: row["query"] for row in rows if row.get("language", "en") == "en"}

    def idf(self, num: int, total: int) -> float:
        return math.log(1 + (total - num + 0.5) / (num + 0.5))

    def find_idf(self, word: str) -> float:
        (token, *_) = tokenize(word)
        return self.idf(len(self.counts.get(ANALYZER.find_term(token), ())), len(self.pages))

    def score(self, text: str, how: dict[str, Any], mask: np.ndarray) -> np.ndarray:
        query = read_query(text, ANALYZER, (), self.find_idf)
        numbered = dict(zip(query.terms.numbers, query.terms.weights, strict=True))
        scores = np.zeros(len(self.pages))
        for term in self.list_terms(text):
            weight = numbered.get(crc32(term.encode()), 0.0)
            found = self.counts.get(term, {})
            ids, counts = np.array(list(found), int), np.array(list(found.values()))
            num, total = (int(mask[ids].sum()), int(mask.sum())) if how["own_rarity"] else (len(ids), len(self.pages))
            if not weight or not num:
                continue
            norm = how["k1"] * (1 - how["b"] + how["b"] * self.lengths[ids] / self.lengths.mean())
            scores[ids] += weight * self.idf(num, total) * counts * (how["k1"] + 1) / (counts + norm)
            if named := self.named.get(term):
                scores[named] += NAME_WEIGHT * self.idf(len(named), len(self.pages)) * (weight if weight < 0.2 else 1)
        scores = np.where(mask, np.where(self.contents, how["contents"] * scores, scores), 0.0)
        words = {word.terms[0] for word in choose_longest(query.content_words)}
        for i in np.argsort(-scores, kind="stable")[:20] if how["near"] or how["cover"] else ():
            _, page, fields = self.pages[i]
            scores[i] += how["near"] * score_proximity(query.matcher.match(page), query)
            if len(words) <= 4:
                covered = words & (query.matcher.find_terms(page) | query.matcher.find_terms(" ".join(fields.values())))
                scores[i] += how["cover"] * sum(query.idf[term] for term in covered)
        return scores

    def list_terms(self, text: str) -> set[str]:
        terms = {ANALYZER.find_term(token) for token in tokenize(text)}
        return terms.union(*(word.terms for word in read_query(text, ANALYZER).joined))

    def measure(self, how: dict[str, Any], wording: str = "{}", within: bool = False) -> np.ndarray:
        """Return nDCG@5 of each question."""
        discount = 1 / np.log2(np.arange(2, 7))
        found = []
        for id, text in self.queries.items():
            grades, mask = self.grades[id], np.ones(len(self.pages), bool)
            if within:
                file = max(grades, key=lambda page: grades[page]).split("#")[0]
                mask = self.files == file
                grades = {page: grade for page, grade in grades.items() if page.startswith(f"{file}#")}
            scores = self.score(wording.format(text), how, mask)
            best = np.argsort(-scores, kind="stable")[:5]
            gains = [grades.get(self.pages[i][0], 0) * bool(scores[i] > 0) for i in best]
            ideal = sorted(grades.values(), reverse=True)[:5]
            found.append(100 * float(np.dot(gains, discount) / np.dot(ideal, discount[: len(ideal)])))
        return np.array(found)


def main(sets: list[Path]) -> None:
    """Measure all variants and write the rows."""
    rng = np.random.default_rng(0)
    rows = []
    for data in sets:
        pages = Pages(data)
        settings: dict[str, dict[str, Any]] = {"library": {}, "within": {"within": True}, "long": {"wording": LONG}}
        for setting, options in settings.items():
            former = pages.measure(FORMER, **options)
            for name, how in VARIANTS.items():
                scores = former if how is FORMER else pages.measure(how, **options)
                difference = scores - former
                means = difference[rng.integers(0, len(difference), (4000, len(difference)))].mean(1)
                row = {"set": str(data), "setting": setting, "variant": name, "questions": len(scores)}
                row |= {"ndcg@5": round(float(scores.mean()), 2), "difference": round(float(difference.mean()), 2)}
                row["interval"] = [round(float(one), 2) for one in np.percentile(means, [2.5, 97.5])]
                rows.append(row)
                print(json.dumps(row), flush=True)
    keep("ranking", rows)


if __name__ == "__main__":
    typer.run(main)
